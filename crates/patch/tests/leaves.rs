//! Leaves: which functions are ones, and what is emitted of them where they are counted at their entry alone.

mod common;

use common::{Sample, assemble, everything};
use std::path::Path;
use thalweg_patch::{Placement, Probe, ProbeEncoder, emit, verify};
use thalweg_symbols::Module;

const BIAS: u64 = 0x7f00_0000_0000;
const STUBS: u64 = BIAS + 0x4000_0000;

/// As the plain encoder, with every leaf counted at its entry, and something before it.
struct Leaves;

impl ProbeEncoder for Leaves {
    fn encode(&self, probe: Probe, keep_flags: bool, at: u64, out: &mut Vec<u8>) {
        Sample.encode(probe, keep_flags, at, out);
    }

    fn lead(&self, _probe: Probe, _keep_flags: bool, _at: u64, out: &mut Vec<u8>) {
        out.extend([0xcc; 40]);
    }

    fn counts_leaf(&self, _function: usize) -> bool {
        true
    }
}

fn is_leaf(code: &str) -> bool {
    let plan = everything(&assemble(code));
    let first = plan.functions.iter().find(|plan| plan.function == 0);
    first
        .unwrap_or_else(|| panic!("{code}: {:?}", plan.skipped))
        .leaf
}

#[test]
fn leaves_call_nothing_and_lead_forward() {
    for code in [
        "f: lea rax, [rdi + rdi * 2]; add rax, 1; ret; .p2align 4",
        "f: test edi, edi; je .a; mov rax, [rdi]; add rax, 7; ret; .a: xor eax, eax; add rax, 9; ret; .p2align 4",
        "f: push rbx; mov rbx, [rdi]; mov [rsi], rbx; pop rbx; ret; .p2align 4",
    ] {
        assert!(is_leaf(code), "{code}");
    }
    for code in [
        "f: sub rsp, 8; call rax; add rsp, 8; ret; .p2align 4",
        "f: mov rax, [rdi + 8]; mov rcx, rdi; .b: dec rcx; jne .b; nop dword ptr [rax + rax]; ret; .p2align 4",
        "f: mov rcx, rdx; mov rax, rdi; rep movsb; nop dword ptr [rax + rax]; ret; .p2align 4",
        "f: mov rax, [rdi + 16]; mov rdi, [rdi + 8]; jmp rax; .p2align 4",
        "f: mov eax, 39; syscall; nop dword ptr [rax + rax]; ret; .p2align 4",
    ] {
        assert!(!is_leaf(code), "{code}");
    }
}

#[test]
fn a_counted_leaf_has_no_patch_at_its_exits_and_all_is_sound() {
    let library = |name: &str| format!("/usr/lib/x86_64-linux-gnu/{name}");
    let mut found = 0;
    for file in [
        library("libc.so.6"),
        library("libsqlite3.so.0"),
        "/usr/bin/lua5.4".into(),
    ] {
        let Ok(module) = Module::load(Path::new(&file)) else {
            continue;
        };
        let plan = everything(&module);
        let place = |encoder| Placement {
            bias: BIAS,
            stub_base: STUBS,
            encoder,
        };
        let counted = emit(&module, &plan, &place(&Leaves)).expect("stubs in reach");
        let problems = verify(&module, &plan, &counted, &place(&Leaves));
        assert!(problems.is_empty(), "{file}: {problems:?}");
        let all = emit(&module, &plan, &place(&Sample)).expect("stubs in reach");
        assert!(all.leaves.is_empty());
        let leaves = plan.functions.iter().filter(|function| function.leaf);
        let leaves: Vec<usize> = leaves.map(|function| function.function).collect();
        assert_eq!(counted.leaves, leaves, "{file}");
        assert!(
            leaves.len() * 20 > plan.functions.len(),
            "{file}: {}",
            leaves.len()
        );
        // Fewer patches, and those that are left are the same but for where they lead.
        let places = |emitted: &thalweg_patch::Emitted| -> Vec<(u64, usize)> {
            let patches = emitted.patches.iter();
            patches
                .map(|patch| (patch.address, patch.original.len()))
                .collect()
        };
        let (few, many) = (places(&counted), places(&all));
        assert!(few.len() < many.len(), "{file}");
        let many: std::collections::HashSet<(u64, usize)> = many.into_iter().collect();
        assert!(few.iter().all(|patch| many.contains(patch)), "{file}");
        found += 1;
    }
    assert!(found >= 1, "nothing to test on this machine");
}
