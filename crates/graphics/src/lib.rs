//! Where the boxes and arcs of a call graph go: layers from left to right, arcs that have a width.
//!
//! Between a graph of functions and its picture, whoever draws it: sizes in, places out, no other
//! dependency. Steps, a file each:
//!
//! ```text
//! layers   arcs that close a cycle are set aside; every other arc leads a layer or more right
//! order    who stands above whom within a layer, so that few arcs cross
//! place    heights, so that heavy arcs run straight and nothing overlaps
//! ```
//!
//! The same graph always gives the same picture, and small changes of the weights a similar one:
//! wherever a choice depends on weights, they are rounded to powers of two, and ties follow the
//! order of the nodes.
#![forbid(unsafe_code)]

mod layers;
mod order;
mod place;

/// A graph to be laid out. Node 0 is where everything begins.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub nodes: Vec<Node>,
    pub arcs: Vec<Arc>,
}

/// The room that a node's box takes at least; it grows with the arcs that end at it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Node {
    pub width: f64,
    pub height: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Arc {
    pub from: usize,
    pub to: usize,
    /// How wide it is drawn.
    pub width: f64,
}

/// Distances that look well, in the unit of the nodes' sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spacing {
    pub between_layers: f64,
    pub between_nodes: f64,
    pub margin: f64,
}

impl Default for Spacing {
    fn default() -> Spacing {
        Spacing {
            between_layers: 58.0,
            between_nodes: 14.0,
            margin: 24.0,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Place {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

impl Place {
    pub fn right(&self) -> f64 {
        self.left + self.width
    }

    pub fn bottom(&self) -> f64 {
        self.top + self.height
    }

    pub fn middle(&self) -> Point {
        Point {
            x: self.left + self.width / 2.0,
            y: self.top + self.height / 2.0,
        }
    }
}

/// The way of an arc.
#[derive(Clone, Debug, PartialEq)]
pub enum Route {
    /// From the right side of a box to the left side of another. The arc is level at each of the
    /// points.
    Onward(Vec<Point>),
    /// Closes a cycle: against the flow, below the boxes; four control points of a curve.
    Back([Point; 4]),
    /// A function that calls itself.
    Own,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    /// One per node of the graph.
    pub places: Vec<Place>,
    /// One per arc of the graph.
    pub routes: Vec<Route>,
    /// Layer of each node: 0 for the first.
    pub layers: Vec<usize>,
    pub width: f64,
    pub height: f64,
}

/// Lays the graph out. Nodes that nothing reaches from node 0 stand in the first layer.
///
/// # Panics
/// When an arc refers to a node that is not there.
pub fn layout(graph: &Graph, spacing: &Spacing) -> Layout {
    if graph.nodes.is_empty() {
        return Layout::default();
    }
    let layered = layers::assign(graph);
    let mut columns = order::Columns::new(graph, &layered);
    columns.untangle();
    place::place(graph, &layered, &columns, spacing)
}

/// For each arc whether it closes a cycle, a node's arc to itself included.
///
/// # Panics
/// When an arc refers to a node that is not there.
pub fn closing(graph: &Graph) -> Vec<bool> {
    let layered = layers::assign(graph);
    layered.onward.iter().map(|onward| !onward).collect()
}

/// A weight in steps that a small change rarely leaves.
fn rounded_weight(width: f64) -> f64 {
    match width.is_finite() && width > 0.0 {
        true => width.log2().round().clamp(-20.0, 40.0).exp2(),
        false => 0.5f64.powi(20),
    }
}
