//! What the commands that touch a live process share: progress while it is analysed, a line while it is recorded,
//! signals, and the way from a snapshot to a file and a summary.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::Signals;
use thalweg_analysis::Pipeline;
use thalweg_model::{FileError, OutputFile, Profile};
use thalweg_ptrace::proc::{self, Pid};
use thalweg_session::process_tree::ProcessTree;
use thalweg_snapshot::snapshot::Totals;
use thalweg_views::flat;
use thalweg_views::summary::Head;

use crate::args::DEFAULT_FILE;
use crate::report::{self, Style};

/// Of what is analysed just now.
const NAME_WIDTH: usize = 30;

/// A bar over the modules of the target; nothing at all unless standard error is a terminal.
pub struct AnalysisBar(ProgressBar);

impl AnalysisBar {
    pub fn new(quiet: bool) -> AnalysisBar {
        let bar = ProgressBar::with_draw_target(None, target(quiet));
        let style = ProgressStyle::with_template("{msg:30} [{bar:30}] {pos}/{len} modules");
        bar.set_style(style.expect("a valid template").progress_chars("=> "));
        AnalysisBar(bar)
    }

    pub fn show(&self, done: usize, all: usize, name: &str) {
        self.0.set_length(all as u64);
        self.0.set_position(done as u64);
        let text = format!("analysing: {}", report::printable(name));
        // A line that wraps is not wiped away as a whole.
        let text = report::cut(&text, NAME_WIDTH).into_owned();
        self.0.set_message(text);
    }
}

impl Drop for AnalysisBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn target(quiet: bool) -> ProgressDrawTarget {
    if quiet || !std::io::stderr().is_terminal() {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    }
}

/// A limit on the size of files (`ulimit -f`) is an error where we write: SIGXFSZ would end us instead, with a target half way.
pub fn outlive_file_limits() {
    let own = Pid(std::process::id() as i32);
    let is_ignored =
        proc::status(own, own.into()).is_ok_and(|s| s.ignored >> (SIGXFSZ - 1) & 1 != 0);
    if !is_ignored {
        // Programs that we start have the signal's usual effect again.
        let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    }
}

/// What signals asked us for: to end, and how often for a checkpoint.
#[derive(Clone)]
pub struct Interrupts {
    ends: Arc<AtomicUsize>,
    checkpoints: Arc<AtomicUsize>,
}

impl Interrupts {
    /// From here on SIGINT, SIGTERM and SIGHUP are noted and never end this process by themselves: a patched target must
    /// not be left behind. What is ignored (`nohup`) stays so, for the programs that we start, too.
    pub fn catch() -> anyhow::Result<Interrupts> {
        let ends = Arc::new(AtomicUsize::new(0));
        let own = Pid(std::process::id() as i32);
        let ignored = proc::status(own, own.into()).map_or(0, |status| status.ignored);
        let heard = |signal: &i32| ignored >> (signal - 1) & 1 == 0;
        for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(heard) {
            signal_hook::flag::register_usize(signal, ends.clone(), signal as usize)
                .context("cannot catch signals")?;
        }
        let checkpoints = Arc::new(AtomicUsize::new(0));
        let mut signals = Signals::new([SIGUSR1]).context("cannot catch signals")?;
        let count = checkpoints.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for _ in signals.forever() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
            .context("cannot start a thread")?;
        Ok(Interrupts { ends, checkpoints })
    }

    /// As if a signal had asked to end.
    pub fn ask(&self) {
        self.ends.store(1, Ordering::Relaxed);
    }

    pub fn any(&self) -> bool {
        self.ends.load(Ordering::Relaxed) != 0
    }

    /// How many checkpoints were asked for since the beginning.
    pub fn checkpoints(&self) -> usize {
        self.checkpoints.load(Ordering::Relaxed)
    }
}

/// A line with figures on a terminal while a recording goes on.
pub struct Watch {
    quiet: bool,
    line: ProgressBar,
    started: Instant,
    counted: Option<(Instant, Totals)>,
    /// Reading all trees takes time itself; big ones are read less often.
    next_count: Instant,
    ns_per_call: f64,
}

impl Watch {
    /// `shared`: the terminal is the program's as well, and a line of ours would garble what that writes.
    pub fn new(quiet: bool, timed: bool, shared: bool) -> Watch {
        let line = ProgressBar::with_draw_target(None, target(quiet || shared));
        line.set_style(
            ProgressStyle::with_template("{spinner} {wide_msg}").expect("a valid template"),
        );
        Watch {
            quiet,
            line,
            started: Instant::now(),
            counted: None,
            next_count: Instant::now() + Duration::from_millis(500),
            ns_per_call: thalweg_region::clock::probe_cost_ns(timed),
        }
    }

    /// To be called often; does something only when it is time to.
    pub fn tick(&mut self, tree: &ProcessTree) {
        if !self.line.is_hidden() && Instant::now() > self.next_count {
            let before = Instant::now();
            self.show(tree.living(), tree.totals());
            self.next_count =
                Instant::now() + (before.elapsed() * 20).max(Duration::from_millis(500));
        }
    }

    /// A sentence above the line, unless the user wants to hear of errors only.
    pub fn say(&self, text: &str) {
        if !self.quiet {
            self.warn(text);
        }
    }

    pub fn warn(&self, text: &str) {
        self.line.suspend(|| tell!("{}", report::printable(text)));
    }

