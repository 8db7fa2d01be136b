//! What the ledger knows for those who switch the probes of single functions: whose the patches are, where a function's mode is,
//! and which functions hang together.

use thalweg_abi as shm;
use thalweg_patch::{Emitted, FragmentPlan, ModulePlan, Probe};

use super::{Input, Ledger, damaged, folded, put, unfolded};
use crate::error::Result;
use crate::survey::Surveyed;

/// Owner of a patch that is never taken out by itself: that of a gate, or of a part that several functions may share.
pub const NOBODYS: u32 = u32::MAX;

/// A counted function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switchable {
    pub function: u32,
    /// Its code.
    pub low: u64,
    pub high: u64,
    /// Address of the byte in its stub that says how its calls are counted; 0: it cannot be told.
    pub mode_at: u64,
    /// Never to be switched off: it has a gate, allocates where that is counted, or its exits tell where a thread goes on.
    pub fixed: bool,
    /// Has a probe at its entry alone: it is counted, and never timed.
    pub leaf: bool,
    /// Functions whose patches have to be there as long as its own are.
    pub needs: Vec<u32>,
}

/// The probe before a jump to `target`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// A function's number.
    pub target: u32,
    /// Where the displacement of its call lies, in a stub.
    pub address: u64,
    /// What it is while the target is probed, and while it is switched off.
    pub probed: [u8; 4],
    pub unprobed: [u8; 4],
}

/// The same for one module.
#[derive(Default)]
pub struct Switches {
    pub owners: Vec<u32>,
    pub switchable: Vec<Switchable>,
    pub tails: Vec<Tail>,
}

impl Switches {
    /// `numbers`: function number by index in the module, `NOBODYS` where there is none.
    pub fn of(
        surveyed: &Surveyed,
        plan: &ModulePlan,
        numbers: &[u32],
        emitted: &Emitted,
    ) -> Switches {
        let number = |index: usize| numbers.get(index).copied().unwrap_or(NOBODYS);
        let mut modes: Vec<u64> = vec![0; numbers.len()];
        for entry in &emitted.entries {
            // The number ends the probe, but for the instruction that mends the stack pointer.
            const MENDS: u64 = 8;
            let end = entry.end - if entry.loops { MENDS } else { 0 };
            modes[entry.function] = end - 4 + shm::MODE_BYTE;
        }
        // These have more behind it.
        for (function, _) in &surveyed.allocators {
            modes[*function] = 0;
        }
        // Its mode is that of all Python functions, which have none of their own: they are timed or,
        // with the word that names them, off.
        let evaluator = surveyed.python.function();
        if let Some(mode) = evaluator.and_then(|function| modes.get_mut(function)) {
            *mode = 0;
        }
        // Fragments stay patched, so those in whose bytes they have springboards do too.
        let mut fragments: Vec<Option<&FragmentPlan>> = vec![None; numbers.len()];
        for fragment in &plan.fragments {
            if let Some(place) = fragments.get_mut(fragment.function) {
                *place = Some(fragment);
            }
        }
        let held = (plan.fragments.iter().flat_map(|f| f.hosts.iter().copied()))
            .chain(surveyed.gates.iter().map(|(function, _)| *function))
            .chain(surveyed.allocators.iter().map(|(function, _)| *function))
            .chain(surveyed.enters_kernel.iter().map(|one| one.function))
            .chain(surveyed.watched.iter().map(|one| one.function))
            // By its first patch a module is known to be instrumented.
            .chain(emitted.owners.first().copied());
        let held = flags(numbers.len(), held);
        let leaves = flags(numbers.len(), emitted.leaves.iter().copied());
        let mut switchable: Vec<Switchable> = Vec::new();
        for planned in &plan.functions {
            let index = planned.function;
            if number(index) == NOBODYS {
                continue;
            }
            let events = planned.windows.iter().flat_map(|w| &w.events);
            let special = |probe: Probe| matches!(probe, Probe::Switch { .. });
            let function = &surveyed.module.functions[index];
            // What goes on in a fragment goes on in whatever that does.
            let mut all = planned.needs.clone();
            let mut done = 0;
            while let Some(other) = all.get(done) {
                done += 1;
                let part = fragments.get(*other).copied().flatten();
                for next in part.map_or(&[][..], |part| &part.continues_in) {
                    if *next != index && !all.contains(next) {
                        all.push(*next);
                    }
                }
            }
            let needs = all.into_iter().map(number);
            switchable.push(Switchable {
                function: number(index),
                low: function.start + surveyed.bias,
                high: function.end + surveyed.bias,
                mode_at: modes[index],
                fixed: held[index] || events.into_iter().any(|e| special(e.probe)),
                leaf: leaves[index],
                needs: needs.filter(|&other| other != NOBODYS).collect(),
            });
        }
        Switches {
            owners: emitted.owners.iter().map(|&owner| number(owner)).collect(),
            switchable,
            tails: emitted
                .tails
                .iter()
                .map(|tail| Tail {
                    target: number(tail.target),
                    address: tail.address,
                    probed: tail.probed,
                    unprobed: tail.unprobed,
                })
                .filter(|tail| tail.target != NOBODYS)
                .collect(),
        }
    }
}

