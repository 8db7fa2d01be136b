//! What the agent is told: a file, options, or both. An option wins over the file.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use regex::Regex;
use serde::Deserialize;

use super::host::Limits;
use super::spool::Bounds;
use crate::fleet::parse_duration;
use crate::labels::Label;

/// Larger files are none of settings.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Names stand in the names of spooled files, which Linux bounds.
const MAX_LABEL_BYTES: usize = 160;

/// Record processes of this host again and again, into a store
///
/// Chosen processes are recorded one at a time, for --for out of each --every. Profiles wait in a
/// spool while the store is away. SIGTERM ends it, and leaves no process attached.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Args {
    /// Settings from a TOML file: these options by their names, and a [[process]] for each group
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    options: Options,

    #[command(flatten)]
    process: Group,

    /// Print errors and warnings only
    #[arg(short, long)]
    quiet: bool,
}

#[derive(clap::Args, Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct Options {
    /// The store: a directory, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix
    #[arg(long, value_name = "STORE")]
    to: Option<String>,

    /// How often each process is recorded [default: 10m]
    #[arg(long, value_name = "TIME")]
    every: Option<String>,

    /// For how long [default: 5s]
    #[arg(long = "for", value_name = "TIME")]
    #[serde(rename = "for")]
    duration: Option<String>,

    /// How much slower that may make it meanwhile [default: 2%]
    #[arg(long, value_name = "PERCENT")]
    budget: Option<String>,

    /// How many processes of a group are recorded within --every; of more, each in its turn
    /// [default: 8]
    #[arg(long, value_name = "N")]
    at_most: Option<usize>,

    /// Nothing is recorded while the load of a minute is above this, for each processor, or 'off'
    /// [default: 1.5]
    #[arg(long, value_name = "LOAD")]
    max_load: Option<String>,

    /// The same, by the share of time in which tasks waited for a processor or for memory, or 'off'
    /// [default: 40%]
    #[arg(long, value_name = "PERCENT")]
    max_pressure: Option<String>,

    /// Where profiles wait for the store: a directory of the agent's own [default:
    /// /var/spool/thalweg]
    #[arg(long, value_name = "DIRECTORY")]
    spool: Option<PathBuf>,

    /// How much may wait; the oldest is dropped [default: 256M]
    #[arg(long, value_name = "SIZE")]
    spool_size: Option<String>,

    /// For how long [default: 7d]
    #[arg(long, value_name = "TIME")]
    spool_age: Option<String>,

    /// Nothing is recorded with less room on the spool's disk [default: 256M]
    #[arg(long, value_name = "SIZE")]
    keep_free: Option<String>,

    /// This host, in the store [default: its name]
    #[arg(long, value_name = "NAME")]
    host: Option<Label>,

    /// One more option of 'thalweg record', as --record-option=--memory=64M (may be given several
    /// times)
    #[arg(long = "record-option", value_name = "OPTION")]
    #[serde(rename = "record-options")]
    record_options: Vec<String>,

    /// The program 'thalweg' [default: beside this one, else on PATH]
    #[arg(long, value_name = "FILE")]
    thalweg: Option<PathBuf>,

    #[arg(skip)]
    #[serde(rename = "process")]
    groups: Vec<Group>,
}

/// Processes that are chosen together. All that is given must hold.
#[derive(clap::Args, Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[command(next_help_heading = "Which processes")]
pub struct Group {
    /// Name of the process, or of its program's file
    #[arg(long, value_name = "REGEX")]
    #[serde(deserialize_with = "pattern")]
    pub name: Option<Regex>,

    /// Its command line
    #[arg(long, value_name = "REGEX")]
    #[serde(deserialize_with = "pattern")]
    pub command: Option<Regex>,

    /// Its cgroup, such as /system.slice/web.service
    #[arg(long, value_name = "REGEX")]
    #[serde(deserialize_with = "pattern")]
    pub cgroup: Option<Regex>,

    /// Name or number of the user that it runs as
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,

