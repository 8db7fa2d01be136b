//! One region: serves its gates, notes starts and ends of its processes, and takes its snapshot when nobody carries it any more.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use thalweg_abi as shm;
use thalweg_model::{End, Profile};

use super::life::Life;
use super::program::{self, Call, Verdict};
use super::unhooked_children::UnhookedChildren;
use super::{Common, Reached, Unfinished, exec};
use crate::agent;
use crate::attach::Attached;
use crate::budget::{self, Goal, Governor, Policy};
use crate::clock;
use crate::detach;
use crate::error::Result;
use crate::gate::{Kind, Posted, Server};
use crate::held;
use crate::later::drop_later;
use crate::loaded::Modules;
use crate::memory::{self, Identity, Shared};
use crate::numbers::Carriers;
use crate::proc::{self, Pid, RemoteAddr};
use crate::samples::spool::Spool;
use crate::samples::{Sampler, Seen};
use crate::snapshot::{self, ThreadRegistry};
use crate::thread_table;
use thalweg_instrument::{call_rules, dynamic};
use thalweg_snapshot::call_trace::Drain;

/// How often names are read, and it is asked who has left by an execve that no gate has seen.
const LOOK: Duration = Duration::from_millis(100);

/// How long a gate stays closed while the thread before it is being stopped.
const PATIENCE: Duration = Duration::from_secs(3);

/// A function that is entered again within this time makes no further checkpoint: the target does not wait for them.
const CHECKPOINT_GAP: Duration = Duration::from_secs(1);

struct Region<'a> {
    number: usize,
    common: &'a Arc<Common>,
    shared: &'a Shared,
    /// The process that began it; the others are its fork children.
    pid: Pid,
    identity: Identity,
    modules: Modules,
    lives: Vec<Life>,
    unhooked: UnhookedChildren,
    registry: ThreadRegistry,
    leave: Sender<(Pid, u64)>,
    left: Receiver<(Pid, u64)>,
    /// The last asking for what there is so far that was answered.
    answered: u64,
    /// Functions that runtimes run, when rules were last applied, and when that was.
    dynamic: (u32, Instant),
    /// When the last checkpoint was made at a function's entry.
    checkpoint: Option<Instant>,
    /// Why code that was loaded later could not be counted.
    unloaded: Vec<String>,
    /// Processes that somebody else traces, in which the agent makes no system calls.
    silent: HashSet<Pid>,
    began: Instant,
    looked: Option<Instant>,
    /// What was recorded of single calls.
    drain: Drain,
    governor: Option<Governor>,
    sampler: Option<Sampler>,
    /// For those who read the target meanwhile.
    spool: Option<Spool>,
    /// Why stacks are not looked at.
    unseen: Option<String>,
}

