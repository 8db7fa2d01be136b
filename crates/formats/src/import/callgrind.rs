//! Callgrind's format: costs per function, and calls with the cost of the callee per pair of
//! functions.
//!
//! It knows pairs and no deeper contexts, and none are made up: every function stands at the top
//! with its own cost, marked as one whose callers are not known there, and below it the functions
//! that it called. What is added up per function and per pair is what the file says; trees and
//! paths end after one step.

use std::collections::HashMap;

use thalweg_model::{FuncId, NodeFlags, Profile};

use super::ImportError;
use super::trees::Trees;

pub fn read(text: &str) -> Result<Profile, ImportError> {
    let mut reader = Reader::default();
    for (number, line) in (1..).zip(text.lines()) {
        reader.line(line.trim()).map_err(|what| ImportError::Line {
            line: number,
            what: what.to_string(),
        })?;
    }
    reader.finish()
}

/// A function by object, file and name.
type Name = (String, String, String);

#[derive(Default)]
struct Reader {
    command: String,
    event: Option<String>,
    positions: usize,
    /// Names by kind (object, file, function) and number.
    names: [HashMap<u64, String>; 3],
    object: String,
    file: String,
    /// Of the lines that follow.
    caller: Option<usize>,
    callee_object: Option<String>,
    callee_file: Option<String>,
    callee: Option<usize>,
    /// Calls that the next cost line belongs to.
    calls: Option<u64>,
    functions: Vec<Name>,
    numbers: HashMap<Name, usize>,
    own: HashMap<usize, u64>,
    pairs: HashMap<(usize, usize), (u64, u64)>,
}

const OBJECT: usize = 0;
const FILE: usize = 1;
const FUNCTION: usize = 2;

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), &'static str> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            return self.cost(line);
        }
        if let Some((key, value)) = line.split_once('=') {
            return self.position(key, value.trim());
        }
        let Some((key, value)) = line.split_once(':') else {
            return Err("neither a name, a cost nor a header");
        };
        match key {
            "events" => self.event = value.split_whitespace().next().map(str::to_string),
            "positions" => self.positions = value.split_whitespace().count().max(1),
            "cmd" => self.command = value.trim().to_string(),
            _ => {}
        }
        Ok(())
    }

    fn position(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        match key {
            "ob" => self.object = self.name(OBJECT, value)?,
            "fl" | "fi" | "fe" => self.file = self.name(FILE, value)?,
            "fn" => {
                let name = self.name(FUNCTION, value)?;
                let key = (self.object.clone(), self.file.clone(), name);
                self.caller = Some(self.number(key));
            }
            "cob" => self.callee_object = Some(self.name(OBJECT, value)?),
            "cfi" | "cfl" => self.callee_file = Some(self.name(FILE, value)?),
            "cfn" => {
                let name = self.name(FUNCTION, value)?;
                let object = self.callee_object.take();
                let file = self.callee_file.take();
                let key = (
                    object.unwrap_or_else(|| self.object.clone()),
                    file.unwrap_or_else(|| self.file.clone()),
                    name,
                );
                self.callee = Some(self.number(key));
            }
            "calls" => {
                let count = value.split_whitespace().next().unwrap_or_default();
                self.calls = Some(count.parse().map_err(|_| "calls= without a number")?);
            }
            // Jumps within a function, and what later versions may add.
            _ => {}
        }
        Ok(())
    }

    /// `(7) name` gives a number a name, `(7)` stands for it.
    fn name(&mut self, kind: usize, value: &str) -> Result<String, &'static str> {
        let Some((number, name)) = value
            .strip_prefix('(')
            .and_then(|rest| rest.split_once(')'))
        else {
            return Ok(value.to_string());
        };
        let Ok(number) = number.parse::<u64>() else {
            // `(anonymous namespace)::f`, `(below main)`
            return Ok(value.to_string());
        };
        let name = name.trim();
        if name.is_empty() {
            let known = self.names[kind].get(&number).cloned();
            return known.ok_or("a number stands for a name that was not given before");
        }
        self.names[kind].insert(number, name.to_string());
        Ok(name.to_string())
    }

    fn number(&mut self, name: Name) -> usize {
        if let Some(&number) = self.numbers.get(&name) {
            return number;
        }
        let number = self.functions.len();
        self.functions.push(name.clone());
        self.numbers.insert(name, number);
        number
    }

    /// Positions, then costs; the first event is the one that counts.
    fn cost(&mut self, line: &str) -> Result<(), &'static str> {
        let mut words = line.split_whitespace().skip(self.positions.max(1));
        let cost = match words.next() {
            Some(cost) => cost.parse::<u64>().map_err(|_| "a cost is not a number")?,
            None => 0,
        };
        let caller = self.caller.ok_or("a cost before any fn=")?;
        match self.calls.take() {
            None => {
                let own = self.own.entry(caller).or_default();
                *own = own.saturating_add(cost);
            }
            Some(calls) => {
                let callee = self.callee.ok_or("calls= before any cfn=")?;
                let pair = self.pairs.entry((caller, callee)).or_default();
                pair.0 = pair.0.saturating_add(calls);
                pair.1 = pair.1.saturating_add(cost);
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Profile, ImportError> {
        let mut trees = Trees::new("callgrind");
        let event = self
            .event
            .ok_or_else(|| ImportError::Malformed("it does not name its events".into()))?;
        trees.meta.command = self
            .command
            .split_whitespace()
            .map(str::to_string)
            .collect();
        let unit = match event.as_str() {
            "ns" => String::new(),
            event => format!(" times are {event}, one shown as 1 ns;"),
        };
        trees.notes.push(format!(
            "imported from callgrind:{unit} it holds pairs of caller and callee, so trees end after one step"
        ));
        let thread = trees.thread(0, 0, "");
        let ours: Vec<FuncId> = self
            .functions
            .iter()
            .map(|(object, file, name)| {
                let module = trees.module(object, "");
                let file = Some(file.as_str()).filter(|file| *file != "???");
                trees.function(module, name, 0, file, 0)
            })
            .collect();
        let mut pairs: Vec<((usize, usize), (u64, u64))> = self.pairs.into_iter().collect();
        pairs.sort_unstable();
        let mut called = vec![false; ours.len()];
        for ((caller, callee), _) in &pairs {
            called[*callee] |= caller != callee;
        }
        for (index, &function) in ours.iter().enumerate() {
            let node = trees.child(thread, None, function)?;
            let own = self.own.get(&index).copied().unwrap_or(0);
            let node = trees.node(thread, node);
            node.self_ns = node.self_ns.saturating_add(own);
            if called[index] {
                // Its callers bring in its inclusive cost; here it would count twice.
                node.flags = NodeFlags::FOLDED;
            } else {
                node.total_ns = node.total_ns.saturating_add(own);
            }
        }
        for ((caller, callee), (calls, cost)) in pairs {
            let top = trees.child(thread, None, ours[caller])?;
            let below = trees.child(thread, Some(top), ours[callee])?;
            let node = trees.node(thread, below);
            node.calls = node.calls.saturating_add(calls);
            node.total_ns = node.total_ns.saturating_add(cost);
            if !called[caller] && caller != callee {
                let top = trees.node(thread, top);
                top.total_ns = top.total_ns.saturating_add(cost);
            }
        }
        trees.finish_as_is()
    }
}
