//! `--list` and `--json`: one call after the other, from a file as it is read. Nobody waits for the last of a million calls to see the first, and who
//! has seen enough closes the pipe.

use std::io::{self, Write};

use anyhow::{Context, bail};
use thalweg_formats::calls::Calls;
use thalweg_model::{CallFile, FileError, Profile, ReadError};

use super::{Where, none_recorded};
use crate::args::InputArgs;
use crate::report::{List, OutputArgs, Style};

pub fn print(input: &InputArgs, output: &OutputArgs, filter: &Where) -> anyhow::Result<()> {
    let path = input.existing_path()?;
    let mut file = CallFile::open(path)?;
    if file.profile().recorded.is_empty() {
        bail!(none_recorded(input));
    }
    let mut damaged = None;
    let printed = output.print(|out, style| {
        let mut shown = Shown::new(output.json, style);
        let all = file.for_each_block(|block| {
            shown
                .some(&Calls::of_block(&block), filter, out)
                .map_err(Stopped::Output)
        });
        match all {
            Ok(()) => shown.finish(file.profile(), out),
            Err(Stopped::Output(error)) => Err(error),
            Err(Stopped::Input(error)) => {
                damaged = Some(error);
                Ok(())
            }
        }
    });
    printed.context("cannot write to standard output")?;
    match damaged {
        Some(source) => Err(FileError::Read {
            path: path.to_owned(),
            source,
        }
        .into()),
        None => Ok(()),
    }
}

enum Stopped {
    Input(ReadError),
    Output(io::Error),
}

impl From<ReadError> for Stopped {
    fn from(error: ReadError) -> Stopped {
        Stopped::Input(error)
    }
}

/// What has been shown so far.
pub struct Shown {
    json: bool,
    style: Style,
    list: List,
    any: bool,
}

impl Shown {
    pub fn new(json: bool, style: Style) -> Shown {
        Shown {
            json,
            style,
            list: List::default(),
            any: false,
        }
    }

    pub fn some(&mut self, calls: &Calls, filter: &Where, out: &mut impl Write) -> io::Result<()> {
        for call in calls.all() {
            self.any = true;
            if !filter.holds(calls, call) {
                continue;
            }
            match self.json {
                true => calls.write_line(call, out)?,
                false => self.list.print(calls, call, out, self.style)?,
            }
        }
        Ok(())
    }

    pub fn finish(self, profile: &Profile, out: &mut impl Write) -> io::Result<()> {
        match self.json {
            true => Ok(()),
            false => self.list.finish(profile, self.any, out),
        }
    }
}
