//! What the river shows and what it leaves out; the picture is the same every time.

mod support;

use support::{profile, tree};
use thalweg_formats::graph::{Choice, Look, River, draw, png, river, svg};
use thalweg_model::{Process, Profile, Thread};

fn stream(river: &River, from: &str, to: &str, profile: &Profile) -> Option<(u64, u64)> {
    let name = |bank: usize| match river.banks[bank].function {
        Some(function) => profile.functions[function as usize].name.as_str(),
        None => "START",
    };
    let found = river
        .streams
        .iter()
        .find(|stream| name(stream.from) == from && name(stream.to) == to)?;
    Some((found.calls, found.time))
}

#[test]
fn each_arc_carries_the_time_of_its_own_calls_and_no_average() {
    // Ten calls by easy took 1,000 ns, one call by hard took 120,600.
    let profile = profile();
    let river = river(&profile, &Choice::default());
    assert_eq!(stream(&river, "easy", "work", &profile), Some((10, 1_000)));
    assert_eq!(stream(&river, "hard", "work", &profile), Some((4, 120_600)));
    assert_eq!(
        stream(&river, "START", "main", &profile),
        Some((1, 121_755))
    );
}

#[test]
fn what_is_below_the_cutoff_is_collapsed_into_its_callers_and_nothing_is_lost() {
    let profile = profile();
    let all = river(
        &profile,
        &Choice {
            cutoff: Some(0.0),
            root: None,
            ..Choice::default()
        },
    );
    let few = river(
        &profile,
        &Choice {
            cutoff: Some(0.1),
            root: None,
            ..Choice::default()
        },
    );
    assert!(few.banks.len() < all.banks.len());
    let sum = |river: &River| -> u64 { river.banks.iter().map(|bank| bank.own).sum() };
    assert_eq!(sum(&few), sum(&all));
    assert_eq!(sum(&few), few.whole);
    // easy is not shown; main takes its place as the caller of work.
    assert_eq!(stream(&few, "main", "work", &profile), Some((10, 1_000)));
}

#[test]
fn a_virtual_root_is_the_whole() {
    let profile = profile();
    let hard = 2;
    let below = river(
        &profile,
        &Choice {
            cutoff: Some(0.0),
            root: Some(hard),
            ..Choice::default()
        },
    );
    assert_eq!(below.banks[0].function, Some(hard));
    assert_eq!(below.whole, 120_650);
    assert_eq!(below.share(below.banks[0].total), 1.0);
    assert_eq!(stream(&below, "hard", "work", &profile), Some((4, 120_600)));
    assert_eq!(stream(&below, "main", "hard", &profile), None);
}

#[test]
fn about_thirty_functions_are_shown_unless_told_otherwise() {
    let mut profile = profile();
    let function = profile.functions[0].clone();
    profile.functions = vec![function; 500];
    let mut contexts = vec![(None, 0, 1, 1)];
    contexts.extend((1..500).map(|index| (Some(0), index, 1, 1_000 + u64::from(index))));
    profile.processes = vec![Process {
        threads: vec![Thread {
            nodes: tree(&contexts),
            ..Thread::default()
        }],
        ..Process::default()
    }];
    let river = river(&profile, &Choice::default());
    assert!(
        (28..=32).contains(&river.banks.len()),
        "{}",
        river.banks.len()
    );
    assert_eq!(river.hidden_functions, 500 + 1 - river.banks.len());
}

#[test]
fn the_same_profile_gives_the_same_picture() {
    let profile = profile();
    let picture = || {
        let scene = draw(
            &profile,
            &river(&profile, &Choice::default()),
            &Look::default(),
        );
        let (mut text, mut pixels) = (Vec::new(), Vec::new());
        svg::write(&scene, &mut text).unwrap();
        png::write(&scene, 1.0, &mut pixels).unwrap();
        (text, pixels)
    };
    let (text, pixels) = picture();
    assert_eq!((text, pixels.clone()), picture());
    let decoded = tiny_skia::Pixmap::decode_png(&pixels).unwrap();
    let first = decoded.pixels()[0];
    assert!(
        decoded.pixels().iter().any(|pixel| *pixel != first),
        "it is blank"
    );
}

#[test]
fn a_profile_without_times_flows_by_calls() {
    let mut profile = profile();
    profile.meta.timed = false;
    let river = river(
        &profile,
        &Choice {
            cutoff: Some(0.0),
            root: None,
            ..Choice::default()
        },
    );
    assert_eq!(stream(&river, "easy", "work", &profile), Some((10, 10)));
    assert!(draw(&profile, &river, &Look::default()).width > 0.0);
}

#[test]
fn an_empty_profile_is_an_empty_picture_and_no_panic() {
    let nothing = Profile::default();
    let scene = draw(
        &nothing,
        &river(&nothing, &Choice::default()),
        &Look::default(),
    );
    let mut text = Vec::new();
    svg::write(&scene, &mut text).unwrap();
    assert!(text.starts_with(b"<svg"));
}
