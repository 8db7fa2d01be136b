//! The node arena as a reader has it: a copy, checked link by link, because the target goes on.

use thalweg_model as model;
use thalweg_shm as shm;

use crate::error::{Error, Result};
use crate::memory::{Shared, zeroed};

/// A copy of the node arena.
pub(super) struct Nodes {
    start: u64,
    bytes: Vec<u8>,
    /// Those of contexts that found no room or were cut, by function; empty where there are none.
    folded: Vec<u8>,
    functions: u32,
    pub sites: bool,
}

impl Nodes {
    pub(super) fn read(shared: &Shared, header: &shm::Header) -> Result<Nodes> {
        let used = header.nodes_used.min(header.nodes_len);
        let folded = match has_folded(header) {
            true => u64::from(header.functions) * shm::NODE_SIZE,
            false => 0,
        };
        Ok(Nodes {
            start: header
                .base
                .wrapping_add(shm::PRIVATE_SIZE)
                .wrapping_add(header.nodes_offset),
            bytes: shared.read_vec(header.nodes_offset, used)?,
            folded: shared.read_vec(header.folded_offset, folded)?,
            functions: header.functions,
            sites: header.flags & shm::HEADER_SITES != 0,
        })
    }

    pub(super) fn at(&self, number: u64) -> Result<shm::Node> {
        self.decode(&self.bytes, number)
    }

    pub(super) fn folded(&self, function: u32) -> Result<shm::Node> {
        self.decode(&self.folded, function.into())
    }

    fn decode(&self, bytes: &[u8], number: u64) -> Result<shm::Node> {
        let from = (number * shm::NODE_SIZE) as usize;
        let bytes = bytes
            .get(from..from + shm::NODE_SIZE as usize)
            .ok_or_else(damaged)?;
        let word =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let half =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let mut node: shm::Node = zeroed();
        node.calls = word(0);
        node.cum = word(8);
        node.base = word(16);
        node.min = word(24) as i64;
        node.max = word(32) as i64;
        node.function = half(40);
        node.flags = half(44);
        node.unwound = half(48);
        node.first_child = half(52);
        node.sibling = half(56);
        if self.sites {
            node.children[shm::SITE_SLOT] = word(shm::NODE_SITE);
        }
        Ok(node)
    }

    pub(super) fn number_of(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.start)?;
        (offset % shm::NODE_SIZE == 0 && offset < self.bytes.len() as u64)
            .then_some(offset / shm::NODE_SIZE)
    }

    /// Visits every context below the root at `root`, parents first: number, node, parent's number (none for the
    /// outermost). Links that lead nowhere, as a reader may see while the tree grows, end the branch.
    pub(super) fn walk(
        &self,
        root: u64,
        mut visit: impl FnMut(u64, &shm::Node, Option<u64>),
    ) -> Result<()> {
        self.walk_all(root, |number, node, parent| {
            if node.function < self.functions {
                visit(number, node, parent);
            }
        })
    }

    /// The same with the system calls among the children of contexts.
    pub(super) fn walk_all(
        &self,
        root: u64,
        mut visit: impl FnMut(u64, &shm::Node, Option<u64>),
    ) -> Result<()> {
        // Claimed after the copy was made, or by a thread that found the arena full and has a root outside of it.
        let Some(root) = self.number_of(root) else {
            return Ok(());
        };
        let limit = self.bytes.len() as u64 / shm::NODE_SIZE;
        let mut visited = 0;
        let mut pending = vec![(u64::from(self.at(root)?.first_child), None)];
        while let Some((link, parent)) = pending.pop() {
            if link == 0 || link > limit {
                continue;
            }
            visited += 1;
            if visited > limit {
                return Err(damaged());
            }
            let number = link - 1;
            let node = self.at(number)?;
            pending.push((u64::from(node.sibling), parent));
            if node.function >= self.functions && shm::kernel::number(node.function).is_none() {
                continue;
            }
            visit(number, &node, parent);
            pending.push((u64::from(node.first_child), Some(number)));
        }
        Ok(())
    }
}

pub(super) fn has_folded(header: &shm::Header) -> bool {
    header.folded_calls > 0 || header.prune.cut_contexts > 0
}

fn damaged() -> Error {
    Error::Other("the trees that the target carries are damaged".into())
}

pub(super) fn pruned(header: &shm::Header) -> model::Pruned {
    model::Pruned {
        contexts: header.prune.cut_contexts,
        calls: header.prune.cut_calls,
    }
}