/// Which of so many functions are among these.
fn flags(count: usize, functions: impl Iterator<Item = usize>) -> Vec<bool> {
    let mut flags = vec![false; count];
    for function in functions {
        if let Some(flag) = flags.get_mut(function) {
            *flag = true;
        }
    }
    flags
}

impl Ledger {
    pub(super) fn encode_switches(&self, out: &mut Vec<u8>) {
        put(out, self.moves.len() as u64);
        let (mut last_home, mut last_stub) = (0, 0u64);
        for &(home, stub) in &self.moves {
            put(out, home - last_home);
            put(out, folded(last_stub, stub));
            (last_home, last_stub) = (home, stub);
        }
        put(out, self.owners.len() as u64);
        let mut last = 0;
        for &owner in &self.owners {
            put(out, folded(last, owner.into()));
            last = owner.into();
        }
        put(out, self.switchable.len() as u64);
        let (mut function, mut low, mut mode) = (0, 0, 0);
        for one in &self.switchable {
            put(out, folded(function, one.function.into()));
            put(out, folded(low, one.low));
            put(out, one.high - one.low);
            put(out, folded(mode, one.mode_at));
            put(out, u64::from(one.fixed) | u64::from(one.leaf) << 1);
            put(out, one.needs.len() as u64);
            for &other in &one.needs {
                put(out, folded(one.function.into(), other.into()));
            }
            (function, low, mode) = (one.function.into(), one.low, one.mode_at);
        }
        put(out, self.tails.len() as u64);
        let mut address = 0;
        for tail in &self.tails {
            put(out, tail.target.into());
            put(out, folded(address, tail.address));
            out.extend(tail.probed);
            out.extend(tail.unprobed);
            address = tail.address;
        }
    }

    pub(super) fn decode_switches(&mut self, input: &mut Input) -> Result<()> {
        let (mut home, mut stub) = (0u64, 0u64);
        for _ in 0..input.number()? {
            home = home.wrapping_add(input.number()?);
            stub = unfolded(stub, input.number()?);
            self.moves.push((home, stub));
        }
        let mut owner = 0;
        for _ in 0..input.number()? {
            owner = unfolded(owner, input.number()?);
            self.owners.push(owner as u32);
        }
        if self.owners.len() != self.patches.len() {
            return Err(damaged());
        }
        let (mut function, mut low, mut mode) = (0, 0, 0);
        for _ in 0..input.number()? {
            function = unfolded(function, input.number()?);
            low = unfolded(low, input.number()?);
            let high = low.wrapping_add(input.number()?);
            mode = unfolded(mode, input.number()?);
            let marks = input.number()?;
            let mut needs = Vec::new();
            for _ in 0..input.number()? {
                needs.push(unfolded(function, input.number()?) as u32);
            }
            self.switchable.push(Switchable {
                function: function as u32,
                low,
                high,
                mode_at: mode,
                fixed: marks & 1 != 0,
                leaf: marks & 2 != 0,
                needs,
            });
        }
        let mut address = 0;
        for _ in 0..input.number()? {
            let target = input.number()? as u32;
            address = unfolded(address, input.number()?);
            let mut word = || {
                let bytes = input.take(4)?;
                Ok([bytes[0], bytes[1], bytes[2], bytes[3]])
            };
            self.tails.push(Tail {
                target,
                address,
                probed: word()?,
                unprobed: word()?,
            });
        }
        Ok(())
    }
}
