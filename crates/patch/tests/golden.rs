//! Small functions in assembler, and exactly what becomes of them.
//!
//! The listings show the source, every patch in the order of writing, then the stubs. `probe` stands for a probe's code.

mod common;

use common::assemble;
use iced_x86::{Decoder, DecoderOptions, FastFormatter};
use std::fmt::Write;
use std::path::Path;
use thalweg_patch::{Placement, Probe, ProbeEncoder, emit, verify};
use thalweg_symbols::Module;

const STUBS: u64 = 0x20000;

/// Each probe is one recognisable instruction.
struct Marker;

impl ProbeEncoder for Marker {
    fn encode(&self, probe: Probe, _keep_flags: bool, _at: u64, out: &mut Vec<u8>) {
        let number = match probe {
            Probe::Entry { loops: false, .. } => 1,
            Probe::Entry { loops: true, .. } => 2,
            Probe::Return => 3,
            Probe::Exit => 4,
            Probe::TailMark => 5,
            Probe::TailUnknown => 6,
            Probe::Switch { .. } => 7,
            Probe::GoEntry { .. } => 8,
            Probe::GoReturn => 9,
            Probe::GoLeave { .. } => 10,
            Probe::GoArrive => 11,
            Probe::Kernel { .. } => 12,
            Probe::Watch => 13,
            Probe::Leaf { .. } => 14,
        };
        // prefetcht0 [0x70000000 + number]
        out.extend([0x0f, 0x18, 0x0c, 0x25, number, 0, 0, 0x70]);
        if probe == Probe::Return {
            out.push(0xc3);
        }
    }
}

fn listing(bytes: &[u8], at: u64, module: &Module, text: &mut String) {
    let mut formatter = FastFormatter::new();
    formatter.options_mut().set_use_hex_prefix(true);
    for i in &mut Decoder::with_ip(64, bytes, at, DecoderOptions::NONE) {
        let mut line = String::new();
        formatter.format(&i, &mut line);
        let probes = [
            "entry",
            "entry (loops)",
            "return",
            "exit",
            "tail mark",
            "tail unknown",
        ];
        for (n, name) in probes.iter().enumerate() {
            if line == format!("prefetcht0 [0x7000000{}]", n + 1) {
                line = format!("probe {name}");
            }
        }
        if i.is_jcc_short_or_near() || i.is_jmp_short_or_near() || i.is_call_near() {
            let target = i.near_branch_target();
            let name = match module.functions.iter().rev().find(|f| f.start <= target) {
                _ if target >= STUBS => format!("stub+{:#x}", target - STUBS),
                Some(f) => format!("{}+{:#x}", f.name, target - f.start),
                None => format!("{target:#x}"),
            };
            let mnemonic = line.split(' ').next().unwrap_or_default().to_string();
            line = format!("{mnemonic} {name}");
        }
        writeln!(text, "{line}").unwrap();
    }
}

