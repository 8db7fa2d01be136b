//! Other processes of ours: one that keeps a budget holds the target for a moment now and then, and whoever comes in between waits.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use super::Pid;
use crate::error::{Error, Result};

/// How long another of ours may hold a target.
const PATIENCE: Duration = Duration::from_secs(2);
const NAP: Duration = Duration::from_micros(300);

/// Whether the process runs this very program.
pub fn runs_this_program(pid: Pid) -> bool {
    let file = |name: &str| {
        let known = std::fs::metadata(format!("/proc/{name}/exe")).ok()?;
        Some((known.dev(), known.ino()))
    };
    let own = file("self");
    own.is_some() && own == file(&pid.to_string())
}

/// Whether the tracer has let go since it was named: stops of ours end with the thread that makes them.
fn is_gone(tracer: Pid) -> bool {
    !std::path::Path::new(&format!("/proc/{tracer}")).exists()
}

/// Tries again while another of ours is at it.
pub fn patiently<T>(mut what: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    // Two that begin at the same moment do not meet again and again.
    let nap = NAP + Duration::from_micros(u64::from(std::process::id() % 16) * 40);
    loop {
        match what() {
            Err(Error::AlreadyTraced { tracer, .. })
                if tracer.0 as u32 != std::process::id()
                    && (runs_this_program(tracer) || is_gone(tracer))
                    && Instant::now() < deadline =>
            {
                std::thread::sleep(nap);
            }
            result => return result,
        }
    }
}
