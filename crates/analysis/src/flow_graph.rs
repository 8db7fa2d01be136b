//! Which functions and arcs a picture shows: the trees of all threads, merged by function, with
//! what is light collapsed.
//!
//! A function below the cutoff is not shown. Its own time is added to its closest shown caller,
//! which is also joined to the functions below it that are shown: nothing is lost, and no path is
//! broken. Where nobody asked for a cutoff and there is much to show, two more things go: functions
//! that only pass on to one callee what one caller gave them, and arcs too thin to see, as long as
//! each function keeps one that leads to it.
//!
//! ```text
//! total(f)     = sum of total over shown contexts of f that have no shown f above them
//! self(f)        = sum of self over contexts of f, and of hidden functions called from there
//! arc(f -> g)  = sum of total over those contexts of g whose closest shown caller is f
//! ```
//!
//! [`FlowContexts`] holds what does not depend on the choice, so that another cutoff of a large
//! profile costs one walk.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::OnceLock;

use crate::{PairTable, Thresholds, Tree, Weight, makers, waited_by_context};
use thalweg_model::{FuncId, Profile};

/// What is to be seen.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Functions below this share of the whole are collapsed; without it, as many are as leaves a
    /// readable picture.
    pub cutoff: Option<f64>,
    /// Show only what happens below this function, and give shares of its time.
    pub root: Option<FuncId>,
    /// Leave out functions that only pass time on, and thin arcs; without a wish, where there is no
    /// cutoff either and much to show.
    pub brief: Option<bool>,
    /// Functions of which nothing below is shown.
    pub closed: HashSet<FuncId>,
    /// Functions of which every callee is shown.
    pub open: HashSet<FuncId>,
    /// Give the threads that a known function made a source of their own.
    pub threads_apart: bool,
    /// Functions below any of these are collapsed, whatever their share of the whole.
    pub least: Thresholds,
    /// Arcs below this share of the whole are left out, but for the heaviest that leads to a
    /// function.
    pub thinnest: Option<f64>,
}

/// So many functions are a picture that can be read.
pub const READABLE_FUNCTIONS: usize = 30;

/// A cutoff that nobody asked for is at most this.
const MAX_CUTOFF: f64 = 0.2;

/// A function only passes time on when it keeps less than this share of the whole ...
const PASSING_SELF_SHARE: f64 = 0.005;

/// ... and this part of its time comes from one caller and goes to one callee.
const PASSED_ON_SHARE: f64 = 0.97;

/// Arcs below this part of the cutoff are not drawn.
const THIN_ARC_SHARE: f64 = 0.1;

/// What stands in the picture: where the program starts, threads that one function made, or a
/// function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowKey {
    Start,
    /// Made by this function.
    Threads(FuncId),
    Function(FuncId),
}

/// One function of the picture, or what stands before all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowNode {
    /// `None`: the start, or threads.
    pub function: Option<FuncId>,
    /// Of a source of threads: who made them.
    pub maker: Option<FuncId>,
    /// Of a source: how many threads key from it.
    pub threads: u64,
    pub calls: u64,
    pub self_time: u64,
    pub total: u64,
    /// Of `self_time`, the time of functions that are not shown.
    pub hidden: u64,
    /// What the function and those hidden in it waited; see [`FlowGraph::waits_measured`].
    pub waited: u64,
    /// Functions below it, and how many of those that it called are not shown.
    pub callees: u32,
    pub hidden_callees: u32,
    /// The deepest recursion.
    pub recursion: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowEdge {
    pub from: usize,
    pub to: usize,
    pub calls: u64,
    pub time: u64,
    /// Some of its calls came through functions that are not shown.
    pub through_hidden: bool,
    /// No calls, but the making of threads.
    pub made: bool,
}

