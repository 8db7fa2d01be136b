//! The bytes of a process's executable mappings, read from outside: what must be the same before an attach
//! and after a detach.

use super::build::{Program, hash};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// "start-end perms path" -> hash of the bytes.
pub type TextMap = BTreeMap<String, u64>;

pub fn executable_mappings(pid: u32) -> TextMap {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("target lives");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("target's memory is readable");
    let mut result = TextMap::new();
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (range, permissions) = (
            fields.next().expect("range"),
            fields.next().expect("permissions"),
        );
        let path = fields.nth(3).unwrap_or_default();
        if !permissions.contains('x') || path == "[vsyscall]" {
            continue;
        }
        let (start, end) = range.split_once('-').expect("start-end");
        let start = u64::from_str_radix(start, 16).expect("hexadecimal");
        let end = u64::from_str_radix(end, 16).expect("hexadecimal");
        let mut bytes = vec![0; (end - start) as usize];
        // A program that closes libraries may just have done so, and opened it again since.
        if memory.read_exact_at(&mut bytes, start).is_err() {
            continue;
        }
        result.insert(format!("{range} {permissions} {path}"), hash(&bytes));
    }
    assert!(
        !result.is_empty(),
        "process {pid} has no executable mapping"
    );
    result
}

/// Every mapping of before is there with the same bytes. What else there is now is the second list.
pub fn compare(before: &TextMap, after: &TextMap) -> (Vec<String>, Vec<String>) {
    let changed = before
        .iter()
        .filter(|(name, hash)| after.get(*name) != Some(hash))
        .map(|(name, _)| name.clone());
    let added = after
        .keys()
        .filter(|name| !before.contains_key(*name))
        .cloned();
    (changed.collect(), added.collect())
}

/// A mapping's address range does not change while a program runs; its bytes must not either.
#[track_caller]
pub fn assert_restored(before: &TextMap, after: &TextMap) {
    let (changed, added) = compare(before, after);
    assert!(
        changed.is_empty(),
        "executable bytes differ after the detach: {changed:#?}"
    );
    assert!(
        added.is_empty(),
        "executable mappings left behind after the detach: {added:#?}"
    );
}

#[track_caller]
pub fn assert_patched(before: &TextMap, now: &TextMap) {
    let (changed, _) = compare(before, now);
    assert!(
        !changed.is_empty(),
        "no executable mapping changed: nothing was patched"
    );
}

/// The bytes that one of the program's own functions has in a running process.
pub fn function_bytes(program: &Program, pid: u32, name: &str) -> Vec<u8> {
    let module = program.module();
    let own = &program.modules[&module];
    let (address, _) = own
        .iter()
        .find(|(_, n)| *n == name)
        .unwrap_or_else(|| panic!("no function {name}"));
    let end = own
        .range(address + 1..)
        .next()
        .map_or(address + 32, |(next, _)| *next);
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("target lives");
    // The lowest mapping of a position-independent program is its address 0.
    let path = program.path.canonicalize().expect("program exists");
    let line = maps
        .lines()
        .find(|line| line.ends_with(path.to_str().expect("UTF-8")))
        .expect("program is mapped");
    let base =
        u64::from_str_radix(line.split('-').next().expect("start"), 16).expect("hexadecimal");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("target's memory is readable");
    let mut bytes = vec![0; (end - address) as usize];
    memory
        .read_exact_at(&mut bytes, base + address)
        .expect("function is mapped");
    bytes
}
