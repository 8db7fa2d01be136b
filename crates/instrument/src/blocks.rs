//! Counting blocks (`thalweg_blocks`): what of a module is moved into a cave, where its counters are, and what is refused.
//!
//! A thread counts wherever its GS base points, without asking, so everything here rests on that: a program that may set it is not
//! begun with.

use thalweg_abi as shm;
use thalweg_blocks::{BlockPlan, COUNT_BYTES, Encoder, Others};
use thalweg_model as model;
use thalweg_patch::{ModulePlan, PatchForm, SkipReason};
use thalweg_symbols::{FunctionKind, Module};

use crate::agent;
use crate::error::{Error, Result};
use crate::gate;
use crate::survey::{Survey, Surveyed};

/// The counters of one module.
pub struct Counters {
    pub agent: u64,
    pub blocks: shm::Blocks,
    /// The number of its first one.
    pub first: u32,
}

impl Encoder for Counters {
    fn count(&self, counter: u32) -> [u8; COUNT_BYTES] {
        let place = self.blocks.displacement(self.first.saturating_add(counter));
        let mut code = [0x65, 0x48, 0xff, 0x04, 0x25, 0, 0, 0, 0];
        code[5..].copy_from_slice(&(place as u32).to_le_bytes());
        code
    }

    fn claim(&self) -> u64 {
        agent::claim_at(self.agent)
    }
}

/// Bytes of a springboard.
const SPRINGBOARD: u64 = 5;

/// Plans the selected functions but those with gates, which stay where they are. `all_ask`: no filter leaves another module out.
pub fn plan(
    module: &Module,
    selected: &[bool],
    gates: &[(usize, gate::Kind)],
    gate_plan: &ModulePlan,
    all_ask: bool,
) -> BlockPlan {
    let mut others = Others {
        functions: vec![false; module.functions.len()],
        bytes: Vec::new(),
        all_ask,
    };
    let functions = gate_plan.functions.iter();
    let functions = functions.map(|plan| (plan.function, &plan.windows));
    let fragments = gate_plan.fragments.iter();
    let fragments = fragments.map(|plan| (plan.function, &plan.windows));
    for (function, windows) in functions.chain(fragments) {
        others.functions[function] = true;
        for window in windows {
            others.bytes.push((window.start, window.patch_end()));
            let springboard = PatchForm::springboard(window.patch);
            others
                .bytes
                .extend(springboard.map(|at| (at, at + SPRINGBOARD)));
        }
    }
    for (function, _) in gates {
        others.functions[*function] = true;
    }
    thalweg_blocks::plan(module, selected, &others, true)
}

/// Refuses programs in which blocks cannot be counted safely.
pub fn check(survey: &Survey) -> Result<()> {
    for surveyed in &survey.modules {
        if let Some(why) = refusal(surveyed) {
            return Err(Error::Refused(format!(
                "{}: {why}: blocks cannot be counted here; nothing was changed",
                surveyed.module.name
            )));
        }
    }
    Ok(())
}

/// What is in this module that code in a cave would not survive.
pub fn refusal(surveyed: &Surveyed) -> Option<&'static str> {
    let module = &surveyed.module;
    if module.is_go {
        return Some("Go code, whose runtime looks up program counters and moves stacks");
    }
    // They look up where a fault happened.
    const BY_PROGRAM_COUNTER: [&str; 5] = [
        "libjvm.so",
        "libcoreclr.so",
        "libclr.so",
        "libmonosgen-2.0.so",
        "libart.so",
    ];
    if BY_PROGRAM_COUNTER
        .iter()
        .any(|name| module.name.starts_with(name))
    {
        return Some("a virtual machine that knows faults by their program counters");
    }
    let sets = |kind: &gate::Kind| *kind == gate::Kind::GsBase;
    if surveyed.gates.iter().any(|(_, kind)| sets(kind)) {
        return Some("code that sets the GS segment base, by which counters are found");
    }
    let defines = |name: &str| {
        let mut functions = module.functions.iter();
        functions.any(|function| function.linkage_name.as_deref() == Some(name))
    };
    const SETTER: &[u8] = b"\0arch_prctl\0";
    let mut sections = module.sections.iter();
    let names = sections.find(|section| section.name == ".dynstr");
    let imports =
        names.is_some_and(|names| names.bytes.windows(SETTER.len()).any(|name| name == SETTER));
    if imports && !defines("arch_prctl") && !module.is_loader {
        return Some(
            "calls of arch_prctl, which may set the GS segment base, by which counters are found",
        );
    }
    None
}

/// What the profile says of a module's blocks. `module`, `first`: numbers of the module, and of the first function that has
/// blocks, in that profile.
pub fn describe(
    surveyed: &Surveyed,
    plan: &BlockPlan,
    module: u32,
    first: u32,
) -> (model::ModuleBlocks, model::BlockCounters) {
    let functions = &surveyed.module.functions;
    let number = |index: usize| {
        let owner = match functions[index].kind {
            FunctionKind::Fragment => plan.owner_of(index).unwrap_or(index),
            _ => index,
        };
        let place = plan.functions.binary_search(&owner).unwrap_or(0);
        first + place as u32
    };
    let mut counters = model::BlockCounters {
        first: surveyed.first_counter,
        not_taken: Vec::new(),
    };
    let blocks = plan.blocks.iter().map(|block| {
        use thalweg_blocks::Ending as Planned;
        let next = functions.partition_point(|function| function.start <= block.start);
        let own = surveyed.first_counter;
        let kind = match block.not_taken {
            thalweg_blocks::NotTaken::NoBranch => None,
            thalweg_blocks::NotTaken::BlockBehind => Some(model::NotTaken::BlockBehind),
            thalweg_blocks::NotTaken::AllButTarget => Some(model::NotTaken::AllButTarget),
            thalweg_blocks::NotTaken::Counter(number) => {
                Some(model::NotTaken::Counter(own.saturating_add(number)))
            }
        };
        counters.not_taken.extend(kind);
        model::Block {
            function: model::FuncId(number(next.saturating_sub(1))),
            start: block.start,
            bytes: (block.end - block.start) as u32,
            instructions: block.instructions,
            ending: match block.ending {
                Planned::Falls => model::Ending::Falls,
                Planned::Jump(to) => model::Ending::Jump(to),
                Planned::Branch(to) => model::Ending::Branch(to),
                Planned::Computed => model::Ending::Computed,
                Planned::Return => model::Ending::Return,
                Planned::Call(to) => model::Ending::Call(to),
                Planned::CallComputed => model::Ending::CallComputed,
                Planned::SystemCall => model::Ending::SystemCall,
                Planned::Stop => model::Ending::Stop,
            },
            ..model::Block::default()
        }
    });
    let blocks = model::ModuleBlocks {
        module,
        blocks: blocks.collect(),
    };
    (blocks, counters)
}

/// Why so many blocks find no room.
pub fn too_many(counters: u64) -> Error {
    Error::NoRoom(format!(
        "{counters} basic blocks are more than there is room for counters: choose modules with --lib, or functions with -F"
    ))
}

/// Of functions that were asked for and stay as they are.
pub fn skipped(plan: &BlockPlan) -> impl Iterator<Item = (usize, &SkipReason)> {
    plan.skipped.iter().map(|one| (one.function, &one.reason))
}
