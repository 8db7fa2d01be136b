//! Third step: coordinates.
//!
//! Layers are columns as wide as their widest box. Heights: every stop wants to stand level with
//! its neighbours, by the widths of the arcs between; no two may overlap, and their order stays.
//! That is an isotonic regression, which pooling neighbours that press against each other solves
//! exactly:
//!
//! ```text
//! minimise  sum w_i (y_i - wish_i)^2   subject to   y_{i+1} - y_i >= room between i and i + 1
//! ```

use crate::layers::Layered;
use crate::order::{Columns, Stop};
use crate::{Arc, Graph, Layout, Place, Point, Route, Spacing};

/// Enough for a long chain to become straight; fewer where there is so much that nobody follows a
/// single arc.
const SWEEPS: usize = 400;
const MAX_MOVES: usize = 4_000_000;

pub fn place(graph: &Graph, layered: &Layered, columns: &Columns, spacing: &Spacing) -> Layout {
    let sizes: Vec<f64> = (0..columns.stops.len())
        .map(|stop| height_of(graph, columns, stop))
        .collect();
    let mut middles = vec![0.0; columns.stops.len()];
    for column in &columns.columns {
        let mut top = 0.0;
        for &stop in column {
            middles[stop] = top + sizes[stop] / 2.0;
            top += sizes[stop] + spacing.between_nodes;
        }
    }
    let sweeps = SWEEPS.min(MAX_MOVES / (columns.pieces.len() + 1)).max(6);
    for sweep in 0..sweeps {
        let rightwards = sweep.is_multiple_of(2);
        let count = columns.columns.len();
        for step in 0..count {
            let layer = if rightwards { step } else { count - 1 - step };
            level(columns, layer, &sizes, spacing, &mut middles);
        }
    }

    let top = (0..middles.len())
        .map(|stop| middles[stop] - sizes[stop] / 2.0)
        .fold(f64::INFINITY, f64::min);
    for middle in &mut middles {
        *middle += spacing.margin - top;
    }

    let (lefts, widths) = column_extents(graph, columns, spacing);
    let places: Vec<Place> = graph
        .nodes
        .iter()
        .enumerate()
        .map(|(node, size)| Place {
            left: lefts[layered.layers[node]],
            top: middles[node] - sizes[node] / 2.0,
            width: size.width,
            height: sizes[node],
        })
        .collect();
    let routes = routes(graph, columns, &places, &middles, &lefts, &widths, spacing);

    let lowest = routes.iter().map(|route| match route {
        Route::Back(points) => points[1].y,
        _ => 0.0,
    });
    let height = (0..middles.len())
        .map(|stop| middles[stop] + sizes[stop] / 2.0)
        .chain(lowest)
        .fold(0.0, f64::max)
        + spacing.margin;
    let width = lefts.last().unwrap_or(&0.0) + widths.last().unwrap_or(&0.0) + spacing.margin;
    Layout {
        places,
        routes,
        layers: layered.layers.clone(),
        width,
        height,
    }
}

fn height_of(graph: &Graph, columns: &Columns, stop: usize) -> f64 {
    let Stop { node, width, .. } = columns.stops[stop];
    let Some(node) = node else { return width };
    let sum = |pieces: &[usize]| -> f64 { pieces.iter().map(|&p| columns.pieces[p].width).sum() };
    graph.nodes[node]
        .height
        .max(sum(&columns.arriving[stop]))
        .max(sum(&columns.leaving[stop]))
}

/// Moves the stops of one layer to where they want to be, as far as they let each other.
fn level(columns: &Columns, layer: usize, sizes: &[f64], spacing: &Spacing, middles: &mut [f64]) {
    let column = &columns.columns[layer];
    // Distance of each stop's middle from that of the first when all are packed.
    let mut offset = 0.0;
    let mut pools: Vec<Pool> = Vec::with_capacity(column.len());
    let mut offsets = Vec::with_capacity(column.len());
    for (index, &stop) in column.iter().enumerate() {
        if index > 0 {
            let above = column[index - 1];
            // Passing arcs may run closer to each other than boxes.
            let both_pass =
                columns.stops[stop].node.is_none() && columns.stops[above].node.is_none();
            let gap = spacing.between_nodes * if both_pass { 0.5 } else { 1.0 };
            offset += (sizes[above] + sizes[stop]) / 2.0 + gap;
        }
        offsets.push(offset);
        let (wish, weight) = wish(columns, stop, middles);
        let mut pool = Pool {
            sum: (wish - offset) * weight,
            weight,
            members: 1,
        };
        while let Some(last) = pools.pop_if(|last| last.mean() > pool.mean()) {
            pool.sum += last.sum;
            pool.weight += last.weight;
            pool.members += last.members;
        }
        pools.push(pool);
    }
    let means = pools
        .iter()
        .flat_map(|pool| std::iter::repeat_n(pool.mean(), pool.members));
    for ((&stop, offset), mean) in column.iter().zip(offsets).zip(means) {
        middles[stop] = mean + offset;
    }
}

