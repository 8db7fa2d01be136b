//! The views of one function, of the threads, of the whole program and of two runs, against files as the others.

use thalweg_views::arcs::Stanzas;
use thalweg_views::callers_callees::{Around, Direction, Surroundings};
use thalweg_views::context::Contexts;
use thalweg_views::diff::Sides;
use thalweg_views::overview::Overview;
use thalweg_views::threads::{ThreadOrder, Threads};

use super::*;

#[test]
fn golden_arcs() {
    let profile = sample();
    let selection = by(&profile, SortKey::Total);
    let found = text(|out| print_arcs(&profile, &selection, false, out, PAPER));
    assert_golden("arcs", &found);
}

#[test]
fn golden_arcs_without_a_clock() {
    let profile = untimed();
    let mut selection = by(&profile, SortKey::Calls);
    selection.limit = Some(3);
    let found = text(|out| print_arcs(&profile, &selection, false, out, PAPER));
    assert_golden("arcs_no_clock", &found);
}

/// What is put into one row is still there.
#[test]
fn light_arcs_share_a_row_and_the_sums_hold() {
    let profile = sample();
    let mut selection = by(&profile, SortKey::Total);
    selection.functions = kept_functions(&profile, &named(&["^main$"]));
    selection.min_percent = Some(20.0);
    let found = text(|out| print_arcs(&profile, &selection, false, out, PAPER));
    let last = found.lines().find(|line| line.contains("(2 others)"));
    let last = last.unwrap_or_else(|| panic!("{found}"));
    assert!(
        last.contains("1,005") && last.contains("15.000 ms"),
        "{last}"
    );
}

#[test]
fn golden_callers_and_callees() {
    let profile = sample();
    let selection = by(&profile, SortKey::Total);
    let mut found = text(|out| {
        print_callers_callees(
            &profile,
            &[EVEN, FIB],
            Direction::Callers,
            &selection,
            out,
            PAPER,
        )
    });
    found.push('\n');
    found += &text(|out| {
        print_callers_callees(
            &profile,
            &[EVEN],
            Direction::Callees,
            &selection,
            out,
            PAPER,
        )
    });
    assert_golden("callers_callees", &found);
}

#[test]
fn golden_context() {
    let profile = sample();
    let mut chosen = wanted(&profile, "_M_insert").unwrap();
    chosen.extend(wanted(&profile, "main -> fib").unwrap());
    let found = text(|out| print_context(&profile, &chosen, out, PAPER));
    assert_golden("context", &found);
}

#[test]
fn golden_threads() {
    let profile = sample();
    let found = text(|out| {
        print_threads(
            &profile,
            &Threads::new(&profile, ThreadOrder::SelfTime, None),
            out,
            PAPER,
        )
    });
    assert_golden("threads", &found);
}

#[test]
fn golden_overview() {
    let profile = sample();
    let mut selection = by(&profile, SortKey::SelfTime);
    selection.limit = Some(4);
    let found = text(|out| {
        print_overview(
            &profile,
            &Overview::new(&profile, None, &selection),
            selection.limit,
            out,
            PAPER,
        )
    });
    assert_golden("overview", &found);
}

#[test]
fn golden_flat_of_chosen_fields() {
    let profile = sample();
    let selection = by(&profile, SortKey::Mean);
    let columns = Columns {
        fields: vec![Field::Name, Field::Mean, Field::Threads, Field::Recursion],
        wide: false,
    };
    let found = text(|out| print_flat(&profile, &selection, &columns, out, PAPER));
    assert_golden("flat_fields", &found);
}

fn slower() -> Profile {
    let mut profile = sample();
    let nodes = &mut profile.processes[0].threads[0].nodes;
    nodes[7].self_ns *= 3;
    nodes[7].calls += 500;
    profile
}

fn sides<'a>(diff: &'a thalweg_analysis::Diff, runs: usize, contexts: bool) -> Sides<'a> {
    Sides {
        diff,
        timed: true,
        before: runs,
        after: runs,
        contexts,
        all: false,
        limit: Some(5),
        keeps: vec![true; diff.names.len()],
    }
}

