//! `thalweg serve`: the page, on a file or on a live process, for one's own browser.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use thalweg_analysis::rolled_up;
use thalweg_instrument::{attach, detach};
use thalweg_ptrace::proc::Pid;

use crate::args::{FilterArgs, InputArgs, MeasureArgs, as_shown};
use crate::live::{self, AnalysisBar, Interrupts};
use crate::metric;
use crate::page::Subject;
use crate::recording::{Drop, RecordingArgs};
use crate::serve::{self, Redirect, Watched};
use crate::sidecar::{SampleArgs, Sidecar};

/// Show a profile, or a process while it runs, in a browser
///
/// Listens on this machine only; the address that is printed holds a secret without which nothing is answered. A process that
/// is attached already is only read, and stays attached. Any other is attached to first and restored at the end.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    pub input: InputArgs,

    /// An earlier profile: show what changed since
    #[arg(long, value_name = "FILE", conflicts_with = "pid")]
    pub before: Option<PathBuf>,

    /// Port to listen on [default: one that is free]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub port: u16,

    /// Print the address and leave the browser alone
    #[arg(long)]
    pub no_open: bool,

    #[command(flatten)]
    pub filter: FilterArgs,

    #[command(flatten)]
    pub measure: MeasureArgs,

    #[command(flatten)]
    pub samples: SampleArgs,

    #[command(flatten)]
    pub recording: RecordingArgs,
}

/// Sends the browser to the address. `None`: there is none, or no place for a private file.
fn open_browser(address: &str) -> Option<Redirect> {
    let redirect = match Redirect::to(address) {
        Ok(redirect) => redirect,
        Err(error) => {
            eprintln!(
                "no browser is opened: the address cannot be handed to it in private: {error}"
            );
            return None;
        }
    };
    let browser = Command::new("xdg-open")
        .arg(redirect.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if browser.is_err() {
        eprintln!("no browser was found to open it (xdg-open)");
        return None;
    }
    Some(redirect)
}

/// Tells the address and sends a browser there, where there is one.
fn announce(address: &str, may_open: bool) -> Option<Redirect> {
    println!("{address}");
    say("Ctrl-C ends it");
    let screen = ["DISPLAY", "WAYLAND_DISPLAY"];
    let has_screen = screen.iter().any(|name| std::env::var_os(name).is_some());
    let opens = may_open && has_screen && std::io::stdout().is_terminal();
    opens.then(|| open_browser(address)).flatten()
}

/// For people only.
fn say(text: &str) {
    if std::io::stderr().is_terminal() {
        eprintln!("{text}");
    }
}

/// What `record --serve` ends with.
pub fn show_file(path: &Path) -> anyhow::Result<()> {
    // A Ctrl-C that ended the recording does not end this as well.
    let interrupts = Interrupts::catch()?;
    let profile = as_shown(thalweg_model::read_file(path)?, None, false)?;
    let subject = Subject::new(profile, path.display().to_string()).with_sources();
    serve::run(subject, None, 0, &interrupts, |address| {
        announce(address, true)
    })
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    metric::refuse_on_page(args.input.by)?;
    let interrupts = Interrupts::catch()?;
    let announce = |address: &str| announce(address, !args.no_open);
    let Some(pid) = args.input.pid.map(|pid| Pid(pid as i32)) else {
        say(&format!("reading {}", args.input.origin()));
        let mut subject =
            Subject::new(args.input.read_with_sites()?, args.input.origin()).with_sources();
        if let Some(before) = &args.before {
            let before = as_shown(thalweg_model::read_file(before)?, None, args.input.raw)?;
            subject = subject.compared_with(rolled_up(before));
        }
        serve::run(subject, None, args.port, &interrupts, announce)?;
        return Ok(ExitCode::SUCCESS);
    };
    if let Ok((shared, _)) = detach::attached(pid) {
        let watched = Watched::new(pid, shared, args.input.raw)?;
        let first = watched.first()?;
        serve::run(first, Some(watched), args.port, &interrupts, announce)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut mode = args.measure.mode(true)?;
    let recording = args
        .recording
        .build(Drop::Oldest, &args.measure, &mut mode)?;
    let mut options = live::plan(&args.filter, &args.measure, &[], false, mode)?.attach;
    options.recording = recording;
    let sidecar = Sidecar {
        filter: &args.filter,
        measure: &args.measure,
        mode,
        samples: args.samples.wanted(mode)?,
    };
    let bar = AnalysisBar::new(false);
    let attached = attach::attach(pid, &options, &|done, all, name| bar.show(done, all, name))?;
    drop(bar);
    sidecar.start(&attached)?;
    let identity = attached.identity;
    let served = Watched::new(pid, attached.shared, args.input.raw).and_then(|watched| {
        let first = watched.first()?;
        serve::run(first, Some(watched), args.port, &interrupts, announce)
    });
    // Whatever came of it, the target is not left patched; one that has ended has nothing to restore.
    if detach::attached(pid).is_ok() {
        detach::detach(pid)?.unmap()?;
    }
    detach::detach_orphans(identity);
    served?;
    Ok(ExitCode::SUCCESS)
}
