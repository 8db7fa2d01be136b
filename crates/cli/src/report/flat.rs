//! `report --flat`: one row per function.

use std::cmp::Ordering;
use std::io::{self, Write};

use clap::ValueEnum;
use thalweg_analysis::{
    Bounds, FunctionTotals, Summary, edges, flat, is_waiting_measured, summary,
};
use thalweg_model::{Metric, ProbeCosts, Profile};

use super::style::{Paint, Style};
use super::table::{Align, Cell, Table};
use super::text::{
    TIME_WIDTH, at_least, bytes, count, counted, printable, share, time, time_if, time_inline,
};
use super::{LeftOut, Selection, SortKey, counting, kernel, state};

/// Columns of the table.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Calls,
    /// Time on a processor in the function itself
    #[value(name = "self", alias = "base")]
    Base,
    /// The same with all that it called
    #[value(name = "total", alias = "cum")]
    Cum,
    /// How far off self may be, 19 times of 20
    Error,
    /// Total and the time off the processor below it
    #[value(name = "wall", alias = "elapsed")]
    Elapsed,
    /// Own time off the processor
    #[value(name = "waiting", alias = "waited")]
    Waited,
    Min,
    Max,
    /// Own time of the average call
    Mean,
    /// How many functions called it
    Callers,
    /// In how many threads it ran
    Threads,
    /// In how many calling contexts
    Contexts,
    /// Deepest recursion
    Recursion,
    /// Calls that ended without a return
    Unwound,
    /// Blocks of memory that it allocated itself
    Allocs,
    /// Their bytes
    Allocated,
    /// Blocks that it freed
    Frees,
    /// Their bytes
    Freed,
    /// Bytes that it allocated and nobody freed
    Live,
    /// Blocks that it allocated and nobody freed
    LiveBlocks,
    /// Bytes of anonymous memory that it had the kernel map
    Mapped,
    /// Of these, bytes that it had unmapped
    Unmapped,
    /// System calls that it made, its callees' included
    Syscalls,
    /// Time in the functions that make them, waiting included, its callees' included
    SyscallTime,
    /// Page faults that it caused itself
    Faults,
    /// How often a thread left the processor in it
    Switches,
    /// Its own instructions, by the processor's counter
    Instructions,
    /// Its own cycles
    Cycles,
    /// Its own cache misses
    CacheMisses,
    /// What its probes did: the state at the end, how much of its calls' time is estimated, how long it was off, and how many looks tell
    /// of that
    State,
    Module,
    /// Source file and line
    Place,
    Name,
}

/// Without a wish; the rest with --wide.
const USUAL: [Field; 4] = [Field::Base, Field::Cum, Field::Calls, Field::Name];
const WIDE: [Field; 8] = [
    Field::Base,
    Field::Cum,
    Field::Calls,
    Field::Min,
    Field::Max,
    Field::Callers,
    Field::Module,
    Field::Name,
];
const WIDE_WITH_WAITS: [Field; 10] = [
    Field::Base,
    Field::Cum,
    Field::Calls,
    Field::Elapsed,
    Field::Waited,
    Field::Min,
    Field::Max,
    Field::Callers,
    Field::Module,
    Field::Name,
];
const ALLOCATION: [Field; 5] = [
    Field::Allocs,
    Field::Allocated,
    Field::Frees,
    Field::Freed,
    Field::Live,
];
/// What the kernel and the processor count.
const KERNEL: [(Metric, Field); 5] = [
    (Metric::Faults, Field::Faults),
    (Metric::Switches, Field::Switches),
    (Metric::Instructions, Field::Instructions),
    (Metric::Cycles, Field::Cycles),
    (Metric::CacheMisses, Field::CacheMisses),
];
const COUNTED: [Field; 4] = [Field::Calls, Field::Callers, Field::Module, Field::Name];

/// The functions to show, in order, and what else there is.
pub struct Rows {
    pub rows: Vec<FunctionTotals>,
    pub left_out: LeftOut,
}

pub fn rows(profile: &Profile, selection: &Selection) -> Rows {
    let name = |row: &FunctionTotals| profile.functions[row.function as usize].name.as_str();
    let (mut rows, mut rest): (Vec<_>, Vec<_>) = flat(profile)
        .into_iter()
        .partition(|row| selection.keeps(profile, row.function));
    rows.sort_by(|a, b| {
        order(profile, selection.sort, a, b)
            .then_with(|| name(a).cmp(name(b)))
            .then(a.function.cmp(&b.function))
    });
    if let Some(limit) = selection.limit {
        rest.extend(rows.drain(limit.min(rows.len())..));
    }
    let mut left_out = LeftOut::default();
    rest.iter()
        .for_each(|row| left_out.add(row.calls, row.base));
    Rows { rows, left_out }
}

