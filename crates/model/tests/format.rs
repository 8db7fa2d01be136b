//! What goes into a file comes out of it; what is no whole profile is refused without harm.

mod common;

use common::{any_profile, body_of, file_of, realistic};
use proptest::prelude::*;
use thalweg_model::{
    FuncId, Function, Invalid, Node, Process, Profile, ReadError, SampleNode, Sampling, Thread,
    read, write,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_profile_comes_back_as_it_was(profile in any_profile()) {
        let bytes = write(&profile).unwrap();
        prop_assert_eq!(read(&mut bytes.as_slice()).unwrap(), profile);
    }

    #[test]
    fn every_cut_is_noticed(profile in any_profile(), cut in any::<prop::sample::Index>()) {
        let bytes = write(&profile).unwrap();
        let cut = &bytes[..cut.index(bytes.len())];
        prop_assert!(read(&mut &cut[..]).is_err());
    }

    #[test]
    fn every_flipped_bit_is_noticed(
        profile in any_profile(),
        place in any::<prop::sample::Index>(),
        bit in 0..8u32,
    ) {
        let mut bytes = write(&profile).unwrap();
        let place = place.index(bytes.len());
        bytes[place] ^= 1 << bit;
        prop_assert!(read(&mut bytes.as_slice()).is_err());
    }

    #[test]
    fn anything_behind_a_valid_signature_and_checksum_is_read_or_refused_but_never_panics(
        profile in any_profile(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let body = body_of(&write(&profile).unwrap());
        let mut body = body;
        for (place, value) in changes {
            let place = place.index(body.len());
            body[place] = value;
        }
        if let Ok(read_back) = read(&mut file_of(&body).as_slice()) {
            prop_assert_eq!(read_back.validate(), Ok(()));
        }
    }

    #[test]
    fn noise_is_refused(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(read(&mut noise.as_slice()).is_err());
        let _ = read(&mut file_of(&noise).as_slice());
    }
}

#[test]
fn a_node_of_a_large_tree_takes_less_than_eight_bytes() {
    let count = 100_000;
    let bytes = write(&realistic(count)).unwrap();
    let per_node = bytes.len() as f64 / count as f64;
    assert!(per_node < 8.0, "{per_node:.2} bytes a node");
}

#[test]
fn a_chain_of_a_million_calls_comes_back() {
    let mut profile = realistic(1);
    profile.processes[0].threads[0].nodes = (0..1_000_000u32)
        .map(|index| Node {
            parent: index.checked_sub(1),
            calls: 1,
            recursion: index,
            ..Node::default()
        })
        .collect();
    let bytes = write(&profile).unwrap();
    assert!(bytes.len() < 100_000, "{} bytes", bytes.len());
    assert!(read(&mut bytes.as_slice()).unwrap() == profile);
}

#[test]
fn a_section_of_a_later_version_is_passed_over() {
    let profile = realistic(10);
    let mut body = body_of(&write(&profile).unwrap());
    body.extend_from_slice(&[99, 3, 1, 2, 3]);
    assert_eq!(read(&mut file_of(&body).as_slice()).unwrap(), profile);
}

#[test]
fn another_format_version_is_named() {
    let mut file = write(&Profile::default()).unwrap();
    file[8] = 7;
    let error = read(&mut file.as_slice()).unwrap_err();
    assert!(matches!(error, ReadError::Version { found: 7, known: 1 }));
}

#[test]
fn text_and_nothing_are_not_profiles() {
    for other in [&b""[..], b"#!/bin/sh\n", b"\x7fELF\x02\x01\x01"] {
        let error = read(&mut &*other).unwrap_err();
        assert!(matches!(error, ReadError::NotAProfile), "{error}");
    }
}

#[test]
fn indices_that_lead_nowhere_are_refused_before_writing() {
    let with_node = |node: Node| Profile {
        processes: vec![Process {
            threads: vec![Thread {
                nodes: vec![node],
                ..Thread::default()
            }],
            ..Process::default()
        }],
        ..realistic(0)
    };
    assert!(write(&with_node(Node::default())).is_ok());

    let no_function = Node {
        function: FuncId(3000),
        ..Node::default()
    };
    assert!(matches!(
        write(&with_node(no_function)),
        Err(Invalid::FunctionOfNode { .. })
    ));

    let own_parent = Node {
        parent: Some(0),
        ..Node::default()
    };
    assert!(matches!(
        write(&with_node(own_parent)),
        Err(Invalid::ParentOfNode { .. })
    ));

    for (parent, function) in [(None, 3000), (Some(0), 0)] {
        let mut with_frame = with_node(Node::default());
        with_frame.processes[0].threads[0].samples = vec![SampleNode {
            parent,
            function: FuncId(function),
            ..SampleNode::default()
        }];
        assert!(matches!(write(&with_frame), Err(Invalid::Samples { .. })));
        with_frame.meta.sampling = Some(Sampling::default());
        assert!(matches!(write(&with_frame), Err(Invalid::Frame { .. })));
    }

    let no_module = Profile {
        functions: vec![Function::default()],
        ..Profile::default()
    };
    assert!(matches!(
        write(&no_module),
        Err(Invalid::ModuleOfFunction { .. })
    ));
}

/// The sections that files of the first version had.
const FIRST_SECTIONS: std::ops::RangeInclusive<u8> = 1..=6;

/// Tag and bytes, head included, of each section of a body. All tags are below 128, so a tag is one
/// byte.
fn sections(body: &[u8]) -> Vec<(u8, &[u8])> {
    let mut sections = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        let digits = 1 + rest[1..].iter().take_while(|byte| **byte >= 0x80).count();
        let length = (1..=digits).fold(0, |sum, at| {
            sum | usize::from(rest[at] & 0x7f) << (7 * (at - 1))
        });
        let (section, after) = rest.split_at(1 + digits + length);
        sections.push((section[0], section));
        rest = after;
    }
    sections
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_file_from_before_a_section_was_added_is_read_without_it(profile in any_profile()) {
        let body = body_of(&write(&profile).unwrap());
        let first: Vec<u8> = sections(&body)
            .into_iter()
            .filter(|(tag, _)| FIRST_SECTIONS.contains(tag))
            .flat_map(|(_, bytes)| bytes.to_vec())
            .collect();
        let mut old = read(&mut file_of(&first).as_slice()).unwrap();
        old.meta.costs = profile.meta.costs;
        old.recorded.clone_from(&profile.recorded);
        old.meta.metrics.clone_from(&profile.meta.metrics);
        old.meta.pruned = profile.meta.pruned;
        old.meta.held = profile.meta.held;
        old.meta.estimated = profile.meta.estimated;
        old.meta.sampling = profile.meta.sampling;
        old.meta.counting.clone_from(&profile.meta.counting);
        old.switched.clone_from(&profile.switched);
        old.sampled.clone_from(&profile.sampled);
        old.enters_kernel.clone_from(&profile.enters_kernel);
        old.cycles_of.clone_from(&profile.cycles_of);
        old.blocks.clone_from(&profile.blocks);
        old.block_counters.clone_from(&profile.block_counters);
        old.cycles_of.clone_from(&profile.cycles_of);
        for (old, new) in old.processes.iter_mut().zip(&profile.processes) {
            let threads = std::mem::take(&mut old.threads);
            old.clone_from(new);
            old.threads = threads;
            for (old, new) in old.threads.iter_mut().zip(&new.threads) {
                old.others = new.others;
                old.kernel = new.kernel;
                old.metrics.clone_from(&new.metrics);
                old.samples.clone_from(&new.samples);
                old.timeline.clone_from(&new.timeline);
                for (old, new) in old.nodes.iter_mut().zip(&new.nodes) {
                    old.unwound = new.unwound;
                    old.site = new.site;
                    old.terminal = new.terminal;
                    old.untimed = new.untimed;
                }
            }
        }
        for (old, new) in old.functions.iter_mut().zip(&profile.functions) {
            old.language = new.language;
            old.at_least = new.at_least;
            old.waits = new.waits;
        }
        old.sites.clone_from(&profile.sites);
        old.marks.clone_from(&profile.marks);
        prop_assert_eq!(old, profile);
    }
}

/// Written by the first version, and never again.
#[test]
fn the_oldest_file_there_is_can_be_read() {
    let bytes = include_bytes!("files/first.thalweg");
    let profile = read(&mut &bytes[..]).unwrap();
    assert_eq!(profile.meta.command, ["./fib", "20"]);
    let [first, second] = &profile.processes[0].threads[..] else {
        panic!("{:?}", profile.processes)
    };
    assert_eq!((first.nodes.len(), second.nodes.len()), (23, 1));
    let deepest = &first.nodes[20];
    assert_eq!(profile.functions[deepest.function].name, "fib");
    assert_eq!(
        (deepest.calls, deepest.self_ns, deepest.recursion),
        (1 << 19, 40 << 19, 19)
    );
    assert_eq!(second.created_by.map(|creator| creator.tid), Some(41));
    assert_eq!(profile.skipped[0].reason, "entry code");
}