/// Time is nanoseconds, or calls where nothing was timed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowGraph {
    /// The first is where everything begins; the others are sorted by function.
    pub nodes: Vec<FlowNode>,
    pub edges: Vec<FlowEdge>,
    /// What shares are shares of.
    pub whole: u64,
    pub timed: bool,
    pub cutoff: f64,
    /// Waiting was measured and is no part of any time here; else it is the time of functions that
    /// wait by their nature.
    pub waits_measured: bool,
    /// Functions that ran but are below the cutoff.
    pub hidden_functions: usize,
    /// Functions that would be shown if they did more than pass time on.
    pub passing_functions: usize,
    pub hidden_edges: usize,
}

impl FlowGraph {
    pub fn share(&self, time: u64) -> f64 {
        match self.whole {
            0 => 0.0,
            whole => time as f64 / whole as f64,
        }
    }
}

/// One context within the part that is shown.
struct Context {
    function: FuncId,
    parent: Option<u32>,
    calls: u64,
    self_time: u64,
    total: u64,
    waited: u64,
    recursion: u32,
    /// No context of the same function stands above it in that part.
    outermost: bool,
}

/// Where the water comes from: all contexts of a profile, or those below one function.
pub struct FlowContexts {
    contexts: Vec<Context>,
    /// For each context without a parent, in their order: who made its thread.
    makers: HashMap<u32, Option<FuncId>>,
    threads_of: HashMap<Option<FuncId>, u64>,
    totals: Vec<u64>,
    ran: Vec<bool>,
    /// Functions that only pass time on, once somebody asked.
    passing: OnceLock<Vec<bool>>,
    whole: u64,
    timed: bool,
    waits_measured: bool,
    root: Option<FuncId>,
}

pub fn flow_graph(profile: &Profile, choice: &Choice) -> FlowGraph {
    let weight = match profile.meta.timed {
        true => Weight::Time,
        false => Weight::Calls,
    };
    FlowContexts::from_profile(profile, choice.root, weight).graph(choice)
}

impl FlowContexts {
    /// Of the whole profile, or of what happens below `root`. The graph's choice must name the same
    /// root.
    pub fn from_profile(profile: &Profile, root: Option<FuncId>, weight: Weight) -> FlowContexts {
        let mut flow = contexts(profile, root, weight);
        for context in &flow.contexts {
            flow.ran[context.function.index()] = true;
            if context.outermost {
                let total = &mut flow.totals[context.function.index()];
                *total = total.saturating_add(context.total);
            }
            if context.parent.is_none() {
                flow.whole = flow.whole.saturating_add(context.total);
            }
        }
        flow
    }

    /// The cutoff that leaves a readable picture, of functions that do more than pass time on if it
    /// is to be brief.
    pub fn readable_cutoff(&self, brief: bool) -> f64 {
        let passing = self.passing(brief);
        let candidates = self.totals.iter().zip(&*passing);
        let candidates = candidates.filter(|(_, passing)| !**passing);
        readable_cutoff(candidates.map(|(&total, _)| total), self.whole)
    }

    /// There is more than can be read at once.
    pub fn is_crowded(&self) -> bool {
        self.ran.iter().filter(|ran| **ran).count() > READABLE_FUNCTIONS
    }

