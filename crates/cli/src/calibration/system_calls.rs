//! What system calls take on this machine: those of fixed cost as a whole, of others what they take at least, and each byte.

use std::fs::File;
use std::hint::black_box;
use std::io::Seek;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::Context;
use serde::{Deserialize, Serialize};

const ROUNDS: usize = 9;
const TIMES: u32 = 500;
const FEW_BYTES: usize = 1;
const MANY_BYTES: usize = 64 << 10;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SystemCallCost {
    pub name: String,
    /// Whatever it is asked for.
    pub base_ns: f64,
    /// Of each byte. 0: there is no such part.
    pub each_ns: f64,
}

/// Measures those that can be made without changing anything. Of several rounds the quickest counts.
pub fn measure() -> anyhow::Result<Vec<SystemCallCost>> {
    let mut file = tempfile::tempfile().context("a file for the calibration")?;
    let mut bytes = vec![1; MANY_BYTES];
    file.write_all_at(&bytes, 0)?;
    let mut all = Vec::new();
    let mut fixed = |name: &str, ns: f64| {
        all.push(SystemCallCost {
            name: name.into(),
            base_ns: ns,
            each_ns: 0.0,
        });
    };
    fixed(
        "getppid",
        ns(|| {
            black_box(std::os::unix::process::parent_id());
        }),
    );
    fixed(
        "getpid",
        ns(|| {
            black_box(std::process::id());
        }),
    );
    fixed(
        "getuid",
        ns(|| {
            black_box(nix::unistd::getuid());
        }),
    );
    fixed(
        "gettid",
        ns(|| {
            black_box(nix::unistd::gettid());
        }),
    );
    fixed("sched_yield", ns(std::thread::yield_now));
    fixed("lseek", ns(|| drop(black_box(file.stream_position()))));
    let mut of_bytes = |names: [&str; 2], mut make: Box<dyn FnMut(usize) + '_>| {
        let few = ns(|| make(FEW_BYTES));
        let many = ns(|| make(MANY_BYTES));
        for name in names {
            all.push(SystemCallCost {
                name: name.into(),
                base_ns: few,
                each_ns: ((many - few) / (MANY_BYTES - FEW_BYTES) as f64).max(0.0),
            });
        }
    };
    let to = &mut bytes;
    let file: &File = &file;
    of_bytes(
        ["read", "pread64"],
        Box::new(|many| drop(black_box(file.read_at(&mut to[..many], 0)))),
    );
    let from = vec![2; MANY_BYTES];
    of_bytes(
        ["write", "pwrite64"],
        Box::new(|many| drop(black_box(file.write_at(&from[..many], 0)))),
    );
    Ok(all)
}

fn ns(make: impl FnMut()) -> f64 {
    ns_of(TIMES, make)
}

fn ns_of(times: u32, mut make: impl FnMut()) -> f64 {
    let round = || {
        let from = Instant::now();
        (0..times).for_each(|_| make());
        from.elapsed().as_nanos() as f64 / f64::from(times)
    };
    std::iter::repeat_with(round)
        .take(ROUNDS)
        .fold(f64::INFINITY, f64::min)
}
