//! Writes a patched copy of an ELF file: what the controller does to a process, done to a file.
//!
//! The stubs become a segment of their own. Its header takes the place of a PT_NOTE, which programs run without.
#![allow(dead_code)]

use std::path::Path;
use thalweg_patch::{
    Emitted, ModulePlan, Placement, Probe, ProbeEncoder, emit, enters_kernel, plan_entering, verify,
};
use thalweg_symbols::Module;

/// As long as the real probes, and recognisable: for the checker.
pub struct Sample;

impl ProbeEncoder for Sample {
    fn encode(&self, probe: Probe, _keep_flags: bool, _at: u64, out: &mut Vec<u8>) {
        match probe {
            Probe::Entry { function, .. } | Probe::Leaf { function } => {
                out.extend([0xe8, 0, 0, 0, 0, 0x0f, 0x1f, 0x80]);
                out.extend((function as u32).to_le_bytes());
            }
            Probe::Return => out.extend([0xe9, 0, 0, 0, 0]),
            Probe::Exit => out.extend([0xe8, 1, 0, 0, 0]),
            Probe::TailMark => out.extend([0xe8, 2, 0, 0, 0]),
            Probe::TailUnknown => out.extend([0xe8, 3, 0, 0, 0]),
            Probe::Switch { .. } => out.extend([0xe8, 4, 0, 0, 0]),
            Probe::Kernel { .. } => out.extend([0xe8, 5, 0, 0, 0]),
            Probe::Watch => out.extend([0xe8, 6, 0, 0, 0]),
            Probe::GoEntry { .. } | Probe::GoReturn | Probe::GoLeave { .. } | Probe::GoArrive => {}
        }
    }
}

/// Spoils everything that a probe is allowed to spoil: the stack below `rsp`, and the flags where they may go.
pub struct Vandal;

impl ProbeEncoder for Vandal {
    fn encode(&self, probe: Probe, keep_flags: bool, _at: u64, out: &mut Vec<u8>) {
        if let Probe::Kernel { .. } | Probe::Watch = probe {
            // mov rcx, -1; mov r11, -1: all that is its own.
            out.extend([0x48, 0xc7, 0xc1, 0xff, 0xff, 0xff, 0xff]);
            out.extend([0x49, 0xc7, 0xc3, 0xff, 0xff, 0xff, 0xff]);
            return;
        }
        for below in [0xf8, 0x80] {
            // mov qword [rsp-x], -1
            out.extend([0x48, 0xc7, 0x44, 0x24, below, 0xff, 0xff, 0xff, 0xff]);
        }
        if !keep_flags {
            // add qword [rsp-8], 0x7f
            out.extend([0x48, 0x83, 0x44, 0x24, 0xf8, 0x7f]);
        }
        if probe == Probe::Return {
            out.push(0xc3);
        }
    }
}

pub fn everything(module: &Module) -> ModulePlan {
    let all = vec![true; module.functions.len()];
    plan_entering(module, &all, &enters_kernel(module))
}

