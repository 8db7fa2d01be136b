//! First step: which arcs close a cycle, and which layer each node stands in.
//!
//! ```text
//! layer(n) = max over onward arcs m -> n of layer(m) + 1
//! ```

use crate::{Graph, rounded_weight};

pub struct Layered {
    /// Layer of each node.
    pub layers: Vec<usize>,
    /// For each arc: leads to the right. Others close a cycle.
    pub onward: Vec<bool>,
}

pub fn assign(graph: &Graph) -> Layered {
    let count = graph.nodes.len();
    let mut leaving: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (index, arc) in graph.arcs.iter().enumerate() {
        leaving[arc.from].push(index);
    }
    for arcs in &mut leaving {
        // Heavy ones first: a cycle is then closed by a light arc.
        arcs.sort_by(|&a, &b| {
            let weight = |arc: usize| rounded_weight(graph.arcs[arc].width);
            weight(b).total_cmp(&weight(a)).then(a.cmp(&b))
        });
    }

    let mut onward = vec![true; graph.arcs.len()];
    let mut state = vec![State::Unseen; count];
    let mut finished = Vec::with_capacity(count);
    for start in 0..count {
        if state[start] != State::Unseen {
            continue;
        }
        state[start] = State::Open;
        let mut path = vec![(start, 0)];
        while let Some((node, next)) = path.last_mut() {
            let Some(&arc) = leaving[*node].get(*next) else {
                state[*node] = State::Done;
                finished.push(*node);
                path.pop();
                continue;
            };
            *next += 1;
            let to = graph.arcs[arc].to;
            match state[to] {
                State::Open => onward[arc] = false,
                State::Done => {}
                State::Unseen => {
                    state[to] = State::Open;
                    path.push((to, 0));
                }
            }
        }
    }

    let mut layers = vec![0; count];
    for &node in finished.iter().rev() {
        for &arc in leaving[node].iter().filter(|&&arc| onward[arc]) {
            let to = graph.arcs[arc].to;
            layers[to] = layers[to].max(layers[node] + 1);
        }
    }
    Layered { layers, onward }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Unseen,
    /// On the way from the start to where the search stands.
    Open,
    Done,
}
