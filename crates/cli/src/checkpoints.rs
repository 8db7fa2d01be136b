//! Profiles that are saved while a recording goes on: when each is due, and under which name it goes.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use jiff::{SignedDuration, Timestamp, Zoned, civil};
use thalweg_model::{Mark, OutputFile, Profile};
use thalweg_session::process_tree::ProcessTree;
use thalweg_snapshot::lines;

use crate::args::parse_duration;
use crate::live::{Interrupts, Watch};
use crate::session::completed;

/// When to save what was counted so far. A signal USR1 to thalweg does so at any time.
#[derive(clap::Args, Clone, Debug)]
#[command(
    next_help_heading = "Checkpoints (saved beside the output as NAME.1.thalweg, NAME.2.thalweg ...)"
)]
pub struct CheckpointArgs {
    /// Save what was counted so far every so often: 10s, 5m
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub checkpoint_every: Option<Duration>,

    /// Save it at this time of day or date: 17:30, 17:30:05, 2027-01-31T17:30 (may be given several times)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub checkpoint_at: Vec<Timestamp>,

    /// Save it when a function whose name matches is entered, at most once a second (may be given several times)
    #[arg(long, value_name = "REGEX")]
    pub checkpoint_on: Vec<String>,

    /// Keep only the last N checkpoints
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub checkpoint_keep: Option<u32>,
}

/// The next moment at which a clock on the wall shows `text`, or the one date that it names.
pub fn parse_time(text: &str) -> Result<Timestamp, String> {
    parse_time_after(text, &Zoned::now())
}

fn parse_time_after(text: &str, now: &Zoned) -> Result<Timestamp, String> {
    let zone = now.time_zone().clone();
    let out_of_range = |error: jiff::Error| error.to_string();
    let time = if let Ok(time) = text.parse::<Timestamp>() {
        time
    } else if let Ok(date) = text.parse::<civil::DateTime>()
        && text.contains('-')
    {
        date.to_zoned(zone).map_err(out_of_range)?.timestamp()
    } else if let Ok(time) = text.parse::<civil::Time>()
        && text.contains(':')
    {
        let today = now.date().to_datetime(time).to_zoned(zone.clone());
        let today = today.map_err(out_of_range)?;
        if today > *now {
            return Ok(today.timestamp());
        }
        let tomorrow = now.date().tomorrow().map_err(out_of_range)?;
        let tomorrow = tomorrow.to_datetime(time).to_zoned(zone);
        tomorrow.map_err(out_of_range)?.timestamp()
    } else {
        return Err("not a time: write 17:30, 17:30:05 or 2027-01-31T17:30".into());
    };
    if time <= now.timestamp() {
        return Err("lies in the past".into());
    }
    Ok(time)
}

/// How long until `time`; zero if it has come.
pub fn until(time: Timestamp) -> Duration {
    let left = time
        .duration_since(Timestamp::now())
        .max(SignedDuration::ZERO);
    left.unsigned_abs()
}

/// Those of one recording.
pub struct Checkpoints<'a> {
    args: &'a CheckpointArgs,
    output: &'a Path,
    /// Times that have not come yet, the earliest first.
    at: VecDeque<Timestamp>,
    next: Option<Instant>,
    signals: usize,
    saved: u32,
    marks: Vec<Mark>,
}

