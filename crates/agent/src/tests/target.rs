//! A process with the agent in it: this one. Its region is made as the controller makes it, probes are called by hand, with
//! stack pointers into a stack of the test's own.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use thalweg_abi::{self as shm, Layout, Node};

use crate::memory::{Slot, header};
use crate::{slow, tree};

/// There is one region in a process at a time.
static REGION: Mutex<()> = Mutex::new(());

unsafe extern "C" {
    static mut tw_base: u64;
}

const FUNCTIONS: u64 = 4096;
/// Words of a thread's stack that calls are made on.
const STACK: usize = 16 << 10;

pub struct Target {
    size: usize,
    start: u64,
    _only: MutexGuard<'static, ()>,
}

impl Target {
    /// `node_bytes`: of the arena. `limit`: from where on contexts are pruned.
    pub fn new(flags: u32, node_bytes: u64, limit: u64) -> Target {
        let only = REGION.lock().unwrap_or_else(PoisonError::into_inner);
        let layout = Layout::new(FUNCTIONS, 0, 0, node_bytes);
        let size = (shm::PRIVATE_SIZE + layout.shared_size) as usize;
        // SAFETY: a fresh mapping, of which only touched pages exist.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED, "address space for a region");
        let start = start as u64;
        // SAFETY: nobody else uses the region while the lock is held; the header lies in the fresh mapping.
        unsafe {
            (&raw mut tw_base).write_volatile(start);
            let header = &mut *header();
            header.magic = shm::MAGIC;
            header.version = shm::VERSION;
            header.state = shm::STATE_ATTACHED;
            header.base = start;
            header.shared_size = layout.shared_size;
            header.pid = std::process::id();
            header.inner_pid = header.pid;
            header.flags = flags;
            header.functions = FUNCTIONS as u32;
            header.functions_limit = layout.functions_limit;
            header.table_mask = layout.table_entries - 1;
            header.frames_offset = layout.frames_offset;
            header.folded_offset = layout.folded_offset;
            header.growth_offset = layout.growth_offset;
            header.nodes_offset = layout.nodes_offset;
            header.nodes_len = layout.nodes_len;
            header.rules_offset = layout.rules_offset;
            header.states_offset = layout.states_offset;
            header.looks.offset = layout.looks_offset;
            header.prune.limit = limit;
            header.prune.below = 0;
            (header.gap_least, header.gap_most) = (shm::NO_GAP, shm::NO_GAP);
            header.ticks_per_ns = 2 << 32;
            // Slot 0 is that of a thread which makes all others.
            header.next_slot = 1;
            let creator = Slot::number(0);
            (*creator.private()).owner = 1;
            (*creator.private()).top = creator.sentinel() as u64 - creator.0;
            (*creator.shared()).pid = header.pid;
            (*creator.shared()).tid = 1;
        }
        Target {
            size,
            start,
            _only: only,
        }
    }

    /// Runs `work` on a thread of the target.
    pub fn thread<T: Send>(&self, work: impl FnOnce(&mut Thread) -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let stack = [0u64; STACK];
                // SAFETY: glibc leaves GS alone; the slot is mapped for as long as this thread runs.
                unsafe {
                    libc::syscall(libc::SYS_arch_prctl, 0x1001, Slot::number(0).0);
                }
                let end = std::hint::black_box(&stack).as_ptr_range().end as u64;
                let result = work(&mut Thread {
                    end: end & !15,
                    depth: 0,
                    calls: HashMap::new(),
                    path: Vec::new(),
                });
                // SAFETY: no probe runs on this thread any more.
                unsafe {
                    libc::syscall(libc::SYS_arch_prctl, 0x1001, 0u64);
                }
                result
            });
            thread.join().unwrap()
        })
    }

    pub fn header(&self) -> &shm::Header {
        // SAFETY: mapped for as long as this lives; threads of the target have ended when it is read.
        unsafe { &*header() }
    }

    /// Calls of the process-wide node of a function: folded and pruned contexts.
    pub fn folded_calls(&self, function: u32) -> u64 {
        // SAFETY: the table has a node for each function.
        unsafe { (*tree::folded(function)).calls }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // SAFETY: nobody uses the region any more.
        unsafe {
            (&raw mut tw_base).write_volatile(0);
            libc::munmap(self.start as *mut _, self.size);
        }
    }
}

/// A thread of the target, and what its tree must say.
pub struct Thread {
    /// Where its stack ends.
    end: u64,
    depth: u64,
    /// By the path of functions, outermost first.
    pub calls: HashMap<Vec<u32>, u64>,
    path: Vec<u32>,
}

/// Bytes of stack that a call takes.
const CALL: u64 = 64;

impl Thread {
    pub fn depth(&self) -> usize {
        self.path.len()
    }

    /// Where the return address of the innermost activation is.
    pub fn sp(&self) -> u64 {
        self.end - self.depth * CALL
    }

    pub fn enter(&mut self, function: u32) {
        self.depth += 1;
        assert!(self.depth < STACK as u64 * 8 / CALL - 64, "too deep");
        self.path.push(function);
        *self.calls.entry(self.path.clone()).or_default() += 1;
        entry(function, self.sp());
    }

    pub fn leave(&mut self) {
        exit(self.sp());
        self.forget();
    }

    /// The innermost activation is left by an exception: no probe sees it.
    pub fn forget(&mut self) {
        self.path.pop();
        self.depth -= 1;
    }

    /// The innermost activation jumps to `function`, which returns in its stead.
    pub fn tail_jump(&mut self, function: u32) {
        slow::tw_slow_tail(self.sp(), 0);
        self.path.push(function);
        *self.calls.entry(self.path.clone()).or_default() += 1;
        entry(function, self.sp());
        // One place on the stack, two frames.
        self.path.remove(self.path.len() - 2);
    }

    pub fn slot(&self) -> Slot {
        crate::claim::current(self.sp()).expect("the thread has a slot")
    }

    pub fn tree(&self) -> HashMap<Vec<u32>, u64> {
        let mut all = HashMap::new();
        // SAFETY: the tree is this thread's own.
        unsafe {
            let root = (*self.slot().shared()).root as *const Node;
            walk(root, &mut Vec::new(), &mut all);
        }
        all
    }
}

pub fn entry(function: u32, sp: u64) {
    slow::tw_slow_entry(function, sp, 0);
}

pub fn exit(sp: u64) {
    slow::tw_slow_exit(sp);
}

/// # Safety
/// `node` must be one of a tree that nobody changes.
unsafe fn walk(node: *const Node, path: &mut Vec<u32>, all: &mut HashMap<Vec<u32>, u64>) {
    // SAFETY: by the caller's promise; links lead to nodes of the tree.
    unsafe {
        let mut child = tree::from_link((*node).first_child);
        while !child.is_null() {
            path.push((*child).function);
            let before = all.insert(path.clone(), (*child).calls);
            assert_eq!(before, None, "a context is in the tree once: {path:?}");
            walk(child, path, all);
            path.pop();
            child = tree::from_link((*child).sibling);
        }
    }
}
