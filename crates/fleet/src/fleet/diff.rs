//! `thalweg fleet diff`: what a release changed, beyond what hosts and hours differ by.
//!
//! ```text
//! unit      = host x hour of a release
//! share     = self of the function / self of all, of one unit
//! change    = mean share after - mean share before
//! noise     = t * standard error, 95 %: the larger one of two, with units as the values, and with hosts' means as the values
//! error     = of the times: sum of errors / sum of self, of both sides; what is wrong everywhere alike does not average out
//! real      = |change| > error, and the test holds among all functions that are tested (Holm)
//! ```
//!
//! Hours of one host are more alike than hours of several: without the second way of counting many hours of few hosts would
//! prove anything.
//!
//! Hosts are read one after the other, so that memory does not grow with their number.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use arrow::array::{
    Array, AsArray, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, Schema, TimestampMicrosecondType};
use futures::{FutureExt, StreamExt};

use super::statistics::{Difference, Group, significant};
use super::{Selection, quoted};
use crate::labels::Label;
use crate::output::OutputArgs;
use crate::session::Session;

/// What changed from one release to another
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[arg(long, value_name = "STORE")]
    from: String,

    /// The release before
    #[arg(long, value_name = "RELEASE")]
    before: Label,

    /// The release after
    #[arg(long, value_name = "RELEASE")]
    after: Label,

    #[command(flatten)]
    selection: Selection,

    /// How many functions
    #[arg(short = 'n', long, default_value_t = 20)]
    limit: usize,

    /// Changes that may be chance as well
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    output: OutputArgs,

    /// Say how much of the store was read
    #[arg(long)]
    cost: bool,
}

const MICROSECONDS_PER_HOUR: i64 = 3_600_000_000;
const BEFORE: usize = 0;
const AFTER: usize = 1;

/// Of a function in one release.
#[derive(Clone, Copy, Default)]
struct Side {
    calls: u64,
    at_least: bool,
    self_ns: u64,
    error_ns: u64,
    of_units: Group,
    of_hosts: Group,
}

/// Of a release.
#[derive(Clone, Copy, Default)]
struct Whole {
    units: f64,
    hosts: f64,
    self_ns: u64,
    seconds: f64,
}

/// Functions by their numbers, and which one each context is.
struct Names {
    names: Vec<(String, String)>,
    trees: HashMap<i64, Vec<u32>>,
}

const NONE: u32 = u32::MAX;

async fn names(session: &Session, args: &Args) -> anyhow::Result<Names> {
    let sql = format!(
        "select tree, node, function, module from contexts where release in ({}, {}) and {}",
        quoted(args.before.as_str()),
        quoted(args.after.as_str()),
        args.selection.of_contexts()
    );
    let mut numbers: HashMap<(String, String), u32> = HashMap::new();
    let mut names = Names {
        names: Vec::new(),
        trees: HashMap::new(),
    };
    for batch in session.rows(&sql).await? {
        let trees = batch.column(0).as_primitive::<Int64Type>();
        let nodes = batch.column(1).as_primitive::<Int32Type>();
        let functions = cast(batch.column(2), &DataType::Utf8)?;
        let modules = cast(batch.column(3), &DataType::Utf8)?;
        let (functions, modules) = (functions.as_string::<i32>(), modules.as_string::<i32>());
        for row in 0..batch.num_rows() {
            let key = (
                functions.value(row).to_owned(),
                modules.value(row).to_owned(),
            );
            let number = *numbers.entry(key).or_insert_with_key(|key| {
                names.names.push(key.clone());
                names.names.len() as u32 - 1
            });
            let node = usize::try_from(nodes.value(row))
                .context("a context's number is none: 'thalweg store check'")?;
            let tree = names.trees.entry(trees.value(row)).or_default();
            if tree.len() <= node {
                if node > 100_000_000 {
                    bail!("a context's number is none: 'thalweg store check'");
                }
                tree.resize(node + 1, NONE);
            }
            tree[node] = number;
        }
    }
    Ok(names)
}

/// Of one unit of one host.
struct Unit {
    self_ns: Vec<u64>,
    all_ns: u64,
}

struct Sums {
    sides: Vec<[Side; 2]>,
    wholes: [Whole; 2],
}

