//! Prints what `Module::load` finds in the files named on the command line: one line of totals for
//! each, and with `-v` every function and gap.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;
use thalweg_symbols::Module;

fn main() {
    let (flags, paths): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|a| a.starts_with('-'));
    for path in paths {
        let begin = Instant::now();
        let module = match Module::load(Path::new(&path)) {
            Ok(module) => module,
            Err(error) => {
                println!("{error}");
                continue;
            }
        };
        let took = begin.elapsed();
        let mut kinds = BTreeMap::<String, usize>::new();
        for function in &module.functions {
            let kind = format!("{:?}", function.kind);
            *kinds
                .entry(kind.split('(').next().unwrap_or_default().to_owned())
                .or_default() += 1;
        }
        let gap_bytes: u64 = module.gaps.iter().map(|g| g.1 - g.0).sum();
        println!(
            "{}: {} functions {kinds:?}, {} code pointers, {} gaps of {gap_bytes} bytes, {took:?}",
            module.name,
            module.functions.len(),
            module.code_pointers.len(),
            module.gaps.len(),
        );
        if flags.iter().any(|f| f == "-v") {
            for f in &module.functions {
                println!(
                    "{:x} {:x} {:?} {:?} {}",
                    f.start, f.end, f.kind, f.found_in, f.name
                );
            }
            for (start, end) in &module.gaps {
                println!("{start:x} {end:x} gap");
            }
        }
    }
}
