//! Callgrind's format, for KCachegrind and `callgrind_annotate`: functions, and who called whom at
//! which cost.
//!
//! It holds pairs of caller and callee, no deeper contexts. The cost of a pair is the callee's time
//! in calls by that caller, outermost calls only, so that what its callers brought in adds up to
//! the inclusive time of each function. What nobody was seen to call is called by `START`. Metrics
//! beside calls and time are further events. Where call sites were recorded, calls stand at the
//! lines that make them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};

use thalweg_analysis::{Caller, Edge, by_metric, edges, flat};
use thalweg_model::{FuncId, Metric, Profile, SiteId};

pub fn write(profile: &Profile, mut out: impl Write) -> io::Result<()> {
    let timed = profile.meta.timed;
    let rows = flat(profile);
    let own = |self_ns: u64, calls: u64| if timed { self_ns } else { calls };
    let total: u64 = rows.iter().fold(0, |sum: u64, row| {
        sum.saturating_add(own(row.self_ns, row.calls))
    });

    writeln!(out, "# callgrind format")?;
    writeln!(out, "version: 1")?;
    writeln!(out, "creator: thalweg-{}", line(&profile.meta.version))?;
    if let Some(process) = profile.processes.first() {
        writeln!(out, "pid: {}", process.pid)?;
    }
    writeln!(out, "cmd: {}", line(&profile.meta.command.join(" ")))?;
    writeln!(out, "part: 1")?;
    for note in &profile.notes {
        writeln!(out, "desc: Note: {}", line(note))?;
    }
    writeln!(out, "positions: line")?;
    if let Some(metric) = profile.meta.weighed_by {
        let name = metric.name().replace(['.', '-'], "_");
        writeln!(out, "event: {name} : {}", metric.name())?;
        writeln!(out, "events: {name}")?;
    } else if timed {
        writeln!(out, "event: ns : Time in ns")?;
        let further = further_events(profile, &mut out)?;
        writeln!(out, "events: ns{further}")?;
    } else {
        writeln!(out, "event: Calls : Calls")?;
        let further = further_events(profile, &mut out)?;
        writeln!(out, "events: Calls{further}")?;
    }
    let others: Vec<Metric> = match profile.meta.weighed_by {
        None => profile.meta.metrics.clone(),
        Some(_) => Vec::new(),
    };
    let mut total = total.to_string();
    let sums = profile.total_metrics();
    for &metric in &others {
        total += &format!(" {}", sums.get(metric));
    }
    writeln!(out, "summary: {total}\n")?;

    let mut by_caller = edges(profile);
    by_caller.sort_by_key(|edge| (start_last(edge.caller), edge.callee, edge.site));
    let mut calls = by_caller.iter().peekable();
    let mut writer = Writer {
        profile,
        named: [HashSet::new(), HashSet::new(), HashSet::new()],
        files: HashMap::new(),
        others: others
            .iter()
            .map(|&metric| inclusive(profile, metric))
            .collect(),
        out,
    };
    for row in &rows {
        let at = profile.functions[row.function].line;
        writer.function(["ob", "fl", "fn"], row.function)?;
        write!(writer.out, "{at} {}", own(row.self_ns, row.calls))?;
        for &metric in &others {
            write!(writer.out, " {}", row.metrics.get(metric))?;
        }
        writeln!(writer.out)?;
        let caller = (false, row.function);
        while let Some(edge) = calls.next_if(|edge| start_last(edge.caller) == caller) {
            writer.call_from(row.function, edge)?;
        }
        writeln!(writer.out)?;
    }
    writeln!(writer.out, "ob=\nfl=???\nfn=START")?;
    for edge in calls {
        writer.call(edge, 0)?;
    }
    writeln!(writer.out, "\ntotals: {total}")?;
    writer.out.flush()
}

/// A key that sorts callers by their number, and what has no caller last.
fn start_last(caller: Caller) -> (bool, FuncId) {
    match caller {
        Caller::Function(function) => (false, function),
        Caller::Outside | Caller::Unknown => (true, FuncId(0)),
    }
}