    fn passing(&self, brief: bool) -> Cow<'_, [bool]> {
        match brief {
            true => Cow::Borrowed(
                self.passing
                    .get_or_init(|| passing(&self.contexts, &self.totals, self.whole)),
            ),
            false => Cow::Owned(vec![false; self.totals.len()]),
        }
    }

    /// Of the functions that `heavy` has, those that pass the thresholds.
    fn keep_passing(&self, least: &Thresholds, heavy: &mut [bool]) {
        let mut sums = vec![(0u64, 0u64); heavy.len()];
        for context in &self.contexts {
            let (self_time, calls) = &mut sums[context.function.index()];
            *self_time = self_time.saturating_add(context.self_time);
            *calls = calls.saturating_add(context.calls);
        }
        for ((heavy, (self_time, calls)), &total) in heavy.iter_mut().zip(sums).zip(&self.totals) {
            *heavy &= least.pass(self_time, self.whole, total, calls);
        }
    }

    pub fn graph(&self, choice: &Choice) -> FlowGraph {
        let FlowContexts {
            contexts,
            totals,
            ran,
            whole,
            root,
            ..
        } = self;
        let (whole, root) = (*whole, *root);
        let brief = choice
            .brief
            .unwrap_or_else(|| choice.cutoff.is_none() && self.is_crowded());
        let passing = self.passing(brief);
        let cutoff = choice.cutoff.unwrap_or_else(|| {
            let candidates = totals
                .iter()
                .zip(&*passing)
                .filter(|(_, passing)| !**passing);
            readable_cutoff(candidates.map(|(&total, _)| total), whole)
        });
        let mut heavy: Vec<bool> = totals
            .iter()
            .zip(ran)
            .map(|(&total, ran)| *ran && total as f64 >= cutoff * whole as f64)
            .collect();
        if !choice.least.is_nothing() {
            self.keep_passing(&choice.least, &mut heavy);
        }
        // A function that someone opened or closed is there to be opened or closed again.
        let shown = |function: FuncId| {
            let touched = choice.closed.contains(&function) || choice.open.contains(&function);
            root == Some(function)
                || heavy[function.index()] && (!passing[function.index()] || touched)
        };
        let functions = totals.len();
        let start = root.map_or(FlowKey::Start, FlowKey::Function);
        let mut gathered = Gathered::new(start, functions);
        // For each context its closest shown caller, itself included, and whether that one is
        // closed.
        let mut closest: Vec<(FlowKey, bool)> = Vec::with_capacity(contexts.len());
        let mut path: Vec<u32> = Vec::new();
        let mut shown_above = vec![0u32; totals.len()];
        let mut is_shown: Vec<bool> = Vec::with_capacity(contexts.len());
        for (index, context) in (0..).zip(contexts) {
            while let Some(left) = path.pop_if(|last| Some(*last) != context.parent) {
                if is_shown[left as usize] {
                    shown_above[contexts[left as usize].function.index()] -= 1;
                }
            }
            path.push(index);
            let (above, closed) = match context.parent {
                Some(parent) => closest[parent as usize],
                None => (self.key_of_root(index, start, choice), false),
            };
            if context.parent.is_none() && above != start {
                gathered.add_source(above, self);
            }
            let called_by_open = context
                .parent
                .is_some_and(|parent| choice.open.contains(&contexts[parent as usize].function));
            let here = !closed && (shown(context.function) || called_by_open);
            is_shown.push(here);
            if !here {
                closest.push((above, closed));
                let node = gathered.node(above);
                node.self_time = node.self_time.saturating_add(context.self_time);
                node.hidden = node.hidden.saturating_add(context.self_time);
                node.waited = node.waited.saturating_add(context.waited);
                continue;
            }
            let key = FlowKey::Function(context.function);
            closest.push((key, choice.closed.contains(&context.function)));
            let outermost = shown_above[context.function.index()] == 0;
            shown_above[context.function.index()] += 1;
            let part = if outermost { context.total } else { 0 };
            let node = gathered.node(key);
            node.function = Some(context.function);
            node.calls = node.calls.saturating_add(context.calls);
            node.self_time = node.self_time.saturating_add(context.self_time);
            node.total = node.total.saturating_add(part);
            node.waited = node.waited.saturating_add(context.waited);
            node.recursion = node.recursion.max(context.recursion);
            if context.parent.is_none() && root.is_some() {
                continue;
            }
            let through_hidden = context.parent.is_some_and(|parent| {
                above != FlowKey::Function(contexts[parent as usize].function)
            });
            let edge = gathered.edge(above, context.function);
            edge.calls = edge.calls.saturating_add(context.calls);
            edge.time = edge.time.saturating_add(part);
            edge.through_hidden |= through_hidden;
        }
        let all = (0..functions).map(FuncId::from_index);
        let hidden = |function: &FuncId| ran[function.index()] && !gathered.has(*function);
        let hidden_functions = all
            .clone()
            .filter(hidden)
            .filter(|&f| !heavy[f.index()])
            .count();
        let passing_functions = all.filter(hidden).filter(|&f| heavy[f.index()]).count();
        self.count_callees(&mut gathered, &is_shown);
        let mut graph = gathered.finish();
        if root.is_none() {
            graph.nodes[0].total = self.total_of_start(choice);
            graph.nodes[0].threads = self.threads_of_start(choice);
        }
        let thinnest = choice.thinnest.or(brief.then_some(cutoff * THIN_ARC_SHARE));
        if let Some(thinnest) = thinnest {
            graph.drop_thin_edges(thinnest * whole as f64);
        }
        FlowGraph {
            whole,
            timed: self.timed,
            waits_measured: self.waits_measured,
            cutoff,
            hidden_functions,
            passing_functions,
            ..graph
        }
    }

    /// Where the thread of a context without parent springs from.
    fn key_of_root(&self, context: u32, start: FlowKey, choice: &Choice) -> FlowKey {
        let maker = self.makers.get(&context).copied().flatten();
        match maker.filter(|_| choice.threads_apart && self.root.is_none()) {
            Some(maker) => FlowKey::Threads(maker),
            None => start,
        }
    }

    fn total_of_start(&self, choice: &Choice) -> u64 {
        let roots = (0..)
            .zip(&self.contexts)
            .filter(|(_, c)| c.parent.is_none());
        let of_start = roots.filter(|(index, _)| {
            self.key_of_root(*index, FlowKey::Start, choice) == FlowKey::Start
        });
        of_start.fold(0, |sum, (_, context)| sum.saturating_add(context.total))
    }

    fn threads_of_start(&self, choice: &Choice) -> u64 {
        let counted = self
            .threads_of
            .iter()
            .filter(|(maker, _)| maker.is_none() || !choice.threads_apart);
        counted.map(|(_, threads)| threads).sum()
    }

    /// How many functions each shown one called, and how many of them stand nowhere in the picture
    /// as its callees.
    fn count_callees(&self, gathered: &mut Gathered, is_shown: &[bool]) {
        let mut places = PairTable::new();
        let mut called: Vec<(FuncId, bool)> = Vec::new();
        for (context, &shown) in self.contexts.iter().zip(is_shown) {
            let Some(parent) = context.parent.filter(|&parent| is_shown[parent as usize]) else {
                continue;
            };
            let caller = self.contexts[parent as usize].function;
            let next = called.len() as u32;
            let place = places.get_or_insert(caller.0, context.function.0, next);
            if place == next {
                called.push((caller, false));
            }
            called[place as usize].1 |= shown;
        }
        for (caller, shown) in called {
            let node = gathered.node(FlowKey::Function(caller));
            node.callees += 1;
            node.hidden_callees += u32::from(!shown);
        }
    }
}

