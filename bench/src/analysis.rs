//! How long the analysis of a large profile takes: 1,000 threads of 10,000 contexts each, read, combined, pruned and
//! summed up by a process of its own, whose memory can so be told from ours. Times are those on the processor.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use thalweg_analysis::{Overview, Thresholds, combine, prune, summary};
use thalweg_model::{
    Creator, FuncId, Function, Module, Node, Process, Profile, Thread, read_file, write_file,
};

use super::Bench;
use super::table::{Goal, Table};

const THREADS: u32 = 1_000;
const CONTEXTS: usize = 10_000;
const FUNCTIONS: u64 = 5_000;
/// All threads together have as many different contexts; each has a part of them.
const SHAPE: usize = 40_000;

impl Bench {
    pub fn analysis(&self, table: &mut Table) -> anyhow::Result<()> {
        let file = self.path("large.thalweg");
        eprint!("\r\x1b[Kwriting a profile of {THREADS} threads");
        let large = large();
        let nodes = summary(&large).contexts;
        write_file(&file, &large)?;
        drop(large);
        let bytes = fs::metadata(&file).map_or(0, |file| file.len());

        let mut best: Option<Vec<f64>> = None;
        for round in 0..self.rounds {
            eprint!("\r\x1b[Kround {} of {}: analysis", round + 1, self.rounds);
            let mut command = Command::new(&self.thalweg);
            command.arg("--analyse").arg(&file);
            let (_, printed) = self.execute(command)?;
            let figures = printed.split_whitespace().map(str::parse);
            let figures: Vec<f64> = figures
                .collect::<Result<_, _>>()
                .with_context(|| format!("the analysis printed {printed:?}"))?;
            if best.as_ref().is_none_or(|best| figures[0] < best[0]) {
                best = Some(figures);
            }
        }
        eprint!("\r\x1b[K");
        let Some([whole, read, combined, pruned, summed, memory]) =
            best.and_then(|figures| <[f64; 6]>::try_from(figures).ok())
        else {
            anyhow::bail!("the analysis printed too little");
        };
        table.heading("analysis of 1,000 threads x 10,000 contexts (ms)");
        let goal = Goal::at_most("s", whole, 3.0);
        table.row("all of it", whole * 1e3, 1.0, bytes, Some(goal));
        for (name, seconds) in [
            ("read the file", read),
            ("combine the threads", combined),
            ("prune", pruned),
            ("summary", summed),
        ] {
            table.row(name, seconds * 1e3, seconds / whole, 0, None);
        }
        table.goal("memory", Goal::at_most("GB", memory / 1e9, 2.0));
        let per_node = bytes as f64 / nodes as f64;
        table.goal(
            "in the file",
            Goal::at_most("bytes a context", per_node, 10.0),
        );
        Ok(())
    }
}

/// What the process of its own does: prints seconds in all and for each step, and the most memory it had.
pub fn analyse(file: &Path) -> anyhow::Result<()> {
    let start = time_on_processor()?;
    let mut last = start;
    let mut steps = Vec::new();
    let mut step = || -> anyhow::Result<()> {
        let now = time_on_processor()?;
        steps.push(now - last);
        last = now;
        Ok(())
    };
    let profile = read_file(file)?;
    step()?;
    let profile = combine(profile);
    step()?;
    let profile = prune(
        profile,
        &Thresholds {
            coverage: 1e-6,
            ..Thresholds::default()
        },
    );
    step()?;
    let figures = summary(&profile);
    let overview = Overview::from_profile(&profile);
    step()?;
    anyhow::ensure!(
        figures.calls > 0 && overview.nodes > 0,
        "there was nothing to analyse"
    );
    print!("{}", time_on_processor()? - start);
    steps.iter().for_each(|seconds| print!(" {seconds}"));
    println!(" {}", most_memory()?);
    Ok(())
}

/// Seconds that this thread, which does all of it, ran: other load on the machine is not ours.
fn time_on_processor() -> anyhow::Result<f64> {
    let path = "/proc/thread-self/schedstat";
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let nanoseconds = text
        .split_whitespace()
        .next()
        .and_then(|ns| ns.parse().ok());
    let nanoseconds: f64 = nanoseconds.with_context(|| format!("{path} is not a number"))?;
    Ok(nanoseconds / 1e9)
}

fn most_memory() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("cannot read own status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kilobytes.context("own status does not tell the memory")? * 1024)
}

/// A pool of threads that do similar things: each has most of the contexts near the root of one large tree.
fn large() -> Profile {
    let mut state = 0x853c_49e6_748f_ea9bu64;
    let mut random = move |limit: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % limit
    };
    let shape: Vec<(Option<u32>, u32)> = (0..SHAPE as u64)
        .map(|index| {
            let parent = index.checked_sub(1).map(|last| random(last + 1) as u32);
            (
                parent,
                (random(FUNCTIONS) * random(FUNCTIONS) / FUNCTIONS) as u32,
            )
        })
        .collect();
    let threads = (0..THREADS).map(|number| Thread {
        tid: 1000 + number,
        name: format!("worker-{number}"),
        created_by: (number > 0).then_some(Creator {
            pid: 1000,
            tid: 1000,
            function: Some(FuncId(0)),
        }),
        nodes: tree(&shape, &mut random),
        ..Thread::default()
    });
    let mut profile = Profile {
        modules: vec![Module {
            name: "synthetic".into(),
            ..Module::default()
        }],
        functions: (0..FUNCTIONS)
            .map(|id| Function {
                name: format!("function_{id}"),
                address: id * 173,
                ..Function::default()
            })
            .collect(),
        processes: vec![Process {
            pid: 1000,
            command: vec!["synthetic".into()],
            threads: threads.collect(),
            ..Process::default()
        }],
        ..Profile::default()
    };
    profile.meta.timed = true;
    profile
}

fn tree(shape: &[(Option<u32>, u32)], random: &mut impl FnMut(u64) -> u64) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::with_capacity(CONTEXTS);
    let mut place: Vec<Option<u32>> = Vec::with_capacity(shape.len());
    for &(parent, function) in shape {
        let above = match parent {
            None => Some(None),
            Some(parent) => place[parent as usize].map(Some),
        };
        let Some(parent) =
            above.filter(|_| nodes.len() < CONTEXTS && (parent.is_none() || random(20) > 0))
        else {
            place.push(None);
            continue;
        };
        place.push(Some(nodes.len() as u32));
        let calls = 1 + random(10).pow(1 + random(5) as u32) / 9;
        let mean = 20 + random(10).pow(1 + random(6) as u32);
        let spread = if calls == 1 { 0 } else { random(mean) };
        nodes.push(Node {
            parent,
            function: FuncId(function),
            calls,
            self_ns: mean * calls + spread,
            min: mean - spread.min(19),
            max: mean + spread,
            ..Node::default()
        });
    }
    for index in (0..nodes.len()).rev() {
        nodes[index].total_ns += nodes[index].self_ns;
        nodes[index].wall_ns = nodes[index].total_ns;
        if let Some(parent) = nodes[index].parent {
            nodes[parent as usize].total_ns += nodes[index].total_ns;
        }
    }
    nodes
}
