//! Which code may be probed, and for what reason not.

use crate::FunctionKind;

const RESTORER: &str = "signal restorer: the kernel and unwinders know it by its bytes";
const NEW_TASK: &str = "starts a thread or process that shares this stack or memory";
const CONTEXT: &str = "switches to another stack or context";
const GO_RUNTIME: &str = "part of Go's runtime, which switches stacks";
const COPIED: &str = "code that V8 copies while it runs";
const THUNK: &str = "return or indirect-branch thunk";
const LOADER: &str = "runs inside the dynamic loader's own calling convention";
const CANCELLATION: &str = "cancellation range: the C library compares addresses with it";
pub(crate) const RSEQ: &str = "restartable sequence: the kernel compares addresses with it";
const THREAD_POINTER: &str = "sets up thread-local storage, on which probes rely";
const OUTERMOST: &str = "outermost frame: it never returns to a caller";

/// What is known of one function when its kind is decided.
pub(crate) struct Facts<'a> {
    pub name: Option<&'a str>,
    /// From its first byte up to two bytes past its end: unwind information may stop just before a
    /// `syscall`.
    pub code: &'a [u8],
    pub is_entry: bool,
    pub is_resolver: bool,
    pub signal_frame: bool,
    pub outermost: bool,
    pub starts_like_a_call: Option<bool>,
    pub in_rseq: bool,
}

pub(crate) fn kind(facts: &Facts<'_>) -> FunctionKind {
    if let Some(reason) = facts.name.and_then(untouchable_name) {
        return FunctionKind::Untouchable(reason);
    }
    if facts.signal_frame || is_restorer(facts.code) {
        return FunctionKind::Untouchable(RESTORER);
    }
    if facts.in_rseq {
        return FunctionKind::Untouchable(RSEQ);
    }
    if sets_thread_pointer(facts.code) {
        return FunctionKind::Untouchable(THREAD_POINTER);
    }
    if makes_task(facts.code) {
        return FunctionKind::Untouchable(NEW_TASK);
    }
    if is_cancellation_range(facts.code) {
        return FunctionKind::Untouchable(CANCELLATION);
    }
    if is_long_jump(facts.code) {
        return FunctionKind::Untouchable(CONTEXT);
    }
    if facts.is_entry || facts.name == Some("_start") {
        return FunctionKind::EntryCode;
    }
    if facts.is_resolver {
        return FunctionKind::IfuncResolver;
    }
    if facts.name.is_some_and(is_cold) || facts.starts_like_a_call == Some(false) {
        return FunctionKind::Fragment;
    }
    if facts.outermost {
        return FunctionKind::Untouchable(OUTERMOST);
    }
    FunctionKind::Normal
}

fn untouchable_name(name: &str) -> Option<&'static str> {
    Some(match name {
        "__restore_rt" | "__restore" => RESTORER,
        "clone" | "__clone" | "clone3" | "__clone3" | "vfork" | "__vfork" | "__libc_vfork" => {
            NEW_TASK
        }
        "__longjmp"
        | "____longjmp_chk"
        | "getcontext"
        | "__getcontext"
        | "__start_context"
        | "__push___start_context" => CONTEXT,
        "_dl_relocate_static_pie"
        | "__tls_get_addr"
        | "___tls_get_addr"
        | "__tls_get_addr_slow"
        | "_dl_start"
        | "_dlstart"
        | "_dlstart_c" => LOADER,
        "__syscall_cp_asm"
        | "__syscall_cancel_arch"
        | "__cp_begin"
        | "__cp_end"
        | "__cp_cancel" => CANCELLATION,
        "__libc_setup_tls" => THREAD_POINTER,
        _ if name.starts_with("_dl_runtime_resolve")
            || name.starts_with("_dl_runtime_profile")
            || name.starts_with("_dl_tlsdesc_") =>
        {
            LOADER
        }
        "__x86_return_thunk" => THUNK,
        _ if name.starts_with("__x86_indirect_thunk")
            || name.starts_with("__llvm_retpoline_")
            || name.starts_with("__llvm_lvi_thunk_")
            || name.starts_with("__x86_indirect_call_thunk")
            || name.starts_with("__x86_indirect_jump_thunk") =>
        {
            THUNK
        }
        // Goroutines return into the middle of runtime.goexit, and the scheduler switches stacks at
        // will.
        _ if name.starts_with("runtime.") => GO_RUNTIME,
        // V8 copies these to where its compiled code can call them, jumps to stubs and all.
        _ if name.starts_with("Builtins_") => COPIED,
        _ => return None,
    })
}

/// `foo.cold`, `foo.cold.3`: GCC's name for the unlikely part of a function.
pub(crate) fn is_cold(name: &str) -> bool {
    match name.rfind(".cold") {
        Some(at) if at > 0 => {
            let rest = &name[at + 5..];
            rest.is_empty()
                || rest
                    .strip_prefix('.')
                    .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        }
        _ => false,
    }
}

/// `mov $15,%rax; syscall`, with the four-byte move that musl uses too.
pub(crate) fn is_restorer(code: &[u8]) -> bool {
    code.starts_with(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05])
        || code.starts_with(&[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05])
}

/// Each `syscall` whose number is loaded shortly before it (`mov $n,%eax`, perhaps with a few
/// instructions in between): its position and the number.
fn system_calls(code: &[u8]) -> impl Iterator<Item = (usize, u32)> + '_ {
    let places = code
        .windows(2)
        .enumerate()
        .filter(|(_, w)| *w == [0x0f, 0x05])
        .map(|(at, _)| at);
    places.filter_map(|at| {
        let before = &code[at.saturating_sub(24)..at];
        let load = before
            .windows(5)
            .rfind(|w| w[0] == 0xb8 && w[3..] == [0, 0])?;
        Some((at, u32::from(u16::from_le_bytes([load[1], load[2]]))))
    })
}

