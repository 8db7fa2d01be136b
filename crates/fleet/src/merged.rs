//! Rows of a store as a profile again: contexts of all hosts by their paths, exact sums.
//!
//! ```text
//! calls, self, waiting, metrics      summed
//! total, wall                        made of those below, as in every profile
//! min, max                           the least, the most
//! ```

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context as _, bail};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use thalweg_model::{
    FuncId, Function, Language, Meta, Metric, Module, Node, NodeFlags, OutputFile, ProbeCosts,
    Process, Profile, Thread,
};

use crate::costs;
use crate::fleet::Selection;
use crate::schema::metric_column;
use crate::session::Session;

/// Of one context.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    calls: u64,
    at_least: bool,
    self_ns: u64,
    waiting_ns: u64,
    min_ns: Option<u64>,
    max_ns: u64,
    untimed: u64,
    unwound: u64,
    sampled: bool,
    open: bool,
    metrics: [u64; Metric::ALL.len()],
}

/// A row of `contexts`.
struct About {
    parent: Option<i64>,
    folded: bool,
    function: FuncId,
}

/// A column of an answer as numbers, if it has it.
struct Numbers(Option<arrow::array::Int64Array>);

impl Numbers {
    fn of(batch: &RecordBatch, name: &str) -> anyhow::Result<Numbers> {
        let Some(column) = batch.column_by_name(name) else {
            return Ok(Numbers(None));
        };
        let column = cast(column, &DataType::Int64)
            .with_context(|| format!("the column {name} is no number"))?;
        Ok(Numbers(Some(column.as_primitive::<Int64Type>().clone())))
    }

    fn at(&self, row: usize) -> Option<i64> {
        let column = self.0.as_ref()?;
        column.is_valid(row).then(|| column.value(row))
    }

    fn count(&self, row: usize) -> u64 {
        self.at(row).map_or(0, |value| value.max(0) as u64)
    }
}

fn add(sums: &mut HashMap<i64, Sums>, batch: &RecordBatch) -> anyhow::Result<()> {
    let of = |name: &str| Numbers::of(batch, name);
    let paths = of("path")?;
    if paths.0.is_none() {
        bail!(
            "an answer becomes a profile by its column path: select path, sum(calls) as calls, sum(self_ns) as self_ns ... group by path"
        );
    }
    let (calls, own, waiting) = (of("calls")?, of("self_ns")?, of("waiting_ns")?);
    let (min, max) = (of("min_ns")?, of("max_ns")?);
    let (untimed, unwound) = (of("untimed")?, of("unwound")?);
    let (at_least, sampled, open) = (of("calls_at_least")?, of("sampled")?, of("open")?);
    let metrics: Vec<Numbers> = Metric::ALL
        .into_iter()
        .map(|metric| of(&metric_column(metric)))
        .collect::<Result<_, _>>()?;
    for row in 0..batch.num_rows() {
        let Some(path) = paths.at(row) else {
            continue;
        };
        let sum = sums.entry(path).or_default();
        for (sum, more) in [
            (&mut sum.calls, &calls),
            (&mut sum.self_ns, &own),
            (&mut sum.waiting_ns, &waiting),
            (&mut sum.untimed, &untimed),
            (&mut sum.unwound, &unwound),
        ] {
            *sum = sum.saturating_add(more.count(row));
        }
        for (sum, metric) in sum.metrics.iter_mut().zip(&metrics) {
            *sum = sum.saturating_add(metric.count(row));
        }
        if let Some(least) = min.at(row).filter(|&least| least >= 0) {
            sum.min_ns = Some(
                sum.min_ns
                    .map_or(least as u64, |known| known.min(least as u64)),
            );
        }
        sum.max_ns = sum.max_ns.max(max.count(row));
        sum.at_least |= at_least.count(row) > 0;
        sum.sampled |= sampled.count(row) > 0;
        sum.open |= open.count(row) > 0;
    }
    Ok(())
}

