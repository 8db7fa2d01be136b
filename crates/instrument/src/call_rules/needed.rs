//! What rules need to hear of: the functions whose calls they choose, and those by which they choose (`above`). Nobody switches these off. Some rules
//! need all others too: a budget refuses them, and where they are in force nothing is switched off by hand.

use std::collections::HashSet;

use regex::Regex;
use thalweg_abi as shm;
use thalweg_abi::rules;
use thalweg_rules::Rule;

use super::change::functions;
use super::tables::{About, Counted, about, named};
use crate::error::{Error, Result};
use crate::memory::Shared;
use crate::proc::Pid;
use crate::states;
use crate::switch::{State, Switcher};

/// No target has more sets of functions: one that says so has scribbled over its memory.
const MOST_SETS: u64 = 1 << 16;

/// By number; empty where nothing is recorded.
pub fn needed(shared: &Shared, header: &shm::Header) -> Result<HashSet<u32>> {
    if header.flags & shm::HEADER_RECORDS == 0 {
        return Ok(HashSet::new());
    }
    let mut needed: HashSet<u32> = named(shared, header)?.into_iter().collect();
    let head: rules::Head = shared.read(header.rules_offset)?;
    let programs = header
        .rules_offset
        .saturating_add(rules::programs_offset(header.functions_limit));
    let sets = head.sets.min(MOST_SETS) * 16;
    let sets = shared.read_vec(programs.saturating_add(head.sets_offset), sets)?;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    // All sets lie among the programs, each at its own place.
    let mut left = rules::PROGRAMS_LEN;
    for set in sets.chunks_exact(16) {
        let (at, len) = (word(&set[..8]), word(&set[8..]));
        let fits = left.checked_sub(len);
        left = fits.ok_or_else(|| Error::Damaged("the target's rules are damaged".into()))?;
        let bits = shared.read_vec(programs.saturating_add(at), len)?;
        for (byte, first) in bits.iter().zip((0u32..).step_by(8)) {
            let all = (0..8).filter(|bit| byte >> bit & 1 != 0);
            let known = all.map(|bit| first + bit);
            needed.extend(known.filter(|function| *function < header.functions));
        }
    }
    Ok(needed)
}

/// Whether a rule is in force that chooses right only where every function is counted.
pub fn needs_all(shared: &Shared, header: &shm::Header) -> Result<bool> {
    if header.flags & shm::HEADER_RECORDS == 0 {
        return Ok(false);
    }
    let rules = in_force(&about(shared, header)?)?;
    Ok(rules.iter().any(|(_, r)| r.needs_all_functions().is_some()))
}

/// With their numbers.
fn in_force(about: &About) -> Result<Vec<(usize, Rule)>> {
    let all = (1..).zip(&about.rules).filter(|(_, rule)| !rule.removed);
    all.map(|(number, rule)| {
        let rule = Rule::parse(&rule.text).map_err(|error| Error::Rule(Box::new(error)))?;
        Ok((number, rule))
    })
    .collect()
}

/// What needs the functions of a target that cannot be switched off because of it.
pub struct Needs {
    pid: Pid,
    rules: Vec<(usize, Rule)>,
    roots: Vec<Regex>,
    functions: Vec<Counted>,
}

impl Needs {
    pub fn read(pid: Pid, shared: &Shared) -> Result<Needs> {
        let header = shared.header()?;
        let about = about(shared, &header)?;
        let roots = about.roots.iter().map(|root| Regex::new(root));
        Ok(Needs {
            pid,
            rules: in_force(&about)?,
            roots: roots.filter_map(std::result::Result::ok).collect(),
            functions: functions(shared, &header, &about.go)?,
        })
    }

    /// Which rule needs this function, and what to do.
    pub fn of(&self, function: u32) -> String {
        let all = self.rules.iter();
        let of_all = all.filter_map(|(number, rule)| {
            let part = rule.needs_all_functions()?;
            let what =
                format!("asks for '{part}', which is known only where every function is counted");
            Some(self.rule(*number, rule, &what))
        });
        let Some(counted) = self.functions.iter().find(|one| one.number == function) else {
            return "rules need it".into();
        };
        let info = counted.info();
        let of_it = self.rules.iter().filter_map(|(number, rule)| {
            let what = match (rule.chooses(&info), rule.asks_above(&info)) {
                (true, _) => "chooses among its calls",
                (_, true) => "chooses by what is below it",
                _ => return None,
            };
            Some(self.rule(*number, rule, what))
        });
        let root = self.roots.iter().find(|root| root.is_match(&counted.name));
        let root = root.map(|root| format!("requests begin with it (--root '{root}')"));
        of_it
            .chain(of_all)
            .chain(root)
            .next()
            .unwrap_or_else(|| "where calls are recorded, what is thrown is read there".into())
    }

    fn rule(&self, number: usize, rule: &Rule, what: &str) -> String {
        format!(
            "rule {number}, '{}', {what}; `thalweg rules -p {} --remove {number}` takes it back",
            rule.text, self.pid
        )
    }
}

/// Whether calls can be chosen by these rules while a budget switches others off.
pub fn check_for_budget(rules: &[Rule]) -> Result<()> {
    check(rules, "leave out --budget")
}

/// The same where functions are off that nobody would bring back.
pub(super) fn check_for_off(rules: &[Rule], shared: &Shared, header: &shm::Header) -> Result<()> {
    let states = states::of_all(shared, header)?;
    let mut states = states.iter().map(|state| State::of(state.state));
    match states.any(|state| state == State::Off) {
        true => check(
            rules,
            "switch on what is off (`thalweg switch PID --time .`)",
        ),
        false => Ok(()),
    }
}

fn check(rules: &[Rule], advice: &str) -> Result<()> {
    for rule in rules {
        if let Some(part) = rule.needs_all_functions() {
            return Err(Error::Refused(format!(
                "the rule '{}' asks for '{part}', which is known only where every function is counted: {advice}, or ask for `above` and `duration` instead",
                rule.text
            )));
        }
    }
    Ok(())
}

/// Switches on what rules need and a budget, or somebody, has switched off before they came.
pub fn bring_back(pid: Pid, shared: &Shared) -> Result<()> {
    let header = shared.header()?;
    let states = states::of_all(shared, &header)?;
    let is_off = |function: &u32| {
        let state = states.get(*function as usize);
        state.is_some_and(|state| State::of(state.state) == State::Off)
    };
    let off = needed(shared, &header)?.into_iter().filter(is_off);
    let wanted: Vec<(u32, State)> = off.map(|function| (function, State::Timed)).collect();
    if !wanted.is_empty() {
        Switcher::of(pid)?.switch(&wanted)?;
    }
    Ok(())
}
