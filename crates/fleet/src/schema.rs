//! The tables of a store: `docs/store.md` in code. A change here that readers could notice is a new version.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use thalweg_model::Metric;

/// Of the whole layout. Stores of a later version are refused.
pub const VERSION: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// A row per profile, thread and context. A profile is in the store when its object of this table is.
    Figures,
    /// A row per context: what the numbers in figures mean.
    Contexts,
    /// Calls that were recorded one by one.
    Calls,
    /// How often basic blocks ran.
    Blocks,
}

impl Table {
    pub const ALL: [Table; 4] = [Table::Figures, Table::Contexts, Table::Calls, Table::Blocks];

    pub fn name(self) -> &'static str {
        match self {
            Table::Figures => "figures",
            Table::Contexts => "contexts",
            Table::Calls => "calls",
            Table::Blocks => "blocks",
        }
    }

    /// Folders `name=value`, in this order, between the table's and the file.
    pub fn partitions(self) -> &'static [&'static str] {
        match self {
            Table::Contexts => &["service", "release"],
            _ => &["service", "date", "host"],
        }
    }

    /// What the files hold. The partitions' columns are in the names of folders only.
    pub fn schema(self) -> SchemaRef {
        let mut fields = Vec::new();
        match self {
            Table::Figures => figures(&mut fields),
            Table::Contexts => contexts(&mut fields),
            Table::Calls => calls(&mut fields),
            Table::Blocks => blocks(&mut fields),
        }
        Arc::new(Schema::new(fields))
    }
}

/// The column of a metric: `alloc_bytes`.
pub fn metric_column(metric: Metric) -> String {
    metric.name().replace(['.', '-'], "_")
}

pub fn time_type() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

struct Add<'a>(&'a mut Vec<Field>, DataType, bool);

impl Add<'_> {
    fn these(self, names: &[&str]) {
        let Add(fields, kind, nullable) = self;
        fields.extend(
            names
                .iter()
                .map(|name| Field::new(*name, kind.clone(), nullable)),
        );
    }
}

fn some(fields: &mut Vec<Field>, kind: DataType) -> Add<'_> {
    Add(fields, kind, false)
}

fn maybe(fields: &mut Vec<Field>, kind: DataType) -> Add<'_> {
    Add(fields, kind, true)
}

use DataType::{Boolean, Int32, Int64, Utf8};

fn figures(f: &mut Vec<Field>) {
    some(f, Int64).these(&["profile"]);
    some(f, time_type()).these(&["time"]);
    some(f, Int64).these(&["duration_ns"]);
    some(f, Utf8).these(&["release", "command", "recorder"]);
    some(f, Boolean).these(&["timed"]);
    maybe(f, Utf8).these(&["probe_costs", "notes"]);
    some(f, Int32).these(&["pid", "tid"]);
    some(f, Utf8).these(&["thread"]);
    some(f, Int64).these(&["tree"]);
    some(f, Int32).these(&["node"]);
    some(f, Int64).these(&["calls"]);
    some(f, Boolean).these(&["calls_at_least", "sampled", "open", "on_stack_at_attach"]);
    maybe(f, Int64).these(&[
        "self_ns",
        "self_error_ns",
        "below_ns",
        "total_error_ns",
        "waiting_ns",
        "waiting_below_ns",
        "min_ns",
        "max_ns",
    ]);
    some(f, Int64).these(&["untimed", "unwound"]);
    let metrics = Metric::ALL.map(metric_column);
    maybe(f, Int64).these(&metrics.each_ref().map(String::as_str));
}

fn contexts(f: &mut Vec<Field>) {
    some(f, Int64).these(&["tree"]);
    some(f, Int32).these(&["node"]);
    some(f, Int64).these(&["path"]);
    maybe(f, Int64).these(&["parent"]);
    some(f, Int32).these(&["depth"]);
    some(f, Boolean).these(&["outermost", "folded"]);
    some(f, Utf8).these(&["function", "module", "module_path", "build_id"]);
    some(f, Int64).these(&["address"]);
    maybe(f, Utf8).these(&["file"]);
    maybe(f, Int32).these(&["line"]);
    some(f, Utf8).these(&["language"]);
}

fn calls(f: &mut Vec<Field>) {
    some(f, Int64).these(&["profile"]);
    some(f, Utf8).these(&["release"]);
    some(f, Int64).these(&["call"]);
    maybe(f, Int64).these(&["parent", "request"]);
    maybe(f, Utf8).these(&["rule"]);
    some(f, Utf8).these(&["function", "module"]);
    maybe(f, Utf8).these(&["signature"]);
    some(f, Int32).these(&["pid", "tid"]);
    some(f, Utf8).these(&["thread"]);
    some(f, time_type()).these(&["time"]);
    some(f, Int64).these(&["entry_unix_ns"]);
    maybe(f, Int64).these(&["total_ns"]);
    some(f, Int64).these(&["self_ns", "waiting_ns"]);
    some(f, Utf8).these(&["end", "entry_values", "exit_values"]);
}

fn blocks(f: &mut Vec<Field>) {
    some(f, Int64).these(&["profile"]);
    some(f, time_type()).these(&["time"]);
    some(f, Utf8).these(&["release", "function", "module", "build_id"]);
    some(f, Int64).these(&["start"]);
    some(f, Int32).these(&["bytes", "instructions"]);
    some(f, Utf8).these(&["ending"]);
    some(f, Int64).these(&["executions", "not_taken"]);
}
