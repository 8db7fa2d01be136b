//! A profile as the tables of a store, in memory.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Int32Array, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray,
};
use thalweg_analysis::{Bounds, Rarity, context_errors, own_waits};
use thalweg_formats::calls::Calls;
use thalweg_model::{CallEnd, Metric, Node, NodeFlags, Profile};

use crate::contexts::{Context, Contexts, Place};
use crate::labels::Label;
use crate::schema::{Table, metric_column};

/// What is said of a profile in each of its rows.
#[derive(Clone, Debug)]
pub struct Head {
    pub profile: i64,
    pub release: Label,
}

/// Columns by name, until there are all of a table's.
struct Columns {
    rows: usize,
    by_name: HashMap<String, ArrayRef>,
}

impl Columns {
    fn new(rows: usize) -> Columns {
        Columns {
            rows,
            by_name: HashMap::new(),
        }
    }

    fn put(&mut self, name: &str, column: ArrayRef) {
        self.by_name.insert(name.to_owned(), column);
    }

    fn numbers(&mut self, name: &str, values: impl Iterator<Item = i64>) {
        self.put(name, Arc::new(Int64Array::from_iter_values(values)));
    }

    fn some_numbers(&mut self, name: &str, values: impl Iterator<Item = Option<i64>>) {
        self.put(name, Arc::new(values.collect::<Int64Array>()));
    }

    fn small(&mut self, name: &str, values: impl Iterator<Item = i32>) {
        self.put(name, Arc::new(Int32Array::from_iter_values(values)));
    }

    fn truths(&mut self, name: &str, values: impl Iterator<Item = bool>) {
        let values: Vec<bool> = values.collect();
        self.put(name, Arc::new(BooleanArray::from(values)));
    }

    fn texts<'a>(&mut self, name: &str, values: impl Iterator<Item = &'a str>) {
        self.put(name, Arc::new(StringArray::from_iter_values(values)));
    }

    fn some_texts<'a>(&mut self, name: &str, values: impl Iterator<Item = Option<&'a str>>) {
        self.put(name, Arc::new(values.collect::<StringArray>()));
    }

    fn times(&mut self, name: &str, unix_ns: impl Iterator<Item = u64>) {
        let values = unix_ns.map(|ns| signed(ns / 1000));
        let times = TimestampMicrosecondArray::from_iter_values(values).with_timezone("UTC");
        self.put(name, Arc::new(times));
    }

    fn same(&mut self, name: &str, text: Option<&str>) {
        let rows = self.rows;
        self.some_texts(name, std::iter::repeat_n(text, rows));
    }

    fn finish(mut self, table: Table) -> anyhow::Result<RecordBatch> {
        let schema = table.schema();
        let mut columns = Vec::with_capacity(schema.fields().len());
        for field in schema.fields() {
            let column = self.by_name.remove(field.name());
            columns.push(column.ok_or_else(|| anyhow::anyhow!("no column {}", field.name()))?);
        }
        Ok(RecordBatch::try_new(schema, columns)?)
    }
}

/// What is larger than any real figure is the largest: as in the profile's own sums.
pub fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Rounded up to one of four steps in each octave: an error's own error does not matter, its bytes do.
pub fn rounded_up(error: u64) -> u64 {
    let bits = u64::BITS - error.leading_zeros();
    let step = 1u64 << bits.saturating_sub(3);
    error.div_ceil(step).saturating_mul(step)
}

struct Row<'a> {
    pid: u32,
    tid: u32,
    thread: &'a str,
    place: Place,
    node: &'a Node,
    number: u32,
    metrics: &'a thalweg_model::NodeMetrics,
    at_least: bool,
    error: (u64, u64),
    waiting: u64,
}

