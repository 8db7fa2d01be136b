//! A crash never shows half a profile, and nothing is lost.

use crate::support::{Place, ask, profile, push, recorded, run, stored_totals, succeed, totals};

#[test]
fn a_push_that_is_killed_shows_nothing_and_is_pushed_again() {
    let place = Place::new();
    // Marker, contexts, figures: killed after each object.
    for objects in 1..=2 {
        let store = format!("{}-{objects}", place.store());
        let mut killed = push(&store, "a", recorded(500));
        let output = run(killed.env("THALWEG_TEST_KILL_AFTER", objects.to_string()));
        let is_last = objects == 2;
        assert!(output.status.code().is_none(), "it was killed: {output:?}");
        let seen = ask(&store, "select count(*) from profiles");
        assert_eq!(
            seen,
            [if is_last { "1" } else { "0" }],
            "after {objects} objects"
        );
        succeed(&mut push(&store, "a", recorded(500)));
        assert_eq!(stored_totals(&store, "true"), totals(profile(500)));
    }
}

#[test]
fn two_that_push_at_once_do_not_meet() {
    let place = Place::new();
    let store = place.store();
    let all: Vec<_> = (0..6)
        .map(|number| {
            let host = ["a", "b", "c"][number % 3];
            push(&store, host, recorded(500)).spawn().expect("it runs")
        })
        .collect();
    for mut one in all {
        assert!(one.wait().expect("it ends").success());
    }
    assert_eq!(
        ask(
            &store,
            "select count(*), count(distinct host) from profiles"
        ),
        ["3,3"]
    );
    for host in ["a", "b", "c"] {
        assert_eq!(
            stored_totals(&store, &format!("host = '{host}'")),
            totals(profile(500))
        );
    }
}

#[test]
fn calls_of_a_push_that_was_killed_are_no_profiles() {
    let place = Place::new();
    let store = place.store();
    // As a push that was killed leaves them: the file of calls is there, that of figures is not.
    let mut with_calls = profile(5000);
    let function = with_calls.processes[0].threads[0].nodes[0].function;
    with_calls.recorded.calls.push(thalweg_model::Call {
        id: 7,
        function,
        exit_ns: 10,
        ..Default::default()
    });
    let file = place.path("calls.thalweg");
    thalweg_model::write_file(&file, &with_calls).expect("written");
    // Contexts, then calls.
    let output = run(push(&store, "b", &file).env("THALWEG_TEST_KILL_AFTER", "2"));
    assert!(output.status.code().is_none(), "it was killed: {output:?}");
    assert_eq!(ask(&store, "select count(*) from stored_calls"), ["1"]);
    assert_eq!(ask(&store, "select count(*) from calls"), ["0"]);
    succeed(&mut push(&store, "b", &file));
    assert_eq!(
        ask(&store, "select \"call\", total_ns from calls"),
        ["7,10"]
    );
}
