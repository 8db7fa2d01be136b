//! Writes a copy of an ELF file in which every function runs through probes that spoil all they may: if the copy still
//! works, the plan was right.
//!
//!     cargo run --release -p thalweg-patch --example patch_file -- PROGRAM COPY [BIAS]

#[path = "../tests/common/mod.rs"]
mod common;

use std::path::Path;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to, rest @ ..] = &arguments[..] else {
        eprintln!("usage: patch_file PROGRAM COPY [BIAS]");
        std::process::exit(2);
    };
    let bias = rest.first().map_or(0, |b| {
        u64::from_str_radix(b.trim_start_matches("0x"), 16).expect("a hexadecimal bias")
    });
    let (patched, all) = common::write_patched(Path::new(from), Path::new(to), bias);
    println!("{patched} of {all} functions patched");
}