/// The picture while it is put together: nodes and edges by what they are.
struct Gathered {
    start: FlowKey,
    nodes: BTreeMap<FlowKey, FlowNode>,
    of_function: Vec<Option<FlowNode>>,
    edges: HashMap<(FlowKey, FuncId), FlowEdge>,
}

impl Gathered {
    fn new(start: FlowKey, functions: usize) -> Gathered {
        let mut gathered = Gathered {
            start,
            nodes: BTreeMap::new(),
            of_function: vec![None; functions],
            edges: HashMap::new(),
        };
        let node = gathered.node(start);
        if let FlowKey::Function(function) = start {
            node.function = Some(function);
        }
        gathered
    }

    fn node(&mut self, key: FlowKey) -> &mut FlowNode {
        match key {
            FlowKey::Function(function) => {
                let node = self.of_function[function.index()].get_or_insert_default();
                node.function = Some(function);
                node
            }
            key => self.nodes.entry(key).or_default(),
        }
    }

    fn has(&self, function: FuncId) -> bool {
        self.of_function[function.index()].is_some()
    }

    fn add_source(&mut self, key: FlowKey, flow: &FlowContexts) {
        let FlowKey::Threads(maker) = key else {
            return;
        };
        let node = self.node(key);
        node.maker = Some(maker);
        node.threads = flow.threads_of.get(&Some(maker)).copied().unwrap_or(0);
    }

