//! Writes a copy of an ELF file in which every function runs through probes that spoil all they may: if the copy still
//! works, the plan was right.
//!
//!     cargo run --release -p thalweg-patch --example patch_file -- PROGRAM COPY [BIAS [SEED [PERCENT]]]

#[path = "../tests/common/mod.rs"]
mod common;

use std::path::Path;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to, rest @ ..] = &arguments[..] else {
        eprintln!("usage: patch_file PROGRAM COPY [BIAS [SEED [PERCENT]]]");
        std::process::exit(2);
    };
    let number = |i: usize, radix| {
        let text = rest.get(i)?;
        Some(u64::from_str_radix(text.trim_start_matches("0x"), radix).expect("a number"))
    };
    let variant = common::Variant {
        bias: number(0, 16).unwrap_or(0),
        seed: number(1, 10).unwrap_or(0),
        percent: number(2, 10).map(|p| p as usize),
    };
    let (patched, all) = common::write_patched(Path::new(from), Path::new(to), variant);
    println!("{patched} of {all} functions patched");
}
