//! Samples on the counted tree: of each stack that was seen, the path of the tree that it is.
//!
//! ```text
//!   tree      main -> p -> q, main -> p -> t -> r         t jumps to r at its end
//!   stack     main -> p -> g -> q      g is off           lands on main -> p -> q
//!             main -> p -> g                              on g, a marked place below main -> p
//!             main -> p -> r                              on main -> p -> t -> r: t has left the stack
//!             main -> x                x is counted       on a path of the tree that ends with x, or on none
//! ```
//!
//! Frames of functions that were counted at that moment descend in the tree. Where there is no such callee the frame's function is looked for
//! further down, below functions that have jumped on and left the stack, then anywhere in the thread: the path that has most of the stack's
//! callers, and of several the one with most calls. A counted function that has no context at all says that the stack was misread: such samples
//! are attributed to nobody. So no sample makes an edge between two counted functions, and none moves a call.
//!
//! Several contexts may fit a frame: call sites tell them apart, or the frame is an evaluator's and the contexts are those of the Python functions
//! that it runs. Each of them has a share then, by how much of its caller's time or calls it has, until a frame further in fits only some of them.
//!
//! Functions that were not counted then hang below the frame above them. One that has a context there, from before or after, is that context.
//! What such a function calls is counted below its caller. So its own contexts do not have that time; samples tell which part of it came through
//! the function (`through`), and its total has it.

use std::cell::{OnceCell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use thalweg_model::{FuncId, Function, Language, Node, NodeFlags, Profile, SampleNode};

/// How many functions in a row may have jumped on and left the stack.
const MAX_GONE: usize = 4;
/// Contexts of one function that are compared with a stack that fits nowhere else: those with most calls.
const MAX_COMPARED: usize = 1024;
/// Callers that are compared, from the innermost out.
const MAX_CALLERS: usize = 256;
/// Contexts that fit one frame below one context: those with most calls.
const MAX_FITTING: usize = 1024;
/// The same below functions that have left the stack.
const MAX_FURTHER: usize = 8;
/// From so many callees on, those of a context are told apart by function once for all stacks.
const MANY_CALLEES: usize = 256;
/// Of the contexts that fit a frame, those with the largest shares are kept, unless that is less than this part of the largest.
const MAX_SHARES: usize = 16;
const MIN_SHARE: f64 = 0.01;
/// From so many on, samples are no longer divided among contexts: the likeliest has all.
const MAX_STATES: usize = 1 << 22;
/// Frames that are met to tell through whom samples came.
const MAX_STEPS: u64 = 1 << 27;

/// Where samples have landed. The first places are the contexts, in their order; the others are functions that were not counted.
pub struct Fitted {
    pub places: Vec<Place>,
    /// (context, place) -> samples in that place, in the time that was measured for that context. In their order.
    pub landed: BTreeMap<(u32, u32), f64>,
    /// Samples whose stacks no path of the tree has.
    pub not_attributed: f64,
    /// By function: samples that found it while it was not counted, as the innermost and anywhere on the stack.
    pub uncounted: BTreeMap<FuncId, (f64, f64)>,
    /// (function, place) -> samples in that place on whose stacks the function was, not counted, though no path of the tree to that place has
    /// it: what it called was counted below its caller.
    pub through: BTreeMap<(FuncId, u32), f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Before it in the list.
    pub parent: Option<u32>,
    pub function: FuncId,
    /// Samples at which it was the innermost, in time that contexts have. Fractions come of contexts that call sites tell apart.
    pub own: f64,
    /// The same in time that no context has: nothing on those stacks was counted.
    pub outside: f64,
}

/// Where a part of a frame's samples is.
#[derive(Clone, Copy)]
struct State {
    /// The innermost context whose function was counted at that moment.
    of: Option<u32>,
    /// What frames that are not counted hang below.
    place: Option<u32>,
    share: f64,
    /// The innermost counted frame fits nowhere.
    lost: bool,
    /// The frames above that were not counted, the innermost of them.
    uncounted: Option<u32>,
}

/// Contexts by their function.
type ByFunction = HashMap<FuncId, Vec<u32>>;

struct Fitter<'a> {
    nodes: &'a [Node],
    samples: &'a [SampleNode],
    runtime: &'a Runtime,
    /// Contexts without a caller, and those below context i: `below[starts[i]..starts[i + 1]]`.
    roots: Vec<u32>,
    starts: Vec<u32>,
    below: Vec<u32>,
    /// Those below contexts that have many, by function as a stack has it.
    wide: RefCell<HashMap<Option<u32>, ByFunction>>,
    /// Those with one to some contexts in between, by function as a stack has it.
    further: RefCell<HashMap<Option<u32>, ByFunction>>,
    folded: HashMap<FuncId, u32>,
    /// Of a function, most calls first; where a stack fits nowhere.
    of_function: OnceCell<ByFunction>,
    places: Vec<Place>,
    known: HashMap<(Option<u32>, FuncId), u32>,
    states: usize,
    /// Lists of functions that were not counted, innermost first: (function, the next one out).
    uncounted: Vec<(FuncId, Option<u32>)>,
    /// By function, for `throughs`: the last time that it was met.
    met: Vec<u64>,
    steps: u64,
}

