//! The source of a function, where the file that the profile names can be found.
//!
//! A profile may be hostile and name any file. Only what is named like a source and is text is shown, only by the server, only
//! what the viewer could read himself (`source/open.rs`), and the page can send it nowhere.

mod open;

use std::path::Path;

use serde::Serialize;
use thalweg_model::{FuncId, Function, Profile};

const SOURCES: [&str; 27] = [
    "S", "asm", "c", "cc", "cpp", "cu", "cxx", "d", "f", "f90", "go", "h", "hh", "hpp", "hxx",
    "inc", "inl", "java", "l", "m", "nim", "py", "pyx", "rs", "s", "y", "zig",
];
const MAX_SOURCE_BYTES: u64 = 4 << 20;
const LINES_BEFORE: usize = 12;
const LINES_AFTER: usize = 240;

#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Source {
    file: String,
    /// Number of the first line that is given, from 1.
    first: usize,
    line: u32,
    lines: Option<Vec<String>>,
    /// Why there are none.
    reason: Option<String>,
}

pub fn response(profile: &Profile, function: FuncId) -> Source {
    let function = &profile.functions[function];
    found(function).unwrap_or_else(|reason| Source {
        reason: Some(reason),
        ..Source::default()
    })
}

fn found(function: &Function) -> Result<Source, String> {
    let name = function
        .file
        .as_deref()
        .ok_or("the profile does not say where its source is")?;
    let absent = || format!("{name} is not on this machine, or not to be read");
    let path = Path::new(name);
    let ending = path.extension().and_then(|ending| ending.to_str());
    if !path.is_absolute() || ending.is_none_or(|ending| SOURCES.binary_search(&ending).is_err()) {
        return Err(absent());
    }
    let bytes = open::read(path, MAX_SOURCE_BYTES, open::Viewer::current()).ok_or_else(absent)?;
    if bytes.contains(&0) {
        return Err(format!("{name} is no text"));
    }
    let text = String::from_utf8_lossy(&bytes);
    let first = (function.line as usize).saturating_sub(LINES_BEFORE).max(1);
    Ok(Source {
        file: name.to_string(),
        first,
        line: function.line,
        lines: Some(
            text.lines()
                .skip(first - 1)
                .take(LINES_BEFORE + LINES_AFTER)
                .map(str::to_string)
                .collect(),
        ),
        reason: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(file: &str, line: u32) -> Source {
        let profile = Profile {
            functions: vec![Function {
                file: Some(file.into()),
                line,
                ..Function::default()
            }],
            ..Profile::default()
        };
        response(&profile, FuncId(0))
    }

    #[test]
    fn a_profile_cannot_name_any_file_as_a_source() {
        assert!(SOURCES.is_sorted());
        for file in [
            "/etc/passwd",
            "/dev/zero",
            "/proc/self/environ",
            "src/main.rs",
            "/",
            "/x.c",
        ] {
            assert_eq!(asked(file, 1).lines, None, "{file} was shown");
        }
    }

    #[test]
    fn the_lines_around_a_function_are_numbered() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/page/source.rs");
        let source = asked(file, 20);
        assert_eq!((source.first, source.line), (8, 20));
        assert_eq!(source.lines.unwrap()[0], "use std::path::Path;");
        // A line that the file does not have.
        assert_eq!(asked(file, u32::MAX).lines, Some(Vec::new()));
    }
}
