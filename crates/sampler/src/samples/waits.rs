//! What threads wait for: the system call in which each was found asleep, by `/proc/PID/task/TID/syscall`, some twenty times a
//! second; or a processor, where it could run and was not seen to. Nobody is stopped for it, and a thread that runs is not asked.
//!
//! ```text
//! sample            asked                  asked                       sample
//!   |  ...........  futex  ..............  futex ....................   |
//!                   [------- one wait ---------]   begins at the sample: it was seen on a processor there
//! ```

use std::collections::HashMap;
use std::path::Path;

use thalweg_model::{Wait, WaitsOf};

use crate::proc::{Pid, Tid};

/// Of all threads together.
const MOST_WAITS: usize = 1 << 16;
/// Threads that are asked in one round; others have their turn in the next.
const MOST_ASKED: usize = 64;
/// One that runs and was not seen for so many periods of its own time had less than a quarter of a processor.
const PERIODS_WITHOUT: u64 = 4;
const NANOSECONDS: u64 = 1_000_000_000;

/// What a thread sleeps in.
type Asleep = (Option<u32>, WaitsOf);

#[derive(Default)]
pub(super) struct Waits {
    pub(super) of: HashMap<(u32, u32), Vec<Wait>>,
    count: usize,
    /// What the descriptor was that a thread waited with last, so that it is asked for once.
    files: HashMap<(u32, u32), (u32, u64, WaitsOf)>,
    /// Where the next round begins.
    turn: usize,
}

impl Waits {
    /// Asks those threads that were not seen on a processor from `before_ns` to `now_ns`, by when all samples are known.
    /// `seen` says when each was last seen.
    pub(super) fn ask(
        &mut self,
        threads: &[(Pid, Tid)],
        before_ns: u64,
        now_ns: u64,
        period_ns: u64,
        seen: impl Fn((u32, u32)) -> Option<u64>,
    ) {
        let rounds = threads.len().min(MOST_ASKED);
        for step in 0..rounds {
            let (pid, tid) = threads[(self.turn + step) % threads.len()];
            let whose = (pid.0 as u32, tid.0 as u32);
            let last = seen(whose);
            if last.is_some_and(|last| last >= before_ns) {
                continue;
            }
            let found = self.found(pid, tid);
            let is_ready = || {
                let since = last.map(|last| now_ns.saturating_sub(last));
                since.is_some_and(|since| since >= PERIODS_WITHOUT.saturating_mul(period_ns))
            };
            let found = match found {
                Some(None) => is_ready().then_some((None, WaitsOf::Processor)),
                Some(asleep) => asleep,
                None => None,
            };
            if let Some(asleep) = found {
                self.add(whose, asleep, last, now_ns, before_ns);
            }
        }
        self.turn = self.turn.wrapping_add(rounds);
    }

    /// `last`: when it was last on a processor, as far as is known. `before_ns`: when it was asked before, at the earliest.
    fn add(
        &mut self,
        whose: (u32, u32),
        (system_call, of): Asleep,
        last: Option<u64>,
        now_ns: u64,
        before_ns: u64,
    ) {
        let known = self.of.entry(whose).or_default();
        let previous = known.last_mut();
        let ran_since = |end_ns: u64| last.is_some_and(|last| last > end_ns);
        match previous {
            Some(wait)
                if (wait.system_call, wait.of) == (system_call, of) && !ran_since(wait.end_ns) =>
            {
                wait.end_ns = wait.end_ns.max(now_ns);
            }
            _ if self.count >= MOST_WAITS => {}
            previous => {
                let end_ns = previous.map(|wait| wait.end_ns);
                // It has slept since then, or run for less than a period.
                let start_ns = match (last, end_ns) {
                    (Some(last), Some(end)) => last.max(end),
                    (one, other) => one.or(other).unwrap_or(before_ns),
                };
                known.push(Wait {
                    start_ns: start_ns.min(now_ns),
                    end_ns: now_ns,
                    system_call,
                    of,
                });
                self.count += 1;
            }
        }
    }

    /// `Some(None)`: it runs, or is ready to.
    fn found(&mut self, pid: Pid, tid: Tid) -> Option<Option<Asleep>> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
        let Some((system_call, argument)) = parse(&text) else {
            return Some(None);
        };
        let Some(number) = system_call.filter(|number| takes_descriptor(*number)) else {
            return Some(Some((system_call, WaitsOf::None)));
        };
        let known = self.files.entry((pid.0 as u32, tid.0 as u32));
        let known = known.or_insert((u32::MAX, 0, WaitsOf::None));
        if (known.0, known.1) != (number, argument) {
            let link = std::fs::read_link(format!("/proc/{pid}/fd/{argument}"));
            *known = (
                number,
                argument,
                link.map_or(WaitsOf::None, |to| kind_of(&to)),
            );
        }
        Some(Some((system_call, known.2)))
    }
}

/// Number and first argument. `None`: it runs, or is ready to. No number: it sleeps in none.
fn parse(text: &str) -> Option<(Option<u32>, u64)> {
    let mut words = text.split_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let argument = words.next().and_then(|word| word.strip_prefix("0x"));
    let argument = argument.and_then(|word| u64::from_str_radix(word, 16).ok());
    Some((u32::try_from(number).ok(), argument.unwrap_or(0)))
}

/// read, write, their kin, accept, connect, sendto, recvfrom, sendmsg, recvmsg, fsync, fdatasync, flock, accept4.
fn takes_descriptor(number: u32) -> bool {
    matches!(number, 0 | 1 | 17..=20 | 42..=47 | 73..=75 | 288 | 295 | 296 | 327 | 328)
}

fn kind_of(to: &Path) -> WaitsOf {
    let to = to.as_os_str().as_encoded_bytes();
    let starts = |with: &[u8]| to.starts_with(with);
    match () {
        () if starts(b"socket:") => WaitsOf::Socket,
        () if starts(b"pipe:") => WaitsOf::Pipe,
        () if starts(b"/dev/pts/") || starts(b"/dev/tty") => WaitsOf::Terminal,
        () => WaitsOf::File,
    }
}

/// By the clock that samples have.
pub(super) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the structure that it is given, which is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &mut now) };
    (now.tv_sec as u64)
        .saturating_mul(NANOSECONDS)
        .saturating_add(now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_says_in_what_and_one_that_runs_says_nothing() {
        assert_eq!(parse("running\n"), None);
        assert_eq!(parse("202 0x7f00 0x80 0x0\n"), Some((Some(202), 0x7f00)));
        assert_eq!(parse("-1 0x7ffe 0x7f\n"), Some((None, 0x7ffe)));
        assert_eq!(parse(""), None);
    }

    #[test]
    fn a_wait_begins_where_the_thread_was_last_seen_to_run_and_goes_on_until_it_runs_again() {
        let mut waits = Waits::default();
        let futex = (Some(202), WaitsOf::None);
        waits.add((1, 2), futex, Some(10), 50, 0);
        waits.add((1, 2), futex, Some(10), 90, 50);
        waits.add((1, 2), (Some(0), WaitsOf::Pipe), Some(10), 130, 90);
        waits.add((1, 2), futex, Some(140), 170, 130);
        let found = waits.of[&(1, 2)]
            .iter()
            .map(|w| (w.start_ns, w.end_ns, w.system_call));
        let found: Vec<_> = found.collect();
        assert_eq!(
            found,
            [
                (10, 90, Some(202)),
                (90, 130, Some(0)),
                (140, 170, Some(202))
            ]
        );
    }
}