/// What stacks have in place of functions that a runtime's own function runs.
#[derive(Default)]
pub struct Runtime {
    /// CPython's evaluator, and by function whether it runs that.
    evaluator: FuncId,
    run: Vec<bool>,
}

impl Runtime {
    pub fn from_profile(profile: &Profile) -> Runtime {
        let functions = &profile.functions;
        let is_evaluator = |f: &Function| f.name == EVALUATOR && f.language == Language::Native;
        let Some(evaluator) = functions.iter().position(is_evaluator) else {
            return Runtime::default();
        };
        let run = functions.iter().map(|f| f.language == Language::Python);
        Runtime {
            evaluator: FuncId::from_index(evaluator),
            run: run.collect(),
        }
    }

    /// The function whose frame a call of this one has on a stack.
    fn on_stack(&self, function: FuncId) -> FuncId {
        match self.run.get(function.index()) {
            Some(true) => self.evaluator,
            _ => function,
        }
    }
}

const EVALUATOR: &str = "_PyEval_EvalFrameDefault";

pub fn fit(nodes: &[Node], samples: &[SampleNode], runtime: &Runtime) -> Fitted {
    let mut fitter = Fitter::new(nodes, samples, runtime);
    let mut fitted = Fitted {
        places: Vec::new(),
        landed: BTreeMap::new(),
        not_attributed: 0.0,
        uncounted: BTreeMap::new(),
        through: BTreeMap::new(),
    };
    let on_stack = samples_below(samples);
    let below = below_themselves(samples);
    let mut states: Vec<Vec<State>> = Vec::with_capacity(samples.len());
    for (index, frame) in samples.iter().enumerate() {
        let outermost = [State {
            of: None,
            place: None,
            share: 1.0,
            lost: false,
            uncounted: None,
        }];
        let above: &[State] = match frame.parent {
            Some(parent) => &states[parent as usize],
            None => &outermost,
        };
        let here: Vec<State> = match frame.counted {
            true => fitter.descend(index, above),
            false => above
                .iter()
                .map(|s| fitter.hang(frame.function, *s))
                .collect(),
        };
        fitter.states += here.len();
        for state in &here {
            let own = frame.own as f64 * state.share;
            match (state.place.filter(|_| !state.lost), state.of) {
                _ if own == 0.0 => {}
                (Some(place), Some(of)) => {
                    fitter.places[place as usize].own += own;
                    *fitted.landed.entry((of, place)).or_default() += own;
                    for function in fitter.throughs(state.uncounted, place) {
                        *fitted.through.entry((function, place)).or_default() += own;
                    }
                }
                (Some(place), None) => fitter.places[place as usize].outside += own,
                (None, _) => fitted.not_attributed += own,
            }
        }
        states.push(here);
        if !frame.counted {
            let (own, all) = fitted.uncounted.entry(frame.function).or_default();
            *own += frame.own as f64;
            if !below[index] {
                *all += on_stack[index];
            }
        }
    }
    fitted.places = fitter.places;
    fitted
}

fn samples_below(samples: &[SampleNode]) -> Vec<f64> {
    let mut all: Vec<f64> = samples.iter().map(|frame| frame.own as f64).collect();
    for (index, frame) in samples.iter().enumerate().rev() {
        if let Some(parent) = frame.parent {
            all[parent as usize] += all[index];
        }
    }
    all
}