    fn show(&mut self, processes: usize, totals: Totals) {
        let (since, before) = self.counted.unwrap_or((self.started, Totals::default()));
        let seconds = since.elapsed().as_secs_f64().max(1e-3);
        let rate = totals.calls.saturating_sub(before.calls) as f64 / seconds;
        self.counted = Some((Instant::now(), totals));
        // Of the time of all threads together: one that waits has overhead 0.
        let overhead = rate * self.ns_per_call / 1e9 * 100.0;
        self.line.set_message(format!(
            "{:.1} s  {}, {}  {}calls/s  about {overhead:.0} % of a CPU in probes  {}contexts  {:.1} MB",
            self.started.elapsed().as_secs_f64(),
            report::counted(processes as u64, "process", "processes"),
            report::counted(totals.threads, "thread", "threads"),
            with_prefix(rate),
            with_prefix(totals.contexts as f64),
            totals.memory as f64 / 1e6,
        ));
        self.line.tick();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.line.finish_and_clear();
    }
}

fn with_prefix(number: f64) -> String {
    match number {
        n if n >= 1e9 => format!("{:.2} G ", n / 1e9),
        n if n >= 1e6 => format!("{:.2} M ", n / 1e6),
        n if n >= 1e3 => format!("{:.1} k ", n / 1e3),
        n => format!("{n:.0} "),
    }
}

/// From when on it is told what it costs to time every call.
const MIN_REPORTED_SLOWDOWN: f64 = 1.2;

/// What one does with a recording.
fn next_commands(shown: &Profile, path: &str) -> String {
    let file = match path {
        DEFAULT_FILE => String::new(),
        path => format!(" {}", report::command_line(&[path.to_string()])),
    };
    if !shown.blocks.is_empty() {
        return next_of_blocks(shown, path);
    }
    let mut commands = vec![
        (format!("thalweg serve{file}"), "look at it in a browser"),
        (
            format!("thalweg report --tree{file}"),
            "every context, as a tree",
        ),
    ];
    if let Some(name) = flat::hottest(shown) {
        let name = report::command_line(&[name.to_string()]);
        let command = format!("thalweg report --callers {name}{file}");
        commands.insert(1, (command, "who calls the hottest function"));
    }
    listed(&commands, path)
}

/// The same where blocks were counted.
fn next_of_blocks(shown: &Profile, path: &str) -> String {
    let input = match path {
        DEFAULT_FILE => String::new(),
        path => format!(" -i {}", report::command_line(&[path.to_string()])),
    };
    let executed = thalweg_analysis::executed(shown);
    let most = executed.iter().max_by_key(|one| one.instructions);
    let name = most.map_or("main", |one| &shown.functions[one.function].name);
    let name = report::command_line(&[name.to_string()]);
    let commands = [
        (
            format!("thalweg annotate {name}{input}"),
            "its source, with counts",
        ),
        (
            format!("thalweg annotate {name} --asm{input}"),
            "its instructions",
        ),
        (format!("thalweg annotate --never{input}"), "what never ran"),
        (
            format!("thalweg export -f lcov{input} -o lcov.info"),
            "for genhtml",
        ),
    ];
    listed(&commands, path)
}

fn listed(commands: &[(String, &str)], path: &str) -> String {
    let width = commands.iter().map(|(command, _)| command.len()).max();
    let width = width.unwrap_or(0).min(MAX_COMMAND_WIDTH);
    let lines = commands.iter();
    let lines: String = lines
        .map(|(command, what)| match command.len() > MAX_COMMAND_WIDTH {
            true => format!("  {command}\n"),
            false => format!("  {command:<width$}  {what}\n"),
        })
        .collect();
    format!("\nSaved as {path}. Next:\n{lines}")
}

/// A longer command says what it is for by itself: no line is wider than a terminal for both.
const MAX_COMMAND_WIDTH: usize = 46;

/// Writes the profile, which is complete, and, unless told not to, the summary to standard error.
pub fn save(profile: Profile, output: OutputFile, summary: bool) -> anyhow::Result<()> {
    save_or(profile, output, summary, |_| None)
}

/// The same. Where it cannot be written, `otherwise` has it, and says what became of it.
pub fn save_or(
    profile: Profile,
    output: OutputFile,
    summary: bool,
    otherwise: impl FnOnce(&Profile) -> Option<String>,
) -> anyhow::Result<()> {
    let path = output.path().display().to_string();
    if let Err(error) = output.save(&profile) {
        let is_unread = |source: &std::io::Error| source.kind() == std::io::ErrorKind::BrokenPipe;
        if matches!(&error, FileError::Write { source, .. } if is_unread(source)) {
            return Err(error.into());
        }
        let error = anyhow::Error::from(error);
        return Err(match otherwise(&profile) {
            Some(fate) => anyhow::anyhow!("{error:#}; {fate}"),
            None => error,
        });
    }
    if summary {
        let mut text = Vec::new();
        let shown = Pipeline::new().run(profile)?;
        let head = Head::new(&shown);
        report::print_end(&shown, &head, &mut text, Style::for_stderr())?;
        // Where nothing was switched there is no other state.
        let is_all_timed = shown.meta.timed && shown.switched.is_empty();
        if is_all_timed && let Some(factor) = head.slowdown.filter(|f| *f >= MIN_REPORTED_SLOWDOWN)
        {
            writeln!(
                text,
                "\nEvery call was timed, which made the program {factor:.1} times slower. Short calls took most of it, and their times are worth least: --time auto counts them."
            )?;
        }
        let mut out = std::io::stderr().lock();
        let _ = out.write_all(&text);
        let _ = out.write_all(next_commands(&shown, &path).as_bytes());
    }
    Ok(())
}
