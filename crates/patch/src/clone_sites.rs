//! The few instructions by which a C library makes threads: known by their bytes, and probed at their entry alone.
//!
//! They are no functions to be counted: a child leaves them on another stack. But right before, in the creator, they say
//! which thread pointer the child will have, and by that a child can be told who made it.

use crate::image::Image;
use crate::insn::{Flow, Insn, decode_one};
use crate::interface::{
    Event, FunctionPlan, MAX_PROBE_BYTES, Method, ModulePlan, PatchForm, Probe, Window,
};
use thalweg_symbols::{FunctionKind, Module};

/// How a function that makes threads is told the child's thread pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloneKind {
    /// `clone(function, stack, flags, argument, parent_tid, tls, child_tid)`
    Clone,
    /// `clone3(arguments, size, function, argument)`
    Clone3,
}

/// What the text at a function's entry must be. More than the system call's number: its arguments are read.
const SHAPES: &[(CloneKind, &[u8])] = &[
    // glibc: mov $-EINVAL,%eax; test %rdi,%rdi; je ..; test %rdx,%rdx; je ..; mov %rcx,%r8; mov $435,%eax
    (
        CloneKind::Clone3,
        b"\xb8\xea\xff\xff\xff\x48\x85\xff\x74*\x48\x85\xd2\x74*\x49\x89\xc8\xb8\xb3\x01\x00\x00",
    ),
    // glibc: mov $-EINVAL,%rax; test %rdi,%rdi; je ..; (and $-16,%rsi;) test %rsi,%rsi
    (
        CloneKind::Clone,
        b"\x48\xc7\xc0\xea\xff\xff\xff\x48\x85\xff\x74*\x48\x85\xf6",
    ),
    (
        CloneKind::Clone,
        b"\x48\xc7\xc0\xea\xff\xff\xff\x48\x85\xff\x74*\x48\x83\xe6\xf0",
    ),
    // musl: xor %eax,%eax; mov $56,%al; mov %rdi,%r11; mov %rdx,%rdi; mov %r8,%rdx; mov %r9,%r8
    (
        CloneKind::Clone,
        b"\x31\xc0\xb0\x38\x49\x89\xfb\x48\x89\xd7\x4c\x89\xc2\x4d\x89\xc8",
    ),
];

const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
const JUMP: u64 = 5;
const PAGE: u64 = 4096;

/// The functions of a module that make threads.
pub fn clone_sites(module: &Module) -> Vec<(usize, CloneKind)> {
    let image = Image::new(module);
    let untouchable = module
        .functions
        .iter()
        .enumerate()
        .filter(|(_, function)| matches!(function.kind, FunctionKind::Untouchable(_)));
    untouchable
        .filter_map(|(index, function)| {
            let code = image.code_at(function.start)?;
            let code = code.strip_prefix(ENDBR64).unwrap_or(code);
            let fits = |shape: &[u8]| {
                let mut pairs = shape.iter().zip(code);
                shape.len() <= code.len() && pairs.all(|(want, is)| *want == b'*' || want == is)
            };
            let (kind, _) = SHAPES.iter().find(|(_, shape)| fits(shape))?;
            Some((index, *kind))
        })
        .collect()
}

/// A probe at the entry of each of these functions, which must be of [`clone_sites`], and at nothing else.
pub fn plan_clone_sites(module: &Module, functions: &[usize]) -> ModulePlan {
    let image = Image::new(module);
    let mut plan = ModulePlan::default();
    for &function in functions {
        if let Some(window) = entry_window(&image, function) {
            let stub_bytes = (window.end - window.start) * 8 + MAX_PROBE_BYTES + JUMP;
            plan.stub_bytes += stub_bytes;
            plan.functions.push(FunctionPlan {
                function,
                keep_flags: false,
                leaf: false,
                method: Method::Direct,
                exits: 0,
                windows: vec![window],
                needs: Vec::new(),
                stub_bytes,
            });
        }
    }
    plan
}

/// The instructions at the entry that a jump displaces. Those shapes have no branch back to them.
fn entry_window(image: &Image, function: usize) -> Option<Window> {
    let start = image.module.functions[function].start;
    let skip = image.code_at(start)?.starts_with(ENDBR64);
    let start = start + if skip { ENDBR64.len() as u64 } else { 0 };
    let mut end = start;
    while end < start + JUMP {
        let insn = Insn::from_iced(&decode_one(image.code_at(end)?, end)?)?;
        if insn.flow != Flow::Next || !insn.movable() {
            return None;
        }
        end = insn.end();
    }
    // Patches are written page by page.
    if start / PAGE != (start + JUMP - 1) / PAGE {
        return None;
    }
    Some(Window {
        start,
        end,
        patch: PatchForm::Near,
        events: vec![Event {
            at: start,
            probe: Probe::Entry {
                function,
                loops: false,
            },
        }],
        prefix: None,
        padding: Vec::new(),
        rank: 0,
        keeps_from: None,
    })
}
