//! What the C library's functions ask of the kernel is known as it is.

use thalweg_patch::{Made, enters_kernel};
use thalweg_symbols::Module;

fn made_by(module: &Module, name: &str) -> Option<Made> {
    let found = enters_kernel(module).into_iter().find(|one| {
        let function = &module.functions[one.function];
        function.name == name
    });
    found.map(|one| one.made)
}

#[test]
fn functions_that_make_one_system_call_on_all_ways_are_told_from_those_that_may_make_none() {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("this process's mappings");
    let libc = maps
        .split_whitespace()
        .find(|word| word.contains("libc.so"));
    let module = Module::load(libc.expect("a C library").as_ref()).expect("its code");
    let once = |number| Some(Made::Each(vec![(Some(number), 1)]));
    for (name, number) in [
        ("read", 0),
        ("write", 1),
        ("close", 3),
        ("mmap", 9),
        ("getpid", 39),
        ("_exit", 231),
    ] {
        assert_eq!(made_by(&module, name), once(number), "{name}");
    }
    // Its number is an argument.
    assert_eq!(
        made_by(&module, "syscall"),
        Some(Made::Each(vec![(None, 1)]))
    );
    // Contended or not; answered without the kernel or not; a loop.
    for name in [
        "sem_post",
        "clock_gettime",
        "pthread_cond_signal",
        "pthread_cond_wait",
    ] {
        let made = made_by(&module, name);
        assert!(
            matches!(made, Some(Made::Between(0, _))),
            "{name}: {made:?}"
        );
    }
    for name in ["strlen", "fopen", "qsort"] {
        assert_eq!(made_by(&module, name), None, "{name}");
    }
}
