//! Stacks in, a profile with trees out: what all importers build.

use std::collections::HashMap;

use thalweg_model::{FuncId, Function, Meta, Module, Node, Process, Profile, Thread};

use super::ImportError;

/// Some 150 bytes each in memory.
const MAX_NODES: usize = 20_000_000;
/// Of all stacks together: a small file may name the same long stack very often.
const MAX_FRAMES: u64 = 2_000_000_000;

#[derive(Default)]
pub struct Trees {
    pub meta: Meta,
    pub notes: Vec<String>,
    modules: Vec<Module>,
    module_numbers: HashMap<String, u32>,
    functions: Vec<Function>,
    function_numbers: HashMap<(u32, String, u64), FuncId>,
    threads: Vec<Growing>,
    thread_numbers: HashMap<(u32, u32, String), usize>,
    nodes: usize,
    frames: u64,
}

struct Growing {
    pid: u32,
    thread: Thread,
    children: HashMap<(Option<u32>, FuncId), u32>,
}

impl Trees {
    pub fn new(source: &str) -> Trees {
        let mut trees = Trees::default();
        trees.meta.version = source.to_string();
        trees.meta.timed = true;
        trees
    }

    pub fn module(&mut self, path: &str, build_id: &str) -> u32 {
        if let Some(&number) = self.module_numbers.get(path) {
            return number;
        }
        let number = self.modules.len() as u32;
        self.module_numbers.insert(path.to_string(), number);
        self.modules.push(Module {
            name: path.rsplit('/').next().unwrap_or(path).to_string(),
            path: path.to_string(),
            build_id: build_id.to_string(),
            ..Module::default()
        });
        number
    }

    /// `address` tells functions of the same name apart, where the source knows it.
    pub fn function(
        &mut self,
        module: u32,
        name: &str,
        address: u64,
        file: Option<&str>,
        line: u32,
    ) -> FuncId {
        let key = (module, name.to_string(), address);
        if let Some(&number) = self.function_numbers.get(&key) {
            return number;
        }
        let number = FuncId::from_index(self.functions.len());
        self.function_numbers.insert(key, number);
        self.functions.push(Function {
            name: name.to_string(),
            module,
            address,
            file: file.filter(|file| !file.is_empty()).map(str::to_string),
            line,
            ..Function::default()
        });
        number
    }

    pub fn thread(&mut self, pid: u32, tid: u32, name: &str) -> usize {
        let key = (pid, tid, name.to_string());
        let next = self.threads.len();
        let number = *self.thread_numbers.entry(key).or_insert(next);
        if number == next {
            self.threads.push(Growing {
                pid,
                thread: Thread {
                    tid,
                    name: name.to_string(),
                    ..Thread::default()
                },
                children: HashMap::new(),
            });
        }
        number
    }

    /// Widens the time in which a thread is known to have run.
    pub fn seen_at(&mut self, thread: usize, ns: u64) {
        let thread = &mut self.threads[thread].thread;
        if thread.nodes.is_empty() {
            thread.start_ns = ns;
        }
        thread.start_ns = thread.start_ns.min(ns);
        thread.end_ns = thread.end_ns.max(ns);
    }

    /// Times of threads become relative to the first of them.
    pub fn start_at(&mut self, ns: u64) {
        for growing in &mut self.threads {
            let thread = &mut growing.thread;
            thread.start_ns = thread.start_ns.saturating_sub(ns);
            thread.end_ns = thread.end_ns.saturating_sub(ns);
        }
    }

    /// The context of `function` below `parent`, made if it is new.
    pub fn child(
        &mut self,
        thread: usize,
        parent: Option<u32>,
        function: FuncId,
    ) -> Result<u32, ImportError> {
        let growing = &mut self.threads[thread];
        let next = growing.thread.nodes.len() as u32;
        let number = *growing.children.entry((parent, function)).or_insert(next);
        if number == next {
            self.nodes += 1;
            if self.nodes > MAX_NODES {
                return Err(ImportError::TooLarge("20 million contexts"));
            }
            growing.thread.nodes.push(Node {
                parent,
                function,
                ..Node::default()
            });
        }
        Ok(number)
    }

