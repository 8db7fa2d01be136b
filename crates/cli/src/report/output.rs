//! Where a report goes: to standard output, through a pager when a person is reading.

use std::env;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use clap::ValueEnum;

use super::style::Style;

/// How a report is shown. The same for all commands that show one.
#[derive(clap::Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,

    /// Colour: auto is on a terminal and unless NO_COLOR is set
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Colour::Auto, visible_alias = "color")]
    pub colour: Colour,

    /// Print a long report to the terminal at once, not through $PAGER or less
    #[arg(long)]
    pub no_pager: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Auto,
    Always,
    Never,
}

impl OutputArgs {
    pub fn style(&self) -> Style {
        let style = Style::for_stdout();
        let colour = match self.colour {
            Colour::Auto => style.colour,
            Colour::Always => true,
            Colour::Never => false,
        };
        Style { colour, ..style }
    }

    /// Runs `print` with the place to print to.
    pub fn print(
        &self,
        print: impl FnOnce(&mut Output, Style) -> io::Result<()>,
    ) -> io::Result<()> {
        let style = self.style();
        let mut output = match self.no_pager || self.json {
            true => None,
            false => Output::to_pager(),
        }
        .unwrap_or_else(|| Output::Plain(BufWriter::new(io::stdout().lock())));
        let printed = print(&mut output, style).and_then(|()| output.flush());
        output.finish();
        printed
    }
}

pub enum Output {
    Plain(BufWriter<StdoutLock<'static>>),
    Paged(Option<BufWriter<ChildStdin>>, Child),
}

impl Output {
    /// `None` where nobody is reading, or no pager can be started.
    fn to_pager() -> Option<Output> {
        let dumb = env::var_os("TERM").is_none_or(|term| term == "dumb");
        if dumb || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            return None;
        }
        let wanted = env::var("PAGER").unwrap_or_default();
        let mut command = match wanted.as_str() {
            "cat" => return None,
            "" => Command::new("less"),
            other => {
                let mut shell = Command::new("sh");
                shell.args(["-c", other]);
                shell
            }
        };
        if env::var_os("LESS").is_none() {
            // End when all fits on the screen, keep colours, leave the text on the screen.
            command.env("LESS", "FRX");
        }
        let mut child = command.stdin(Stdio::piped()).spawn().ok()?;
        let stdin = child.stdin.take().map(BufWriter::new);
        Some(Output::Paged(stdin, child))
    }

    /// The pager has to end before we do, or it and the shell read the keyboard by turns.
    fn finish(self) {
        if let Output::Paged(stdin, mut child) = self {
            drop(stdin);
            let _ = child.wait();
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Output::Plain(out) => out.write(bytes),
            Output::Paged(Some(out), _) => out.write(bytes),
            Output::Paged(None, _) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Plain(out) => out.flush(),
            Output::Paged(Some(out), _) => out.flush(),
            Output::Paged(None, _) => Ok(()),
        }
    }
}