/// `query ... --as FILE`.
pub async fn from_answer(
    session: &Session,
    rows: &[RecordBatch],
    path: &Path,
) -> anyhow::Result<()> {
    let mut sums = HashMap::new();
    for batch in rows {
        add(&mut sums, batch)?;
    }
    let has_time = rows
        .iter()
        .any(|batch| batch.column_by_name("self_ns").is_some());
    save(session, sums, has_time, &Selection::default(), path).await
}

/// `fleet top --as FILE`: all that was selected.
pub async fn from_selection(
    session: &Session,
    selection: &Selection,
    path: &Path,
) -> anyhow::Result<()> {
    let metrics: Vec<String> = Metric::ALL
        .iter()
        .map(|metric| sum(&metric_column(*metric)))
        .collect();
    let names = ["calls", "self_ns", "waiting_ns", "untimed", "unwound"]
        .map(sum)
        .join(", ");
    let sql = format!(
        "with s as (select tree, node, {names}, min(min_ns) as min_ns, max(max_ns) as max_ns, \
         bool_or(calls_at_least) as calls_at_least, bool_or(sampled) as sampled, bool_or(open) as open, {} \
         from figures where {} group by tree, node) \
         select c.path, s.* from s join (select distinct tree, node, path from contexts where {}) c \
         on s.tree = c.tree and s.node = c.node",
        metrics.join(", "),
        selection.of_rows(),
        selection.of_contexts(),
    );
    let mut sums = HashMap::new();
    for batch in session.rows(&sql).await? {
        add(&mut sums, &batch)?;
    }
    save(session, sums, true, selection, path).await
}

fn sum(column: &str) -> String {
    format!("sum({column}) as {column}")
}

async fn save(
    session: &Session,
    sums: HashMap<i64, Sums>,
    has_time: bool,
    selection: &Selection,
    path: &Path,
) -> anyhow::Result<()> {
    if sums.is_empty() {
        bail!("nothing was found, of which a profile could be made");
    }
    let output = OutputFile::create(path)?;
    let mut profile = tree(session, sums, selection).await?;
    let about = about(session, selection).await?;
    profile.meta.timed = has_time && about.timed;
    profile.meta.costs = about.costs;
    profile.meta.created_unix_ns = about.began_unix_ns;
    profile.meta.duration_ns = about.duration_ns;
    profile.meta.version = env!("CARGO_PKG_VERSION").to_owned();
    profile.notes.push(format!(
        "merged from {} profiles of {} hosts in a store, contexts of all of them by their paths",
        about.profiles, about.hosts
    ));
    output.save(&profile)?;
    Ok(())
}

/// What the selected profiles have in common.
struct Whole {
    profiles: u64,
    hosts: u64,
    timed: bool,
    began_unix_ns: u64,
    duration_ns: u64,
    /// Those with the largest error: nothing is told better than it is known.
    costs: Option<ProbeCosts>,
}

async fn about(session: &Session, selection: &Selection) -> anyhow::Result<Whole> {
    let sql = format!(
        "select count(distinct profile) as profiles, count(distinct host) as hosts, bool_and(timed) as timed, \
         cast(min(time) as bigint) as began, max(duration_ns) as duration from figures where {}",
        selection.of_rows()
    );
    let rows = session.rows(&sql).await?;
    let row = rows
        .first()
        .filter(|batch| batch.num_rows() == 1)
        .context("nothing was found")?;
    let number = |name: &str| Numbers::of(row, name).map(|numbers| numbers.count(0));
    let sql = format!(
        "select distinct probe_costs from figures where {}",
        selection.of_rows()
    );
    let mut worst: Option<ProbeCosts> = None;
    for batch in session.rows(&sql).await? {
        let texts = cast(batch.column(0), &DataType::Utf8)?;
        for text in texts.as_string::<i32>().iter().flatten() {
            let known = costs::from_text(text);
            let size = |costs: &ProbeCosts| {
                (costs.error + costs.spread) * (costs.inner_ns + costs.outer_ns).abs()
            };
            if let Some(known) =
                known.filter(|known| worst.is_none_or(|worst| size(known) > size(&worst)))
            {
                worst = Some(known);
            }
        }
    }
    Ok(Whole {
        profiles: number("profiles")?,
        hosts: number("hosts")?,
        timed: number("timed")? > 0,
        began_unix_ns: number("began")?.saturating_mul(1000),
        duration_ns: number("duration")?,
        costs: worst,
    })
}

