//! The command line as a table: subcommands, and the groups of options that several of them share.
//!
//! Help, man pages and completions all come from here and from the argument structs in `commands/`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use clap::{Args, Parser, Subcommand, ValueEnum};
use thalweg_analysis::{Granularity, Lanes, Patterns, Pipeline, RuntimeFrames, Sites, Thresholds};
use thalweg_instrument::filter::{BadPattern, Filter, Python};
use thalweg_model::{Metric, Profile};
use thalweg_ptrace::proc::Pid;
use thalweg_region::pruning::Pruning;

use crate::commands::{
    annotate, attach, cache, calibrate, calls, checkpoint, collect, companion, completions, detach,
    diff, export, graph, import, instrument, man, merge, probe, record, replay, report, rules,
    serve, status, summary, switch, threads, top, trace,
};
use crate::metric::{self, Extra};
use crate::session;

/// Where a recording goes, and where it is read from, unless told otherwise.
pub const DEFAULT_FILE: &str = "profile.thalweg";

/// Count and time every call of a running native program.
///
/// thalweg attaches to a process that nobody recompiled, patches every function at its entry and its exits,
/// keeps a tree of calling contexts per thread, and detaches without leaving a trace.
#[derive(Parser, Debug)]
#[command(name = "thalweg", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    Record(record::Args),
    Attach(attach::Args),
    Status(status::Args),
    Checkpoint(checkpoint::Args),
    Detach(detach::Args),
    Switch(switch::Args),
    Probe(probe::Args),
    Instrument(instrument::Args),
    Collect(collect::Args),
    Report(report::Args),
    Annotate(annotate::Args),
    Summary(summary::Args),
    Threads(threads::Args),
    Trace(trace::Args),
    Replay(replay::Args),
    Calls(calls::Args),
    Rules(rules::Args),
    Diff(diff::Args),
    Merge(merge::Args),
    Export(export::Args),
    Import(import::Args),
    Graph(graph::Args),
    Serve(serve::Args),
    Top(top::Args),
    Push(companion::PushArgs),
    Query(companion::QueryArgs),
    Fleet(companion::FleetArgs),
    Store(companion::StoreArgs),
    Agent(companion::AgentArgs),
    Cache(cache::Args),
    Calibrate(calibrate::Args),
    Man(man::Args),
    Completions(completions::Args),
}

/// Which functions to patch. The default is every function of the executable and of all its shared libraries.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Filters")]
pub struct FilterArgs {
    /// Keep only functions whose name matches (may be given several times; one match suffices)
    #[arg(short = 'F', long = "function", value_name = "REGEX")]
    pub keep: Vec<String>,

    /// Leave out functions whose name matches
    #[arg(short = 'N', long = "not-function", value_name = "REGEX")]
    pub leave_out: Vec<String>,

    /// Keep only modules (the executable, libraries) whose file name matches
    #[arg(long, value_name = "REGEX")]
    pub lib: Vec<String>,

    /// Leave out modules whose file name matches
    #[arg(long, value_name = "REGEX")]
    pub no_lib: Vec<String>,
}

impl FilterArgs {
    pub fn build(&self) -> Result<Filter, BadPattern> {
        Filter::new(&self.keep, &self.leave_out, &self.lib, &self.no_lib)
    }
}

/// A switch that has a default of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Whether {
    On,
    Off,
}

/// How the target is measured: the same for `record` and `attach`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Measuring")]
pub struct MeasureArgs {
    /// Memory for the calling-context trees in the target; when it is full and nothing can be pruned, further contexts are folded
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    pub memory: u64,

    /// Cut small contexts out of the trees when they have this much memory, instead of folding new ones when it is full
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub prune_at: Option<u64>,

    /// First those with less than this share of their caller's time
    #[arg(long, value_name = "PERCENT", default_value = "0.1", value_parser = parse_percent)]
    pub prune_below: f64,

    /// Count calls without timing them: several times cheaper
    #[arg(long)]
    pub no_clock: bool,

    /// Tell contexts apart by where the call is made, and direct from indirect calls
    #[arg(long)]
    pub call_sites: bool,

    /// Measure more than calls and time (may be given several times)
    #[arg(long = "metric", value_enum, value_name = "METRIC")]
    pub metrics: Vec<Extra>,