/// Of each frame, whether the same function, not counted either, is among the frames above. Each frame is visited once.
fn below_themselves(samples: &[SampleNode]) -> Vec<bool> {
    let mut callees: Vec<Vec<u32>> = vec![Vec::new(); samples.len()];
    let mut to_visit: Vec<(u32, bool)> = Vec::new();
    for (index, frame) in (0..).zip(samples) {
        match frame.parent {
            Some(parent) => callees[parent as usize].push(index),
            None => to_visit.push((index, true)),
        }
    }
    let mut active: HashMap<FuncId, u32> = HashMap::new();
    let mut below = vec![false; samples.len()];
    while let Some((index, entering)) = to_visit.pop() {
        let frame = &samples[index as usize];
        if entering {
            to_visit.push((index, false));
            to_visit.extend(callees[index as usize].iter().map(|&callee| (callee, true)));
        }
        if frame.counted {
            continue;
        }
        let active = active.entry(frame.function).or_default();
        if entering {
            below[index as usize] = *active > 0;
            *active += 1;
        } else {
            *active -= 1;
        }
    }
    below
}

impl<'a> Fitter<'a> {
    fn new(nodes: &'a [Node], samples: &'a [SampleNode], runtime: &'a Runtime) -> Fitter<'a> {
        let mut folded = HashMap::new();
        let mut roots = Vec::new();
        let mut starts = vec![0u32; nodes.len() + 1];
        for (index, node) in (0..).zip(nodes) {
            if node.flags.contains(NodeFlags::FOLDED) {
                let function = runtime.on_stack(node.function);
                folded.entry(function).or_insert(index);
                continue;
            }
            match node.parent {
                Some(parent) => starts[parent as usize + 1] += 1,
                None => roots.push(index),
            }
        }
        for index in 0..nodes.len() {
            starts[index + 1] += starts[index];
        }
        let mut next = starts.clone();
        let mut below = vec![0; starts[nodes.len()] as usize];
        for (index, node) in (0..).zip(nodes) {
            if let Some(parent) = node.parent
                && !node.flags.contains(NodeFlags::FOLDED)
            {
                let place = &mut next[parent as usize];
                below[*place as usize] = index;
                *place += 1;
            }
        }
        let place = |node: &Node| Place {
            parent: node.parent,
            function: node.function,
            own: 0.0,
            outside: 0.0,
        };
        Fitter {
            nodes,
            samples,
            runtime,
            roots,
            starts,
            below,
            wide: RefCell::default(),
            further: RefCell::default(),
            folded,
            of_function: OnceCell::new(),
            places: nodes.iter().map(place).collect(),
            known: HashMap::new(),
            states: 0,
            uncounted: Vec::new(),
            met: Vec::new(),
            steps: 0,
        }
    }

    fn most_called(&self, contexts: &mut Vec<u32>, most: usize) {
        let calls = |context: u32| self.nodes[context as usize].calls;
        contexts.sort_by_key(|&context| (Reverse(calls(context)), context));
        contexts.truncate(most);
    }

    fn on_stack(&self, context: u32) -> FuncId {
        let function = self.nodes[context as usize].function;
        self.runtime.on_stack(function)
    }

    fn right_below(&self, of: Option<u32>) -> &[u32] {
        match of.map(|of| of as usize) {
            Some(of) => &self.below[self.starts[of] as usize..self.starts[of + 1] as usize],
            None => &self.roots,
        }
    }

    /// Contexts of a function, as stacks have it, right below one, most calls first. A stack asks for few of all there are.
    fn callees(&self, of: Option<u32>, function: FuncId) -> Vec<u32> {
        let all = self.right_below(of);
        if all.len() > MANY_CALLEES {
            let mut wide = self.wide.borrow_mut();
            let by_function = wide.entry(of).or_insert_with(|| {
                let mut by_function: ByFunction = HashMap::new();
                for &context in all {
                    let of_its = by_function.entry(self.on_stack(context)).or_default();
                    of_its.push(context);
                }
                let each = by_function.values_mut();
                each.for_each(|contexts| self.most_called(contexts, MAX_FITTING));
                by_function
            });
            return by_function.get(&function).cloned().unwrap_or_default();
        }
        let its = |context: &u32| self.on_stack(*context) == function;
        let mut found: Vec<u32> = all.iter().copied().filter(its).collect();
        self.most_called(&mut found, MAX_FITTING);
        found
    }

    /// Contexts of functions that stacks have.
    fn seen(&self) -> impl Iterator<Item = (u32, FuncId)> {
        let seen: HashSet<FuncId> = self.samples.iter().map(|frame| frame.function).collect();
        let counted = (0..)
            .zip(self.nodes)
            .filter(|(_, node)| !node.flags.contains(NodeFlags::FOLDED));
        let named = counted.map(|(index, node)| (index, self.runtime.on_stack(node.function)));
        named.filter(move |(_, function)| seen.contains(function))
    }

    /// The same with one to some contexts in between. Each context has few that far above it, so that all of these questions together
    /// take no longer than to answer them beforehand; and few are asked.
    fn further(&self, of: Option<u32>, function: FuncId) -> Vec<u32> {
        let mut further = self.further.borrow_mut();
        let by_function = further.entry(of).or_insert_with(|| {
            let mut by_function: ByFunction = HashMap::new();
            let mut level = self.right_below(of).to_vec();
            for _ in 0..MAX_GONE {
                let above = level.iter();
                let below = above.flat_map(|&context| self.right_below(Some(context)));
                level = below.copied().collect();
                for &context in &level {
                    let of_its = by_function.entry(self.on_stack(context)).or_default();
                    of_its.push(context);
                }
            }
            let each = by_function.values_mut();
            each.for_each(|contexts| self.most_called(contexts, MAX_FURTHER));
            by_function
        });
        by_function.get(&function).cloned().unwrap_or_default()
    }

    fn of_function(&self, function: FuncId) -> Option<&Vec<u32>> {
        let all = self.of_function.get_or_init(|| {
            let mut of_function: ByFunction = HashMap::new();
            for (index, function) in self.seen() {
                of_function.entry(function).or_default().push(index);
            }
            let each = of_function.values_mut();
            each.for_each(|contexts| self.most_called(contexts, MAX_COMPARED));
            of_function
        });
        all.get(&function)
    }

    /// Of these functions, each once, those that no place on the path to `place` is of. None of a file that is made to take long.
    fn throughs(&mut self, uncounted: Option<u32>, place: u32) -> Vec<FuncId> {
        if uncounted.is_none() || self.steps > MAX_STEPS {
            return Vec::new();
        }
        self.steps += 1;
        let now = self.steps;
        let mut on_path = Some(place);
        while let Some(at) = on_path {
            self.steps += 1;
            let Place {
                parent, function, ..
            } = self.places[at as usize];
            self.meet(function, now);
            on_path = parent;
        }
        let mut functions = Vec::new();
        let mut next = uncounted;
        while let Some(at) = next {
            self.steps += 1;
            let (function, outer) = self.uncounted[at as usize];
            if self.meet(function, now) {
                functions.push(function);
            }
            next = outer;
        }
        functions
    }

    /// Whether it is the first time since `now`.
    fn meet(&mut self, function: FuncId, now: u64) -> bool {
        let index = function.index();
        if self.met.len() <= index {
            self.met.resize(index + 1, 0);
        }
        std::mem::replace(&mut self.met[index], now) < now
    }

    /// The frame's function was counted: it is a context.
    fn descend(&self, sample: usize, above: &[State]) -> Vec<State> {
        let function = self.samples[sample].function;
        let mut found: Vec<(u32, &State)> = Vec::new();
        for state in above {
            let contexts = self.fitting(state, function).into_iter();
            found.extend(contexts.map(|context| (context, state)));
        }
        let enter = |context: u32, share: f64, state: &State| State {
            of: Some(context),
            place: Some(context),
            share,
            lost: false,
            uncounted: state.uncounted,
        };
        let share: f64 = above.iter().map(|state| state.share).sum();
        match found[..] {
            [(context, state)] => return vec![enter(context, share, state)],
            [] => {}
            _ => {
                let likely = self.shares(&found, share);
                let all = likely.iter().map(|&(at, share)| {
                    let (context, state) = found[at];
                    enter(context, share, state)
                });
                return all.collect();
            }
        }
        let Some(likeliest) = above.iter().max_by(|a, b| a.share.total_cmp(&b.share)) else {
            return Vec::new();
        };
        let folded = || self.folded.get(&function).copied();
        match folded().or_else(|| self.most_alike(sample)) {
            Some(context) => vec![enter(context, share, likeliest)],
            None => above.iter().map(|s| State { lost: true, ..*s }).collect(),
        }
    }

    /// Contexts of a function, as stacks have it, that its frame may be below this one.
    fn fitting(&self, state: &State, function: FuncId) -> Vec<u32> {
        let mut found = self.callees(state.of, function);
        // The function above went off while it ran: that call goes on to be a context.
        if let Some(place) = state.place.filter(|place| self.is_context(*place)) {
            let lasting = self.callees(Some(place), function);
            if self.total_ns(&lasting) > self.total_ns(&found) || found.is_empty() {
                found = lasting;
            }
        }
        match found.is_empty() {
            true => self.further(state.of, function),
            false => found,
        }
    }

    /// Of contexts, each with what it was found below, the likely ones: their places in the list, and their parts of `share`. A context is as likely as
    /// the one above it, times what part of that one's time it has; where the clock does not know all of them, how often it is called there.
    fn shares(&self, found: &[(u32, &State)], share: f64) -> Vec<(usize, f64)> {
        let node = |context: u32| &self.nodes[context as usize];
        let is_timed = |context: u32| {
            let node = node(context);
            node.total_ns > 0 && node.untimed < node.calls
        };
        let by_time = found.iter().all(|(context, _)| is_timed(*context))
            || found.iter().all(|(context, _)| node(*context).calls == 0);
        let likely = |&(context, state): &(u32, &State)| {
            let figure = |context: u32| match by_time {
                true => node(context).total_ns as f64,
                false => node(context).calls as f64,
            };
            let above = state.of.map_or(1.0, |of| figure(of).max(1.0));
            state.share * figure(context) / above
        };
        let mut shares: Vec<(usize, f64)> = found.iter().map(likely).enumerate().collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        let most = match self.states < MAX_STATES {
            true => MAX_SHARES,
            false => 1,
        };
        shares.truncate(most);
        let least = shares.first().map_or(0.0, |(_, most)| most * MIN_SHARE);
        shares.retain(|(_, part)| *part > 0.0 && *part >= least);
        let all: f64 = shares.iter().map(|(_, part)| part).sum();
        if shares.is_empty() || !all.is_finite() {
            return vec![(0, share)];
        }
        shares.iter_mut().for_each(|(_, part)| *part *= share / all);
        shares
    }

    fn is_context(&self, place: u32) -> bool {
        (place as usize) < self.nodes.len()
    }

    fn total_ns(&self, contexts: &[u32]) -> f64 {
        let total_ns = |&context: &u32| self.nodes[context as usize].total_ns as f64;
        contexts.iter().map(total_ns).sum()
    }

    /// The context of the frame's function that has most of the callers of this stack above it, in their order.
    fn most_alike(&self, sample: usize) -> Option<u32> {
        let contexts = self.of_function(self.samples[sample].function)?;
        let mut best: Option<(usize, u32)> = None;
        for &context in contexts {
            let alike = self.likeness(sample, context);
            if best.is_none_or(|(most, _)| alike > most) {
                best = Some((alike, context));
            }
        }
        best.map(|(_, context)| context)
    }

    fn likeness(&self, sample: usize, context: u32) -> usize {
        let mut above = self.nodes[context as usize].parent;
        let mut caller = self.samples[sample].parent;
        let mut alike = 0;
        for _ in 0..MAX_CALLERS {
            let (Some(node), Some(frame)) = (above, caller) else {
                break;
            };
            let (node, frame) = (&self.nodes[node as usize], &self.samples[frame as usize]);
            if self.runtime.on_stack(node.function) == frame.function {
                alike += 1;
                above = node.parent;
            }
            caller = frame.parent;
        }
        alike
    }

    /// The frame's function was not counted: a place below the frame above it.
    fn hang(&mut self, function: FuncId, mut state: State) -> State {
        self.uncounted.push((function, state.uncounted));
        state.uncounted = Some(self.uncounted.len() as u32 - 1);
        let key = (state.place, function);
        let is_context = state.place.is_none_or(|place| self.is_context(place));
        let contexts = match is_context {
            true => self.callees(state.place, function),
            false => Vec::new(),
        };
        // An evaluator that was off ran several Python functions, none of which its frame tells.
        let is_it = |&&context: &&u32| self.nodes[context as usize].function == function;
        if let Some(&context) = contexts.iter().find(is_it) {
            return State {
                place: Some(context),
                ..state
            };
        }
        let next = self.places.len() as u32;
        let place = *self.known.entry(key).or_insert(next);
        if place == next {
            self.places.push(Place {
                parent: state.place,
                function,
                own: 0.0,
                outside: 0.0,
            });
        }
        State {
            place: Some(place),
            ..state
        }
    }
}
