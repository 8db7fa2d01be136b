//! Threads that set their GS base after an attach, and threads without a thread pointer.

use crate::filters::{
    BEFORE, RETIRED, WAYS, limits, limits_without_names, survives, survives_attached,
};

#[test]
fn a_gs_base_by_every_way() {
    let program = limits();
    for by in WAYS.into_iter().chain(["wrgsbase"]) {
        let recorded = survives(&program, &["gs", by], &[RETIRED]);
        let calls = recorded.profile.calls_by_name();
        assert_eq!(calls.get("work"), Some(&BEFORE), "{by}");
    }
    survives(&program, &["gs", "bare", "crowd"], &[RETIRED]);
    survives_attached(&program, &["gs", "wrgsbase"]);
}

#[test]
fn a_gs_base_of_a_program_without_names() {
    let program = limits_without_names();
    for by in ["wrapper", "bare", "wrgsbase"] {
        survives(&program, &["gs", by], &[RETIRED]);
    }
}

#[test]
fn a_child_without_a_thread_pointer() {
    let program = limits();
    let recorded = survives(&program, &["notls", "wrapper"], &[RETIRED]);
    let calls = recorded.profile.calls_by_name();
    assert_eq!(calls.get("work"), Some(&BEFORE));
    survives_attached(&program, &["notls", "wrapper"]);
}