/// What becomes of `source`, as text: methods and skips, patches in the order of writing, stubs.
fn shown(source: &str) -> String {
    let module = assemble(source);
    let plan = common::everything(&module);
    let place = Placement {
        bias: 0,
        stub_base: STUBS,
        encoder: &Marker,
    };
    let emitted = emit(&module, &plan, &place).unwrap();
    assert_eq!(
        verify(&module, &plan, &emitted, &place),
        Vec::<String>::new()
    );
    let mut text = String::new();
    for statement in source.split([';', '\n']) {
        writeln!(text, "; {}", statement.trim()).unwrap();
    }
    for f in &plan.functions {
        let flags = if f.keep_flags { ", flags kept" } else { "" };
        writeln!(
            text,
            "{}: {}{flags}",
            module.functions[f.function].name, f.method
        )
        .unwrap();
    }
    for s in &plan.skipped {
        writeln!(
            text,
            "{}: skipped, {}",
            module.functions[s.function].name, s.reason
        )
        .unwrap();
    }
    writeln!(text, "-- patches").unwrap();
    for patch in &emitted.patches {
        let f = module
            .functions
            .iter()
            .rev()
            .find(|f| f.start <= patch.address)
            .unwrap();
        write!(text, "{}+{:#x}: ", f.name, patch.address - f.start).unwrap();
        if patch.replacement == [0xeb] {
            writeln!(text, "jmp by the next byte").unwrap();
            continue;
        }
        listing(&patch.replacement, patch.address, &module, &mut text);
    }
    let home = |addr: u64| {
        let f = module.functions.iter().rev().find(|f| f.start <= addr);
        let f = f.unwrap();
        format!("{}+{:#x}", f.name, addr - f.start)
    };
    for &(pc, back) in emitted.back.iter().filter(|b| b.0 < STUBS) {
        writeln!(text, "back from {} to {}", home(pc), home(back)).unwrap();
    }
    writeln!(text, "-- stubs").unwrap();
    for row in &emitted.stubs {
        listing(&row.bytes, row.address, &module, &mut text);
    }
    text
}

/// Compares with `tests/golden/NAME.txt`; `THALWEG_BLESS=1` writes that file instead.
#[track_caller]
fn golden(name: &str, source: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
    let found = shown(source);
    if std::env::var_os("THALWEG_BLESS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        return std::fs::write(file, found).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(
        found, expected,
        "{name}: what the planner makes of it changed:\n{found}"
    );
}

