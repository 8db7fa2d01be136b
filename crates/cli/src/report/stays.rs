//! `report --samples`: the stacks that samples found, as a tree for each thread: how many samples had each, how often it
//! was newly seen, for how long it stayed.

use std::io::{self, Write};

use thalweg_analysis::Lanes;
use thalweg_model::Profile;
use thalweg_views::Selection;
use thalweg_views::stays::{StackOf, Stays, ThreadStays};

use super::style::{Paint, Style};
use super::text::{TIME_WIDTH, count, counted, cut, printable, share, time};
use super::tree::thread_title;

/// As wide as a number of samples gets: a day of them.
const COUNT_WIDTH: usize = 11;
/// Below this a name says nothing; better that the terminal wraps.
const MIN_NAME_WIDTH: usize = 20;

pub fn print_stays(
    profile: &Profile,
    lanes: &Lanes,
    selection: &Selection,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let view = Stays::new(profile, lanes, selection);
    let threads = view.threads.iter().filter(|one| !one.stacks.is_empty());
    for (number, thread) in threads.enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        let title = thread_title(profile, thread.process, thread.thread);
        writeln!(out, "{}", style.paint(Paint::Title, &title))?;
        let head = format!(
            "{:>COUNT_WIDTH$} {:>6}  {:>COUNT_WIDTH$}  {:>TIME_WIDTH$}  {:>TIME_WIDTH$}  Stack",
            "Samples", "%", "Newly seen", "Stayed", "Longest"
        );
        writeln!(out, "{}", style.paint(Paint::Title, &head))?;
        for row in &thread.stacks {
            print_row(row, thread, out, style)?;
        }
    }
    if view.not_shown > 0 {
        let what = counted(view.not_shown as u64, "stack", "stacks");
        writeln!(
            out,
            "{}",
            style.paint(Paint::Aside, &format!("not shown: {what}"))
        )?;
    }
    Ok(())
}

fn print_row(
    row: &StackOf,
    thread: &ThreadStays,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let before = 2 * (COUNT_WIDTH + 2) + 2 * (TIME_WIDTH + 2) + 7;
    let width = style
        .width
        .map(|width| width.saturating_sub(before).max(MIN_NAME_WIDTH));
    let indent = (row.level as usize * 2).min(width.map_or(60, |width| width / 2));
    let name = printable(row.name);
    let name = match width {
        None => name,
        Some(width) => cut(&name, width - indent).into_owned().into(),
    };
    let part = share(row.samples, thread.samples);
    writeln!(
        out,
        "{:>COUNT_WIDTH$} {}  {:>COUNT_WIDTH$}  {}  {}  {:indent$}{name}",
        count(row.samples),
        style.paint(style.heat(row.own, thread.samples), &part),
        count(row.newly_seen),
        time(row.mean_ns),
        time(row.longest_ns),
        "",
    )
}
