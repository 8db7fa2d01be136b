//! What there is to see: the rows of each view, sorted, searched, with only the open part of the tree.

use std::borrow::Cow;
use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use thalweg_analysis::{Bounds, FunctionTotals, Tree, Weight, flat};
use thalweg_model::{FuncId, NodeFlags, ProbeState, Profile, Thread};
use thalweg_views::state;

use super::{Sort, Span, State, View};

/// What a row is about, the same in every reading: contexts have no lasting number, but their functions have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowId(u64);

impl RowId {
    fn of_thread(pid: u32, tid: u32) -> RowId {
        RowId(mixed(u64::from(pid) << 32 | u64::from(tid)))
    }

    /// No process has that number.
    pub fn of_callers(function: FuncId) -> RowId {
        RowId::of_thread(u32::MAX, function.0)
    }

    fn below(self, function: FuncId) -> RowId {
        RowId(mixed(self.0 ^ (u64::from(function) + 1)))
    }
}

/// Spreads the bits (the finalizer of splitmix64).
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[derive(Clone, Debug)]
pub struct Row {
    pub id: RowId,
    /// What it is of; none of a thread.
    pub function: Option<FuncId>,
    /// What it took lately, from reading to reading.
    pub sparks: String,
    pub level: usize,
    pub name: String,
    pub module: String,
    /// None where nobody counted them, and only samples tell of it.
    pub calls: Option<u64>,
    /// There may have been more.
    pub at_least: bool,
    pub self_ns: u64,
    /// How far off that may be, where it is not just what was measured.
    pub error: u64,
    pub total_ns: u64,
    /// What is to be known of the figures.
    pub mark: String,
    pub children: usize,
    pub expanded: bool,
}

pub fn rows(state: &State) -> Vec<Row> {
    match state.view {
        View::Functions => functions(state),
        View::Tree => tree(state),
        View::Threads => threads(state),
    }
}

fn compare(sort: Sort, a: &Row, b: &Row) -> Ordering {
    let key = |row: &Row| match sort {
        Sort::SelfTime => Reverse(row.self_ns),
        Sort::Total => Reverse(row.total_ns),
        Sort::Calls => Reverse(row.calls.unwrap_or(0)),
        Sort::Name => Reverse(0),
    };
    key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
}

fn matches(search: &str, name: &str) -> bool {
    search.is_empty() || name.to_lowercase().contains(&search.to_lowercase())
}

/// Figures of an earlier reading are taken off where only what happened since is asked for.
fn since(state: &State) -> Option<&Profile> {
    state.before.as_ref().filter(|_| state.span == Span::Now)
}

fn functions(state: &State) -> Vec<Row> {
    let profile = &state.profile;
    let bounds = Bounds::from_profile(profile);
    let before: HashMap<FuncId, FunctionTotals> = since(state)
        .map(|before| {
            flat(before)
                .into_iter()
                .map(|row| (row.function, row))
                .collect()
        })
        .unwrap_or_default();
    let mut rows: Vec<Row> = flat(profile)
        .into_iter()
        .filter_map(|row| {
            let function = &profile.functions[row.function];
            if !matches(&state.search, &function.name) {
                return None;
            }
            let old = before.get(&row.function).copied().unwrap_or_default();
            let is_counted = row.calls > 0 || row.samples == 0;
            Some(Row {
                id: RowId(row.function.into()),
                function: Some(row.function),
                sparks: sparks(state, row.function),
                level: 0,
                name: function.name.clone(),
                module: profile.modules[function.module as usize].name.clone(),
                calls: is_counted.then_some(row.calls.saturating_sub(old.calls)),
                at_least: bounds.function(row.function),
                self_ns: row.self_ns.saturating_sub(old.self_ns),
                // It is that of the sums.
                error: if since(state).is_some() { 0 } else { row.error },
                total_ns: row.total_ns.saturating_sub(old.total_ns),
                mark: Some(state::text(profile, &row))
                    .filter(|mark| mark != ProbeState::Timed.name())
                    .unwrap_or_default(),
                children: 0,
                expanded: false,
            })
        })
        .filter(|row| {
            let figures = [row.calls.unwrap_or(0), row.self_ns, row.total_ns];
            state.span == Span::SinceStart || figures.iter().any(|figure| *figure > 0)
        })
        .collect();
    rows.sort_by(|a, b| compare(state.sort, a, b));
    rows
}