/// One thread with all contexts: those of the sums, and those above them.
async fn tree(
    session: &Session,
    sums: HashMap<i64, Sums>,
    selection: &Selection,
) -> anyhow::Result<Profile> {
    let mut profile = Profile::default();
    let known = contexts(session, selection, &mut profile).await?;
    let mut indices: HashMap<i64, u32> = HashMap::new();
    let mut nodes: Vec<Node> = Vec::new();
    let mut at_least = Vec::new();
    let mut thread = Thread {
        tid: 1,
        name: "all".to_owned(),
        ..Thread::default()
    };
    let mut measured = [false; Metric::ALL.len()];
    let mut paths: Vec<i64> = sums.keys().copied().collect();
    paths.sort_unstable();
    for path in paths {
        // From here up to what is there already.
        let mut missing = Vec::new();
        let mut at = Some(path);
        while let Some(one) = at.filter(|one| !indices.contains_key(one)) {
            let about = known.get(&one).context(
                "the store has figures of a context that it does not have: 'thalweg store check'",
            )?;
            missing.push(one);
            at = about.parent;
            if missing.len() > known.len() {
                bail!("the store has contexts that are their own callers: 'thalweg store check'");
            }
        }
        let mut parent = at.map(|at| indices[&at]);
        for one in missing.into_iter().rev() {
            let about = &known[&one];
            let sum = sums.get(&one).copied().unwrap_or_default();
            let mut flags = NodeFlags::empty();
            for (flag, is_set) in [
                (NodeFlags::FOLDED, about.folded),
                (NodeFlags::SAMPLED, sum.sampled),
                (NodeFlags::OPEN, sum.open),
            ] {
                if is_set {
                    flags |= flag;
                }
            }
            let index = nodes.len() as u32;
            nodes.push(Node {
                parent,
                function: about.function,
                calls: sum.calls,
                self_ns: sum.self_ns,
                total_ns: sum.self_ns,
                wall_ns: sum.self_ns.saturating_add(sum.waiting_ns),
                min: sum.min_ns.unwrap_or(0),
                max: sum.max_ns,
                untimed: sum.untimed.min(sum.calls),
                unwound: sum.unwound,
                recursion: recursion(&nodes, parent, about.function),
                flags,
                ..Node::default()
            });
            for ((metric, value), measured) in
                Metric::ALL.into_iter().zip(sum.metrics).zip(&mut measured)
            {
                *measured |= value > 0;
                if value > 0 {
                    thread.metrics.set(index, metric, value);
                }
            }
            at_least.push(sum.at_least);
            indices.insert(one, index);
            parent = Some(index);
        }
    }
    for index in (0..nodes.len()).rev() {
        let Node {
            parent,
            total_ns,
            wall_ns,
            ..
        } = nodes[index];
        if let Some(parent) = parent {
            let above = &mut nodes[parent as usize];
            above.total_ns = above.total_ns.saturating_add(total_ns);
            above.wall_ns = above.wall_ns.saturating_add(wall_ns);
        }
    }
    // A context is a lower bound where its function was off, or one above it was.
    for (node, &bound) in nodes.iter().zip(&at_least) {
        if bound && !node.parent.is_some_and(|parent| at_least[parent as usize]) {
            profile.functions[node.function].at_least = true;
        }
    }
    thread.nodes = nodes;
    profile.meta = Meta {
        metrics: Metric::ALL
            .into_iter()
            .zip(measured)
            .filter(|(_, measured)| *measured)
            .map(|(metric, _)| metric)
            .collect(),
        ..Meta::default()
    };
    profile.processes.push(Process {
        pid: 1,
        command: vec![
            selection
                .service
                .as_ref()
                .map_or("store".to_owned(), ToString::to_string),
        ],
        threads: vec![thread],
        ..Process::default()
    });
    Ok(profile)
}

