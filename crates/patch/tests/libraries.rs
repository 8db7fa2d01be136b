//! The planner on what a distribution ships: nearly everything is patched, and the checker finds nothing wrong.

mod common;

use common::{checked, random};
use std::path::{Path, PathBuf};
use thalweg_patch::{Placement, Probe, emit, enters_kernel, plan_entering, verify};
use thalweg_symbols::{FunctionKind, Module};

const BIAS: u64 = 0x7f00_0000_0000;
const STUBS: u64 = BIAS + 0x4000_0000;

/// Share of ordinary functions with entry and all exits probed, in percent.
fn coverage(file: &Path) -> Option<f64> {
    let module = Module::load(file).ok()?;
    let normal = module
        .functions
        .iter()
        .filter(|f| matches!(f.kind, FunctionKind::Normal | FunctionKind::IfuncResolver))
        .count();
    let (plan, _) = checked(&module, BIAS, STUBS);
    let selected = module
        .functions
        .iter()
        .filter(|f| f.kind != FunctionKind::Fragment)
        .count();
    assert_eq!(
        plan.functions.len() + plan.skipped.len(),
        selected,
        "a function went missing"
    );
    Some(plan.functions.len() as f64 * 100.0 / normal.max(1) as f64)
}

#[test]
fn at_least_99_percent_of_every_big_program_is_patched_and_sound() {
    let library = |name: &str| format!("/usr/lib/x86_64-linux-gnu/{name}");
    let files = [
        library("libc.so.6"),
        library("libstdc++.so.6"),
        library("libsqlite3.so.0"),
        library("libm.so.6"),
        library("libcrypto.so.3"),
        "/usr/bin/python3.11".to_string(),
        "/usr/bin/lua5.4".to_string(),
        "/usr/lib/postgresql/15/bin/postgres".to_string(),
        std::env::current_exe().unwrap().display().to_string(),
    ];
    let mut found = 0;
    for file in files.iter().map(Path::new).filter(|f| f.exists()) {
        let percent = coverage(file).expect("an ELF file");
        println!("{percent:6.2} % {}", file.display());
        assert!(percent >= 99.0, "{}: only {percent:.2} %", file.display());
        found += 1;
    }
    assert!(found >= 2, "nothing to test on this machine");
}

#[test]
#[ignore = "takes minutes: every ELF file of the machine"]
fn every_library_and_program_of_the_machine_is_sound() {
    let mut files: Vec<PathBuf> = Vec::new();
    for directory in ["/usr/lib/x86_64-linux-gnu", "/usr/bin", "/usr/sbin"] {
        let Ok(entries) = std::fs::read_dir(directory) else {
            continue;
        };
        files.extend(
            entries
                .flatten()
                .map(|e| e.path())
                .filter(|p| p.is_file() && !p.is_symlink()),
        );
    }
    let done = files.iter().filter(|f| coverage(f).is_some()).count();
    println!("{done} files");
    assert!(done > 100);
}

#[test]
fn any_selection_of_functions_is_sound() {
    let module = Module::load(Path::new("/usr/lib/x86_64-linux-gnu/libc.so.6")).expect("libc");
    let mut state = 0x1234_5678_9abc_def1;
    for _ in 0..8 {
        let selected: Vec<bool> = module
            .functions
            .iter()
            .map(|_| random(&mut state).is_multiple_of(3))
            .collect();
        let plan = plan_entering(&module, &selected, &enters_kernel(&module));
        assert!(
            plan.functions.iter().all(|f| selected[f.function]),
            "patched what nobody asked for"
        );
        let place = Placement {
            bias: BIAS,
            stub_base: STUBS,
            encoder: &common::Sample,
        };
        let emitted = emit(&module, &plan, &place).unwrap();
        assert_eq!(
            verify(&module, &plan, &emitted, &place),
            Vec::<String>::new()
        );
    }
}