/// A bar for each of the last readings, the highest one full.
fn sparks(state: &State, function: FuncId) -> String {
    const BARS: [char; 8] = [
        '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}',
        '\u{2588}',
    ];
    let Some(past) = state.history.get(&function) else {
        return String::new();
    };
    let most = past.iter().copied().max().unwrap_or(0).max(1);
    let bar = |&took: &u64| match took {
        0 => ' ',
        took => BARS[(took as u128 * 7 / most as u128) as usize],
    };
    past.iter().map(bar).collect()
}

fn threads(state: &State) -> Vec<Row> {
    let sums = |profile: &Profile| -> HashMap<RowId, (u64, u64)> {
        thalweg_analysis::threads(profile)
            .map(|(process, thread)| (RowId::of_thread(process.pid, thread.tid), totals(thread)))
            .collect()
    };
    let before = since(state).map(sums).unwrap_or_default();
    let bounds = Bounds::from_profile(&state.profile);
    let mut rows: Vec<Row> = thalweg_analysis::threads(&state.profile)
        .filter(|(_, thread)| matches(&state.search, &thread.name))
        .map(|(process, thread)| {
            let id = RowId::of_thread(process.pid, thread.tid);
            let (calls, self_ns) = totals(thread);
            let (old_calls, old_self_ns) = before.get(&id).copied().unwrap_or_default();
            let self_ns = self_ns.saturating_sub(old_self_ns);
            Row {
                id,
                function: None,
                sparks: String::new(),
                level: 0,
                name: format!("{} {}", thread.tid, thread.name),
                module: format!("{} contexts", thread.nodes.len()),
                calls: Some(calls.saturating_sub(old_calls)),
                at_least: bounds.any(),
                self_ns,
                error: 0,
                total_ns: self_ns,
                mark: String::new(),
                children: 0,
                expanded: false,
            }
        })
        .collect();
    rows.sort_by(|a, b| compare(state.sort, a, b));
    rows
}

fn totals(thread: &Thread) -> (u64, u64) {
    thread.nodes.iter().fold((0, 0), |(calls, self_ns), node| {
        (
            calls.saturating_add(node.calls),
            self_ns.saturating_add(node.self_ns),
        )
    })
}

/// A tree that is shown, with what it is of.
struct Grown<'a> {
    id: RowId,
    title: String,
    thread: Cow<'a, Thread>,
}

impl Grown<'_> {
    /// Calls and self time of all of it.
    fn totals(&self, is_of_callers: bool) -> (u64, u64) {
        match (is_of_callers, self.thread.nodes.first()) {
            // Below it the same calls stand once for each that led to them.
            (true, Some(root)) => (root.calls, root.self_ns),
            _ => totals(&self.thread),
        }
    }
}

/// Those of the threads, or the one of the callers of a function.
fn forest<'a>(state: &State, profile: &'a Profile) -> Vec<Grown<'a>> {
    if let Some(function) = state.callers {
        let name = profile.functions.get(function.index());
        return vec![Grown {
            id: RowId::of_callers(function),
            title: format!("callers of {}", name.map_or("?", |known| &known.name)),
            thread: Cow::Owned(thalweg_analysis::callers(profile, function, None)),
        }];
    }
    let threads = thalweg_analysis::threads(profile);
    threads
        .map(|(process, thread)| Grown {
            id: RowId::of_thread(process.pid, thread.tid),
            title: format!("thread {} {}", thread.tid, thread.name),
            thread: Cow::Borrowed(thread),
        })
        .collect()
}

/// Calls, self and total of every context, by what lasts of it.
fn by_context(forest: &[Grown]) -> HashMap<RowId, (u64, u64, u64)> {
    let mut figures = HashMap::new();
    for Grown { id, thread, .. } in forest {
        let ids = ids(*id, thread);
        for (id, node) in ids.into_iter().zip(&thread.nodes) {
            figures.insert(id, (node.calls, node.self_ns, node.total_ns));
        }
    }
    figures
}

fn ids(thread_id: RowId, thread: &Thread) -> Vec<RowId> {
    let mut ids: Vec<RowId> = Vec::with_capacity(thread.nodes.len());
    for node in &thread.nodes {
        let above = node.parent.map_or(thread_id, |parent| ids[parent as usize]);
        ids.push(above.below(node.function));
    }
    ids
}