    fn edge(&mut self, from: FlowKey, to: FuncId) -> &mut FlowEdge {
        self.edges.entry((from, to)).or_default()
    }

    /// Numbers instead of keys, the start first; makers are joined to their threads.
    fn finish(mut self) -> FlowGraph {
        for (function, node) in (0..).zip(std::mem::take(&mut self.of_function)) {
            if let Some(node) = node {
                self.nodes.insert(FlowKey::Function(FuncId(function)), node);
            }
        }
        let start = self.start;
        let others = self.nodes.keys().copied().filter(|&key| key != start);
        let keys: Vec<FlowKey> = std::iter::once(start).chain(others).collect();
        let places: HashMap<FlowKey, usize> = keys.iter().copied().zip(0..).collect();
        let mut edges: Vec<((FlowKey, FuncId), FlowEdge)> = self.edges.into_iter().collect();
        edges.sort_by_key(|(key, _)| *key);
        let mut edges: Vec<FlowEdge> = edges
            .into_iter()
            .map(|((from, to), edge)| FlowEdge {
                from: places[&from],
                to: places[&FlowKey::Function(to)],
                ..edge
            })
            .collect();
        for &key in &keys {
            if let FlowKey::Threads(maker) = key
                && let Some(&from) = places.get(&FlowKey::Function(maker))
            {
                edges.push(FlowEdge {
                    from,
                    to: places[&key],
                    calls: self.nodes[&key].threads,
                    made: true,
                    ..FlowEdge::default()
                });
            }
        }
        let mut nodes: Vec<FlowNode> = keys.iter().map(|key| self.nodes[key]).collect();
        // What springs from threads is what flows out of them.
        for edge in &edges {
            let node = &mut nodes[edge.from];
            if node.maker.is_some() {
                node.total = node.total.saturating_add(edge.time);
            }
        }
        for node in nodes.iter_mut().filter(|node| node.maker.is_some()) {
            node.total = node.total.saturating_add(node.self_time);
        }
        FlowGraph {
            nodes,
            edges,
            ..FlowGraph::default()
        }
    }
}

impl FlowGraph {
    fn drop_thin_edges(&mut self, least: f64) {
        // The heaviest that leads to each function, which stays.
        let mut best: Vec<Option<usize>> = vec![None; self.nodes.len()];
        for (index, edge) in self.edges.iter().enumerate() {
            let best = &mut best[edge.to];
            if edge.from != edge.to && best.is_none_or(|best| self.edges[best].time < edge.time) {
                *best = Some(index);
            }
        }
        let before = self.edges.len();
        let mut index = 0;
        self.edges.retain(|edge| {
            index += 1;
            let stays = edge.from == edge.to || edge.made;
            stays || edge.time as f64 >= least || best[edge.to] == Some(index - 1)
        });
        self.hidden_edges = before - self.edges.len();
    }
}

/// Functions between one caller and one callee that add next to nothing. What threads begin with is
/// never one.
fn passing(contexts: &[Context], totals: &[u64], whole: u64) -> Vec<bool> {
    let mut self_time = vec![0u64; totals.len()];
    let mut begins = vec![false; totals.len()];
    let mut places = PairTable::new();
    let mut arcs: Vec<(FuncId, FuncId, u64)> = Vec::new();
    for context in contexts {
        let function = context.function.index();
        self_time[function] = self_time[function].saturating_add(context.self_time);
        match context.parent {
            None => begins[function] = true,
            Some(parent) if context.outermost => {
                let caller = contexts[parent as usize].function;
                let next = arcs.len() as u32;
                let place = places.get_or_insert(caller.0, context.function.0, next);
                if place == next {
                    arcs.push((caller, context.function, 0));
                }
                let time = &mut arcs[place as usize].2;
                *time = time.saturating_add(context.total);
            }
            Some(_) => {}
        }
    }
    let (mut most_in, mut most_out) = (vec![0u64; totals.len()], vec![0u64; totals.len()]);
    for (caller, callee, time) in arcs {
        let (caller, callee) = (caller.index(), callee.index());
        most_out[caller] = most_out[caller].max(time);
        most_in[callee] = most_in[callee].max(time);
    }
    (0..totals.len())
        .map(|function| {
            let most = totals[function] as f64 * PASSED_ON_SHARE;
            !begins[function]
                && totals[function] > 0
                && (self_time[function] as f64) < PASSING_SELF_SHARE * whole as f64
                && most_in[function] as f64 >= most
                && most_out[function] as f64 >= most
        })
        .collect()
}

