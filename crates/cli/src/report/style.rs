//! How text is laid out and painted, decided by where it goes.

use std::env;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Columns of the terminal, or `None` for output that nothing cuts.
    pub width: Option<usize>,
    pub colour: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Paint {
    #[default]
    Plain,
    Title,
    Aside,
    Cool,
    Warm,
    Hot,
}

impl Style {
    /// As for a file.
    pub fn plain() -> Style {
        Style {
            width: None,
            colour: false,
        }
    }

    pub fn for_stdout() -> Style {
        Style::for_stream(io::stdout())
    }

    /// Where `record` ends with a summary.
    pub fn for_stderr() -> Style {
        Style::for_stream(io::stderr())
    }

    fn for_stream(stream: impl IsTerminal + AsFd) -> Style {
        if !stream.is_terminal() {
            return Style::plain();
        }
        let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        Style {
            width: terminal_size::terminal_size_of(stream).map(|(width, _)| width.0.into()),
            colour: !is_set("NO_COLOR") && !dumb,
        }
    }

    pub fn paint(&self, paint: Paint, text: &str) -> String {
        let code = match paint {
            Paint::Plain => "",
            Paint::Title => "1",
            Paint::Aside => "2",
            Paint::Cool => "32",
            Paint::Warm => "33",
            Paint::Hot => "1;31",
        };
        if self.colour && !code.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_string()
        }
    }

    /// For a share of the whole: the eye should find the large ones.
    pub fn heat(&self, part: u64, whole: u64) -> Paint {
        if whole == 0 || part < whole / 20 {
            Paint::Plain
        } else if part < whole / 5 {
            Paint::Warm
        } else {
            Paint::Hot
        }
    }
}
