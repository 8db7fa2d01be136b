//! `thalweg top`: what a running process does, live in the terminal.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use thalweg_analysis::Pipeline;
use thalweg_instrument::switch;
use thalweg_model::{FuncId, Profile};
use thalweg_ptrace::proc::{self, Pid};

use crate::args::parse_duration;
use crate::live::Interrupts;
use crate::report;
use crate::session::{Reader, Session, SetupArgs, Wanted};
use crate::top::{Probes, State, Wish, draw};

use super::switch::Which;

/// Watch a running process: functions, tree and threads, live
///
/// A process that is attached already is only read, and stays attached. Any other is attached to first and restored at the
/// end. Press ? for the keys.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The process to watch
    #[arg(short, long)]
    pub pid: u32,

    /// Count only this thread (may be given several times)
    #[arg(short, long = "thread", value_name = "TID")]
    pub threads: Vec<u32>,

    /// Time between two readings
    #[arg(long, value_parser = parse_duration, default_value = "1s")]
    pub interval: Duration,

    #[command(flatten)]
    pub setup: SetupArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!("top needs a terminal: use 'thalweg status' or 'thalweg checkpoint' in scripts");
    }
    let setup = args.setup.check(Wanted {
        is_live: true,
        threads: &args.threads,
        ..Wanted::default()
    })?;
    let interrupts = Interrupts::catch()?;
    let pid = Pid(args.pid as i32);
    let (session, reader) = Session::begin(pid, &setup)?;
    let watched = watch(pid, reader, args.interval, &interrupts);
    session.end()?;
    watched?;
    Ok(ExitCode::SUCCESS)
}

fn watch(
    pid: Pid,
    mut reader: Reader,
    interval: Duration,
    interrupts: &Interrupts,
) -> anyhow::Result<()> {
    let mut read = || -> anyhow::Result<Profile> { Ok(Pipeline::new().run(reader.read()?)?) };
    let first = read()?;
    let title = format!(
        "process {pid}: {}",
        report::command_line(&first.meta.command)
    );
    let mut state = State::new(first, title);
    let target = proc::preflight(pid);
    let mut alive = || target.as_ref().is_ok_and(|target| target.is_alive());

    let mut terminal = ratatui::try_init()?;
    let ended = show(
        pid,
        &mut terminal,
        &mut state,
        interval,
        interrupts,
        &mut read,
        &mut alive,
    );
    ratatui::restore();
    ended
}

fn switched(pid: Pid, function: FuncId, probes: Probes) -> anyhow::Result<String> {
    let state = match probes {
        Probes::Timed => switch::State::Timed,
        Probes::Counted => switch::State::Counted,
        Probes::Off => switch::State::Off,
    };
    let order = (Which::Numbered(&[function.0]), state);
    Ok(super::switch::switch(pid, &[order])?.text("switched"))
}

fn show(
    pid: Pid,
    terminal: &mut ratatui::DefaultTerminal,
    state: &mut State,
    interval: Duration,
    interrupts: &Interrupts,
    read: &mut dyn FnMut() -> anyhow::Result<Profile>,
    alive: &mut dyn FnMut() -> bool,
) -> anyhow::Result<()> {
    let mut next = Instant::now() + interval;
    let mut ended = false;
    while !interrupts.any() {
        terminal.draw(|frame| draw(state, frame))?;
        let wait = next.saturating_duration_since(Instant::now());
        if event::poll(wait.min(Duration::from_millis(200)))? {
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
            {
                match state.key(key) {
                    Wish::Quit => break,
                    Wish::Stay => {}
                    Wish::Switch(function, probes) => {
                        let said = switched(pid, function, probes);
                        state.say(&said.unwrap_or_else(|error| error.to_string()));
                    }
                }
            }
            continue;
        }
        if ended || Instant::now() < next {
            continue;
        }
        let started = Instant::now();
        // The memory outlives the process; what it held at the end is shown.
        ended = !alive();
        state.feed(read()?);
        if ended {
            state.end("the process has ended".to_string());
        }
        // Reading large trees takes time itself; they are read less often.
        next = Instant::now() + interval.max(started.elapsed() * 10);
    }
    Ok(())
}
