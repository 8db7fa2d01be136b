//! What the probes cost on this machine: measured once, by `thalweg calibrate` or by the first recording that finds nothing, kept in the
//! user's state directory, and written into every profile that is recorded here afterwards.
//!
//! The calibration program (`crates/agent/calibration`) runs by itself and under `thalweg record`. What its loops take more with probes is
//! what the probes cost; the profile says how much of it falls on the caller and on the callee. Of several runs the quickest counts:
//! everything else that a machine does only adds.
//!
//! Reading the clock takes longer than most functions, and the processor goes on with the program's work meanwhile: how much a probe
//! costs depends on how much work there is, and on whether it can be done beside something else. So there are several kinds of work,
//! from none to plenty; their mean is what is taken out, and how far they are apart is how far off that may be.

mod system_calls;

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use thalweg_instrument::agent;
use thalweg_model::{FuncId, Node, ProbeCosts, Profile, read_file};
use thalweg_region::clock;
use thalweg_sampler::samples;
use thalweg_session::budget::{Costs, Goal, Policy};

use crate::args::Mode;

pub use system_calls::SystemCallCost;

const RUNS: usize = 5;
/// As the calibration program has it: calls in a loop, kinds of work, the last of which is the chain, functions that are called
/// once each, and calls of one that is in no cache.
const CALLS_PER_LOOP: f64 = 20_000.0;
const KINDS: usize = thalweg_model::KINDS_OF_WORK;
const CHAIN: usize = KINDS - 1;
const WIDE: [f64; 3] = [256.0, 512.0, 1024.0];
const COLD_CALLS: f64 = 20.0;
const WORDS: usize = 3 * KINDS + WIDE.len() + 1;
/// Reading the counter takes that much longer or shorter than at calibration: another machine under the same name.
const DRIFT: f64 = 1.3;
/// Set in the environment, it has the same effect as `--no-calibrate`.
const NO_CALIBRATE_VARIABLE: &str = "THALWEG_NO_CALIBRATE";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Calibration {
    /// What it is valid for.
    pub thalweg: String,
    pub processor: String,
    pub kernel: String,
    pub inner_ns: f64,
    pub outer_ns: f64,
    pub joint_ns: f64,
    /// Of a call and its return, by kind of work.
    pub kinds_ns: [f64; KINDS],
    pub error: f64,
    pub spread: f64,
    pub first_ns: f64,
    pub far: [(f64, f64); 2],
    /// Of one sample of a stack; 0 where sampling is not allowed.
    pub sample_ns: f64,
    /// Of a call that is only counted, of one of a leaf that is counted at its entry alone, and how much of that may be wrong.
    pub counted_ns: f64,
    pub leaf_ns: f64,
    pub counted_error: f64,
    /// Timed, counted; by kind of work: nanoseconds of its own that a call is seen for, and how much more it takes without probes.
    pub hidden: [[(f64, f64); KINDS]; 2],
    /// What system calls take.
    pub system_calls: Vec<SystemCallCost>,
    /// What reading the counter twice took.
    pub clock_ns: f64,
}

impl Calibration {
    /// Measures this machine, which takes a second or two.
    pub fn measure() -> anyhow::Result<Calibration> {
        let folder = tempfile::tempdir().context("a folder for the calibration program")?;
        let program = folder.path().join("calibration");
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o700)
            .open(&program)?;
        file.write_all(agent::CALIBRATION)?;
        drop(file);
        let mut bare = Ticks::default();
        let mut probed = Ticks::default();
        let mut shares = [f64::INFINITY; KINDS];
        let mut sums = Vec::new();
        let mut hz = 0.0;
        for _ in 0..RUNS {
            bare.keep_least(&Ticks::parse(&run_bare(&program)?)?);
            let (ticks, recorded) = run_probed(&program, folder.path())?;
            sums.push((0..KINDS).map(|kind| ticks.leaves(kind)).sum::<f64>());
            probed.keep_least(&ticks);
            hz = recorded.hz;
            for (least, share) in shares.iter_mut().zip(recorded.in_callee) {
                *least = least.min(share);
            }
        }
        let ns = |ticks: f64| ticks * 1e9 / hz;
        let bare_loop = |kind: usize| ns(bare.bare(kind)) / CALLS_PER_LOOP;
        let leaf = |kind: usize| ns(probed.leaves(kind) - bare.leaves(kind)) / CALLS_PER_LOOP;
        let nest = |kind: usize| ns(probed.nests(kind) - bare.nests(kind)) / CALLS_PER_LOOP;
        let kinds_ns: [f64; KINDS] = std::array::from_fn(leaf);