fn tree(state: &State) -> Vec<Row> {
    let profile = &state.profile;
    let weight = match profile.meta.timed {
        true => Weight::Time,
        false => Weight::Calls,
    };
    let old_forest = since(state).map(|before| forest(state, before));
    let old_forest = old_forest.unwrap_or_default();
    let before = by_context(&old_forest);
    let bounds = Bounds::from_profile(profile);
    let mut rows = Vec::new();
    let is_of_callers = state.callers.is_some();
    let old_totals: HashMap<RowId, (u64, u64)> = old_forest
        .iter()
        .map(|old| (old.id, old.totals(is_of_callers)))
        .collect();
    let now = |grown: &Grown| {
        let (calls, self_ns) = grown.totals(is_of_callers);
        let (old_calls, old_self_ns) = old_totals.get(&grown.id).copied().unwrap_or_default();
        (
            calls.saturating_sub(old_calls),
            self_ns.saturating_sub(old_self_ns),
        )
    };
    // The busiest first.
    let mut all: Vec<_> = forest(state, profile)
        .into_iter()
        .map(|grown| (now(&grown), grown))
        .collect();
    all.sort_by_key(|((calls, self_ns), _)| Reverse((*self_ns, *calls)));
    for ((calls, self_ns), Grown { id, title, thread }) in all {
        let thread = &*thread;
        let tree = Tree::new(thread, weight);
        let ids = ids(id, thread);
        let wanted = wanted(state, thread);
        if !state.search.is_empty() && !wanted.contains(&true) {
            continue;
        }
        // While one searches, everything that leads to a match is open.
        let open = |id: RowId| !state.search.is_empty() || state.expanded.contains(&id);
        rows.push(Row {
            id,
            function: None,
            sparks: String::new(),
            level: 0,
            name: title,
            module: String::new(),
            calls: Some(calls),
            at_least: bounds.any(),
            self_ns,
            error: 0,
            total_ns: self_ns,
            mark: String::new(),
            children: tree.roots().len(),
            expanded: open(id),
        });
        if !open(id) {
            continue;
        }
        let row_of = |node: u32, level: usize| {
            let data = &tree.nodes[node as usize];
            let function = &profile.functions[data.function];
            let id = ids[node as usize];
            let old = before.get(&id).copied().unwrap_or_default();
            let is_sampled = data.flags.contains(NodeFlags::SAMPLED);
            let is_counted = data.calls > 0 || !is_sampled;
            Row {
                id,
                function: Some(data.function),
                sparks: String::new(),
                level,
                name: function.name.clone(),
                module: profile.modules[function.module as usize].name.clone(),
                calls: is_counted.then_some(data.calls.saturating_sub(old.0)),
                at_least: bounds.context(tree.nodes, node),
                self_ns: data.self_ns.saturating_sub(old.1),
                error: 0,
                total_ns: data.total_ns.saturating_sub(old.2),
                mark: if is_sampled { "by samples" } else { "" }.to_owned(),
                children: tree.children(node).len(),
                expanded: open(id),
            }
        };
        let sorted = |nodes: &[u32], level: usize| {
            let nodes = nodes.iter().filter(|&&node| wanted[node as usize]);
            let mut rows: Vec<(u32, Row)> =
                nodes.map(|&node| (node, row_of(node, level))).collect();
            // Last first: they are taken from the end.
            rows.sort_by(|a, b| compare(state.sort, &b.1, &a.1));
            rows
        };
        let mut pending = sorted(tree.roots(), 1);
        while let Some((node, row)) = pending.pop() {
            let (level, expanded) = (row.level, row.expanded);
            rows.push(row);
            if expanded {
                pending.extend(sorted(tree.children(node), level + 1));
            }
        }
    }
    rows
}

/// Contexts that match the search or lead to one that does.
fn wanted(state: &State, thread: &Thread) -> Vec<bool> {
    if state.search.is_empty() {
        return vec![true; thread.nodes.len()];
    }
    let name = |function: FuncId| &state.profile.functions[function].name;
    let mut wanted: Vec<bool> = thread
        .nodes
        .iter()
        .map(|node| matches(&state.search, name(node.function)))
        .collect();
    for index in (0..wanted.len()).rev() {
        if let Some(parent) = thread.nodes[index].parent.filter(|_| wanted[index]) {
            wanted[parent as usize] = true;
        }
    }
    wanted
}
