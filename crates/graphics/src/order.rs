//! Second step: who stands above whom within a layer.
//!
//! An arc over several layers gets a stop in each layer between, so that arcs join neighbouring
//! layers only. Then each stop moves towards the mean position of its neighbours, layer after
//! layer, forth and back; the order with the least weight of crossings is kept.

use crate::layers::Layered;
use crate::{Graph, rounded_weight};

/// Enough to stop improving; fewer where there is so much that nobody follows a single arc.
const SWEEPS: usize = 24;
const MAX_MOVES: usize = 4_000_000;

/// A box, or a place where an arc passes through a layer.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    pub layer: usize,
    /// The node whose box this is.
    pub node: Option<usize>,
    /// Width of the arc that passes; of a box, 0.
    pub width: f64,
}

/// A piece of an arc, from one layer to the next.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub from: usize,
    pub to: usize,
    pub width: f64,
    /// The width in steps that a small change rarely leaves, which the order goes by.
    weight: f64,
}

pub struct Columns {
    pub stops: Vec<Stop>,
    pub pieces: Vec<Piece>,
    /// For each onward arc its stops, box to box; empty for others.
    pub ways: Vec<Vec<usize>>,
    /// Stops of each layer from top to bottom.
    pub columns: Vec<Vec<usize>>,
    /// Pieces that end at, and that leave, each stop.
    pub arriving: Vec<Vec<usize>>,
    pub leaving: Vec<Vec<usize>>,
}

impl Columns {
    pub fn new(graph: &Graph, layered: &Layered) -> Columns {
        let last = layered.layers.iter().copied().max().unwrap_or(0);
        let mut stops: Vec<Stop> = layered
            .layers
            .iter()
            .enumerate()
            .map(|(node, &layer)| Stop {
                layer,
                node: Some(node),
                width: 0.0,
            })
            .collect();
        let mut pieces = Vec::new();
        let mut ways = Vec::with_capacity(graph.arcs.len());
        for (arc, &onward) in graph.arcs.iter().zip(&layered.onward) {
            let mut way = Vec::new();
            if onward {
                way.push(arc.from);
                for layer in layered.layers[arc.from] + 1..layered.layers[arc.to] {
                    way.push(stops.len());
                    stops.push(Stop {
                        layer,
                        node: None,
                        width: arc.width,
                    });
                }
                way.push(arc.to);
                let weight = rounded_weight(arc.width);
                pieces.extend(way.windows(2).map(|pair| Piece {
                    from: pair[0],
                    to: pair[1],
                    width: arc.width,
                    weight,
                }));
            }
            ways.push(way);
        }
        let mut arriving = vec![Vec::new(); stops.len()];
        let mut leaving = vec![Vec::new(); stops.len()];
        for (index, piece) in pieces.iter().enumerate() {
            leaving[piece.from].push(index);
            arriving[piece.to].push(index);
        }
        let mut columns = vec![Vec::new(); last + 1];
        for (index, stop) in stops.iter().enumerate() {
            columns[stop.layer].push(index);
        }
        Columns {
            stops,
            pieces,
            ways,
            columns,
            arriving,
            leaving,
        }
    }

    pub fn untangle(&mut self) {
        let mut best = self.columns.clone();
        let mut positions = self.positions();
        let mut least = self.crossings(&positions);
        let sweeps = SWEEPS.min(MAX_MOVES / (self.pieces.len() + 1)).max(2);
        for sweep in 0..sweeps {
            if least == 0.0 {
                break;
            }
            let rightwards = sweep.is_multiple_of(2);
            let layers: Vec<usize> = match rightwards {
                true => (1..self.columns.len()).collect(),
                false => (0..self.columns.len().saturating_sub(1)).rev().collect(),
            };
            for layer in layers {
                self.sort_column(layer, rightwards, &mut positions);
            }
            let crossings = self.crossings(&positions);
            if crossings < least {
                least = crossings;
                best.clone_from(&self.columns);
            }
        }
        self.columns = best;
    }

    fn sort_column(&mut self, layer: usize, by_left: bool, positions: &mut [usize]) {
        let mut keyed: Vec<(f64, usize, usize)> = self.columns[layer]
            .iter()
            .enumerate()
            .map(|(place, &stop)| {
                let pieces = match by_left {
                    true => &self.arriving[stop],
                    false => &self.leaving[stop],
                };
                let (mut sum, mut weights) = (0.0, 0.0);
                for &piece in pieces {
                    let piece = &self.pieces[piece];
                    let neighbour = if by_left { piece.from } else { piece.to };
                    sum += positions[neighbour] as f64 * piece.weight;
                    weights += piece.weight;
                }
                // What has no neighbour there keeps its place.
                let mean = if weights > 0.0 {
                    sum / weights
                } else {
                    place as f64
                };
                (mean, place, stop)
            })
            .collect();
        keyed.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        for (place, &(_, _, stop)) in keyed.iter().enumerate() {
            positions[stop] = place;
        }
        self.columns[layer] = keyed.into_iter().map(|(_, _, stop)| stop).collect();
    }

    /// Place of each stop within its layer, from the top.
    fn positions(&self) -> Vec<usize> {
        let mut positions = vec![0; self.stops.len()];
        for column in &self.columns {
            for (place, &stop) in column.iter().enumerate() {
                positions[stop] = place;
            }
        }
        positions
    }

    /// Sum over all pairs of crossing pieces of the lighter one's weight, approximately: of the
    /// later one's.
    fn crossings(&self, positions: &[usize]) -> f64 {
        let mut total = 0.0;
        for layer in 1..self.columns.len() {
            let mut ends: Vec<(usize, usize, f64)> = self.columns[layer]
                .iter()
                .flat_map(|&stop| &self.arriving[stop])
                .map(|&piece| &self.pieces[piece])
                .map(|p| (positions[p.from], positions[p.to], p.weight))
                .collect();
            ends.sort_by_key(|&(from, to, _)| (from, to));
            let mut below = Fenwick::new(self.columns[layer].len());
            for (_, to, weight) in ends {
                total += below.count_above(to) * weight.sqrt();
                below.add(to, 1.0);
            }
        }
        total
    }
}

/// Sums over a range of places, and additions at one, in logarithmic time.
struct Fenwick(Vec<f64>);

impl Fenwick {
    fn new(length: usize) -> Fenwick {
        Fenwick(vec![0.0; length + 1])
    }

    fn add(&mut self, place: usize, value: f64) {
        let mut index = place + 1;
        while index < self.0.len() {
            self.0[index] += value;
            index += index & index.wrapping_neg();
        }
    }

    fn up_to(&self, place: usize) -> f64 {
        let mut index = (place + 1).min(self.0.len() - 1);
        let mut sum = 0.0;
        while index > 0 {
            sum += self.0[index];
            index -= index & index.wrapping_neg();
        }
        sum
    }

    /// How many stand at places greater than this.
    fn count_above(&self, place: usize) -> f64 {
        self.up_to(self.0.len()) - self.up_to(place)
    }
}