#[test]
fn golden_diff() {
    let one = thalweg_analysis::diff(&[sample()], &[slower()]);
    let several = thalweg_analysis::diff(&[sample(), sample()], &[slower(), slower()]);
    let mut found = text(|out| {
        print_diff(
            &sides(&one, 1, false).changes(),
            Weights::by(None),
            out,
            PAPER,
        )
    });
    found.push('\n');
    found += &text(|out| {
        print_diff(
            &sides(&several, 2, true).changes(),
            Weights::by(None),
            out,
            PAPER,
        )
    });
    assert_golden("diff", &found);
}

#[test]
fn golden_json_of_the_views() {
    let profile = sample();
    let mut selection = by(&profile, SortKey::Total);
    selection.limit = Some(2);
    let diff = thalweg_analysis::diff(&[sample()], &[slower()]);
    let chosen = wanted(&profile, "worker").unwrap();
    let reports = [
        text(|out| write_json(None, &Stanzas::new(&profile, &selection), out)),
        text(|out| {
            let callers = Direction::Callers;
            let around = [Surroundings::new(&profile, ODD, callers, None)];
            write_json(None, &Around::new(true, &around, callers, &selection), out)
        }),
        text(|out| write_json(None, &Contexts::new(&profile, &chosen), out)),
        text(|out| {
            let threads = Threads::new(&profile, ThreadOrder::Number, None);
            write_json(None, &threads, out)
        }),
        text(|out| write_json(None, &Overview::new(&profile, None, &selection), out)),
        text(|out| write_json(None, &sides(&diff, 1, true).changes(), out)),
    ];
    let mut all = String::new();
    for report in reports {
        let value: Value = serde_json::from_str(&report).unwrap();
        all.push_str(&serde_json::to_string_pretty(&value).unwrap());
        all.push('\n');
    }
    assert_golden("json_views", &all);
}

#[test]
fn a_name_means_itself_before_it_means_a_pattern() {
    let profile = sample();
    assert_eq!(
        functions_matching(&profile, "--callers", "fib").unwrap(),
        [FIB]
    );
    assert_eq!(
        functions_matching(&profile, "--callers", "^is_").unwrap(),
        [EVEN, ODD]
    );
    let error = functions_matching(&profile, "--callers", "never_called").unwrap_err();
    assert!(error.to_string().contains("never_called"), "{error}");
    let error = functions_matching(&profile, "--callers", "(").unwrap_err();
    assert!(error.to_string().contains("given to --callers"), "{error}");
    let error = wanted(&profile, "fib -> main").unwrap_err();
    assert_eq!(
        error.to_string(),
        "'fib' never called 'main', nor made a thread that began in it"
    );
}

#[test]
fn no_line_of_the_views_is_wider_than_the_terminal() {
    let profile = sample();
    let terminal = Style {
        width: Some(100),
        colour: false,
    };
    let selection = by(&profile, SortKey::SelfTime);
    let diff = thalweg_analysis::diff(&[sample()], &[slower()]);
    let chosen = wanted(&profile, "_M_insert").unwrap();
    let all = text(|out| {
        print_arcs(&profile, &selection, false, out, terminal)?;
        print_context(&profile, &chosen, out, terminal)?;
        print_threads(
            &profile,
            &Threads::new(&profile, ThreadOrder::Number, None),
            out,
            terminal,
        )?;
        print_overview(
            &profile,
            &Overview::new(&profile, None, &selection),
            selection.limit,
            out,
            terminal,
        )?;
        print_diff(
            &sides(&diff, 1, true).changes(),
            Weights::by(None),
            out,
            terminal,
        )
    });
    for line in all
        .lines()
        .filter(|line| !line.starts_with("one run") && !line.starts_with("  "))
    {
        assert!(line.chars().count() <= 100, "{line}");
    }
}
