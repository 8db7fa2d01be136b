//! What is found in real files, and in stripped copies of programs whose symbol table is known.

mod support;

use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use support::{Scratch, machine_files, run};
use thalweg_symbols::{DebugLookup, FoundIn, Function, FunctionKind, Module};

/// The module as it is without the separate debug files that this machine may have.
fn alone(path: &Path) -> Module {
    let name = path.file_name().unwrap().to_str().unwrap();
    Module::parse(name, &std::fs::read(path).unwrap(), &DebugLookup::none()).unwrap()
}

fn is_code(module: &Module, address: u64) -> bool {
    module.section_at(address).is_some_and(|s| s.executable)
}

#[test]
fn functions_are_in_order_in_code_and_do_not_overlap() {
    for path in machine_files() {
        let module = alone(&path);
        for pair in module.functions.windows(2) {
            assert!(
                pair[0].end <= pair[1].start,
                "{}: {:x?} {:x?}",
                module.name,
                pair[0],
                pair[1]
            );
        }
        for function in &module.functions {
            assert!(
                function.start < function.end,
                "{}: {function:x?}",
                module.name
            );
            let section = module.section_at(function.start).unwrap();
            assert!(
                section.executable && function.end <= section.end(),
                "{}: {function:x?}",
                module.name
            );
        }
        for gap in &module.gaps {
            let inside = module.function_at(gap.0).or(module.function_at(gap.1 - 1));
            assert!(
                gap.0 < gap.1 && inside.is_none(),
                "{}: {gap:x?}",
                module.name
            );
        }
        assert!(
            module.code_pointers.is_sorted_by(|a, b| a < b),
            "{}",
            module.name
        );
        assert!(
            module.code_pointers.iter().all(|&a| is_code(&module, a)),
            "{}",
            module.name
        );
    }
}

#[test]
fn every_exported_function_is_a_function() {
    for path in machine_files() {
        let module = alone(&path);
        let data = std::fs::read(&path).unwrap();
        let file = object::File::parse(&*data).unwrap();
        for symbol in file.dynamic_symbols().chain(file.symbols()) {
            let address = symbol.address();
            if symbol.kind() != SymbolKind::Text
                || !symbol.is_definition()
                || !is_code(&module, address)
            {
                continue;
            }
            let in_plt = module.section_at(address).unwrap().name.starts_with(".plt");
            let found = module
                .function_at(address)
                .map(|i| module.functions[i].start);
            assert!(
                in_plt || found == Some(address),
                "{}: {:?} {address:x}",
                module.name,
                symbol.name()
            );
            assert!(module.code_pointers.binary_search(&address).is_ok());
        }
    }
}

/// Start and end of every frame description, counted by somebody else's walk.
fn frames(path: &Path) -> Vec<(u64, u64)> {
    let output = Command::new("readelf")
        .args(["--debug-dump=frames", "--wide"])
        .arg(path)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut frames = Vec::new();
    for line in text.lines().filter(|l| l.contains(" FDE ")) {
        let Some((_, range)) = line.split_once("pc=") else {
            continue;
        };
        let (start, end) = range.split_once("..").unwrap();
        frames.push((
            u64::from_str_radix(start, 16).unwrap(),
            u64::from_str_radix(end, 16).unwrap(),
        ));
    }
    frames.sort_unstable();
    frames.dedup();
    frames
}

