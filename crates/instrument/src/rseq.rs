//! Restartable sequences of a stopped process, as far as no file tells of them.
//!
//! The analysis of a module leaves functions alone whose sequences or handlers it finds (`symbols/rseq.rs`). Here the
//! threads are asked: for their signature, without which nothing can be found, and for the sequence that they are in.

use thalweg_symbols::{RSEQ_SIGNATURE, rseq_descriptor};

use crate::error::{Error, Result};
use crate::proc::{RemoteAddr, Tid};
use crate::survey::{Survey, Surveyed};
use crate::tracee::Stopped;
use crate::tracee::sys;

/// Refuses a process with a sequence that would be patched, or whose sequences cannot be found. `strict`: one that uses
/// sequences at all.
pub fn check(stopped: &Stopped, survey: &Survey, strict: bool) -> Result<()> {
    let pid = stopped.pid();
    let refuse = |why: String| Err(Error::Rseq { pid, why });
    let users = survey.modules.iter().filter(|m| m.module.uses_rseq);
    if let Some(user) = users.into_iter().next().filter(|_| strict) {
        let name = &user.module.name;
        return refuse(format!(
            "{name} has some, which --refuse-rseq does not allow"
        ));
    }
    for &tid in stopped.threads() {
        let Some(registered) = sys::rseq(tid) else {
            continue;
        };
        if registered.signature != RSEQ_SIGNATURE {
            return refuse(format!(
                "thread {tid} has registered them with the signature {:#x} instead of \
                 {RSEQ_SIGNATURE:#x}, so that they cannot be found",
                registered.signature
            ));
        }
        let Some(descriptor) = in_use(stopped, RemoteAddr(registered.abi)) else {
            continue;
        };
        if strict {
            return refuse(format!(
                "thread {tid} is in one, which --refuse-rseq does not allow"
            ));
        }
        if let Some(name) = patched(survey, &descriptor) {
            return refuse(unknown(tid, name));
        }
    }
    Ok(())
}

fn unknown(tid: Tid, name: &str) -> String {
    format!(
        "thread {tid} is in one of {name} that no file describes: leave that function out with -N"
    )
}

/// The descriptor that the thread with this area has set last, if the kernel has not cleared it since.
fn in_use(stopped: &Stopped, area: RemoteAddr) -> Option<[u8; 32]> {
    const RSEQ_CS: u64 = 8;
    let mut word = [0; 8];
    let slot = RemoteAddr(area.0.checked_add(RSEQ_CS)?);
    stopped.read(slot, &mut word).ok()?;
    let place = u64::from_le_bytes(word);
    let mut descriptor = [0; 32];
    stopped.read(RemoteAddr(place), &mut descriptor).ok()?;
    (place != 0).then_some(descriptor)
}

/// A function with patches planned that `descriptor` speaks of.
fn patched<'s>(survey: &'s Survey, descriptor: &[u8; 32]) -> Option<&'s str> {
    let ((start, end), handler) = rseq_descriptor(descriptor)?;
    survey.modules.iter().find_map(|surveyed| {
        planned(surveyed).find_map(|index| {
            let function = &surveyed.module.functions[index];
            let place = |address: u64| address.wrapping_add(surveyed.bias);
            let (low, high) = (place(function.start), place(function.end));
            let inside = low < end && start < high || (low..high).contains(&handler);
            inside.then_some(function.name.as_str())
        })
    })
}

fn planned(surveyed: &Surveyed) -> impl Iterator<Item = usize> + '_ {
    let plans = [&surveyed.plan, &surveyed.gate_plan].into_iter();
    let planned = plans.flat_map(|plan| {
        let whole = plan.functions.iter().map(|p| p.function);
        whole.chain(plan.fragments.iter().map(|p| p.function))
    });
    let moved = surveyed.blocks.iter().flat_map(|plan| plan.moved());
    planned.chain(moved)
}