    /// Which calls are timed, where all are counted: those that take long beside what it costs to time them (others are timed now and
    /// then, about one in 64), or all [default: auto]
    #[arg(long, value_name = "WHICH", conflicts_with = "no_clock")]
    pub time: Option<Time>,

    /// How much slower the probes may make the program: where they would cost more, short and frequent functions are timed now and then,
    /// counted or switched off while it runs; 'off' counts every call [default: 10% for a process that runs already, else off]
    #[arg(long, value_name = "PERCENT", value_parser = parse_budget, conflicts_with = "no_clock")]
    pub budget: Option<BudgetArg>,

    /// Have every function change from mode to mode all the time, as auto does now and then: for tests
    #[arg(long, hide = true, conflicts_with_all = ["budget", "no_clock"])]
    pub restless: bool,

    /// Count and time Python functions, each by its own name, between the functions of C: auto does where it is CPython
    /// 3.11 or 3.13
    #[arg(long, value_enum, value_name = "WHETHER", default_value_t = Runtime::Auto)]
    pub python: Runtime,

    /// Count and time the methods of Java virtual machines (HotSpot; JDK 24 and later only where thalweg launches them): auto does in
    /// programs that it launches, since one that runs would have to compile everything anew
    #[arg(long, value_enum, value_name = "WHETHER", default_value_t = Runtime::Auto)]
    pub java: Runtime,

    /// Refuse programs that use restartable sequences (rseq) themselves, instead of leaving those functions alone
    #[arg(long)]
    pub refuse_rseq: bool,

    #[command(flatten)]
    pub stop: StopArgs,
}

impl MeasureArgs {
    pub fn java(&self, is_live: bool) -> bool {
        match self.java {
            Runtime::On => true,
            Runtime::Off => false,
            Runtime::Auto => !is_live,
        }
    }

    pub fn python(&self) -> Python {
        match self.python {
            Runtime::On => Python::On,
            Runtime::Off => Python::Off,
            Runtime::Auto => Python::Auto,
        }
    }
}

/// How the target is stopped, wherever it is.
#[derive(Args, Clone, Debug)]
pub struct StopArgs {
    /// How long all threads may stand still for one that does not stop because it sleeps uninterruptibly (state D). Then
    /// they run on, and it is tried again ever more rarely
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = parse_duration)]
    pub stop_timeout: Duration,
}

impl StopArgs {
    /// For all stops of this process.
    pub fn apply(&self) {
        thalweg_ptrace::tracee::set_stop_timeout(self.stop_timeout);
    }
}

/// Whether the functions that a language's runtime runs are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Runtime {
    Off,
    On,
    /// Where the runtime is known
    Auto,
}

/// Which calls are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Time {
    /// Calls that take long beside what it costs to time them
    Auto,
    /// Every call, which makes a program that calls much several times slower
    All,
}

/// What `--budget` says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BudgetArg {
    Percent(f64),
    Off,
}

fn parse_budget(text: &str) -> Result<BudgetArg, String> {
    match text {
        "off" => Ok(BudgetArg::Off),
        _ => parse_percent(text)
            .map(BudgetArg::Percent)
            .map_err(|error| format!("{error}, or 'off'")),
    }
}

/// What the probes of a process that runs already may cost, in percent, unless told otherwise.
const LIVE_BUDGET: f64 = 10.0;

/// How calls are timed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Within a budget of so many percent.
    Budget(f64),
    /// Every call is counted.
    Auto,
    /// The same, with all functions going from mode to mode.
    Restless,
    /// Every call is timed.
    All,
    /// None is.
    NoClock,
}

impl MeasureArgs {
    /// `is_live`: the target runs already.
    pub fn mode(&self, is_live: bool) -> anyhow::Result<Mode> {
        let mode = match (self.budget, self.time) {
            _ if self.no_clock => Mode::NoClock,
            _ if self.restless => Mode::Restless,
            (Some(BudgetArg::Percent(_)), Some(Time::All)) => {
                bail!("--time all times every call: it goes with no --budget but 'off'")
            }
            (Some(BudgetArg::Percent(percent)), _) => Mode::Budget(percent),
            (_, Some(Time::All)) => Mode::All,
            (None, None) if is_live => Mode::Budget(LIVE_BUDGET),
            _ => Mode::Auto,
        };
        Ok(mode)
    }

