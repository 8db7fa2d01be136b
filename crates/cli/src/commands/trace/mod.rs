//! `thalweg trace`: calls of chosen functions in order, with durations and values, as they happen.
//!
//! ```text
//! -F REGEX -> rules -> record, with somebody beside it who reads the calls meanwhile -> lines
//! ```

mod lines;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgGroup, Parser};
use thalweg_formats::calls::Calls;
use thalweg_instrument::attach::Attached;
use thalweg_model::{CallEnd, Profile};
use thalweg_region::clock;
use thalweg_region::memory::Shared;
use thalweg_snapshot::call_trace::Drain;
use thalweg_snapshot::snapshot::{self, ThreadRegistry};

use super::record::{self, Beside};
use crate::report::{self, Style};
pub use lines::Lines;

/// Print calls of chosen functions in order, with durations and values, as they happen
///
/// The functions alone are patched. Arguments and results are shown where debug information tells them. The lines go to
/// standard error where a command is launched, because standard output is the command's, and to standard output with -p.
#[derive(clap::Args, Debug)]
#[command(group = ArgGroup::new("traced").required(true).args(["pid", "command"]))]
pub struct Args {
    /// Functions whose name matches (may be given several times)
    #[arg(short = 'F', long = "functions", value_name = "REGEX", required = true)]
    pub functions: Vec<String>,

    /// Trace this running process, and restore it at the end
    #[arg(short, long)]
    pub pid: Option<u32>,

    /// End after so many calls
    #[arg(short, long, value_name = "N")]
    pub number: Option<u64>,

    /// End after this long: 500ms, 10s, 2m
    #[arg(short, long)]
    pub duration: Option<String>,

    /// Show no arguments and results
    #[arg(long)]
    pub no_values: bool,

    /// Keep the trace, for `thalweg replay` and `thalweg calls`
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// The command to launch, with its arguments
    #[arg(
        value_name = "CMD",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub command: Vec<OsString>,
}

/// As if the user had written it.
#[derive(Parser)]
struct AsRecord {
    #[command(flatten)]
    record: record::Args,
}

/// Room for what happens between two readings.
const RECORD_MEMORY: &str = "8M";

impl Args {
    /// The rules that say the same: the first of those that mean a call has it.
    fn rules(&self, with_values: bool) -> Vec<String> {
        let patterns = self.functions.iter();
        patterns
            .map(|pattern| {
                let pattern = pattern.replace('/', "\\x2f");
                match with_values {
                    true => format!("/{pattern}/; record args, ret"),
                    false => format!("/{pattern}/"),
                }
            })
            .collect()
    }

    fn as_record(&self, output: PathBuf, rules: &[String]) -> anyhow::Result<record::Args> {
        let mut words: Vec<OsString> = ["record", "-q", "--record-memory", RECORD_MEMORY]
            .map(OsString::from)
            .into();
        let mut option = |name: &str, value: OsString| words.extend([name.into(), value]);
        option("-o", output.into());
        for pattern in &self.functions {
            option("-F", pattern.into());
        }
        for rule in rules {
            option("--rule", rule.into());
        }
        if let Some(duration) = &self.duration {
            option("-d", duration.into());
        }
        match self.pid {
            Some(pid) => option("-p", pid.to_string().into()),
            None => words.push("--".into()),
        }
        words.extend(self.command.iter().cloned());
        let parsed = AsRecord::try_parse_from(words);
        Ok(parsed.map_err(|error| anyhow::anyhow!("{error}"))?.record)
    }
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let output = args.output.clone();
    let output = output.unwrap_or_else(|| PathBuf::from("/dev/null"));
    let mut tracer = Tracer::new(args.pid.is_none(), args.number);
    let with_values = !args.no_values;
    let rules = args.rules(with_values);
    let first = args.as_record(output.clone(), &rules)?;
    let ended = record::run_beside(first, &mut tracer);
    let (ended, rules) = match ended {
        // Nobody knows the arguments of any of them: the program was not touched yet.
        Err(error) if with_values && !tracer.has_begun() && is_about_values(&error) => {
            let plain = args.rules(false);
            let again = args.as_record(output, &plain)?;
            (record::run_beside(again, &mut tracer), plain)
        }
        ended => (ended, rules),
    };
    let status = ended?;
    let rules: Vec<String> = rules
        .iter()
        .map(|rule| {
            format!(
                "--rule {}",
                report::command_line(std::slice::from_ref(rule))
            )
        })
        .collect();
    tell!(
        "{} calls; as a rule: {}{}",
        tracer.lines.count(),
        rules.join(" "),
        match &args.output {
            Some(path) => format!(
                "\nkept: thalweg replay {}",
                report::command_line(&[path.display().to_string()])
            ),
            None => String::new(),
        }
    );
    Ok(status)
}

