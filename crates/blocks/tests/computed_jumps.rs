//! Jumps to places that are computed: what leads into the middle of code is left alone, what leaves the function is not.

use std::path::Path;
use std::process::Command;

use thalweg_blocks::{Others, plan};
use thalweg_patch::SkipReason;
use thalweg_symbols::Module;

#[test]
fn a_jump_into_the_middle_of_code_is_told_from_a_tail_call() {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/targets");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("computed_jumps");
    let output = Command::new("gcc")
        .args(["-O1", "-o"])
        .arg(&program)
        .arg(targets.join("computed_jumps.c"))
        .arg(targets.join("computed_jumps_asm.S"))
        .output()
        .expect("a compiler");
    assert!(output.status.success(), "{output:?}");
    let module = Module::load(&program).expect("an ELF file");
    let all = vec![true; module.functions.len()];
    let plan = plan(&module, &all, &Others::default(), true);
    let function = |name: &str| {
        let mut functions = module.functions.iter();
        functions.position(|f| f.name == name).expect(name)
    };
    for name in ["forwards", "backwards", "moved"] {
        let mut skipped = plan.skipped.iter();
        let skipped = skipped.find(|skipped| skipped.function == function(name));
        let reason = skipped.map(|skipped| &skipped.reason);
        let is_unresolved = matches!(reason, Some(SkipReason::UnresolvedJump { .. }));
        assert!(is_unresolved, "{name}: {reason:?}");
    }
    for name in ["through", "main"] {
        assert!(plan.functions.contains(&function(name)), "{name}");
    }
}
