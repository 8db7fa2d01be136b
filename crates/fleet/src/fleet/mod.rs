//! `thalweg fleet`: ready questions.

mod diff;
mod find;
mod statistics;
mod top;
mod trend;

use std::process::ExitCode;

use anyhow::{Context, bail};
use jiff::{SignedDuration, Timestamp};

use crate::labels::Label;

/// Ready questions to a store: what is hot, what changed, since when, and who calls whom
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Command {
    Top(top::Args),
    Diff(diff::Args),
    Trend(trend::Args),
    Find(find::Args),
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Top(args) => top::run(args).await,
        Command::Diff(args) => diff::run(args).await,
        Command::Trend(args) => trend::run(args).await,
        Command::Find(args) => find::run(args).await,
    }
}

/// Which profiles a question is about.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Selection")]
pub struct Selection {
    /// Of this service
    #[arg(long, value_name = "NAME")]
    pub service: Option<Label>,

    /// Of these hosts (may be given several times)
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<Label>,

    /// Of this release
    #[arg(long, value_name = "NAME")]
    pub release: Option<Label>,

    /// Begun at this time or later: a date, a time (2026-11-19T08:00:00Z), or how long ago (90m, 24h, 7d)
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    pub since: Option<Timestamp>,

    /// Begun before this time
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    pub until: Option<Timestamp>,
}

impl Selection {
    /// A condition for rows of figures. Labels have no quotes.
    pub fn of_rows(&self) -> String {
        let mut all = Vec::new();
        if let Some(service) = &self.service {
            all.push(format!("service = '{service}'"));
        }
        if !self.hosts.is_empty() {
            let hosts: Vec<String> = self.hosts.iter().map(|host| format!("'{host}'")).collect();
            all.push(format!("host in ({})", hosts.join(", ")));
        }
        if let Some(release) = &self.release {
            all.push(format!("release = '{release}'"));
        }
        // Folders are by date: others are not even listed.
        let (since, until) = (self.since, self.until);
        match (since.map(date), until.map(date)) {
            (Some(first), Some(last)) if first == last => all.push(format!("date = '{first}'")),
            (first, last) => {
                all.extend(first.map(|first| format!("date >= '{first}'")));
                all.extend(last.map(|last| format!("date <= '{last}'")));
            }
        }
        all.extend(since.map(|since| format!("time >= timestamp '{since}'")));
        all.extend(until.map(|until| format!("time < timestamp '{until}'")));
        joined(all)
    }

    /// The same for rows of contexts.
    pub fn of_contexts(&self) -> String {
        let mut all = Vec::new();
        all.extend(
            self.service
                .as_ref()
                .map(|service| format!("service = '{service}'")),
        );
        all.extend(
            self.release
                .as_ref()
                .map(|release| format!("release = '{release}'")),
        );
        joined(all)
    }
}

fn date(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d").to_string()
}

fn joined(all: Vec<String>) -> String {
    match all.is_empty() {
        true => "true".to_owned(),
        false => all.join(" and "),
    }
}

/// As text in SQL.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

pub fn parse_when(text: &str) -> Result<Timestamp, String> {
    if let Ok(ago) = parse_duration(text) {
        let ago = SignedDuration::try_from(ago).map_err(|_| "that is too long ago".to_owned())?;
        return Timestamp::now()
            .checked_sub(ago)
            .map_err(|_| "that is too long ago".to_owned());
    }
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    let date: Result<jiff::civil::Date, _> = text.parse();
    let midnight = date.and_then(|date| date.to_zoned(jiff::tz::TimeZone::UTC));
    midnight
        .map(|time| time.timestamp())
        .map_err(|_| "a date, a time with a zone, or how long ago: 90m, 24h, 7d".to_owned())
}

/// `90s`, `10m`, `24h`, `7d`.
pub fn parse_duration(text: &str) -> anyhow::Result<std::time::Duration> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "ms" => {
            return Ok(std::time::Duration::from_millis(
                number.parse().context("a number and ms")?,
            ));
        }
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => bail!("a number and ms, s, m, h or d"),
    };
    let number: u64 = number.parse().context("a number and ms, s, m, h or d")?;
    Ok(std::time::Duration::from_secs(
        number.checked_mul(seconds).context("that is too long")?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates_or_how_long_ago() {
        assert_eq!(
            parse_when("2026-11-19").unwrap().to_string(),
            "2026-11-19T00:00:00Z"
        );
        assert_eq!(
            parse_when("2026-11-19T08:00:00Z").unwrap().to_string(),
            "2026-11-19T08:00:00Z"
        );
        assert!(parse_when("7d").unwrap() < parse_when("1h").unwrap());
        for bad in [
            "",
            "d",
            "7",
            "7w",
            "yesterday",
            "99999999999999999999d",
            "9999999999999d",
        ] {
            assert!(parse_when(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_selection_of_one_day_names_its_folder() {
        let selection = Selection {
            service: Some("web".parse().unwrap()),
            since: Some(parse_when("2026-11-19T01:00:00Z").unwrap()),
            until: Some(parse_when("2026-11-19T02:00:00Z").unwrap()),
            ..Selection::default()
        };
        let rows = selection.of_rows();
        assert!(
            rows.starts_with("service = 'web' and date = '2026-11-19' and time >= "),
            "{rows}"
        );
        assert_eq!(selection.of_contexts(), "service = 'web'");
        assert_eq!(Selection::default().of_rows(), "true");
    }
}