/// Largest first; names, which are compared last in any case, from a to z.
pub fn order(profile: &Profile, key: SortKey, a: &FunctionTotals, b: &FunctionTotals) -> Ordering {
    let module = |row: &FunctionTotals| {
        let function = &profile.functions[row.function as usize];
        profile.modules[function.module as usize].name.as_str()
    };
    match key {
        SortKey::Base => b.base.cmp(&a.base),
        SortKey::Cum => b.cum.cmp(&a.cum),
        SortKey::Elapsed => b.elapsed.cmp(&a.elapsed),
        SortKey::Waited => b.waited.cmp(&a.waited),
        SortKey::Calls => b.calls.cmp(&a.calls),
        SortKey::Min => b.min.cmp(&a.min),
        SortKey::Max => b.max.cmp(&a.max),
        SortKey::Mean => mean(b).cmp(&mean(a)),
        SortKey::Threads => b.threads.cmp(&a.threads),
        SortKey::Contexts => b.contexts.cmp(&a.contexts),
        SortKey::Recursion => b.recursion.cmp(&a.recursion),
        SortKey::Allocs
        | SortKey::Allocated
        | SortKey::Freed
        | SortKey::Live
        | SortKey::Faults
        | SortKey::Switches
        | SortKey::Instructions
        | SortKey::Cycles
        | SortKey::CacheMisses => {
            let metric = key.metric();
            let figure = |row: &FunctionTotals| metric.map_or(0, |metric| row.metrics.get(metric));
            figure(b).cmp(&figure(a))
        }
        SortKey::Syscalls | SortKey::SyscallTime => {
            let metric = key.metric();
            let figure =
                |row: &FunctionTotals| metric.map_or(0, |metric| row.cum_metrics.get(metric));
            figure(b).cmp(&figure(a))
        }
        SortKey::Module => module(a).cmp(module(b)).then(b.base.cmp(&a.base)),
        SortKey::Name => Ordering::Equal,
    }
}

fn mean(row: &FunctionTotals) -> u64 {
    row.base.checked_div(row.calls).unwrap_or(0)
}

pub fn print_flat(
    profile: &Profile,
    selection: &Selection,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let rows = rows(profile, selection);
    print_rows(profile, &rows.rows, selection, out, style)?;
    print_left_out(profile, &rows.left_out, out, style)
}

pub fn print_rows(
    profile: &Profile,
    rows: &[FunctionTotals],
    selection: &Selection,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let chosen = !selection.fields.is_empty();
    let mut fields = match chosen {
        true => selection.fields.clone(),
        false => usual_fields(profile, rows, selection.wide),
    };
    // Names are what the rest is about, and the column that can be cut.
    fields.retain(|&field| field != Field::Name);
    fields.push(Field::Name);

    let view = View {
        profile,
        whole: summary(profile),
        style,
        callers: match fields.contains(&Field::Callers) {
            true => callers_of_each(profile),
            false => Vec::new(),
        },
        bounds: Bounds::of(profile),
        names_have_modules: !chosen && !selection.wide,
    };
    let mut table = Table::new(style);
    for &field in &fields {
        table = view.column(table, field);
        // What was asked for is there, and a terminal that is too narrow wraps.
        if !chosen && !selection.wide {
            table = match field {
                Field::Allocs | Field::Frees | Field::Freed => table.dispensable(4),
                Field::State => table.dispensable(3),
                Field::Live | Field::SyscallTime => table.dispensable(2),
                _ => table,
            };
        }
    }
    for row in rows {
        let cells = fields.iter().map(|&field| view.cell(row, field));
        table.row(cells.collect());
    }
    table.print(out)
}

/// Self, its error, total, calls and the name, and what was measured beside; `wide`: all that there is.
fn usual_fields(profile: &Profile, rows: &[FunctionTotals], wide: bool) -> Vec<Field> {
    let mut fields: Vec<Field> = match (profile.meta.timed, wide) {
        (true, true) if is_waiting_measured(profile) => WIDE_WITH_WAITS.to_vec(),
        (true, true) => WIDE.to_vec(),
        (true, false) => USUAL.to_vec(),
        (false, true) => COUNTED.to_vec(),
        (false, false) => vec![Field::Calls, Field::Name],
    };
    let taken_out = |costs: ProbeCosts| costs.taken_out;
    let sampled = !profile.looked.is_empty();
    if sampled || profile.meta.costs.is_some_and(taken_out) {
        fields.insert(1, Field::Error);
    }
    let weighed = profile.meta.weighed_by.is_some();
    let mut more: Vec<Field> = Vec::new();
    if !weighed && profile.meta.metrics.contains(&Metric::AllocBytes) {
        more.extend(ALLOCATION);
    }
    if kernel::is_measured(profile) {
        more.push(Field::Syscalls);
        more.extend(profile.meta.timed.then_some(Field::SyscallTime));
    }
    let has = |metric: &Metric| !weighed && profile.meta.metrics.contains(metric);
    let counted = KERNEL.iter().filter(|(metric, _)| has(metric));
    more.extend(counted.map(|(_, field)| *field));
    if weighed || !more.is_empty() {
        fields.retain(|field| !matches!(field, Field::Min | Field::Max | Field::Callers));
    }
    let behind = fields.len() - if wide { 2 } else { 1 };
    fields.splice(behind..behind, more);
    if (sampled || !profile.switched.is_empty()) && (wide || states_differ(profile, rows)) {
        let behind = fields.iter().position(|&field| field == Field::Calls);
        fields.insert(behind.map_or(0, |at| at + 1), Field::State);
    }
    fields
}