    /// The service that it is a part of, in the store [default: the name of the program]
    #[arg(long, value_name = "NAME")]
    pub service: Option<Label>,

    /// Which version of it [default: the beginning of the program's build-id]
    #[arg(long, value_name = "NAME")]
    pub release: Option<Label>,

    #[arg(skip)]
    #[serde(skip)]
    pub uid: Option<u32>,
}

fn pattern<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Regex>, D::Error> {
    let text = String::deserialize(from)?;
    Regex::new(&text)
        .map(Some)
        .map_err(serde::de::Error::custom)
}

impl Group {
    fn is_given(&self) -> bool {
        self.chooses() || self.service.is_some() || self.release.is_some()
    }

    fn chooses(&self) -> bool {
        self.name.is_some()
            || self.command.is_some()
            || self.cgroup.is_some()
            || self.user.is_some()
    }
}

/// What it comes to.
#[derive(Clone, Debug)]
pub struct Settings {
    pub to: String,
    pub every: Duration,
    pub duration: Duration,
    pub budget: String,
    pub at_most: usize,
    pub limits: Limits,
    pub spool: PathBuf,
    pub bounds: Bounds,
    pub host: Option<Label>,
    pub record_options: Vec<String>,
    pub thalweg: PathBuf,
    pub groups: Vec<Group>,
    pub quiet: bool,
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "records for {:?} every {:?} at {}, to {} by way of {}",
            self.duration,
            self.every,
            self.budget,
            self.to,
            self.spool.display()
        )
    }
}

impl Args {
    pub fn settings(self) -> anyhow::Result<Settings> {
        let file = match &self.config {
            Some(path) => read(path)?,
            None => Options::default(),
        };
        let given = self.options;
        let mut groups = file.groups;
        if self.process.is_given() {
            groups.insert(0, self.process);
        }
        for (number, group) in groups.iter_mut().enumerate() {
            check(group, given.host.as_ref().or(file.host.as_ref()))
                .with_context(|| format!("group {} of processes", number + 1))?;
        }
        if groups.is_empty() {
            bail!(
                "which processes? --name, --command, --cgroup or --user, or [[process]] in --config FILE"
            );
        }
        let text = |one: Option<String>, other: Option<String>, usual: &str| {
            one.or(other).unwrap_or_else(|| usual.to_owned())
        };
        let time = |name: &str, one, other, usual: &str| {
            let text = text(one, other, usual);
            parse_duration(&text).with_context(|| format!("{name} = {text}"))
        };
        let size = |name: &str, one, other, usual: &str| {
            let text = text(one, other, usual);
            parse_size(&text).with_context(|| format!("{name} = {text}"))
        };
        let settings = Settings {
            to: given
                .to
                .or(file.to)
                .context("which store? --to STORE, or 'to' in --config FILE")?,
            every: time("every", given.every, file.every, "10m")?,
            duration: time("for", given.duration, file.duration, "5s")?,
            budget: text(given.budget, file.budget, "2%"),
            at_most: given.at_most.or(file.at_most).unwrap_or(8),
            limits: Limits {
                load: text(given.max_load, file.max_load, "1.5").parse()?,
                pressure: text(given.max_pressure, file.max_pressure, "40%").parse()?,
            },
            spool: given
                .spool
                .or(file.spool)
                .unwrap_or_else(|| "/var/spool/thalweg".into()),
            bounds: Bounds {
                bytes: size("spool-size", given.spool_size, file.spool_size, "256M")?,
                age: time("spool-age", given.spool_age, file.spool_age, "7d")?,
                keep_free: size("keep-free", given.keep_free, file.keep_free, "256M")?,
            },
            host: given.host.or(file.host),
            record_options: [file.record_options, given.record_options].concat(),
            thalweg: match given.thalweg.or(file.thalweg) {
                Some(path) => path,
                None => find()?,
            },
            groups,
            quiet: self.quiet,
        };
        if settings.duration.is_zero() || settings.every < settings.duration {
            bail!(
                "every {:?} for {:?}: a recording must end before the next one begins",
                settings.every,
                settings.duration
            );
        }
        if settings.at_most == 0 {
            bail!("at-most = 0 records nothing");
        }
        if !settings.thalweg.is_file() {
            bail!("{} is no program", settings.thalweg.display());
        }
        Ok(settings)
    }
}

