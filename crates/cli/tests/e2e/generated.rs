//! Code that a process has made itself is named in samples as its compiler has told perf.

use thalweg_model::FuncId;

use crate::samples::{record_program, threads};
use crate::support::build::Build;

#[test]
fn generated_code_has_its_name_below_whom_called_it() {
    assert_named(&[], "perf-");
}

#[test]
fn code_that_a_compiler_has_dumped_has_its_name() {
    assert_named(&["dump"], "jit-");
}

#[track_caller]
fn assert_named(arguments: &[&str], file: &str) {
    let generated = Build::simple("generated.c");
    let (_, raw) = record_program(&generated.path, &["--samples", "999"], arguments);
    let name = |function: FuncId| raw.functions[function].name.as_str();
    let (mut inside, mut all) = (0, 0);
    for thread in threads(&raw) {
        for frame in &thread.samples {
            all += frame.own;
            if name(frame.function) == "Script:~spin /srv/app.js:3:1" {
                inside += frame.own;
                let caller = frame.parent.map(|at| thread.samples[at as usize].function);
                assert_eq!(caller.map(name), Some("run"));
                let module = raw.functions[frame.function].module;
                let module = &raw.modules[module as usize].name;
                assert!(module.starts_with(file), "{module}");
            }
        }
    }
    // But for the first ones, before the file was read.
    assert!(inside * 2 > all, "{inside} of {all} samples");
}
