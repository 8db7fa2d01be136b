//! Stores that are looked after answer as before.

use crate::support::{Place, dated, files, fleet, push, run, stored_totals, succeed};

fn filled(place: &Place) -> String {
    let store = place.store();
    for day in ["2026-01-10", "2026-01-11"] {
        for hour in ["01", "02", "03"] {
            let file = dated(place.0.path(), 500, &format!("{day}T{hour}:00:00Z"));
            succeed(&mut push(&store, "a", &file));
        }
    }
    store
}

#[test]
fn a_compaction_changes_no_answer_wherever_it_is_killed() {
    let place = Place::new();
    let store = filled(&place);
    let expected = stored_totals(&store, "true");
    let rows = files(&place.path("store/figures")).len();
    assert_eq!(rows, 6);
    let mut killed = 0;
    for step in 1..=20 {
        let mut compact = fleet();
        compact
            .args(["store", "compact", &store])
            .env("THALWEG_TEST_KILL_AFTER", step.to_string());
        let output = run(&mut compact);
        assert_eq!(
            stored_totals(&store, "true"),
            expected,
            "killed at step {step}"
        );
        if output.status.success() {
            break;
        }
        assert!(output.status.code().is_none(), "it was killed: {output:?}");
        killed += 1;
    }
    assert!(killed > 3, "killed only {killed} times");
    assert_eq!(
        files(&place.path("store/figures")).len(),
        2,
        "one file a day"
    );
    assert!(files(&place.path("store/compactions")).is_empty());
}

#[test]
fn what_is_old_goes_and_what_is_not_stays() {
    let place = Place::new();
    let store = filled(&place);
    let today = jiff::Timestamp::now().to_string();
    succeed(&mut push(&store, "a", &dated(place.0.path(), 500, &today)));
    let new = stored_totals(&store, "date > '2026-02-01'");
    succeed(fleet().args(["store", "expire", &store, "--older-than", "2d"]));
    assert_eq!(stored_totals(&store, "true"), new);
    assert_eq!(files(&place.path("store/figures")).len(), 1);
}
