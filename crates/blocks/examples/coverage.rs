//! How much of files can be counted block by block: `cargo run --example coverage -- FILE...`

use std::collections::BTreeMap;
use std::path::Path;

use thalweg_blocks::{NotTaken, Others, plan};
use thalweg_symbols::Module;

fn main() {
    for path in std::env::args().skip(1) {
        let module = match Module::load(Path::new(&path)) {
            Ok(module) => module,
            Err(error) => {
                eprintln!("{error}");
                continue;
            }
        };
        let all = vec![true; module.functions.len()];
        let started = std::time::Instant::now();
        let plan = plan(&module, &all, &Others::default(), true);
        let took = started.elapsed();
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        for skipped in &plan.skipped {
            *reasons.entry(skipped.reason.kind()).or_default() += 1;
            if std::env::var_os("EACH").is_some() {
                let function = &module.functions[skipped.function];
                println!(
                    "  {} {:#x}: {}",
                    function.name, function.start, skipped.reason
                );
            }
        }
        let structural = ["plt", "entry-code", "untouchable"];
        let left: usize = reasons
            .iter()
            .filter(|(r, _)| !structural.contains(r))
            .map(|r| r.1)
            .sum();
        let text: usize = module
            .sections
            .iter()
            .filter(|s| s.executable)
            .map(|s| s.bytes.len())
            .sum();
        let moved = plan.functions.len();
        let extra = plan
            .blocks
            .iter()
            .filter(|b| matches!(b.not_taken, NotTaken::Counter(_)));
        println!(
            "{}: {moved} of {} functions ({:.1} %), {} blocks, {} branches with counters, {} keep flags, cave {} of {text} bytes, {took:.1?}; {reasons:?}",
            module.name,
            moved + left,
            100.0 * moved as f64 / (moved + left).max(1) as f64,
            plan.blocks.len(),
            extra.count(),
            plan.flags_kept,
            plan.cave_len(),
        );
    }
}
