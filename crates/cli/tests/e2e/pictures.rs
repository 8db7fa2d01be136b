//! `thalweg graph` on real recordings: what is drawn is what was counted, and every mark can be read.

use crate::support::build::Build;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, refuse, succeed, text};
use regex::Regex;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn path(file: &Path) -> &str {
    file.to_str().expect("UTF-8")
}

fn recorded(scratch: &Scratch, source: &str) -> PathBuf {
    let file = scratch.join("profile.thalweg");
    let output = command()
        .args(["record", "-q", "--no-report", "-o", path(&file), "--"])
        .arg(&Build::simple(source).path)
        .output()
        .expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    file
}

/// Values of an attribute in all elements of this name.
fn attributes(svg: &str, element: &str, attribute: &str) -> Vec<String> {
    let pattern = Regex::new(&format!(r#"<{element} [^>]*?{attribute}="([^"]*)""#)).expect("regex");
    pattern
        .captures_iter(svg)
        .map(|found| found[1].to_owned())
        .collect()
}

/// Left, top, right and bottom.
type Area = [f64; 4];

fn number(element: &str, attribute: &str) -> Option<f64> {
    let pattern = Regex::new(&format!(r#" {attribute}="([^"]*)""#)).expect("regex");
    pattern.captures(element)?[1].parse().ok()
}

fn boxes(svg: &str) -> Vec<Area> {
    svg.lines()
        .filter(|line| line.starts_with("<rect x="))
        .map(|line| {
            let of = |name| number(line, name).expect("a number");
            let (x, y) = (of("x"), of("y"));
            [x, y, x + of("width"), y + of("height")]
        })
        .collect()
}

/// The marks of recursion and the room that they take.
fn marks(svg: &str) -> Vec<(u64, Area)> {
    let mark = Regex::new(r">rc=([\d,]+)</text>").expect("regex");
    svg.lines()
        .filter_map(|line| {
            let calls = mark.captures(line)?[1].replace(',', "").parse().ok()?;
            let of = |name| number(line, name).expect("a number");
            let (x, y, length, size) = (of("x"), of("y"), of("textLength"), of("font-size"));
            let left = match () {
                () if line.contains("\"end\"") => x - length,
                () if line.contains("\"middle\"") => x - length / 2.0,
                () => x,
            };
            Some((
                calls,
                [left, y - size * 0.75, left + length, y + size * 0.2],
            ))
        })
        .collect()
}

fn overlap(a: &Area, b: &Area) -> bool {
    a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]
}

#[test]
fn recursion_is_marked_with_its_exact_count_and_no_mark_covers_anything() {
    let scratch = Scratch::new();
    let file = recorded(&scratch, "recursion.c");
    let svg = succeed(&["graph", path(&file), "--cutoff", "0"]);
    assert!(svg.contains(">START</text>"));
    let marks = marks(&svg);
    let arcs = succeed(&["report", "--arcs", "--json", path(&file)]);
    let arcs: Value = serde_json::from_str(&arcs).expect("JSON");
    for stanza in arcs["stanzas"].as_array().expect("stanzas") {
        let parents = stanza["parents"].as_array().expect("parents");
        if let Some(own) = parents.iter().find(|arc| arc["name"] == stanza["name"]) {
            let found = marks.iter().any(|(count, _)| own["calls"] == *count);
            assert!(found, "rc= of {own} is missing: {marks:?}");
        }
    }
    assert!(marks.len() >= 6, "{marks:?}");
    let boxes = boxes(&svg);
    for (index, (calls, area)) in marks.iter().enumerate() {
        for other in &boxes {
            assert!(!overlap(area, other), "rc={calls} covers a box");
        }
        for (other, covered) in &marks[..index] {
            assert!(!overlap(area, covered), "rc={calls} covers rc={other}");
        }
    }

    // Graphviz reads the same graph, with the same marks.
    let dot = scratch.join("graph.dot");
    succeed(&["graph", path(&file), "--cutoff", "0", "-o", path(&dot)]);
    let words = std::fs::read_to_string(&dot).expect("a file");
    for (calls, _) in &marks {
        assert!(words.contains(&format!("rc={calls}\"")), "rc={calls}");
    }
    let drawn = Command::new("dot").args(["-Tsvg", path(&dot)]).output();
    let drawn = drawn.expect("graphviz is installed by .ci/install");
    assert!(drawn.status.success(), "{}", text(&drawn));
    assert!(String::from_utf8_lossy(&drawn.stdout).contains("START"));
}

#[test]
fn arcs_are_as_wide_as_the_rule_says() {
    let scratch = Scratch::new();
    let file = recorded(&scratch, "shared_time.c");
    let widths = |rule: &str| -> Vec<f64> {
        let svg = succeed(&[
            "graph",
            path(&file),
            "--cutoff",
            "0",
            "--unit",
            "2",
            "-w",
            rule,
        ]);
        attributes(&svg, "path", "stroke-width")
            .iter()
            .map(|width| width.parse().expect("a number"))
            .collect()
    };
    let widest = |widths: &[f64]| widths.iter().copied().fold(0.0, f64::max);
    // What runs before and after `main` takes its share.
    let whole = widest(&widths("linear"));
    assert!((19.8..=20.0).contains(&whole), "the whole is ten units");
    assert_eq!(widest(&widths("log")), 18.0, "nine units at most");
    assert!(widths("none").iter().all(|width| *width <= 2.0));
    assert!(
        widths("50%:1,100%:3")
            .iter()
            .all(|width| [2.0, 6.0].contains(width))
    );
    assert!(refuse(&["graph", path(&file), "-w", "50%:x"]).contains("50%:x"));
}

#[test]
fn the_hottest_box_is_the_reddest() {
    let scratch = Scratch::new();
    let file = recorded(&scratch, "shared_time.c");
    let svg = succeed(&["graph", path(&file), "--cutoff", "0", "--root", "main"]);
    let mut shades: Vec<(f64, u8)> = Vec::new();
    let own = Regex::new(r"self ([\d.]+)%").expect("regex");
    for line in svg.lines().filter(|line| line.starts_with("<rect x=")) {
        let Some(share) = own.captures(line) else {
            continue;
        };
        let fill = line.split("fill=\"#").nth(1).expect("a colour");
        let green = u8::from_str_radix(&fill[2..4], 16).expect("a colour");
        shades.push((share[1].parse().expect("a share"), green));
    }
    // Shares that are the same as printed may differ in what is not printed.
    shades.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    assert!(shades.len() >= 4, "{shades:?}");
    assert!(
        shades.is_sorted_by(|a, b| a.1 >= b.1),
        "less green where hotter: {shades:?}"
    );
}

#[test]
fn a_png_is_one_and_of_the_size_asked_for() {
    let scratch = Scratch::new();
    let file = recorded(&scratch, "shared_time.c");
    let size = |scale: &str| {
        let picture = scratch.join("picture.png");
        succeed(&["graph", path(&file), "--scale", scale, "-o", path(&picture)]);
        let bytes = std::fs::read(&picture).expect("a file");
        assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        (word(16), word(20))
    };
    let (one, two) = (size("1"), size("2"));
    assert!(one.0 > 300 && one.1 > 60, "{one:?}");
    assert_eq!(two, (one.0 * 2, one.1 * 2));
}
