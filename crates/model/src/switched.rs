//! Functions whose probes were switched while the program ran: what their figures are of.

use crate::codec::{Decoder, Encoder};
use crate::error::ReadError;
use crate::ids::FuncId;

/// What a function's probes do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeState {
    /// Every call is counted and timed.
    #[default]
    Timed,
    /// Every call is counted, one in some is timed.
    Sampled,
    /// Every call is counted.
    Counted,
    /// Nothing is known of its calls: they and their time are in its callers' own time, what it
    /// calls seems to be called by those.
    Off,
}

impl ProbeState {
    pub fn name(self) -> &'static str {
        match self {
            ProbeState::Timed => "timed",
            ProbeState::Sampled => "timed 1 in 64",
            ProbeState::Counted => "counted",
            ProbeState::Off => "off",
        }
    }
}

/// A function that was not timed all along.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switched {
    /// Index into the profile's functions.
    pub function: FuncId,
    /// At the end.
    pub state: ProbeState,
    /// How long it was off in all: its counts are of the rest of the time.
    pub off_ns: u64,
    /// How often it was switched.
    pub changes: u64,
}

pub(crate) fn encode(switched: &[Switched], estimated: bool, out: &mut Encoder) {
    out.byte(estimated.into());
    out.number(switched.len() as u64);
    for one in switched {
        out.number(one.function.into());
        out.byte(one.state as u8);
        out.number(one.off_ns);
        out.number(one.changes);
    }
}

pub(crate) fn decode(input: &mut Decoder) -> Result<(Vec<Switched>, bool), ReadError> {
    let estimated = input.boolean()?;
    let switched = input.list(4, |input| {
        Ok(Switched {
            function: FuncId::decode(input)?,
            state: match input.byte()? {
                0 => ProbeState::Timed,
                1 => ProbeState::Sampled,
                2 => ProbeState::Counted,
                3 => ProbeState::Off,
                _ => {
                    return Err(ReadError::Corrupt(
                        "a function's probes stand in an unknown way",
                    ));
                }
            },
            off_ns: input.number()?,
            changes: input.number()?,
        })
    })?;
    Ok((switched, estimated))
}