#[test]
fn in_stripped_files_each_frame_description_is_a_function_or_part_of_one() {
    for path in [
        "/usr/bin/lua5.4",
        "/usr/bin/sqlite3",
        "/usr/lib/x86_64-linux-gnu/libsqlite3.so.0",
    ] {
        if !Path::new(path).exists() {
            continue;
        }
        let module = alone(Path::new(path));
        let frames = frames(Path::new(path));
        assert!(frames.len() > 300);
        for &(start, end) in &frames {
            let function = module.function_at(start).map(|i| &module.functions[i]);
            let function = function.unwrap_or_else(|| panic!("{path}: nothing at {start:x}"));
            if function.kind != FunctionKind::Plt {
                assert_eq!((function.start, function.end), (start, end), "{path}");
            }
        }
        let own: Vec<&Function> = module
            .functions
            .iter()
            .filter(|f| f.kind != FunctionKind::Plt)
            .collect();
        let by_frame = own
            .iter()
            .filter(|f| frames.binary_search_by_key(&f.start, |r| r.0).is_ok())
            .count();
        assert_eq!(
            by_frame,
            own.len(),
            "{path}: functions that no frame description starts"
        );
        let plt = frames
            .iter()
            .filter(|r| module.section_at(r.0).unwrap().name.starts_with(".plt"))
            .count();
        assert_eq!(own.len(), frames.len() - plt, "{path}");
    }
}

/// What a stripped file cannot tell: start-up files without unwind information, and names that
/// decide a kind.
fn lost_by_stripping(function: &Function) -> bool {
    const CRT: [&str; 6] = [
        "_init",
        "_fini",
        "deregister_tm_clones",
        "register_tm_clones",
        "__do_global_dtors_aux",
        "frame_dummy",
    ];
    CRT.contains(&function.name.as_str())
}

/// Kinds that only a name tells, and that do no harm as ordinary functions.
fn known_by_name_only(function: &Function) -> bool {
    function.name.starts_with("_dl_") || function.name == "getcontext" || function.name == "_start"
}

fn compare_stripped(module: &Module, stripped: &Module) {
    let by_start: BTreeMap<u64, &Function> =
        stripped.functions.iter().map(|f| (f.start, f)).collect();
    let mut compared = 0;
    for function in module.functions.iter().filter(|f| !lost_by_stripping(f)) {
        let name = format!("{}: {function:x?}", module.name);
        let found = by_start
            .get(&function.start)
            .unwrap_or_else(|| panic!("{name} is missing"));
        if !matches!(function.kind, FunctionKind::Untouchable(_)) {
            assert_eq!(function.end, found.end, "{name}");
        }
        if !known_by_name_only(function) {
            assert_eq!(function.kind, found.kind, "{name}");
        }
        compared += 1;
    }
    assert!(compared > 5);
    let known = module.functions.len() as i64;
    let extra = stripped.functions.len() as i64 - known;
    assert!(
        extra <= 4,
        "{}: {extra} functions that are none",
        module.name
    );
}

#[test]
fn stripped_programs_show_the_functions_of_their_symbol_tables() {
    let scratch = Scratch::new("stripped");
    let variants: [(&str, &str, &[&str]); 9] = [
        ("gcc", "o0", &["-O0"]),
        ("gcc", "o2", &["-O2"]),
        ("gcc", "os", &["-Os", "-fcf-protection"]),
        ("gcc", "o3-no-pie", &["-O3", "-no-pie"]),
        ("gcc", "static", &["-O2", "-static"]),
        ("gcc", "static-pie", &["-O2", "-static-pie"]),
        ("clang", "clang-o2", &["-O2"]),
        ("clang", "clang-no-pie", &["-O1", "-no-pie"]),
        ("g++", "cpp", &["-O2", "-x", "c++", "-fpermissive", "-w"]),
    ];
    for (compiler, name, flags) in variants {
        let Some(program) = scratch.compile(compiler, "shapes.c", name, flags) else {
            continue;
        };
        let stripped = scratch.strip(&program);
        let (module, bare) = (alone(&program), alone(&stripped));
        compare_stripped(&module, &bare);
        assert_eq!(module.is_static, name.starts_with("static"), "{name}");
        assert_eq!(
            module.position_independent,
            !flags.contains(&"-no-pie") && name != "static",
            "{name}"
        );
        assert!(!module.is_loader);
        let kind = |wanted: &str| {
            module
                .functions
                .iter()
                .find(|f| f.name == wanted)
                .map(|f| f.kind)
        };
        assert_eq!(kind("_start"), Some(FunctionKind::EntryCode), "{name}");
        let entry = bare.function_at(bare.entry).map(|i| bare.functions[i].kind);
        assert_eq!(entry, Some(FunctionKind::EntryCode), "{name}");
    }
}

