//! Folded stacks: one line per context, as flame graph scripts read them.
//!
//! ```text
//! thread;main;parse;read 81200
//! ```
//!
//! The figure is nanoseconds in the last function itself, or its calls where nothing was timed.

use std::io::{self, Write};

use thalweg_model::Profile;

use crate::stacks::{innermost_first, own_weight, thread_name};

pub fn write(profile: &Profile, mut out: impl Write) -> io::Result<()> {
    let names: Vec<String> = profile.functions.iter().map(|f| frame(&f.name)).collect();
    let mut stack = Vec::new();
    for thread in profile
        .processes
        .iter()
        .flat_map(|process| &process.threads)
    {
        let thread_frame = frame(&thread_name(thread));
        for node in &thread.nodes {
            let weight = own_weight(profile, node);
            if weight == 0 {
                continue;
            }
            stack.clear();
            stack.extend(innermost_first(thread, node));
            write!(out, "{thread_frame}")?;
            for &function in stack.iter().rev() {
                write!(out, ";{}", names[function.index()])?;
            }
            writeln!(out, " {weight}")?;
        }
    }
    out.flush()
}

/// A name without the characters that mean something here.
fn frame(name: &str) -> String {
    let clean: String = name
        .chars()
        .map(|c| match c {
            ';' => ':',
            c if c.is_control() => ' ',
            c => c,
        })
        .collect();
    match clean.trim() {
        "" => "?".to_string(),
        trimmed => trimmed.to_string(),
    }
}
