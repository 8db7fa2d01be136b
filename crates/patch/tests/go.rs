//! The rules of Go code: where a goroutine may wait, nothing changes that it would go on with.

mod common;

use thalweg_patch::{EmitError, GoPlan, Placement, emit, plan_go};
use thalweg_symbols::{GoFunction, GoTable, Module};

/// By which goroutines leave their threads and come to others, as the runtime has them.
const SCHEDULER: &str = "
mcall: mov rdx, rax; mov rbx, [rsp]; mov [r14 + 64], rbx; ret; .p2align 5, 0xcc
newstack: cmp rsp, [r14 + 16]; jbe .Ln; sub rsp, 24; add rsp, 24; ret; .Ln: ud2; .p2align 5, 0xcc
gogo: mov rbx, [rsp + 8]; mov rdx, [rbx + 16]; mov rcx, [rdx]; ud2; .p2align 5, 0xcc
";

/// `code` of one function behind the scheduler's, with `marked` the part of it where no goroutine is preempted.
fn module(code: &str, marked: &[(u32, u32)]) -> Module {
    let text = format!("{SCHEDULER}\nf: {code}\n.p2align 5, 0xcc\ng: ud2; .p2align 5, 0xcc");
    let mut module = common::assemble(&text);
    let names = [
        "runtime.mcall",
        "runtime.newstack",
        "runtime.gogo",
        "main.f",
        "main.g",
    ];
    assert_eq!(module.functions.len(), names.len());
    let functions = module.functions.iter().zip(names);
    let functions = functions.map(|(function, name)| GoFunction {
        start: function.start,
        name: name.to_owned(),
        assembly: ["runtime.mcall", "runtime.gogo"].contains(&name),
        unpreemptible: match name {
            "main.f" => marked.to_vec(),
            _ => vec![(0, 1 << 20)],
        },
    });
    module.go = Some(GoTable {
        functions: functions.collect(),
        start: module.functions[0].start,
        end: module.functions[F + 1].end,
        ..GoTable::default()
    });
    module
}

const F: usize = 3;

fn planned(module: &Module) -> GoPlan {
    let mut selected = vec![false; module.functions.len()];
    selected[F] = true;
    plan_go(module, &selected).expect("the scheduler is recognised")
}

fn skipped(code: &str, marked: &[(u32, u32)]) -> String {
    let plan = planned(&module(code, marked)).plan;
    assert!(plan.functions.is_empty(), "{code} is patched");
    plan.skipped[0].reason.to_string()
}

const OLD: &str = "cmp rsp, [r14 + 16]; jbe .Lf; sub rsp, 24; mov [rsp + 16], rbp; lea rbp, [rsp + 16]; call g; \
    mov rbp, [rsp + 16]; add rsp, 24; ret; .Lf: call g; jmp f";
const NEW: &str = "cmp rsp, [r14 + 16]; jbe .Lf; push rbp; mov rbp, rsp; sub rsp, 16; call g; \
    add rsp, 16; pop rbp; ret; .Lf: call g; jmp f";

#[test]
fn the_check_of_the_stack_is_patched_only_where_no_goroutine_waits_inside() {
    let plan = planned(&module(OLD, &[(0, 6)]));
    assert_eq!(plan.plan.functions[0].windows.len(), 2);
    assert_eq!(plan.top_byte, None);
    // The branch is at 4: without the compiler's mark somebody may wait there, and has to find it.
    assert_eq!(planned(&module(OLD, &[])).top_byte, Some(0x76));
    assert_eq!(planned(&module(OLD, &[(0, 4)])).top_byte, Some(0x76));
    // Behind five bytes nothing is left of what was there.
    let early = "lea r12, [rsp - 0x40]; cmp r12, [r14 + 16]; jbe .Lf; ret; nop; nop; nop; nop; .Lf: call g; jmp f";
    assert!(skipped(early, &[]).contains("exit"));
    let split = "mov r12, rsp; sub r12, 0x10000; jb .Lf; cmp r12, [r14 + 16]; jbe .Lf; ud2; .Lf: call g; jmp f";
    assert!(skipped(split, &[]).contains("entry"));
    assert_eq!(planned(&module(split, &[(0, 30)])).plan.functions.len(), 1);
}

#[test]
fn a_pop_behind_four_bytes_stays_in_place() {
    let module = module(NEW, &[(0, 6)]);
    let plan = planned(&module);
    assert_eq!(plan.top_byte, Some(0x5d));
    let text = module.functions[0].start;
    let at = |stub_base| {
        let place = Placement {
            bias: 0,
            stub_base,
            encoder: &common::Sample,
        };
        emit(&module, &plan.plan, &place)
    };
    let emitted = at(text + 0x5d80_0000).expect("the right distance");
    let start = plan.plan.functions[0].windows[1].start;
    let exit = emitted.patches.iter().find(|p| p.address == start);
    let exit = exit.expect("the exit is patched");
    assert_eq!(exit.original[4], 0x5d);
    assert_eq!(exit.replacement[4], 0x5d);
    for wrong in [0x5c80_0000, 0x5e80_0000, 0x10_0000] {
        let error = at(text + wrong).expect_err("the wrong distance");
        assert!(matches!(error, EmitError::WrongDistance { .. }), "{error}");
    }
}

#[test]
fn what_may_fault_or_calls_stays_at_home() {
    // A frameless leaf whose last instruction before the return reads through a pointer.
    let leaf =
        "lea rax, [rax + rbx + 0x1000]; mov rax, [rax + 0x1000]; ret; nop; nop; nop; nop; ud2";
    assert!(skipped(leaf, &[]).contains("exit"));
    let faults_first = "mov rax, [rax + 0x1000]; lea rax, [rax + rbx + 0x1000]; ret; ud2";
    assert!(skipped(faults_first, &[]).contains("entry"));
    // Without the check nobody knows how little of the stack is left.
    let unchecked = "sub rsp, 0x100; call g; mov rbp, [rsp + 0xf8]; add rsp, 0x100; ret";
    assert!(skipped(unchecked, &[]).contains("entry"));
}

#[test]
fn go_without_a_known_scheduler_is_left_alone() {
    let mut module = module(OLD, &[(0, 6)]);
    let table = module.go.as_mut().expect("made above");
    table.functions[0].name = "runtime.other".to_owned();
    let selected = vec![true; module.functions.len()];
    assert!(plan_go(&module, &selected).is_err());
}
