//! Where the stacks that were seen stand in the tree of contexts: of each frame, whether it is one of the contexts or not counted.
//!
//! ```text
//!   seen      main -> p -> g -> q        g is off
//!   contexts  main -> p -> q
//!   ways      main -> p -> g -> q        g shares p's own time; q, and all below it, was reached by way of g
//! ```
//!
//! A function that goes off may be running: that activation goes on to be a context, which the stack does not tell from later ones, which
//! are none. The times do: if the context took so long that the looks at the function when it was off must have been
//! within it, they were. Only contexts whose calls are long come into question.
//!
//! Contexts also have who jumped to a function at its end, which the stack does not. Again the times tell: a context that took long below a caller
//! and was not seen there has left the stack, and what was seen in its place may be its callees.

use std::collections::{BTreeMap, HashMap, HashSet};

use thalweg_model::{Node, NodeFlags, SampleNode};

/// A place in the tree that comes of it.
#[derive(Clone, Debug)]
pub struct Way {
    /// Before it in the list.
    pub parent: Option<u32>,
    pub function: u32,
    /// The context that it is, or is a part of where that was reached in several ways. `None`: its calls are not counted.
    pub context: Option<u32>,
    /// The context whose own time it has a part of. `None`: nothing above it is counted.
    pub of: Option<u32>,
    /// Looks at it as the innermost, and at all below it. Fractions come of contexts that call sites tell apart.
    pub own: f64,
    pub cum: f64,
}

/// Calls that take less on average are not taken for ones that lasted until the function was off. Functions that are switched off for
/// what their probes cost are called more often than would be possible otherwise.
///
/// There is another kind of long call: one that returned while its function was off, unseen, seems to last until the thread's next event.
const LONG_CALL_NS: f64 = 50_000.0;
/// Less of a difference is taken for chance.
const LEAST_PART: f64 = 0.2;
/// A context that was seen for less than this part of its time has left the stack: by chance no context of some looks is.
const LEAST_SEEN: f64 = 0.5;
pub const FEWEST_LOOKS: f64 = 6.0;
/// How many of these there may be in a row.
const MOST_GONE: usize = 4;
/// From so many ways on, looks are no longer divided among contexts that differ in nothing but call sites.
const MOST_WAYS: usize = 1 << 20;

/// A frame that was seen, below a way.
#[derive(Clone, Copy)]
struct Frame {
    sample: u32,
    above: Option<u32>,
    /// What part of its looks is meant.
    share: f64,
    /// There is nothing above it but functions that were never patched. They are left out, as they are in a profile, where others follow.
    leading: bool,
    /// Something above it is counted, but not as a context: its time is somewhere, and not here.
    lost: bool,
}

struct Matcher<'a> {
    nodes: &'a [Node],
    samples: &'a [SampleNode],
    /// Of each frame its first callee and its next sibling.
    links: Vec<(Option<u32>, Option<u32>)>,
    /// Looks at each frame and all below it.
    looks: Vec<f64>,
    callees: HashMap<(Option<u32>, u32), Vec<u32>>,
    /// The same of callees further down, with one to some contexts in between.
    further: HashMap<(Option<u32>, u32), Vec<u32>>,
    folded: HashMap<u32, u32>,
    ns_per_look: f64,
    was_switched: &'a HashSet<u32>,
    ways: Vec<Way>,
    places: HashMap<(Option<u32>, u32, Option<u32>), u32>,
}

/// All ways in which what was seen was reached, callers before callees.
pub fn ways(
    nodes: &[Node],
    samples: &[SampleNode],
    was_switched: &HashSet<u32>,
    ns_per_look: f64,
) -> Vec<Way> {
    let mut links = vec![(None, None); samples.len()];
    let mut looks: Vec<f64> = samples.iter().map(|frame| frame.own as f64).collect();
    let mut outermost = None;
    for (index, frame) in samples.iter().enumerate().rev() {
        let first = match frame.parent {
            Some(parent) => {
                looks[parent as usize] += looks[index];
                &mut links[parent as usize].0
            }
            None => &mut outermost,
        };
        let next = first.replace(index as u32);
        links[index].1 = next;
    }
    let seen: HashSet<u32> = samples.iter().map(|frame| frame.function).collect();
    let mut callees: HashMap<_, Vec<u32>> = HashMap::new();
    let mut further: HashMap<_, Vec<u32>> = HashMap::new();
    let mut folded = HashMap::new();
    for (index, node) in (0..).zip(nodes) {
        if node.flags.contains(NodeFlags::FOLDED) {
            folded.entry(node.function).or_insert(index);
        } else if seen.contains(&node.function) {
            let key = (node.parent, node.function);
            callees.entry(key).or_default().push(index);
            let mut between = node.parent;
            for _ in 0..MOST_GONE {
                let Some(gone) = between else { break };
                between = nodes[gone as usize].parent;
                let key = (between, node.function);
                further.entry(key).or_default().push(index);
            }
        }
    }
    let mut matcher = Matcher {
        nodes,
        samples,
        links,
        looks,
        callees,
        further,
        folded,
        ns_per_look,
        was_switched,
        ways: Vec::new(),
        places: HashMap::new(),
    };
    matcher.run(outermost);
    let mut ways = matcher.ways;
    for index in (0..ways.len()).rev() {
        ways[index].cum += ways[index].own;
        if let Some(parent) = ways[index].parent {
            ways[parent as usize].cum += ways[index].cum;
        }
    }
    ways
}

