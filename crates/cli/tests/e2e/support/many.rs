//! Writes programs of thousands of functions: assembler, because a compiler would take minutes.

use super::build::{Build, Program};
use super::scratch;
use std::fmt::Write;
use std::fs;

/// A program with this many functions besides those of `many.c`.
pub fn many_functions(count: u32) -> Program {
    let folder = scratch::root().join(format!("generated-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("folder for generated sources");
    let path = folder.join(format!("many_functions_{count}.S"));
    fs::write(&path, assembler(count)).expect("generated source is written");
    Build::new(&format!("many{count}"))
        .source("many.c")
        .file(&path)
        .flag("-O2")
        .finish()
}

/// f(x) = 3x + number, plus 7 when that is odd. Two exits each, a callee-saved register, and every eighth one ends
/// in a tail call of a shared helper.
fn assembler(count: u32) -> String {
    let mut text = String::from("    .text\n");
    text.push_str(
        "many_helper:\n    .cfi_startproc\n    mov %edi, %eax\n    ret\n    .cfi_endproc\n",
    );
    text.push_str("    .type many_helper, @function\n    .size many_helper, . - many_helper\n");
    for i in 0..count {
        let _ = write!(
            text,
            "    .p2align 4\n    .type many_{i}, @function\nmany_{i}:\n    .cfi_startproc\n    push %rbx\n    \
             .cfi_adjust_cfa_offset 8\n    .cfi_rel_offset %rbx, 0\n    mov %edi, %ebx\n    lea {i}(%rbx,%rbx,2), %eax\n    \
             test $1, %al\n    je 1f\n    add $7, %eax\n    pop %rbx\n    .cfi_remember_state\n    \
             .cfi_adjust_cfa_offset -8\n    .cfi_restore %rbx\n    ret\n    .cfi_restore_state\n1:  pop %rbx\n    \
             .cfi_adjust_cfa_offset -8\n    .cfi_restore %rbx\n"
        );
        if i % 8 == 0 {
            text.push_str("    mov %eax, %edi\n    jmp many_helper\n");
        } else {
            text.push_str("    ret\n");
        }
        let _ = write!(text, "    .cfi_endproc\n    .size many_{i}, . - many_{i}\n");
    }
    text.push_str(
        "    .section .data.rel.ro, \"aw\"\n    .globl many_table\n    .p2align 3\nmany_table:\n",
    );
    for i in 0..count {
        let _ = writeln!(text, "    .quad many_{i}");
    }
    let _ = write!(
        text,
        "    .section .rodata\n    .globl many_count\n    .p2align 2\nmany_count:\n    .long {count}\n    \
         .section .note.GNU-stack, \"\", @progbits\n"
    );
    text
}
