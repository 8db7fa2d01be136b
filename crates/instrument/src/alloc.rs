//! Which functions allocate and free, known by their names. What is done at such a function is in the agent's `alloc.rs`;
//! the figures that it left beside the contexts that called them are read by `allocations.rs`.

use std::collections::HashSet;

use thalweg_abi as shm;
use thalweg_abi::alloc::kind;
use thalweg_patch::{FunctionPlan, ModulePlan, Probe};
use thalweg_symbols::{Function, FunctionKind, Module};

use crate::survey::Surveyed;

/// Functions by which a program asks for its own figures: see `shm::totals`.
pub fn asking(module: &Module) -> Vec<(usize, u32)> {
    let functions = module.functions.iter().enumerate();
    functions
        .filter_map(|(index, function)| Some((index, question(function)?)))
        .collect()
}

pub fn question(function: &Function) -> Option<u32> {
    match function.name.as_str() {
        "thalweg_answer_thread" | "thalweg_self::answer_thread" => Some(shm::totals::OF_THREAD),
        "thalweg_answer_process" | "thalweg_self::answer_process" => Some(shm::totals::OF_PROCESS),
        _ => None,
    }
}

/// Functions of a module that allocate or free: index in `module.functions` and one of `shm::alloc::kind`.
pub fn allocators(module: &Module) -> Vec<(usize, u32)> {
    let functions = module.functions.iter().enumerate();
    functions
        .filter_map(|(index, function)| Some((index, kind_of(function)?)))
        .collect()
}

/// Whether a program may get its memory from this module. A loader has its own, but musl's is the C library, too: it is left alone, and its
/// allocators are named as such.
pub fn serves_programs(module: &Module) -> bool {
    let mut functions = module.functions.iter();
    !module.is_loader || functions.any(|function| function.name == "__libc_start_main")
}

/// Selects the functions that allocators jump to, which return in their place (`memalign` -> `_mid_memalign`), and says
/// whether there were any that a filter had left out. `chain`: the allocators, and what was selected so far.
pub fn select_jumps(
    module: &Module,
    plan: &ModulePlan,
    chain: &mut HashSet<usize>,
    selected: &mut [bool],
) -> bool {
    let before = chain.len();
    let jumpers = plan
        .functions
        .iter()
        .filter(|p| chain.contains(&p.function));
    for plan in jumpers.collect::<Vec<_>>() {
        let events = plan.windows.iter().flat_map(|window| &window.events);
        for exit in events.filter(|event| event.probe == Probe::Exit) {
            let target = jump_target(module, exit.at);
            let found = target.and_then(|target| {
                let functions = &module.functions;
                functions.binary_search_by_key(&target, |f| f.start).ok()
            });
            if let Some(to) = found
                && !selected[to]
                && module.functions[to].kind == FunctionKind::Normal
            {
                selected[to] = true;
                chain.insert(to);
            }
        }
    }
    chain.len() > before
}

/// Where the direct jump at `at` leads.
fn jump_target(module: &Module, at: u64) -> Option<u64> {
    let near = |opcode: u64| {
        let bytes = module.bytes_at(at + opcode, 4)?;
        let distance = i32::from_le_bytes(bytes.try_into().ok()?);
        Some(
            at.wrapping_add(opcode + 4)
                .wrapping_add_signed(distance.into()),
        )
    };
    let short = || {
        let distance = *module.bytes_at(at + 1, 1)?.first()? as i8;
        Some(at.wrapping_add(2).wrapping_add_signed(distance.into()))
    };
    match *module.bytes_at(at, 2)? {
        [0xe9, _] => near(1),
        [0x0f, 0x80..=0x8f] | [0xf2, 0xe9] => near(2),
        [0xeb | 0x70..=0x7f, _] => short(),
        _ => None,
    }
}

/// What is missing because allocators could not be patched.
pub fn unfollowed(surveyed: &Surveyed) -> Option<String> {
    let is_followed = |function: usize| {
        let mut plans = surveyed.plan.functions.iter();
        plans.any(|plan| plan.function == function && !enters_in_a_loop(plan))
    };
    let missed = surveyed.allocators.iter().map(|(function, _)| *function);
    let names: Vec<&str> = missed
        .filter(|function| !is_followed(*function))
        .map(|function| surveyed.module.functions[function].name.as_str())
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "what these allocate or free is not counted, because they cannot be followed: {} of {}",
            names.join(", "),
            surveyed.module.name
        )
    })
}

/// A function that jumps back to its entry is not asked there what it was called with.
fn enters_in_a_loop(plan: &FunctionPlan) -> bool {
    let events = plan.windows.iter().flat_map(|window| &window.events);
    let mut probes = events.map(|event| event.probe);
    probes.any(|probe| matches!(probe, Probe::Entry { loops: true, .. }))
}

/// Whether and how a function allocates.
pub fn kind_of(function: &Function) -> Option<u32> {
    if !matches!(function.kind, FunctionKind::Normal) {
        return None;
    }
    let name = function.linkage_name.as_deref()?;
    of_c(name)
        .or_else(|| of_cpp(name))
        .or_else(|| of_rust(name))
}

/// The C library's, and those of allocators that have its functions under names of their own.
fn of_c(name: &str) -> Option<u32> {
    // An allocator's own names: jemalloc, tcmalloc, mimalloc, glibc.
    const PREFIXES: [&str; 8] = [
        "__libc_",
        "__GI___libc_",
        "__GI_",
        "__",
        "je_",
        "tc_",
        "mi_",
        "rpmalloc_",
    ];
    let bare = PREFIXES
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name);
    Some(match bare {
        "malloc" | "valloc" | "pvalloc" | "mallocx" | "zalloc" | "malloc_small"
        | "zalloc_small" => kind::SIZE,
        "calloc" => kind::PRODUCT,
        "memalign" | "aligned_alloc" => kind::SECOND,
        "posix_memalign" => kind::POSIX,
        "realloc" | "rallocx" => kind::RESIZE,
        "reallocarray" => kind::RESIZE_PRODUCT,
        "free" | "cfree" | "dallocx" | "sdallocx" => kind::FREE,
        // Under these names of theirs only.
        _ => return of_others(name),
    })
}