impl Matcher<'_> {
    fn run(&mut self, outermost: Option<u32>) {
        let first = Frame {
            sample: 0,
            above: None,
            share: 1.0,
            leading: true,
            lost: false,
        };
        let mut contexts = vec![(None, self.siblings(outermost, first))];
        while let Some((of, frames)) = contexts.pop() {
            self.below(of, frames, &mut contexts);
        }
    }

    /// `first` and those beside it, all like `frame`.
    fn siblings(&self, first: Option<u32>, frame: Frame) -> Vec<Frame> {
        let all = std::iter::successors(first, |&sample| self.links[sample as usize].1);
        all.map(|sample| Frame { sample, ..frame }).collect()
    }

    /// Follows frames down from one context, as far as they are in its own time; what is beyond goes to `contexts`.
    fn below(
        &mut self,
        of: Option<u32>,
        mut frames: Vec<Frame>,
        contexts: &mut Vec<(Option<u32>, Vec<Frame>)>,
    ) {
        let mut entered: BTreeMap<u32, Vec<Frame>> = BTreeMap::new();
        let mut refused: HashSet<u32> = HashSet::new();
        // Found by what was known when it was asked: there must be some then.
        let mut found: HashMap<u32, Vec<(u32, f64)>> = HashMap::new();
        // For how long each function was seen here, whatever it turned out to be.
        let mut times: HashMap<u32, f64> = HashMap::new();
        loop {
            let mut unsure: BTreeMap<u32, Vec<Frame>> = BTreeMap::new();
            while let Some(frame) = frames.pop() {
                let SampleNode {
                    function, counted, ..
                } = self.samples[frame.sample as usize];
                *times.entry(function).or_default() += self.seen(&[frame]) * self.ns_per_look;
                let key = (of, function);
                let is_near = self.callees.contains_key(&key);
                let is_far = self.further.contains_key(&key);
                if is_near && counted {
                    entered.entry(function).or_default().push(frame);
                } else if (is_near || is_far) && !refused.contains(&function) {
                    unsure.entry(function).or_default().push(frame);
                } else if let Some(&folded) = self.folded.get(&function).filter(|_| counted) {
                    let inner = self.enter(folded, None, frame);
                    contexts.push((Some(folded), inner));
                } else {
                    frames.extend(self.pass(of, frame));
                }
            }
            if unsure.is_empty() {
                break;
            }
            for (function, asked) in unsure {
                let counted = |frame: &Frame| self.samples[frame.sample as usize].counted;
                let members = self.members(of, function, &times);
                let (on, off): (Vec<Frame>, Vec<Frame>) = asked.into_iter().partition(counted);
                let sure = entered.get(&function).map_or(0.0, |known| self.seen(known));
                let sure = sure + self.seen(&on);
                let on_share = if members.is_empty() { 0.0 } else { 1.0 };
                let off_share = self.lasted(&members, sure, self.seen(&off));
                for (asked, part) in [(on, on_share), (off, off_share)] {
                    for frame in asked {
                        let part_of = |part: f64| Frame {
                            share: frame.share * part,
                            ..frame
                        };
                        if part > 0.0 {
                            found.entry(function).or_insert_with(|| members.clone());
                            entered.entry(function).or_default().push(part_of(part));
                        }
                        if part < 1.0 {
                            refused.insert(function);
                            frames.extend(self.pass(of, part_of(1.0 - part)));
                        }
                    }
                }
            }
        }
        for (function, frames) in entered {
            let members = found.remove(&function);
            let members = members.unwrap_or_else(|| self.members(of, function, &times));
            for (context, part) in members {
                let mut inner = Vec::new();
                for frame in &frames {
                    let above = frame.above.filter(|_| !frame.leading);
                    let above = self.gone(of, context, above);
                    let share = frame.share * part;
                    inner.extend(self.enter(context, above, Frame { share, ..*frame }));
                }
                contexts.push((Some(context), inner));
            }
        }
    }

    fn seen(&self, frames: &[Frame]) -> f64 {
        let looks = |frame: &Frame| self.looks[frame.sample as usize] * frame.share;
        frames.iter().map(looks).sum()
    }

    /// What part of the looks at a function that was off were at calls that had begun before.
    fn lasted(&self, members: &[(u32, f64)], sure: f64, asked: f64) -> f64 {
        let nodes = members
            .iter()
            .map(|&(context, _)| &self.nodes[context as usize]);
        let mut is_long = false;
        let (cum, calls) = nodes.fold((0.0, 0.0), |(cum, calls), node| {
            is_long |= node.max as f64 >= FEWEST_LOOKS * self.ns_per_look;
            (cum + node.cum as f64, calls + node.calls as f64)
        });
        is_long |= cum >= LONG_CALL_NS * calls;
        match (cum / self.ns_per_look - sure) / asked {
            part if !is_long || part < LEAST_PART => 0.0,
            part if part > 1.0 - (3.0 / asked.sqrt()).min(LEAST_PART) => 1.0,
            part => part,
        }
    }

    /// The contexts that a function may be below another, and what part of its looks each has. `times` is for how long functions were seen there.
    fn members(
        &self,
        of: Option<u32>,
        function: u32,
        times: &HashMap<u32, f64>,
    ) -> Vec<(u32, f64)> {
        let none = Vec::new();
        let mut all = self.callees.get(&(of, function)).unwrap_or(&none).clone();
        if let Some(further) = self.further.get(&(of, function)) {
            let far = further
                .iter()
                .filter(|&&context| self.is_far(of, context, times));
            all.extend(far);
        }
        let cum = |context: u32| self.nodes[context as usize].cum as f64;
        let whole: f64 = all.iter().map(|&context| cum(context)).sum();
        if all.len() > 1 && whole > 0.0 && self.ways.len() < MOST_WAYS {
            let parts = all.iter().map(|&context| (context, cum(context) / whole));
            return parts.filter(|(_, part)| *part > 0.0).collect();
        }
        let heaviest = all
            .iter()
            .rev()
            .max_by(|a, b| cum(**a).total_cmp(&cum(**b)));
        heaviest
            .map(|&context| (context, 1.0))
            .into_iter()
            .collect()
    }

    /// Whether all that is between has left the stack.
    fn is_far(&self, of: Option<u32>, context: u32, times: &HashMap<u32, f64>) -> bool {
        let mut between = self.nodes[context as usize].parent;
        while let Some(gone) = between.filter(|_| between != of) {
            let node = &self.nodes[gone as usize];
            let seen = times.get(&node.function).copied().unwrap_or(0.0);
            let cum = node.cum as f64;
            if cum < FEWEST_LOOKS * self.ns_per_look || seen >= LEAST_SEEN * cum {
                return false;
            }
            between = node.parent;
        }
        true
    }

    /// The ways of the contexts between that have left the stack; the last of them.
    fn gone(&mut self, of: Option<u32>, context: u32, above: Option<u32>) -> Option<u32> {
        let parent = |context: &u32| self.nodes[*context as usize].parent;
        let between = std::iter::successors(parent(&context), parent);
        let between: Vec<u32> = between.take_while(|&gone| Some(gone) != of).collect();
        let mut above = above;
        for gone in between.into_iter().rev() {
            let function = self.nodes[gone as usize].function;
            above = Some(self.way(above, function, Some(gone), Some(gone)));
        }
        above
    }

    /// The frame is a context. Returns what was seen below it.
    fn enter(&mut self, context: u32, above: Option<u32>, frame: Frame) -> Vec<Frame> {
        let sample = &self.samples[frame.sample as usize];
        let way = self.way(above, sample.function, Some(context), Some(context));
        self.ways[way as usize].own += sample.own as f64 * frame.share;
        let inner = Frame {
            above: Some(way),
            leading: false,
            lost: false,
            ..frame
        };
        self.siblings(self.links[frame.sample as usize].0, inner)
    }

    /// The frame is not counted. Returns what was seen below it.
    fn pass(&mut self, of: Option<u32>, frame: Frame) -> Vec<Frame> {
        let sample = &self.samples[frame.sample as usize];
        let lost = frame.lost || (of.is_none() && sample.counted);
        let is_off = !sample.counted && self.was_switched.contains(&sample.function);
        let leading = frame.leading && !is_off;
        let above = frame.above.filter(|_| leading || !frame.leading);
        let way = self.way(above, sample.function, None, of);
        if !lost {
            self.ways[way as usize].own += sample.own as f64 * frame.share;
        }
        let inner = Frame {
            above: Some(way),
            leading,
            lost,
            ..frame
        };
        self.siblings(self.links[frame.sample as usize].0, inner)
    }

    fn way(
        &mut self,
        parent: Option<u32>,
        function: u32,
        context: Option<u32>,
        of: Option<u32>,
    ) -> u32 {
        let next = self.ways.len() as u32;
        let place = self.places.entry((parent, function, context));
        let way = *place.or_insert(next);
        if way == next {
            self.ways.push(Way {
                parent,
                function,
                context,
                of,
                own: 0.0,
                cum: 0.0,
            });
        }
        way
    }
}
