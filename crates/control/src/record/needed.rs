//! What rules need to hear of: the functions whose calls they choose, and those by which they choose (`above`). A budget leaves these as they are,
//! and refuses rules that need all others too.

use std::collections::HashSet;

use thalweg_rules::Rule;
use thalweg_shm as shm;
use thalweg_shm::rules;

use super::tables::named;
use crate::error::{Error, Result};
use crate::memory::Shared;
use crate::proc::Pid;
use crate::states;
use crate::switch::{State, Switcher};

/// No target has more sets of functions: one that says so has scribbled over its memory.
const MOST_SETS: u64 = 1 << 16;

/// By number; empty where nothing is recorded.
pub(crate) fn needed(shared: &Shared, header: &shm::Header) -> Result<HashSet<u32>> {
    if header.flags & shm::HEADER_RECORDS == 0 {
        return Ok(HashSet::new());
    }
    let mut needed: HashSet<u32> = named(shared, header)?.into_iter().collect();
    let head: rules::Head = shared.read(header.rules_offset)?;
    let programs = header
        .rules_offset
        .saturating_add(rules::programs_offset(header.functions_limit));
    let sets = head.sets.min(MOST_SETS) * 16;
    let sets = shared.read_vec(programs.saturating_add(head.sets_offset), sets)?;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    for set in sets.chunks_exact(16) {
        let (at, len) = (word(&set[..8]), word(&set[8..]));
        let bits = shared.read_vec(programs.saturating_add(at), len.min(rules::PROGRAMS_LEN))?;
        for (byte, first) in bits.iter().zip((0u32..).step_by(8)) {
            let all = (0..8).filter(|bit| byte >> bit & 1 != 0);
            needed.extend(all.map(|bit| first + bit));
        }
    }
    Ok(needed)
}

/// Whether calls can be chosen by these rules while a budget switches others off.
pub fn check_for_budget(rules: &[Rule]) -> Result<()> {
    for rule in rules {
        if let Some(part) = rule.needs_all_functions() {
            return Err(Error::Other(format!(
                "the rule '{}' asks for '{part}', which is known only where every function is counted: leave out --budget, or ask for `above` and `duration` instead",
                rule.text
            )));
        }
    }
    Ok(())
}

/// Switches on what rules need and a budget, or somebody, has switched off before they came.
pub fn bring_back(pid: Pid, shared: &Shared) -> Result<()> {
    let header = shared.header()?;
    let states = states::of_all(shared, &header)?;
    let is_off = |function: &u32| {
        let state = states.get(*function as usize);
        state.is_some_and(|state| State::of(state.state) == State::Off)
    };
    let off = needed(shared, &header)?.into_iter().filter(is_off);
    let wanted: Vec<(u32, State)> = off.map(|function| (function, State::Timed)).collect();
    if !wanted.is_empty() {
        Switcher::of(pid)?.switch(&wanted)?;
    }
    Ok(())
}
