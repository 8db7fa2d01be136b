//! `report --context F` and `--context 'F -> G'`: one function, or one function's calls of another, split by thread.

use std::io::{self, Write};

use serde::Serialize;
use thalweg_analysis::{Bounds, Caller, Origin, ThreadShare, of_call, of_function, threads};
use thalweg_model::{Profile, Thread};

use super::json::finish;
use super::meant;
use super::style::{Paint, Style};
use super::table::{Align, Cell, Table};
use super::text::{TIME_WIDTH, at_least, count, cut, printable, share, time};

/// What is to be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Function(u32),
    Call { caller: u32, callee: u32 },
}

impl Wanted {
    /// `F` or `F -> G`; where a name means several functions, all that have anything to split.
    pub fn parse(profile: &Profile, text: &str) -> anyhow::Result<Vec<Wanted>> {
        // Operators of C++ have arrows in their names, and no blanks around them.
        let Some((caller, callee)) = text.split_once(" -> ") else {
            let functions = meant(profile, "--context", text)?.into_iter();
            return Ok(functions.map(Wanted::Function).collect());
        };
        let callers = meant(profile, "--context", caller.trim())?;
        let callees = meant(profile, "--context", callee.trim())?;
        let mut wanted = Vec::new();
        for edge in thalweg_analysis::edges(profile) {
            if let Caller::Function(caller) = edge.caller
                && callers.contains(&caller)
                && callees.contains(&edge.callee)
            {
                let callee = edge.callee;
                wanted.push(Wanted::Call { caller, callee });
            }
        }
        if wanted.is_empty() {
            anyhow::bail!("'{}' never called '{}'", caller.trim(), callee.trim());
        }
        Ok(wanted)
    }

    fn is_bound(self, bounds: &Bounds) -> bool {
        match self {
            Wanted::Function(function) => bounds.function(function),
            Wanted::Call { caller, callee } => bounds.call(Caller::Function(caller), callee),
        }
    }

    fn shares(self, profile: &Profile) -> Vec<ThreadShare> {
        match self {
            Wanted::Function(function) => of_function(profile, function),
            Wanted::Call { caller, callee } => of_call(profile, caller, callee),
        }
    }

    fn title(self, profile: &Profile) -> String {
        let name = |function: u32| printable(&profile.functions[function as usize].name);
        match self {
            Wanted::Function(function) => name(function).into_owned(),
            Wanted::Call { caller, callee } => format!("{} -> {}", name(caller), name(callee)),
        }
    }
}

pub fn print_context(
    profile: &Profile,
    wanted: &[Wanted],
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let all: Vec<&Thread> = threads(profile).map(|(_, thread)| thread).collect();
    let bounds = Bounds::of(profile);
    for (number, &wanted) in wanted.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        let shares = wanted.shares(profile);
        let title = wanted.title(profile);
        let title = cut(&title, style.width.unwrap_or(usize::MAX));
        writeln!(out, "{}", style.paint(Paint::Title, &title))?;
        let timed = profile.meta.timed;
        let mut table = Table::new(style)
            .column("Made", Align::Left)
            .column("Calls", Align::Right);
        if timed {
            table = table
                .column(format!("{:>TIME_WIDTH$} {:>6}", "Self", "%"), Align::Right)
                .column("Total", Align::Right);
        }
        table = table
            .column("Contexts", Align::Right)
            .dispensable(1)
            .column("Process", Align::Right)
            .column("Thread", Align::Right)
            .column("Name", Align::Left);
        let whole = shares
            .iter()
            .fold(0u64, |sum, s| sum.saturating_add(s.base));
        for share_of in &shares {
            let mut cells = vec![
                Cell::new(made(share_of.thread.0, share_of.origin)),
                Cell::new(at_least(wanted.is_bound(&bounds), count(share_of.calls))),
            ];
            if timed {
                let text = format!("{} {}", time(share_of.base), share(share_of.base, whole));
                cells.push(Cell::painted(text, style.heat(share_of.base, whole)));
                cells.push(Cell::new(time(share_of.cum)));
            }
            let thread = all[share_of.thread.0 as usize];
            cells.extend([
                Cell::new(count(share_of.contexts)),
                Cell::new(share_of.pid.to_string()),
                Cell::new(share_of.tid.to_string()),
                Cell::new(printable(&thread.name)).tail(made_in(profile, share_of.origin)),
            ]);
            table.row(cells);
        }
        table.print(out)?;
    }
    Ok(())
}

/// `0->1`: thread 0 made thread 1. Threads are numbered as `thalweg threads` lists them.
pub fn made(thread: u32, origin: Option<Origin>) -> String {
    match origin {
        Some(origin) => format!("{}->{thread}", origin.maker.0),
        None => thread.to_string(),
    }
}

pub fn made_in(profile: &Profile, origin: Option<Origin>) -> String {
    match origin.and_then(|origin| origin.function) {
        Some(function) => {
            let name = printable(&profile.functions[function as usize].name);
            format!(" (made in {name})")
        }
        None => String::new(),
    }
}

pub fn print_context_json(
    profile: &Profile,
    wanted: &[Wanted],
    out: &mut impl Write,
) -> io::Result<()> {
    #[derive(Serialize)]
    struct Report {
        schema: &'static str,
        timed: bool,
        contexts: Vec<ContextOf>,
    }
    #[derive(Serialize)]
    struct ContextOf {
        caller: Option<u32>,
        function: u32,
        title: String,
        threads: Vec<ShareOf>,
    }
    #[derive(Serialize)]
    struct ShareOf {
        thread: u32,
        made_by: Option<u32>,
        made_in: Option<u32>,
        level: u32,
        pid: u32,
        tid: u32,
        calls: u64,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        calls_at_least: bool,
        self_ns: u64,
        total_ns: u64,
        contexts: u64,
    }
    let bounds = Bounds::of(profile);
    let contexts = wanted.iter().map(|&wanted| {
        let (caller, function) = match wanted {
            Wanted::Function(function) => (None, function),
            Wanted::Call { caller, callee } => (Some(caller), callee),
        };
        let shares = wanted.shares(profile).into_iter().map(|share| ShareOf {
            thread: share.thread.0,
            made_by: share.origin.map(|origin| origin.maker.0),
            made_in: share.origin.and_then(|origin| origin.function),
            level: share.level,
            pid: share.pid,
            tid: share.tid,
            calls: share.calls,
            calls_at_least: wanted.is_bound(&bounds),
            self_ns: share.base,
            total_ns: share.cum,
            contexts: share.contexts,
        });
        ContextOf {
            caller,
            function,
            title: wanted.title(profile),
            threads: shares.collect(),
        }
    });
    finish(
        profile.meta.weighed_by,
        out,
        &Report {
            schema: "thalweg.report.context/1",
            timed: profile.meta.timed,
            contexts: contexts.collect(),
        },
    )
}