/// One host's rows, of both releases.
async fn add_host(
    session: &Session,
    args: &Args,
    host: &Label,
    names: &Names,
    sums: &mut Sums,
) -> anyhow::Result<()> {
    let selection = Selection {
        hosts: vec![host.clone()],
        release: None,
        ..args.selection.clone()
    };
    let columns = "profile, duration_ns, release, time, tree, node, calls, calls_at_least, self_ns, self_error_ns";
    let sql = format!(
        "select {columns} from figures where release in ({}, {}) and {}",
        quoted(args.before.as_str()),
        quoted(args.after.as_str()),
        selection.of_rows()
    );
    let mut units: HashMap<(usize, i64), Unit> = HashMap::new();
    let mut seen: HashMap<i64, ()> = HashMap::new();
    let asked = async { anyhow::Ok(session.ask(&sql).await?.execute_stream().await?) };
    let mut rows = match asked.await {
        Ok(rows) => rows,
        Err(error) => return Err(session.explained(error).await),
    };
    loop {
        // The library of the file format panics at some of what is none.
        let batch = match AssertUnwindSafe(rows.next()).catch_unwind().await {
            Ok(Some(Ok(batch))) => batch,
            Ok(None) => break,
            Ok(Some(Err(error))) => return Err(session.explained(error.into()).await),
            Err(_) => return Err(session.explained(anyhow!("the engine panicked")).await),
        };
        let numbers = |index: usize| batch.column(index).as_primitive::<Int64Type>();
        let (profiles, durations) = (numbers(0), numbers(1));
        let releases = cast(batch.column(2), &DataType::Utf8)?;
        let releases = releases.as_string::<i32>();
        let times = batch.column(3).as_primitive::<TimestampMicrosecondType>();
        let (trees, nodes) = (numbers(4), batch.column(5).as_primitive::<Int32Type>());
        let (calls, own, errors) = (numbers(6), numbers(8), numbers(9));
        let at_least = batch.column(7).as_boolean();
        let mut start = 0;
        // Rows of one profile and tree stand together: what they share is looked up once.
        while start < batch.num_rows() {
            let (profile, tree) = (profiles.value(start), trees.value(start));
            let mut end = start + 1;
            while end < batch.num_rows()
                && profiles.value(end) == profile
                && trees.value(end) == tree
            {
                end += 1;
            }
            let side = if releases.value(start) == args.after.as_str() {
                AFTER
            } else {
                BEFORE
            };
            let hour = times.value(start).div_euclid(MICROSECONDS_PER_HOUR);
            if seen.insert(profile, ()).is_none() {
                sums.wholes[side].seconds += durations.value(start).max(0) as f64 / 1e9;
            }
            let functions = names
                .trees
                .get(&tree)
                .context("figures have a tree that contexts do not: 'thalweg store check'")?;
            let unit = units.entry((side, hour)).or_insert_with(|| Unit {
                self_ns: vec![0; names.names.len()],
                all_ns: 0,
            });
            for row in start..end {
                let number = usize::try_from(nodes.value(row))
                    .ok()
                    .and_then(|node| functions.get(node))
                    .copied();
                let Some(number) = number.filter(|number| *number != NONE) else {
                    bail!("figures have a context that contexts do not: 'thalweg store check'");
                };
                let own = if own.is_valid(row) {
                    own.value(row).max(0) as u64
                } else {
                    0
                };
                let sum = &mut unit.self_ns[number as usize];
                *sum = sum.saturating_add(own);
                unit.all_ns = unit.all_ns.saturating_add(own);
                let of_side = &mut sums.sides[number as usize][side];
                of_side.calls = of_side.calls.saturating_add(calls.value(row).max(0) as u64);
                of_side.at_least |= at_least.value(row);
                of_side.self_ns = of_side.self_ns.saturating_add(own);
                if errors.is_valid(row) {
                    of_side.error_ns = of_side
                        .error_ns
                        .saturating_add(errors.value(row).max(0) as u64);
                }
            }
            start = end;
        }
    }
    session.checked().await?;
    for side in [BEFORE, AFTER] {
        let mut means = vec![0.0; names.names.len()];
        let mut count = 0.0;
        for (_, unit) in units
            .iter()
            .filter(|((of, _), unit)| *of == side && unit.all_ns > 0)
        {
            count += 1.0;
            sums.wholes[side].self_ns = sums.wholes[side].self_ns.saturating_add(unit.all_ns);
            for (function, &own) in unit.self_ns.iter().enumerate().filter(|(_, own)| **own > 0) {
                let share = own as f64 / unit.all_ns as f64;
                sums.sides[function][side].of_units.add(share);
                means[function] += share;
            }
        }
        if count > 0.0 {
            sums.wholes[side].units += count;
            sums.wholes[side].hosts += 1.0;
            for (function, &share) in means.iter().enumerate().filter(|(_, share)| **share > 0.0) {
                sums.sides[function][side].of_hosts.add(share / count);
            }
        }
    }
    Ok(())
}

