//! How the probes of each function stand, as the target carries it: who switched what, and for how long a function was off.

use thalweg_shm as shm;
use thalweg_shm::ProbeState;

use crate::clock;
use crate::error::Result;
use crate::memory::{Shared, bytes_of};

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

    /// The bits that stand for it in a function's entry stub.
    pub(crate) fn mode(self) -> u32 {
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
    let len = u64::from(count) * shm::PROBE_STATE_SIZE;
    let mut bytes = vec![0; len as usize];
    shared.read_bytes(offset(header, first), &mut bytes)?;
    let half = |bytes: &[u8], at: usize| {
        u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
    };
    let word = |bytes: &[u8], at: usize| {
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
    };
    let all = bytes.chunks_exact(shm::PROBE_STATE_SIZE as usize);
    Ok(all
        .map(|one| ProbeState {
            state: half(one, 0),
            offs: half(one, 4),
            changes: half(one, 8),
            reserved: 0,
            since: word(one, 16),
            off_ticks: word(one, 24),
        })
        .collect())
}

pub fn of_all(shared: &Shared, header: &shm::Header) -> Result<Vec<ProbeState>> {
    read(shared, header, 0, header.functions)
}

/// Notes that `function` is in `state` from now on.
pub(crate) fn set(
    shared: &Shared,
    header: &shm::Header,
    function: u32,
    state: State,
) -> Result<()> {
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
    shared.write(at, bytes_of(&known))
}

/// How long a function was off, in ticks.
pub(crate) fn off_until(state: &ProbeState, now: u64) -> u64 {
    let last = match state.state {
        shm::PROBE_OFF => now.saturating_sub(state.since),
        _ => 0,
    };
    state.off_ticks.saturating_add(last)
}
