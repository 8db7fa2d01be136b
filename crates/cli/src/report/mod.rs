//! A profile as text for people.

use std::io::{self, Write};

use thalweg_model::Profile;

/// How the text is laid out: decided by where it goes.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Columns of the terminal, or `None` for output that nothing cuts.
    pub width: Option<usize>,
    pub colour: bool,
}

impl Style {
    /// For standard error, where `record` ends with a summary.
    pub fn for_stderr() -> Style {
        Style {
            width: None,
            colour: false,
        }
    }
}

/// The head, the hottest functions and the hottest path.
pub fn print_summary(_profile: &Profile, _out: &mut impl Write, _style: Style) -> io::Result<()> {
    Ok(())
}