        // The same work stands in the loop and in what it calls; the call itself is the callee's.
        let inner = |kind: usize| {
            let work = (bare_loop(kind) - bare_loop(0)) / 2.0;
            let call = ns(bare.leaves(kind)) / CALLS_PER_LOOP - bare_loop(kind);
            (shares[kind] - work - call).clamp(0.0, kinds_ns[kind])
        };
        let mean =
            |figure: &dyn Fn(usize) -> f64| (0..CHAIN).map(figure).sum::<f64>() / CHAIN as f64;
        let per_call = mean(&|kind| kinds_ns[kind]);
        let inner_ns = mean(&inner);
        if !per_call.is_finite() || per_call <= 0.0 || inner_ns > per_call {
            bail!(
                "the calibration makes no sense: probes that cost {per_call} ns, of which {inner_ns} ns in the callee"
            );
        }
        let half_range = |figure: &dyn Fn(usize) -> f64| {
            let most = (0..CHAIN).map(figure).fold(f64::MIN, f64::max);
            let least = (0..CHAIN).map(figure).fold(f64::MAX, f64::min);
            (most - least) / 2.0
        };
        sums.sort_by(f64::total_cmp);
        let noise = (sums[RUNS / 2] / sums[0] - 1.0).clamp(0.0, 0.5);
        let sample_ns = samples::look_ns().unwrap_or(0.0);
        let run = |options: &[&str]| {
            let sampled = [options, &["--samples", SAMPLES]].concat();
            let sampled = if sample_ns > 0.0 { &sampled } else { options };
            run_seen(&program, folder.path(), sampled, sample_ns)
        };
        let (counted, timed) = (run(&[])?, run(&["--time", "all"])?);
        let bare_loops = |kind: usize| (ns(bare.leaves(kind)), ns(bare.nests(kind)));
        let bare_both = |kind: usize| bare_loops(kind).0 + bare_loops(kind).1;
        let hidden = [timed.hidden(&bare_both), counted.hidden(&bare_both)];
        let counted_by = |kind: usize| {
            let (bare, probed) = (bare_loops(kind), counted.loops(kind, bare_loops(kind)));
            let more = |probed: f64, bare: f64| (probed - bare).max(0.0) / CALLS_PER_LOOP;
            (more(probed.0, bare.0), more(probed.1, bare.1))
        };
        let counted_leaf = |kind: usize| counted_by(kind).0;
        let counted_frame = |kind: usize| (counted_by(kind).1 - counted_by(kind).0).max(0.0);
        let leaf_ns = mean(&counted_leaf).max(0.0);
        let counted_ns = mean(&counted_frame);
        let wide = |at: usize| ns(probed.wide(at) - bare.wide(at)) / WIDE[at];
        Ok(Calibration {
            thalweg: env!("CARGO_PKG_VERSION").into(),
            processor: processor(),
            kernel: kernel(),
            inner_ns,
            outer_ns: per_call - inner_ns,
            joint_ns: mean(&|kind| nest(kind) - 2.0 * kinds_ns[kind]),
            kinds_ns,
            error: half_range(&|kind| kinds_ns[kind]) / per_call + noise,
            spread: (per_call - kinds_ns[CHAIN]).abs() / per_call,
            first_ns: (ns(probed.cold() - bare.cold()) / COLD_CALLS - per_call).max(0.0),
            far: [1, 2].map(|at| (WIDE[at], (wide(at) - wide(0)).max(0.0))),
            sample_ns,
            counted_ns,
            leaf_ns,
            counted_error: half_range(&counted_frame) / counted_ns.max(0.1) + noise,
            hidden,
            system_calls: system_calls::measure()?,
            clock_ns: clock_ns(),
        })
    }

    /// Measures and keeps, if that was not done yet and nobody forbids it. Never in the way of a recording: what goes wrong is said,
    /// and the figures stay as they are measured.
    pub fn ensure(forbidden: bool, quiet: bool) {
        if forbidden
            || std::env::var_os(NO_CALIBRATE_VARIABLE).is_some()
            || Calibration::kept().is_some()
        {
            return;
        }
        // Not measured again and again where it cannot be kept.
        let Ok(place) = file().and_then(|path| writable(&path).map(|_| path)) else {
            return;
        };
        if !quiet {
            tell!(
                "thalweg: measuring once what its probes cost on this machine, to be kept in {} (--no-calibrate leaves it out)",
                place.display()
            );
        }
        let kept = Calibration::measure().and_then(|measured| measured.keep());
        if let Err(error) = kept
            && !quiet
        {
            tell!("thalweg: not calibrated, so times contain the probes' cost: {error:#}");
        }
    }

    /// The one that was kept, if it is this machine's and still holds.
    pub fn kept() -> Option<Calibration> {
        let text = fs::read_to_string(file().ok()?).ok()?;
        let kept: Calibration = serde_json::from_str(&text).ok()?;
        let ratio = kept.clock_ns / clock_ns();
        let same = kept.thalweg == env!("CARGO_PKG_VERSION")
            && kept.processor == processor()
            && kept.kernel == kernel()
            // A machine that is busy now only samples slower.
            && ratio < DRIFT;
        same.then_some(kept)
    }

    pub fn keep(&self) -> anyhow::Result<PathBuf> {
        let path = file()?;
        let fresh = writable(&path)?;
        let text = serde_json::to_string_pretty(self)?;
        let written = fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, &path));
        written.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Of a call and its return, in nanoseconds.
    pub fn per_call(&self) -> f64 {
        self.inner_ns + self.outer_ns
    }

    fn costs(&self) -> ProbeCosts {
        ProbeCosts {
            inner_ns: self.inner_ns,
            outer_ns: self.outer_ns,
            joint_ns: self.joint_ns,
            error: self.error,
            spread: self.spread,
            first_ns: self.first_ns,
            far: self.far,
            sample_ns: self.sample_ns,
            counted_ns: self.counted_ns,
            leaf_ns: self.leaf_ns,
            counted_error: self.counted_error,
            hidden: self.hidden,
            taken_out: false,
        }
    }
}