/// A test for each: its name is the promise, the golden file shows how it is kept.
macro_rules! golden {
    ($($name:ident: $source:expr,)*) => {
        $(#[test] fn $name() { golden(stringify!($name), $source); })*
    };
}

golden! {
    entry_and_return_of_an_ordinary_function:
        "f: push rbp; mov rbp, rsp; mov eax, [rip + 0x1000]; add eax, edi; pop rbp; ret; .p2align 4",
    one_byte_function_uses_padding:
        "f: ret; .p2align 4",
    endbr64_stays_and_jumps_to_it_are_loops:
        "f: endbr64; sub edi, 1; mov eax, esi; jnz f; ret; .p2align 4",
    syscall_is_never_displaced:
        "f: syscall; ret; .p2align 4",
    syscall_behind_the_patch_stays:
        "f: mov eax, 39; syscall; ret; .p2align 4",
    call_is_not_displaced_when_there_is_room_before_it:
        "f: sub rsp, 8; mov eax, 1; call g; add rsp, 8; ret; .p2align 4; g: ret; .p2align 4",
    early_call_keeps_its_return_address:
        "f: push rax; call g; pop rcx; ret; g: mov eax, 1; ret; .p2align 4",
    early_indirect_call_keeps_its_return_address:
        "f: push rax; call [rdi + 0x120]; mov eax, 1; pop rcx; ret",
    conditional_tail_jump_probes_only_when_taken:
        "f: test edi, edi; lea eax, [rdi + 1]; jz g; ret; .p2align 4; g: mov eax, 7; ret; .p2align 4",
    tail_jump_to_a_probed_function_leaves_a_mark:
        "f: inc edi; jmp g; .p2align 4; g: mov eax, 7; ret; .p2align 4",
    tail_jump_to_unprobed_code_pops:
        "f: inc edi; jmp g; .p2align 4; g: syscall; ret; .p2align 4",
    indirect_tail_jump_stores_its_target:
        "f: mov rax, [rdi]; jmp [rax + 24]; .p2align 4; g: mov rcx, [rsi + 8]; jmp rcx; .p2align 4",
    lone_return_is_served_by_moving_its_jumps:
        "f: test edi, edi; mov eax, 5; jz .L1; cmp edi, 7; mov eax, 6; jz .L1; call g; jmp .L2;
         .L1: ret; .L2: push rbx; call g; pop rbx; mov ecx, eax; mov eax, 1; ret; g: mov eax, 1; ret; .p2align 4",
    packed_small_functions_share_springboards:
        "a: xor eax, eax; ret; b: mov eax, edi; ret; c: mov eax, 1; mov ecx, 2; mov edx, 3; mov esi, 4; ret; d: push rbx; pop rbx; ret",
    leaf_with_a_loop_on_its_first_bytes_is_relocated:
        "f: inc edi; .L1: inc eax; dec edi; jnz .L1; ret; g: mov eax, 1; ret",
    counting_jumps_are_expanded:
        "f: jrcxz .L1; mov eax, 1; mov edx, 2; .L1: add eax, 5; ret; .p2align 4",
    return_that_pops_arguments:
        "f: mov eax, [rsp + 8]; ret 16; .p2align 4",
    padded_return:
        "f: mov eax, 1; rep ret; .p2align 4",
    return_thunk_is_a_return:
        "f: mov eax, 1; jmp __x86_return_thunk; .p2align 4; __x86_return_thunk: ret; int3; .p2align 4",
    table_targets_are_not_covered:
        "f: lea rdx, [rip + .Lt]; movsxd rax, [rdx + rdi * 4]; add rax, rdx; jmp rax; .L1: mov al, 1; .L2: ret; nop; nop; nop; nop; nop; .L3: mov eax, 3; ret; .p2align 4
         .section .rodata; .p2align 3; .Lt: .long .L1 - .Lt; .long .L2 - .Lt; .long .L3 - .Lt; .long 0",
    jump_computed_without_a_table_is_refused:
        "f: lea rdx, [rip + .L1]; shl rdi, 4; add rdx, rdi; jmp rdx; .p2align 4; .L1: mov eax, 1; ret; .p2align 4",
    push_ret_is_refused:
        "f: mov eax, 1; push rdi; ret; .p2align 4",
    flags_that_a_function_takes_in_are_kept:
        "f: adc eax, edi; mov ecx, eax; ret; .p2align 4",
    flags_that_a_caller_reads_are_kept:
        "f: mov eax, 1; push rbx; call g; jc .L1; inc eax; .L1: pop rbx; ret; .p2align 4; g: cmp edi, 1; mov ecx, 1; ret; .p2align 4",
    patch_does_not_straddle_a_page:
        "e: .skip 4089, 0x90; nop; nop; nop; ret; f: push rbx; mov ebx, edi; mov eax, ebx; lea eax, [rax + rbx * 2 + 0x100]; pop rbx; ret; .p2align 4",
    runs_on_into_the_next_function:
        "f: mov edx, 1; mov ecx, 2; g: mov eax, 7; ret; .p2align 4",
    lone_return_before_a_function_borrows_its_first_byte:
        "f: ret; g: push rbx; push r12; mov ebx, edi; mov r12d, esi; lea eax, [rbx + r12 * 2 + 0x100]; imul eax, esi; mov ecx, 1;
         lea edx, [rax + rcx * 2 + 0x200]; imul eax, edx; mov esi, 2; mov edi, 3; add eax, 0x12345; add eax, 0x23456; add eax, 0x34567;
         add eax, 0x45678; add eax, 0x56789; pop r12; pop rbx; ret; .p2align 4",
    early_call_behind_a_short_jump:
        "f: push rax; call rdi; pop rax; ret; .p2align 4",
    go_functions_count_once_the_stack_has_room:
        "f: cmp rsp, [r14 + 16]; jbe .L1; sub rsp, 24; mov [rsp + 16], rbp; mov rbp, [rsp + 16]; add rsp, 24; ret; .L1: call g; jmp f; .p2align 4; g: mov eax, 1; ret; .p2align 4",
    jump_past_a_lock_prefix_stays_possible:
        "f: cmp dword ptr [rdi], 0; mov eax, 1; je .L1 + 1; .L1: lock cmpxchg [rdi], ecx; mov eax, ecx; ret; .p2align 4",
}
