//! Prints file and line of the first functions of the files named on the command line, and how long
//! that took.

use std::path::Path;
use std::time::Instant;
use thalweg_symbols::{Lines, Module};

fn main() {
    for path in std::env::args().skip(1) {
        let begin = Instant::now();
        let lines = Lines::load(Path::new(&path), "");
        let loaded = begin.elapsed();
        let module = match Module::load(Path::new(&path)) {
            Ok(module) => module,
            Err(error) => {
                println!("{error}");
                continue;
            }
        };
        let begin = Instant::now();
        let found: Vec<_> = module
            .functions
            .iter()
            .map(|f| (f, lines.lookup(f.start)))
            .collect();
        let known = found.iter().filter(|f| f.1.is_some()).count();
        println!(
            "{path}: loaded in {loaded:?}, {known} of {} looked up in {:?}",
            found.len(),
            begin.elapsed()
        );
        for (function, place) in found.iter().filter(|f| f.1.is_some()).take(5) {
            println!("  {} {place:?}", function.name);
        }
    }
}