struct Change {
    function: usize,
    difference: f64,
    /// `None`: one unit on a side tells nothing of chance.
    noise: Option<f64>,
    probability: f64,
    error: f64,
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.before == args.after {
        bail!("--before and --after are the same release");
    }
    if args.selection.release.is_some() {
        bail!("--before and --after choose the releases, --release does not go with them");
    }
    let session = Session::open(&args.from).await?;
    let names = names(&session, &args).await?;
    let mut sums = Sums {
        sides: vec![[Side::default(); 2]; names.names.len()],
        wholes: [Whole::default(); 2],
    };
    for host in session.hosts(&args.selection).await? {
        add_host(&session, &args, &host, &names, &mut sums).await?;
    }
    for (side, release) in [(BEFORE, &args.before), (AFTER, &args.after)] {
        if sums.wholes[side].units == 0.0 {
            bail!(
                "no profile with times of release {release} is selected in {}",
                args.from
            );
        }
    }
    let changes = changes(&sums);
    let holds = significant(
        &changes
            .iter()
            .map(|change| change.probability)
            .collect::<Vec<_>>(),
    );
    let is_real = |(change, holds): &(Change, bool)| {
        *holds && change.difference.abs() > change.error && change.noise.is_some()
    };
    let mut shown: Vec<(Change, bool)> = changes.into_iter().zip(holds).collect();
    shown.iter_mut().for_each(|pair| pair.1 = is_real(pair));
    let unknown = shown.iter().all(|(change, _)| change.noise.is_none());
    shown.retain(|(_, real)| *real || args.all || unknown);
    shown.sort_by(|(a, _), (b, _)| b.difference.abs().total_cmp(&a.difference.abs()));
    shown.truncate(args.limit);
    let batch = rows(&shown, &names, &sums)?;
    args.output
        .write(&batch.schema(), std::slice::from_ref(&batch))?;
    let [before, after] = sums.wholes;
    tell!(
        "{}: {} hours of {} hosts; {}: {} hours of {} hosts{}",
        args.before,
        before.units,
        before.hosts,
        args.after,
        after.units,
        after.hosts,
        match (unknown, shown.is_empty()) {
            (true, _) => "; one hour on a side tells nothing of chance: all differences are shown",
            (false, true) => "; no change is more than chance or error: --all shows them",
            (false, false) => "",
        }
    );
    if args.cost {
        let (reads, bytes) = session.reads();
        tell!("read: {bytes} bytes in {reads} reads");
    }
    Ok(ExitCode::SUCCESS)
}

fn changes(sums: &Sums) -> Vec<Change> {
    let wholes = &sums.wholes;
    let seen = sums
        .sides
        .iter()
        .enumerate()
        .filter(|(_, sides)| sides.iter().any(|side| side.of_units.count > 0.0));
    seen.map(|(function, sides)| {
        let filled = |side: usize| sides[side].of_units.filled(wholes[side].units);
        let (before, after) = (filled(BEFORE), filled(AFTER));
        let difference = after.mean() - before.mean();
        let of_units = Difference::between(&before, &after);
        let by_host = |side: usize| sides[side].of_hosts.filled(wholes[side].hosts);
        let of_hosts = Difference::between(&by_host(BEFORE), &by_host(AFTER));
        let widest = of_units
            .into_iter()
            .chain(of_hosts)
            .max_by(|a, b| a.noise().total_cmp(&b.noise()));
        let error = |side: usize| sides[side].error_ns as f64 / wholes[side].self_ns.max(1) as f64;
        Change {
            function,
            difference,
            noise: widest.map(|widest| widest.noise()),
            probability: widest.map_or(1.0, |widest| widest.probability(difference)),
            error: error(BEFORE).hypot(error(AFTER)),
        }
    })
    .collect()
}

