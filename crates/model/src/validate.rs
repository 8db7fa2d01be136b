//! The promises that the types of a profile cannot make by themselves.
//!
//! Checked before a profile is written and after one is read, so that all later code may index
//! without asking.

use crate::ids::FuncId;
use crate::profile::{Process, Profile, Thread};

/// A reference that leads nowhere, or a figure that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("function {function} belongs to module {module}, but there are {modules}")]
    ModuleOfFunction {
        function: usize,
        module: u32,
        modules: usize,
    },

    #[error(
        "node {node} of thread {tid} is a call of function {function}, but there are {functions}"
    )]
    FunctionOfNode {
        tid: u32,
        node: usize,
        function: FuncId,
        functions: usize,
    },

    #[error("node {node} of thread {tid} has parent {parent}, which does not come before it")]
    ParentOfNode { tid: u32, node: usize, parent: u32 },

    #[error("frame {frame} of the stacks of thread {tid} has no function, or no caller before it")]
    Frame { tid: u32, frame: usize },

    #[error("the time line of thread {tid} is not in order, or of stacks that there are not")]
    Timeline { tid: u32 },

    #[error("thread {tid} was sampled, but it is not said how")]
    Samples { tid: u32 },

    #[error("thread {tid} was created in function {function}, but there are {functions}")]
    FunctionOfCreator {
        tid: u32,
        function: FuncId,
        functions: usize,
    },

    #[error("call site {site} is in module {module}, but there are {modules}")]
    ModuleOfSite {
        site: usize,
        module: u32,
        modules: usize,
    },

    #[error("node {node} of thread {tid} was called from site {site}, but there are {sites}")]
    SiteOfNode {
        tid: u32,
        node: usize,
        site: u32,
        sites: usize,
    },

    #[error("a node of thread {tid} beyond its {nodes} has metrics")]
    NodeOfMetrics { tid: u32, nodes: usize },

    #[error(
        "function {function} enters the kernel, but there are {functions}, each named once and in order"
    )]
    FunctionInKernel { function: FuncId, functions: usize },

    #[error("a recorded call refers to something that is not there")]
    RecordedCall,

    #[error(
        "function {function} was switched, but there are {functions}, each named once and in order"
    )]
    SwitchedFunction { function: FuncId, functions: usize },

    #[error(
        "function {function} has times from samples, but there are {functions}, each named once and in order"
    )]
    BadSampledFunction { function: FuncId, functions: usize },

    #[error(
        "the blocks of module {module} are of a module or function that there is not, or not in order"
    )]
    Blocks { module: u32 },

    #[error("{0} is not a number")]
    NotANumber(&'static str),
}

/// The first that there is not, or that does not come after the one before it.
fn out_of_order(ids: impl Iterator<Item = FuncId>, functions: usize) -> Option<FuncId> {
    let mut least = 0;
    for id in ids {
        if id.index() >= functions || id.index() < least {
            return Some(id);
        }
        least = id.index() + 1;
    }
    None
}

impl Profile {
    /// All indices lead somewhere, parents come before their children, and every figure is a
    /// number.
    pub fn validate(&self) -> Result<(), Invalid> {
        let functions = self.functions.len();
        let in_kernel = self.enters_kernel.iter().map(|one| one.function);
        if let Some(function) = out_of_order(in_kernel, functions) {
            return Err(Invalid::FunctionInKernel {
                function,
                functions,
            });
        }
        let switched = self.switched.iter().map(|one| one.function);
        if let Some(function) = out_of_order(switched, functions) {
            return Err(Invalid::SwitchedFunction {
                function,
                functions,
            });
        }
        let sampled = self.sampled.iter().map(|one| one.function);
        if let Some(function) = out_of_order(sampled, functions) {
            return Err(Invalid::BadSampledFunction {
                function,
                functions,
            });
        }
        self.validate_blocks()?;
        if !self.meta.clock_hz.is_finite() {
            return Err(Invalid::NotANumber("the clock's frequency"));
        }
        if !self.meta.overhead_ns_per_call.is_finite() {
            return Err(Invalid::NotANumber("the overhead per call"));
        }
        if let Some(costs) = &self.meta.costs
            && !costs.figures().iter().all(|cost| cost.is_finite())
        {
            return Err(Invalid::NotANumber("what the probes cost"));
        }
        let modules = self.modules.len();
        for (function, of) in self.functions.iter().enumerate() {
            if of.module as usize >= modules {
                return Err(Invalid::ModuleOfFunction {
                    function,
                    module: of.module,
                    modules,
                });
            }
        }
        for (site, of) in self.sites.iter().enumerate() {
            if of.module as usize >= modules {
                return Err(Invalid::ModuleOfSite {
                    site,
                    module: of.module,
                    modules,
                });
            }
        }
        if !self.recorded.is_sound(self.functions.len()) {
            return Err(Invalid::RecordedCall);
        }
        self.processes
            .iter()
            .flat_map(|Process { threads, .. }| threads)
            .try_for_each(|thread| {
                if self.meta.sampling.is_none() && !thread.samples.is_empty() {
                    return Err(Invalid::Samples { tid: thread.tid });
                }
                thread.validate(self.functions.len(), self.sites.len())
            })
    }
}

impl Profile {
    /// Modules in order, and of each the blocks in order of their addresses, in functions of that module.
    fn validate_blocks(&self) -> Result<(), Invalid> {
        let mut least = 0;
        for blocks in &self.blocks {
            let module = blocks.module;
            let wrong = Invalid::Blocks { module };
            if module < least || module as usize >= self.modules.len() {
                return Err(wrong);
            }
            least = module + 1;
            let mut from = 0;
            for block in &blocks.blocks {
                let function = self.functions.get(block.function.index());
                let is_own = function.is_some_and(|function| function.module == module);
                let next = block.start.checked_add(1);
                let ends = block.start.checked_add(block.bytes.into());
                match next.filter(|_| is_own && block.start >= from && ends.is_some()) {
                    Some(next) => from = next,
                    None => return Err(wrong),
                }
            }
        }
        Ok(())
    }
}

impl Thread {
    fn validate(&self, functions: usize, sites: usize) -> Result<(), Invalid> {
        let tid = self.tid;
        if let Some(function) = self.created_by.and_then(|creator| creator.function)
            && function.index() >= functions
        {
            return Err(Invalid::FunctionOfCreator {
                tid,
                function,
                functions,
            });
        }
        if self.metrics.reach() > self.nodes.len() {
            return Err(Invalid::NodeOfMetrics {
                tid,
                nodes: self.nodes.len(),
            });
        }
        for (frame, node) in self.samples.iter().enumerate() {
            let below = node.parent.is_some_and(|parent| parent as usize >= frame);
            if below || node.function.index() >= functions {
                return Err(Invalid::Frame { tid, frame });
            }
        }
        if !self.timeline.is_sound(self.samples.len()) {
            return Err(Invalid::Timeline { tid });
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if node.function.index() >= functions {
                return Err(Invalid::FunctionOfNode {
                    tid,
                    node: index,
                    function: node.function,
                    functions,
                });
            }
            if let Some(site) = node.site
                && site.index() as usize >= sites
            {
                return Err(Invalid::SiteOfNode {
                    tid,
                    node: index,
                    site: site.index(),
                    sites,
                });
            }
            if let Some(parent) = node.parent
                && parent as usize >= index
            {
                return Err(Invalid::ParentOfNode {
                    tid,
                    node: index,
                    parent,
                });
            }
        }
        Ok(())
    }
}
