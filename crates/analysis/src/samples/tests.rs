//! Samples of any kind leave the counted tree as it is, and neither add time nor lose any; samples that are perfect bring back what is not counted.

use proptest::collection::vec;
use proptest::prelude::*;
use thalweg_model::{Language, Metric, ProbeCosts, ProbeState, Sampling, Site, SiteId, Switched};

use super::*;
use crate::fixture::{self, A, B, MAIN};
use crate::{arbitrary, flat};

const PERIOD: u64 = 10;

/// (parent, function, counted, samples)
type Seen = (Option<u32>, FuncId, bool, u64);

fn sample(profile: &mut Profile, seen: &[Seen]) {
    profile.meta.sampling = Some(Sampling {
        period_ns: PERIOD,
        samples: seen.iter().map(|(.., own)| own).sum(),
        ..Sampling::default()
    });
    profile.processes[0].threads[0].samples = frames(seen);
}

fn frames(seen: &[Seen]) -> Vec<SampleNode> {
    let frame = |&(parent, function, counted, own): &Seen| SampleNode {
        parent,
        function,
        counted,
        own,
    };
    seen.iter().map(frame).collect()
}

/// Each context as its path: calls, self, total, and whether samples had a part in it.
fn contexts(thread: &Thread) -> Vec<(Vec<FuncId>, u64, u64, u64, bool)> {
    let mut all: Vec<_> = arbitrary::paths(thread)
        .into_iter()
        .zip(&thread.nodes)
        .map(|(path, node)| {
            let sampled = node.flags.contains(NodeFlags::SAMPLED);
            (path, node.calls, node.self_ns, node.total_ns, sampled)
        })
        .collect();
    all.sort();
    all
}

const G: FuncId = FuncId(2);

#[test]
fn what_is_not_counted_has_its_time_and_the_counted_tree_stays() {
    // main 0 -> a 100 -> b 20, 5 calls; a calls g, which is off, and g calls b as well.
    let mut profile = fixture::chain(&[(MAIN, 0), (A, 100), (B, 20)]);
    profile.processes[0].threads[0].nodes[2].calls = 5;
    sample(
        &mut profile,
        &[
            (None, MAIN, true, 0),
            (Some(0), A, true, 25),
            (Some(1), G, false, 75),
            (Some(2), B, true, 9),
            (Some(1), B, true, 3),
        ],
    );
    assert!(attribute_samples(&mut profile));
    assert_eq!(
        contexts(&profile.processes[0].threads[0]),
        [
            (vec![MAIN], 1, 0, 120, false),
            (vec![MAIN, A], 1, 25, 120, true),
            (vec![MAIN, A, G], 0, 75, 75, true),
            (vec![MAIN, A, B], 5, 20, 20, false),
        ]
    );
    profile.validate().unwrap();
    let g = profile
        .sampled
        .iter()
        .find(|one| one.function == G)
        .unwrap();
    assert_eq!((g.own, g.on_stack), (75, 84));
    // Nine of the twelve samples at b came through g, though b is counted below a.
    assert_eq!(g.through_ns, 15);
    let g_row = flat(&profile).into_iter().find(|row| row.function == G);
    assert_eq!(
        g_row.map(|row| (row.self_ns, row.total_ns, row.through)),
        Some((75, 90, 15))
    );
    // 112 samples of about a nanosecond, of which 75: twice five by chance.
    assert!((10..=14).contains(&g.error_ns), "{g:?}");
    let before = profile.clone();
    assert!(!attribute_samples(&mut profile), "once is enough");
    assert_eq!(profile, before);
}

