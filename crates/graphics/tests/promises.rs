//! What a picture can rely on, for any graph.

use proptest::prelude::*;
use thalweg_graphics::{Arc, Graph, Layout, Node, Route, Spacing, layout};

fn graphs() -> impl Strategy<Value = Graph> {
    (1usize..24).prop_flat_map(|count| {
        let node = (20.0..200.0, 10.0..40.0);
        let nodes = prop::collection::vec(node, count);
        let arcs = prop::collection::vec((0..count, 0..count, 0.0..40.0), 0..60);
        (nodes, arcs).prop_map(|(nodes, arcs)| Graph {
            nodes: nodes
                .into_iter()
                .map(|(width, height)| Node { width, height })
                .collect(),
            arcs: arcs
                .into_iter()
                .map(|(from, to, width)| Arc { from, to, width })
                .collect(),
        })
    })
}

fn apart(layout: &Layout) -> bool {
    let overlap = |a: usize, b: usize| {
        let (a, b) = (&layout.places[a], &layout.places[b]);
        let slack = 1e-6;
        a.left < b.right() - slack
            && b.left < a.right() - slack
            && a.top < b.bottom() - slack
            && b.top < a.bottom() - slack
    };
    let count = layout.places.len();
    (0..count).all(|a| (0..a).all(|b| !overlap(a, b)))
}

proptest! {
    #[test]
    fn no_two_boxes_overlap_and_all_are_on_the_page(graph in graphs()) {
        let layout = layout(&graph, &Spacing::default());
        prop_assert!(apart(&layout));
        for place in &layout.places {
            prop_assert!(place.left >= 0.0 && place.top >= 0.0);
            prop_assert!(place.right() <= layout.width && place.bottom() <= layout.height);
        }
    }

    #[test]
    fn onward_arcs_lead_to_the_right_and_only_cycles_lead_back(graph in graphs()) {
        let layout = layout(&graph, &Spacing::default());
        for (arc, route) in graph.arcs.iter().zip(&layout.routes) {
            match route {
                Route::Own => prop_assert_eq!(arc.from, arc.to),
                Route::Onward(points) => {
                    prop_assert!(points.windows(2).all(|pair| pair[0].x <= pair[1].x));
                    prop_assert!(layout.layers[arc.from] < layout.layers[arc.to]);
                }
                Route::Back(_) => prop_assert!(reaches(&graph, arc.to, arc.from)),
            }
        }
    }

    #[test]
    fn the_same_graph_gives_the_same_picture(graph in graphs()) {
        let spacing = Spacing::default();
        prop_assert_eq!(layout(&graph, &spacing), layout(&graph, &spacing));
    }
}

fn reaches(graph: &Graph, from: usize, to: usize) -> bool {
    let mut seen = vec![false; graph.nodes.len()];
    let mut pending = vec![from];
    while let Some(node) = pending.pop() {
        if node == to {
            return true;
        }
        if !std::mem::replace(&mut seen[node], true) {
            pending.extend(graph.arcs.iter().filter(|a| a.from == node).map(|a| a.to));
        }
    }
    false
}

/// main -> { parse -> read, run -> { eval, read } }
fn program(run: f64) -> Graph {
    let arc = |from, to, width| Arc { from, to, width };
    Graph {
        nodes: vec![
            Node {
                width: 100.0,
                height: 30.0
            };
            5
        ],
        arcs: vec![
            arc(0, 1, 10.0),
            arc(0, 2, run),
            arc(1, 3, 8.0),
            arc(2, 4, 25.0),
            arc(2, 3, 4.0),
        ],
    }
}

#[test]
fn a_small_change_of_a_weight_moves_no_box_past_another() {
    let order = |layout: &Layout| {
        let mut nodes: Vec<usize> = (0..layout.places.len()).collect();
        nodes.sort_by(|&a, &b| {
            let key = |node: usize| (layout.layers[node], layout.places[node].top);
            key(a).partial_cmp(&key(b)).unwrap()
        });
        nodes
    };
    let spacing = Spacing::default();
    assert_eq!(
        order(&layout(&program(30.0), &spacing)),
        order(&layout(&program(31.0), &spacing))
    );
}

#[test]
fn an_arc_over_several_layers_runs_around_the_boxes_between() {
    let arc = |from, to| Arc {
        from,
        to,
        width: 6.0,
    };
    let graph = Graph {
        nodes: vec![
            Node {
                width: 80.0,
                height: 30.0
            };
            3
        ],
        arcs: vec![arc(0, 1), arc(1, 2), arc(0, 2)],
    };
    let layout = layout(&graph, &Spacing::default());
    let Route::Onward(points) = &layout.routes[2] else {
        panic!("{:?}", layout.routes[2]);
    };
    let between = &layout.places[1];
    for point in &points[1..points.len() - 1] {
        assert!(point.y + 3.0 <= between.top || point.y - 3.0 >= between.bottom());
    }
}

#[test]
fn an_empty_graph_has_no_size() {
    assert_eq!(
        layout(&Graph::default(), &Spacing::default()),
        Layout::default()
    );
}