fn is_about_values(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}");
    ["argument", "result", "debug information", "type"]
        .iter()
        .any(|word| text.contains(word))
}

/// Reads the calls of the first process while it is recorded.
struct Tracer {
    lines: Lines,
    to_stderr: bool,
    most: Option<u64>,
    source: Option<Source>,
    /// Nobody reads what is printed any more, or enough was.
    is_enough: bool,
}

struct Source {
    shared: Shared,
    registry: ThreadRegistry,
    drain: Drain,
    profile: Profile,
}

impl Tracer {
    fn new(to_stderr: bool, most: Option<u64>) -> Tracer {
        let style = match to_stderr {
            true => Style::for_stderr(),
            false => Style::for_stdout(),
        };
        Tracer {
            lines: Lines::new(style),
            to_stderr,
            most,
            source: None,
            is_enough: false,
        }
    }

    fn has_begun(&self) -> bool {
        self.source.is_some()
    }

    fn print(&mut self, text: &[u8]) {
        let printed = match self.to_stderr {
            true => io::stderr().lock().write_all(text),
            false => {
                let mut out = io::stdout().lock();
                out.write_all(text).and_then(|()| out.flush())
            }
        };
        let all = self.most.is_some_and(|most| self.lines.count() >= most);
        self.is_enough |= printed.is_err() || all;
    }

    fn read(&mut self) -> anyhow::Result<()> {
        let Some(source) = &mut self.source else {
            return Ok(());
        };
        let header = source.shared.header()?;
        source.drain.take(&source.shared, &header)?;
        if !source.drain.has_ended() {
            return Ok(());
        }
        source.registry.update(&source.shared)?;
        if source.profile.functions.len() < header.functions as usize {
            source.profile = snapshot::take(&source.shared, &source.registry, None)?;
        }
        let hz = source.profile.meta.clock_hz;
        let (shared, registry) = (&source.shared, &source.registry);
        let recorded = source
            .drain
            .recorded(shared, &header, registry, hz, clock::ticks());
        source.profile.recorded = recorded?;
        let calls = Calls::new(&source.profile);
        let text = self
            .lines
            .of(&calls, self.most, |call| call.end != CallEnd::Open);
        source.drain.forget_ended();
        self.print(&text);
        Ok(())
    }
}

impl Beside for Tracer {
    fn begin(&mut self, attached: &Attached) -> anyhow::Result<()> {
        self.source = Some(Source {
            shared: attached.shared.try_clone()?,
            registry: ThreadRegistry::default(),
            drain: Drain::reader_of_all(),
            profile: Profile::default(),
        });
        let head = self.lines.head();
        self.print(&head);
        Ok(())
    }

    fn tick(&mut self) -> bool {
        // What cannot be read now is printed at the end.
        let _ = self.read();
        !self.is_enough
    }

    fn end(&mut self, profile: &Profile) {
        if self.is_enough {
            return;
        }
        let calls = Calls::new(profile);
        let text = self.lines.of(&calls, self.most, |_| true);
        self.print(&text);
        let dropped = profile.recorded.dropped;
        if dropped > 0 {
            tell!("{dropped} calls came too fast and are missing: choose fewer functions");
        }
    }
}
