//! From the stacks at which events happened to figures of contexts.
//!
//! ```text
//!   seen      main -> p -> g -> q  3      g is not counted, or has left the stack
//!   contexts  main -> p -> q              q is charged with 3
//! ```
//!
//! Of a stack the innermost context is charged: frames that are no contexts (filtered, not patched, off) are passed over, as their time is. A
//! function that was off at the time and has a context from before is charged itself. A context may stand below functions that have jumped to it
//! at their end and left the stack.
//!
//! Of a stack of which the outer part is not known, the function that is known is charged all the same: its only context with these callers, or
//! else, with no callers, its folded one.

use std::collections::{HashMap, HashSet};

use thalweg_model::{Counting, FuncId, Metrics, Node, NodeFlags, Thread};

use super::functions::FunctionId;
use super::tree::Tree;

/// How many functions in a row may have jumped on and left the stack.
const MOST_GONE: usize = 4;

/// What functions are in the profile.
pub(super) struct Numbers {
    /// By id; `None`: not counted, or not known there any more.
    pub(super) counted: Vec<Option<FuncId>>,
    /// Stands for callers that are not known.
    pub(super) unknown: Option<FunctionId>,
}

/// Where a frame's events go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// To this context, or to nobody yet.
    Context(Option<u32>),
    /// The outer part of the stack is not known.
    Cut,
}

/// Charges the thread's contexts. Returns how many looks are nobody's.
pub(super) fn charge(
    thread: &mut Thread,
    tree: &Tree,
    numbers: &Numbers,
    counting: &Counting,
) -> u64 {
    let contexts = Contexts::of(&thread.nodes, tree, numbers);
    let mut places: Vec<At> = Vec::with_capacity(tree.nodes.len());
    let mut charged: Vec<(Place, u64)> = Vec::new();
    let mut nobodys = 0u64;
    for (index, seen) in tree.nodes.iter().enumerate() {
        let above = seen
            .parent
            .map_or(At::Context(None), |parent| places[parent as usize]);
        let number = numbers.counted[seen.function.0 as usize];
        let at = match (above, number) {
            _ if Some(seen.function) == numbers.unknown => At::Cut,
            (At::Context(of), Some(function)) => {
                At::Context(contexts.below(of, function, seen.counted))
            }
            (above, _) => above,
        };
        places.push(at);
        if seen.own == 0 {
            continue;
        }
        let place = match at {
            At::Context(context) => context.map(Place::Context),
            At::Cut => contexts.of_part(&thread.nodes, &stack(tree, numbers, index)),
        };
        match place {
            Some(place) => charged.push((place, seen.own)),
            None => nobodys = nobodys.saturating_add(seen.own),
        }
    }
    let mut folded = contexts.folded;
    for (place, looks) in charged {
        let context = match place {
            Place::Context(context) => context,
            Place::Folded(function) => *folded.entry(function).or_insert_with(|| {
                thread.nodes.push(Node {
                    function,
                    flags: NodeFlags::FOLDED,
                    ..Node::default()
                });
                thread.nodes.len() as u32 - 1
            }),
        };
        let mut metrics = Metrics::default();
        metrics.set(counting.metric, looks.saturating_mul(counting.period));
        thread.metrics.add(context, &metrics);
    }
    nobodys
}

/// Numbers of the functions that are known of a stack, innermost first.
fn stack(tree: &Tree, numbers: &Numbers, innermost: usize) -> Vec<FuncId> {
    let parent = |seen: &&super::tree::Seen| seen.parent.map(|p| &tree.nodes[p as usize]);
    let frames = std::iter::successors(Some(&tree.nodes[innermost]), parent);
    frames
        .filter_map(|seen| numbers.counted[seen.function.0 as usize])
        .collect()
}

enum Place {
    Context(u32),
    /// The folded context of a function.
    Folded(FuncId),
}