#[test]
fn garbage_in_the_text_is_no_reason_to_panic() {
    let mut module = Module::load(Path::new("/usr/lib/x86_64-linux-gnu/libm.so.6")).expect("libm");
    let mut state = 0xfeed_beef_dead_0001;
    for round in 0..12 {
        for section in &mut module.sections {
            let len = section.bytes.len() as u64;
            for _ in 0..len >> 9 {
                let at = (random(&mut state) % len) as usize;
                section.bytes[at] = random(&mut state) as u8;
            }
        }
        let count = module.functions.len() as u64;
        let victim = (random(&mut state) % count) as usize;
        match round % 4 {
            0 => module.functions[victim].end = u64::MAX,
            1 => module.functions[victim].start = 0,
            2 => module.functions[victim].end = module.functions[victim].start,
            _ => module.code_pointers.push(u64::MAX),
        }
        let plan = common::everything(&module);
        let place = Placement {
            bias: BIAS,
            stub_base: STUBS,
            encoder: &common::Sample,
        };
        // What was understood wrongly may be refused; it must not bring the planner down.
        let _ = emit(&module, &plan, &place);
    }
}

#[test]
fn stubs_out_of_reach_are_an_error() {
    let module = common::assemble("f: mov eax, [rip + 0x1000]; ret; .p2align 4");
    let plan = common::everything(&module);
    let place = Placement {
        bias: 0,
        stub_base: 1 << 33,
        encoder: &common::Sample,
    };
    assert!(emit(&module, &plan, &place).is_err());
}

/// Whether every exit of the one function of `code` goes elsewhere, and if so whether up the same stack.
fn elsewhere(code: &str) -> Option<bool> {
    let plan = common::everything(&common::assemble(code));
    assert_eq!(plan.functions.len(), 1, "{code}: {:?}", plan.skipped);
    switch_of(&plan.functions[0])
}

fn switch_of(function: &thalweg_patch::FunctionPlan) -> Option<bool> {
    let events = function.windows.iter().flat_map(|w| &w.events);
    let kinds: Vec<Option<bool>> = events
        .filter_map(|e| match e.probe {
            Probe::Entry { .. } => None,
            Probe::Switch { unwinds, .. } => Some(Some(unwinds)),
            _ => Some(None),
        })
        .collect();
    assert!(kinds.windows(2).all(|pair| pair[0] == pair[1]), "{kinds:?}");
    kinds.first().copied().flatten()
}

#[test]
fn functions_that_switch_stacks_are_known_by_their_code() {
    let switches = [
        "f: push rbp; push rbx; mov [rdi], rsp; mov rsp, [rsi]; pop rbx; pop rbp; ret; .p2align 4",
        "f: mov rax, rsp; mov rsp, rdi; mov r8, [rsp + 0x38]; lea rsp, [rsp + 0x40]; jmp r8; .p2align 4",
        "f: mov [rdi], rsp; mov rsp, [rdx + 0xa0]; mov rcx, [rdx + 0xa8]; push rcx; xor eax, eax; ret; .p2align 4",
    ];
    for code in switches {
        assert_eq!(elsewhere(code), Some(false), "{code}");
    }
    let unwinder = "f: push rbp; mov rbp, rsp; call rax; mov rcx, rax; lea rcx, [rbp + rcx + 8]; mov rbp, [rbp]; mov rsp, rcx; pop rcx; jmp rcx; .p2align 4";
    assert_eq!(elsewhere(unwinder), Some(true));
    let others = [
        "f: mov rax, rsp; and rsp, -32; movaps [rsp - 32], xmm0; mov rsp, rax; ret; .p2align 4",
        "f: push rbp; mov rbp, rsp; and rsp, -32; mov [rsp], rdi; mov rsp, rbp; pop rbp; ret; .p2align 4",
        "f: lea r10, [rsp + 8]; and rsp, -32; push [r10 - 8]; lea rsp, [r10 - 8]; ret; .p2align 4",
        "f: mov rax, rsp; sub rsp, 64; mov [rsp + 56], rax; mov rsp, [rsp + 56]; ret; .p2align 4",
    ];
    for code in others {
        assert_eq!(elsewhere(code), None, "{code}");
    }
}

#[test]
fn few_functions_of_the_c_library_switch_stacks() {
    let module = Module::load(Path::new("/usr/lib/x86_64-linux-gnu/libc.so.6")).expect("libc");
    let plan = common::everything(&module);
    let names: Vec<&str> = plan
        .functions
        .iter()
        .filter(|f| {
            f.windows
                .iter()
                .flat_map(|w| &w.events)
                .any(|e| matches!(e.probe, Probe::Switch { .. }))
        })
        .map(|f| module.functions[f.function].name.as_str())
        .collect();
    assert!(
        names.contains(&"swapcontext") && names.contains(&"setcontext"),
        "{names:?}"
    );
    assert!(names.len() <= 4, "{names:?}");
}