/// `places`: of each of the contexts.
pub fn figures(
    profile: &Profile,
    contexts: &Contexts,
    places: &[Place],
    head: &Head,
) -> anyhow::Result<RecordBatch> {
    let bounds = Bounds::from_profile(profile);
    let rarity = Rarity::from_profile(profile);
    let mut rows: Vec<Row> = Vec::new();
    for ((process, thread), numbers) in thalweg_analysis::threads(profile).zip(&contexts.by_thread)
    {
        let at_least = bounds.contexts(&thread.nodes);
        let errors = context_errors(profile, thread, &rarity);
        let waits = own_waits(&thread.nodes);
        let first = rows.len();
        for (number, node) in (0u32..).zip(&thread.nodes) {
            let at = number as usize;
            rows.push(Row {
                pid: process.pid,
                tid: thread.tid,
                thread: &thread.name,
                place: places[numbers[at] as usize],
                node,
                number,
                metrics: &thread.metrics,
                at_least: at_least[at],
                error: errors[at],
                waiting: waits[at],
            });
        }
        rows[first..].sort_by_key(|row| row.place);
    }
    let meta = &profile.meta;
    let mut columns = Columns::new(rows.len());
    let all = || rows.iter();
    let same = || std::iter::repeat_n((), rows.len());
    columns.numbers("profile", same().map(|()| head.profile));
    columns.times("time", same().map(|()| meta.created_unix_ns));
    columns.numbers("duration_ns", same().map(|()| signed(meta.duration_ns)));
    columns.same("release", Some(head.release.as_str()));
    let command = profile
        .processes
        .first()
        .map(|process| process.command.join(" "));
    columns.same("command", Some(&command.unwrap_or_default()));
    columns.same("recorder", Some(&format!("thalweg {}", meta.version)));
    columns.truths("timed", same().map(|()| meta.timed));
    let costs = meta
        .costs
        .filter(|costs| costs.taken_out)
        .map(|costs| crate::costs::to_text(&costs));
    columns.same("probe_costs", costs.as_deref());
    let notes = (!profile.notes.is_empty()).then(|| profile.notes.join("\n"));
    columns.same("notes", notes.as_deref());
    columns.small("pid", all().map(|row| row.pid as i32));
    columns.small("tid", all().map(|row| row.tid as i32));
    columns.texts("thread", all().map(|row| row.thread));
    columns.numbers("tree", all().map(|row| row.place.tree));
    columns.small("node", all().map(|row| row.place.node));
    columns.numbers("calls", all().map(|row| signed(row.node.calls)));
    columns.truths("calls_at_least", all().map(|row| row.at_least));
    let flag = |flag: NodeFlags| all().map(move |row| row.node.flags.contains(flag));
    columns.truths("sampled", flag(NodeFlags::SAMPLED));
    columns.truths("open", flag(NodeFlags::OPEN));
    columns.truths("on_stack_at_attach", flag(NodeFlags::ON_STACK_AT_ATTACH));
    let mut time = |name: &str, of: &dyn Fn(&Row) -> u64| {
        columns.some_numbers(name, all().map(|row| meta.timed.then(|| signed(of(row)))));
    };
    let below = |node: &Node| node.total_ns.saturating_sub(node.self_ns);
    time("self_ns", &|row| row.node.self_ns);
    time("self_error_ns", &|row| rounded_up(row.error.0));
    time("below_ns", &|row| below(row.node));
    time("total_error_ns", &|row| rounded_up(row.error.1));
    time("waiting_ns", &|row| row.waiting);
    time("waiting_below_ns", &|row| {
        let waited = row.node.wall_ns.saturating_sub(row.node.total_ns);
        waited.saturating_sub(row.waiting)
    });
    let extreme = |row: &Row, value: u64| {
        (meta.timed && row.node.calls > 0 && row.node.max > 0).then(|| signed(value))
    };
    columns.some_numbers("min_ns", all().map(|row| extreme(row, row.node.min)));
    columns.some_numbers("max_ns", all().map(|row| extreme(row, row.node.max)));
    columns.numbers("untimed", all().map(|row| signed(row.node.untimed)));
    columns.numbers("unwound", all().map(|row| signed(row.node.unwound)));
    for metric in Metric::ALL {
        let measured = meta.metrics.contains(&metric);
        let value = |row: &Row| measured.then(|| signed(row.metrics.at(row.number).get(metric)));
        columns.some_numbers(&metric_column(metric), all().map(value));
    }
    columns.finish(Table::Figures)
}

/// One object of contexts, all of one tree, numbered from 0.
pub fn contexts(profile: &Profile, new: &[Context], tree: i64) -> anyhow::Result<RecordBatch> {
    let mut columns = Columns::new(new.len());
    let function = |context: &Context| &profile.functions[context.function];
    let module = |context: &Context| &profile.modules[function(context).module as usize];
    columns.numbers("tree", new.iter().map(|_| tree));
    columns.small("node", (0..).zip(new).map(|(number, _)| number));
    columns.numbers("path", new.iter().map(|context| context.path.0));
    columns.some_numbers(
        "parent",
        new.iter()
            .map(|context| context.parent.map(|parent| parent.0)),
    );
    columns.small("depth", new.iter().map(|context| context.depth));
    columns.truths("outermost", new.iter().map(|context| context.outermost));
    columns.truths("folded", new.iter().map(|context| context.folded));
    columns.texts(
        "function",
        new.iter().map(|context| &*function(context).name),
    );
    columns.texts("module", new.iter().map(|context| &*module(context).name));
    columns.texts(
        "module_path",
        new.iter().map(|context| &*module(context).path),
    );
    columns.texts(
        "build_id",
        new.iter().map(|context| &*module(context).build_id),
    );
    columns.numbers(
        "address",
        new.iter().map(|context| function(context).address as i64),
    );
    columns.some_texts(
        "file",
        new.iter().map(|context| function(context).file.as_deref()),
    );
    let line = |context: &Context| Some(function(context).line as i32).filter(|&line| line > 0);
    columns.put(
        "line",
        Arc::new(new.iter().map(line).collect::<Int32Array>()),
    );
    columns.texts(
        "language",
        new.iter().map(|context| function(context).language.name()),
    );
    columns.finish(Table::Contexts)
}