/// Of the functions that were seen.
struct Contexts {
    callees: HashMap<(Option<u32>, FuncId), u32>,
    /// The same of callees further down, with one to some contexts in between.
    further: HashMap<(Option<u32>, FuncId), u32>,
    folded: HashMap<FuncId, u32>,
    of_function: HashMap<FuncId, Vec<u32>>,
}

impl Contexts {
    fn of(nodes: &[Node], tree: &Tree, numbers: &Numbers) -> Contexts {
        let seen: HashSet<FuncId> = tree
            .nodes
            .iter()
            .filter_map(|seen| numbers.counted[seen.function.0 as usize])
            .collect();
        let mut contexts = Contexts {
            callees: HashMap::new(),
            further: HashMap::new(),
            folded: HashMap::new(),
            of_function: HashMap::new(),
        };
        // Where several come into question, call sites for example, it is the one with most calls.
        let keep = |known: &mut HashMap<(Option<u32>, FuncId), u32>, key, index: u32| {
            let kept = known.entry(key).or_insert(index);
            if nodes[index as usize].calls > nodes[*kept as usize].calls {
                *kept = index;
            }
        };
        for (index, node) in (0..).zip(nodes) {
            if node.flags.contains(NodeFlags::FOLDED) {
                contexts.folded.entry(node.function).or_insert(index);
            } else if seen.contains(&node.function) {
                let all = contexts.of_function.entry(node.function).or_default();
                all.push(index);
                keep(&mut contexts.callees, (node.parent, node.function), index);
                let mut between = node.parent;
                for _ in 0..MOST_GONE {
                    let Some(gone) = between else { break };
                    between = nodes[gone as usize].parent;
                    keep(&mut contexts.further, (between, node.function), index);
                }
            }
        }
        contexts
    }

    /// Where one is that sees `function` below `of`.
    fn below(&self, of: Option<u32>, function: FuncId, counted: bool) -> Option<u32> {
        let key = (of, function);
        let near = self.callees.get(&key);
        let far = || self.further.get(&key).filter(|_| counted);
        let folded = || self.folded.get(&function).filter(|_| counted);
        near.or_else(far).or_else(folded).copied().or(of)
    }

    /// Where a stack belongs of which only the innermost functions are known.
    fn of_part(&self, nodes: &[Node], stack: &[FuncId]) -> Option<Place> {
        let is_known = |function: &FuncId| {
            self.of_function.contains_key(function) || self.folded.contains_key(function)
        };
        let innermost = stack.iter().position(is_known)?;
        let (function, callers) = (stack[innermost], &stack[innermost + 1..]);
        let mut best: Option<(usize, u32)> = None;
        let mut is_only = true;
        for &context in self.of_function.get(&function).into_iter().flatten() {
            let likeness = likeness(nodes, context, callers);
            match best {
                Some((most, _)) if likeness < most => {}
                Some((most, _)) if likeness == most => is_only = false,
                _ => {
                    best = Some((likeness, context));
                    is_only = true;
                }
            }
        }
        Some(match best.filter(|_| is_only) {
            Some((_, context)) => Place::Context(context),
            None => Place::Folded(function),
        })
    }
}

