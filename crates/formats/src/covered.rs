//! What a report of coverage is made of: each source file with its lines and functions.

use std::collections::BTreeMap;

use thalweg_analysis::{By, Code, Executed, LineCounts, executed, line_counts};
use thalweg_model::Profile;

pub struct Covered<'a> {
    pub path: &'a str,
    pub lines: &'a BTreeMap<u32, LineCounts>,
    /// Those that are defined in it.
    pub functions: Vec<Executed>,
}

/// The lines of all files, by file and number.
pub struct Files<'a> {
    code: &'a Code,
    lines: BTreeMap<u32, BTreeMap<u32, LineCounts>>,
    functions: BTreeMap<&'a str, Vec<Executed>>,
}

impl<'a> Files<'a> {
    pub fn of(profile: &'a Profile, code: &'a Code) -> Files<'a> {
        let mut lines: BTreeMap<u32, BTreeMap<u32, LineCounts>> = BTreeMap::new();
        for (place, counts) in line_counts(profile, code, By::Written, |_| true) {
            lines
                .entry(place.file)
                .or_default()
                .insert(place.line, counts);
        }
        let mut functions: BTreeMap<&str, Vec<Executed>> = BTreeMap::new();
        for one in executed(profile) {
            let file = profile.functions[one.function].file.as_deref();
            if let Some(file) = file {
                functions.entry(file).or_default().push(one);
            }
        }
        Files {
            code,
            lines,
            functions,
        }
    }

    pub fn each(&self) -> impl Iterator<Item = Covered<'_>> {
        self.lines.iter().map(|(file, lines)| {
            let path = self.code.files[*file as usize].as_str();
            let functions = self.functions.get(path).cloned().unwrap_or_default();
            Covered {
                path,
                lines,
                functions,
            }
        })
    }
}
