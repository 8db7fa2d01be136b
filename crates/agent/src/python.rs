//! CPython: whose evaluator this is, and that each Python call is one of its own (docs/design/managed.md).

use crate::dynamic::{self, Identity, Text};
use crate::memory::{atomic32, atomic64, header, is_readable};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

pub mod stack;

use thalweg_abi as shm;
use thalweg_abi::dynamic::{KIND_PYTHON, Python};

/// Of every object: its type. Of a string: how many characters, how it keeps them.
const OBJECT_TYPE: u64 = 8;
const TEXT_LEN: u64 = 16;
const TEXT_HASH: u64 = 24;
const TEXT_STATE: u64 = 32;
const STATE_KIND_SHIFT: u32 = 2;
const STATE_COMPACT: u32 = 1 << 5;
const STATE_ASCII: u32 = 1 << 6;

/// The evaluator begins with this thread state and frame; `word` is what its stub has behind the call: its own number and
/// mode. Returns the same with the number of the Python function.
#[unsafe(no_mangle)]
extern "C" fn tw_slow_python(thread: u64, frame: u64, word: u32) -> u64 {
    // SAFETY: the head is mapped.
    let python = unsafe { (&raw const (*dynamic::head()).python).read_volatile() };
    if python.evaluator == 0 {
        return word.into();
    }
    let mut goes_deep = false;
    // SAFETY: the evaluator was called with these two, by the offsets of this very build.
    let number = unsafe {
        let code = read(frame + u64::from(python.frame_code));
        if code & 7 != 0 || code == 0 || read(code + OBJECT_TYPE) != python.code_type {
            return word.into();
        }
        let interpreter = read(thread + u64::from(python.interpreter));
        let calls = (interpreter + u64::from(python.eval)) as *mut u64;
        if stack::is_deep() {
            goes_deep = stack::leave_calls(&python, calls);
        } else {
            claim_word(python.evaluator, calls);
        }
        let check = check_of(&python, code);
        dynamic::number(KIND_PYTHON, code, check, |identity| {
            describe(&python, code, identity)
        })
    };
    let word = match number {
        Some(number) => number | word & !shm::MODE_FUNCTION,
        None => word,
    };
    u64::from(word) | u64::from(goes_deep) << 63
}

/// # Safety
/// `address` must be that of a word of the interpreter.
unsafe fn read(address: u64) -> u64 {
    // SAFETY: by the caller the address of a word of the interpreter's.
    unsafe { (address as *const u64).read_volatile() }
}

/// # Safety
/// `address` must be that of four bytes of the interpreter.
unsafe fn read32(address: u64) -> u32 {
    // SAFETY: as for `read`.
    unsafe { (address as *const u32).read_volatile() }
}

/// Has calls from Python to Python go through the evaluator's entry: the interpreter is told that its evaluator is the usual one, which it
/// takes for another one. Whoever has told it something else keeps it.
///
/// # Safety
/// `calls` must be the word of an interpreter that says who evaluates.
unsafe fn claim_word(evaluator: u64, calls: *mut u64) {
    // SAFETY: by the caller the word of an interpreter whose lock this thread holds, as the caller of its evaluator.
    unsafe {
        if !is_wanted() {
            return;
        }
        let word = atomic64(calls);
        let set = word.compare_exchange(0, evaluator, SeqCst, Relaxed);
        // Switched off between the two, in a stop that found this thread here.
        if set.is_ok() && !is_wanted() {
            let _ = word.compare_exchange(evaluator, 0, Relaxed, Relaxed);
        }
    }
}

/// More interpreters than a process has.
const INTERPRETERS: u32 = 1000;