/// How many of the callers are above the context, in this order.
fn likeness(nodes: &[Node], context: u32, callers: &[FuncId]) -> usize {
    let mut above = nodes[context as usize].parent;
    let mut alike = 0;
    for &caller in callers {
        let Some(parent) = above.map(|parent| &nodes[parent as usize]) else {
            break;
        };
        if parent.function == caller {
            alike += 1;
            above = parent.parent;
        }
    }
    alike
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_model::Metric;

    const MAIN: FuncId = FuncId(0);
    const P: FuncId = FuncId(1);
    const Q: FuncId = FuncId(2);
    const G: FuncId = FuncId(3);
    const CUT: FuncId = FuncId(9);

    fn node(parent: Option<u32>, function: FuncId, calls: u64) -> Node {
        Node {
            parent,
            function,
            calls,
            ..Node::default()
        }
    }

    /// What each context, those that were added included, was charged with, and what is nobody's. A function that is negative was not counted at the time.
    fn charged(nodes: &[Node], stacks: &[(&[i32], u64)]) -> (Vec<(Option<u32>, FuncId, u64)>, u64) {
        let mut thread = Thread {
            nodes: nodes.to_vec(),
            ..Thread::default()
        };
        let mut tree = Tree::default();
        for (stack, times) in stacks {
            for _ in 0..*times {
                let frame = |&number: &i32| (FunctionId(number.unsigned_abs()), number >= 0);
                tree.add(stack.iter().map(frame), 100).expect("room");
            }
        }
        let numbers = Numbers {
            counted: (0..CUT.0 + 1)
                .map(|n| (n <= G.0).then_some(FuncId(n)))
                .collect(),
            unknown: Some(FunctionId(CUT.0)),
        };
        let counting = Counting {
            metric: Metric::Faults,
            period: 10,
            in_kernel: true,
            samples: 0,
            lost: 0,
            in_probes: 0,
            nobodys: 0,
            cut_short: 0,
        };
        let nobodys = charge(&mut thread, &tree, &numbers, &counting);
        let figures = (0..).zip(&thread.nodes).map(|(index, node)| {
            let figure = thread.metrics.at(index).get(Metric::Faults);
            (node.parent, node.function, figure)
        });
        (figures.collect(), nobodys)
    }

    #[test]
    fn the_innermost_context_of_a_stack_is_charged_whatever_is_between() {
        let nodes = [
            node(None, MAIN, 1),
            node(Some(0), P, 1),
            node(Some(1), Q, 1),
            node(Some(0), Q, 5),
        ];
        // 7: never patched. G: patched, and never called while it was on.
        let stacks: &[(&[i32], u64)] = &[
            (&[7, 0, 1, -3, 2], 3),
            (&[7, 0, 1, 7], 2),
            (&[7, 0, -2], 1),
            (&[7], 4),
        ];
        let (figures, nobodys) = charged(&nodes, stacks);
        let expected = [
            (None, MAIN, 0),
            (Some(0), P, 20),
            (Some(1), Q, 30),
            (Some(0), Q, 10),
        ];
        assert_eq!((figures, nobodys), (expected.to_vec(), 4));
    }

    #[test]
    fn a_caller_that_has_jumped_on_is_still_a_caller() {
        let nodes = [
            node(None, MAIN, 1),
            node(Some(0), P, 1),
            node(Some(1), G, 1),
        ];
        let (figures, _) = charged(&nodes, &[(&[0, 3], 2)]);
        assert_eq!(figures[2], (Some(1), G, 20));
    }

    #[test]
    fn of_a_cut_stack_the_function_is_right_and_its_callers_where_there_is_one_way_only() {
        let nodes = [
            node(None, MAIN, 1),
            node(Some(0), P, 1),
            node(Some(1), Q, 1),
            node(Some(0), G, 1),
            node(Some(3), Q, 1),
        ];
        let cut = CUT.0 as i32;
        let stacks: &[(&[i32], u64)] = &[
            (&[cut, 1, 7, 2], 3),
            (&[cut, 2, 7], 2),
            (&[cut, 1], 1),
            (&[cut, 7], 5),
            (&[cut], 6),
        ];
        let (figures, nobodys) = charged(&nodes, stacks);
        assert_eq!(figures[2], (Some(1), Q, 30), "called by P");
        assert_eq!(figures[1], (Some(0), P, 10), "it has one context");
        assert_eq!(figures[5], (None, Q, 20), "called by P or by G");
        assert_eq!((figures.len(), nobodys), (6, 11));
    }

    #[test]
    fn contexts_without_room_are_charged_where_their_calls_are() {
        let folded = Node {
            flags: NodeFlags::FOLDED,
            ..node(None, Q, 9)
        };
        let nodes = [node(None, MAIN, 1), folded];
        let (figures, _) = charged(&nodes, &[(&[0, 2], 2), (&[CUT.0 as i32, 2], 1)]);
        assert_eq!(figures, [(None, MAIN, 0), (None, Q, 30)]);
    }
}
