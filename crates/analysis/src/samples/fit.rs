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
//! Functions that were not counted then hang below the frame above them. One that has a context there, from before or after, is that context.
//! What such a function calls is counted below its caller. So its own contexts do not have that time; samples tell which part of it came through
//! the function (`through`), and its total has it.

use std::collections::{BTreeMap, HashMap, HashSet};

use thalweg_model::{Node, NodeFlags, SampleNode};

/// How many functions in a row may have jumped on and left the stack.
const MOST_GONE: usize = 4;
/// Contexts of one function that are compared with a stack that fits nowhere else: those with most calls.
const MOST_COMPARED: usize = 1024;
/// Callers that are compared, from the innermost out.
const MOST_CALLERS: usize = 256;
/// From so many on, samples are no longer divided among contexts that differ in nothing but call sites.
const MOST_STATES: usize = 1 << 20;
/// Frames that are met to tell through whom samples came.
const MOST_STEPS: u64 = 1 << 27;

/// Where samples have landed. The first places are the contexts, in their order; the others are functions that were not counted.
pub struct Fitted {
    pub places: Vec<Place>,
    /// (context, place) -> samples in that place, in the time that was measured for that context. In their order.
    pub landed: BTreeMap<(u32, u32), f64>,
    /// Samples whose stacks no path of the tree has.
    pub not_attributed: f64,
    /// By function: samples that found it while it was not counted, as the innermost and anywhere on the stack.
    pub uncounted: BTreeMap<u32, (f64, f64)>,
    /// (function, place) -> samples in that place on whose stacks the function was, not counted, though no path of the tree to that place has
    /// it: what it called was counted below its caller.
    pub through: BTreeMap<(u32, u32), f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Before it in the list.
    pub parent: Option<u32>,
    pub function: u32,
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

struct Fitter<'a> {
    nodes: &'a [Node],
    samples: &'a [SampleNode],
    /// (caller, function) -> contexts; several where call sites tell them apart.
    callees: HashMap<(Option<u32>, u32), Vec<u32>>,
    /// The same with one to some contexts in between; the one with most calls.
    further: HashMap<(Option<u32>, u32), u32>,
    folded: HashMap<u32, u32>,
    /// Of a function, most calls first.
    of_function: HashMap<u32, Vec<u32>>,
    places: Vec<Place>,
    known: HashMap<(Option<u32>, u32), u32>,
    states: usize,
    /// Lists of functions that were not counted, innermost first: (function, the next one out).
    uncounted: Vec<(u32, Option<u32>)>,
    /// By function, for `throughs`: the last time that it was met.
    met: Vec<u64>,
    steps: u64,
}

