//! The promises that the types of a profile cannot make by themselves.
//!
//! Checked before a profile is written and after one is read, so that all later code may index without asking.

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
        function: u32,
        functions: usize,
    },

    #[error("node {node} of thread {tid} has parent {parent}, which does not come before it")]
    ParentOfNode { tid: u32, node: usize, parent: u32 },

    #[error("frame {frame} of the stacks of thread {tid} has no function, or no caller before it")]
    Frame { tid: u32, frame: usize },

    #[error("thread {tid} was looked at, but it is not said how")]
    Samples { tid: u32 },

    #[error("thread {tid} was created in function {function}, but there are {functions}")]
    FunctionOfCreator {
        tid: u32,
        function: u32,
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
    FunctionInKernel { function: u32, functions: usize },

    #[error("a recorded call refers to something that is not there")]
    RecordedCall,

    #[error(
        "function {function} was switched, but there are {functions}, each named once and in order"
    )]
    SwitchedFunction { function: u32, functions: usize },

    #[error(
        "function {function} has times from looks, but there are {functions}, each named once and in order"
    )]
    LookedFunction { function: u32, functions: usize },

    #[error("{0} is not a number")]
    NotANumber(&'static str),
}

impl Profile {
    /// All indices lead somewhere, parents come before their children, and every figure is a number.
    pub fn validate(&self) -> Result<(), Invalid> {
        let mut least = 0;
        for one in &self.enters_kernel {
            let (function, functions) = (one.function, self.functions.len());
            if function as usize >= functions || function < least {
                return Err(Invalid::FunctionInKernel {
                    function,
                    functions,
                });
            }
            least = function + 1;
        }
        let mut least = 0;
        for switched in &self.switched {
            let function = switched.function;
            let functions = self.functions.len();
            if function as usize >= functions || function < least {
                return Err(Invalid::SwitchedFunction {
                    function,
                    functions,
                });
            }
            least = function + 1;
        }
        let mut least = 0;
        for looked in &self.looked {
            let function = looked.function;
            let functions = self.functions.len();
            if function as usize >= functions || function < least {
                return Err(Invalid::LookedFunction {
                    function,
                    functions,
                });
            }
            least = function + 1;
        }
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

impl Thread {
    fn validate(&self, functions: usize, sites: usize) -> Result<(), Invalid> {
        let tid = self.tid;
        if let Some(function) = self.created_by.and_then(|creator| creator.function)
            && function as usize >= functions
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
            if below || node.function as usize >= functions {
                return Err(Invalid::Frame { tid, frame });
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if node.function as usize >= functions {
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
