//! Which functions make system calls, as the planner knows, and which of those cannot be counted.

use thalweg_model as model;
use thalweg_patch::Made;

use crate::survey::Surveyed;

/// More names than this are not listed in one note; the profile has all that is skipped.
const NAMED: usize = 40;

/// What the profile says of the planned functions of a module, whose first has the number `first`.
pub fn of_module(surveyed: &Surveyed, first: u32) -> Vec<model::EntersKernel> {
    let plans = (first..).zip(&surveyed.plan.functions);
    plans
        .filter_map(|(number, plan)| {
            let all = &surveyed.enters_kernel;
            let found = all.binary_search_by_key(&plan.function, |one| one.function);
            Some(model::EntersKernel {
                function: model::FuncId(number),
                made: match &all[found.ok()?].made {
                    _ if surveyed.plan.entering.contains(&plan.function) => {
                        model::Made::Counted(Vec::new())
                    }
                    Made::Between(least, most) => model::Made::Between(*least, *most),
                    Made::Unknown => model::Made::Unknown,
                    Made::Each(calls) => {
                        let call = |&(number, times)| model::SystemCall { number, times };
                        model::Made::Each(calls.iter().map(call).collect())
                    }
                },
            })
        })
        .collect()
}

/// What is missing because functions with system calls are not patched.
pub fn unseen(surveyed: &Surveyed) -> Option<String> {
    let name = &surveyed.module.name;
    if surveyed.plan.functions.is_empty() && surveyed.left_alone.is_some() {
        let has_any = !surveyed.enters_kernel.is_empty();
        return has_any.then(|| {
            let why = surveyed.left_alone.unwrap_or_default();
            format!("system calls that {name} makes itself are not counted ({why})")
        });
    }
    let is_planned = |function: usize| {
        let mut plans = surveyed.plan.functions.iter();
        plans.any(|plan| plan.function == function)
    };
    let unseen = surveyed.enters_kernel.iter();
    let unseen: Vec<&str> = unseen
        .filter(|one| !is_planned(one.function))
        .map(|one| surveyed.module.functions[one.function].name.as_str())
        .collect();
    if unseen.is_empty() {
        return None;
    }
    let named = unseen[..unseen.len().min(NAMED)].join(", ");
    let more = match unseen.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "system calls of functions that are not patched are not counted: {named}{more} of {name}"
    ))
}