/// Until nobody carries the region any more, or the process tree is closed. `ready` is called when the gates are served.
pub(super) fn tend(common: &Arc<Common>, attached: Attached, ready: impl FnOnce()) {
    let Attached {
        pid,
        shared,
        identity,
        modules,
        ledger,
        ..
    } = attached;
    let number = {
        let mut state = common.lock();
        let number = state.next_region;
        state.next_region += 1;
        if let Ok(shared) = shared.try_clone() {
            state.regions.insert(number, (shared, 1));
        }
        number
    };
    let (leave, left) = mpsc::channel();
    let mut region = Region {
        number,
        common,
        lives: vec![Life::new(pid)],
        unhooked: UnhookedChildren::begin(common, pid),
        shared: &shared,
        pid,
        identity,
        modules,
        registry: ThreadRegistry::default(),
        leave,
        left,
        began: Instant::now(),
        looked: None,
        answered: 0,
        dynamic: (0, Instant::now()),
        checkpoint: None,
        unloaded: Vec::new(),
        silent: HashSet::new(),
        drain: Drain::owner(common.options.recording.as_ref().map_or(0, |r| r.keep)),
        governor: None,
        sampler: None,
        spool: None,
        unseen: None,
    };
    if let Ok(header) = shared.header() {
        // However soon it ends.
        region.registry.met(header.inner_pid, pid);
    }
    if let Some(policy) = common.policy {
        let governor = shared
            .try_clone()
            .and_then(|shared| Governor::new(policy, shared, identity));
        match governor {
            Ok(governor) => {
                region.governor = Some(governor);
                // For those who ask.
                if matches!(policy.goal, Goal::Share(_)) {
                    let _ = budget::note(&shared, std::process::id());
                }
            }
            Err(error) => common.lock().failed.push(error),
        }
    }
    region.begin_to_look();
    // Who switches functions reads it at the first time.
    let ledger = region.governor.is_some().then_some(ledger);

    // Without it waits for what is stopped elsewhere are its own.
    let _listed = held::list(&shared);
    // Without it (the memory cannot be mapped here) nobody waits at a gate.
    let mut server = Server::start(&shared).ok();
    if shared
        .header()
        .is_ok_and(|header| header.flags & shm::HEADER_LAUNCHED == 0)
    {
        // What it loaded between the attach and now.
        region.catch_up(pid);
    }
    ready();
    let snapshot = loop {
        if common.is_closing() {
            drop(server);
            break region.leave_alive();
        }
        region.serve(&mut server);
        region.look();
        region.drain();
        region.tend_rules();
        region.tend_sampler();
        region.tend_spool();
        region.govern();
        region.answer();
        let living = region.lives.iter().filter(|l| l.end.is_none()).count();
        if let Some((_, count)) = common.lock().regions.get_mut(&number) {
            *count = living;
        }
        if living == 0 && !common.options.follow {
            // Its children are not ours to wait for.
            drop(server);
            break region.leave_alive();
        }
        if living == 0 {
            if region.is_forsaken() {
                break region.snapshot(None, true);
            }
            region.find_carriers();
        }
    };
    let later = region.later();
    let governor = region.governor.take();
    drop_later((governor, region.sampler.take(), region.modules, ledger));
    // At once: whoever takes a snapshot finds it either among the regions or in what those have left.
    let mut state = common.lock();
    state.regions.remove(&number);
    match snapshot {
        Ok(profile) => state.merger.add(profile, later),
        Err(error) => state.failed.push(error),
    }
}

