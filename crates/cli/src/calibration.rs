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

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use thalweg_control::budget::Budget;
use thalweg_control::{agent, clock, samples};
use thalweg_model::{Node, ProbeCosts, Profile, read_file};

const RUNS: usize = 5;
/// As the calibration program has it: calls in a loop, kinds of work, the last of which is the chain, functions that are called
/// once each, and calls of one that is in no cache.
const CALLS_PER_LOOP: f64 = 20_000.0;
const KINDS: usize = 5;
const CHAIN: usize = KINDS - 1;
const WIDE: [f64; 3] = [256.0, 512.0, 1024.0];
const COLD_CALLS: f64 = 20.0;
const WORDS: usize = 3 * KINDS + WIDE.len() + 1;
/// Reading the counter takes that much longer or shorter than at calibration: another machine under the same name.
const DRIFT: f64 = 1.3;
/// Set in the environment, it has the same effect as `--no-calibrate`.
const NOT_BY_ITSELF: &str = "THALWEG_NO_CALIBRATE";

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
    /// Of one look at a stack; 0 where nobody may look.
    pub look_ns: f64,
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
            bare.keep_least(&Ticks::of(&run_bare(&program)?)?);
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
        let usual = &kinds_ns[..CHAIN];
        let most = usual.iter().copied().fold(f64::MIN, f64::max);
        let least = usual.iter().copied().fold(f64::MAX, f64::min);
        sums.sort_by(f64::total_cmp);
        let noise = (sums[RUNS / 2] / sums[0] - 1.0).clamp(0.0, 0.5);
        let wide = |at: usize| ns(probed.wide(at) - bare.wide(at)) / WIDE[at];
        Ok(Calibration {
            thalweg: env!("CARGO_PKG_VERSION").into(),
            processor: processor(),
            kernel: kernel(),
            inner_ns,
            outer_ns: per_call - inner_ns,
            joint_ns: mean(&|kind| nest(kind) - 2.0 * kinds_ns[kind]),
            kinds_ns,
            error: (most - least) / 2.0 / per_call + noise,
            spread: (per_call - kinds_ns[CHAIN]).abs() / per_call,
            first_ns: (ns(probed.cold() - bare.cold()) / COLD_CALLS - per_call).max(0.0),
            far: [1, 2].map(|at| (WIDE[at], (wide(at) - wide(0)).max(0.0))),
            look_ns: samples::look_ns().unwrap_or(0.0),
            clock_ns: clock_ns(),
        })
    }

    /// Measures and keeps, if that was not done yet and nobody forbids it. Never in the way of a recording: what goes wrong is said,
    /// and the figures stay as they are measured.
    pub fn ensure(forbidden: bool, quiet: bool) {
        if forbidden || std::env::var_os(NOT_BY_ITSELF).is_some() || Calibration::kept().is_some() {
            return;
        }
        // Not measured again and again where it cannot be kept.
        let Ok(place) = file().and_then(|path| writable(&path).map(|_| path)) else {
            return;
        };
        if !quiet {
            eprintln!(
                "thalweg: measuring once what its probes cost on this machine, to be kept in {} (--no-calibrate leaves it out)",
                place.display()
            );
        }
        let kept = Calibration::measure().and_then(|measured| measured.keep());
        if let Err(error) = kept
            && !quiet
        {
            eprintln!("thalweg: not calibrated, so times contain the probes' cost: {error:#}");
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
            // A machine that is busy now only looks slower.
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
            look_ns: self.look_ns,
            taken_out: false,
        }
    }
}

/// Nanoseconds that a call costs where nothing was calibrated, and what one without a clock costs of that.
const USUAL_NS: f64 = 22.0;
const COUNTED_SHARE: f64 = 0.35;
const USUAL_LOOK_NS: f64 = 15_000.0;

/// A budget of so many percent, by what the probes cost here. With the hottest functions off, those that are left are called after
/// many others: their calls cost what calls from afar do.
pub fn budget(percent: f64) -> Budget {
    let kept = Calibration::kept();
    let known = |kept: &Calibration| {
        let near = (kept.inner_ns + kept.outer_ns).max(1.0);
        (near, kept.inner_ns, kept.far[1].1.max(0.0))
    };
    let usual = (USUAL_NS, USUAL_NS / 2.0, USUAL_NS / 3.0);
    let (near, own_ns, far) = kept.as_ref().map_or(usual, known);
    Budget {
        share: percent / 100.0,
        timed_ns: near + far,
        counted_ns: near * COUNTED_SHARE + far,
        own_ns,
        look_ns: kept.map_or(USUAL_LOOK_NS, |kept| kept.look_ns),
    }
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
    fn of(output: &[u8]) -> anyhow::Result<Ticks> {
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

struct Probed {
    hz: f64,
    /// Nanoseconds of base per call of each kind's leaf.
    in_callee: [f64; KINDS],
}

fn run_probed(program: &Path, folder: &Path) -> anyhow::Result<(Ticks, Probed)> {
    let file = folder.join("calibration.thalweg");
    let output = Command::new(std::env::current_exe()?)
        .args(["record", "--no-report", "--no-calibrate", "-q", "-o"])
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
    for (kind, base) in in_callee.iter_mut().enumerate() {
        let name = format!("leaf_{kind}");
        let is_it = |node: &&&Node| profile.functions[node.function as usize].name == name;
        match nodes.iter().find(is_it) {
            Some(node) if node.calls > 0 => *base = node.base as f64 / node.calls as f64,
            _ => bail!("the calibration program's {name} was not counted"),
        }
    }
    let hz = profile.meta.clock_hz;
    Ok((Ticks::of(&output.stdout)?, Probed { hz, in_callee }))
}
