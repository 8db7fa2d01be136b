//! Compares what is found in a file with what is found in its stripped copy: `stripped FILE
//! STRIPPED`. Cold parts that are taken for functions, and functions that are taken for cold parts,
//! are printed.

use std::collections::BTreeMap;
use std::path::Path;
use thalweg_symbols::{DebugLookup, Function, FunctionKind, Module};

fn main() {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let [named, stripped] = paths.as_slice() else {
        eprintln!("usage: stripped FILE STRIPPED");
        std::process::exit(2);
    };
    let named = Module::load(Path::new(named)).expect("a readable file");
    let data = std::fs::read(stripped).expect("a readable file");
    let bare = Module::parse("stripped", &data, &DebugLookup::none()).expect("an ELF file");
    let by_start: BTreeMap<u64, &Function> = bare.functions.iter().map(|f| (f.start, f)).collect();
    let (mut parts, mut extra, mut lost) = (0, 0, 0);
    for function in &named.functions {
        let Some(found) = by_start.get(&function.start) else {
            continue;
        };
        let is_part = function.kind == FunctionKind::Fragment;
        let taken_for_part = found.kind == FunctionKind::Fragment;
        parts += usize::from(is_part);
        if is_part && !taken_for_part {
            extra += 1;
            println!(
                "part taken for a function: {:x} {}",
                function.start, function.name
            );
        }
        if !is_part && taken_for_part {
            lost += 1;
            println!(
                "function taken for a part: {:x} {}",
                function.start, function.name
            );
        }
    }
    println!(
        "{}: {parts} cold parts, {extra} taken for functions; {lost} functions taken for parts",
        named.name
    );
}