fn of_others(name: &str) -> Option<u32> {
    Some(match name {
        "mmap" | "mmap64" | "__mmap" | "__mmap64" => kind::MAP,
        "munmap" | "__munmap" => kind::UNMAP,
        "mremap" | "__mremap" => kind::REMAP,
        "tc_new"
        | "tc_newarray"
        | "tc_new_nothrow"
        | "tc_newarray_nothrow"
        | "tc_new_aligned"
        | "tc_newarray_aligned"
        | "tc_new_aligned_nothrow"
        | "tc_newarray_aligned_nothrow"
        | "tc_malloc_skip_new_handler" => kind::SIZE,
        "tc_delete"
        | "tc_deletearray"
        | "tc_delete_nothrow"
        | "tc_deletearray_nothrow"
        | "tc_delete_sized"
        | "tc_deletearray_sized"
        | "tc_delete_aligned"
        | "tc_deletearray_aligned"
        | "tc_delete_aligned_nothrow"
        | "tc_deletearray_aligned_nothrow"
        | "tc_delete_sized_aligned"
        | "tc_deletearray_sized_aligned"
        | "tc_free_sized" => kind::FREE,
        "mi_malloc_aligned"
        | "mi_zalloc_aligned"
        | "mi_new"
        | "mi_new_aligned"
        | "mi_new_nothrow"
        | "mi_new_aligned_nothrow" => kind::SIZE,
        "mi_mallocn" | "mi_new_n" | "mi_calloc_aligned" => kind::PRODUCT,
        "mi_realloc_aligned" | "mi_reallocf" | "mi_rezalloc" | "mi_rezalloc_aligned" => {
            kind::RESIZE
        }
        "mi_heap_malloc" | "mi_heap_zalloc" => kind::SECOND,
        "mi_reallocn" | "mi_recalloc" | "mi_recalloc_aligned" => kind::RESIZE_PRODUCT,
        "mi_free_size" | "mi_free_aligned" | "mi_free_size_aligned" => kind::FREE,
        _ => return None,
    })
}

/// Every form of `operator new` has the size first, every form of `operator delete` the block.
fn of_cpp(name: &str) -> Option<u32> {
    const FORMS: [&str; 4] = [
        "",
        "RKSt9nothrow_t",
        "St11align_val_t",
        "St11align_val_tRKSt9nothrow_t",
    ];
    let is_form = |rest: &str| FORMS.contains(&rest);
    if let Some(rest) = name.strip_prefix("_Znwm").or(name.strip_prefix("_Znam")) {
        return is_form(rest).then_some(kind::SIZE);
    }
    let rest = name
        .strip_prefix("_ZdlPv")
        .or(name.strip_prefix("_ZdaPv"))?;
    let sized = rest.strip_prefix('m').is_some_and(is_form);
    (sized || is_form(rest)).then_some(kind::FREE)
}

/// What Rust's compiler calls, mangled or not.
fn of_rust(name: &str) -> Option<u32> {
    let plain = match name.strip_prefix("_RN") {
        Some(mangled) => mangled.split("7___rustc").nth(1)?,
        None => name,
    };
    let plain = plain.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_');
    Some(match plain {
        "rust_alloc" | "rdl_alloc" | "rg_alloc" | "rust_alloc_zeroed" | "rdl_alloc_zeroed"
        | "rg_alloc_zeroed" => kind::SIZE,
        "rust_realloc" | "rdl_realloc" | "rg_realloc" => kind::RESIZE_FOURTH,
        "rust_dealloc" | "rdl_dealloc" | "rg_dealloc" => kind::FREE,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_by_name(name: &str) -> Option<u32> {
        of_c(name)
            .or_else(|| of_cpp(name))
            .or_else(|| of_rust(name))
    }

    #[test]
    fn allocators_are_known_by_the_names_that_they_have() {
        for (names, kind) in [
            (
                &[
                    "malloc",
                    "__libc_malloc",
                    "je_malloc",
                    "_Znwm",
                    "_ZnamSt11align_val_tRKSt9nothrow_t",
                    "tc_new",
                    "tc_newarray_aligned_nothrow",
                    "__rdl_alloc",
                    "_RNvCs3lV0bBcvvQi_7___rustc12___rust_alloc",
                ][..],
                kind::SIZE,
            ),
            (&["calloc", "mi_calloc", "__libc_calloc"], kind::PRODUCT),
            (&["aligned_alloc", "__libc_memalign"], kind::SECOND),
            (&["posix_memalign", "__posix_memalign"], kind::POSIX),
            (&["realloc", "tc_realloc", "rallocx"], kind::RESIZE),
            (
                &[
                    "free",
                    "cfree",
                    "__libc_free",
                    "_ZdlPv",
                    "_ZdaPvmSt11align_val_t",
                    "sdallocx",
                    "__rust_dealloc",
                ],
                kind::FREE,
            ),
            (&["mmap64"], kind::MAP),
        ] {
            for name in names {
                assert_eq!(kind_by_name(name), Some(kind), "{name}");
            }
        }
        for name in [
            "mallocate",
            "_Znwmx",
            "_ZdlPvmm",
            "je_mmap",
            "freeaddrinfo",
            "xmalloc",
            "rust_allocate",
        ] {
            assert_eq!(kind_by_name(name), None, "{name}");
        }
    }
}
