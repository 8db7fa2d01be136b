//! How the probes of each function stand, as the target carries it: who switched what, and for how long a function was off.

use thalweg_abi as shm;
use thalweg_abi::ProbeState;

use crate::clock;
use crate::dynamic::{self, Family};
use crate::error::Result;
use crate::ledger::Switchable;
use crate::memory::{IntoBytes, Shared};
use crate::prepare::CodeRegion;

/// What a function's probes do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Every call is counted and timed (without a clock: counted).
    #[default]
    Timed,
    /// Every call is counted, one now and then is timed.
    Sampled,
    /// Every call is counted.
    Counted,
    /// The function is as it was.
    Off,
}

impl State {
    pub fn of(number: u32) -> State {
        match number {
            shm::PROBE_SAMPLED => State::Sampled,
            shm::PROBE_COUNTED => State::Counted,
            shm::PROBE_OFF => State::Off,
            _ => State::Timed,
        }
    }

    pub fn number(self) -> u32 {
        match self {
            State::Timed => shm::PROBE_TIMED,
            State::Sampled => shm::PROBE_SAMPLED,
            State::Counted => shm::PROBE_COUNTED,
            State::Off => shm::PROBE_OFF,
        }
    }

    /// The next one of those in which calls are counted.
    pub fn turned(self) -> Option<State> {
        match self {
            State::Timed => Some(State::Sampled),
            State::Sampled => Some(State::Counted),
            State::Counted => Some(State::Timed),
            State::Off => None,
        }
    }

    /// The bits that stand for it in a function's entry stub.
    pub fn mode(self) -> u32 {
        match self {
            State::Timed | State::Off => 0,
            State::Sampled => shm::MODE_UNTIMED | shm::MODE_SAMPLED,
            State::Counted => shm::MODE_UNTIMED,
        }
    }
}

fn offset(header: &shm::Header, function: u32) -> u64 {
    header.states_offset + u64::from(function) * shm::PROBE_STATE_SIZE
}

/// The states of `count` functions from `first` on.
pub fn read(
    shared: &Shared,
    header: &shm::Header,
    first: u32,
    count: u32,
) -> Result<Vec<ProbeState>> {
    shared.read_all(offset(header, first), count.into())
}

pub fn of_all(shared: &Shared, header: &shm::Header) -> Result<Vec<ProbeState>> {
    let mut states = read(shared, header, 0, header.functions)?;
    for family in [Family::python(), Family::java()] {
        let Some(leader) = dynamic::leader(shared, &family)? else {
            continue;
        };
        let state = states.get(leader as usize).copied();
        // A Java method may have a state of its own, but none is counted where they all went off.
        let is_java = family.is_java();
        let is_theirs = |state: &ProbeState| match is_java {
            true => state.state == shm::PROBE_OFF,
            false => state.changes > 0,
        };
        if let Some(state) = state.filter(is_theirs) {
            for number in family.read(shared)?.numbers {
                if let Some(place) = states.get_mut(number as usize)
                    && !(is_java && place.state == shm::PROBE_OFF)
                {
                    *place = state;
                }
            }
        }
    }
    Ok(states)
}

/// Whether no call of the function is timed in a recording that times, because it is counted at its entry alone.
pub fn is_never_timed(state: &ProbeState) -> bool {
    state.flags & shm::PROBE_LEAF != 0
}

/// The state of a function that is counted and that nobody has switched.
pub fn first(header: &shm::Header, leaf: bool) -> State {
    match leaf && header.flags & shm::HEADER_TIMED != 0 {
        true => State::Counted,
        false => State::Timed,
    }
}

/// Has the stubs of functions that have modes count, before anybody runs them.
pub(crate) fn count_first(code: &mut [CodeRegion], functions: &[Switchable]) {
    let mut stubs: Vec<(u64, &mut Vec<u8>)> = code
        .iter_mut()
        .flat_map(|region| &mut region.stubs)
        .map(|(start, bytes)| (*start, bytes))
        .collect();
    stubs.sort_unstable_by_key(|(start, _)| *start);
    for at in functions.iter().filter_map(counted_at) {
        let next = stubs.partition_point(|(start, _)| *start <= at);
        if let Some((start, bytes)) = next.checked_sub(1).and_then(|index| stubs.get_mut(index))
            && let Some(byte) = bytes.get_mut((at - *start) as usize)
        {
            *byte |= State::Counted.mode().to_le_bytes()[shm::MODE_BYTE as usize];
        }
    }
}

/// Where the mode is of a function that may be counted or timed.
fn counted_at(one: &Switchable) -> Option<u64> {
    (one.mode_at != 0 && !one.leaf).then_some(one.mode_at)
}

/// How functions stand when a target is attached, in one write: leaves say so, and where they are counted first, all that have modes.
pub fn begin(
    shared: &Shared,
    header: &shm::Header,
    functions: &[Switchable],
    counted_first: bool,
) -> Result<()> {
    // Without a clock there is nothing to tell.
    let has_leaves = header.flags & shm::HEADER_LEAVES != 0;
    if first(header, true) == State::Timed || !(has_leaves || counted_first) {
        return Ok(());
    }
    let mut all = vec![0; header.functions as usize * shm::PROBE_STATE_SIZE as usize];
    let is_counted = |one: &&Switchable| {
        let counted = counted_first && counted_at(one).is_some();
        one.leaf && has_leaves || counted
    };
    for one in functions.iter().filter(is_counted) {
        let at = one.function as usize * shm::PROBE_STATE_SIZE as usize;
        let state = ProbeState {
            state: State::Counted.number(),
            flags: if one.leaf { shm::PROBE_LEAF } else { 0 },
            ..ProbeState::default()
        };
        if let Some(place) = all.get_mut(at..at + shm::PROBE_STATE_SIZE as usize) {
            place.copy_from_slice(state.as_bytes());
        }
    }
    shared.write(offset(header, 0), &all)
}

/// The same for a module that was loaded, perhaps not for the first time.
pub(crate) fn begin_loaded(
    shared: &Shared,
    header: &shm::Header,
    functions: &[Switchable],
) -> Result<()> {
    for one in functions {
        let state = first(header, one.leaf);
        let at = offset(header, one.function);
        let mut known: ProbeState = shared.read(at)?;
        if state == State::Counted && known.flags == 0 {
            known.flags = shm::PROBE_LEAF;
            known.state = state.number();
            shared.write(at, known.as_bytes())?;
        }
        set(shared, header, one.function, state)?;
    }
    Ok(())
}

/// Notes that `function` is in `state` from now on.
pub fn set(shared: &Shared, header: &shm::Header, function: u32, state: State) -> Result<()> {
    let at = offset(header, function);
    let mut known: ProbeState = shared.read(at)?;
    if known.state == state.number() {
        return Ok(());
    }
    let now = clock::ticks();
    if known.state == shm::PROBE_OFF {
        known.off_ticks = off_until(&known, now);
    }
    known.state = state.number();
    known.since = now;
    known.changes = known.changes.saturating_add(1);
    known.offs = known.offs.saturating_add((state == State::Off).into());
    shared.write(at, known.as_bytes())
}

/// How long a function was off, in ticks.
pub fn off_until(state: &ProbeState, now: u64) -> u64 {
    let last = match state.state {
        shm::PROBE_OFF => now.saturating_sub(state.since),
        _ => 0,
    };
    state.off_ticks.saturating_add(last)
}