/// `None`: no rules.
pub fn calls(profile: &Profile, head: &Head) -> anyhow::Result<Option<RecordBatch>> {
    let calls = Calls::new(profile);
    let all = calls.all();
    if all.is_empty() {
        return Ok(None);
    }
    let mut columns = Columns::new(all.len());
    columns.numbers("profile", all.iter().map(|_| head.profile));
    columns.same("release", Some(head.release.as_str()));
    columns.numbers("call", all.iter().map(|call| call.id as i64));
    let parent = |call: &thalweg_model::Call| Some(all.get(call.parent? as usize)?.id as i64);
    columns.some_numbers("parent", all.iter().map(parent));
    let request =
        |call: &thalweg_model::Call| Some(call.request as i64).filter(|&request| request != 0);
    columns.some_numbers("request", all.iter().map(request));
    columns.some_texts("rule", all.iter().map(|call| calls.rule(call)));
    columns.texts("function", all.iter().map(|call| calls.function(call)));
    columns.texts("module", all.iter().map(|call| calls.module(call)));
    columns.some_texts("signature", all.iter().map(|call| calls.signature(call)));
    columns.small("pid", all.iter().map(|call| call.pid as i32));
    columns.small("tid", all.iter().map(|call| call.tid as i32));
    columns.texts("thread", all.iter().map(|call| calls.thread(call)));
    columns.times("time", all.iter().map(|call| calls.unix_ns(call.entry_ns)));
    columns.numbers(
        "entry_unix_ns",
        all.iter().map(|call| signed(calls.unix_ns(call.entry_ns))),
    );
    let has_ended = |call: &thalweg_model::Call| !matches!(call.end, CallEnd::Open | CallEnd::Lost);
    let total = |call: &thalweg_model::Call| has_ended(call).then(|| signed(call.total_ns()));
    columns.some_numbers("total_ns", all.iter().map(total));
    columns.numbers("self_ns", all.iter().map(|call| signed(call.self_ns)));
    columns.numbers("waiting_ns", all.iter().map(|call| signed(call.waited_ns)));
    columns.texts("end", all.iter().map(|call| call.end.word()));
    for (name, wanted) in [("entry_values", true), ("exit_values", false)] {
        let values: Vec<String> = all
            .iter()
            .map(|call| values(&calls, call, wanted))
            .collect();
        columns.texts(name, values.iter().map(String::as_str));
    }
    columns.finish(Table::Calls).map(Some)
}

/// One object of JSON, as `thalweg calls --format json` has it.
fn values(calls: &Calls, call: &thalweg_model::Call, wanted: bool) -> String {
    let mut object = serde_json::Map::new();
    for (name, at_entry, json) in calls.values(call) {
        if at_entry == wanted {
            object.insert(
                name.to_owned(),
                serde_json::from_str(json).unwrap_or(json.into()),
            );
        }
    }
    serde_json::Value::Object(object).to_string()
}

/// `None`: none were counted.
pub fn blocks(profile: &Profile, head: &Head) -> anyhow::Result<Option<RecordBatch>> {
    let all: Vec<_> = profile
        .blocks
        .iter()
        .flat_map(|module| {
            module
                .blocks
                .iter()
                .map(move |block| (module.module, block))
        })
        .collect();
    if all.is_empty() {
        return Ok(None);
    }
    let module = |index: u32| &profile.modules[index as usize];
    let mut columns = Columns::new(all.len());
    columns.numbers("profile", all.iter().map(|_| head.profile));
    columns.times("time", all.iter().map(|_| profile.meta.created_unix_ns));
    columns.same("release", Some(head.release.as_str()));
    columns.texts(
        "function",
        all.iter()
            .map(|(_, block)| &*profile.functions[block.function].name),
    );
    columns.texts("module", all.iter().map(|(index, _)| &*module(*index).name));
    columns.texts(
        "build_id",
        all.iter().map(|(index, _)| &*module(*index).build_id),
    );
    columns.numbers("start", all.iter().map(|(_, block)| block.start as i64));
    columns.small("bytes", all.iter().map(|(_, block)| block.bytes as i32));
    columns.small(
        "instructions",
        all.iter().map(|(_, block)| block.instructions as i32),
    );
    columns.texts("ending", all.iter().map(|(_, block)| block.ending.name()));
    columns.numbers(
        "executions",
        all.iter().map(|(_, block)| signed(block.executions)),
    );
    columns.numbers(
        "not_taken",
        all.iter().map(|(_, block)| signed(block.not_taken)),
    );
    columns.finish(Table::Blocks).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_rounded_up_by_less_than_a_quarter() {
        for error in (0..100_000).chain([u64::MAX, u64::MAX / 3, 1 << 40]) {
            let rounded = rounded_up(error);
            assert!(rounded >= error, "{error} became {rounded}");
            assert!(
                rounded as f64 <= error as f64 * 1.25,
                "{error} became {rounded}"
            );
        }
    }
}
