//! Calls that rules have recorded: a list that is sent page by page, a time line that is as fine as the screen, and the tree of one.
//!
//! ```text
//! recorded calls -> those that are looked at (threads, root, name, function, --where), sorted -> calls?from=200, callplace?id=..
//!                                                                                             -> callline?t0=..&t1=..&px=..
//!                -> a call's callers and all below it                                         -> call?id=..
//! ```

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use regex::Regex;
use serde::Serialize;
use serde_json::value::RawValue;
use thalweg_analysis::Part;
use thalweg_formats::calls::Calls;
use thalweg_model::{Call, CallEnd, FuncId, Profile};
use thalweg_views::durations::{Durations, MAX_BUCKETS, has_duration};

use super::river::shortened;
use super::{ApiError, Query};
use crate::commands::calls::Where;

/// Rows of one page of the list.
const ROWS_PER_PAGE: usize = 200;
/// Lists that were looked at lately.
const CACHED_LISTS: usize = 4;
/// Rows of one tree.
const MAX_ROWS: usize = 20_000;
/// Wider than any screen.
const MAX_PIXELS: u32 = 8192;
/// Spans of the time line that are wider than a pixel.
const MAX_SPANS: usize = 20_000;
/// Letters of a call's values in the list.
const MAX_VALUES_LENGTH: usize = 300;

/// What recording there is, for the page's head.
#[derive(Serialize)]
pub struct Recorded<'a> {
    calls: usize,
    chosen: usize,
    requests: bool,
    dropped: u64,
    rules: Vec<RuleOf<'a>>,
    /// Names of values that were read.
    names: &'a [String],
}

#[derive(Serialize)]
struct RuleOf<'a> {
    text: &'a str,
    kept: u64,
}

pub fn recorded(profile: &Profile) -> Option<Recorded<'_>> {
    let recorded = &profile.recorded;
    let rules = recorded.rules.iter();
    (!recorded.is_empty()).then(|| Recorded {
        calls: recorded.calls.len(),
        chosen: chosen(&recorded.calls).count(),
        requests: has_requests(&recorded.calls),
        dropped: recorded.dropped,
        rules: rules
            .map(|rule| RuleOf {
                text: &rule.text,
                kept: rule.kept,
            })
            .collect(),
        names: &recorded.names,
    })
}

fn chosen(calls: &[Call]) -> impl Iterator<Item = &Call> {
    calls.iter().filter(|call| call.rule.is_some())
}

fn has_requests(calls: &[Call]) -> bool {
    calls.iter().any(|call| call.request != 0)
}

/// Lists of calls, by what they were asked for with.
#[derive(Default)]
pub struct Lists {
    recent: Mutex<VecDeque<(String, Arc<List>)>>,
}

/// From when, and until when if not the end.
type Window = (u64, Option<u64>);

/// Indices into the recorded calls, sorted.
pub struct List {
    calls: Vec<u32>,
    /// Without filters.
    whole: usize,
    /// Chosen calls in each call and below it, by index.
    within: Vec<u32>,
}

impl Lists {
    /// The outermost calls with `list=roots`, of requests where there are some; the chosen ones with `list=chosen`.
    pub fn get(
        &self,
        profile: &Profile,
        part: &Part,
        query: &Query,
    ) -> Result<Arc<List>, ApiError> {
        // The time line has its own use for what is looked at of the time.
        let window = match query.what.as_str() {
            "callline" => None,
            _ => Some((query.number("t0")?.unwrap_or(0), query.number("t1")?)),
        };
        let given = ["list", "where", "q", "f", "sort"];
        let given = (given.map(|name| query.text(name).unwrap_or("")), window);
        let key = format!("{given:?} {part:?}");
        let lock = || {
            let recent = self.recent.lock();
            recent.unwrap_or_else(|poisoned| poisoned.into_inner())
        };
        if let Some((_, list)) = lock().iter().find(|(known, _)| *known == key) {
            return Ok(list.clone());
        }
        let list = Arc::new(List::new(profile, part, query, window)?);
        let mut recent = lock();
        recent.push_front((key, list.clone()));
        recent.truncate(CACHED_LISTS);
        Ok(list)
    }
}

