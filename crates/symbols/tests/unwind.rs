//! The unwinder against libgcc's, on the stack of a real process.

mod support;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use support::Scratch;
use thalweg_symbols::{DebugLookup, Frame, Module, Unwinder};

/// What `unwound.c` prints.
#[derive(Default)]
struct Dump {
    registers: Vec<u64>,
    /// Lookup address and the CFA of the frame *inside* this one.
    frames: Vec<(u64, u64)>,
    memory: HashMap<u64, u64>,
    unwinder: Unwinder,
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap()
}

fn read(output: &str) -> Dump {
    let mut dump = Dump::default();
    for line in output.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "registers" => dump.registers = words[1..].iter().map(|w| hex(w)).collect(),
            // libgcc ends with a frame at no address, outside `_start`.
            "frame" if hex(words[1]) != u64::MAX => {
                dump.frames.push((hex(words[1]), hex(words[2])))
            }
            "word" => {
                dump.memory.insert(hex(words[1]), hex(words[2]));
            }
            "map" if words.len() == 7 && words[3] == "00000000" && words[6].starts_with('/') => {
                let Ok(module) = Module::load(Path::new(words[6])) else {
                    continue;
                };
                let start = hex(words[1].split('-').next().unwrap());
                let bias = start - (module.segments[0].vaddr & !0xfff);
                dump.unwinder.add_module(&module, bias);
            }
            _ => {}
        }
    }
    dump
}

fn compare(compiler: &str, name: &str, flags: &[&str], arguments: &[&str]) {
    let scratch = Scratch::new(&format!("unwind-{name}"));
    let Some(program) = scratch.compile(compiler, "unwound.c", name, flags) else {
        return;
    };
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success());
    let mut dump = read(&String::from_utf8(output.stdout).unwrap());
    let [rip, rsp, rbp] = dump.registers[..] else {
        panic!("no registers")
    };
    let memory = &dump.memory;
    let frames = dump
        .unwinder
        .unwind(rip, rsp, rbp, 100, &mut |at| memory.get(&at).copied());

    // libgcc starts at its own caller, `dump`, at another instruction of it.
    assert!(dump.frames.len() > 15, "{} frames", dump.frames.len());
    let expected: Vec<u64> = dump.frames[1..].iter().map(|f| f.0).collect();
    let found: Vec<u64> = frames[1..].iter().map(|f| f.ip).collect();
    assert_eq!(found, expected, "{name}");
    for (index, Frame { cfa, .. }) in frames.iter().enumerate() {
        if let (Some(cfa), Some(outer)) = (cfa, dump.frames.get(index + 1)) {
            assert_eq!(*cfa, outer.1, "{name}: frame {index}");
            let slot = memory[&(cfa - 8)];
            assert!(
                slot == outer.0 + 1,
                "{name}: frame {index} does not return to its caller"
            );
        }
    }
    // The restorer of the signal and `_start` return to nobody.
    let without = frames.iter().filter(|f| f.cfa.is_none()).count();
    assert_eq!(without, 2, "{name}: {frames:x?}");
}

#[test]
fn every_return_address_of_a_stack_is_found_where_it_is() {
    compare("gcc", "o0", &["-O0"], &[]);
    compare("gcc", "o2", &["-O2", "-fomit-frame-pointer"], &[]);
    compare("gcc", "no-pie", &["-O2", "-no-pie"], &[]);
    compare("gcc", "static", &["-O2", "-static"], &[]);
    compare("gcc", "static-pie", &["-O1", "-static-pie"], &[]);
    compare("clang", "clang", &["-O2"], &[]);
}

#[test]
fn a_handler_on_its_own_stack_leads_back_to_the_interrupted_one() {
    compare("gcc", "altstack", &["-O2"], &["x"]);
}

#[test]
fn without_readable_memory_there_is_the_innermost_frame_and_no_panic() {
    let module = Module::load(&std::env::current_exe().unwrap()).unwrap();
    let function = module
        .functions
        .iter()
        .find(|f| f.end - f.start > 64)
        .unwrap()
        .start;
    let mut unwinder = Unwinder::new();
    unwinder.add_module(&module, 0);
    for (rsp, rbp) in [(0, 0), (u64::MAX, u64::MAX), (u64::MAX - 7, 8), (16, 16)] {
        let frames = unwinder.unwind(function + 20, rsp, rbp, 10, &mut |_| None);
        assert_eq!(frames[0].ip, function + 20);
        assert!(frames.len() == 1);
        let frames = unwinder.unwind(function + 20, rsp, rbp, 10, &mut |at| {
            Some(at.wrapping_add(8))
        });
        assert!(frames.len() <= 10);
    }
}

/// A thread is often stopped in clock_gettime; its file is only in memory.
#[test]
fn the_kernels_own_library_can_be_read_from_memory_and_unwound() {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let Some(line) = maps.lines().find(|l| l.ends_with("[vdso]")) else {
        return;
    };
    let (start, rest) = line.split_once('-').unwrap();
    let (start, end) = (hex(start), hex(rest.split(' ').next().unwrap()));
    let mut image = vec![0; (end - start) as usize];
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    memory.read_exact_at(&mut image, start).unwrap();
    let module = Module::parse("[vdso]", &image, &DebugLookup::none()).unwrap();
    let function = module
        .functions
        .iter()
        .find(|f| f.name.contains("clock_gettime"))
        .unwrap();
    let mut unwinder = Unwinder::new();
    unwinder.add_module(&module, start);
    let frames = unwinder.unwind(function.start + start, 0x1000, 0, 2, &mut |at| Some(at));
    assert_eq!(frames[0].cfa, Some(0x1008));
}
