//! What the C library's functions ask of the kernel is known as it is.

mod common;

use thalweg_patch::{Made, Probe, enters_kernel, plan_entering};
use thalweg_symbols::Module;

fn made_by(module: &Module, name: &str) -> Option<Made> {
    let found = enters_kernel(module).into_iter().find(|one| {
        let function = &module.functions[one.function];
        function.name == name
    });
    found.map(|one| one.made)
}

#[test]
fn functions_that_make_one_system_call_on_all_ways_are_told_from_those_that_may_make_none() {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("this process's mappings");
    let libc = maps
        .split_whitespace()
        .find(|word| word.contains("libc.so"));
    let module = Module::load(libc.expect("a C library").as_ref()).expect("its code");
    let once = |number| Some(Made::Each(vec![(Some(number), 1)]));
    for (name, number) in [
        ("read", 0),
        ("write", 1),
        ("close", 3),
        ("mmap", 9),
        ("getpid", 39),
        ("_exit", 231),
    ] {
        assert_eq!(made_by(&module, name), once(number), "{name}");
    }
    // Its number is an argument.
    assert_eq!(
        made_by(&module, "syscall"),
        Some(Made::Each(vec![(None, 1)]))
    );
    // Contended or not; answered without the kernel or not; a loop.
    for name in [
        "sem_post",
        "clock_gettime",
        "pthread_cond_signal",
        "pthread_cond_wait",
    ] {
        let made = made_by(&module, name);
        assert!(
            matches!(made, Some(Made::Between(0, _))),
            "{name}: {made:?}"
        );
    }
    for name in ["strlen", "fopen", "qsort"] {
        assert_eq!(made_by(&module, name), None, "{name}");
    }
}

/// The functions of `source` that are counted at their system calls.
fn counted(source: &str) -> Vec<String> {
    let module = common::assemble(source);
    let (plan, _) = common::checked(&module, 0, 0x4000_0000);
    let windows = plan.functions.iter().flat_map(|f| &f.windows);
    let probes = windows.flat_map(|window| &window.events);
    let is_kernel = |probe: &Probe| matches!(probe, Probe::Kernel { .. });
    let with_probe = probes.filter(|event| is_kernel(&event.probe)).count();
    assert_eq!(with_probe == 0, plan.entering.is_empty());
    let name = |&function: &usize| module.functions[function].name.clone();
    plan.entering.iter().map(name).collect()
}

const LOCK: &str = "lock cmpxchg [rdi], ecx; jz .L1; mov eax, 202; syscall; .L1: ret; .p2align 4";

#[test]
fn where_the_way_decides_there_is_a_probe_before_each_system_call() {
    assert_eq!(counted(&format!("lock_it: {LOCK}")), ["lock_it"]);
    // Right at the entry, in the entry's window or what follows it.
    let early = "early: mov eax, 39; syscall; test rax, rax; jz .L1; mov eax, 202; syscall; .L1: ret; .p2align 4";
    assert_eq!(counted(early), ["early"]);
    let behind = "behind: test edi, edi; mov eax, 39; push rbx; syscall; pop rbx; jz .L1; mov eax, 202; nop; syscall; .L1: ret; .p2align 4";
    assert_eq!(counted(behind), ["behind"]);
    let passed_on = "syscall: mov rax, rdi; mov rdi, rsi; mov rsi, rdx; mov r9, [rsp + 8]; syscall; cmp rax, -4095; ret; .p2align 4";
    assert_eq!(counted(passed_on), ["syscall"]);
}

#[test]
fn there_is_none_where_a_probe_could_be_passed_by_or_do_harm() {
    for (why, source) in [
        (
            "nothing to be told",
            "f: mov eax, 39; syscall; ret; .p2align 4",
        ),
        (
            "a jump to the instruction itself",
            "f: test edi, edi; jz .L2; mov eax, 202; jmp .L1; .L1: syscall; .L2: ret; .p2align 4",
        ),
        (
            "a jump between what would be displaced",
            "f: test edi, edi; jz .L2; .L1: xor edx, edx; mov eax, esi; syscall; test eax, eax; jz .L1; .L2: ret; .p2align 4",
        ),
        (
            "a number that is none of its own",
            "f: cmp dword ptr [rdi], 0; jne .L1; mov rax, rsi; mov rdi, rdx; mov rsi, rcx; syscall; ret; .L1: xor eax, eax; ret; .p2align 4",
        ),
        (
            "a thread that takes its own stack away",
            "f: test edi, edi; jz .L1; mov eax, 11; syscall; mov eax, 60; syscall; .L1: ret; .p2align 4",
        ),
        (
            "no room behind a call",
            "f: test edi, edi; jz .L1; call [rip + f]; mov eax, ebx; syscall; .L1: ret; .p2align 4",
        ),
    ] {
        assert_eq!(counted(source), Vec::<String>::new(), "{why}");
    }
}

#[test]
fn nearly_all_of_the_c_librarys_waiting_functions_are_counted() {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("this process's mappings");
    let mut words = maps.split_whitespace();
    let libc = words.find(|word| word.contains("libc.so"));
    let module = Module::load(libc.expect("a C library").as_ref()).expect("its code");
    let all = enters_kernel(&module);
    let plan = plan_entering(&module, &vec![true; module.functions.len()], &all);
    let is_counted = |name: &str| {
        let mut functions = plan.entering.iter().map(|f| &module.functions[*f].name);
        functions.any(|known| known == name)
    };
    for name in [
        "pthread_cond_wait",
        "pthread_cond_signal",
        "sem_post",
        "fcntl",
        "select",
        "_Fork",
        "syscall",
    ] {
        assert!(is_counted(name), "{name}");
    }
    let depends = all
        .iter()
        .filter(|one| matches!(one.made, Made::Between(..)));
    let depends = depends.count();
    assert!(
        plan.entering.len() * 10 > depends * 8,
        "{} of {depends}",
        plan.entering.len()
    );
}