/// What a sample takes where nothing was calibrated, in nanoseconds: 13 to 15 us on an AMD EPYC guest of family 26, 18.5 us
/// on an Intel Sapphire Rapids guest, both busy.
const UNCALIBRATED_SAMPLE_NS: f64 = 15_000.0;

/// Where nothing was calibrated: what reading the clock takes now, of which half is the callee's. All of it may be wrong.
fn uncalibrated() -> Costs {
    let timed_ns = clock::probe_cost_ns(true);
    Costs {
        timed_ns,
        counted_ns: clock::probe_cost_ns(false),
        own_ns: timed_ns / 2.0,
        error: 1.0,
        look_ns: UNCALIBRATED_SAMPLE_NS,
    }
}

/// What is done to keep probes cheap, by what they cost here. Where the hottest functions are off, those that are left are called after
/// many others: their calls cost what calls from afar do.
pub fn policy(mode: Mode) -> Option<Policy> {
    let goal = match mode {
        Mode::Budget(percent) => Goal::Share(percent / 100.0),
        Mode::Auto => Goal::TrueTimes,
        Mode::Restless => Goal::Restless,
        Mode::All | Mode::NoClock => return None,
    };
    let known = |kept: Calibration| {
        let far = match goal {
            Goal::Share(_) => kept.far[1].1.max(0.0),
            Goal::TrueTimes | Goal::Restless => 0.0,
        };
        Costs {
            timed_ns: (kept.inner_ns + kept.outer_ns).max(1.0) + far,
            counted_ns: kept.counted_ns + far,
            own_ns: kept.inner_ns,
            error: kept.counted_error,
            look_ns: kept.sample_ns,
        }
    };
    let costs = Calibration::kept().map_or_else(uncalibrated, known);
    Some(Policy { goal, costs })
}

/// Writes what the probes cost here into a profile that was recorded here.
pub fn stamp(profile: &mut Profile) {
    if profile.meta.timed && profile.meta.costs.is_none() {
        profile.meta.costs = Calibration::kept().map(|kept| kept.costs());
    }
}

