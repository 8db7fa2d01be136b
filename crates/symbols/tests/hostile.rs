//! Damaged files: any answer is fine, a panic or an endless loop is not.

mod support;

use std::path::{Path, PathBuf};
use support::Scratch;
use thalweg_symbols::{DebugLookup, Lines, Module, Unwinder, demangle};

/// A small generator, so that a failure can be repeated from its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Everything that a session does with a module.
fn use_all(data: &[u8]) {
    let lines = Lines::parse(data, &DebugLookup::none());
    let Ok(module) = Module::parse("damaged", data, &DebugLookup::none()) else {
        return;
    };
    for pair in module.functions.windows(2) {
        assert!(pair[0].end <= pair[1].start);
    }
    let mut unwinder = Unwinder::new();
    unwinder.add_module(&module, 0x5555_0000_0000);
    for function in module.functions.iter().take(50) {
        let middle = function.start + (function.end - function.start) / 2;
        module.cfi.cfa_is_rsp_plus_8(middle);
        lines.lookup(middle);
        let at = middle.wrapping_add(0x5555_0000_0000);
        unwinder.unwind(at, 0x7fff_0000, 0x7fff_0100, 20, &mut |a| {
            Some(a ^ 0x5555_0000_1234)
        });
    }
}

fn samples(scratch: &Scratch) -> Vec<PathBuf> {
    let mut samples = Vec::new();
    samples.extend(scratch.compile("gcc", "shapes.c", "debug", &["-O2", "-g"]));
    samples.extend(scratch.compile(
        "gcc",
        "shapes.c",
        "packed",
        &["-O2", "-gz", "-g", "-no-pie"],
    ));
    samples.extend(scratch.compile(
        "g++",
        "thrower.cpp",
        "thrower",
        &["-O2", "-Wl,-z,pack-relative-relocs"],
    ));
    samples.extend(
        ["/usr/bin/lua5.4"]
            .iter()
            .map(PathBuf::from)
            .filter(|p| p.exists()),
    );
    samples
}

#[test]
fn truncated_files_never_panic() {
    let scratch = Scratch::new("truncated");
    for path in samples(&scratch) {
        let data = std::fs::read(&path).unwrap();
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for length in 0..200.min(data.len()) {
            use_all(&data[..length]);
        }
        for _ in 0..40 {
            use_all(&data[..random.below(data.len())]);
        }
        // Cut off, then filled up again: headers point at zeroes.
        for _ in 0..40 {
            let mut padded = data.clone();
            padded[random.below(data.len())..].fill(0);
            use_all(&padded);
        }
    }
}

#[test]
fn flipped_bits_never_panic() {
    let scratch = Scratch::new("flipped");
    for path in samples(&scratch) {
        let data = std::fs::read(&path).unwrap();
        let places = interesting(&path, &data);
        let mut random = Random(0x2545_f491_4f6c_dd1d);
        for _ in 0..300 {
            let mut damaged = data.clone();
            for _ in 0..=random.below(8) {
                let (start, end) = places[random.below(places.len())];
                let at = start + random.below(end - start);
                damaged[at] = match random.below(4) {
                    0 => 0,
                    1 => 0xff,
                    2 => damaged[at] ^ (1 << random.below(8)),
                    _ => random.next() as u8,
                };
            }
            use_all(&damaged);
        }
    }
}

/// Parts of a file that are parsed rather than carried along: headers and every table.
fn interesting(path: &Path, data: &[u8]) -> Vec<(usize, usize)> {
    use object::{Object, ObjectSection};
    let file = object::File::parse(data).unwrap();
    let headers = u64::from_le_bytes(data[40..48].try_into().unwrap()) as usize;
    let mut places = vec![(0, 64), (64, 64 + 56 * 12), (headers, data.len())];
    for section in file.sections() {
        let code = matches!(section.kind(), object::SectionKind::Text);
        match section.file_range() {
            Some((start, size)) if size > 0 && !code => {
                places.push((start as usize, (start + size) as usize))
            }
            _ => {}
        }
    }
    assert!(places.len() > 10, "{}", path.display());
    places
}

#[test]
fn hostile_names_are_bounded() {
    let mut random = Random(0x1234_5678_9abc_def1);
    let alphabet: Vec<&str> =
        "_Z _ZN _R S_ S0_ S1_ I E N St T_ X J Dp 3foo 1f i P R K ( . C s0_ B_ 99999 u"
            .split(' ')
            .collect();
    for _ in 0..3000 {
        let mut name = String::from(if random.below(4) == 0 { "_R" } else { "_Z" });
        for _ in 0..random.below(60) {
            name.push_str(alphabet[random.below(alphabet.len())]);
        }
        assert!(demangle(&name).len() < 200_000);
    }
    for repeated in ["P", "N", "I", "F", "M", "(", "S_", "XsrcE", "_Z"] {
        let name = format!("_Z1f{}", repeated.repeat(20_000));
        demangle(&name);
        demangle(&format!("_R{}", repeated.repeat(20_000)));
    }
}