    pub fn pruning(&self) -> Pruning {
        Pruning {
            from: self.prune_at,
            below: self.prune_below / 100.0,
        }
    }
}

/// What does not matter is left out.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Pruning")]
pub struct PruneArgs {
    /// Prune what has less own time than this share of all time
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub min_coverage: Option<f64>,

    /// Prune what took less than this in all, callees included (500us, 10ms, 2s)
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub min_time: Option<Duration>,

    /// Prune what was called less often
    #[arg(long, value_name = "CALLS")]
    pub min_calls: Option<u64>,
}

impl PruneArgs {
    pub fn thresholds(&self) -> Thresholds {
        Thresholds {
            coverage: self.min_coverage.unwrap_or(0.0) / 100.0,
            time: self.min_time.map_or(0, |time| time.as_nanos() as u64),
            calls: self.min_calls.unwrap_or(0),
        }
    }
}

/// What of the profile is shown, by names of functions, files or modules on the way to a context.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Refining")]
pub struct RefineArgs {
    /// Only what happens in, below or on the way to functions that match
    #[arg(long, value_name = "REGEX")]
    pub focus: Option<String>,

    /// Leave out functions that match, with all that they call
    #[arg(long, value_name = "REGEX")]
    pub ignore: Option<String>,

    /// Take functions that match for a part of their callers
    #[arg(long, value_name = "REGEX")]
    pub hide: Option<String>,

    /// Begin at the outermost function that matches, and leave out what stands above it
    #[arg(long, value_name = "REGEX")]
    pub show_from: Option<String>,

    /// What is one: a function, all functions of a file, or of a module
    #[arg(
        long,
        value_enum,
        default_value = "function",
        hide_default_value = true
    )]
    pub granularity: Detail,

    /// Take what an interpreter or a virtual machine does between two functions of its language (Python, Java) for a
    /// part of the outer one [default: on; in exports off]
    #[arg(long, value_enum, value_name = "WHETHER")]
    pub fold_runtime: Option<Whether>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    Function,
    /// Where the source is not known, the module
    File,
    Module,
}

impl RefineArgs {
    fn patterns(&self) -> Patterns {
        Patterns {
            focus: self.focus.clone(),
            ignore: self.ignore.clone(),
            hide: self.hide.clone(),
            show_from: self.show_from.clone(),
            granularity: match self.granularity {
                Detail::Function => Granularity::Function,
                Detail::File => Granularity::File,
                Detail::Module => Granularity::Module,
            },
            runtime_frames: self.runtime_frames(),
        }
    }

    /// Whether there is a wish for a part of the profile.
    pub fn chooses(&self) -> bool {
        let runtime_frames = self.runtime_frames();
        self.patterns()
            != Patterns {
                runtime_frames,
                ..Patterns::default()
            }
    }

    pub fn runtime_frames(&self) -> RuntimeFrames {
        match self.fold_runtime {
            Some(Whether::Off) => RuntimeFrames::Shown,
            Some(Whether::On) | None => RuntimeFrames::Folded,
        }
    }
}

/// The profile to read.
#[derive(Args, Clone, Debug)]
pub struct InputArgs {
    /// The profile to read [default: profile.thalweg]
    #[arg(value_name = "FILE", conflicts_with = "input")]
    pub file: Option<PathBuf>,

    /// The same, for those who like options
    #[arg(short, long, value_name = "FILE")]
    pub input: Option<PathBuf>,

    /// A process that thalweg is attached to, instead of a file: what it has counted so far
    #[arg(short, long, value_name = "PID", conflicts_with_all = ["file", "input"])]
    pub pid: Option<u32>,

    /// Times as they were measured, with what the probes cost
    #[arg(long)]
    pub raw: bool,

    /// Show this metric in the place of time, as a profile recorded with --metric has it: alloc.bytes, alloc.calls,
    /// free.bytes, free.calls, live.bytes, live.objects, map.bytes, map.calls, unmap.bytes, unmap.calls, syscall.calls, syscall.time
    #[arg(long, value_name = "METRIC", value_parser = metric::parse)]
    pub by: Option<Metric>,

    #[command(flatten)]
    pub refine: RefineArgs,
}

impl InputArgs {
    pub fn path(&self) -> &Path {
        let given = self.file.as_deref().or(self.input.as_deref());
        given.unwrap_or(Path::new(DEFAULT_FILE))
    }

