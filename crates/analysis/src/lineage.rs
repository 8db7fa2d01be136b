//! Which thread made which, and so how deeply each is nested: first step of everything that samples
//! at threads together.
//!
//! ```text
//! level(t) = 0                      for the first thread of a program that nobody in the profile started
//! level(t) = level(maker of t) + 1  else
//! level(t) = 1                      for further threads whose maker is not known (they ran before thalweg came)
//! ```

use std::collections::HashMap;

use thalweg_model::{FuncId, Process, Profile, Thread};

use crate::threads;

/// Place of a thread in the order of [`threads`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadNumber(pub u32);

/// Where a thread came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub maker: ThreadNumber,
    /// Index into the profile's functions, where it is known.
    pub function: Option<FuncId>,
}

/// Makers and levels of all threads, by [`ThreadNumber`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    origins: Vec<Option<Origin>>,
    levels: Vec<u32>,
}

impl Lineage {
    pub fn from_profile(profile: &Profile) -> Lineage {
        let all: Vec<(&Process, &Thread)> = threads(profile).collect();
        let makers = Makers::new(&all);
        let mut origins: Vec<Option<Origin>> = all
            .iter()
            .map(|(process, thread)| makers.origin(&all, process, thread))
            .collect();
        let levels = levels(&all, &mut origins);
        Lineage { origins, levels }
    }

    pub fn origin(&self, thread: ThreadNumber) -> Option<Origin> {
        self.origins[thread.0 as usize]
    }

    pub fn level(&self, thread: ThreadNumber) -> u32 {
        self.levels[thread.0 as usize]
    }

    /// How many levels of threads there are: 1 when no thread made another.
    pub fn depth(&self) -> u32 {
        self.levels.iter().max().map_or(0, |level| level + 1)
    }
}

/// Threads by their numbers in the system, which may have been used again, and first threads of
/// processes.
struct Makers {
    by_tid: HashMap<(u32, u32), Vec<u32>>,
    first_of: HashMap<u32, u32>,
}

impl Makers {
    fn new(all: &[(&Process, &Thread)]) -> Makers {
        let mut makers = Makers {
            by_tid: HashMap::new(),
            first_of: HashMap::new(),
        };
        for (number, (process, thread)) in (0..).zip(all) {
            let key = (process.pid, thread.tid);
            makers.by_tid.entry(key).or_default().push(number);
            makers.first_of.entry(process.pid).or_insert(number);
        }
        makers
    }

    fn origin(
        &self,
        all: &[(&Process, &Thread)],
        process: &Process,
        thread: &Thread,
    ) -> Option<Origin> {
        let is = |number: &u32| std::ptr::eq(all[*number as usize].1, thread);
        if let Some(creator) = thread.created_by {
            let candidates = self.by_tid.get(&(creator.pid, creator.tid))?;
            // Of several that had the number, the last that had begun by then.
            let begun = |number: &&u32| all[**number as usize].1.start_ns <= thread.start_ns;
            let others = || candidates.iter().filter(|number| !is(number));
            let maker = others().rfind(begun).or(others().next())?;
            return Some(Origin {
                maker: ThreadNumber(*maker),
                function: creator.function,
            });
        }
        let is_first = self.first_of.get(&process.pid).is_some_and(is);
        let parent = process.parent.filter(|_| is_first)?;
        let maker = *self.first_of.get(&parent).filter(|number| !is(number))?;
        Some(Origin {
            maker: ThreadNumber(maker),
            function: None,
        })
    }
}

/// Threads that claim to have made each other, as only a damaged or hostile profile has them, lose
/// their makers.
fn levels(all: &[(&Process, &Thread)], origins: &mut [Option<Origin>]) -> Vec<u32> {
    let mut levels: Vec<Option<u32>> = vec![None; all.len()];
    let mut waiting = vec![false; all.len()];
    let mut chain = Vec::new();
    for start in 0..all.len() {
        let mut at = start;
        let mut level = loop {
            if let Some(level) = levels[at] {
                break level + 1;
            }
            if waiting[at] {
                // `at` is still on the chain: cut where the ring was entered.
                origins[*chain.last().expect("the ring has a member")] = None;
                break 0;
            }
            waiting[at] = true;
            chain.push(at);
            match origins[at] {
                Some(origin) => at = origin.maker.0 as usize,
                None => {
                    let (process, thread) = all[at];
                    let main_is_known = process.threads.iter().any(|t| t.tid == process.pid);
                    break u32::from(thread.tid != process.pid && main_is_known);
                }
            }
        };
        while let Some(thread) = chain.pop() {
            levels[thread] = Some(level);
            waiting[thread] = false;
            level += 1;
        }
    }
    levels.into_iter().map(Option::unwrap_or_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_model::Creator;

    fn thread(tid: u32, made_by: Option<(u32, u32)>) -> Thread {
        Thread {
            tid,
            created_by: made_by.map(|(pid, tid)| Creator {
                pid,
                tid,
                function: Some(FuncId(0)),
            }),
            ..Thread::default()
        }
    }

    fn process(pid: u32, parent: Option<u32>, threads: Vec<Thread>) -> Process {
        Process {
            pid,
            parent,
            threads,
            ..Process::default()
        }
    }

    fn levels_of(processes: Vec<Process>) -> Vec<u32> {
        let profile = Profile {
            processes,
            ..Profile::default()
        };
        Lineage::from_profile(&profile).levels
    }

    #[test]
    fn a_thread_is_one_level_below_the_one_that_made_it_in_any_process() {
        let first = process(
            10,
            Some(1),
            vec![
                thread(10, None),
                thread(11, Some((10, 10))),
                thread(12, Some((10, 11))),
            ],
        );
        let forked = process(20, Some(10), vec![thread(20, Some((10, 12)))]);
        let found_later = process(30, Some(20), vec![thread(30, None)]);
        assert_eq!(levels_of(vec![first, forked, found_later]), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_thread_that_ran_before_we_came_is_below_the_first() {
        let attached = process(10, Some(1), vec![thread(10, None), thread(17, None)]);
        assert_eq!(levels_of(vec![attached]), [0, 1]);
        let chosen = process(10, Some(1), vec![thread(17, None)]);
        assert_eq!(levels_of(vec![chosen]), [0]);
    }

    #[test]
    fn a_number_that_was_used_again_means_the_thread_that_had_it_then() {
        let mut old = thread(11, Some((10, 10)));
        old.start_ns = 5;
        let mut new = thread(11, Some((10, 12)));
        new.start_ns = 50;
        let mut middle = thread(12, Some((10, 11)));
        middle.start_ns = 20;
        let threads = vec![thread(10, None), old, middle, new];
        assert_eq!(levels_of(vec![process(10, None, threads)]), [0, 1, 2, 3]);
    }

    #[test]
    fn threads_that_claim_to_have_made_each_other_are_believed_half() {
        let ring = vec![
            thread(1, Some((9, 2))),
            thread(2, Some((9, 3))),
            thread(3, Some((9, 1))),
        ];
        let mut levels = levels_of(vec![process(9, Some(9), ring)]);
        levels.sort();
        assert_eq!(levels, [0, 1, 2]);
        let own_maker = process(9, None, vec![thread(9, Some((9, 9)))]);
        assert_eq!(levels_of(vec![own_maker]), [0]);
    }
}