fn states_differ(profile: &Profile, rows: &[FunctionTotals]) -> bool {
    let mut states = rows.iter().map(|row| state::of_row(profile, row));
    let first = states.next();
    states.any(|state| Some(state) != first)
}

/// How many functions called each function; code that is not patched counts as one.
fn callers_of_each(profile: &Profile) -> Vec<u64> {
    let mut callers = vec![0; profile.functions.len()];
    for edge in edges(profile) {
        callers[edge.callee as usize] += 1;
    }
    callers
}

struct View<'a> {
    profile: &'a Profile,
    whole: Summary,
    style: Style,
    callers: Vec<u64>,
    bounds: Bounds,
    /// There is no column for them.
    names_have_modules: bool,
}

impl View<'_> {
    fn counted_by_kernel(&self, row: &FunctionTotals, metric: Metric) -> Cell {
        match row.metrics.get(metric) {
            0 => Cell::default(),
            value => Cell::new(counting::figure(self.profile, metric, value)),
        }
    }

    fn column(&self, table: Table, field: Field) -> Table {
        let with_share = |title: &str| format!("{title:>TIME_WIDTH$} {:>6}", "%");
        match field {
            Field::Calls if self.profile.meta.timed => table.column("Calls", Align::Right),
            Field::Calls => table.column(format!("Calls {:>6}", "%"), Align::Right),
            Field::Base => table.column(with_share("Self"), Align::Right),
            Field::Cum if self.is_narrow() => table.column("Total", Align::Right),
            Field::Cum => table.column(with_share("Total"), Align::Right),
            Field::Error => table.column("±", Align::Right),
            Field::Elapsed => table.column("Wall", Align::Right),
            Field::Waited => table.column("Waiting", Align::Right),
            Field::Min => table.column("Min", Align::Right),
            Field::Max => table.column("Max", Align::Right),
            Field::Mean => table.column("Mean", Align::Right),
            Field::Callers => table.column("Callers", Align::Right),
            Field::Threads => table.column("Threads", Align::Right),
            Field::Contexts => table.column("Contexts", Align::Right),
            Field::Recursion => table.column("RL", Align::Right),
            Field::Unwound => table.column("Unwound", Align::Right),
            Field::Allocs => table.column("Allocs", Align::Right),
            Field::Allocated => table.column("Allocated", Align::Right),
            Field::Frees => table.column("Frees", Align::Right),
            Field::Freed => table.column("Freed", Align::Right),
            Field::Live => table.column("Live", Align::Right),
            Field::LiveBlocks => table.column("Live blocks", Align::Right),
            Field::Mapped => table.column("Mapped", Align::Right),
            Field::Unmapped => table.column("Unmapped", Align::Right),
            Field::Syscalls => table.column("Syscalls", Align::Right),
            Field::SyscallTime => table.column("In them", Align::Right),
            Field::Faults => table.column("Faults", Align::Right),
            Field::Switches => table.column("Switches", Align::Right),
            Field::Instructions => table.column("Instructions", Align::Right),
            Field::Cycles => table.column("Cycles", Align::Right),
            Field::CacheMisses => table.column("Misses", Align::Right),
            Field::State => table.column("State", Align::Left),
            Field::Module => table.column("Module", Align::Left).at_most(24),
            Field::Place => table.column("Place", Align::Left).at_most(40),
            Field::Name => table.column("Name", Align::Left),
        }
    }

    /// Names need the room more than the second share does.
    fn is_narrow(&self) -> bool {
        const NARROW: usize = 100;
        self.style.width.is_some_and(|width| width < NARROW)
    }

    fn calls(&self, row: &FunctionTotals) -> String {
        at_least(self.bounds.function(row.function), count(row.calls))
    }

    fn cell(&self, row: &FunctionTotals, field: Field) -> Cell {
        let function = &self.profile.functions[row.function as usize];
        let whole = &self.whole;
        let timed = |ns, whole| format!("{} {}", time(ns), share(ns, whole));
        let ended = row.calls > 0 || row.max > 0;
        match field {
            Field::Calls if row.calls == 0 && row.looks > 0 => Cell::new("-"),
            Field::Calls if self.profile.meta.timed => Cell::new(self.calls(row)),
            Field::Calls => Cell::painted(
                format!("{} {}", self.calls(row), share(row.calls, whole.calls)),
                self.style.heat(row.calls, whole.calls),
            ),
            Field::Base => Cell::painted(
                timed(row.base, whole.time),
                self.style.heat(row.base, whole.time),
            ),
            Field::Cum if self.is_narrow() => Cell::new(time(row.cum)),
            Field::Cum => Cell::new(timed(row.cum, whole.time)),
            Field::Error => Cell::new(time_if(row.error > 0, row.error)),
            Field::Elapsed => Cell::new(time(row.elapsed)),
            Field::Waited => Cell::new(time_if(row.waited > 0, row.waited)),
            Field::Min => Cell::new(time_if(ended, row.min)),
            Field::Max => Cell::new(time_if(ended, row.max)),
            Field::Mean => Cell::new(time_if(row.calls > 0 && row.looks == 0, mean(row))),
            Field::Callers => Cell::new(count(self.callers[row.function as usize])),
            Field::Threads => Cell::new(count(row.threads.into())),
            Field::Contexts => Cell::new(count(row.contexts)),
            Field::Recursion => Cell::new(count(row.recursion.into())),
            Field::Unwound => Cell::new(count(row.unwound)),
            Field::Allocs => counted_metric(row, Metric::AllocCalls),
            Field::Allocated => sized_metric(row, Metric::AllocBytes),
            Field::Frees => counted_metric(row, Metric::FreeCalls),
            Field::Freed => sized_metric(row, Metric::FreeBytes),
            Field::Live => sized_metric(row, Metric::LiveBytes),
            Field::LiveBlocks => counted_metric(row, Metric::LiveObjects),
            Field::Mapped => sized_metric(row, Metric::MapBytes),
            Field::Unmapped => sized_metric(row, Metric::UnmapBytes),
            Field::Syscalls => match row.cum_metrics.get(Metric::SyscallCalls) {
                0 => Cell::default(),
                calls => Cell::new(count(calls)),
            },
            Field::SyscallTime => match row.cum_metrics.get(Metric::SyscallTime) {
                0 => Cell::default(),
                ns => Cell::new(time(ns)),
            },
            Field::Faults => self.counted_by_kernel(row, Metric::Faults),
            Field::Switches => self.counted_by_kernel(row, Metric::Switches),
            Field::Instructions => self.counted_by_kernel(row, Metric::Instructions),
            Field::Cycles => self.counted_by_kernel(row, Metric::Cycles),
            Field::CacheMisses => self.counted_by_kernel(row, Metric::CacheMisses),
            Field::State => Cell::new(state::of_row(self.profile, row)),
            Field::Module => Cell::new(printable(
                &self.profile.modules[function.module as usize].name,
            )),
            Field::Place => Cell::new(match &function.file {
                Some(file) => format!("{}:{}", printable(file), function.line),
                None => String::new(),
            }),
            Field::Name => {
                let name = Cell::new(printable(&function.name)).tail(marks(row));
                let module = &self.profile.modules[function.module as usize].name;
                match self.names_have_modules && !module.is_empty() {
                    true => name.aside(printable(module)),
                    false => name,
                }
            }
        }
    }
}