fn recursion(nodes: &[Node], parent: Option<u32>, function: FuncId) -> u32 {
    let above = std::iter::successors(parent, |&index| nodes[index as usize].parent);
    let same = above
        .map(|index| &nodes[index as usize])
        .find(|node| node.function == function);
    same.map_or(0, |node| node.recursion + 1)
}

async fn contexts(
    session: &Session,
    selection: &Selection,
    profile: &mut Profile,
) -> anyhow::Result<HashMap<i64, About>> {
    let sql = format!(
        "select path, parent, folded, function, module, module_path, build_id, address, file, line, language \
         from contexts where {}",
        selection.of_contexts()
    );
    let mut modules: HashMap<(String, String), u32> = HashMap::new();
    let mut functions: HashMap<(u32, u64, String, i64), FuncId> = HashMap::new();
    let mut known = HashMap::new();
    for batch in session.rows(&sql).await? {
        let numbers = |name: &str| Numbers::of(&batch, name);
        let (paths, parents, addresses) =
            (numbers("path")?, numbers("parent")?, numbers("address")?);
        let (lines, folded) = (numbers("line")?, numbers("folded")?);
        let texts = |name: &str| -> anyhow::Result<arrow::array::StringArray> {
            let column = batch
                .column_by_name(name)
                .with_context(|| format!("there is no column {name}"))?;
            Ok(cast(column, &DataType::Utf8)?.as_string::<i32>().clone())
        };
        let (names, files, languages) = (texts("function")?, texts("file")?, texts("language")?);
        let (module_names, module_paths, build_ids) =
            (texts("module")?, texts("module_path")?, texts("build_id")?);
        for row in 0..batch.num_rows() {
            let Some(path) = paths.at(row) else {
                continue;
            };
            if known.contains_key(&path) {
                continue;
            }
            let key = (
                module_names.value(row).to_owned(),
                build_ids.value(row).to_owned(),
            );
            let module = *modules.entry(key).or_insert_with_key(|(name, build_id)| {
                profile.modules.push(Module {
                    name: name.clone(),
                    path: module_paths.value(row).to_owned(),
                    build_id: build_id.clone(),
                    ..Module::default()
                });
                profile.modules.len() as u32 - 1
            });
            let address = addresses.at(row).unwrap_or(0) as u64;
            let line = lines.at(row).unwrap_or(0);
            let key = (module, address, names.value(row).to_owned(), line);
            let function =
                *functions
                    .entry(key)
                    .or_insert_with_key(|(module, address, name, line)| {
                        profile.functions.push(Function {
                            name: name.clone(),
                            module: *module,
                            address: *address,
                            file: files.is_valid(row).then(|| files.value(row).to_owned()),
                            line: u32::try_from(*line).unwrap_or(0),
                            language: language(languages.value(row)),
                            ..Function::default()
                        });
                        FuncId::from_index(profile.functions.len() - 1)
                    });
            let about = About {
                parent: parents.at(row),
                folded: folded.count(row) > 0,
                function,
            };
            known.insert(path, about);
        }
    }
    Ok(known)
}

fn language(name: &str) -> Language {
    let all = [
        Language::Native,
        Language::Go,
        Language::Python,
        Language::Java,
    ];
    all.into_iter()
        .find(|language| language.name() == name)
        .unwrap_or_default()
}
