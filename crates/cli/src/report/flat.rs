//! `report --flat`: one row per function.

use std::cmp::Ordering;
use std::io::{self, Write};

use thalweg_analysis::{FunctionTotals, Summary, flat, summary};
use thalweg_model::Profile;
use unicode_width::UnicodeWidthStr;

use super::style::{Paint, Style};
use super::text::{
    TIME_WIDTH, count, counted, cut, pad, printable, share, time, time_if, time_inline,
};
use super::{LeftOut, Selection, SortKey};

/// The functions to show, in order, and what else there is.
pub struct Rows {
    pub rows: Vec<FunctionTotals>,
    pub left_out: LeftOut,
}

pub fn rows(profile: &Profile, selection: &Selection) -> Rows {
    let name = |row: &FunctionTotals| profile.functions[row.function as usize].name.as_str();
    let (mut rows, mut rest): (Vec<_>, Vec<_>) = flat(profile)
        .into_iter()
        .partition(|row| selection.filter.keeps_function(name(row), None));
    rows.sort_by(|a, b| {
        order(selection.sort, a, b)
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
fn order(key: SortKey, a: &FunctionTotals, b: &FunctionTotals) -> Ordering {
    match key {
        SortKey::Base => b.base.cmp(&a.base),
        SortKey::Cum => b.cum.cmp(&a.cum),
        SortKey::Calls => b.calls.cmp(&a.calls),
        SortKey::Min => b.min.cmp(&a.min),
        SortKey::Max => b.max.cmp(&a.max),
        SortKey::Name => Ordering::Equal,
    }
}

pub fn print_flat(
    profile: &Profile,
    selection: &Selection,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let rows = rows(profile, selection);
    let table = Table::new(profile, &rows.rows, style);
    table.print(&rows.rows, out)?;
    print_left_out(profile, &rows.left_out, out, style)
}

/// The top of the table, for the summary: on a narrow terminal Min and Max give way to the names.
pub fn print_top(
    profile: &Profile,
    rows: &[FunctionTotals],
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let mut table = Table::new(profile, rows, style);
    if table
        .name_width()
        .is_some_and(|room| room < GOOD_NAME_WIDTH)
    {
        table.extremes = false;
    }
    table.print(rows, out)
}

const MODULE_WIDTH: usize = 24;
const GOOD_NAME_WIDTH: usize = 40;
/// Below this a name says nothing; better that the terminal wraps.
const MIN_NAME_WIDTH: usize = 16;

struct Table<'a> {
    profile: &'a Profile,
    whole: Summary,
    style: Style,
    calls: usize,
    module: usize,
    times: bool,
    extremes: bool,
}

impl<'a> Table<'a> {
    fn new(profile: &'a Profile, rows: &[FunctionTotals], style: Style) -> Table<'a> {
        let calls = rows.iter().map(|row| count(row.calls).len());
        let modules = rows
            .iter()
            .map(|row| module_name(profile, row, style).width());
        Table {
            profile,
            whole: summary(profile),
            style,
            calls: calls.fold("Calls".len(), usize::max),
            module: modules.fold("Module".len(), usize::max),
            times: profile.meta.timed,
            extremes: profile.meta.timed,
        }
    }

    /// What is left for the name; `None`: as much as it takes.
    fn name_width(&self) -> Option<usize> {
        let times = if self.times {
            2 * (TIME_WIDTH + 7 + 2)
        } else {
            8
        };
        let extremes = if self.extremes {
            2 * (TIME_WIDTH + 2)
        } else {
            0
        };
        let before = self.calls + 2 + times + extremes + self.module + 2;
        let left = |width: usize| width.saturating_sub(before).max(MIN_NAME_WIDTH);
        self.style.width.map(left)
    }

    fn print(&self, rows: &[FunctionTotals], out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", self.style.paint(Paint::Title, &self.head()))?;
        rows.iter().try_for_each(|row| self.print_row(row, out))
    }

    fn head(&self) -> String {
        let calls = self.calls;
        let mut head = format!("{:>calls$}  ", "Calls");
        if self.times {
            for title in ["Base", "Cum"] {
                head.push_str(&format!("{title:>TIME_WIDTH$} {:>6}  ", "%"));
            }
        } else {
            head.push_str(&format!("{:>6}  ", "%"));
        }
        if self.extremes {
            for title in ["Min", "Max"] {
                head.push_str(&format!("{title:>TIME_WIDTH$}  "));
            }
        }
        format!("{head}{}  Name", pad("Module", self.module))
    }

    fn print_row(&self, row: &FunctionTotals, out: &mut impl Write) -> io::Result<()> {
        write!(out, "{:>width$}  ", count(row.calls), width = self.calls)?;
        if self.times {
            let whole = self.whole.time;
            let base_share = self.style.heat(row.base, whole, &share(row.base, whole));
            write!(out, "{} {base_share}  ", time(row.base))?;
            write!(out, "{} {}  ", time(row.cum), share(row.cum, whole))?;
        } else {
            let whole = self.whole.calls;
            let calls_share = share(row.calls, whole);
            write!(out, "{}  ", self.style.heat(row.calls, whole, &calls_share))?;
        }
        if self.extremes {
            let known = row.calls > 0 || row.max > 0;
            write!(
                out,
                "{}  {}  ",
                time_if(known, row.min),
                time_if(known, row.max)
            )?;
        }
        let module = pad(&module_name(self.profile, row, self.style), self.module);
        writeln!(out, "{module}  {}", self.name(row))
    }

    /// Where there is room for them the marks are kept whole, and the name gives way.
    fn name(&self, row: &FunctionTotals) -> String {
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
        let name = printable(&self.profile.functions[row.function as usize].name);
        let whole = format!("{name}{marks}");
        match self.name_width() {
            None => whole,
            Some(width) if width < marks.width() + MIN_NAME_WIDTH => {
                cut(&whole, width).into_owned()
            }
            Some(width) => format!("{}{marks}", cut(&name, width - marks.width())),
        }
    }
}

fn module_name(profile: &Profile, row: &FunctionTotals, style: Style) -> String {
    let function = &profile.functions[row.function as usize];
    let name = printable(&profile.modules[function.module as usize].name);
    match style.width {
        Some(_) => cut(&name, MODULE_WIDTH).into_owned(),
        None => name.into_owned(),
    }
}

fn print_left_out(
    profile: &Profile,
    left_out: &LeftOut,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    if left_out.rows == 0 {
        return Ok(());
    }
    let time = match profile.meta.timed {
        true => format!(", {} of base", time_inline(left_out.base)),
        false => String::new(),
    };
    let text = format!(
        "not shown: {} ({}{time})",
        counted(left_out.rows, "function", "functions"),
        counted(left_out.calls, "call", "calls"),
    );
    writeln!(out, "{}", style.paint(Paint::Aside, &text))
}
