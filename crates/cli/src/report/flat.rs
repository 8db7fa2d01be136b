//! `report --flat`: one row per function.

use std::io::{self, Write};

use clap::ValueEnum;
use thalweg_analysis::{Bounds, Summary, is_waiting_measured, summary};
use thalweg_model::{Metric, ProbeCosts, Profile};
use thalweg_views::flat::{Callers, Flat, Function};
use thalweg_views::{LeftOut, Selection, kernel};

use super::counting;
use super::style::{Paint, Style};
use super::table::{Align, Cell, Table};
use super::text::{
    TIME_WIDTH, Weights, at_least, bytes, count, counted, printable, share, time, wrapped,
};

/// Columns of the table.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Calls,
    /// Time on a processor in the function itself
    #[value(name = "self", alias = "base")]
    SelfTime,
    /// The same with all that it called
    #[value(name = "total", alias = "cum")]
    Total,
    /// How far off self may be, 19 times of 20
    Error,
    /// Total and the time off the processor below it
    #[value(name = "wall", alias = "elapsed")]
    Wall,
    /// Own time off the processor
    #[value(name = "waiting", alias = "waited")]
    Waiting,
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
    /// What its probes did: the state at the end, how much of its calls' time is estimated, how long it was off, and how many samples tell
    /// of that
    State,
    Module,
    /// Source file and line
    Place,
    Name,
}

/// Without a wish; the rest with --wide.
const DEFAULT_FIELDS: [Field; 4] = [Field::SelfTime, Field::Total, Field::Calls, Field::Name];
const WIDE_FIELDS: [Field; 8] = [
    Field::SelfTime,
    Field::Total,
    Field::Calls,
    Field::Min,
    Field::Max,
    Field::Callers,
    Field::Module,
    Field::Name,
];
const WIDE_FIELDS_WITH_WAITS: [Field; 10] = [
    Field::SelfTime,
    Field::Total,
    Field::Calls,
    Field::Wall,
    Field::Waiting,
    Field::Min,
    Field::Max,
    Field::Callers,
    Field::Module,
    Field::Name,
];
const ALLOCATION_FIELDS: [Field; 5] = [
    Field::Allocs,
    Field::Allocated,
    Field::Frees,
    Field::Freed,
    Field::Live,
];
/// What the kernel and the processor count.
const KERNEL_FIELDS: [(Metric, Field); 5] = [
    (Metric::Faults, Field::Faults),
    (Metric::Switches, Field::Switches),
    (Metric::Instructions, Field::Instructions),
    (Metric::Cycles, Field::Cycles),
    (Metric::CacheMisses, Field::CacheMisses),
];
const COUNTED_FIELDS: [Field; 4] = [Field::Calls, Field::Callers, Field::Module, Field::Name];

/// Which columns a table has.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    /// These, or none for the usual ones.
    pub fields: Vec<Field>,
    /// All of the usual ones, whether they fit on the terminal or not.
    pub wide: bool,
}

impl Columns {
    pub(super) fn callers(&self) -> Callers {
        // A table of the usual columns of a wide terminal has them, too.
        match self.wide || self.fields.contains(&Field::Callers) {
            true => Callers::Listed,
            false => Callers::LeftOut,
        }
    }
}

pub fn print_flat(
    profile: &Profile,
    selection: &Selection,
    columns: &Columns,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let flat = Flat::new(profile, selection, columns.callers());
    print_rows(profile, flat.functions.iter(), columns, out, style)?;
    print_left_out(profile, &flat.not_shown, out, style)
}