    /// What was named, in a few words.
    pub fn origin(&self) -> String {
        match self.pid {
            Some(pid) => format!("process {pid}"),
            None => self.path().display().to_string(),
        }
    }

    /// Without call sites, which only some views show.
    pub fn read(&self) -> anyhow::Result<Profile> {
        self.read_through(Sites::RolledUp)
    }

    pub fn read_with_sites(&self) -> anyhow::Result<Profile> {
        self.read_through(Sites::Kept)
    }

    /// The same, with when threads ran.
    pub fn read_with_lanes(&self) -> anyhow::Result<(Profile, Lanes)> {
        let recorded = self.read_raw()?;
        let lanes = Lanes::from_recorded(&recorded);
        Ok((self.through(recorded, Sites::Kept)?, lanes))
    }

    fn read_through(&self, sites: Sites) -> anyhow::Result<Profile> {
        self.through(self.read_raw()?, sites)
    }

    fn through(&self, recorded: Profile, sites: Sites) -> anyhow::Result<Profile> {
        let pipeline = Pipeline {
            by: self.by,
            raw: self.raw,
            patterns: self.refine.patterns(),
            sites,
        };
        Ok(pipeline.run(recorded)?)
    }

    fn read_raw(&self) -> anyhow::Result<Profile> {
        if let Some(pid) = self.pid {
            return session::read(Pid(pid as i32));
        }
        Ok(thalweg_model::read_file(self.existing_path()?)?)
    }

    /// The file, which is there if nobody has named one.
    pub fn existing_path(&self) -> anyhow::Result<&Path> {
        let path = self.path();
        if self.file.is_none() && self.input.is_none() && !path.exists() {
            bail!(
                "there is no {DEFAULT_FILE} here: make one with 'thalweg record -- COMMAND', \
                 or name a profile with -i"
            );
        }
        Ok(path)
    }
}

/// A share in percent, with or without the sign.
pub fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').parse::<f64>();
    number
        .ok()
        .filter(|percent| (0.0..=100.0).contains(percent))
        .ok_or_else(|| "not a share: write a number from 0 to 100".to_string())
}

/// `500ms`, `10s`, `2m`, `1h`, `1.5s`; a bare number is seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split_unit(text);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit '{unit}': use ms, s, m or h")),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| "not a duration: write 500ms, 10s or 2m".to_string())?;
    Duration::try_from_secs_f64(number * seconds)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "must be more than zero and less than a few hundred years".to_string())
}

/// `64k`, `256M`, `1G`, powers of 1024; a bare number is bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
    let unit = unit.to_ascii_lowercase();
    let shift = match unit.trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return Err(format!("unknown unit '{unit}': use K, M or G")),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "not a size: write 64M or 1G".to_string())?;
    number
        .checked_mul(1 << shift)
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| "must be more than zero and less than 16 EiB".to_string())
}

fn split_unit(text: &str) -> (&str, &str) {
    let digits = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    (&text[..digits], text[digits..].trim())
}

/// The file to write: `-` is standard output, as if none were given.
pub fn named(output: Option<PathBuf>) -> Option<PathBuf> {
    output.filter(|path| path.as_os_str() != "-")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_table_of_arguments_contradicts_itself_nowhere() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_take_the_usual_units() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("1.5"), Ok(Duration::from_millis(1500)));
        for bad in [
            "",
            "s",
            "0s",
            "-1s",
            "10 parsecs",
            "1.2.3s",
            "inf",
            "1e400h",
        ] {
            assert!(parse_duration(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64k"), Ok(64 << 10));
        assert_eq!(parse_size("256M"), Ok(256 << 20));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        for bad in ["", "M", "0", "-1M", "1.5G", "99999999999G", "1T"] {
            assert!(parse_size(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_recording_needs_either_a_process_or_a_command() {
        let parse = |args: &[&str]| Cli::try_parse_from([&["thalweg", "record"], args].concat());
        assert!(parse(&["-p", "42"]).is_ok());
        assert!(parse(&["--", "ls", "-lR"]).is_ok());
        assert!(parse(&["-F", "x", "ls", "-lR", "-p", "7"]).is_ok());
        assert!(parse(&[]).is_err());
        assert!(parse(&["-p", "42", "--", "ls"]).is_err());
        assert!(parse(&["-t", "43", "--", "ls"]).is_err());
    }
}
