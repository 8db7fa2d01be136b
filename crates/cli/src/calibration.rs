//! What the probes cost on this machine: measured once by `thalweg calibrate`, kept in the user's state directory, and
//! written into every profile that is recorded here afterwards.
//!
//! The calibration program runs by itself and under `thalweg record`; the difference in each of its functions, beyond what
//! the same calls cost without probes, is the probes'. Of several runs the quickest counts: everything else that a machine
//! does only adds.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use thalweg_control::{agent, clock};
use thalweg_model::{Node, ProbeCosts, Profile, read_file};

const RUNS: usize = 5;
/// As the calibration program has it.
const CALLS_PER_LOOP: f64 = 50_000.0;
/// Programs differ from the calibration program: in how much of a probe runs beside other instructions, in how often its data is
/// not in the cache. As far as the truth was off in docs/benchmarks.md.
const MODEL_ERROR: f64 = 0.20;
/// Reading the counter takes that much longer or shorter than at calibration: another machine under the same name.
const DRIFT: f64 = 1.3;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Calibration {
    /// What it is valid for.
    pub thalweg: String,
    pub processor: String,
    pub kernel: String,
    pub inner_ns: f64,
    pub outer_ns: f64,
    pub joint_ns: f64,
    pub error: f64,
    /// What reading the counter twice took.
    pub clock_ns: f64,
}

impl Calibration {
    /// Measures this machine, which takes about a second.
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
        let mut bare = [u64::MAX; 3];
        let mut probed: Vec<Probed> = Vec::new();
        for _ in 0..RUNS {
            for (best, ticks) in bare.iter_mut().zip(run_bare(&program)?) {
                *best = (*best).min(ticks);
            }
            probed.push(run_probed(&program, folder.path())?);
        }
        let ns = |ticks: u64| ticks as f64 * 1e9 / probed[0].hz / CALLS_PER_LOOP;
        let [leaf_loop, nest_loop, bare_loop] = bare.map(ns);
        let best = |figure: fn(&Probed) -> f64| {
            let all = probed.iter().map(figure);
            let worst = all.clone().fold(0.0, f64::max);
            (all.fold(f64::INFINITY, f64::min), worst)
        };
        let (callee, worst_callee) = best(|run| run.leaf.min(run.inner));
        let (caller, worst_caller) = best(|run| run.loop_leaf.min(run.loop_nest));
        let (outer, _) = best(|run| run.outer);
        let inner_ns = callee - (leaf_loop - bare_loop);
        let outer_ns = caller - bare_loop;
        let joint_ns = outer - inner_ns - outer_ns - (nest_loop - leaf_loop);
        if inner_ns.is_nan() || inner_ns + outer_ns <= 0.0 {
            bail!("the calibration makes no sense: probes that cost {inner_ns} and {outer_ns} ns");
        }
        let spread = (worst_callee + worst_caller) / (callee + caller) - 1.0;
        Ok(Calibration {
            thalweg: env!("CARGO_PKG_VERSION").into(),
            processor: processor(),
            kernel: kernel(),
            inner_ns,
            outer_ns,
            joint_ns,
            error: MODEL_ERROR + spread.clamp(0.0, 0.5) / 2.0,
            clock_ns: clock::probe_cost_ns(true),
        })
    }

    /// The one that was kept, if it is this machine's and still holds.
    pub fn kept() -> Option<Calibration> {
        let text = fs::read_to_string(file().ok()?).ok()?;
        let kept: Calibration = serde_json::from_str(&text).ok()?;
        let now = clock::probe_cost_ns(true);
        let ratio = kept.clock_ns / now;
        let same = kept.thalweg == env!("CARGO_PKG_VERSION")
            && kept.processor == processor()
            && kept.kernel == kernel()
            // A machine that is busy now only looks slower.
            && ratio < DRIFT;
        same.then_some(kept)
    }

    pub fn keep(&self) -> anyhow::Result<PathBuf> {
        let path = file()?;
        let folder = path.parent().expect("a file in a folder");
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        // Whole or not at all: others may be reading it.
        let fresh = path.with_extension(format!("{}", std::process::id()));
        let text = serde_json::to_string_pretty(self)?;
        let written = fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, &path));
        written.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    fn costs(&self) -> ProbeCosts {
        ProbeCosts {
            inner_ns: self.inner_ns,
            outer_ns: self.outer_ns,
            joint_ns: self.joint_ns,
            error: self.error,
            taken_out: false,
        }
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

/// Ticks that the loops took.
fn run_bare(program: &Path) -> anyhow::Result<[u64; 3]> {
    let output = Command::new(program)
        .output()
        .context("the calibration program does not start")?;
    let words: Vec<u64> = output
        .stdout
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .collect();
    match words[..] {
        [leaf, nest, bare] => Ok([leaf, nest, bare]),
        _ => bail!("the calibration program says nothing"),
    }
}

/// Nanoseconds of base per call, or per call made.
struct Probed {
    hz: f64,
    leaf: f64,
    inner: f64,
    outer: f64,
    loop_leaf: f64,
    loop_nest: f64,
}

fn run_probed(program: &Path, folder: &Path) -> anyhow::Result<Probed> {
    let file = folder.join("calibration.thalweg");
    let output = Command::new(std::env::current_exe()?)
        .args(["record", "--no-report", "-q", "-o"])
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
    let per_call = |name: &str, calls_of: &str| {
        let find = |name: &str| {
            let is_it = |node: &&&Node| profile.functions[node.function as usize].name == name;
            nodes.iter().find(is_it).copied()
        };
        match (find(name), find(calls_of)) {
            (Some(node), Some(called)) if called.calls > 0 => {
                Ok(node.base as f64 / called.calls as f64)
            }
            _ => bail!("the calibration program's {name} was not counted"),
        }
    };
    Ok(Probed {
        hz: profile.meta.clock_hz,
        leaf: per_call("leaf", "leaf")?,
        inner: per_call("inner", "inner")?,
        outer: per_call("outer", "outer")?,
        loop_leaf: per_call("loop_leaf", "leaf")?,
        loop_nest: per_call("loop_nest", "outer")?,
    })
}