/// `$XDG_STATE_HOME/thalweg/calibration.json`, by default in `~/.local/state`.
fn file() -> anyhow::Result<PathBuf> {
    let absolute = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".local/state")))
        .context("neither XDG_STATE_HOME nor HOME says where to keep the calibration")?;
    Ok(state.join("thalweg/calibration.json"))
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    ["model name", "cpu family", "model\t", "stepping"]
        .iter()
        .filter_map(|name| field(name))
        .collect::<Vec<_>>()
        .join(" ")
}

fn kernel() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_string()
}

/// A file beside `path`, for the time being, in a folder that is there: what is kept is whole or not at all, others may be reading it.
fn writable(path: &Path) -> anyhow::Result<PathBuf> {
    let folder = path.parent().context("a file in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let fresh = path.with_extension(format!("{}", std::process::id()));
    fs::write(&fresh, "").with_context(|| format!("cannot write {}", fresh.display()))?;
    fs::remove_file(&fresh)?;
    Ok(fresh)
}

/// The quickest of a few tries.
fn clock_ns() -> f64 {
    let tries = (0..5).map(|_| clock::probe_cost_ns(true));
    tries.fold(f64::INFINITY, f64::min)
}

/// What the calibration program says of itself: for each kind of work the loops that call leaves, that call nests, and that call
/// nothing; the calls of many functions; and those of one that is in no cache.
#[derive(Clone, Debug)]
struct Ticks([f64; WORDS]);

impl Default for Ticks {
    fn default() -> Ticks {
        Ticks([f64::INFINITY; WORDS])
    }
}

impl Ticks {
    fn parse(output: &[u8]) -> anyhow::Result<Ticks> {
        let words = output.chunks_exact(8);
        let words: Vec<f64> = words
            .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")) as f64)
            .collect();
        match words.try_into() {
            Ok(words) => Ok(Ticks(words)),
            Err(_) => bail!("the calibration program says nothing"),
        }
    }

    fn keep_least(&mut self, other: &Ticks) {
        for (least, ticks) in self.0.iter_mut().zip(other.0) {
            *least = least.min(ticks);
        }
    }

    fn leaves(&self, kind: usize) -> f64 {
        self.0[3 * kind]
    }

    fn nests(&self, kind: usize) -> f64 {
        self.0[3 * kind + 1]
    }

    fn bare(&self, kind: usize) -> f64 {
        self.0[3 * kind + 2]
    }

    fn wide(&self, at: usize) -> f64 {
        self.0[3 * KINDS + at]
    }

    fn cold(&self) -> f64 {
        self.0[WORDS - 1]
    }
}

fn run_bare(program: &Path) -> anyhow::Result<Vec<u8>> {
    let output = Command::new(program)
        .output()
        .context("the calibration program does not start")?;
    Ok(output.stdout)
}

/// Samples a second of the run that is sampled.
const SAMPLES: &str = "9999";
/// As the calibration program has it: rounds of the run that is sampled, by kind of work; and calls in both loops of a round, for each turn
/// of a loop: a leaf, and two that call each other.
const ROUNDS: [f64; KINDS] = [400.0, 400.0, 400.0, 25.0, 400.0];
const CALLS_PER_TURN: f64 = 3.0;

/// A run that is sampled. Nanoseconds, by kind of work.
struct Seen {
    /// The quickest loop of leaves and of nests, where the clock knows all of a loop: calls are only counted.
    quickest: [(f64, f64); KINDS],
    mean: [(f64, f64); KINDS],
    /// How long both were seen in the program's own code, on average. `None`: sampling is not allowed.
    own: Option<[f64; KINDS]>,
}

fn run_seen(
    program: &Path,
    folder: &Path,
    options: &[&str],
    sample_ns: f64,
) -> anyhow::Result<Seen> {
    let file = folder.join("seen.thalweg");
    let output = Command::new(std::env::current_exe()?)
        .arg("record")
        .args(options)
        .args(["--no-report", "--no-calibrate", "-q", "-o"])
        .args([&file, Path::new("--"), program, Path::new("long")])
        .output()?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("cannot record the calibration program: {}", why.trim());
    }
    let profile = read_file(&file)?;
    let threads = || profile.processes.iter().flat_map(|p| &p.threads);
    let name = |function: FuncId| profile.functions[function].name.as_str();
    let node = |wanted: &str| {
        let mut nodes = threads().flat_map(|thread| &thread.nodes);
        nodes.find(|node| name(node.function) == wanted && node.calls > 0)
    };
    let mut seen = Seen {
        quickest: [(0.0, 0.0); KINDS],
        mean: [(0.0, 0.0); KINDS],
        own: None,
    };
    for kind in 0..KINDS {
        let loops = ["leaves", "nests"].map(|what| node(&format!("{what}_{kind}")));
        let [Some(leaves), Some(nests)] = loops else {
            bail!("the calibration program's loops were not counted");
        };
        let mean = |node: &Node| node.total_ns as f64 / node.calls as f64;
        seen.quickest[kind] = (leaves.min as f64, nests.min as f64);
        seen.mean[kind] = (mean(leaves), mean(nests));
    }
    let Some(sampling) = profile.meta.sampling.filter(|s| s.in_probes > 0) else {
        return Ok(seen);
    };
    // What it took to sample is in the period too.
    let each = (sampling.period_ns as f64 - sample_ns).max(0.0);
    let mut own = [0.0; KINDS];
    for frame in threads().flat_map(|thread| &thread.samples) {
        let kind = name(frame.function).rsplit_once('_');
        let kind = kind.and_then(|(_, kind)| kind.parse::<usize>().ok());
        if let Some(kind) = kind.filter(|kind| *kind < KINDS) {
            own[kind] += frame.own as f64 * each / ROUNDS[kind];
        }
    }
    seen.own = Some(own);
    Ok(seen)
}