impl List {
    fn new(
        profile: &Profile,
        part: &Part,
        query: &Query,
        window: Option<Window>,
    ) -> Result<List, ApiError> {
        let calls = Calls::new(profile);
        let all = calls.all();
        let of_roots = match query.text("list") {
            None => has_requests(all),
            Some("roots") => true,
            Some("chosen") => false,
            Some(_) => return Err(ApiError::bad_query("'list' is roots or chosen")),
        };
        let wanted = match query.text("where") {
            None => Where::default(),
            Some(text) => Where::parse(text).map_err(|e| ApiError::bad_query(format!("{e:#}")))?,
        };
        let name = match query.text("q") {
            None => None,
            Some(text) => Some(Regex::new(text).map_err(|e| ApiError::bad_query(e.to_string()))?),
        };
        let function = query.function_if_any(profile, "f")?;
        let threads = threads_of(profile, part);
        let below_root = below(all, part.root);
        let mut names: HashMap<FuncId, bool> = HashMap::new();
        let mut passes = vec![false; all.len()];
        for (index, call) in all.iter().enumerate() {
            let by_name = name.as_ref().is_none_or(|name| {
                let known = names.entry(call.function);
                *known.or_insert_with(|| name.is_match(calls.function(call)))
            });
            passes[index] = by_name
                && function.is_none_or(|function| call.function == function)
                && threads
                    .as_ref()
                    .is_none_or(|t| t.contains(&(call.pid, call.tid)))
                && below_root[index]
                && (of_roots || call.rule.is_some())
                && wanted.holds(&calls, call);
        }
        let mut within: Vec<u32> = all.iter().map(|c| c.rule.is_some().into()).collect();
        // Parents stand before their children: a root is shown for what any call below it is.
        for (index, call) in all.iter().enumerate().rev() {
            if let Some(parent) = call.parent {
                within[parent as usize] = within[parent as usize].saturating_add(within[index]);
                passes[parent as usize] |= of_roots && passes[index];
            }
        }
        let listed = |call: &Call| match of_roots {
            true => call.parent.is_none(),
            false => call.rule.is_some(),
        };
        let mut list = List {
            whole: all.iter().filter(|call| listed(call)).count(),
            calls: (0..)
                .zip(all)
                .filter(|(index, call)| {
                    listed(call) && passes[*index as usize] && runs_in(call, window)
                })
                .map(|(index, _)| index)
                .collect(),
            within,
        };
        list.sort(&calls, query.text("sort").unwrap_or("at"))?;
        Ok(list)
    }

    fn sort(&mut self, calls: &Calls, by: &str) -> Result<(), ApiError> {
        let (column, down) = match by.strip_prefix('-') {
            Some(column) => (column, true),
            None => (by, false),
        };
        let all = calls.all();
        let at = |index: u32| &all[index as usize];
        let within = &self.within;
        let number: Box<dyn Fn(u32) -> u64> = match column {
            "at" => Box::new(|i| at(i).entry_ns),
            "total" => Box::new(|i| at(i).total_ns()),
            "self" => Box::new(|i| at(i).self_ns),
            "waiting" => Box::new(|i| at(i).waited_ns),
            "within" => Box::new(|i| within[i as usize].into()),
            "request" => Box::new(|i| at(i).request),
            "end" => Box::new(|i| at(i).end as u64),
            "rule" => Box::new(|i| at(i).rule.map_or(0, |rule| u64::from(rule) + 1)),
            "thread" => Box::new(|i| u64::from(at(i).pid) << 32 | u64::from(at(i).tid)),
            "name" => {
                let rank = ranks(calls);
                Box::new(move |i| rank[&at(i).function])
            }
            _ => return Err(ApiError::bad_query("'sort' names no column")),
        };
        match down {
            true => self.calls.sort_by_cached_key(|&i| (Reverse(number(i)), i)),
            false => self.calls.sort_by_cached_key(|&i| (number(i), i)),
        }
        Ok(())
    }
}

