//! The CFA table against gimli's full unwind rows and, for libc, stripped discovery against its own
//! debug file.

mod support;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, LittleEndian, UnwindContext, UnwindSection, X86_64,
};
use std::path::Path;
use support::machine_files;
use thalweg_symbols::{DebugLookup, FoundIn, FunctionKind, Module};

#[test]
fn the_table_agrees_with_full_unwind_rows_everywhere() {
    for path in machine_files() {
        let module =
            Module::parse("m", &std::fs::read(&path).unwrap(), &DebugLookup::none()).unwrap();
        let Some(range) = &module.eh_frame else {
            continue;
        };
        let bytes = module
            .bytes_at(range.start, range.end - range.start)
            .unwrap();
        let text = module
            .sections
            .iter()
            .find(|s| s.name == ".text")
            .unwrap()
            .vaddr;
        let bases = BaseAddresses::default()
            .set_eh_frame(range.start)
            .set_text(text);
        let section = EhFrame::new(bytes, LittleEndian);
        let mut entries = section.entries(&bases);
        let mut context = UnwindContext::new();
        let mut rows_compared = 0;
        while let Some(entry) = entries.next().unwrap() {
            let CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let fde = partial
                .parse(|s: &EhFrame<_>, b, o| s.cie_from_offset(b, o))
                .unwrap();
            if fde.initial_address() == 0 || fde.len() == 0 {
                continue;
            }
            let mut rows = fde.rows(&section, &bases, &mut context).unwrap();
            while let Some(row) = rows.next_row().unwrap() {
                let plus_8 = matches!(
                    row.cfa(),
                    CfaRule::RegisterAndOffset {
                        register: X86_64::RSP,
                        offset: 8
                    }
                );
                for address in [row.start_address(), row.end_address() - 1] {
                    let found = module.cfi.cfa_is_rsp_plus_8(address);
                    assert_eq!(found, Some(plus_8), "{}: {address:x}", path.display());
                }
                rows_compared += 1;
            }
        }
        assert!(rows_compared > 0, "{}", path.display());
    }
}

#[test]
fn a_function_begins_with_the_frame_that_a_call_makes() {
    for path in machine_files() {
        let module =
            Module::parse("m", &std::fs::read(&path).unwrap(), &DebugLookup::none()).unwrap();
        for function in module
            .functions
            .iter()
            .filter(|f| f.kind == FunctionKind::Normal)
        {
            assert_ne!(
                module.cfi.cfa_is_rsp_plus_8(function.start),
                Some(false),
                "{function:x?}"
            );
        }
    }
}

/// Where the distribution's debug file is installed, it tells what the stripped libc really
/// contains.
#[test]
fn nearly_all_functions_of_a_stripped_libc_are_found() {
    let path = Path::new("/usr/lib/x86_64-linux-gnu/libc.so.6");
    let Ok(whole) = Module::load(path) else {
        return;
    };
    if !whole
        .functions
        .iter()
        .any(|f| f.found_in == FoundIn::DebugLink)
    {
        return;
    }
    let data = std::fs::read(path).unwrap();
    let bare = Module::parse("libc.so.6", &data, &DebugLookup::none()).unwrap();
    let mut missing = Vec::new();
    for function in whole
        .functions
        .iter()
        .filter(|f| f.kind == FunctionKind::Normal)
    {
        let found = bare.function_at(function.start).map(|i| &bare.functions[i]);
        if found.is_none_or(|f| (f.start, f.end) != (function.start, function.end)) {
            missing.push(&function.name);
        }
    }
    println!(
        "{} of {}: {missing:?}",
        missing.len(),
        whole.functions.len()
    );
    assert!(missing.len() * 1000 < whole.functions.len(), "{missing:?}");
}