impl Seen {
    /// What a call is seen for and how much more it takes without probes. `bare`: both loops of a kind by themselves.
    fn hidden(&self, bare: &dyn Fn(usize) -> f64) -> [(f64, f64); KINDS] {
        let Some(own) = self.own else {
            return [(0.0, 0.0); KINDS];
        };
        std::array::from_fn(|kind| {
            let calls = CALLS_PER_TURN * CALLS_PER_LOOP;
            let seen = own[kind] / calls;
            (seen, bare(kind) / calls - seen)
        })
    }

    /// The quickest loop that took longer than it does by itself: in those that were timed there is no time of callees.
    fn loops(&self, kind: usize, bare: (f64, f64)) -> (f64, f64) {
        let (quickest, mean) = (self.quickest[kind], self.mean[kind]);
        let or = |quickest: f64, bare: f64, mean: f64| match quickest > bare {
            true => quickest,
            false => mean,
        };
        (
            or(quickest.0, bare.0, mean.0),
            or(quickest.1, bare.1, mean.1),
        )
    }
}

struct Probed {
    hz: f64,
    /// Nanoseconds of self per call of each kind's leaf.
    in_callee: [f64; KINDS],
}

fn run_probed(program: &Path, folder: &Path) -> anyhow::Result<(Ticks, Probed)> {
    let file = folder.join("calibration.thalweg");
    let output = Command::new(std::env::current_exe()?)
        .args(["record", "--time", "all", "--samples", "0"])
        .args(["--no-report", "--no-calibrate", "-q", "-o"])
        .args([&file, Path::new("--"), program])
        .output()?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("cannot record the calibration program: {}", why.trim());
    }
    let profile = read_file(&file)?;
    let nodes: Vec<&Node> = profile
        .processes
        .iter()
        .flat_map(|process| &process.threads)
        .flat_map(|thread| &thread.nodes)
        .collect();
    let mut in_callee = [0.0; KINDS];
    for (kind, self_ns) in in_callee.iter_mut().enumerate() {
        let name = format!("leaf_{kind}");
        let is_it = |node: &&&Node| profile.functions[node.function].name == name;
        match nodes.iter().find(is_it) {
            Some(node) if node.calls > 0 => *self_ns = node.self_ns as f64 / node.calls as f64,
            _ => bail!("the calibration program's {name} was not counted"),
        }
    }
    let hz = profile.meta.clock_hz;
    Ok((Ticks::parse(&output.stdout)?, Probed { hz, in_callee }))
}