pub fn print_rows<'a>(
    profile: &Profile,
    rows: impl Iterator<Item = &'a Function<'a>> + Clone,
    columns: &Columns,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let chosen = !columns.fields.is_empty();
    let mut fields = match chosen {
        true => columns.fields.clone(),
        false => usual_fields(profile, rows.clone(), columns.wide),
    };
    // Names are what the rest is about, and the column that can be cut.
    fields.retain(|&field| field != Field::Name);
    fields.push(Field::Name);

    let view = View {
        profile,
        whole: summary(profile),
        style,
        weights: Weights::of_profile(profile),
        names_have_modules: !chosen && !columns.wide,
    };
    let mut table = Table::new(style);
    for &field in &fields {
        table = view.column(table, field);
        // What was asked for is there, and a terminal that is too narrow wraps.
        if !chosen && !columns.wide {
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
fn usual_fields<'a>(
    profile: &Profile,
    rows: impl Iterator<Item = &'a Function<'a>>,
    wide: bool,
) -> Vec<Field> {
    let mut fields: Vec<Field> = match (profile.meta.timed, wide) {
        (true, true) if is_waiting_measured(profile) => WIDE_FIELDS_WITH_WAITS.to_vec(),
        (true, true) => WIDE_FIELDS.to_vec(),
        (true, false) => DEFAULT_FIELDS.to_vec(),
        (false, true) => COUNTED_FIELDS.to_vec(),
        (false, false) => vec![Field::Calls, Field::Name],
    };
    let taken_out = |costs: ProbeCosts| costs.taken_out;
    let sampled = !profile.sampled.is_empty();
    if sampled || profile.meta.costs.is_some_and(taken_out) {
        fields.insert(1, Field::Error);
    }
    let weighed = profile.meta.weighed_by.is_some();
    let mut more: Vec<Field> = Vec::new();
    if !weighed && profile.meta.metrics.contains(&Metric::AllocBytes) {
        more.extend(ALLOCATION_FIELDS);
    }
    if kernel::is_measured(profile) {
        more.push(Field::Syscalls);
        more.extend(profile.meta.timed.then_some(Field::SyscallTime));
    }
    let has = |metric: &Metric| !weighed && profile.meta.metrics.contains(metric);
    let counted = KERNEL_FIELDS.iter().filter(|(metric, _)| has(metric));
    more.extend(counted.map(|(_, field)| *field));
    if weighed || !more.is_empty() {
        fields.retain(|field| !matches!(field, Field::Min | Field::Max | Field::Callers));
    }
    let behind = fields.len() - if wide { 2 } else { 1 };
    fields.splice(behind..behind, more);
    if (sampled || !profile.switched.is_empty()) && (wide || states_differ(rows)) {
        let behind = fields.iter().position(|&field| field == Field::Calls);
        fields.insert(behind.map_or(0, |at| at + 1), Field::State);
    }
    fields
}

fn states_differ<'a>(rows: impl Iterator<Item = &'a Function<'a>>) -> bool {
    let mut states = rows.map(|row| &row.state_text);
    let first = states.next();
    states.any(|state| Some(state) != first)
}

struct View<'a> {
    profile: &'a Profile,
    whole: Summary,
    style: Style,
    weights: Weights,
    /// There is no column for them.
    names_have_modules: bool,
}

