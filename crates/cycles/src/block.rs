//! A block's cost: how long the busiest resource is busy with it.
//!
//! ```text
//! cost = max(uops / width, max over resources(busy / units))
//! cost of a block that loops on itself = max(cost, chain)
//! ```

use iced_x86::{Decoder, DecoderOptions, Instruction};

use crate::PER_CYCLE;
use crate::chain::chain;
use crate::form::form;
use crate::table::{Class, Table};

const BITS: u32 = 64;

fn decoded(code: &[u8], address: u64) -> Vec<Instruction> {
    let mut decoder = Decoder::with_ip(BITS, code, address, DecoderOptions::NONE);
    let mut all = Vec::new();
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            break;
        }
        all.push(instruction);
    }
    all
}

/// `amount` cycles of one unit, spread over several, in thousandths of a cycle.
fn spread(amount: u64, units: u32) -> u64 {
    let units = u64::from(units.max(1));
    (amount * u64::from(PER_CYCLE) + units / 2) / units
}

/// How long the busiest resource needs for all of these.
fn busiest<'a>(table: &Table, classes: impl Iterator<Item = &'a Class>) -> u64 {
    let mut busy = vec![0u64; table.units.len()];
    let mut uops = 0;
    for class in classes {
        uops += u64::from(class.uops);
        for &(resource, cycles) in &class.uses {
            busy[resource as usize] += u64::from(cycles);
        }
    }
    let resources = busy.iter().zip(&table.units);
    let most = resources.map(|(&busy, &units)| spread(busy, units)).max();
    spread(uops, table.width).max(most.unwrap_or(0))
}

/// What the block costs whose code lies at `address`, in thousandths of a cycle. `loops`: it ends with a jump to its start.
pub fn cost(table: &Table, code: &[u8], address: u64, loops: bool) -> u32 {
    let instructions = decoded(code, address);
    let classes = instructions.iter().map(|one| table.class(form(one)));
    let mut cost = busiest(table, classes);
    if loops {
        cost = cost.max(chain(table, &instructions) * u64::from(PER_CYCLE));
    }
    u32::try_from(cost).unwrap_or(u32::MAX)
}

/// What part of a block's cost each of its instructions has: by what each would cost alone. Their sum is `cost`.
pub fn shares(table: &Table, code: &[u8], address: u64, cost: u32) -> Vec<u32> {
    let instructions = decoded(code, address);
    let alone: Vec<u64> = instructions
        .iter()
        .map(|one| busiest(table, std::iter::once(table.class(form(one)))))
        .collect();
    let all: u64 = alone.iter().sum();
    let (all, alone) = match all {
        0 => (alone.len() as u64, vec![1; alone.len()]),
        _ => (all, alone),
    };
    let (mut sum, mut before) = (0, 0);
    let share = |own: u64| {
        sum += own;
        let until = (u128::from(cost) * u128::from(sum) / u128::from(all)) as u32;
        let share = until - before;
        before = until;
        share
    };
    alone.into_iter().map(share).collect()
}
