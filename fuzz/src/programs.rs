//! Programs: their symbols, debug information and unwind tables, and the code and the values of rules.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use nix::sys::memfd::{MFdFlags, memfd_create};
use thalweg_bytecode::{Call, Items, Machine, Memory, Nowhere, Out, entry, exit};
use thalweg_symbols::{DebugLookup, Lines, Module, Unwinder, demangle};

const BIAS: u64 = 0x5555_0000_0000;
/// Functions of a module that are looked at one by one.
const LOOKED_AT: usize = 50;

fn module(data: &[u8]) -> Option<Module> {
    let module = Module::parse("fuzzed", data, &DebugLookup::none()).ok()?;
    for pair in module.functions.windows(2) {
        assert!(pair[0].end <= pair[1].start);
    }
    Some(module)
}

fn middles(module: &Module) -> impl Iterator<Item = u64> + '_ {
    let functions = module.functions.iter().take(LOOKED_AT);
    functions.map(|function| function.start + (function.end - function.start) / 2)
}

/// Symbols, fragments, kinds of functions; Go's table where there is one.
pub fn elf(data: &[u8]) {
    if let Some(module) = module(data) {
        for middle in middles(&module) {
            module.function_at(middle);
            module.section_at(middle);
            module.cfi.cfa_is_rsp_plus_8(middle);
        }
    }
    demangle(&String::from_utf8_lossy(&data[..data.len().min(512)]));
}

/// Whether Go's table is found and read.
pub fn has_go_table(data: &[u8]) -> bool {
    module(data).is_some_and(|module| module.go.is_some_and(|go| go.named("main.first").is_some()))
}

/// Lines, and declarations with their types.
pub fn dwarf(data: &[u8]) {
    let lines = Lines::parse(data, &DebugLookup::none());
    let Some(module) = module(data) else {
        return;
    };
    let functions = module.functions.iter().take(LOOKED_AT);
    let asked: Vec<(u64, &str)> = functions
        .map(|function| (function.start, function.name.as_str()))
        .collect();
    for middle in middles(&module) {
        lines.lookup(middle);
    }
    let path = written(data);
    thalweg_rules::signatures(&path, "", &asked);
}

/// A name for a file with these bytes, which exists until the next one is asked for.
fn written(data: &[u8]) -> PathBuf {
    thread_local! {
        static FILE: RefCell<Option<File>> = const { RefCell::new(None) };
    }
    FILE.with_borrow_mut(|kept| {
        let file = kept.get_or_insert_with(|| {
            let made = memfd_create(c"fuzzed", MFdFlags::MFD_CLOEXEC);
            File::from(made.expect("a file in memory"))
        });
        file.set_len(0).expect("a file in memory");
        file.write_all_at(data, 0).expect("room");
        PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
    })
}

pub fn unwind(data: &[u8]) {
    let Some(module) = module(data) else {
        return;
    };
    let mut unwinder = Unwinder::new();
    unwinder.add_module(&module, BIAS);
    for middle in middles(&module) {
        let at = middle.wrapping_add(BIAS);
        unwinder.unwind(at, 0x7fff_0000, 0x7fff_0100, 20, &mut |address| {
            Some(address ^ 0x5555_0000_1234)
        });
    }
}

/// Memory of which some is readable.
struct Patchy;

impl Memory for Patchy {
    fn read(&mut self, at: u64, into: &mut [u8]) -> usize {
        let readable = (4096 - (at & 4095)) as usize;
        let len = into.len().min(readable);
        if at & 0x1000 != 0 {
            return 0;
        }
        for (index, byte) in into[..len].iter_mut().enumerate() {
            *byte = (at as u8).wrapping_add(index as u8);
        }
        len
    }
}

/// A rule's program, as the agent runs it: it ends, and writes nothing beyond its buffer.
pub fn bytecode(data: &[u8]) {
    const GUARD: u8 = 0xa5;
    let room = data.first().map_or(0, |byte| usize::from(*byte));
    let mut buffer = vec![GUARD; room + 64];
    let (inside, outside) = buffer.split_at_mut(room);
    let machine = Machine {
        int: [0x2000, 0x1000, 5, u64::MAX, 0x2ff8, 0, 0, 0, 0],
        sp: 0x4000,
        ..Machine::default()
    };
    let call = Call {
        number: 7,
        ..Call::default()
    };
    let mut out = Out::new(inside);
    entry(data, &machine, &mut Patchy, &Nowhere, &call, &mut out);
    assert!(out.len() <= room);
    let values = out.written().to_vec();
    exit(data, &machine, &mut Patchy, &call, &values, &mut out);
    assert!(out.len() <= room);
    Items::new(out.written()).for_each(drop);
    assert!(outside.iter().all(|byte| *byte == GUARD));
}

/// What a target says that its rules have read, by descriptions that it carries, too: a line of JSON, then the values.
pub fn values(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let Ok(descriptions) = serde_json::from_slice::<Vec<_>>(&data[..end]) else {
        return;
    };
    for read in thalweg_rules::decode_all(&descriptions, &data[end..]) {
        let _ = serde_json::to_string(&read.value);
    }
}