impl Region<'_> {
    /// Short lives are seen to end without delay, long ones are not polled hard.
    fn nap(&self) -> Duration {
        (self.began.elapsed() / 50).clamp(Duration::from_millis(1), Duration::from_millis(20))
    }

    fn serve(&mut self, server: &mut Option<Server>) {
        let Some(server) = server else {
            std::thread::sleep(self.nap());
            return;
        };
        let is_due = self
            .checkpoint
            .is_none_or(|at| at.elapsed() > CHECKPOINT_GAP);
        if is_due {
            let _ = server.want_checkpoint();
        }
        let Ok(posted) = server.wait(self.nap()) else {
            // The target has scribbled over its own memory: nothing that is posted there makes sense.
            std::thread::sleep(self.nap());
            return;
        };
        for posted in posted {
            match posted.kind {
                Kind::ForkChild => self.fork_child(server, &posted),
                Kind::LinkMap => self.catch_up(posted.pid),
                Kind::Exec => self.exec(&posted, Call::Execve),
                Kind::ExecAt => self.exec(&posted, Call::Execveat),
                Kind::ExecFile => self.exec(&posted, Call::Fexecve),
                Kind::Checkpoint => self.reached(&posted),
                Kind::Syscall => self.silence_traced(&posted),
                Kind::NewThread(_) | Kind::Prctl | Kind::ArchPrctl | Kind::GsBase => {}
                Kind::JavaEntry | Kind::JavaExit | Kind::JavaFree | Kind::JavaCompile => {}
                Kind::Evaluator => {}
            }
            // Of a gate that cannot be opened its thread tires by itself.
            let _ = server.serve(&posted);
        }
    }

    /// Returns when the thread may go on: it is held by then, or left alone.
    fn exec(&mut self, posted: &Posted, call: Call) {
        if self.common.is_closing() || !self.common.options.follow {
            return;
        }
        let (pid, tid) = (posted.pid, posted.tid);
        self.common.settle(pid);
        let Some(path) = program::named(pid, &posted.args, call) else {
            return;
        };
        match program::judge(pid, &path) {
            Verdict::Absent => {}
            Verdict::Refuse(reason) => self.common.refuse(reason),
            Verdict::Follow => {
                let (stand, stands) = mpsc::sync_channel(1);
                let left = self.leave.clone();
                let name = program::shown(pid, &path);
                let spawned = self.common.spawn(move |common| {
                    exec::follow(common, pid, tid, &name, stand, left);
                });
                if spawned.is_ok() {
                    let _ = stands.recv_timeout(PATIENCE);
                }
            }
        }
    }

    /// A fork child. Where children are not wanted it is one that has come to stay, and is let go as it would be without us.
    fn fork_child(&mut self, server: &mut Server, posted: &Posted) {
        if self.common.options.follow {
            self.registry.met(posted.inner_pid, posted.pid);
            return self.meet(posted.pid);
        }
        // It cannot leave the probe while it waits here.
        let _ = server.serve(posted);
        if self.carries(posted.pid) {
            // What fails (it may become another program this moment) costs it some time, no more.
            let _ = detach::detach_child(posted.pid);
        }
    }

    /// A thread is about to trace another process: if that is one of ours, no system call is made in it any more that the
    /// program does not make.
    fn silence_traced(&mut self, posted: &Posted) {
        let [call, request, number, ..] = posted.args;
        let takes = matches!(
            request,
            shm::calls::PTRACE_ATTACH | shm::calls::PTRACE_SEIZE
        );
        let Ok(header) = self.shared.header() else {
            return;
        };
        if call != shm::calls::PTRACE || !takes {
            return;
        }
        if let Ok(carriers) = Carriers::of(self.shared, &header) {
            for pid in carriers.called(number as u32) {
                self.silence(&header, pid);
            }
        }
    }

    /// The same where somebody else has done so, by the time that it is seen.
    fn silence_if_traced(&mut self, pid: Pid) {
        if !self.silent.contains(&pid)
            && let Some(tracer) = proc::tracer(pid)
            && tracer.0 as u32 != std::process::id()
            && !proc::runs_this_program(tracer)
            && let Ok(header) = self.shared.header()
        {
            self.silence(&header, pid);
        }
    }

    fn silence(&mut self, header: &shm::Header, pid: Pid) {
        // What cannot be written is ending, or has become another program.
        if agent::silence(pid, header).is_ok() {
            self.silent.insert(pid);
        }
    }

    /// A thread waits at the entry of a function that makes a checkpoint.
    fn reached(&mut self, posted: &Posted) {
        // One that cannot be read is reported where it is asked for.
        if let Ok(profile) = self.snapshot_so_far() {
            let function = posted
                .function
                .and_then(|f| profile.functions.get(f as usize));
            let reached = Reached {
                region: self.number,
                function: function.map_or_else(String::new, |f| f.name.clone()),
                partial: (profile, self.later()),
            };
            self.common.lock().reached.push_back(reached);
        }
        self.checkpoint = Some(Instant::now());
    }

    /// Keeps the probes within their budget. What cannot be read or switched this time is the next time.
    fn govern(&mut self) {
        let Some(governor) = &mut self.governor else {
            return;
        };
        let living = self.lives.iter().filter(|life| life.end.is_none());
        let pids: Vec<Pid> = living.map(|life| life.pid).collect();
        let sampler = &mut self.sampler;
        governor.tend(&pids, &mut || {
            // What was seen is judged by the states that held then.
            match sampler {
                Some(sampler) => sampler.drain(),
                None => Seen::default(),
            }
        });
    }

    /// Stacks are looked at from now on, if that is wanted and allowed.
    fn begin_to_look(&mut self) {
        let wishes = &self.common.looking;
        if wishes.is_empty() {
            return;
        }
        let filter = &self.common.options.filter;
        let shared = self.shared.try_clone();
        match shared.and_then(|shared| Sampler::begin(wishes, filter, shared, self.pid)) {
            Ok(sampler) => self.sampler = Some(sampler),
            Err(error) => {
                let policy = self.common.policy;
                self.unseen = Some(Policy::without_samples(policy, &error.to_string()));
            }
        }
        if self.sampler.is_some() {
            // Without it others see no looks.
            let shared = self.shared.try_clone();
            let spool = shared.and_then(|shared| Spool::begin(shared, self.sampler.as_ref()));
            self.spool = spool.ok();
        }
    }

    /// Answers those who read the target, or are about to switch something in it.
    fn tend_spool(&mut self) {
        if let Some(spool) = &mut self.spool {
            let governor = &self.governor;
            let notes = || governor.iter().filter_map(Governor::report).collect();
            // They do without after a while.
            let _ = spool.tend(self.sampler.as_mut(), false, notes);
        }
    }

    fn tend_sampler(&mut self) {
        let Some(sampler) = &mut self.sampler else {
            return;
        };
        for life in self.lives.iter().filter(|life| life.end.is_some()) {
            sampler.leave(life.pid);
        }
        sampler.tend();
    }

    /// Says what there is so far, if that was asked for.
    fn answer(&mut self) {
        let asked = self.common.asked.load(Ordering::SeqCst);
        if asked == self.answered {
            return;
        }
        self.answered = asked;
        let partial = self
            .snapshot_so_far()
            .map(|profile| (profile, self.later()));
        let mut state = self.common.lock();
        state.partial.insert(self.number, (asked, partial));
    }

    fn snapshot_so_far(&mut self) -> Result<Profile> {
        let _ = self.registry.update(self.shared);
        self.snapshot(Some(clock::ticks()), false)
    }

    /// Takes what threads have written down of single calls, which makes room for more.
    fn drain(&mut self) {
        if self.common.options.recording.is_none() {
            return;
        }
        // A failing look costs nothing: what it missed is still there.
        if let Ok(header) = self.shared.header() {
            let _ = self.drain.take(self.shared, &header);
        }
    }

    /// How long after the recording this began, in nanoseconds.
    fn later(&self) -> u64 {
        self.shared.header().map_or(0, |header| {
            header
                .attach_monotonic_ns
                .saturating_sub(self.common.origin_ns)
        })
    }

    /// Instruments what a process has loaded since.
    fn catch_up(&mut self, pid: Pid) {
        let functions = || self.shared.header().map_or(0, |header| header.functions);
        let before = functions();
        if let Err(error) = self.modules.follow(self.shared, pid) {
            self.unloaded.push(error.to_string());
        }
        if self.common.options.recording.is_some() && functions() > before {
            // Rules that mean what was loaded.
            if let Err(error) = call_rules::reapply(self.shared) {
                self.unloaded.push(error.to_string());
            }
        }
    }

    /// Rules that mean functions which a runtime has run for the first time.
    fn tend_rules(&mut self) {
        let (known, at) = self.dynamic;
        if self.common.options.recording.is_none() || at.elapsed() < LOOK {
            return;
        }
        let seen = dynamic::seen(self.shared).unwrap_or(known);
        self.dynamic = (seen, Instant::now());
        if seen != known
            && let Err(error) = call_rules::reapply(self.shared)
        {
            self.unloaded.push(error.to_string());
        }
    }

    fn carries(&self, pid: Pid) -> bool {
        let start = self
            .shared
            .header()
            .map_or(0, |header| header.base + shm::PRIVATE_SIZE);
        memory::carries(pid, self.identity, RemoteAddr(start))
    }

    /// A process of ours that we did not know.
    fn meet(&mut self, pid: Pid) {
        if !self.lives.iter().any(|life| life.pid == pid) {
            self.lives.push(Life::new(pid));
            if let Some(sampler) = &mut self.sampler
                && let Err(error) = sampler.join(pid)
            {
                self.unseen.get_or_insert(error.to_string());
            }
        }
    }

    /// Who has begun, who has ended, who has become another program.
    fn look(&mut self) {
        let shared = self.shared;
        for (pid, ticks) in self.left.try_iter() {
            if let Some(life) = self.lives.iter_mut().find(|life| life.pid == pid) {
                life.replaced(ticks);
            }
        }
        self.lives.iter_mut().for_each(Life::look);
        if self.looked.is_some_and(|at| at.elapsed() < LOOK) {
            return;
        }
        self.looked = Some(Instant::now());
        // A look that fails (a process is just ending) costs a name, no figure.
        let _ = self.registry.update(shared);
        // Those that began while nobody served.
        let pids = shared
            .header()
            .and_then(|header| thread_table::pids(shared, &header));
        for pid in pids.unwrap_or_default() {
            if let Some(pid) = self.registry.known(pid) {
                self.meet(pid);
            }
        }
        for index in 0..self.lives.len() {
            let Life { pid, ref end, .. } = self.lives[index];
            let is_over = end.is_some();
            if !is_over {
                self.silence_if_traced(pid);
            }
            // A process that is about to end has no memory at all for a moment.
            let is_ending = || proc::maps(pid).is_ok_and(|maps| maps.is_empty());
            if !is_over && !self.carries(pid) && !is_ending() {
                // Or it ended just now.
                self.lives[index].look();
                self.lives[index].replaced(clock::ticks());
            }
        }
        if self.common.options.follow {
            self.unhooked.join(self.common, &self.lives);
        }
    }

    /// Whether no process has the region mapped any more, not even one that began this moment.
    fn is_forsaken(&self) -> bool {
        match self.shared.seal() {
            Some(sealed) => sealed,
            None => memory::carriers(self.identity).is_empty(),
        }
    }

    fn find_carriers(&mut self) {
        for pid in memory::carriers(self.identity) {
            self.meet(pid);
        }
    }

    /// Everybody out: restores all processes that carry the region, then reads it.
    fn leave_alive(&mut self) -> Result<Profile> {
        self.look();
        let _ = self.registry.update(self.shared);
        if let Some(sampler) = &mut self.sampler {
            sampler.stop();
        }
        let identity = self.identity;
        let first = self.pid;
        let carriers = memory::carriers(identity);
        let (mut detached, mut left) = (None, None);
        let target = carriers
            .iter()
            .find(|pid| **pid == first)
            .or(carriers.first());
        if let Some(&pid) = target {
            match detach::detach(pid) {
                Ok(done) => detached = Some(done),
                // What was counted is there all the same: reading needs no stop.
                Err(error) if memory::carriers(identity).contains(&pid) => {
                    left = Some(Unfinished {
                        pid,
                        probed: Some(error.to_string()),
                    });
                }
                // Ended, or another program by now.
                Err(_) => {}
            }
        }
        let now = clock::ticks();
        self.look();
        for life in &mut self.lives {
            life.end.get_or_insert((now, End::Running));
        }
        let snapshot = self.snapshot(Some(now), true);
        if let Some(detached) = detached
            && !detached.unmap().unwrap_or(false)
            && memory::carriers(identity).contains(&detached.pid)
        {
            left = Some(Unfinished {
                pid: detached.pid,
                probed: None,
            });
        }
        match left {
            Some(left) => self.common.lock().unfinished.push(left),
            None => detach::detach_orphans(identity),
        }
        snapshot
    }

    /// `ended`: when the last process was let go, or now if they go on; otherwise when it ended. After the last time no recorded calls are left here.
    fn snapshot(&mut self, ended: Option<u64>, is_last: bool) -> Result<Profile> {
        let shared = self.shared;
        let ends = self.lives.iter().filter_map(|life| life.end);
        let last = ended.or(ends.map(|(ticks, _)| ticks).max());
        for life in &self.lives {
            if let Some((ticks, _)) = life.end {
                self.registry.ended(life.pid, ticks, life.processor_time);
            }
        }
        let mut profile = snapshot::take_without_samples(shared, &self.registry, last, is_last)?;
        if self.common.options.recording.is_some() {
            self.drain();
            self.drain.trim();
            let header = shared.header()?;
            let (hz, end) = (profile.meta.clock_hz, last.unwrap_or_else(clock::ticks));
            let registry = &self.registry;
            profile.recorded = match is_last {
                true => {
                    let drain = std::mem::take(&mut self.drain);
                    drain.into_recorded(shared, &header, registry, hz, end)?
                }
                false => self.drain.recorded(shared, &header, registry, hz, end)?,
            };
        }
        if let Some(governor) = &self.governor {
            profile.notes.extend(governor.report());
        }
        if let Some(sampler) = &mut self.sampler {
            sampler.add_to(&mut profile, &shared.header()?);
        }
        profile.notes.extend(self.unseen.clone());
        if let Some(first) = self.unloaded.first() {
            profile.notes.push(format!(
                "code loaded later could not be counted {} times; the first time because: {first}",
                self.unloaded.len()
            ));
        }
        let began = shared.header()?.attach_ticks;
        let hz = profile.meta.clock_hz;
        let ns = |ticks: u64| (ticks.saturating_sub(began) as f64 * 1e9 / hz) as u64;
        let lives: HashMap<u32, &Life> = self
            .lives
            .iter()
            .map(|life| (life.pid.0 as u32, life))
            .collect();
        let command = profile.meta.command.clone();
        for process in &mut profile.processes {
            let life = lives.get(&process.pid);
            process.end = match ended {
                Some(_) => End::Running,
                None => End::Unknown,
            };
            if let Some((ticks, end)) = life.and_then(|life| life.end) {
                process.end_ns = ns(ticks);
                process.end = end;
            }
            if process.end == End::Replaced {
                // What was read of it may be its next program's.
                process.command.clone_from(&command);
            }
            if process.parent.is_none() {
                process.parent = life.and_then(|life| life.parent);
            }
        }
        Ok(profile)
    }
}