/// Neighbours that press against each other and move as one.
struct Pool {
    sum: f64,
    weight: f64,
    members: usize,
}

impl Pool {
    fn mean(&self) -> f64 {
        self.sum / self.weight
    }
}

fn wish(columns: &Columns, stop: usize, middles: &[f64]) -> (f64, f64) {
    let (mut sum, mut weights) = (0.0, 0.0);
    let passes = columns.stops[stop].node.is_none();
    let pieces = columns.arriving[stop].iter().chain(&columns.leaving[stop]);
    for &piece in pieces {
        let piece = &columns.pieces[piece];
        let other = if piece.from == stop {
            piece.to
        } else {
            piece.from
        };
        // An arc that bends on its way is worse than a box that stands askew.
        let straight = passes && columns.stops[other].node.is_none();
        let weight = piece.width.max(0.1) * if straight { 4.0 } else { 1.0 };
        sum += middles[other] * weight;
        weights += weight;
    }
    match weights > 0.0 {
        true => (sum / weights, weights),
        false => (middles[stop], 0.1),
    }
}

fn column_extents(graph: &Graph, columns: &Columns, spacing: &Spacing) -> (Vec<f64>, Vec<f64>) {
    let mut left = spacing.margin;
    let mut lefts = Vec::new();
    let mut widths = Vec::new();
    for column in &columns.columns {
        let boxes = column.iter().filter_map(|&stop| columns.stops[stop].node);
        let width = boxes
            .map(|node| graph.nodes[node].width)
            .fold(0.0, f64::max);
        lefts.push(left);
        widths.push(width);
        left += width + spacing.between_layers;
    }
    (lefts, widths)
}

fn routes(
    graph: &Graph,
    columns: &Columns,
    places: &[Place],
    middles: &[f64],
    lefts: &[f64],
    widths: &[f64],
    spacing: &Spacing,
) -> Vec<Route> {
    let starts = ports(graph, columns, middles, Side::Right);
    let ends = ports(graph, columns, middles, Side::Left);
    let mut routes = Vec::with_capacity(graph.arcs.len());
    for (index, arc) in graph.arcs.iter().enumerate() {
        let way = &columns.ways[index];
        if arc.from == arc.to {
            routes.push(Route::Own);
            continue;
        }
        if way.is_empty() {
            routes.push(Route::Back(back(arc, places, spacing)));
            continue;
        }
        let mut points = vec![Point {
            x: places[arc.from].right(),
            y: starts[index],
        }];
        for &stop in &way[1..way.len() - 1] {
            let layer = columns.stops[stop].layer;
            for x in [lefts[layer], lefts[layer] + widths[layer]] {
                points.push(Point {
                    x,
                    y: middles[stop],
                });
            }
        }
        points.push(Point {
            x: places[arc.to].left,
            y: ends[index],
        });
        routes.push(Route::Onward(points));
    }
    routes
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// Height at which each onward arc touches its box: beside each other, in the order in which they
/// come or go.
fn ports(graph: &Graph, columns: &Columns, middles: &[f64], side: Side) -> Vec<f64> {
    let mut of_node: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes.len()];
    for (index, arc) in graph.arcs.iter().enumerate() {
        if !columns.ways[index].is_empty() {
            let node = if side == Side::Left { arc.to } else { arc.from };
            of_node[node].push(index);
        }
    }
    let mut ports = vec![0.0; graph.arcs.len()];
    for (node, mut arcs) in of_node.into_iter().enumerate() {
        let other_end = |arc: usize| {
            let way = &columns.ways[arc];
            let stop = match side {
                Side::Left => way[way.len() - 2],
                Side::Right => way[1],
            };
            middles[stop]
        };
        arcs.sort_by(|&a, &b| other_end(a).total_cmp(&other_end(b)).then(a.cmp(&b)));
        let total: f64 = arcs.iter().map(|&arc| graph.arcs[arc].width).sum();
        let mut at = middles[node] - total / 2.0;
        for arc in arcs {
            ports[arc] = at + graph.arcs[arc].width / 2.0;
            at += graph.arcs[arc].width;
        }
    }
    ports
}

fn back(arc: &Arc, places: &[Place], spacing: &Spacing) -> [Point; 4] {
    let (from, to) = (&places[arc.from], &places[arc.to]);
    let start = Point {
        x: from.middle().x,
        y: from.bottom(),
    };
    let end = Point {
        x: to.middle().x,
        y: to.bottom(),
    };
    let dip = spacing.between_nodes * 2.0 + (start.x - end.x).abs() * 0.06;
    let low = start.y.max(end.y) + dip;
    [
        start,
        Point { x: start.x, y: low },
        Point { x: end.x, y: low },
        end,
    ]
}
