//! What reports say where times come from samples.

use thalweg_model::{ProbeState, SampleNode, Sampling, Switched};

use super::*;

/// fib is off from its second level on, write for all but a moment; `never_called` is not patched.
fn sampled_ns() -> Profile {
    let mut profile = sample();
    profile.meta.sampling = Some(Sampling {
        period_ns: 2_004_007,
        samples: 40,
        cut_short: 2,
        in_probes: 3,
        ..Sampling::default()
    });
    profile.switched = vec![Switched {
        function: WRITE,
        state: ProbeState::Off,
        off_ns: 1_168_365_000,
        changes: 1,
    }];
    let frame = |parent, function, counted, own| SampleNode {
        parent,
        function,
        counted,
        own,
    };
    profile.processes[0].threads[0].samples = vec![
        frame(None, MAIN, true, 0),
        frame(Some(0), FIB, true, 1),
        frame(Some(1), WRITE, false, 2),
        frame(Some(1), FuncId(8), false, 3),
        frame(Some(3), FIB, true, 20),
        frame(Some(1), FIB, true, 4),
    ];
    assert!(thalweg_analysis::attribute_samples(&mut profile));
    profile
}

#[test]
fn golden_samples() {
    let profile = sampled_ns();
    let selection = by(&profile, SortKey::SelfTime);
    let mut found = text(|out| print_flat(&profile, &selection, &Columns::default(), out, PAPER));
    found.push('\n');
    found += &text(|out| print_tree(&profile, &by(&profile, SortKey::Total), out, PAPER));
    found.push('\n');
    found += &text(|out| print_summary(&profile, out, PAPER));
    assert_golden("samples", &found);
}

#[test]
fn scripts_are_told_which_figures_come_from_samples() {
    let profile = sampled_ns();
    let selection = by(&profile, SortKey::SelfTime);
    let flat: Value = serde_json::from_str(&text(|out| {
        write_json(None, &Flat::new(&profile, &selection, Callers::Listed), out)
    }))
    .unwrap();
    let row = |name: &str| {
        let rows = flat["functions"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == name);
        row.unwrap_or_else(|| panic!("{flat}")).clone()
    };
    assert_eq!(row("write")["samples"], 2);
    assert_eq!(row("never_called")["calls"], 0);
    assert_eq!(row("never_called")["samples"], 23);
    assert!(row("never_called")["self_error_ns"].as_u64() > Some(0));
    assert_eq!(row("is_even")["samples"], Value::Null);
    let tree: Value = serde_json::from_str(&text(|out| {
        write_json(None, &Tree::new(&profile, &selection), out)
    }))
    .unwrap();
    let marked = tree["threads"][0]["rows"]
        .as_array()
        .unwrap_or_else(|| panic!("{tree}"));
    let marked = marked.iter().filter(|node| node["sampled"] == true);
    assert_eq!(marked.count(), 3);
}