/// The part of the trees that is shown, parents before children, thread after thread.
fn contexts(profile: &Profile, root: Option<FuncId>, weight: Weight) -> FlowContexts {
    let makers_of_threads = makers(profile);
    let (waited, waits_measured) = waited_by_context(profile);
    let mut contexts: Vec<Context> = Vec::new();
    let mut makers = HashMap::new();
    let mut threads_of: HashMap<Option<FuncId>, u64> = HashMap::new();
    // How often each function stands on the way from the root to where the walk is.
    let mut above = vec![0u32; profile.functions.len()];
    for (number, (_, thread)) in crate::threads(profile).enumerate() {
        if thread.nodes.is_empty() {
            continue;
        }
        let threads = threads_of.entry(makers_of_threads[number]).or_default();
        *threads = threads.saturating_add(thread.others).saturating_add(1);
        let tree = Tree::new(thread, weight);
        let self_time = own_weights(&tree, weight);
        // The way to the walk's place: level of the tree, number among `contexts`.
        let mut path: Vec<(u32, u32)> = Vec::new();
        for index in tree.depth_first(|a, b| a.cmp(b)) {
            let node = &tree.nodes[index as usize];
            let level = tree.level(index);
            while let Some((_, left)) = path.pop_if(|(above, _)| *above >= level) {
                above[contexts[left as usize].function.index()] -= 1;
            }
            if path.is_empty() && root.is_some_and(|root| root != node.function) {
                continue;
            }
            let function = node.function.index();
            let number_of_context = contexts.len() as u32;
            if path.is_empty() {
                makers.insert(number_of_context, makers_of_threads[number]);
            }
            contexts.push(Context {
                function: node.function,
                parent: path.last().map(|&(_, number)| number),
                calls: node.calls,
                self_time: self_time[index as usize],
                total: tree.weight(index),
                waited: waited[number][index as usize],
                recursion: above[function],
                outermost: above[function] == 0,
            });
            above[function] += 1;
            path.push((level, number_of_context));
        }
        for (_, left) in path {
            above[contexts[left as usize].function.index()] -= 1;
        }
    }
    FlowContexts {
        contexts,
        makers,
        threads_of,
        totals: vec![0; profile.functions.len()],
        ran: vec![false; profile.functions.len()],
        passing: OnceLock::new(),
        whole: 0,
        timed: profile.meta.timed && weight != Weight::Calls,
        waits_measured,
        root,
    }
}

/// The weight of each context without those below it.
fn own_weights(tree: &Tree, weight: Weight) -> Vec<u64> {
    let nodes = tree.nodes;
    match weight {
        Weight::Time => nodes.iter().map(|node| node.self_ns).collect(),
        Weight::Calls => nodes.iter().map(|node| node.calls).collect(),
        Weight::Wall => {
            let mut self_time: Vec<u64> = nodes.iter().map(|node| node.wall_ns).collect();
            for node in nodes {
                if let Some(parent) = node.parent {
                    let self_time = &mut self_time[parent as usize];
                    *self_time = self_time.saturating_sub(node.wall_ns);
                }
            }
            self_time
        }
    }
}

fn readable_cutoff(totals: impl Iterator<Item = u64>, whole: u64) -> f64 {
    let mut sorted: Vec<u64> = totals.filter(|&total| total > 0).collect();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    match sorted.get(READABLE_FUNCTIONS) {
        Some(&next) if whole > 0 => {
            // Just above the first that is left out.
            ((next + 1) as f64 / whole as f64).min(MAX_CUTOFF)
        }
        _ => 0.0,
    }
}
