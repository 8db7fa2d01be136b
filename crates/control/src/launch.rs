//! A program started by us, held at the moment when all its code is in memory and none of it has run.

use std::ffi::OsString;
use std::process::ExitStatus;

use crate::error::Result;
use crate::proc::Pid;
use crate::tracee::Stopped;

/// A child that we started, traced from its first instruction.
pub struct Launched {}

impl Launched {
    /// Starts the program; it stands at its first instruction afterwards.
    pub fn start(command: &[OsString]) -> Result<Launched> {
        let _ = command;
        todo!()
    }

    pub fn pid(&self) -> Pid {
        todo!()
    }

    /// Lets the loader map and relocate all needed libraries; stops before any constructor.
    pub fn run_to_ready(&mut self) -> Result<()> {
        todo!()
    }

    /// The stopped child; `None` once it was released or has ended.
    pub fn stopped(&mut self) -> Option<&mut Stopped> {
        todo!()
    }

    /// Lets the child run, untraced.
    pub fn release(&mut self) -> Result<()> {
        todo!()
    }

    /// The exit status, if it has ended.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        todo!()
    }

    /// Releases the child if it is still stopped and waits for its end.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        todo!()
    }
}