pub fn fit(nodes: &[Node], samples: &[SampleNode]) -> Fitted {
    let mut fitter = Fitter::new(nodes, samples);
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
        let mut here = Vec::with_capacity(above.len());
        for state in above {
            match frame.counted {
                true => fitter.descend(index, *state, &mut here),
                false => here.push(fitter.hang(frame.function, *state)),
            }
        }
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
    let mut active: HashMap<u32, u32> = HashMap::new();
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
    fn new(nodes: &'a [Node], samples: &'a [SampleNode]) -> Fitter<'a> {
        let seen: HashSet<u32> = samples.iter().map(|frame| frame.function).collect();
        let mut callees: HashMap<_, Vec<u32>> = HashMap::new();
        let mut further: HashMap<(Option<u32>, u32), u32> = HashMap::new();
        let mut of_function: HashMap<u32, Vec<u32>> = HashMap::new();
        let mut folded = HashMap::new();
        let calls = |context: u32| nodes[context as usize].calls;
        for (index, node) in (0..).zip(nodes) {
            if node.flags.contains(NodeFlags::FOLDED) {
                folded.entry(node.function).or_insert(index);
                continue;
            }
            if !seen.contains(&node.function) {
                continue;
            }
            let key = (node.parent, node.function);
            callees.entry(key).or_default().push(index);
            of_function.entry(node.function).or_default().push(index);
            let mut between = node.parent;
            for _ in 0..MOST_GONE {
                let Some(gone) = between else { break };
                between = nodes[gone as usize].parent;
                let kept = further.entry((between, node.function)).or_insert(index);
                if calls(index) > calls(*kept) {
                    *kept = index;
                }
            }
        }
        for contexts in of_function.values_mut() {
            contexts.sort_by_key(|&context| (std::cmp::Reverse(calls(context)), context));
            contexts.truncate(MOST_COMPARED);
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
            callees,
            further,
            folded,
            of_function,
            places: nodes.iter().map(place).collect(),
            known: HashMap::new(),
            states: 0,
            uncounted: Vec::new(),
            met: Vec::new(),
            steps: 0,
        }
    }

    /// Of these functions, each once, those that no place on the path to `place` is of. None of a file that is made to take long.
    fn throughs(&mut self, uncounted: Option<u32>, place: u32) -> Vec<u32> {
        if uncounted.is_none() || self.steps > MOST_STEPS {
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
    fn meet(&mut self, function: u32, now: u64) -> bool {
        let index = function as usize;
        if self.met.len() <= index {
            self.met.resize(index + 1, 0);
        }
        std::mem::replace(&mut self.met[index], now) < now
    }

    /// The frame's function was counted: it is a context.
    fn descend(&self, sample: usize, state: State, here: &mut Vec<State>) {
        let frame = &self.samples[sample];
        let none = Vec::new();
        let near = |of: Option<u32>| self.callees.get(&(of, frame.function)).unwrap_or(&none);
        let mut found = near(state.of);
        // The function above went off while it ran: that call goes on to be a context.
        if let Some(place) = state.place.filter(|place| self.is_context(*place)) {
            let lasting = near(Some(place));
            if self.cum(lasting) > self.cum(found) || found.is_empty() {
                found = lasting;
            }
        }
        let enter = |context: u32, share: f64| State {
            of: Some(context),
            place: Some(context),
            share,
            lost: false,
            uncounted: state.uncounted,
        };
        if let [context] = found[..] {
            here.push(enter(context, state.share));
            return;
        }
        let cum = self.cum(found);
        if found.len() > 1 && cum > 0.0 && self.states < MOST_STATES {
            let part = |context: u32| self.nodes[context as usize].cum as f64 / cum;
            let parts = found.iter().map(|&context| (context, part(context)));
            let parts = parts.filter(|(_, part)| *part > 0.0);
            here.extend(parts.map(|(context, part)| enter(context, state.share * part)));
            return;
        }
        let further = || self.further.get(&(state.of, frame.function)).copied();
        let folded = || self.folded.get(&frame.function).copied();
        let calls = |context: &&u32| self.nodes[**context as usize].calls;
        let most = found.iter().rev().max_by_key(calls).copied();
        let context = most
            .or_else(further)
            .or_else(folded)
            .or_else(|| self.most_alike(sample));
        here.push(match context {
            Some(context) => enter(context, state.share),
            None => State {
                lost: true,
                ..state
            },
        });
    }

    fn is_context(&self, place: u32) -> bool {
        (place as usize) < self.nodes.len()
    }

    fn cum(&self, contexts: &[u32]) -> f64 {
        let cum = |&context: &u32| self.nodes[context as usize].cum as f64;
        contexts.iter().map(cum).sum()
    }

    /// The context of the frame's function that has most of the callers of this stack above it, in their order.
    fn most_alike(&self, sample: usize) -> Option<u32> {
        let contexts = self.of_function.get(&self.samples[sample].function)?;
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
        for _ in 0..MOST_CALLERS {
            let (Some(node), Some(frame)) = (above, caller) else {
                break;
            };
            let (node, frame) = (&self.nodes[node as usize], &self.samples[frame as usize]);
            if node.function == frame.function {
                alike += 1;
                above = node.parent;
            }
            caller = frame.parent;
        }
        alike
    }

    /// The frame's function was not counted: a place below the frame above it.
    fn hang(&mut self, function: u32, mut state: State) -> State {
        self.uncounted.push((function, state.uncounted));
        state.uncounted = Some(self.uncounted.len() as u32 - 1);
        let key = (state.place, function);
        let is_context = state.place.is_none_or(|place| self.is_context(place));
        let context = self.callees.get(&key).filter(|_| is_context);
        if let Some(&context) = context.and_then(|contexts| contexts.first()) {
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
