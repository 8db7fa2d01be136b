//! `--follow`: recorded calls as they end, from a process that goes on. It only samples: whoever records them still gets them all.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use thalweg_formats::calls::Calls;
use thalweg_instrument::detach;
use thalweg_model::{CallEnd, Profile};
use thalweg_ptrace::proc::Pid;
use thalweg_region::clock;
use thalweg_snapshot::call_trace::Drain;
use thalweg_snapshot::snapshot::{self, ThreadRegistry};

use super::filter::Where;
use crate::live::Interrupts;
use crate::report::{self, Style};

const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub fn follow(pid: Pid, filter: &Where, json: bool, style: Style) -> anyhow::Result<()> {
    let interrupts = Interrupts::catch()?;
    let (shared, _) = detach::attached(pid)?;
    let mut registry = ThreadRegistry::default();
    let mut drain = Drain::reader();
    let mut profile = Profile::default();
    while !interrupts.any() {
        let header = shared.header()?;
        let ended = std::fs::metadata(format!("/proc/{pid}")).is_err();
        drain.take(&shared, &header)?;
        if drain.has_ended() {
            if profile.functions.len() < header.functions as usize {
                registry.update(&shared)?;
                profile = snapshot::take(&shared, &registry, None)?;
            }
            let hz = profile.meta.clock_hz;
            profile.recorded = drain.recorded(&shared, &header, &registry, hz, clock::ticks())?;
            let calls = Calls::new(&profile);
            let mut out = std::io::stdout().lock();
            for call in calls.all() {
                let is_new = call.end != CallEnd::Open && call.rule.is_some();
                if !is_new || !filter.holds(&calls, call) {
                    continue;
                }
                match json {
                    true => calls.write_line(call, &mut out),
                    false => report::print_call(&calls, call, &mut out, style),
                }
                .context("cannot write to standard output")?;
            }
            out.flush().context("cannot write to standard output")?;
            drain.forget_ended();
        }
        if ended || header.state != thalweg_abi::STATE_ATTACHED {
            break;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
