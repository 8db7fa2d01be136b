//! The tree of one thread as columns: one metric of all nodes, then the next.
//!
//! Values of one kind stand together, and each is written as its difference from what the others
//! let one expect, so that most are zero and compress to almost nothing:
//!
//! ```text
//! parent    = index - up              up: how far back the parent stands; 0 = no parent
//! total       = self + sum(total of the children) + d
//! wall   = total + d
//! min, max  = span / calls -+ d       span: self or total, whichever this thread's single calls agree with
//! recursion = (parent calls the same function ? parent.recursion + 1 : 0) + d
//! ```

use crate::codec::{Decoder, Encoder};
use crate::error::ReadError;
use crate::ids::FuncId;
use crate::profile::{Node, NodeFlags};

/// One byte at least in each of the ten columns.
const MIN_BYTES_PER_NODE: usize = 10;

pub fn encode(nodes: &[Node], out: &mut Encoder) {
    out.number(nodes.len() as u64);
    for (index, node) in nodes.iter().enumerate() {
        out.number(match node.parent {
            None => 0,
            Some(parent) => index as u64 - u64::from(parent),
        });
    }
    nodes.iter().for_each(|n| out.number(n.function.into()));
    nodes.iter().for_each(|n| out.number(n.calls));
    nodes.iter().for_each(|n| out.number(n.self_ns));

    let mut of_children = vec![0u64; nodes.len()];
    for (index, node) in nodes.iter().enumerate().rev() {
        out.difference(node.total_ns, node.self_ns.wrapping_add(of_children[index]));
        if let Some(parent) = node.parent {
            let sum = &mut of_children[parent as usize];
            *sum = sum.wrapping_add(node.total_ns);
        }
    }
    nodes
        .iter()
        .for_each(|n| out.difference(n.wall_ns, n.total_ns));

    let span = Span::from_nodes(nodes);
    out.byte(span as u8);
    nodes
        .iter()
        .for_each(|n| out.difference(n.min, span.mean(n)));
    nodes
        .iter()
        .for_each(|n| out.difference(n.max, span.mean(n)));

    for node in nodes {
        out.difference(node.recursion.into(), expected_recursion(nodes, node));
    }
    nodes.iter().for_each(|n| out.byte(n.flags.bits()));
}

pub fn decode(input: &mut Decoder) -> Result<Vec<Node>, ReadError> {
    let count = input.count(MIN_BYTES_PER_NODE)?;
    let mut nodes = vec![Node::default(); count];
    for (index, node) in nodes.iter_mut().enumerate() {
        node.parent = input.parent(index)?;
    }
    for node in &mut nodes {
        node.function = FuncId::decode(input)?;
    }
    for node in &mut nodes {
        node.calls = input.number()?;
    }
    for node in &mut nodes {
        node.self_ns = input.number()?;
    }

    let mut of_children = vec![0u64; count];
    for (index, node) in nodes.iter_mut().enumerate().rev() {
        node.total_ns = input.difference(node.self_ns.wrapping_add(of_children[index]))?;
        if let Some(parent) = node.parent {
            let sum = &mut of_children[parent as usize];
            *sum = sum.wrapping_add(node.total_ns);
        }
    }
    for node in &mut nodes {
        node.wall_ns = input.difference(node.total_ns)?;
    }

    let span = match input.byte()? {
        0 => Span::SelfTime,
        1 => Span::Total,
        _ => {
            return Err(ReadError::Corrupt(
                "it is unknown what min and max refer to",
            ));
        }
    };
    for node in &mut nodes {
        node.min = input.difference(span.mean(node))?;
    }
    for node in &mut nodes {
        node.max = input.difference(span.mean(node))?;
    }

    for index in 0..count {
        let recursion = input.difference(expected_recursion(&nodes, &nodes[index]))?;
        nodes[index].recursion = u32::try_from(recursion)
            .map_err(|_| ReadError::Corrupt("a recursion level has more than 32 bits"))?;
    }
    for node in &mut nodes {
        node.flags = NodeFlags::from_bits(input.byte()?)
            .ok_or(ReadError::Corrupt("a node has an unknown flag"))?;
    }
    Ok(nodes)
}

fn expected_recursion(nodes: &[Node], node: &Node) -> u64 {
    match node.parent.map(|parent| &nodes[parent as usize]) {
        Some(parent) if parent.function == node.function => u64::from(parent.recursion) + 1,
        _ => 0,
    }
}

/// Which time min and max are the extremes of. The format takes no side: it samples which one fits.
#[derive(Clone, Copy)]
enum Span {
    SelfTime = 0,
    Total = 1,
}

impl Span {
    fn from_nodes(nodes: &[Node]) -> Span {
        let agreeing = |time: fn(&Node) -> u64| {
            let single = nodes.iter().filter(|node| node.calls == 1);
            single.filter(|node| time(node) == node.max).count()
        };
        if agreeing(|node| node.total_ns) > agreeing(|node| node.self_ns) {
            Span::Total
        } else {
            Span::SelfTime
        }
    }

    fn mean(self, node: &Node) -> u64 {
        let total = match self {
            Span::SelfTime => node.self_ns,
            Span::Total => node.total_ns,
        };
        total.checked_div(node.calls).unwrap_or(0)
    }
}
