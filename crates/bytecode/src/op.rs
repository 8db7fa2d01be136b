//! The instructions. One byte each, operands behind it, little endian. "Top" is the top of the
//! stack; a binary operation takes `b` from the top, then `a`, and puts `a op b`.
#![allow(missing_docs)]

pub const END: u8 = 0;
/// i8
pub const CONST8: u8 = 1;
/// u64
pub const CONST64: u8 = 2;
/// Number of the integer register: u8
pub const INT: u8 = 3;
/// Number of the vector register: u8
pub const FLOAT: u8 = 4;
pub const SP: u8 = 5;
/// 0: rax, 1: rdx
pub const RET: u8 = 6;
/// 0: xmm0, 1: xmm1
pub const RET_FLOAT: u8 = 7;
pub const ERRNO: u8 = 8;
pub const TOTAL: u8 = 9;
pub const SELF: u8 = 10;
pub const WAITED: u8 = 11;
pub const UNWOUND: u8 = 12;
pub const THREAD: u8 = 13;
pub const NUMBER: u8 = 14;
/// Set: u16
pub const CALLER: u8 = 15;
/// Set: u16
pub const ABOVE: u8 = 16;
/// Rule: u16
pub const ACTIVE: u8 = 17;
/// Rule: u16
pub const FIRED: u8 = 18;
/// Takes the top into a slot: u8
pub const SAVE: u8 = 19;
/// Slot: u8
pub const SLOT: u8 = 20;
/// Address -> value. Width: u8, see `width`
pub const LOAD: u8 = 21;
/// Cuts the top to a width and extends it again: u8
pub const EXTEND: u8 = 22;
/// i32
pub const ADD_CONST: u8 = 23;
/// At the entry: late, whatever the top is. What follows is read at the exit.
pub const LATE: u8 = 24;

pub const ADD: u8 = 32;
pub const SUB: u8 = 33;
pub const MUL: u8 = 34;
/// Signed; by zero: unknown
pub const DIV: u8 = 35;
pub const DIV_UNSIGNED: u8 = 36;
pub const REM: u8 = 37;
pub const REM_UNSIGNED: u8 = 38;
pub const AND: u8 = 39;
pub const OR: u8 = 40;
pub const XOR: u8 = 41;
/// By 64 or more: 0
pub const SHL: u8 = 42;
pub const SHR: u8 = 43;
pub const SAR: u8 = 44;
pub const FADD: u8 = 45;
pub const FSUB: u8 = 46;
pub const FMUL: u8 = 47;
pub const FDIV: u8 = 48;

pub const EQ: u8 = 50;
pub const NE: u8 = 51;
pub const LT: u8 = 52;
pub const LE: u8 = 53;
pub const LT_UNSIGNED: u8 = 54;
pub const LE_UNSIGNED: u8 = 55;
pub const FEQ: u8 = 56;
pub const FNE: u8 = 57;
pub const FLT: u8 = 58;
pub const FLE: u8 = 59;
/// Logic with unknown and late operands
pub const BOTH: u8 = 60;
pub const EITHER: u8 = 61;

pub const NEG: u8 = 64;
pub const INVERT: u8 = 65;
pub const FNEG: u8 = 66;
/// i64 -> f64
pub const FROM_SIGNED: u8 = 67;
pub const FROM_UNSIGNED: u8 = 68;
/// f32 bits -> f64 bits
pub const WIDEN: u8 = 69;
pub const NOT: u8 = 70;
/// Not 0 -> 1
pub const TRUTH: u8 = 71;

/// Forward by u16, from the end of the instruction
pub const JUMP: u8 = 80;
/// Takes the top; forward by u16 unless it is known and not 0
pub const JUMP_UNLESS: u8 = 81;

/// Source: u8, length: u16, bytes. See `source`.
pub const TEXT_EQ: u8 = 88;
/// Source: u8, most bytes to look at: u16, length of the table: u16, table. See `text.rs`.
pub const TEXT_MATCH: u8 = 89;

/// id: u16, bytes of the top: u8
pub const EMIT: u8 = 96;
/// id: u16, words on the stack: u8, bytes of them: u8
pub const EMIT_WORDS: u8 = 97;
/// id: u16, most bytes: u16. Takes length and address.
pub const EMIT_TEXT: u8 = 98;
/// id: u16, status: u8
pub const EMIT_STATUS: u8 = 99;
/// id: u16, source: u8 (not the stack)
pub const EMIT_SOURCE: u8 = 100;

/// Takes the condition. If it is not fulfilled and cannot be at the exit, the program ends here.
pub const VERDICT: u8 = 112;

/// Where a text is.
pub mod source {
    /// Length on top, address below it; a length of `NUL_TERMINATED` means a C string.
    pub const STACK: u8 = 0;
    /// The name of the exception's type, as the compiler writes it.
    pub const EXCEPTION_TYPE: u8 = 1;
    pub const EXCEPTION_MESSAGE: u8 = 2;
    pub const THREAD_NAME: u8 = 3;
}

/// Operands of LOAD and EXTEND: 1, 2, 4 or 8 bytes, with `SIGNED` or without.
pub mod width {
    pub const SIGNED: u8 = 0x80;
}

/// Ids of the items that the program on a throwing function writes.
pub mod thrown {
    pub const TYPE: u16 = 0;
    pub const MESSAGE: u16 = 1;
    /// The address of the exception object.
    pub const OBJECT: u16 = 2;
}