    pub fn node(&mut self, thread: usize, node: u32) -> &mut Node {
        &mut self.threads[thread].thread.nodes[node as usize]
    }

    /// Adds to the context that a stack ends in. The outermost function comes first.
    pub fn add(
        &mut self,
        thread: usize,
        stack: impl IntoIterator<Item = FuncId>,
        calls: u64,
        self_ns: u64,
    ) -> Result<(), ImportError> {
        let mut at = None;
        for function in stack {
            at = Some(self.child(thread, at, function)?);
            self.frames += 1;
        }
        if self.frames > MAX_FRAMES {
            return Err(ImportError::TooLarge("two billion frames in its stacks"));
        }
        if let Some(node) = at {
            let node = self.node(thread, node);
            node.calls = node.calls.saturating_add(calls);
            node.self_ns = node.self_ns.saturating_add(self_ns);
        }
        Ok(())
    }

    /// Cum from what stands below each context.
    pub fn finish(mut self) -> Result<Profile, ImportError> {
        for growing in &mut self.threads {
            let nodes = &mut growing.thread.nodes;
            for node in nodes.iter_mut() {
                node.total_ns = node.self_ns;
            }
            for index in (0..nodes.len()).rev() {
                let total_ns = nodes[index].total_ns;
                if let Some(parent) = nodes[index].parent {
                    let above = &mut nodes[parent as usize].total_ns;
                    *above = above.saturating_add(total_ns);
                }
            }
        }
        self.finish_as_is()
    }

    /// The same where the importer has set total itself.
    pub fn finish_as_is(mut self) -> Result<Profile, ImportError> {
        if self
            .threads
            .iter()
            .all(|growing| growing.thread.nodes.is_empty())
        {
            return Err(ImportError::Empty);
        }
        let mut processes: Vec<Process> = Vec::new();
        let mut places: HashMap<u32, usize> = HashMap::new();
        for mut growing in self.threads {
            for node in &mut growing.thread.nodes {
                node.wall_ns = node.total_ns;
            }
            growing.children = HashMap::new();
            count_recursion(&mut growing.thread, self.functions.len());
            let place = *places.entry(growing.pid).or_insert_with(|| {
                processes.push(Process {
                    pid: growing.pid,
                    command: self.meta.command.clone(),
                    ..Process::default()
                });
                processes.len() - 1
            });
            processes[place].threads.push(growing.thread);
        }
        if self.modules.is_empty() {
            self.modules.push(Module::default());
        }
        Ok(Profile {
            switched: Vec::new(),
            blocks: Vec::new(),
            cycles_of: None,
            block_counters: Vec::new(),
            marks: Vec::new(),
            sampled: Vec::new(),
            enters_kernel: Vec::new(),
            meta: self.meta,
            modules: self.modules,
            functions: self.functions,
            processes,
            recorded: Default::default(),
            sites: Vec::new(),
            skipped: Vec::new(),
            notes: self.notes,
        })
    }
}

/// How often the same function stands above, by one walk over the tree: stacks may be as deep as
/// they like.
fn count_recursion(thread: &mut Thread, functions: usize) {
    let tree = thalweg_analysis::Tree::new(thread, thalweg_analysis::Weight::Time);
    let nodes = tree.nodes;
    let mut recursion = vec![0; nodes.len()];
    let mut above = vec![0u32; functions];
    let mut path: Vec<(u32, FuncId)> = Vec::new();
    for index in tree.depth_first(|a, b| a.cmp(b)) {
        let (level, function) = (tree.level(index), nodes[index as usize].function);
        while let Some((_, left)) = path.pop_if(|(above, _)| *above >= level) {
            above[left.index()] -= 1;
        }
        recursion[index as usize] = above[function.index()];
        above[function.index()] += 1;
        path.push((level, function));
    }
    for (node, recursion) in thread.nodes.iter_mut().zip(recursion) {
        node.recursion = recursion;
    }
}
