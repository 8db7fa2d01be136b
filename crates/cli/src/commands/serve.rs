//! `thalweg serve`: the page, on a file or on a live process, for one's own browser.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use thalweg_analysis::{Lanes, Pipeline, Sites};
use thalweg_ptrace::proc::Pid;

use crate::args::{InputArgs, Whether};
use crate::live::Interrupts;
use crate::metric;
use crate::page::ProfileView;
use crate::recording::{Drop, RecordingArgs};
use crate::serve::{self, Redirect, Watched};
use crate::session::{Session, SetupArgs, Wanted};

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
    pub setup: SetupArgs,

    #[command(flatten)]
    pub recording: RecordingArgs,
}

/// Sends the browser to the address. `None`: there is none, or no place for a private file.
fn open_browser(address: &str) -> Option<Redirect> {
    let redirect = match Redirect::to(address) {
        Ok(redirect) => redirect,
        Err(error) => {
            tell!("no browser is opened: the address cannot be handed to it in private: {error}");
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
        tell!("no browser was found to open it (xdg-open)");
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
        tell!("{text}");
    }
}

/// What `record --serve` ends with.
pub fn show_file(path: &Path) -> anyhow::Result<()> {
    // A Ctrl-C that ended the recording does not end this as well.
    let interrupts = Interrupts::catch()?;
    let recorded = thalweg_model::read_file(path)?;
    let lanes = Lanes::from_recorded(&recorded);
    let profile = Pipeline::with_sites().run(recorded)?;
    let view = ProfileView::new(profile, path.display().to_string())
        .with_lanes(lanes)
        .with_sources();
    serve::run(view, None, 0, &interrupts, |address| {
        announce(address, true)
    })
}

pub fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    // The page folds by itself, so that it can show both.
    let runtime_frames = args.input.refine.runtime_frames();
    args.input.refine.fold_runtime = Some(Whether::Off);
    metric::refuse_on_page(args.input.by)?;
    let interrupts = Interrupts::catch()?;
    let announce = |address: &str| announce(address, !args.no_open);
    let Some(pid) = args.input.pid.map(|pid| Pid(pid as i32)) else {
        say(&format!("reading {}", args.input.origin()));
        let (profile, lanes) = args.input.read_with_lanes()?;
        let mut view = ProfileView::new(profile, args.input.origin())
            .with_lanes(lanes)
            .with_sources()
            .with_runtime_frames(runtime_frames);
        if let Some(before) = &args.before {
            let pipeline = Pipeline {
                raw: args.input.raw,
                sites: Sites::RolledUp,
                ..Pipeline::with_sites()
            };
            view = view.compared_with(pipeline.run(thalweg_model::read_file(before)?)?);
        }
        serve::run(view, None, args.port, &interrupts, announce)?;
        return Ok(ExitCode::SUCCESS);
    };
    let setup = args.setup.check(Wanted {
        is_live: true,
        recording: Some((&args.recording, Drop::Oldest)),
        ..Wanted::default()
    })?;
    let (session, reader) = Session::begin(pid, &setup)?;
    let watched = Watched::new(pid, reader, args.input.raw);
    let served = watched
        .first()
        .and_then(|first| serve::run(first, Some(watched), args.port, &interrupts, announce));
    session.end()?;
    served?;
    Ok(ExitCode::SUCCESS)
}