/// Plans and emits `module`, and panics with what the checker finds.
pub fn checked(module: &Module, bias: u64, stub_base: u64) -> (ModulePlan, Emitted) {
    let plan = everything(module);
    let place = Placement {
        bias,
        stub_base,
        encoder: &Sample,
    };
    let emitted = emit(module, &plan, &place).expect("stubs in reach");
    let problems = verify(module, &plan, &emitted, &place);
    assert!(
        problems.is_empty(),
        "{}: {:#?}",
        module.name,
        &problems[..problems.len().min(20)]
    );
    (plan, emitted)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// How a patched copy differs from one with everything patched.
#[derive(Clone, Copy, Default)]
pub struct Variant {
    /// What the loader will add to the file's addresses.
    pub bias: u64,
    /// Selects about half of the functions, differently for each seed; 0 selects all.
    pub seed: u64,
    /// Stops after this share (in percent) of the patches, as a writer that gets killed would.
    pub percent: Option<usize>,
}

/// A small generator of pseudo-random numbers (xorshift).
pub fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// How many functions of how many were patched in the copy of `from` at `to`.
pub fn write_patched(from: &Path, to: &Path, variant: Variant) -> (usize, usize) {
    let bias = variant.bias;
    const PAGE: u64 = 0x1000;
    let module = Module::load(from).expect("an ELF file");
    let mut state = variant.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let selected: Vec<bool> = module
        .functions
        .iter()
        .map(|_| variant.seed == 0 || random(&mut state) >> 32 & 1 == 0)
        .collect();
    let plan = plan_entering(&module, &selected, &enters_kernel(&module));
    let end = module
        .segments
        .iter()
        .map(|s| s.vaddr + s.mem_size)
        .max()
        .unwrap();
    let stubs = end.next_multiple_of(PAGE) + 16 * PAGE;
    let place = Placement {
        bias,
        stub_base: stubs + bias,
        encoder: &Vandal,
    };
    let emitted = emit(&module, &plan, &place).expect("stubs in reach");
    let problems = verify(&module, &plan, &emitted, &place);
    assert!(
        problems.is_empty(),
        "{:#?}",
        &problems[..problems.len().min(20)]
    );

    let mut file = std::fs::read(from).unwrap();
    let count = variant
        .percent
        .map_or(emitted.patches.len(), |p| emitted.patches.len() * p / 100);
    for patch in &emitted.patches[..count] {
        let vaddr = patch.address - bias;
        let segment = module
            .segments
            .iter()
            .find(|s| s.vaddr <= vaddr && vaddr < s.vaddr + s.file_size)
            .unwrap();
        let offset = (vaddr - segment.vaddr + segment.file_offset) as usize;
        assert_eq!(
            &file[offset..offset + patch.original.len()],
            &patch.original[..]
        );
        file[offset..offset + patch.replacement.len()].copy_from_slice(&patch.replacement);
    }
    let offset = (file.len() as u64).next_multiple_of(PAGE);
    file.resize(offset as usize, 0);
    // Rows lie one behind the other, with room between them.
    for row in &emitted.stubs {
        let at = offset + (row.address - place.stub_base);
        file.resize(at as usize, 0);
        file.extend(&row.bytes);
    }
    let headers = word(&file, 32) as usize;
    let count = usize::from(u16::from_le_bytes([file[56], file[57]]));
    let note = (0..count)
        .map(|i| headers + 56 * i)
        .rfind(|&at| file[at..at + 4] == [4, 0, 0, 0])
        .expect("a PT_NOTE to give up");
    file[note..note + 8].copy_from_slice(&[1, 0, 0, 0, 5, 0, 0, 0]);
    let size = file.len() as u64 - offset;
    for (field, value) in [offset, stubs, stubs, size, size, PAGE]
        .into_iter()
        .enumerate()
    {
        put(&mut file, note + 8 + 8 * field, value);
    }
    let draft = to.with_extension("draft");
    std::fs::write(&draft, file).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&draft, mode).unwrap();
    // Another process writes what will be executed: a child that some other test starts meanwhile would inherit our
    // descriptor, and what is open for writing cannot be executed.
    let copied = std::process::Command::new("cp")
        .arg(&draft)
        .arg(to)
        .status();
    assert!(copied.unwrap().success());
    let normal = plan.functions.len()
        + plan
            .skipped
            .iter()
            .filter(|s| !matches!(s.reason.kind(), "plt" | "entry-code" | "untouchable"))
            .count();
    (plan.functions.len(), normal)
}

/// Assembles `source` (Intel syntax, `;` between instructions, labels at line or statement starts) into a shared library
/// whose functions are the labels that do not start with a dot, and loads it.
pub fn assemble(source: &str) -> Module {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let directory =
        std::env::temp_dir().join(format!("thalweg-patch-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let mut text = String::from(".intel_syntax noprefix\n.text\n.p2align 12\n");
    let mut open: Option<String> = None;
    let close = |open: &mut Option<String>, text: &mut String| {
        if let Some(name) = open.take() {
            text.push_str(&format!(".size {name}, . - {name}\n"));
        }
    };
    for statement in source
        .split([';', '\n'])
        .map(str::trim)
        .filter(|s| !s.is_empty())
    {
        let mut statement = statement;
        if let Some((label, rest)) = statement.split_once(':') {
            if !label.starts_with('.') {
                close(&mut open, &mut text);
                text.push_str(&format!(
                    ".globl {label}\n.hidden {label}\n.type {label}, @function\n"
                ));
                open = Some(label.to_string());
            }
            text.push_str(&format!("{label}:\n"));
            statement = rest.trim();
        }
        if statement.starts_with(".p2align") || statement.starts_with(".section") {
            close(&mut open, &mut text);
        }
        text.push_str(&format!("{statement}\n"));
    }
    close(&mut open, &mut text);
    let (asm, library) = (directory.join("code.s"), directory.join("code.so"));
    std::fs::write(&asm, &text).unwrap();
    let status = std::process::Command::new("gcc")
        .args(["-shared", "-nostdlib", "-Wl,-z,noseparate-code", "-o"])
        .arg(&library)
        .arg(&asm)
        .status()
        .expect("gcc runs");
    assert!(status.success(), "{text}");
    let module = Module::load(&library).expect("a shared library");
    std::fs::remove_dir_all(&directory).unwrap();
    module
}