impl View<'_> {
    fn counted_by_kernel(&self, row: &Function, metric: Metric) -> Cell {
        match row.metrics.0.get(metric) {
            0 => Cell::default(),
            value => Cell::new(counting::figure(self.profile, metric, value)),
        }
    }

    fn column(&self, table: Table, field: Field) -> Table {
        let with_share = |title: &str| format!("{title:>TIME_WIDTH$} {:>6}", "%");
        match field {
            Field::Calls if self.profile.meta.timed => table.column("Calls", Align::Right),
            Field::Calls => table.column(format!("Calls {:>6}", "%"), Align::Right),
            Field::SelfTime => table.column(with_share("Self"), Align::Right),
            Field::Total if self.is_narrow() => table.column("Total", Align::Right),
            Field::Total => table.column(with_share("Total"), Align::Right),
            Field::Error => table.column("±", Align::Right),
            Field::Wall => table.column("Wall", Align::Right),
            Field::Waiting => table.column("Waiting", Align::Right),
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
        const NARROW_COLUMNS: usize = 100;
        self.style.width.is_some_and(|width| width < NARROW_COLUMNS)
    }

    fn cell(&self, row: &Function, field: Field) -> Cell {
        let whole = &self.whole;
        let weights = self.weights;
        let timed = |ns, whole| format!("{} {}", weights.text(ns), share(ns, whole));
        let ended = row.calls > 0 || row.max_ns > 0;
        match field {
            Field::Calls if row.calls == 0 && row.samples > 0 => Cell::new("-"),
            Field::Calls if self.profile.meta.timed => Cell::new(calls(row)),
            Field::Calls => Cell::painted(
                format!("{} {}", calls(row), share(row.calls, whole.calls)),
                self.style.heat(row.calls, whole.calls),
            ),
            Field::SelfTime => Cell::painted(
                timed(row.self_ns, whole.time),
                self.style.heat(row.self_ns, whole.time),
            ),
            Field::Total if self.is_narrow() => Cell::new(weights.text(row.total_ns)),
            Field::Total => Cell::new(timed(row.total_ns, whole.time)),
            Field::Error => Cell::new(weights.text_if(row.self_error_ns > 0, row.self_error_ns)),
            Field::Wall => Cell::new(weights.text(row.wall_ns)),
            Field::Waiting => Cell::new(weights.text_if(row.waiting_ns > 0, row.waiting_ns)),
            Field::Min => Cell::new(weights.text_if(ended, row.min_ns)),
            Field::Max => Cell::new(weights.text_if(ended, row.max_ns)),
            Field::Mean => {
                Cell::new(weights.text_if(row.calls > 0 && row.samples == 0, row.mean_ns()))
            }
            Field::Callers => Cell::new(count(row.callers.len() as u64)),
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
            Field::Syscalls => match row.total_metrics.0.get(Metric::SyscallCalls) {
                0 => Cell::default(),
                calls => Cell::new(count(calls)),
            },
            Field::SyscallTime => match row.total_metrics.0.get(Metric::SyscallTime) {
                0 => Cell::default(),
                ns => Cell::new(time(ns)),
            },
            Field::Faults => self.counted_by_kernel(row, Metric::Faults),
            Field::Switches => self.counted_by_kernel(row, Metric::Switches),
            Field::Instructions => self.counted_by_kernel(row, Metric::Instructions),
            Field::Cycles => self.counted_by_kernel(row, Metric::Cycles),
            Field::CacheMisses => self.counted_by_kernel(row, Metric::CacheMisses),
            Field::State => Cell::new(row.state_text.clone()),
            Field::Module => Cell::new(printable(row.module)),
            Field::Place => Cell::new(match row.file {
                Some(file) => format!("{}:{}", printable(file), row.line),
                None => String::new(),
            }),
            Field::Name => {
                let name = Cell::new(printable(row.name)).tail(marks(row));
                match self.names_have_modules && !row.module.is_empty() {
                    true => name.aside(printable(row.module)),
                    false => name,
                }
            }
        }
    }
}

fn calls(row: &Function) -> String {
    at_least(row.calls_at_least, count(row.calls))
}

/// Most functions allocate nothing: their cells stay empty.
fn counted_metric(row: &Function, metric: Metric) -> Cell {
    match row.metrics.0.get(metric) {
        0 => Cell::default(),
        value => Cell::new(count(value)),
    }
}

fn sized_metric(row: &Function, metric: Metric) -> Cell {
    match row.metrics.0.get(metric) {
        0 => Cell::default(),
        value => Cell::new(bytes(value)),
    }
}

fn marks(row: &Function) -> String {
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
        true => format!(
            ", {} of self time",
            Weights::of_profile(profile).inline(left_out.self_ns)
        ),
        false => String::new(),
    };
    let text = format!(
        "not shown: {} ({}{time})",
        counted(left_out.rows, "function", "functions"),
        at_least(
            Bounds::from_profile(profile).any(),
            counted(left_out.calls, "call", "calls")
        ),
    );
    for line in wrapped(&text, style.width, 0) {
        writeln!(out, "{}", style.paint(Paint::Aside, &line))?;
    }
    Ok(())
}