/// Functions with 1,000 ns of own time and most of the time in probes: the clock knows nothing, samples do.
#[test]
fn where_the_probes_cost_hides_whose_time_it_was_samples_tell() {
    const MS: u64 = 1_000_000;
    let mut profile = fixture::chain(&[(MAIN, 0), (A, 0), (B, 1000 * MS)]);
    for node in &mut profile.processes[0].threads[0].nodes[1..] {
        node.calls = 50_000_000;
    }
    profile.meta.costs = Some(ProbeCosts {
        inner_ns: 8.0,
        outer_ns: 9.0,
        error: 0.07,
        spread: 0.3,
        taken_out: true,
        ..ProbeCosts::default()
    });
    sample(
        &mut profile,
        &[
            (None, MAIN, true, 0),
            (Some(0), A, true, 5000),
            (Some(1), B, true, 5000),
        ],
    );
    assert!(attribute_samples(&mut profile));
    let rows = flat(&profile);
    let row = |function| *rows.iter().find(|row| row.function == function).unwrap();
    let (a, b) = (row(A), row(B));
    assert!(a.self_ns.abs_diff(500 * MS) < 50 * MS, "{a:?}");
    // Probes took most of the time, and may have slowed one of them down more than the other.
    assert!(a.error > 100 * MS, "{a:?}");
    assert_eq!(row(MAIN).self_ns + a.self_ns + b.self_ns, 1000 * MS);
}

/// main is timed; it has 900 ms, in which a (10 calls of 100 were timed) and b (none) are called.
#[test]
fn what_is_only_counted_has_its_time_by_samples_and_the_clock_has_their_sum() {
    const MS: u64 = 1_000_000;
    let mut profile = fixture::chain(&[(MAIN, 600 * MS), (A, 300 * MS), (B, 0)]);
    let nodes = &mut profile.processes[0].threads[0].nodes;
    (nodes[1].calls, nodes[1].untimed) = (100, 90);
    (nodes[1].min, nodes[1].max) = (MS, 60 * MS);
    (nodes[2].calls, nodes[2].untimed, nodes[2].max) = (1000, 1000, 0);
    sample(
        &mut profile,
        &[
            (None, MAIN, true, 300),
            (Some(0), A, true, 300),
            (Some(1), B, true, 300),
        ],
    );
    assert!(attribute_samples(&mut profile));
    let nodes = &profile.processes[0].threads[0].nodes;
    let self_times: Vec<u64> = nodes.iter().map(|node| node.self_ns / MS).collect();
    assert_eq!(nodes[0].total_ns, 900 * MS);
    assert!(self_times[2].abs_diff(300) < 40, "{self_times:?}");
    assert!(self_times[1].abs_diff(300) < 40, "{self_times:?}");
    assert!(nodes[2].flags.contains(NodeFlags::SAMPLED));
    assert_eq!(nodes[2].calls, 1000);
}

/// The activation that was running when its function went off is a context to its end.
#[test]
fn what_a_call_called_that_lasts_from_before_its_function_went_off_stays_below_it() {
    let second = 1_000_000_000;
    let mut profile = fixture::chain(&[(MAIN, 0), (A, 4 * second), (B, second)]);
    sample(
        &mut profile,
        &[
            (None, MAIN, true, 0),
            (Some(0), A, true, 20),
            (Some(1), G, false, 60),
            (Some(0), A, false, 0),
            (Some(3), B, true, 20),
        ],
    );
    assert!(attribute_samples(&mut profile));
    assert_eq!(
        contexts(&profile.processes[0].threads[0]),
        [
            (vec![MAIN], 1, 0, 5 * second, false),
            (vec![MAIN, A], 1, second, 5 * second, true),
            (vec![MAIN, A, G], 0, 3 * second, 3 * second, true),
            (vec![MAIN, A, B], 1, second, second, false),
        ]
    );
}

/// a jumps to b at its end: the stack has main -> b.
#[test]
fn who_jumped_is_not_on_the_stack_and_is_found_all_the_same() {
    let second = 1_000_000_000;
    let mut profile = fixture::chain(&[(MAIN, second), (A, 0), (B, 3 * second)]);
    let seen = [
        (None, MAIN, true, 10),
        (Some(0), B, true, 10),
        (Some(1), G, false, 20),
    ];
    sample(&mut profile, &seen);
    assert!(attribute_samples(&mut profile));
    assert_eq!(
        contexts(&profile.processes[0].threads[0]),
        [
            (vec![MAIN], 1, second, 4 * second, false),
            (vec![MAIN, A], 1, 0, 3 * second, false),
            (vec![MAIN, A, B], 1, second, 3 * second, true),
            (vec![MAIN, A, B, G], 0, 2 * second, 2 * second, true),
        ]
    );
}