#[test]
fn functions_that_only_conditional_jumps_reach_are_functions_without_symbols_too() {
    let scratch = Scratch::new("jumped");
    for (compiler, name, flags) in [
        ("gcc", "o0", &["-O0"][..]),
        ("gcc", "o2", &["-O2"]),
        ("gcc", "os", &["-Os"]),
        ("gcc", "no-pie", &["-O2", "-no-pie"]),
        ("gcc", "static", &["-O2", "-static"]),
        ("clang", "clang-os", &["-Os"]),
    ] {
        let Some(program) = scratch.compile(compiler, "jumped.c", name, flags) else {
            continue;
        };
        let module = alone(&program);
        let stripped = alone(&scratch.strip(&program));
        compare_stripped(&module, &stripped);
        for wanted in ["odd", "target", "gives_up", "jumper"] {
            let function = module.functions.iter().find(|f| f.name == wanted).unwrap();
            let found = stripped.function_at(function.start).unwrap();
            let kind = stripped.functions[found].kind;
            assert_eq!(kind, FunctionKind::Normal, "{name}: {wanted}");
        }
    }
}

/// Place and name of each PLT slot, as somebody else reads them.
fn jump_slots(path: &Path) -> Vec<(u64, String)> {
    let output = Command::new("readelf")
        .args(["--relocs", "--wide"])
        .arg(path)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let slots = text.lines().filter(|l| l.contains("R_X86_64_JUMP_SLO"));
    slots
        .map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let name = fields[4].split('@').next().unwrap();
            (u64::from_str_radix(fields[0], 16).unwrap(), name.to_owned())
        })
        .collect()
}

#[test]
fn unbound_slots_lead_into_the_plt_and_are_known_by_the_name_of_their_function() {
    let scratch = Scratch::new("lazy");
    let mut files: Vec<_> = [
        ("lazy", &["-O2", "-Wl,-z,lazy"][..]),
        ("lazy-no-pie", &["-O2", "-no-pie", "-Wl,-z,lazy"]),
        (
            "lazy-cet",
            &["-O2", "-fcf-protection", "-Wl,-z,lazy,-z,ibtplt"],
        ),
    ]
    .into_iter()
    .filter_map(|(name, flags)| scratch.compile("gcc", "jumped.c", name, flags))
    .collect();
    assert_eq!(files.len(), 3);
    files.extend(machine_files());
    let mut seen = 0;
    for path in files {
        let module = alone(&path);
        let word = |place| {
            let bytes = module.bytes_at(place, 8)?;
            Some(u64::from_le_bytes(bytes.try_into().unwrap()))
        };
        let mut expected: Vec<(u64, String)> = jump_slots(&path)
            .into_iter()
            .filter_map(|(place, name)| Some((word(place)?, name)))
            .filter(|&(stub, _)| is_code(&module, stub))
            .collect();
        expected.sort();
        let slots = module.lazy_slots.iter();
        let found: Vec<_> = slots.map(|s| (s.stub, s.symbol.clone())).collect();
        assert_eq!(found, expected, "{}", module.name);
        for slot in &module.lazy_slots {
            let section = &module.section_at(slot.stub).unwrap().name;
            assert!(section.starts_with(".plt"), "{}: {section}", module.name);
        }
        if module.name.starts_with("lazy") {
            assert!(found.iter().any(|s| s.1 == "puts"), "{found:x?}");
        }
        seen += found.len();
    }
    assert!(seen > 1000, "{seen} slots on this machine");
}

