//! `thalweg probe`: what would be patched, how, and what would be skipped and why. Touches nothing.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ArgGroup;
use serde::Serialize;
use thalweg_instrument::survey::{Survey, Surveyed};
use thalweg_model::Skipped;
use thalweg_ptrace::proc::{self, Pid};

use crate::args::FilterArgs;
use crate::live::AnalysisBar;
use crate::report::printable;

/// Say what would be patched in a file or a running process, how, and what would be skipped and why
#[derive(clap::Args, Debug)]
#[command(group = ArgGroup::new("target").required(true).args(["file", "pid"]))]
pub struct Args {
    /// An executable or a shared library
    pub file: Option<PathBuf>,

    /// Every module of this running process
    #[arg(short, long)]
    pub pid: Option<u32>,

    #[command(flatten)]
    pub filter: FilterArgs,

    /// List each skipped function with its reason
    #[arg(long)]
    pub skipped: bool,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let filter = args.filter.build()?;
    let survey = match (&args.file, args.pid) {
        (Some(file), _) => Survey::of_file(file, &filter)?,
        (None, Some(pid)) => {
            let bar = AnalysisBar::new(args.json);
            proc::preflight(Pid(pid as i32))?;
            Survey::of_process(Pid(pid as i32), &filter, &|done, all, name| {
                bar.show(done, all, name)
            })?
        }
        (None, None) => unreachable!("clap requires one of them"),
    };
    let modules: Vec<ModuleRow> = survey.modules.iter().map(row).collect();
    let skipped = survey.catalog().skipped;
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.json {
        let skipped: Vec<_> = skipped
            .iter()
            .map(|s| {
                serde_json::json!({"name": s.name, "module": s.module, "address": format!("{:#x}", s.address), "reason": s.reason})
            })
            .collect();
        serde_json::to_writer_pretty(
            &mut out,
            &serde_json::json!({"modules": modules, "skipped": skipped}),
        )?;
        writeln!(out)?;
    } else {
        print(&modules, &skipped, args.skipped, &mut out)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct ModuleRow {
    module: String,
    functions: usize,
    patched: usize,
    exits: usize,
    /// How many functions need which means.
    methods: BTreeMap<String, usize>,
    stub_bytes: u64,
}

fn row(surveyed: &Surveyed) -> ModuleRow {
    let plan = &surveyed.plan;
    let mut methods = BTreeMap::new();
    for function in &plan.functions {
        *methods.entry(function.method.to_string()).or_insert(0) += 1;
    }
    let left_alone = if surveyed.left_alone.is_some() {
        surveyed.module.functions.len()
    } else {
        0
    };
    ModuleRow {
        module: surveyed.module.name.clone(),
        functions: plan.functions.len() + plan.skipped.len() + left_alone,
        patched: plan.functions.len(),
        exits: plan.functions.iter().map(|f| f.exits).sum(),
        methods,
        stub_bytes: plan.stub_size_bound(),
    }
}

fn print(
    modules: &[ModuleRow],
    skipped: &[Skipped],
    list: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    writeln!(
        out,
        "{:>9} {:>9} {:>8} {:>9}  {:<28} how",
        "functions", "patched", "%", "exits", "module"
    )?;
    let all = ModuleRow {
        module: "all".into(),
        functions: modules.iter().map(|m| m.functions).sum(),
        patched: modules.iter().map(|m| m.patched).sum(),
        exits: modules.iter().map(|m| m.exits).sum(),
        methods: modules.iter().flat_map(|m| &m.methods).fold(
            BTreeMap::new(),
            |mut sums, (method, count)| {
                *sums.entry(method.clone()).or_insert(0) += count;
                sums
            },
        ),
        stub_bytes: modules.iter().map(|m| m.stub_bytes).sum(),
    };
    for row in modules.iter().chain((modules.len() > 1).then_some(&all)) {
        let share = if row.functions == 0 {
            0.0
        } else {
            row.patched as f64 * 100.0 / row.functions as f64
        };
        let how: Vec<String> = row
            .methods
            .iter()
            .map(|(method, count)| format!("{count} {method}"))
            .collect();
        writeln!(
            out,
            "{:>9} {:>9} {share:>8.2} {:>9}  {:<28} {}",
            row.functions,
            row.patched,
            row.exits,
            printable(&row.module),
            how.join(", ")
        )?;
    }
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for skip in skipped {
        *reasons.entry(without_addresses(&skip.reason)).or_insert(0) += 1;
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    if !reasons.is_empty() {
        writeln!(
            out,
            "\nLeft alone{}:",
            if list { "" } else { " (--skipped lists them)" }
        )?;
    }
    for (reason, count) in reasons {
        writeln!(out, "{count:>9} {}", printable(&reason))?;
    }
    if list {
        writeln!(out)?;
        for skip in skipped {
            writeln!(
                out,
                "{:<24} {:#10x} {}: {}",
                printable(&skip.module),
                skip.address,
                printable(&skip.name),
                printable(&skip.reason)
            )?;
        }
    }
    Ok(())
}

/// `no room at 0x1234` -> `no room at ...`: one line for all functions with the same reason.
fn without_addresses(reason: &str) -> String {
    let words = reason.split(' ').map(|word| {
        let bare = word.trim_end_matches([',', ':']);
        if bare.starts_with("0x") || bare.bytes().all(|b| b.is_ascii_digit()) {
            "..."
        } else {
            word
        }
    });
    words.collect::<Vec<_>>().join(" ")
}
