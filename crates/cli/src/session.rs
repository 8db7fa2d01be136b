//! A live process and what it has counted: how it is set up, and read again and again as a profile.
//!
//! ```text
//! SetupArgs -> Setup -> record: ProcessTree                         all processes, until they end
//!                    -> attach: Setup::attach                       stays when we have gone
//!                    -> serve, top: Session -> Reader -> Profile    restored at the end, if it is ours
//! ```

use clap::Args;
use thalweg_instrument::attach::{self, Attached, Options};
use thalweg_instrument::call_rules::Recording;
use thalweg_instrument::detach;
use thalweg_model::Profile;
use thalweg_ptrace::launch::Launched;
use thalweg_ptrace::proc::{Pid, Tid};
use thalweg_region::clock;
use thalweg_region::memory::{Identity, Shared};
use thalweg_sampler::samples::{Samples, Wishes};
use thalweg_session::budget::Goal;
use thalweg_session::process_tree::Plan;
use thalweg_session::sidecar as left;
use thalweg_snapshot::call_trace::Drain;
use thalweg_snapshot::lines;
use thalweg_snapshot::snapshot::{self, ThreadRegistry};

use crate::args::{FilterArgs, MeasureArgs, Mode};
use crate::calibration::{self, Calibration};
use crate::cycles;
use crate::live::AnalysisBar;
use crate::metric;
use crate::recording::{Drop, RecordingArgs};
use crate::sidecar::{SampleArgs, Sidecar};

/// What is counted in a live process, and how: the options of all commands that put probes in.
#[derive(Args, Clone, Debug)]
pub struct SetupArgs {
    #[command(flatten)]
    pub filter: FilterArgs,

    #[command(flatten)]
    pub measure: MeasureArgs,

    #[command(flatten)]
    pub samples: SampleArgs,
}

/// What a command adds to its options.
#[derive(Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// The target runs already.
    pub is_live: bool,
    /// Only these threads.
    pub threads: &'a [u32],
    /// Processes that it starts, too.
    pub follow: bool,
    /// What probes cost here is measured first, where that is not known.
    pub calibrate: bool,
    pub quiet: bool,
    /// Calls that are recorded one by one, and which of them go when there is no more room.
    pub recording: Option<(&'a RecordingArgs, Drop)>,
}

/// Checked options.
pub struct Setup<'a> {
    args: &'a SetupArgs,
    pub mode: Mode,
    pub plan: Plan,
    quiet: bool,
}

impl SetupArgs {
    /// Refuses what cannot be, before any process is touched.
    pub fn check(&self, wanted: Wanted) -> anyhow::Result<Setup<'_>> {
        let mut mode = self.measure.mode(wanted.is_live)?;
        let recording = match wanted.recording {
            Some((args, usual)) => args.build(usual, &self.measure, &mut mode)?,
            None => None,
        };
        if wanted.calibrate {
            Calibration::ensure(mode == Mode::NoClock, wanted.quiet);
        }
        let samples = self.samples.wanted(mode)?;
        Ok(Setup {
            args: self,
            mode,
            plan: self.plan(mode, wanted, recording, samples)?,
            quiet: wanted.quiet,
        })
    }

    /// The same for the sidecar, which was started by one that has checked it, and says in its
    /// notes what is not possible.
    pub fn for_sidecar(&self) -> anyhow::Result<Setup<'_>> {
        let mode = self.measure.mode(true)?;
        let samples = self.samples.told(mode);
        Ok(Setup {
            args: self,
            mode,
            plan: self.plan(mode, Wanted::default(), None, samples)?,
            quiet: true,
        })
    }

    fn plan(
        &self,
        mode: Mode,
        wanted: Wanted,
        recording: Option<Recording>,
        samples: Option<Samples>,
    ) -> anyhow::Result<Plan> {
        let measure = &self.measure;
        let extra = metric::wanted(&measure.metrics)?;
        measure.stop.apply();
        let policy = calibration::policy(mode);
        let options = Options {
            filter: self
                .filter
                .build()?
                .with_allocators(extra.alloc)
                .with_system_calls(extra.system_calls)
                .with_python(measure.python())
                .with_java(measure.java(wanted.is_live)),
            threads: wanted.threads.iter().map(|&tid| Tid(tid as i32)).collect(),
            timed: !measure.no_clock,
            leaves_counted: !matches!(mode, Mode::All),
            sites: measure.call_sites,
            alloc: extra.alloc,
            system_calls: extra.system_calls,
            memory: measure.memory,
            has_budget: policy.is_some_and(|policy| matches!(policy.goal, Goal::Share(_))),
            pruning: measure.pruning(),
            follow: wanted.follow,
            gates_suffice: false,
            samples_only: false,
            refuse_rseq: measure.refuse_rseq,
            recording,
        };
        Ok(Plan {
            attach: options,
            policy,
            looking: Wishes {
                samples,
                samples_share: self.samples.share(mode),
                counters: extra.counters,
            },
        })
    }
}