impl<'a> Checkpoints<'a> {
    /// Refuses an output that has no room for others beside it.
    pub fn new(args: &'a CheckpointArgs, output: &'a Path) -> anyhow::Result<Checkpoints<'a>> {
        let wanted = args.checkpoint_every.is_some()
            || !args.checkpoint_at.is_empty()
            || !args.checkpoint_on.is_empty();
        if wanted && !is_file(output) {
            bail!(
                "checkpoints are saved beside the output, and {} is not a file: give a file's name with -o",
                output.display()
            );
        }
        let mut at = args.checkpoint_at.clone();
        at.sort();
        Ok(Checkpoints {
            args,
            output,
            at: at.into(),
            next: args.checkpoint_every.map(|every| Instant::now() + every),
            signals: 0,
            saved: 0,
            marks: Vec::new(),
        })
    }

    /// How long nothing is due, at most.
    pub fn pause(&self) -> Option<Duration> {
        let next = self
            .next
            .map(|next| next.saturating_duration_since(Instant::now()));
        let at = self.at.front().map(|&time| until(time));
        next.into_iter().chain(at).min()
    }

    /// Saves whatever is due. What fails is said, and the recording goes on.
    pub fn tick(
        &mut self,
        tree: &ProcessTree,
        lines: &mut lines::Lookup,
        interrupts: &Interrupts,
        watch: &Watch,
    ) {
        while let Some(reached) = tree.checkpoint() {
            let saved = reached.map_err(Into::into).and_then(|(function, profile)| {
                let path = self.save(profile, lines)?;
                Ok((format!("{function} was entered"), path))
            });
            tell(watch, saved);
        }
        if let Some(why) = self.due(interrupts) {
            let saved = tree.snapshot().map_err(Into::into);
            let saved = saved.and_then(|profile| self.save(profile, lines));
            tell(watch, saved.map(|path| (why, path)));
        }
    }

    /// When each was made.
    pub fn into_marks(self) -> Vec<Mark> {
        self.marks
    }

    fn due(&mut self, interrupts: &Interrupts) -> Option<String> {
        let mut why = None;
        if let (Some(next), Some(every)) = (self.next, self.args.checkpoint_every)
            && next <= Instant::now()
        {
            // One that took longer than the pause is followed by the next, not by all that were missed.
            self.next = Some((next + every).max(Instant::now()));
            why = Some(format!("every {every:?}"));
        }
        while self.at.front().is_some_and(|&time| until(time).is_zero()) {
            let time = self.at.pop_front()?.to_zoned(jiff::tz::TimeZone::system());
            why = Some(format!("it is {}", time.strftime("%H:%M:%S")));
        }
        let signals = interrupts.checkpoints();
        if signals != self.signals {
            self.signals = signals;
            why = Some("signal USR1".into());
        }
        why
    }

    fn save(&mut self, profile: Profile, lines: &mut lines::Lookup) -> anyhow::Result<PathBuf> {
        if !is_file(self.output) {
            bail!(
                "{} is not a file, and so has no place beside it",
                self.output.display()
            );
        }
        let path = numbered(self.output, self.saved + 1);
        let output = OutputFile::create(&path)?;
        let at_ns = profile.meta.duration_ns;
        output.save(&completed(profile, lines))?;
        self.saved += 1;
        self.marks.push(Mark {
            at_ns,
            text: format!("checkpoint {}", self.saved),
        });
        let outdated = self
            .args
            .checkpoint_keep
            .and_then(|keep| self.saved.checked_sub(keep));
        if let Some(outdated) = outdated.filter(|&number| number > 0) {
            let path = numbered(self.output, outdated);
            std::fs::remove_file(&path)
                .with_context(|| format!("cannot remove {}, which is outdated", path.display()))?;
        }
        Ok(path)
    }
}

fn is_file(path: &Path) -> bool {
    path.file_name().is_some() && std::fs::metadata(path).map_or(true, |meta| meta.is_file())
}

fn tell(watch: &Watch, saved: anyhow::Result<(String, PathBuf)>) {
    match saved {
        Ok((why, path)) => watch.say(&format!("checkpoint ({why}): {}", path.display())),
        Err(error) => watch.warn(&format!("a checkpoint could not be made: {error:#}")),
    }
}

/// `profile.thalweg`, 3 -> `profile.3.thalweg`
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!(".{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<String, String> {
        let now: Zoned = "2026-03-28T12:00:00+01:00[Europe/Berlin]".parse().unwrap();
        let time = parse_time_after(text, &now)?;
        Ok(time
            .to_zoned(now.time_zone().clone())
            .datetime()
            .to_string())
    }

    #[test]
    fn a_time_of_day_is_the_next_one_and_a_date_must_be_ahead() {
        assert_eq!(parsed("17:30").unwrap(), "2026-03-28T17:30:00");
        assert_eq!(parsed("17:30:05").unwrap(), "2026-03-28T17:30:05");
        assert_eq!(parsed("11:59").unwrap(), "2026-03-29T11:59:00");
        // The night in which the clocks go from 2 to 3.
        assert_eq!(parsed("02:30").unwrap(), "2026-03-29T03:30:00");
        assert_eq!(parsed("2026-04-01T08:00").unwrap(), "2026-04-01T08:00:00");
        assert_eq!(
            parsed("2026-04-01 08:00:09").unwrap(),
            "2026-04-01T08:00:09"
        );
        assert_eq!(
            parsed("2026-04-01T08:00:00Z").unwrap(),
            "2026-04-01T10:00:00"
        );
        assert!(parsed("2026-03-28T11:00").unwrap_err().contains("past"));
        for bad in [
            "",
            "17",
            "25:00",
            "17:61",
            "soon",
            "2026-02-30T08:00",
            "10s",
        ] {
            assert!(
                parsed(bad).is_err(),
                "{bad:?} was taken for {:?}",
                parsed(bad)
            );
        }
    }

    #[test]
    fn checkpoints_lie_beside_the_output_with_a_number() {
        let name = |path: &str| numbered(Path::new(path), 3).display().to_string();
        assert_eq!(name("profile.thalweg"), "profile.3.thalweg");
        assert_eq!(name("/var/tmp/a.b.thalweg"), "/var/tmp/a.b.3.thalweg");
        assert_eq!(name("plain"), "plain.3");
    }
}
