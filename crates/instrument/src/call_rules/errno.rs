//! Where a C library keeps `errno`: at a constant distance from the thread pointer, which its `__errno_location` adds to it.
//!
//! ```text
//! glibc, shared   mov rax, [rip + GOT]; add rax, fs:[0]; ret        the distance is in the table
//! glibc, static   mov rax, -N; add rax, fs:[0]; ret                 or: mov rax, fs:[0]; add rax, -N; ret
//! musl            mov rax, fs:[0]; add rax, 52; ret
//! ```

use crate::memory::read_remote;
use crate::proc::{Pid, RemoteAddr};
use crate::survey::Survey;

/// Enough for any of the forms.
const LENGTH: usize = 32;
/// No thread-local storage is this large.
const FARTHEST: i64 = 1 << 30;

/// Distance from the thread pointer; `None` where it cannot be told.
pub fn offset(pid: Pid, survey: &Survey) -> Option<i64> {
    survey.modules.iter().find_map(|surveyed| {
        let mut functions = surveyed.module.functions.iter();
        let function = functions.find(|function| {
            let linkage = function.linkage_name.as_deref();
            function.name == "__errno_location" || linkage == Some("__errno_location")
        })?;
        let at = function.start.wrapping_add(surveyed.bias);
        let mut code = [0; LENGTH];
        read_remote(pid, RemoteAddr(at), &mut code).ok()?;
        let offset = match read(&code, at)? {
            Found::Offset(offset) => offset,
            Found::InTable(address) => {
                let mut bytes = [0; 8];
                read_remote(pid, RemoteAddr(address), &mut bytes).ok()?;
                i64::from_le_bytes(bytes)
            }
        };
        (offset != 0 && offset.abs() < FARTHEST && offset % 4 == 0).then_some(offset)
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    Offset(i64),
    /// At this address.
    InTable(u64),
}

const THREAD_POINTER: [&[u8]; 2] = [
    // add rax, fs:[0]
    &[0x64, 0x48, 0x03, 0x04, 0x25, 0, 0, 0, 0],
    // mov rax, fs:[0]
    &[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0],
];

/// Reads the two instructions, in whichever order they stand.
fn read(code: &[u8], at: u64) -> Option<Found> {
    let mut rest = code;
    let mut found = None;
    let mut has_pointer = false;
    loop {
        let here = at + (code.len() - rest.len()) as u64;
        if let Some(after) = rest.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]) {
            rest = after;
        } else if let Some(after) = THREAD_POINTER.iter().find_map(|p| rest.strip_prefix(*p)) {
            has_pointer = true;
            rest = after;
        } else {
            let (value, length) = match rest {
                [0x48, 0x8b | 0x03, 0x05, a, b, c, d, ..] => {
                    let displacement = i32::from_le_bytes([*a, *b, *c, *d]);
                    let address = (here + 7).wrapping_add_signed(displacement.into());
                    (Found::InTable(address), 7)
                }
                [0x48, 0xc7, 0xc0, a, b, c, d, ..] | [0x48, 0x8d, 0x80, a, b, c, d, ..] => (
                    Found::Offset(i32::from_le_bytes([*a, *b, *c, *d]).into()),
                    7,
                ),
                [0x48, 0x05, a, b, c, d, ..] => (
                    Found::Offset(i32::from_le_bytes([*a, *b, *c, *d]).into()),
                    6,
                ),
                [0x48, 0x83, 0xc0, a, ..] => (Found::Offset(i64::from(*a as i8)), 4),
                [0xc3, ..] if has_pointer => return found,
                _ => return None,
            };
            found = Some(value);
            rest = &rest[length..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_way_of_finding_errno_is_read() {
        let shared = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8b, 0x05, 0x10, 0, 0, 0, 0x64, 0x48, 0x03, 0x04, 0x25,
            0, 0, 0, 0, 0xc3,
        ];
        assert_eq!(read(&shared, 0x1000), Some(Found::InTable(0x100b + 0x10)));
        let fixed = [
            0x48, 0xc7, 0xc0, 0xc0, 0xff, 0xff, 0xff, 0x64, 0x48, 0x03, 0x04, 0x25, 0, 0, 0, 0,
            0xc3,
        ];
        assert_eq!(read(&fixed, 0), Some(Found::Offset(-64)));
        let musl = [
            0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0, 0x48, 0x83, 0xc0, 0x34, 0xc3,
        ];
        assert_eq!(read(&musl, 0), Some(Found::Offset(52)));
        assert_eq!(read(&[0x55, 0x48, 0x89, 0xe5, 0xc3], 0), None);
        assert_eq!(read(&musl[..5], 0), None);
    }
}
