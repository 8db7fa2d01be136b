//! Which track of a trace a call is drawn on. A viewer takes what lies within another call of the
//! same track for called by it, so trees of a thread that lie over each other, as those of
//! goroutines do that took turns on it, get tracks of their own.

use std::collections::HashMap;

use thalweg_model::Call;

/// The kernel's numbers of threads are smaller.
const TRACK_BITS: u32 = 22;
const MAX_TRACKS: usize = 1 << (32 - TRACK_BITS);

/// The track of each call.
pub(crate) struct Tracks(Vec<u32>);

/// What was last drawn on a track.
struct Last {
    exit_ns: u64,
    request: u64,
}

impl Tracks {
    /// `calls`: parents before children.
    pub(crate) fn new(calls: &[Call]) -> Tracks {
        let mut roots: Vec<usize> = (0..calls.len()).collect();
        roots.retain(|&place| calls[place].parent.is_none());
        roots.sort_by_key(|&place| calls[place].entry_ns);
        let mut tracks: HashMap<(u32, u32), Vec<Last>> = HashMap::new();
        let mut of = vec![0; calls.len()];
        for place in roots {
            let call = &calls[place];
            let own = tracks.entry((call.pid, call.tid)).or_default();
            let is_free = |last: &Last| {
                // A request is a tree of its own within what serves it.
                let within = call.exit_ns <= last.exit_ns && call.request != last.request;
                last.exit_ns <= call.entry_ns || within && last.request == 0
            };
            let found = own.iter().position(is_free);
            let track = found.unwrap_or(own.len()).min(MAX_TRACKS - 1);
            match own.get_mut(track) {
                Some(last) if last.exit_ns <= call.exit_ns => {
                    *last = Last::from_call(call);
                }
                Some(_) => {}
                None => own.push(Last::from_call(call)),
            }
            of[place] = call.tid | (track as u32) << TRACK_BITS;
        }
        for (place, call) in calls.iter().enumerate() {
            if let Some(&track) = call.parent.and_then(|parent| of.get(parent as usize)) {
                of[place] = track;
            }
        }
        Tracks(of)
    }

    pub(crate) fn at(&self, place: usize) -> u32 {
        self.0.get(place).copied().unwrap_or(0)
    }
}

impl Last {
    fn from_call(call: &Call) -> Last {
        Last {
            exit_ns: call.exit_ns,
            request: call.request,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(parent: Option<u32>, entry_ns: u64, exit_ns: u64, request: u64) -> Call {
        Call {
            parent,
            entry_ns,
            exit_ns,
            request,
            pid: 7,
            tid: 9,
            ..Call::default()
        }
    }

    #[test]
    fn trees_of_one_thread_that_lie_over_each_other_have_tracks_of_their_own() {
        let calls = [
            call(None, 0, 100, 0),
            call(Some(0), 10, 20, 0),
            call(None, 50, 60, 0),
            call(Some(2), 52, 55, 0),
            call(None, 70, 120, 0),
            call(None, 130, 140, 0),
        ];
        let tracks = Tracks::new(&calls);
        let second = 9 | 1 << TRACK_BITS;
        let all: Vec<u32> = (0..calls.len()).map(|place| tracks.at(place)).collect();
        assert_eq!(all, [9, 9, second, second, second, 9]);
    }

    #[test]
    fn a_request_stays_on_the_track_of_what_serves_it() {
        let calls = [
            call(None, 0, 100, 0),
            call(None, 10, 20, 1),
            call(None, 30, 40, 2),
        ];
        let tracks = Tracks::new(&calls);
        assert_eq!([tracks.at(0), tracks.at(1), tracks.at(2)], [9; 3]);
    }
}