fn runs_in(call: &Call, window: Option<Window>) -> bool {
    window.is_none_or(|(from, to)| call.exit_ns >= from && to.is_none_or(|to| call.entry_ns <= to))
}

/// How long the listed calls took that have ended.
pub fn durations(profile: &Profile, list: &List) -> Durations {
    let calls = &profile.recorded.calls;
    let listed = list.calls.iter().map(|&index| &calls[index as usize]);
    let ended = listed.filter(|call| has_duration(call));
    Durations::new(ended.map(Call::total_ns).collect(), MAX_BUCKETS)
}

/// Where a call stands in the list.
#[derive(Serialize)]
pub struct Placed {
    place: Option<usize>,
}

pub fn place(profile: &Profile, list: &List, query: &Query) -> Result<Placed, ApiError> {
    let id: Option<u64> = query.number("id")?;
    let calls = &profile.recorded.calls;
    let is_it = |index: &u32| Some(calls[*index as usize].id) == id;
    Ok(Placed {
        place: list.calls.iter().position(is_it),
    })
}

/// Functions in the order of their names.
fn ranks(calls: &Calls) -> HashMap<FuncId, u64> {
    let mut named: Vec<(&str, FuncId)> = Vec::new();
    for call in calls.all() {
        named.push((calls.function(call), call.function));
    }
    named.sort_unstable();
    named.dedup();
    let ranked = (0..).zip(named);
    ranked
        .map(|(rank, (_, function))| (function, rank))
        .collect()
}

/// Process and number of each chosen thread; none: all.
fn threads_of(profile: &Profile, part: &Part) -> Option<Vec<(u32, u32)>> {
    let all = (0..).zip(thalweg_analysis::threads(profile));
    let chosen = all.filter(|(number, _)| part.threads.contains(number));
    let chosen = chosen.map(|(_, (process, thread))| (process.pid, thread.tid));
    (!part.threads.is_empty()).then(|| chosen.collect())
}

/// Which calls are the root's or were made below it.
fn below(calls: &[Call], root: Option<FuncId>) -> Vec<bool> {
    let mut below = vec![root.is_none(); calls.len()];
    for (index, call) in calls.iter().enumerate() {
        let above = call.parent.is_some_and(|parent| below[parent as usize]);
        below[index] |= above || Some(call.function) == root;
    }
    below
}

/// One page of the list, column by column.
#[derive(Serialize, Default)]
pub struct Page<'a> {
    /// Without filters, and of these all that pass them.
    whole: usize,
    count: usize,
    from: usize,
    roots: bool,
    rows: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    id: u64,
    function: FuncId,
    name: &'a str,
    thread: &'a str,
    pid: u32,
    tid: u32,
    request: u64,
    rule: Option<u32>,
    at: u64,
    total: u64,
    #[serde(rename = "self")]
    own: u64,
    waiting: u64,
    end: &'static str,
    within: u32,
    /// `sql="select 7"  -> ret=-7`
    values: String,
}

pub fn page<'a>(profile: &'a Profile, list: &List, query: &Query) -> Result<Page<'a>, ApiError> {
    let calls = Calls::new(profile);
    let from: usize = query.number("from")?.unwrap_or(0);
    let rows = list.calls.iter().skip(from).take(ROWS_PER_PAGE);
    Ok(Page {
        whole: list.whole,
        count: list.calls.len(),
        from,
        roots: query.text("list") == Some("roots")
            || query.text("list").is_none() && has_requests(calls.all()),
        rows: rows.map(|&index| row(&calls, index, list)).collect(),
    })
}