/// b stands below a and below main; this stack has lost its outer part, and begins with a.
#[test]
fn a_stack_that_was_cut_short_lands_on_the_path_that_is_most_like_it() {
    let mut profile = fixture::branching();
    let nodes = &mut profile.processes[0].threads[0].nodes;
    nodes[3].calls = 1000;
    let seen = [(None, A, true, 0), (Some(0), B, true, 4)];
    let fitted = fit::fit(nodes, &frames(&seen), &Runtime::default());
    let own: Vec<f64> = fitted.places.iter().map(|place| place.own).collect();
    assert_eq!(own, [0.0, 0.0, 4.0, 0.0]);
    // With nothing but b, it is either of them, by their time.
    let fitted = fit::fit(
        nodes,
        &frames(&[(None, G, false, 0), (Some(0), B, true, 4)]),
        &Runtime::default(),
    );
    let own = [2, 3].map(|place| fitted.places[place].own * 70.0);
    assert_eq!(own, [4.0 * 20.0, 4.0 * 50.0]);
}

/// main -> a -> b, main -> g -> main: a and g are Python functions, for which stacks have the evaluator.
#[test]
fn an_evaluators_frame_is_that_of_a_python_function_that_fits_what_it_calls() {
    const EVALUATOR: FuncId = FuncId(4);
    let mut profile = fixture::chain(&[(MAIN, 100), (A, 30), (B, 20)]);
    profile.functions.push(Function {
        name: "_PyEval_EvalFrameDefault".into(),
        ..profile.functions[0].clone()
    });
    for function in [A, G] {
        profile.functions[function].language = Language::Python;
    }
    let nodes = &mut profile.processes[0].threads[0].nodes;
    let node = |parent, function, base| Node {
        parent: Some(parent),
        function,
        self_ns: base,
        total_ns: base,
        ..nodes[2]
    };
    let more = [node(0, G, 100), node(3, MAIN, 50)];
    nodes.extend(more);
    nodes[3].total_ns = 150;
    nodes[0].total_ns = 300;
    let seen = [
        (None, MAIN, true, 0),
        (Some(0), EVALUATOR, true, 40),
        (Some(1), B, true, 3),
        (Some(1), MAIN, true, 5),
        (Some(1), A, false, 8),
    ];
    let runtime = Runtime::from_profile(&profile);
    let nodes = &profile.processes[0].threads[0].nodes;
    let fitted = fit::fit(nodes, &frames(&seen), &runtime);
    let own: Vec<f64> = fitted.places.iter().map(|place| place.own).collect();
    // 50 and 150 ns of main's, so a quarter is a's; where nothing tells, of what they call too.
    assert_eq!(own, [0.0, 10.0, 3.0, 30.0, 5.0, 6.0, 2.0]);
    assert_eq!(fitted.not_attributed, 0.0);
}

/// The clock knows half of a's time to be doubtful; a tenth of the samples are at b, which was counted and never called.
#[test]
fn what_fits_nowhere_is_nobodys() {
    const MS: u64 = 1_000_000;
    let mut profile = fixture::chain(&[(MAIN, 0), (A, 1000 * MS)]);
    profile.processes[0].threads[0].nodes[1].calls = 100_000_000;
    profile.meta.costs = Some(ProbeCosts {
        outer_ns: 10.0,
        inner_ns: 10.0,
        error: 0.5,
        taken_out: true,
        ..ProbeCosts::default()
    });
    sample(
        &mut profile,
        &[
            (None, MAIN, true, 0),
            (Some(0), A, true, 9000),
            (Some(1), B, true, 1000),
            (Some(2), G, false, 0),
        ],
    );
    let functions = profile.functions.len();
    assert!(attribute_samples(&mut profile));
    profile.validate().unwrap();
    assert_eq!(profile.functions[functions].name, NOT_ATTRIBUTED);
    let nodes = &profile.processes[0].threads[0].nodes;
    let nobodys = nodes.last().unwrap();
    assert_eq!(
        (nobodys.function.index(), nobodys.calls, nobodys.parent),
        (functions, 0, None)
    );
    assert!(nobodys.self_ns.abs_diff(100 * MS) < 20 * MS, "{nobodys:?}");
    assert!(
        !nodes.iter().any(|node| node.function == B),
        "no edge from a to b"
    );
}

