//! Children that no gate has seen: made, and become other programs, by system calls of the program's own (Go, static programs
//! without names). They are found among the children that the kernel knows of, and joined late.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::life::Life;
use super::{Common, region};
use crate::attach::{self, Options};
use crate::error::Error;
use crate::memory;
use crate::proc::{self, Pid};

/// A child that has lived this long without anybody speaking for it is on its own.
const ON_ITS_OWN: Duration = Duration::from_millis(100);

/// Children of one region's processes that are in no region, and since when they are known.
#[derive(Default)]
pub(super) struct UnhookedChildren {
    seen: HashMap<ProcessKey, (Instant, String)>,
    /// Asking the kernel about every thread of a large program takes time: no more than a twentieth of all.
    due: Option<Instant>,
}

/// A process for good: numbers are given again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct ProcessKey {
    pid: Pid,
    start_ticks: u64,
}

impl ProcessKey {
    pub(super) fn read(pid: Pid) -> Option<ProcessKey> {
        let stat = proc::stat(pid).ok().filter(|stat| !stat.is_dead())?;
        Some(ProcessKey {
            pid,
            start_ticks: stat.start_ticks,
        })
    }
}

impl UnhookedChildren {
    /// Children that `parent` has from before are not ours.
    pub(super) fn begin(common: &Common, parent: Pid) -> UnhookedChildren {
        let children = proc::children(parent)
            .into_iter()
            .filter_map(ProcessKey::read);
        common.lock().settled.extend(children);
        UnhookedChildren::default()
    }

    /// Joins those children of `lives` that are not among them and that nobody has spoken for by now.
    pub(super) fn join(&mut self, common: &Arc<Common>, lives: &[Life]) {
        let began = Instant::now();
        if self.due.is_some_and(|due| began < due) {
            return;
        }
        self.join_new(common, lives);
        self.due = Some(began + began.elapsed() * 20);
    }

    fn join_new(&mut self, common: &Arc<Common>, lives: &[Life]) {
        let living = lives.iter().filter(|life| life.end.is_none());
        let children = living.flat_map(|life| proc::children(life.pid));
        let strange = children.filter(|child| !lives.iter().any(|life| life.pid == *child));
        let before = std::mem::take(&mut self.seen);
        for child in strange.filter_map(ProcessKey::read) {
            let since = before.get(&child).map(|(since, _)| *since);
            if common.lock().settled.contains(&child) || carries(child) {
                continue;
            }
            if since.is_some_and(|since| since.elapsed() > ON_ITS_OWN) {
                common.lock().settled.insert(child);
                let _ = common.spawn(move |common| join(common, child));
                continue;
            }
            let since = since.unwrap_or_else(Instant::now);
            self.seen.insert(child, (since, name(child.pid)));
        }
        for (child, (_, name)) in before {
            let is_settled = common.lock().settled.contains(&child);
            if !is_settled && ProcessKey::read(child.pid) != Some(child) {
                common.refuse(too_short(&name));
            }
        }
    }
}

/// On its way to another program, or counted already.
fn carries(child: ProcessKey) -> bool {
    memory::mappings(child.pid).is_ok_and(|found| !found.is_empty())
}

fn name(pid: Pid) -> String {
    proc::thread_name(pid, pid.into()).unwrap_or_default()
}

fn too_short(name: &str) -> String {
    format!(
        "{name}: was started by a system call that no gate has seen, and ended before it was joined"
    )
}

fn join(common: &Arc<Common>, child: ProcessKey) {
    let pid = child.pid;
    let name = name(pid);
    let options = Options {
        threads: Vec::new(),
        ..common.options.clone()
    };
    match attach::attach(pid, &options, &|_, _, _| {}) {
        Ok(attached) => {
            common.lock().late.push(format!(
                "joined late: {name} ({pid}), which was started by a system call that no gate has seen; what it did before is not counted"
            ));
            region::tend(common, attached, || {});
        }
        Err(Error::NothingToProfile { .. }) => {}
        Err(error) if ProcessKey::read(pid) == Some(child) => {
            common.refuse(format!("{name}: {error}"))
        }
        Err(_) => common.refuse(too_short(&name)),
    }
}
