//! `thalweg graph`: the call graph as a picture, a river of time.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::ValueEnum;
use thalweg_analysis::{Choice, flow_graph};
use thalweg_formats::graph::{self, Style, Width};
use thalweg_model::{FuncId, OutputFile, Profile};

use crate::args::{InputArgs, PruneArgs, named, parse_percent};
use crate::report;

/// Draw the call graph as a river: time flows from the start to where it is spent
///
/// Layers from left to right, arcs as wide as the time that flows through them, boxes shaded by the time that functions
/// keep for themselves. Functions below the cutoff are collapsed into their callers.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    pub input: InputArgs,

    /// Where to write; standard output when not given, or when it is -
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// What to write [default: as the name of the output ends, else svg]
    #[arg(short, long, value_enum)]
    pub format: Option<Format>,

    /// Collapse functions below this share of the whole [default: so that about 30 are left, at most 20]
    #[arg(short, long, value_name = "PERCENT", value_parser = parse_share)]
    pub cutoff: Option<f64>,

    /// Leave out arcs below this share of the whole, but for the heaviest that leads to a function
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub min_arc: Option<f64>,

    #[command(flatten)]
    pub prune: PruneArgs,

    /// Draw only what happens below this function, with shares of its time: a name, or a regular expression
    #[arg(short, long, value_name = "FUNCTION")]
    pub root: Option<String>,

    /// Width of arcs by time: none, linear, log, adaptive, or a table as 1%:1,10%:3,100%:8
    #[arg(short, long, value_name = "RULE", default_value = "linear")]
    pub width: Width,

    /// Pixels for each of the ten units of an arc's width
    #[arg(long, value_name = "PIXELS", default_value_t = 4.0, value_parser = parse_positive)]
    pub unit: f64,

    /// Longer names lose their middle
    #[arg(long, value_name = "LETTERS", default_value_t = 32)]
    pub name_length: usize,

    /// Pixels of a PNG per pixel of the picture
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0, value_parser = parse_positive)]
    pub scale: f64,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Svg,
    Png,
    /// For graphviz
    Dot,
}

impl Format {
    fn of_name(path: &Path) -> Option<Format> {
        match path.extension()?.to_str()? {
            "svg" => Some(Format::Svg),
            "png" => Some(Format::Png),
            "dot" | "gv" => Some(Format::Dot),
            _ => None,
        }
    }
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let profile = args.input.read()?;
    let least = args.prune.thresholds();
    let asked = !least.is_nothing();
    let from_name = args.output.as_deref().and_then(Format::of_name);
    let format = args.format.or(from_name).unwrap_or(Format::Svg);
    let root = args.root.as_deref();
    let root = root.map(|name| find(&profile, name)).transpose()?;
    let picture = picture(
        &profile,
        format,
        &Choice {
            cutoff: args.cutoff.or(asked.then_some(0.0)),
            least,
            thinnest: args.min_arc.map(|percent| percent / 100.0),
            root,
            ..Choice::default()
        },
        &Style {
            width: args.width,
            unit: args.unit,
            name_length: args.name_length.max(4),
            title: title(&profile, root),
        },
        args.scale,
    )?;
    match named(args.output) {
        Some(path) => OutputFile::create(path)?.save_with(|file| file.write_all(&picture))?,
        None => {
            if format == Format::Png && io::stdout().is_terminal() {
                bail!("a PNG would garble the terminal: name a file with -o");
            }
            io::stdout()
                .write_all(&picture)
                .context("cannot write to standard output")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// With everything as it is without options: what `export` writes.
pub fn write_default(profile: &Profile, format: Format, out: impl Write) -> io::Result<()> {
    let style = Style {
        title: title(profile, None),
        ..Style::default()
    };
    let picture = picture(profile, format, &Choice::default(), &style, 2.0);
    BufWriter::new(out).write_all(&picture.map_err(io::Error::other)?)
}

fn picture(
    profile: &Profile,
    format: Format,
    choice: &Choice,
    style: &Style,
    scale: f64,
) -> anyhow::Result<Vec<u8>> {
    let river = flow_graph(profile, choice);
    let mut picture = Vec::new();
    match format {
        Format::Dot => graph::dot::write(profile, &river, style, &mut picture)?,
        Format::Svg => graph::svg::write(&graph::draw(profile, &river, style), &mut picture)?,
        Format::Png => {
            graph::png::write(&graph::draw(profile, &river, style), scale, &mut picture)?;
        }
    }
    Ok(picture)
}

fn title(profile: &Profile, root: Option<FuncId>) -> String {
    let command = report::command_line(&profile.meta.command);
    match root {
        Some(root) => format!("{} in {command}", profile.functions[root.index()].name),
        None => command,
    }
}

/// Of the functions that match, the one that took most time.
fn find(profile: &Profile, name: &str) -> anyhow::Result<FuncId> {
    let matching = report::functions_matching(profile, "--root", name)?;
    let rows = thalweg_analysis::flat(profile);
    let rows = rows.iter().filter(|row| matching.contains(&row.function));
    let heaviest = rows.max_by_key(|row| (row.total_ns, row.calls));
    Ok(heaviest.map_or(matching[0], |row| row.function))
}

fn parse_share(text: &str) -> Result<f64, String> {
    let percent = text.trim_end_matches('%').parse::<f64>();
    percent
        .ok()
        .filter(|percent| (0.0..=100.0).contains(percent))
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "not a share: write a number from 0 to 100".to_string())
}

fn parse_positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok();
    number
        .filter(|number| (0.1..=50.0).contains(number))
        .ok_or_else(|| "write a number from 0.1 to 50".to_string())
}