/// CPython is about to ask whether somebody else evaluates: our word goes back to what it was. If nobody does then, the next call
/// of the evaluator takes it again. The running thread has the interpreter's lock, and no Python code runs in between.
/// `begins`: whether the support of perf begins. Where it ends it leaves a 0 behind.
pub fn give_back(begins: u64) {
    // SAFETY: the head is mapped.
    let python = unsafe { (&raw const (*dynamic::head()).python).read_volatile() };
    if python.evaluator == 0 || !is_readable(python.head) {
        return;
    }
    // SAFETY: the word is the runtime's, and stays. Interpreters with a lock of their own may end meanwhile, so each is asked for.
    unsafe {
        let mut interpreter = read(python.head);
        for _ in 0..INTERPRETERS {
            let calls = interpreter.wrapping_add(python.eval.into());
            let next = interpreter.wrapping_add(python.next.into());
            if interpreter & 7 != 0 || !is_readable(calls) || !is_readable(next) {
                return;
            }
            let word = atomic64(calls as *mut u64);
            // An `int`. Nobody evaluates before a program's first function.
            if begins as u32 == 0 && word.load(Relaxed) != 0 && is_wanted() {
                atomic32(&raw mut (*dynamic::head()).python_hidden).fetch_add(1, Relaxed);
            }
            let _ = word.compare_exchange(python.evaluator, 0, SeqCst, Relaxed);
            interpreter = read(next);
        }
    }
}

/// Whether calls are to be told apart at this moment.
fn is_wanted() -> bool {
    // SAFETY: both heads are mapped.
    unsafe {
        (&raw const (*header()).leaving).read_volatile() == 0
            && (&raw const (*header()).state).read_volatile() == shm::STATE_ATTACHED
            && (&raw const (*dynamic::head()).python_off).read_volatile() == 0
    }
}

/// As the probe's assembler has it (`probes/dynamic.s`).
///
/// # Safety
/// `code` must be a code object of the interpreter that `python` describes.
unsafe fn check_of(python: &Python, code: u64) -> u32 {
    // SAFETY: by the caller `code` is a code object, whose name is a string.
    unsafe {
        let name = read(code + u64::from(python.name));
        let mut mixed = code;
        for word in [
            name,
            read(name + TEXT_HASH),
            read(name + python.ascii),
            read(code + u64::from(python.file)),
            u64::from(read32(code + u64::from(python.line))),
        ] {
            mixed = mixed.rotate_left(21).wrapping_add(word);
        }
        (mixed.wrapping_mul(shm::dynamic::DYNAMIC_FACTOR) >> 32) as u32
    }
}

/// # Safety
/// `code` must be a code object of the interpreter that `python` describes.
unsafe fn describe(python: &Python, code: u64, identity: &mut Identity) -> bool {
    // SAFETY: by the caller `code` is a code object.
    unsafe {
        identity.line = read32(code + u64::from(python.line));
        put_text(
            python,
            read(code + u64::from(python.name)),
            &mut identity.name,
        ) && put_text(
            python,
            read(code + u64::from(python.file)),
            &mut identity.file,
        )
    }
}

/// Copies a string of Python's; `false`: it is none.
///
/// # Safety
/// `object` must be an object of the interpreter that `python` describes.
unsafe fn put_text(python: &Python, object: u64, text: &mut Text) -> bool {
    // SAFETY: by the caller an object; it is asked for its type first.
    unsafe {
        if object == 0 || object & 7 != 0 || read(object + OBJECT_TYPE) != python.text_type {
            return false;
        }
        let state = read32(object + TEXT_STATE);
        if state & STATE_COMPACT == 0 {
            return false;
        }
        let data = match state & STATE_ASCII {
            0 => object + python.wide,
            _ => object + python.ascii,
        };
        let width = u64::from(state >> STATE_KIND_SHIFT & 7);
        for index in 0..read(object + TEXT_LEN) {
            let at = data + index * width;
            text.push_char(match width {
                1 => u32::from((at as *const u8).read_volatile()),
                2 => u32::from((at as *const u16).read_volatile()),
                4 => read32(at),
                _ => return false,
            });
            if text.cut {
                break;
            }
        }
        true
    }
}
