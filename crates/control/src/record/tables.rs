//! Rules as the agent reads them: per function a list, behind a byte that the hot path looks at. See `thalweg_shm::rules`.

use std::collections::BTreeMap;
use std::mem::offset_of;

use thalweg_shm as shm;
use thalweg_shm::record as area;
use thalweg_shm::rules::{self, Entry};

use super::{Recording, errno};
use crate::error::{Error, Result};
use crate::memory::{Shared, bytes_of, zeroed};
use crate::proc::Pid;
use crate::survey::{Survey, Surveyed};

/// The rules of one target, by function number.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    lists: BTreeMap<u32, Vec<Wanted>>,
    /// The rules' texts, from rule 1 on.
    pub about: Vec<String>,
    area_words: u64,
    overwrite: bool,
    /// Where threads have their errno.
    errno: Option<i64>,
}

/// One rule of one function, with its time in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    rule: u32,
    flags: u32,
    least_ns: u64,
}

impl Tables {
    /// `lenient`: a rule that no function of this program answers to is no mistake.
    pub fn new(
        pid: Pid,
        recording: &Recording,
        survey: &Survey,
        numbers: &[Vec<u32>],
        lenient: bool,
    ) -> Result<Tables> {
        if recording.rules.len() as u64 >= rules::MAX_RULES {
            return Err(Error::Other(format!(
                "more than {} rules cannot be followed at a time",
                rules::MAX_RULES - 1
            )));
        }
        let is_go = |m: &Surveyed| m.module.go.is_some() && !m.plan.functions.is_empty();
        if survey.modules.iter().any(is_go) {
            return Err(Error::Other(format!(
                "process {pid} runs Go code, whose calls cannot be recorded one by one; nothing was touched"
            )));
        }
        let words = (recording.memory / 8).next_power_of_two();
        let mut tables = Tables {
            area_words: words.clamp(area::AREA_LEAST / 8, area::AREA_ROOM / 8),
            overwrite: recording.overwrite,
            errno: errno::offset(pid, survey),
            about: recording.rules.iter().map(|r| r.text.clone()).collect(),
            ..Tables::default()
        };
        for (index, rule) in recording.rules.iter().enumerate() {
            let wanted = Wanted {
                rule: index as u32 + 1,
                flags: 0,
                least_ns: rule.longer_than,
            };
            let what = format!("the rule '{}'", rule.text);
            tables.add(survey, numbers, &rule.functions, wanted, &what, lenient)?;
        }
        for root in &recording.roots {
            let wanted = Wanted {
                rule: 0,
                flags: rules::ENTRY_ROOT,
                least_ns: 0,
            };
            let what = format!("--root '{root}'");
            tables.add(survey, numbers, root, wanted, &what, lenient)?;
        }
        Ok(tables)
    }

    fn add(
        &mut self,
        survey: &Survey,
        numbers: &[Vec<u32>],
        pattern: &regex::Regex,
        wanted: Wanted,
        what: &str,
        lenient: bool,
    ) -> Result<()> {
        let mut found = false;
        let mut reason = None;
        for (surveyed, numbers) in survey.modules.iter().zip(numbers) {
            for (index, function) in surveyed.module.functions.iter().enumerate() {
                let linkage = function.linkage_name.as_deref();
                let matches = pattern.is_match(&function.name)
                    || linkage.is_some_and(|name| pattern.is_match(name));
                if !matches {
                    continue;
                }
                if numbers[index] == u32::MAX {
                    let skipped = &surveyed.plan.skipped;
                    let why = skipped.iter().find(|s| s.function == index);
                    reason = reason
                        .or(why.map(|skipped| format!("{}: {}", function.name, skipped.reason)));
                    continue;
                }
                found = true;
                self.lists.entry(numbers[index]).or_default().push(wanted);
            }
        }
        match (found || lenient, reason) {
            (true, _) => Ok(()),
            (false, Some(reason)) => Err(Error::Other(format!(
                "{what} names functions that cannot be followed ({reason}); nothing was touched"
            ))),
            (false, None) => Err(Error::Other(format!(
                "{what}: the target has no such function; nothing was touched"
            ))),
        }
    }

    /// Into a target that runs none of the probes yet, or none of these rules.
    pub fn write(&self, shared: &Shared, header: &shm::Header) -> Result<()> {
        let rate = f64::from_bits(header.ticks_hz);
        let ticks = |ns: u64| (ns as f64 * rate / 1e9) as u64;
        let start = header.rules_offset;
        let limit = header.functions_limit;
        let mut programs = vec![0u8; 8];
        let mut least = u64::MAX;
        let mut words = Vec::new();
        for (&function, list) in &self.lists {
            words.push((function, (programs.len() / 8) as u32, list));
            programs.extend_from_slice(&(list.len() as u64).to_le_bytes());
            for wanted in list {
                let entry = Entry {
                    rule: wanted.rule,
                    flags: wanted.flags,
                    least: ticks(wanted.least_ns),
                    ..Entry::default()
                };
                if wanted.rule != 0 {
                    least = least.min(entry.least);
                }
                programs.extend_from_slice(bytes_of(&entry));
            }
        }
        let about = self.about.join("\0");
        let about_offset = programs.len() as u64;
        programs.extend_from_slice(about.as_bytes());
        programs.resize(programs.len().next_multiple_of(8), 0);
        if programs.len() as u64 > rules::PROGRAMS_LEN {
            return Err(Error::Other(
                "the rules name more functions than there is room for".into(),
            ));
        }
        shared.write(start + rules::programs_offset(limit), &programs)?;
        for (function, list, wanted) in words {
            let at = start + rules::lists_offset(limit) + u64::from(function) * 4;
            shared.write(at, &list.to_le_bytes())?;
            let at_entry = wanted.iter().any(|w| w.flags != 0);
            let table = start + rules::TABLE_OFFSET + u64::from(function);
            shared.write(table, &[at_entry.into()])?;
        }
        let mut head: rules::Head = zeroed();
        head.least = least;
        head.area_words = self.area_words;
        head.overwrite = self.overwrite.into();
        head.may_read = 1;
        head.errno_offset = self.errno.unwrap_or(0) as u64;
        head.ticks_per_second = rate as u64;
        head.programs_used = programs.len() as u64;
        head.about_offset = about_offset;
        head.about_len = about.len() as u64;
        shared.write(start, bytes_of(&head))?;
        Ok(())
    }
}

/// What a new thread's slot begins with.
pub fn threshold(shared: &Shared, header: &shm::Header) -> Result<u64> {
    let head: rules::Head = shared.read(header.rules_offset)?;
    Ok(head.least)
}

/// Where the threshold of a slot is.
pub fn threshold_offset(slot: u64) -> u64 {
    shm::SLOTS_OFFSET
        + slot * shm::PAGE
        + area::STATE_OFFSET
        + offset_of!(area::State, threshold) as u64
}