#[test]
fn stacks_on_which_nothing_is_counted_are_time_that_no_context_had() {
    let mut profile = fixture::chain(&[(A, 100)]);
    sample(
        &mut profile,
        &[
            (None, MAIN, false, 2),
            (Some(0), G, false, 3),
            (Some(1), A, true, 4),
        ],
    );
    profile.switched.push(Switched {
        function: G,
        state: ProbeState::Off,
        ..Switched::default()
    });
    assert!(attribute_samples(&mut profile));
    assert_eq!(
        contexts(&profile.processes[0].threads[0]),
        [
            (vec![MAIN], 0, 2 * PERIOD, 5 * PERIOD, true),
            (vec![MAIN, G], 0, 3 * PERIOD, 3 * PERIOD, true),
            (vec![A], 1, 100, 100, false),
        ]
    );
}

#[test]
fn what_was_not_looked_at_stays_as_it_was() {
    let mut profile = fixture::branching();
    assert!(!attribute_samples(&mut profile));
    sample(
        &mut profile,
        &[(None, MAIN, true, 1), (Some(0), A, true, 4)],
    );
    let before = profile.clone();
    assert!(attribute_samples(&mut profile));
    assert_eq!(
        contexts(&profile.processes[0].threads[0]),
        contexts(&before.processes[0].threads[0])
    );
    assert!(profile.sampled.is_empty());

    // Without a clock there is nothing to divide.
    profile = before;
    profile.meta.timed = false;
    assert!(!attribute_samples(&mut profile));
}

#[test]
fn what_looks_cost_is_taken_out_of_everything_alike() {
    let mut profile = fixture::chain(&[(MAIN, 0), (A, 300_000), (B, 700_000)]);
    sample(
        &mut profile,
        &[
            (None, MAIN, true, 0),
            (Some(0), A, true, 30),
            (Some(1), B, true, 70),
        ],
    );
    profile.meta.costs = Some(ProbeCosts {
        sample_ns: 500.0,
        taken_out: true,
        ..ProbeCosts::default()
    });
    assert!(attribute_samples(&mut profile));
    let nodes = &profile.processes[0].threads[0].nodes;
    assert!(nodes[1].self_ns.abs_diff(285_000) < 100, "{nodes:?}");
    assert!(nodes[2].self_ns.abs_diff(665_000) < 100, "{nodes:?}");
    assert_eq!(nodes[0].total_ns, 950_000);
}

#[test]
fn what_is_off_for_a_while_is_one_context() {
    let mut profile = fixture::chain(&[(MAIN, 100), (A, 50), (B, 10)]);
    let nodes = &mut profile.processes[0].threads[0].nodes;
    (nodes[1].calls, nodes[2].calls) = (1000, 1000);
    sample(
        &mut profile,
        &[
            (None, MAIN, true, 2),
            (Some(0), A, true, 5),
            (Some(1), B, true, 1),
            (Some(0), A, false, 6),
            (Some(3), B, false, 2),
        ],
    );
    assert!(attribute_samples(&mut profile));
    assert_eq!(
        contexts(&profile.processes[0].threads[0]),
        [
            (vec![MAIN], 1, 20, 160, true),
            (vec![MAIN, A], 1000, 110, 140, true),
            (vec![MAIN, A, B], 1000, 30, 30, true),
        ]
    );
}

#[test]
fn contexts_without_room_are_looked_at_where_their_figures_are() {
    let mut profile = fixture::chain(&[(MAIN, 10)]);
    fixture::fold(&mut profile, A, 7, 40);
    sample(
        &mut profile,
        &[
            (None, MAIN, true, 1),
            (Some(0), A, true, 1),
            (Some(1), G, false, 3),
        ],
    );
    assert!(attribute_samples(&mut profile));
    assert_eq!(
        contexts(&profile.processes[0].threads[0]),
        [
            (vec![MAIN], 1, 10, 10, false),
            (vec![A], 7, 10, 40, true),
            (vec![A, G], 0, 30, 30, true),
        ]
    );
}