struct Writer<'a, W> {
    profile: &'a Profile,
    /// Numbers of objects, files and functions whose name was written: from then on the number
    /// stands for it.
    named: [HashSet<u64>; 3],
    files: HashMap<&'a str, u64>,
    /// What calls between functions cost in the further events.
    others: Vec<Inclusive>,
    out: W,
}

type Between = (FuncId, Caller, Option<SiteId>);
type Inclusive = BTreeMap<Between, u64>;

/// A metric of the callee in calls by the caller, its callees' included.
fn inclusive(profile: &Profile, metric: Metric) -> Inclusive {
    let mut sums = Inclusive::new();
    let edges = edges(&by_metric(profile.clone(), metric));
    sums.extend(edges.iter().map(|edge| (key(edge), edge.total_ns)));
    sums
}

fn key(edge: &Edge) -> Between {
    (edge.callee, edge.caller, edge.site)
}

/// Describes the further events, and says their names.
fn further_events(profile: &Profile, out: &mut impl Write) -> io::Result<String> {
    let mut names = String::new();
    for metric in &profile.meta.metrics {
        let name = metric.name().replace(['.', '-'], "_");
        writeln!(out, "event: {name} : {}", metric.name())?;
        names += &format!(" {name}");
    }
    Ok(names)
}

impl<'a, W: Write> Writer<'a, W> {
    fn function(&mut self, keys: [&str; 3], number: FuncId) -> io::Result<()> {
        let profile = self.profile;
        let function = &profile.functions[number.index()];
        let module = &profile.modules[function.module as usize];
        let object = match module.path.as_str() {
            "" => &module.name,
            path => path,
        };
        let file = function.file.as_deref().unwrap_or("???");
        let new_file = self.files.len() as u64;
        let file_number = *self.files.entry(file).or_insert(new_file);
        let parts = [
            (u64::from(function.module), object),
            (file_number, file),
            (u64::from(number), function.name.as_str()),
        ];
        for ((key, (number, name)), named) in keys.iter().zip(parts).zip(&mut self.named) {
            if named.insert(number) {
                writeln!(self.out, "{key}=({number}) {}", line(name))?;
            } else {
                writeln!(self.out, "{key}=({number})")?;
            }
        }
        Ok(())
    }

    /// At its line, which may be that of another file: of a function that was inlined.
    fn call_from(&mut self, caller: FuncId, edge: &Edge) -> io::Result<()> {
        let profile = self.profile;
        let caller = &profile.functions[caller];
        let site = edge.site.map(|site| &profile.sites[site.index() as usize]);
        let Some(site) = site.filter(|site| site.line > 0 && site.is_in(caller)) else {
            return self.call(edge, caller.line);
        };
        let elsewhere = site.file.as_deref().filter(|_| site.file != caller.file);
        if let Some(file) = elsewhere {
            self.file("fi", file)?;
        }
        self.call(edge, site.line)?;
        if elsewhere.is_some() {
            self.file("fe", caller.file.as_deref().unwrap_or("???"))?;
        }
        Ok(())
    }

    fn file(&mut self, key: &str, file: &'a str) -> io::Result<()> {
        let new_file = self.files.len() as u64;
        let number = *self.files.entry(file).or_insert(new_file);
        match self.named[1].insert(number) {
            true => writeln!(self.out, "{key}=({number}) {}", line(file)),
            false => writeln!(self.out, "{key}=({number})"),
        }
    }

    fn call(&mut self, edge: &Edge, at: u32) -> io::Result<()> {
        self.function(["cob", "cfi", "cfn"], edge.callee)?;
        let profile = self.profile;
        let cost = match profile.meta.timed {
            true => edge.total_ns,
            false => edge.calls,
        };
        // Readers take a cost after no calls for the caller's own. What was on the stack at attach
        // was called, unseen.
        let calls = edge.calls.max(1);
        let line = profile.functions[edge.callee].line;
        write!(self.out, "calls={calls} {line}\n{at} {cost}")?;
        for other in &self.others {
            let cost = other.get(&key(edge)).copied().unwrap_or(0);
            write!(self.out, " {cost}")?;
        }
        writeln!(self.out)
    }
}

/// Text that stays on its line, and is some.
fn line(text: &str) -> String {
    match text.replace(char::is_control, " ").trim() {
        "" => "???".to_string(),
        text => text.to_string(),
    }
}