#[test]
fn ifunc_resolvers_are_known_also_without_symbols() {
    let scratch = Scratch::new("ifunc");
    for (name, flags) in [
        ("pie", &["-O2"][..]),
        ("static", &["-O2", "-static"]),
        ("no-pie", &["-O2", "-no-pie"]),
    ] {
        let Some(program) = scratch.compile("gcc", "shapes.c", name, flags) else {
            continue;
        };
        let module = alone(&program);
        let stripped = alone(&scratch.strip(&program));
        let resolver = module
            .functions
            .iter()
            .find(|f| f.name == "indirect" || f.name == "resolve")
            .unwrap();
        assert_eq!(resolver.kind, FunctionKind::IfuncResolver, "{name}");
        let again = stripped
            .function_at(resolver.start)
            .map(|i| stripped.functions[i].kind);
        assert_eq!(again, Some(FunctionKind::IfuncResolver), "{name}");
    }
}

#[test]
fn pointers_in_data_are_code_pointers_of_every_kind_of_program() {
    let scratch = Scratch::new("pointers");
    let variants: [(&str, &[&str]); 5] = [
        ("pie", &[]),
        ("no-pie", &["-no-pie"]),
        ("static", &["-static"]),
        ("static-pie", &["-static-pie"]),
        ("relr", &["-Wl,-z,pack-relative-relocs"]),
    ];
    for (name, flags) in variants {
        let flags = [&["-O2"], flags].concat();
        let Some(program) = scratch.compile("gcc", "shapes.c", name, &flags) else {
            continue;
        };
        // No symbols and no frame descriptions: pointers are the only way to know.
        let stripped = scratch.strip(&program);
        run(Command::new("objcopy")
            .args([
                "--remove-section=.eh_frame",
                "--remove-section=.eh_frame_hdr",
            ])
            .arg(&stripped));
        let module = alone(&program);
        let bare = alone(&stripped);
        for wanted in ["one", "two", "tail", "recursive"] {
            let function = module.functions.iter().find(|f| f.name == wanted).unwrap();
            assert!(
                bare.code_pointers.binary_search(&function.start).is_ok(),
                "{name}: {wanted}"
            );
        }
    }
}

#[test]
fn every_landing_pad_an_exception_takes_is_a_code_pointer() {
    let scratch = Scratch::new("landing");
    let variants: [(&str, &str, &[&str]); 4] = [
        ("g++", "gcc-o0", &["-O0"]),
        ("g++", "gcc-o2", &["-O2"]),
        ("g++", "gcc-no-pie", &["-O3", "-no-pie"]),
        ("clang++", "clang-o2", &["-O2"]),
    ];
    for (compiler, name, flags) in variants {
        let flags = [flags, &["-rdynamic"]].concat();
        let Some(program) = scratch.compile(compiler, "thrower.cpp", name, &flags) else {
            continue;
        };
        let program = scratch.strip(&program);
        let output = Command::new(&program).output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let mut modules = BTreeMap::new();
        let mut pads = 0;
        for line in text.lines() {
            let (path, offset) = line.rsplit_once(' ').unwrap();
            let module = modules
                .entry(path.to_owned())
                .or_insert_with(|| alone(Path::new(path)));
            let base = if module.position_independent {
                0
            } else {
                module.segments[0].vaddr
            };
            let pad = base + u64::from_str_radix(offset, 16).unwrap();
            assert!(
                module.code_pointers.binary_search(&pad).is_ok(),
                "{name}: {line}"
            );
            pads += 1;
        }
        assert!(pads > 20, "{name}: {pads}");
    }
}