fn row<'a>(calls: &Calls<'a>, index: u32, list: &List) -> Row<'a> {
    let call = &calls.all()[index as usize];
    let mut values = String::new();
    for (name, at_entry, json) in calls.values(call) {
        let gap = if values.is_empty() { "" } else { "  " };
        let arrow = if at_entry { "" } else { "-> " };
        values.push_str(&format!("{gap}{arrow}{name}={json}"));
        if values.len() > MAX_VALUES_LENGTH {
            values = shortened(&values, MAX_VALUES_LENGTH);
            break;
        }
    }
    Row {
        id: call.id,
        function: call.function,
        name: calls.function(call),
        thread: calls.thread(call),
        pid: call.pid,
        tid: call.tid,
        request: call.request,
        rule: call.rule,
        at: call.entry_ns,
        total: call.total_ns(),
        own: call.self_ns,
        waiting: call.waited_ns,
        end: call.end.word(),
        within: list.within[index as usize],
        values,
    }
}

/// When the calls of the list ran, thread by thread. Those that are narrower than a pixel are one per pixel: the longest, and how
/// many there are.
#[derive(Serialize, Default)]
pub struct Line<'a> {
    /// What all of them span, and what of it is shown.
    begin: u64,
    end: u64,
    t0: u64,
    t1: u64,
    threads: Vec<Lane<'a>>,
    lane: Vec<u32>,
    at: Vec<u64>,
    length: Vec<u64>,
    id: Vec<u64>,
    count: Vec<u32>,
    /// How many of these were left otherwise than by a return.
    odd: Vec<u32>,
    left_out: usize,
}

#[derive(Serialize)]
struct Lane<'a> {
    pid: u32,
    tid: u32,
    name: &'a str,
}

pub fn line<'a>(profile: &'a Profile, list: &List, query: &Query) -> Result<Line<'a>, ApiError> {
    let calls = Calls::new(profile);
    let all = calls.all();
    let listed = || list.calls.iter().map(|&index| &all[index as usize]);
    let begin = listed().map(|call| call.entry_ns).min().unwrap_or(0);
    let end = listed().map(|call| call.exit_ns).max().unwrap_or(begin);
    let t0 = query.number("t0")?.unwrap_or(begin);
    let t1 = query.number("t1")?.unwrap_or(end).max(t0.saturating_add(1));
    let pixels = query.number("px")?.unwrap_or(1200).clamp(1, MAX_PIXELS);
    let pixel = (t1 - t0) as f64 / f64::from(pixels);
    let mut line = Line {
        begin,
        end,
        t0,
        t1,
        ..Line::default()
    };
    let mut lanes: HashMap<(u32, u32), u32> = HashMap::new();
    let mut narrow: HashMap<(u32, u32), usize> = HashMap::new();
    let mut in_time: Vec<&Call> = listed().collect();
    in_time.sort_by_key(|call| (call.entry_ns, Reverse(call.exit_ns)));
    for call in in_time {
        let lane = *lanes.entry((call.pid, call.tid)).or_insert_with(|| {
            line.threads.push(Lane {
                pid: call.pid,
                tid: call.tid,
                name: calls.thread(call),
            });
            line.threads.len() as u32 - 1
        });
        if call.exit_ns < t0 || call.entry_ns > t1 {
            continue;
        }
        let odd: u32 = (call.end != CallEnd::Returned).into();
        if (call.total_ns() as f64) < pixel {
            let column = (call.entry_ns.saturating_sub(t0) as f64 / pixel) as u32;
            let place = *narrow.entry((lane, column)).or_insert(line.at.len());
            if place < line.at.len() {
                line.count[place] += 1;
                line.odd[place] += odd;
                if line.length[place] < call.total_ns() {
                    (line.at[place], line.length[place]) = (call.entry_ns, call.total_ns());
                    line.id[place] = call.id;
                }
                continue;
            }
        } else if line.at.len() >= MAX_SPANS {
            line.left_out += 1;
            continue;
        }
        line.lane.push(lane);
        line.at.push(call.entry_ns);
        line.length.push(call.total_ns());
        line.id.push(call.id);
        line.count.push(1);
        line.odd.push(odd);
    }
    Ok(line)
}

