//! What the formats that know stacks, and no trees, have in common: each context as the chain of
//! functions above it.

use thalweg_analysis::Bounds;
use thalweg_model::{FuncId, Node, Profile, Thread};

/// Such formats spell out every stack from top to bottom, so a deep recursion takes the square of
/// its depth.
const MAX_FRAMES: u64 = 400_000_000;

/// The profile's stacks written out would fill any disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this profile is too deep for a format of stacks: written out they have {frames} frames; \
     firefox, callgrind, csv, parquet and json hold it"
)]
pub struct TooDeep {
    frames: u64,
}

pub fn check_depth(profile: &Profile) -> Result<(), TooDeep> {
    let mut frames = 0u64;
    let mut levels = Vec::new();
    for thread in profile
        .processes
        .iter()
        .flat_map(|process| &process.threads)
    {
        levels.clear();
        for node in &thread.nodes {
            let level: u64 = 1 + node.parent.map_or(0, |parent| levels[parent as usize]);
            levels.push(level);
            frames = frames.saturating_add(level);
        }
    }
    if frames > MAX_FRAMES {
        return Err(TooDeep { frames });
    }
    Ok(())
}

/// The functions of a context, the innermost first.
pub fn innermost_first<'a>(
    thread: &'a Thread,
    node: &'a Node,
) -> impl Iterator<Item = FuncId> + 'a {
    std::iter::successors(Some(node), |node| {
        node.parent.map(|parent| &thread.nodes[parent as usize])
    })
    .map(|node| node.function)
}

/// The functions of a context, the outermost first.
pub fn outermost_first(thread: &Thread, node: &Node) -> Vec<FuncId> {
    let mut stack: Vec<FuncId> = innermost_first(thread, node).collect();
    stack.reverse();
    stack
}

/// The command; and where calls are the weights, that some are lower bounds.
pub fn title(profile: &Profile) -> String {
    let command = profile.meta.command.join(" ");
    match unmarked_bounds(profile) {
        Some(note) => format!("{command} ({note})"),
        None => command,
    }
}

/// What those must be told who see calls as weights, without a mark.
pub fn unmarked_bounds(profile: &Profile) -> Option<String> {
    let note = Bounds::from_profile(profile).note(profile);
    note.filter(|_| !profile.meta.timed)
}

/// The one figure of formats that have one: time in the function itself, or its calls where nothing
/// was timed.
pub fn own_weight(profile: &Profile, node: &Node) -> u64 {
    match profile.meta.timed {
        true => node.self_ns,
        false => node.calls,
    }
}

/// A name for a thread that a person recognises; two threads may have the same.
pub fn thread_name(thread: &Thread) -> String {
    match thread.name.is_empty() {
        true => format!("thread {}", thread.tid),
        false => thread.name.clone(),
    }
}