#[test]
fn contexts_that_call_sites_tell_apart_share_the_looks() {
    // main 0 -> a 30 (at one place), a 10 (at another)
    let mut profile = fixture::chain(&[(MAIN, 0), (A, 30)]);
    profile.sites = vec![Site::default(); 2];
    let nodes = &mut profile.processes[0].threads[0].nodes;
    nodes[1].site = SiteId::from_index(0);
    nodes.push(Node {
        site: SiteId::from_index(1),
        self_ns: 10,
        total_ns: 10,
        ..nodes[1]
    });
    nodes[0].total_ns = 40;
    sample(
        &mut profile,
        &[
            (None, MAIN, true, 0),
            (Some(0), A, true, 1),
            (Some(1), G, false, 1),
        ],
    );
    assert!(attribute_samples(&mut profile));
    assert_eq!(
        contexts(&profile.processes[0].threads[0]),
        [
            (vec![MAIN], 1, 0, 40, false),
            (vec![MAIN, A], 1, 5, 10, true),
            (vec![MAIN, A], 1, 15, 30, true),
            (vec![MAIN, A, G], 0, 5, 5, true),
            (vec![MAIN, A, G], 0, 15, 15, true),
        ]
    );
}

/// main calls g, which is not counted, and which calls itself.
#[test]
fn looks_at_one_below_itself_count_once() {
    let mut profile = fixture::chain(&[(MAIN, 100)]);
    sample(
        &mut profile,
        &[
            (None, MAIN, true, 2),
            (Some(0), G, false, 3),
            (Some(1), G, false, 5),
        ],
    );
    assert!(attribute_samples(&mut profile));
    let thread = &profile.processes[0].threads[0];
    let levels: Vec<u32> = thread.nodes.iter().map(|node| node.recursion).collect();
    assert_eq!(levels, [0, 0, 1]);
    let sampled = profile.sampled.iter().find(|one| one.function == G);
    let sampled = sampled.expect("it was seen");
    assert_eq!((sampled.own, sampled.on_stack), (8, 8));
    let rows = flat(&profile);
    let row = rows.iter().find(|row| row.function == G);
    let times = row.map(|row| (row.self_ns, row.total_ns));
    assert_eq!(times, Some((80, 80)));
}

/// What a program really does: parent, function, own time in samples.
type Truth = Vec<(Option<u32>, FuncId, u64)>;

fn function(numbers: std::ops::Range<u32>) -> impl Strategy<Value = FuncId> {
    numbers.prop_map(FuncId)
}

fn truth() -> impl Strategy<Value = Truth> {
    let parent = prop_oneof![1 => Just(None), 7 => any::<u32>().prop_map(Some)];
    vec((parent, function(0..6), 0..9u64), 1..40).prop_map(|raw| {
        let mut truth: Truth = vec![(None, FuncId(0), 1)];
        for (parent, function, own) in raw {
            let parent = Some(parent.unwrap_or(0) % truth.len() as u32);
            if !truth.iter().any(|t| (t.0, t.1) == (parent, function)) {
                truth.push((parent, function, own));
            }
        }
        truth
    })
}

/// Adds to a thread what events and samples tell of one run of the program with some functions off.
fn run(truth: &Truth, off: &HashSet<FuncId>, thread: &mut Thread) {
    let mut contexts: Vec<Option<u32>> = Vec::new();
    let mut frames: Vec<SampleNode> = Vec::new();
    for (index, &(parent, function, own)) in truth.iter().enumerate() {
        let above = parent.and_then(|parent| contexts[parent as usize]);
        let counted = !off.contains(&function);
        frames.push(SampleNode {
            parent,
            function,
            counted,
            own,
        });
        let context = if counted {
            let same = |node: &Node| (node.parent, node.function) == (above, function);
            let place = thread.nodes.iter().position(same).unwrap_or_else(|| {
                thread.nodes.push(Node {
                    parent: above,
                    function,
                    ..Node::default()
                });
                thread.nodes.len() - 1
            });
            thread.nodes[place].calls += 1000 + index as u64;
            Some(place as u32)
        } else {
            above
        };
        contexts.push(context);
        let node = &mut thread.nodes[context.unwrap() as usize];
        node.self_ns += own * PERIOD;
    }
    thread.add_samples(&frames);
}