/// A column of floating-point numbers.
type Column<'a> = (
    &'a str,
    Box<dyn Fn(&Change, &[Side; 2]) -> Option<f64> + 'a>,
);

fn rows(shown: &[(Change, bool)], names: &Names, sums: &Sums) -> anyhow::Result<RecordBatch> {
    let wholes = sums.wholes;
    let percent = |share: f64| (1e6 * share).round() / 1e4;
    let mean = move |sides: &[Side; 2], side: usize| {
        sides[side].of_units.filled(wholes[side].units).mean()
    };
    let per_call = |side: &Side| {
        (side.calls > 0).then(|| (10.0 * side.self_ns as f64 / side.calls as f64).round() / 10.0)
    };
    let per_second = move |sides: &[Side; 2], side: usize| {
        (wholes[side].seconds > 0.0)
            .then(|| (10.0 * sides[side].calls as f64 / wholes[side].seconds).round() / 10.0)
    };
    let numbers: Vec<Column> = vec![
        (
            "percent_before",
            Box::new(move |_, sides| Some(percent(mean(sides, BEFORE)))),
        ),
        (
            "percent_after",
            Box::new(move |_, sides| Some(percent(mean(sides, AFTER)))),
        ),
        (
            "change",
            Box::new(move |change, _| Some(percent(change.difference))),
        ),
        (
            "noise",
            Box::new(move |change, _| change.noise.map(percent)),
        ),
        (
            "error",
            Box::new(move |change, _| Some(percent(change.error))),
        ),
        (
            "self_ns_per_call_before",
            Box::new(move |_, sides| per_call(&sides[BEFORE])),
        ),
        (
            "self_ns_per_call_after",
            Box::new(move |_, sides| per_call(&sides[AFTER])),
        ),
        (
            "calls_per_s_before",
            Box::new(move |_, sides| per_second(sides, BEFORE)),
        ),
        (
            "calls_per_s_after",
            Box::new(move |_, sides| per_second(sides, AFTER)),
        ),
    ];
    let name = |change: &Change| &names.names[change.function];
    let mut fields = vec![
        Field::new("function", DataType::Utf8, false),
        Field::new("module", DataType::Utf8, false),
    ];
    let mut columns: Vec<Arc<dyn Array>> = vec![
        Arc::new(StringArray::from_iter_values(
            shown.iter().map(|(change, _)| &name(change).0),
        )),
        Arc::new(StringArray::from_iter_values(
            shown.iter().map(|(change, _)| &name(change).1),
        )),
    ];
    for (column, value) in numbers {
        let values: Float64Array = shown
            .iter()
            .map(|(change, _)| value(change, &sums.sides[change.function]))
            .collect();
        fields.push(Field::new(column, DataType::Float64, true));
        columns.push(Arc::new(values));
    }
    for (column, side) in [("calls_before", BEFORE), ("calls_after", AFTER)] {
        let values = shown
            .iter()
            .map(|(change, _)| sums.sides[change.function][side].calls as i64);
        fields.push(Field::new(column, DataType::Int64, false));
        columns.push(Arc::new(Int64Array::from_iter_values(values)));
    }
    let at_least = |change: &Change| sums.sides[change.function].iter().any(|side| side.at_least);
    let truths: [(&str, Vec<bool>); 2] = [
        (
            "calls_at_least",
            shown.iter().map(|(change, _)| at_least(change)).collect(),
        ),
        ("real", shown.iter().map(|(_, real)| *real).collect()),
    ];
    for (column, values) in truths {
        fields.push(Field::new(column, DataType::Boolean, false));
        columns.push(Arc::new(BooleanArray::from(values)));
    }
    Ok(RecordBatch::try_new(
        Arc::new(Schema::new(fields)),
        columns,
    )?)
}
