//! Programs that limit themselves so that a probe which does not know would kill them: what is watched for that, and what is refused
//! because nothing can watch it. The agent's limits.rs does what is to be done then.

use thalweg_patch::{ModulePlan, Watched};
use thalweg_symbols::{Function, Module};

use crate::blocks;
use crate::error::{Error, Result};
use crate::gate::Kind;
use crate::survey::{Survey, Surveyed};

/// The system calls of a module that get a probe of their own: not where the entry of their function has one.
pub fn watched(
    module: &Module,
    left_alone: Option<&'static str>,
    gates: &[(usize, Kind)],
) -> Vec<Watched> {
    // The loader sets its own thread pointer before anything else runs, and no filter.
    if module.is_loader || left_alone.is_some() {
        return Vec::new();
    }
    let is_gated = |function: usize| {
        let mut kinds = gates.iter().filter(|gate| gate.0 == function);
        kinds.any(|gate| {
            matches!(
                gate.1,
                Kind::Prctl | Kind::Syscall | Kind::ArchPrctl | Kind::NewThread(_)
            )
        })
    };
    let mut watched = thalweg_patch::watched(module);
    watched.retain(|one| !is_gated(one.function));
    watched
}

/// Probes at those of the system calls in `watched` that are in none of the functions of `plans`.
pub fn plan_unwatched(module: &Module, watched: &[Watched], plans: [&ModulePlan; 2]) -> ModulePlan {
    let is_planned = |function: usize| {
        plans.iter().any(|plan| {
            let mut functions = plan.functions.iter().map(|one| one.function);
            let mut fragments = plan.fragments.iter().map(|one| one.function);
            functions.any(|one| one == function) || fragments.any(|one| one == function)
        })
    };
    let left = watched.iter().filter(|one| !is_planned(one.function));
    let left: Vec<Watched> = left.cloned().collect();
    match left.is_empty() {
        true => ModulePlan::default(),
        false => thalweg_patch::plan_sites(module, &left),
    }
}

/// Refuses a program with code that sets the GS base where no probe can be put before it.
pub fn check(survey: &Survey) -> Result<()> {
    if survey.modules.iter().any(|m| m.blocks.is_some()) {
        blocks::check(survey)?;
    }
    for surveyed in &survey.modules {
        if let Some(function) = unwatched_gs_base(surveyed) {
            return Err(Error::Refused(format!(
                "{} of {} sets the GS segment base, as Wine and some emulators do, and cannot be probed: every other probe would \
                 crash once it has run; nothing was changed",
                function.name, surveyed.module.name
            )));
        }
    }
    Ok(())
}

fn unwatched_gs_base(surveyed: &Surveyed) -> Option<&Function> {
    let is_planned = |function: usize| {
        let counted = surveyed.plan.functions.iter();
        let mut planned = counted.chain(&surveyed.gate_plan.functions);
        planned.any(|plan| plan.function == function)
    };
    let mut setters = surveyed.gates.iter().filter(|gate| gate.1 == Kind::GsBase);
    let unwatched = setters.find(|gate| !is_planned(gate.0))?;
    surveyed.module.functions.get(unwatched.0)
}