fn read(path: &std::path::Path) -> anyhow::Result<Options> {
    let problem = || format!("cannot read {}", path.display());
    let size = std::fs::metadata(path).with_context(problem)?.len();
    if size > MAX_FILE_BYTES {
        bail!("{} is too large for settings", path.display());
    }
    let text = std::fs::read_to_string(path).with_context(problem)?;
    toml::from_str(&text).with_context(problem)
}

fn check(group: &mut Group, host: Option<&Label>) -> anyhow::Result<()> {
    if !group.chooses() {
        bail!("it chooses nothing: it needs a name, command, cgroup or user");
    }
    let labels = [group.service.as_ref(), group.release.as_ref(), host];
    let bytes: usize = labels
        .into_iter()
        .flatten()
        .map(|label| label.as_str().len())
        .sum();
    if bytes > MAX_LABEL_BYTES {
        bail!(
            "service, release and host have {bytes} characters: at most {MAX_LABEL_BYTES} together"
        );
    }
    group.uid = group.user.as_deref().map(uid).transpose()?;
    Ok(())
}

/// By `/etc/passwd`; users of other directories have a number.
fn uid(user: &str) -> anyhow::Result<u32> {
    if let Ok(number) = user.parse() {
        return Ok(number);
    }
    let all = std::fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    let mut lines = all.lines().map(|line| line.split(':'));
    let found = lines.find_map(|mut fields| {
        let is_it = fields.next() == Some(user);
        is_it.then(|| fields.nth(1)).flatten()?.parse().ok()
    });
    found.with_context(|| format!("there is no user '{user}' in /etc/passwd: give the number"))
}

/// Beside this program, or where the shell would look.
fn find() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(|own| own.parent());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = beside
        .map(PathBuf::from)
        .into_iter()
        .chain(std::env::split_paths(&path));
    folders
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("thalweg"))
        .find(|program| program.is_file())
        .context(
            "this needs thalweg, which is neither beside this program nor on PATH: --thalweg FILE",
        )
}

/// `64K`, `256M`, `2G`, or bytes.
fn parse_size(text: &str) -> anyhow::Result<u64> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => bail!("a number and K, M or G"),
    };
    let number: u64 = number.parse().context("a number and K, M or G")?;
    number.checked_mul(1 << shift).context("that is too much")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_options_by_their_names() {
        let text = r#"
            to = "s3://b/p"
            every = "1h"
            for = "3s"
            max-load = "off"
            record-options = ["--memory", "64M"]
            [[process]]
            name = "^nginx$"
            service = "web"
            [[process]]
            user = "root"
        "#;
        let options: Options = toml::from_str(text).unwrap();
        assert_eq!(options.duration.as_deref(), Some("3s"));
        assert_eq!(options.max_load.as_deref(), Some("off"));
        assert_eq!(options.groups.len(), 2);
        assert!(options.groups[0].name.as_ref().unwrap().is_match("nginx"));
        for bad in [
            "evry = '1h'",
            "[[process]]\nname = '('",
            "[[process]]\nnam = 'a'",
        ] {
            assert!(toml::from_str::<Options>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_have_a_unit() {
        assert_eq!(parse_size("64K").unwrap(), 65_536);
        assert_eq!(parse_size("7").unwrap(), 7);
        for bad in ["", "M", "1X", "-1", "99999999999G"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn users_have_numbers() {
        assert_eq!(uid("root").unwrap(), 0);
        assert_eq!(uid("1234").unwrap(), 1234);
        assert!(uid("no such user").is_err());
    }
}