fn add_up(nodes: &mut [Node]) {
    for index in (0..nodes.len()).rev() {
        nodes[index].total_ns += nodes[index].self_ns;
        nodes[index].wall_ns = nodes[index].total_ns;
        if let Some(parent) = nodes[index].parent {
            nodes[parent as usize].total_ns += nodes[index].total_ns;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The program runs three times: with everything counted, and with two choices of functions off. Each context has the calls that were
    /// counted in it, and each function the time that it took.
    #[test]
    fn perfect_samples_bring_back_what_is_not_counted(
        truth in truth(),
        offs in vec(vec(function(1..6), 0..5), 2),
    ) {
        let mut profile = fixture::chain(&[(MAIN, 0)]);
        profile.functions = vec![profile.functions[0].clone(); 6];
        sample(&mut profile, &[]);
        let thread = &mut profile.processes[0].threads[0];
        thread.nodes.clear();
        let runs: Vec<HashSet<FuncId>> = std::iter::once(HashSet::new())
            .chain(offs.into_iter().map(HashSet::from_iter))
            .collect();
        for off in &runs {
            run(&truth, off, thread);
        }
        add_up(&mut thread.nodes);
        let before = profile.clone();
        attribute_samples(&mut profile);
        prop_assert_eq!(edges(&profile), edges(&before));

        let mut wanted: BTreeMap<FuncId, u64> = BTreeMap::new();
        for (_, function, own) in &truth {
            *wanted.entry(*function).or_default() += own * runs.len() as u64 * PERIOD;
        }
        for row in flat(&profile) {
            let wanted = wanted[&row.function];
            // A sample may have two paths to land on, and then takes the time of one of them along.
            let whole: u64 = truth.iter().map(|(.., own)| own * runs.len() as u64 * PERIOD).sum();
            prop_assert!(row.self_ns <= whole);
            if offs_nothing(&runs) {
                prop_assert_eq!(row.self_ns, wanted);
            }
        }
    }

    /// Functions are off all the time: what they call is counted below their callers. Own times and totals are those of the program.
    #[test]
    fn totals_of_what_is_off_have_what_was_called_through_it(
        truth in truth(),
        off in vec(function(1..6), 0..5),
    ) {
        let mut profile = fixture::chain(&[(MAIN, 0)]);
        profile.functions = vec![profile.functions[0].clone(); 6];
        sample(&mut profile, &[]);
        let thread = &mut profile.processes[0].threads[0];
        thread.nodes.clear();
        run(&truth, &HashSet::from_iter(off), thread);
        add_up(&mut thread.nodes);
        attribute_samples(&mut profile);

        let mut wanted = [(0, 0); 6];
        for (index, &(_, function, own)) in truth.iter().enumerate() {
            wanted[function.index()].0 += own * PERIOD;
            let above = |at: &usize| truth[*at].0.map(|parent| parent as usize);
            let path = std::iter::successors(Some(index), above);
            let on_stack: HashSet<FuncId> = path.map(|at| truth[at].1).collect();
            on_stack.iter().for_each(|&f| wanted[f.index()].1 += own * PERIOD);
        }
        for row in flat(&profile) {
            let (self_ns, total_ns) = wanted[row.function.index()];
            // Whole nanoseconds, in each place.
            let is_near = |is: u64, wanted: u64| is.abs_diff(wanted) <= truth.len() as u64;
            prop_assert!(is_near(row.self_ns, self_ns), "{:?} {}", row, self_ns);
            prop_assert!(is_near(row.total_ns, total_ns), "{:?} {}", row, total_ns);
        }
    }

    /// Whatever was seen, and however little it has to do with what was counted: calls of every edge are what was counted, no context of a
    /// function that was counted all along has none, and no time is added or lost.
    #[test]
    fn the_counted_tree_stays_and_no_time_is_added_or_lost(
        mut profile in arbitrary::program(),
        seen in vec((any::<u32>(), function(0..8), any::<bool>(), 0..20u64), 0..60),
        untimed in vec(0..4u64, 25),
        switched in any::<bool>(),
        calibrated in any::<bool>(),
    ) {
        for name in ["skipped", "small"] {
            let function = thalweg_model::Function { name: name.into(), ..profile.functions[0].clone() };
            profile.functions.push(function);
        }
        // The last two are not patched; the others are on, unless some were switched.
        let seen: Vec<Seen> = (0..)
            .zip(seen)
            .map(|(index, (parent, function, counted, own))| {
                let parent = (index > 0 && parent % 8 > 0).then(|| parent % index);
                let counted = function < FuncId(6) && (counted || !switched);
                (parent, function, counted, own)
            })
            .collect();
        sample(&mut profile, &seen);
        for (node, untimed) in profile.processes[0].threads[0].nodes.iter_mut().zip(untimed) {
            node.untimed = untimed.min(node.calls);
        }
        if switched {
            profile.switched = (0..6).map(|function| Switched { function: FuncId(function), off_ns: 1, ..Switched::default() }).collect();
        }
        if calibrated {
            profile.meta.costs = Some(ProbeCosts { inner_ns: 3.0, outer_ns: 4.0, error: 0.2, spread: 0.1, taken_out: true, ..ProbeCosts::default() });
        }
        let before = profile.clone();
        attribute_samples(&mut profile);
        prop_assert_eq!(profile.validate(), Ok(()));
        prop_assert_eq!(edges(&profile), edges(&before));

        let (was, is) = (&before.processes[0].threads[0], &profile.processes[0].threads[0]);
        for node in &is.nodes {
            prop_assert!(node.calls > 0 || switched || node.function >= FuncId(6), "{:?}", node);
        }
        let self_ns = |thread: &Thread| thread.nodes.iter().map(|node| node.self_ns).sum::<u64>();
        let roots = |thread: &Thread| -> u64 {
            let roots = thread.nodes.iter().filter(|node| node.parent.is_none());
            roots.map(|node| node.total_ns).sum()
        };
        // Stacks of which nothing is counted are new.
        let mut uncounted = Vec::new();
        for (parent, _, counted, _) in &seen {
            let above = parent.is_none_or(|parent| uncounted[parent as usize]);
            uncounted.push(above && !counted);
        }
        let new: u64 = seen.iter().zip(&uncounted).filter(|(_, new)| **new).map(|((.., own), _)| own * PERIOD).sum();
        prop_assert!((self_ns(was)..=self_ns(was) + new + 1).contains(&self_ns(is)), "{} {} {}", self_ns(was), new, self_ns(is));
        prop_assert_eq!(i128::from(self_ns(is)) - i128::from(self_ns(was)), i128::from(roots(is)) - i128::from(roots(was)));
        prop_assert_eq!(is.metrics.total(), was.metrics.total());
        for node in &is.nodes {
            let folded = node.flags.contains(NodeFlags::FOLDED);
            prop_assert!(node.total_ns >= node.self_ns && (folded || node.wall_ns >= node.total_ns));
        }
        let rows = flat(&profile);
        for before in flat(&before) {
            let row = rows.iter().find(|row| row.function == before.function).unwrap();
            prop_assert_eq!(row.calls, before.calls);
            prop_assert_eq!(row.waited, before.waited);
            let bytes = |row: &crate::FunctionTotals| row.metrics.get(Metric::AllocBytes);
            prop_assert_eq!(bytes(row), bytes(&before));
        }
    }
}

/// Calls of each caller and callee, where there are any; and those of each context.
fn edges(profile: &Profile) -> BTreeMap<(Vec<FuncId>, bool), u64> {
    let mut edges = BTreeMap::new();
    for (_, thread) in crate::threads(profile) {
        for (path, node) in arbitrary::paths(thread).into_iter().zip(&thread.nodes) {
            if node.calls > 0 {
                let folded = node.flags.contains(NodeFlags::FOLDED);
                *edges.entry((path, folded)).or_default() += node.calls;
            }
        }
    }
    edges
}

fn offs_nothing(runs: &[HashSet<FuncId>]) -> bool {
    runs.iter().all(HashSet::is_empty)
}