/// A call, those that it was made by, and all below it that is recorded.
#[derive(Serialize)]
pub struct Tree<'a> {
    /// The row of the call itself.
    at: usize,
    /// Below it, sent or not.
    calls: usize,
    rows: Vec<Branch<'a>>,
}

#[derive(Serialize)]
struct Branch<'a> {
    id: u64,
    /// Row; null for the first.
    parent: Option<usize>,
    level: u32,
    function: FuncId,
    name: &'a str,
    module: &'a str,
    thread: &'a str,
    pid: u32,
    tid: u32,
    request: u64,
    rule: Option<u32>,
    at: u64,
    total: u64,
    #[serde(rename = "self")]
    own: u64,
    waiting: u64,
    end: &'static str,
    values: Vec<Value<'a>>,
}

#[derive(Serialize)]
struct Value<'a> {
    name: &'a str,
    /// When the call began, as opposed to when it ended.
    entry: bool,
    value: Option<&'a RawValue>,
}

pub fn tree<'a>(profile: &'a Profile, query: &Query) -> Result<Tree<'a>, ApiError> {
    let calls = Calls::new(profile);
    let all = calls.all();
    let id: u64 = query
        .number("id")?
        .ok_or_else(|| ApiError::bad_query("'id' names no call"))?;
    let found = all.iter().position(|call| call.id == id);
    let chosen =
        found.ok_or_else(|| ApiError::missing("this call is not among those that are kept"))?;
    let mut way = Vec::new();
    let mut above = all[chosen].parent;
    while let Some(parent) = above {
        way.push(parent as usize);
        above = all[parent as usize].parent;
    }
    way.reverse();
    // Children are listed in the order of their calls, which is that of their times.
    let mut children: HashMap<usize, Vec<usize>> = HashMap::from([(chosen, Vec::new())]);
    let mut below = 0;
    for (index, call) in all.iter().enumerate().skip(chosen + 1) {
        if let Some(parent) = call.parent
            && let Some(siblings) = children.get_mut(&(parent as usize))
        {
            siblings.push(index);
            children.insert(index, Vec::new());
            below += 1;
        }
    }
    let mut tree = Tree {
        at: way.len(),
        calls: below,
        rows: Vec::new(),
    };
    for (row, &index) in way.iter().enumerate() {
        tree.rows
            .push(branch(&calls, index, row.checked_sub(1), row as u32));
    }
    let mut pending = vec![(chosen, way.len().checked_sub(1), way.len() as u32)];
    while let Some((index, parent, level)) = pending.pop() {
        if tree.rows.len() > MAX_ROWS {
            break;
        }
        let row = tree.rows.len();
        tree.rows.push(branch(&calls, index, parent, level));
        let below = children.get(&index).into_iter().flatten().rev();
        pending.extend(below.map(|&child| (child, Some(row), level + 1)));
    }
    Ok(tree)
}

fn branch<'a>(calls: &Calls<'a>, index: usize, parent: Option<usize>, level: u32) -> Branch<'a> {
    let call = &calls.all()[index];
    let values = calls.values(call).map(|(name, entry, json)| Value {
        name,
        entry,
        value: serde_json::from_str(json).ok(),
    });
    Branch {
        id: call.id,
        parent,
        level,
        function: call.function,
        name: calls.function(call),
        module: calls.module(call),
        thread: calls.thread(call),
        pid: call.pid,
        tid: call.tid,
        request: call.request,
        rule: call.rule,
        at: call.entry_ns,
        total: call.total_ns(),
        own: call.self_ns,
        waiting: call.waited_ns,
        end: call.end.word(),
        values: values.collect(),
    }
}
