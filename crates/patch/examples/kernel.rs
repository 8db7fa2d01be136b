//! Which functions of files enter the kernel, how often each call of them does, and which are counted at their system calls.

use thalweg_patch::{enters_kernel, plan_entering, plan_sites, plan_watching, watched};
use thalweg_symbols::Module;

fn main() {
    for path in std::env::args().skip(1) {
        let module = match Module::load(path.as_ref()) {
            Ok(module) => module,
            Err(error) => {
                eprintln!("{path}: {error}");
                std::process::exit(2);
            }
        };
        let all = enters_kernel(&module);
        let plan = plan_entering(&module, &vec![true; module.functions.len()], &all);
        for one in all {
            let how = match plan.entering.contains(&one.function) {
                true => ", counted at each",
                false => "",
            };
            let name = &module.functions[one.function].name;
            println!("{name}: {:?}{how}", one.made);
        }
        let watched = watched(&module);
        let counted = plan_watching(&module, &vec![true; module.functions.len()], &[], &watched);
        let bare = plan_sites(&module, &watched);
        for one in watched {
            let name = &module.functions[one.function].name;
            for site in one.sites {
                let [with, without] = [&counted, &bare].map(|plan| plan.watching.contains(&site));
                println!("watched {name} at {site:x}: counted {with}, not counted {without}");
            }
        }
    }
}