impl Setup<'_> {
    /// Puts the probes into a process that runs.
    pub fn attach(&self, pid: Pid) -> anyhow::Result<Attached> {
        let bar = AnalysisBar::new(self.quiet);
        let progress = |done, all, name: &str| bar.show(done, all, name);
        Ok(attach::attach(pid, &self.plan.attach, &progress)?)
    }

    /// The same, with a sidecar beside it: for commands that do not stay, or only watch.
    pub fn attach_with_sidecar(&self, pid: Pid) -> anyhow::Result<Attached> {
        let attached = self.attach(pid)?;
        self.sidecar().start(&attached)?;
        Ok(attached)
    }

    /// Puts the probes into a program that was launched and waits to be let go.
    pub fn instrument(
        &self,
        launched: &mut Launched,
        command: Vec<String>,
    ) -> anyhow::Result<Attached> {
        let bar = AnalysisBar::new(self.quiet);
        let progress = |done, all, name: &str| bar.show(done, all, name);
        let options = &self.plan.attach;
        Ok(attach::instrument(launched, options, command, &progress)?)
    }

    pub fn sidecar(&self) -> Sidecar<'_> {
        Sidecar {
            args: self.args,
            mode: self.mode,
            plan: &self.plan,
        }
    }
}

/// A process that somebody watches. One that is attached already is only read; any other is
/// attached to, and restored at the end.
pub struct Session {
    pid: Pid,
    /// Of a process that we attached to.
    ours: Option<Identity>,
}

impl Session {
    pub fn begin(pid: Pid, setup: &Setup) -> anyhow::Result<(Session, Reader)> {
        if let Ok((shared, _)) = detach::attached(pid) {
            return Ok((Session { pid, ours: None }, Reader::new(shared)));
        }
        let attached = setup.attach_with_sidecar(pid)?;
        let ours = Some(attached.identity);
        Ok((Session { pid, ours }, Reader::new(attached.shared)))
    }

    /// Whatever came of it, the target is not left patched; one that has ended has nothing to
    /// restore.
    pub fn end(self) -> anyhow::Result<()> {
        let Some(identity) = self.ours else {
            return Ok(());
        };
        if detach::attached(self.pid).is_ok() {
            detach::detach(self.pid)?.unmap()?;
        }
        detach::detach_orphans(identity);
        Ok(())
    }
}

/// Reads what a target has counted so far, again and again.
pub struct Reader {
    shared: Shared,
    registry: ThreadRegistry,
    /// Recorded calls since the first reading; whoever records them still gets them all.
    drain: Option<Drain>,
}

/// Recorded calls that are kept while they come; beyond that the target's own memory is read anew.
const MAX_CALLS: usize = 500_000;

impl Reader {
    pub fn new(shared: Shared) -> Reader {
        Reader {
            shared,
            registry: ThreadRegistry::default(),
            drain: None,
        }
    }

    /// What was recorded since then stays, though the target has room for the last calls only.
    pub fn keeping_calls(self) -> Reader {
        Reader {
            drain: Some(Drain::reader()),
            ..self
        }
    }

    /// Functions that were never called stay in it, so that the others keep their numbers from
    /// reading to reading.
    pub fn read(&mut self) -> anyhow::Result<Profile> {
        let Reader {
            shared,
            registry,
            drain,
        } = self;
        registry.update(shared)?;
        let mut profile = snapshot::take(shared, registry, None)?;
        if let Some(drain) = drain
            && !profile.recorded.is_empty()
        {
            let header = shared.header()?;
            if drain.take(shared, &header)? > MAX_CALLS {
                *drain = Drain::reader();
                drain.take(shared, &header)?;
            }
            let hz = profile.meta.clock_hz;
            profile.recorded = drain.recorded(shared, &header, registry, hz, clock::ticks())?;
        }
        calibration::stamp(&mut profile);
        Ok(profile)
    }
}

/// What an attached process has counted so far; it goes on counting. Or what one has left that was
/// attached when it ended.
pub fn read(pid: Pid) -> anyhow::Result<Profile> {
    let profile = match detach::attached(pid) {
        Ok((shared, _)) => Reader::new(shared).read()?,
        Err(error) => match left::left_by(pid)? {
            Some(left) => left.profile()?,
            None => return Err(error.into()),
        },
    };
    Ok(completed(profile, &mut lines::Lookup::default()))
}

/// As it is saved: with the source lines of its functions, and what probes cost here.
pub fn completed(mut profile: Profile, lines: &mut lines::Lookup) -> Profile {
    lines::complete(&mut profile, lines);
    calibration::stamp(&mut profile);
    cycles::complete(&mut profile, None);
    profile
}
