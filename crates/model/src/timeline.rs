//! When threads ran and what they waited for: samples with their times, and system calls in which a
//! thread was found asleep. Bounded: where there are more samples than may be kept, each stands for
//! more time.
//!
//! ```text
//! for each thread that was seen: how many threads were passed over, number period, list of samples
//! (difference of time to the one before, optional node), list of waits (difference of start to the
//! end of the one before, length, optional system call, byte of what)
//! ```

use crate::codec::{Decoder, Encoder};
use crate::error::ReadError;
use crate::profile::{Profile, Thread};

/// What was seen of one thread, in the order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Time on a processor that each sample stands for: what the thread used since the one before.
    pub period_ns: u64,
    pub samples: Vec<TimedSample>,
    pub waits: Vec<Wait>,
}

impl Timeline {
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty() && self.waits.is_empty()
    }

    /// Two views of one thread, one after the other or beside each other.
    pub fn add(&mut self, other: Timeline) {
        self.period_ns = self.period_ns.max(other.period_ns);
        self.samples.extend(other.samples);
        self.samples.sort_by_key(|sample| sample.at_ns);
        self.waits.extend(other.waits);
        self.waits.sort_by_key(|wait| wait.start_ns);
        // No thread waits twice at a time.
        let mut end = 0;
        self.waits.retain_mut(|wait| {
            wait.start_ns = wait.start_ns.max(end);
            end = end.max(wait.end_ns);
            wait.start_ns < wait.end_ns
        });
    }

    pub(crate) fn shift(&mut self, later_ns: u64) {
        let later = |time: &mut u64| *time = time.saturating_add(later_ns);
        self.samples
            .iter_mut()
            .for_each(|sample| later(&mut sample.at_ns));
        for wait in &mut self.waits {
            later(&mut wait.start_ns);
            later(&mut wait.end_ns);
        }
    }

    /// Times in order, and every sample one that the thread has.
    pub(crate) fn is_sound(&self, samples: usize) -> bool {
        let exist = self.samples.iter().all(|one| {
            let node = one.sample.map(|node| node as usize);
            node.is_none_or(|node| node < samples)
        });
        let sorted = self.samples.is_sorted_by_key(|one| one.at_ns);
        let mut end = 0;
        let apart = self.waits.iter().all(|wait| {
            let follows = wait.start_ns >= end && wait.end_ns >= wait.start_ns;
            end = wait.end_ns;
            follows
        });
        exist && sorted && apart
    }
}

/// A thread on a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedSample {
    /// Since the recording began.
    pub at_ns: u64,
    /// Its stack, by the innermost frame: index into [`Thread::samples`]. `None`: in thalweg's own
    /// code, or nobody knows.
    pub sample: Option<u32>,
}

/// A thread that was found asleep, and not on a processor meanwhile for as long as a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// When it was last seen to do something else.
    pub start_ns: u64,
    /// When it was last found so.
    pub end_ns: u64,
    /// `None`: in none, as for a page that comes from a disk.
    pub system_call: Option<u32>,
    pub of: WaitsOf,
}

/// What the file is whose descriptor a system call has as its first argument, or a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitsOf {
    #[default]
    None,
    File,
    Pipe,
    Socket,
    Terminal,
    /// It could run, and others did.
    Processor,
}

impl WaitsOf {
    const ALL: [WaitsOf; 6] = [
        WaitsOf::None,
        WaitsOf::File,
        WaitsOf::Pipe,
        WaitsOf::Socket,
        WaitsOf::Terminal,
        WaitsOf::Processor,
    ];

    pub fn name(self) -> &'static str {
        match self {
            WaitsOf::None => "",
            WaitsOf::File => "file",
            WaitsOf::Pipe => "pipe",
            WaitsOf::Socket => "socket",
            WaitsOf::Terminal => "terminal",
            WaitsOf::Processor => "processor",
        }
    }
}

/// A moment of the recording that is worth a mark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Since the recording began.
    pub at_ns: u64,
    pub text: String,
}

pub(crate) fn encode_marks(marks: &[Mark], out: &mut Encoder) {
    out.number(marks.len() as u64);
    for mark in marks {
        out.number(mark.at_ns);
        out.text(&mark.text);
    }
}

