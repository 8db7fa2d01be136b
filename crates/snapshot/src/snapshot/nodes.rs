//! The node arena as a reader has it: a copy, checked link by link, because the target goes on.
//!
//! ```text
//!   parent --first child--> new --sibling--> old --sibling--> older       a new context goes before the others
//! ```
//!
//! So a context that was made while the copy was, and is not in it, or not yet with its link, stands between the copy and all older
//! ones beside it. Such a one is read where it is.

use std::cell::{Cell, RefCell};

use thalweg_abi as shm;
use thalweg_model as model;

use crate::error::{Error, Result};
use crate::memory::{FromBytes, Shared};

/// A copy of the node arena.
pub(super) struct Nodes<'a> {
    shared: &'a Shared,
    start: u64,
    /// In the shared memory; and how many nodes there is room for.
    offset: u64,
    room: u64,
    bytes: Vec<u8>,
    /// Those of contexts that found no room or were cut, by function; empty where there are none.
    folded: Vec<u8>,
    functions: u32,
    pub sites: bool,
    /// A bit for each node that was visited: it is in one tree, at one place.
    visited: RefCell<Vec<u64>>,
    /// A link led to a node that was visited before.
    tangled: Cell<bool>,
}

impl<'a> Nodes<'a> {
    pub(super) fn read(shared: &'a Shared, header: &shm::Header) -> Result<Nodes<'a>> {
        let used = header.nodes_used;
        let room = header.nodes_len / shm::NODE_SIZE;
        let folded = match has_folded(header) {
            true => u64::from(header.functions) * shm::NODE_SIZE,
            false => 0,
        };
        Ok(Nodes {
            shared,
            offset: header.nodes_offset,
            room,
            start: header
                .base
                .wrapping_add(shm::PRIVATE_SIZE)
                .wrapping_add(header.nodes_offset),
            bytes: shared.read_vec(header.nodes_offset, used)?,
            folded: shared.read_vec(header.folded_offset, folded)?,
            functions: header.functions,
            sites: header.flags & shm::HEADER_SITES != 0,
            visited: RefCell::new(vec![0; room.div_ceil(64) as usize]),
            tangled: Cell::new(false),
        })
    }

    /// Those of contexts that found no room or were cut, and no others.
    pub(super) fn read_folded(shared: &'a Shared, header: &shm::Header) -> Result<Nodes<'a>> {
        let none = shm::Header {
            nodes_used: 0,
            ..*header
        };
        Nodes::read(shared, &none)
    }

    pub(super) fn copied(&self) -> usize {
        self.bytes.len() / shm::NODE_SIZE as usize
    }

    pub(super) fn at(&self, number: u64) -> Result<shm::Node> {
        self.decode(&self.bytes, number)
    }

    /// One that a link leads to. Calls are counted once it has its own link.
    fn linked(&self, number: u64) -> Result<shm::Node> {
        match self.at(number) {
            Ok(node) if node.calls > 0 => Ok(node),
            _ => {
                let mut bytes = [0; shm::NODE_SIZE as usize];
                let at = self.offset + number * shm::NODE_SIZE;
                self.shared.read_bytes(at, &mut bytes)?;
                self.decode(&bytes, 0)
            }
        }
    }

    pub(super) fn folded(&self, function: u32) -> Result<shm::Node> {
        self.decode(&self.folded, function.into())
    }

    fn decode(&self, bytes: &[u8], number: u64) -> Result<shm::Node> {
        let from = (number * shm::NODE_SIZE) as usize;
        let bytes = bytes
            .get(from..from + shm::NODE_SIZE as usize)
            .ok_or_else(damaged)?;
        let mut node = shm::Node::read_from_bytes(bytes).map_err(|_| damaged())?;
        let site = node.children[shm::SITE_SLOT];
        node.children = Default::default();
        if self.sites {
            node.children[shm::SITE_SLOT] = site;
        }
        Ok(node)
    }

    pub(super) fn number_of(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.start)?;
        (offset % shm::NODE_SIZE == 0 && offset < self.bytes.len() as u64)
            .then_some(offset / shm::NODE_SIZE)
    }

    /// Visits every context below the root at `root`, parents first: number, node, parent's number (none for the
    /// outermost). Links that lead nowhere, as a reader may see while the tree grows, end the branch, and so do those that
    /// lead to a node for the second time: all walks together take no longer than there are nodes.
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

    /// Whether trees were found to share nodes, or to lead round: then the target has written over them.
    pub(super) fn is_tangled(&self) -> bool {
        self.tangled.get()
    }

    /// Whether it is the first time that this node is met.
    fn is_first_visit(&self, number: u64) -> bool {
        let mut visited = self.visited.borrow_mut();
        let Some(bits) = visited.get_mut((number / 64) as usize) else {
            return false;
        };
        let bit = 1 << (number % 64);
        let is_first = *bits & bit == 0;
        *bits |= bit;
        is_first
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
        let mut pending = vec![(u64::from(self.at(root)?.first_child), None)];
        while let Some((link, parent)) = pending.pop() {
            if link == 0 || link > self.room {
                continue;
            }
            let number = link - 1;
            if !self.is_first_visit(number) {
                self.tangled.set(true);
                continue;
            }
            let node = self.linked(number)?;
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
    header.folded_calls > 0 || header.prune.pruned_contexts > 0
}

pub(super) fn damaged() -> Error {
    Error::Damaged("the trees that the target carries are damaged".into())
}

pub(super) fn pruned(header: &shm::Header) -> model::Pruned {
    model::Pruned {
        contexts: header.prune.pruned_contexts,
        calls: header.prune.pruned_calls,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    const OFFSET: u64 = 4096;
    const SOME: u64 = 64;

    /// A root with two contexts, 1 and 2, of which the first has 7 calls.
    fn arena() -> (Shared, shm::Header) {
        // SAFETY: a descriptor of our own, or -1.
        let file = unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"arena".as_ptr(), 0)) };
        let len = OFFSET + SOME * shm::NODE_SIZE;
        file.set_len(len).expect("a file in memory");
        let mut header: shm::Header = crate::memory::FromZeros::new_zeroed();
        header.nodes_offset = OFFSET;
        header.nodes_len = SOME * shm::NODE_SIZE;
        header.nodes_used = 3 * shm::NODE_SIZE;
        header.functions = 9;
        (Shared::File { file, len }, header)
    }

    fn write(shared: &Shared, number: u64, calls: u64, function: u32, links: (u32, u32)) {
        let at = OFFSET + number * shm::NODE_SIZE;
        shared.write(at, &calls.to_le_bytes()).expect("room");
        let halves = [(40, function), (52, links.0), (56, links.1)];
        for (place, half) in halves {
            let bytes = half.to_le_bytes();
            shared.write(at + place, &bytes).expect("room");
        }
    }

    fn calls(nodes: &Nodes, header: &shm::Header) -> Vec<(u64, u64)> {
        let root = header.base + shm::PRIVATE_SIZE + OFFSET;
        let mut all = Vec::new();
        let walked = nodes.walk(root, |number, node, _| all.push((number, node.calls)));
        walked.expect("nothing is damaged");
        all.sort_unstable();
        all
    }

    #[test]
    fn contexts_that_are_made_meanwhile_hide_no_older_ones() {
        let (shared, mut header) = arena();
        write(&shared, 1, 7, 1, (0, 0));
        // 2 is being made; 40 is made after the header was read, and before the root is copied.
        write(&shared, 0, 0, 8, (41, 0));
        write(&shared, 40, 1, 2, (0, 3));
        let nodes = Nodes::read(&shared, &header).expect("a copy");
        write(&shared, 2, 5, 3, (0, 2));
        assert_eq!(calls(&nodes, &header), [(1, 7), (2, 5), (40, 1)]);
        // What leads out of the memory leads nowhere.
        write(&shared, 0, 0, 8, (99, 0));
        header.nodes_used = header.nodes_len;
        let nodes = Nodes::read(&shared, &header).expect("a copy");
        assert_eq!(calls(&nodes, &header), []);
    }

    #[test]
    fn links_that_go_round_are_found_out_and_no_node_is_in_two_trees() {
        let (shared, header) = arena();
        write(&shared, 0, 0, 8, (2, 0));
        write(&shared, 1, 7, 1, (2, 3));
        write(&shared, 2, 5, 1, (1, 2));
        let nodes = Nodes::read(&shared, &header).expect("a copy");
        assert!(!nodes.is_tangled());
        assert_eq!(calls(&nodes, &header), [(0, 0), (1, 7), (2, 5)]);
        assert!(nodes.is_tangled());
        assert_eq!(calls(&nodes, &header), [], "as the tree of another thread");
    }
}