/// Is there a `mov $value,%edi` among the 48 bytes before `at`?
fn first_argument_is(code: &[u8], at: usize, value: u32) -> bool {
    let before = &code[at.saturating_sub(48)..at];
    before
        .windows(5)
        .any(|w| w[0] == 0xbf && w[1..] == value.to_le_bytes())
}

/// clone, vfork or clone3, except glibc's plain fork, whose child gets a copy of everything.
fn makes_task(code: &[u8]) -> bool {
    const CLONE: u32 = 56;
    const VFORK: u32 = 58;
    const CLONE3: u32 = 435;
    // CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD
    const FORK_FLAGS: u32 = 0x0120_0011;
    system_calls(code).any(|(at, number)| match number {
        VFORK | CLONE3 => true,
        CLONE => !first_argument_is(code, at, FORK_FLAGS),
        _ => false,
    })
}

/// arch_prctl(ARCH_SET_FS, ..)
fn sets_thread_pointer(code: &[u8]) -> bool {
    const ARCH_PRCTL: u32 = 158;
    const ARCH_SET_FS: u32 = 0x1002;
    system_calls(code)
        .any(|(at, number)| number == ARCH_PRCTL && first_argument_is(code, at, ARCH_SET_FS))
}

/// What `__syscall_cp_asm` and `__syscall_cancel_arch` begin with: `mov (%rdi),%eax`, a test of it,
/// a conditional jump, and then a system call.
fn is_cancellation_range(code: &[u8]) -> bool {
    let code = code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(code);
    let rest = match code {
        [0x8b, 0x07, 0x85, 0xc0, rest @ ..] | [0x8b, 0x07, 0xa8, _, rest @ ..] => rest,
        _ => return false,
    };
    let jumps = matches!(rest, [0x75, ..] | [0x0f, 0x85, ..]);
    let soon = &rest[..rest.len().min(64)];
    jumps && soon.windows(2).any(|pair| pair == [0x0f, 0x05])
}

/// glibc's `__longjmp`: `mov %r8,%rsp; mov %r9,%rbp; jmp *%rdx` (or with a shadow-stack probe in
/// between).
fn is_long_jump(code: &[u8]) -> bool {
    code.len() < 1024
        && code
            .windows(8)
            .any(|w| w == [0x4c, 0x89, 0xc4, 0x4c, 0x89, 0xcd, 0xff, 0xe2])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts<'a>(name: Option<&'a str>, code: &'a [u8]) -> Facts<'a> {
        Facts {
            name,
            code,
            is_entry: false,
            is_resolver: false,
            signal_frame: false,
            outermost: false,
            starts_like_a_call: Some(true),
            in_rseq: false,
        }
    }

    #[test]
    fn cold_parts_are_known_by_name() {
        for name in [
            "foo.cold",
            "foo.cold.1",
            "_ZN3fooEv.cold",
            "foo.isra.0.cold",
        ] {
            assert!(is_cold(name), "{name}");
        }
        for name in [
            "cold",
            "foo.colder",
            "foo.cold.x",
            "foo.cold.",
            ".cold",
            "cold.foo",
        ] {
            assert!(!is_cold(name), "{name}");
        }
    }

    #[test]
    fn clone_is_recognised_without_a_name_and_fork_is_not_mistaken_for_it() {
        let clone = [0x4d, 0x89, 0xc2, 0xb8, 56, 0, 0, 0, 0x0f, 0x05];
        assert_eq!(
            kind(&facts(None, &clone)),
            FunctionKind::Untouchable(NEW_TASK)
        );
        let fork = [
            0xbf, 0x11, 0x00, 0x20, 0x01, 0x31, 0xf6, 0xb8, 56, 0, 0, 0, 0x0f, 0x05,
        ];
        assert_eq!(kind(&facts(None, &fork)), FunctionKind::Normal);
        let write = [0xb8, 1, 0, 0, 0, 0x0f, 0x05];
        assert_eq!(kind(&facts(None, &write)), FunctionKind::Normal);
    }

    #[test]
    fn code_that_is_cancelled_by_where_it_stands_is_known_without_a_name() {
        let musl = [
            0x8b, 0x07, 0x85, 0xc0, 0x0f, 0x85, 1, 0, 0, 0, 0x49, 0x89, 0xfb, 0x48, 0x89, 0xf0,
            0x0f, 0x05,
        ];
        let expected = FunctionKind::Untouchable(CANCELLATION);
        assert_eq!(kind(&facts(None, &musl)), expected);
        assert_eq!(kind(&facts(None, &musl[..16])), FunctionKind::Normal);
    }

    #[test]
    fn what_must_not_be_probed_is_not_normal() {
        for name in [
            "__restore_rt",
            "vfork",
            "__x86_indirect_thunk_rax",
            "_dl_runtime_resolve_xsavec",
            "__longjmp",
        ] {
            assert!(
                matches!(
                    kind(&facts(Some(name), &[0xc3])),
                    FunctionKind::Untouchable(_)
                ),
                "{name}"
            );
        }
        let restorer = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
        assert_eq!(
            kind(&facts(None, &restorer)),
            FunctionKind::Untouchable(RESTORER)
        );
        assert_eq!(
            kind(&facts(Some("_start"), &[0x31, 0xed])),
            FunctionKind::EntryCode
        );
        assert_eq!(kind(&facts(Some("_init"), &[0xc3])), FunctionKind::Normal);
    }
}