/// Most functions allocate nothing: their cells stay empty.
fn counted_metric(row: &FunctionTotals, metric: Metric) -> Cell {
    match row.metrics.get(metric) {
        0 => Cell::default(),
        value => Cell::new(count(value)),
    }
}

fn sized_metric(row: &FunctionTotals, metric: Metric) -> Cell {
    match row.metrics.get(metric) {
        0 => Cell::default(),
        value => Cell::new(bytes(value)),
    }
}

fn marks(row: &FunctionTotals) -> String {
    let mut marks = String::new();
    if row.on_stack_at_attach {
        marks.push_str(" [on stack at attach]");
    }
    if row.unwound > 0 {
        marks.push_str(&format!(" [{} unwound]", count(row.unwound)));
    }
    if row.folded_calls > 0 {
        marks.push_str(&format!(" [{} folded]", count(row.folded_calls)));
    }
    marks
}

pub fn print_left_out(
    profile: &Profile,
    left_out: &LeftOut,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    if left_out.rows == 0 {
        return Ok(());
    }
    let time = match profile.meta.timed {
        true => format!(", {} of self time", time_inline(left_out.base)),
        false => String::new(),
    };
    let text = format!(
        "not shown: {} ({}{time})",
        counted(left_out.rows, "function", "functions"),
        at_least(
            Bounds::of(profile).any(),
            counted(left_out.calls, "call", "calls")
        ),
    );
    writeln!(out, "{}", style.paint(Paint::Aside, &text))
}