pub(crate) fn decode_marks(input: &mut Decoder) -> Result<Vec<Mark>, ReadError> {
    input.list(2, |input| {
        Ok(Mark {
            at_ns: input.number()?,
            text: input.text()?,
        })
    })
}

impl Thread {
    /// Nobody can tell any more which stacks its samples were of.
    pub fn forget_samples(&mut self) {
        self.samples = Vec::new();
        self.timeline = Timeline::default();
    }
}

pub(crate) fn encode(profile: &Profile, out: &mut Encoder) {
    let mut passed = 0;
    for thread in profile.processes.iter().flat_map(|p| &p.threads) {
        let timeline = &thread.timeline;
        if timeline.is_empty() {
            passed += 1;
            continue;
        }
        out.number(passed);
        passed = 0;
        out.number(timeline.period_ns);
        out.number(timeline.samples.len() as u64);
        let mut before = 0;
        for one in &timeline.samples {
            out.number(one.at_ns.saturating_sub(before));
            before = one.at_ns;
        }
        for one in &timeline.samples {
            out.optional(one.sample);
        }
        out.number(timeline.waits.len() as u64);
        let mut end = 0;
        for wait in &timeline.waits {
            out.number(wait.start_ns.saturating_sub(end));
            out.number(wait.end_ns.saturating_sub(wait.start_ns));
            out.optional(wait.system_call);
            out.byte(wait.of as u8);
            end = wait.end_ns;
        }
    }
}

/// One byte at least for the time, and one for the node.
const MIN_BYTES_PER_SAMPLE: usize = 2;

/// Refers to the threads of the processes, whose section comes before it.
pub(crate) fn decode(profile: &mut Profile, input: &mut Decoder) -> Result<(), ReadError> {
    let mut threads = profile.processes.iter_mut().flat_map(|p| &mut p.threads);
    while !input.is_at_end() {
        let thread = usize::try_from(input.number()?)
            .ok()
            .and_then(|passed| threads.nth(passed))
            .ok_or(ReadError::Corrupt(
                "a thread that does not exist has a time line",
            ))?;
        thread.timeline = decode_one(input)?;
    }
    Ok(())
}

fn decode_one(input: &mut Decoder) -> Result<Timeline, ReadError> {
    let period_ns = input.number()?;
    let count = input.count(MIN_BYTES_PER_SAMPLE)?;
    let mut samples = Vec::with_capacity(count);
    let mut at_ns: u64 = 0;
    for _ in 0..count {
        at_ns = at_ns.saturating_add(input.number()?);
        let sample = None;
        samples.push(TimedSample { at_ns, sample });
    }
    for one in &mut samples {
        one.sample = input.optional()?;
    }
    let mut end: u64 = 0;
    let waits = input.list(4, |input| {
        let start_ns = end.saturating_add(input.number()?);
        end = start_ns.saturating_add(input.number()?);
        Ok(Wait {
            start_ns,
            end_ns: end,
            system_call: input.optional()?,
            // What a later version tells apart is a file at least.
            of: *WaitsOf::ALL
                .get(usize::from(input.byte()?))
                .unwrap_or(&WaitsOf::File),
        })
    })?;
    Ok(Timeline {
        period_ns,
        samples,
        waits,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_was_seen_twice_never_waits_twice_at_a_time() {
        let wait = |start_ns, end_ns| Wait {
            start_ns,
            end_ns,
            system_call: Some(202),
            of: WaitsOf::None,
        };
        let seen = |at_ns| TimedSample {
            at_ns,
            sample: None,
        };
        let mut line = Timeline {
            period_ns: 5,
            samples: vec![seen(10), seen(50)],
            waits: vec![wait(11, 40)],
        };
        line.add(Timeline {
            period_ns: 7,
            samples: vec![seen(20)],
            waits: vec![wait(15, 30), wait(35, 45)],
        });
        let times: Vec<u64> = line.samples.iter().map(|one| one.at_ns).collect();
        assert_eq!(times, [10, 20, 50]);
        let waits: Vec<_> = line.waits.iter().map(|w| (w.start_ns, w.end_ns)).collect();
        assert_eq!(waits, [(11, 40), (40, 45)]);
        assert!(line.is_sound(0));
    }
}
