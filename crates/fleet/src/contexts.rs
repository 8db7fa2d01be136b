//! Contexts by names that all hosts agree on: a hash of the functions on the way from the root.
//!
//! ```text
//! path(context) = hash(path(parent), key(function), folded)
//! key(function) = hash(build id, or the module's name; address, or where there is none, name, file and line)
//! ```
//!
//! Figures do not hold the hash, which nothing compresses, but a number: where the context stands in a *tree*, an object of
//! contexts that is written once and never changed. A profile refers to the trees that its service and release has
//! already, and brings one more for contexts that none of them has.

use std::collections::HashMap;

use anyhow::bail;
use thalweg_model::{FuncId, Function, Module, NodeFlags, Profile, Thread};
use xxhash_rust::xxh3::Xxh3;

/// A context, the same on every host. Signed, as engines have no other numbers in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathHash(pub i64);

/// Where a context's row is: an object of contexts, and the number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub tree: i64,
    pub node: i32,
}

/// One row of `contexts`.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    pub path: PathHash,
    pub parent: Option<PathHash>,
    pub depth: i32,
    /// The same function does not stand above it: its total counts in sums over functions.
    pub outermost: bool,
    pub folded: bool,
    /// Index into the profile's functions.
    pub function: FuncId,
}

/// All contexts of a profile, parents before children, and of each thread which its nodes are.
pub struct Contexts {
    pub all: Vec<Context>,
    pub by_thread: Vec<Vec<u32>>,
}

impl Contexts {
    pub fn of(profile: &Profile) -> anyhow::Result<Contexts> {
        let keys: Vec<u64> = profile
            .functions
            .iter()
            .map(|f| key(f, &profile.modules[f.module as usize]))
            .collect();
        let mut contexts = Contexts {
            all: Vec::new(),
            by_thread: Vec::new(),
        };
        let mut numbers: HashMap<PathHash, u32> = HashMap::new();
        for (_, thread) in thalweg_analysis::threads(profile) {
            let of_thread = contexts.add(thread, &keys, &mut numbers)?;
            contexts.by_thread.push(of_thread);
        }
        Ok(contexts)
    }

    fn add(
        &mut self,
        thread: &Thread,
        keys: &[u64],
        numbers: &mut HashMap<PathHash, u32>,
    ) -> anyhow::Result<Vec<u32>> {
        let mut of_thread: Vec<u32> = Vec::with_capacity(thread.nodes.len());
        for node in &thread.nodes {
            let above = node
                .parent
                .map(|parent| self.all[of_thread[parent as usize] as usize]);
            let folded = node.flags.contains(NodeFlags::FOLDED);
            let path = path(
                above.map(|above| above.path),
                keys[node.function.index()],
                folded,
            );
            let context = Context {
                path,
                parent: above.map(|above| above.path),
                depth: above.map_or(0, |above| above.depth.saturating_add(1)),
                outermost: node.recursion == 0 || folded && node.parent.is_none(),
                folded,
                function: node.function,
            };
            let next = self.all.len() as u32;
            let number = *numbers.entry(path).or_insert(next);
            if number == next {
                self.all.push(context);
            } else {
                let known = &self.all[number as usize];
                let same = keys[known.function.index()] == keys[node.function.index()];
                if known.parent != context.parent || !same {
                    bail!(
                        "two different contexts of this profile have the same hash: it cannot be stored exactly"
                    );
                }
            }
            of_thread.push(number);
        }
        Ok(of_thread)
    }
}

fn path(parent: Option<PathHash>, key: u64, folded: bool) -> PathHash {
    let mut hash = Xxh3::new();
    if let Some(parent) = parent {
        hash.update(&parent.0.to_le_bytes());
    }
    hash.update(&key.to_le_bytes());
    hash.update(&[folded.into()]);
    PathHash(hash.digest() as i64)
}

fn key(function: &Function, module: &Module) -> u64 {
    let mut hash = Xxh3::new();
    let mut text = |text: &str| {
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    match module.build_id.is_empty() {
        true => text(&module.name),
        false => text(&module.build_id),
    }
    if function.address == 0 || module.build_id.is_empty() {
        text(&function.name);
        text(function.file.as_deref().unwrap_or_default());
        hash.update(&function.line.to_le_bytes());
    }
    hash.update(&function.address.to_le_bytes());
    hash.digest()
}