#[test]
fn debug_files_give_the_names_back() {
    let scratch = Scratch::new("debugfile");
    let Some(program) =
        scratch.compile("gcc", "shapes.c", "named", &["-O2", "-g", "-Wl,--build-id"])
    else {
        return;
    };
    let stripped = scratch.strip(&program);
    let debug = scratch.path("named.debug");
    run(Command::new("objcopy")
        .arg("--only-keep-debug")
        .arg(&program)
        .arg(&debug));
    let source = |module: &Module| {
        module
            .functions
            .iter()
            .find(|f| f.name == "recursive")
            .map(|f| f.found_in)
    };
    assert_eq!(
        source(&Module::load(&program).unwrap()),
        Some(FoundIn::Symtab)
    );
    assert_eq!(source(&Module::load(&stripped).unwrap()), None);

    let id: String = alone(&stripped)
        .build_id
        .unwrap()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let root = scratch.path("root");
    let directory = root.join(".build-id").join(&id[..2]);
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::copy(&debug, directory.join(format!("{}.debug", &id[2..]))).unwrap();
    let lookup = DebugLookup {
        roots: vec![root.clone()],
        directory: None,
    };
    let data = std::fs::read(&stripped).unwrap();
    assert_eq!(
        source(&Module::parse("named", &data, &lookup).unwrap()),
        Some(FoundIn::DebugLink)
    );

    let linked = scratch.path("linked");
    run(Command::new("objcopy")
        .arg("--add-gnu-debuglink")
        .arg(&debug)
        .arg(&stripped)
        .arg(&linked));
    assert_eq!(
        source(&Module::load(&linked).unwrap()),
        Some(FoundIn::DebugLink)
    );
    let lines = thalweg_symbols::Lines::load(&linked, "");
    let module = Module::load(&linked).unwrap();
    let recursive = module
        .functions
        .iter()
        .find(|f| f.name == "recursive")
        .unwrap();
    let (file, line) = lines.lookup(recursive.start).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        text.lines()
            .nth(line as usize - 1)
            .unwrap()
            .contains("recursive("),
        "{file}:{line}"
    );

    // Somebody else's debug file of that name is not believed.
    let Some(_other) = scratch.compile(
        "gcc",
        "unwound.c",
        "named.debug",
        &["-O1", "-g", "-Wl,--build-id"],
    ) else {
        return;
    };
    assert_eq!(source(&Module::load(&linked).unwrap()), None);
    assert!(thalweg_symbols::Lines::load(&stripped, "").is_empty());
}

#[test]
fn embedded_debug_data_gives_the_names_back() {
    let scratch = Scratch::new("debugdata");
    let Some(program) = scratch.compile("gcc", "shapes.c", "full", &["-O2"]) else {
        return;
    };
    let stripped = scratch.strip(&program);
    let mini = scratch.path("mini");
    run(Command::new("objcopy")
        .arg("--only-keep-debug")
        .arg(&program)
        .arg(&mini));
    if Command::new("xz").arg("-k").arg(&mini).status().is_err() {
        return;
    }
    let section = format!(".gnu_debugdata={}.xz", mini.display());
    run(Command::new("objcopy")
        .arg("--add-section")
        .arg(section)
        .arg(&stripped));
    let module = Module::load(&stripped).unwrap();
    let recursive = module
        .functions
        .iter()
        .find(|f| f.name == "recursive")
        .unwrap();
    assert_eq!(recursive.found_in, FoundIn::DebugData);
    compare_stripped(&alone(&program), &module);
}

#[test]
fn the_loader_is_told_from_other_modules() {
    for path in machine_files() {
        let expected = path
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with("ld-linux");
        assert_eq!(alone(&path).is_loader, expected, "{}", path.display());
    }
}

#[test]
fn without_section_headers_the_functions_are_still_found() {
    let scratch = Scratch::new("headerless");
    let Some(program) = scratch.compile("gcc", "shapes.c", "full", &["-O2"]) else {
        return;
    };
    let stripped = scratch.strip(&program);
    let whole = alone(&stripped);
    let mut data = std::fs::read(&stripped).unwrap();
    data[40..48].fill(0);
    data[60..64].fill(0);
    let bare = Module::parse("bare", &data, &DebugLookup::none()).unwrap();
    let normal = |m: &Module| -> Vec<(u64, u64)> {
        m.functions
            .iter()
            .filter(|f| f.kind == FunctionKind::Normal)
            .map(|f| (f.start, f.end))
            .collect()
    };
    let found = normal(&bare);
    assert!(normal(&whole).iter().all(|f| found.contains(f)));
    assert!(!whole.functions.is_empty());
    let text = object::File::parse(&*std::fs::read(&stripped).unwrap())
        .unwrap()
        .section_by_name(".text")
        .unwrap()
        .address();
    assert!(bare.section_at(text).unwrap().executable);
}
