//! Damaged debug information is read as far as it goes; it never stops us.

mod support;

use std::fs;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use support::Target;

#[test]
fn damaged_debug_information_is_never_more_than_refused() {
    let target = Target::build(
        "g++",
        "values.cpp",
        &["-std=c++17", "-O1", "-g", "-gz=none"],
    );
    let whole = fs::read(target.path()).unwrap();
    let sections = debug_sections(&target);
    let config = ProptestConfig::with_cases(48);
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..200);
    TestRunner::new(config)
        .run(&damage, |damage| {
            let mut damaged = whole.clone();
            for (place, byte) in damage {
                let (start, len) = sections[place.index(sections.len())];
                damaged[start + place.index(len)] = byte;
            }
            fs::write(target.path(), &damaged).unwrap();
            let rules = [
                "/^db::|^main$|^failing/: duration > 1ms; record args, ret",
                "db::list; record numbers",
            ];
            let _ = target.compile(&rules, &Default::default());
            Ok(())
        })
        .unwrap();
}

/// Offset and length in the file of what describes types.
fn debug_sections(target: &Target) -> Vec<(usize, usize)> {
    let output = std::process::Command::new("readelf")
        .arg("-SW")
        .arg(target.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let sections: Vec<(usize, usize)> = text
        .lines()
        .filter(|line| {
            [".debug_info ", ".debug_abbrev ", ".debug_rnglists "]
                .iter()
                .any(|name| line.contains(name))
        })
        .map(|line| {
            let fields: Vec<&str> = line.split(']').nth(1).unwrap().split_whitespace().collect();
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            (number(fields[3]), number(fields[4]))
        })
        .collect();
    assert!(sections.len() >= 2);
    sections
}
