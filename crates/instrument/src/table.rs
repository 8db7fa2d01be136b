//! The table of probed entries: where a tail jump may go so that an entry probe follows.
//!
//! Open addressing, as the probes' assembler and the agent expect it: a search begins at `table_index` and ends at the
//! address or at an empty word. The whole of it lies in the target's shared memory; this is the controller's copy.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use thalweg_abi as shm;
use thalweg_patch::ModulePlan;
use thalweg_symbols::Module;

use crate::error::Result;
use crate::memory::Shared;
use crate::survey::Surveyed;

/// In place of an entry that was taken out: no address, and no end of a search.
const REMOVED: u64 = 1;

#[derive(Clone)]
pub struct Table {
    words: Vec<u64>,
    /// Words that are not 0.
    used: usize,
    /// Whose functions are probed.
    known: Vec<(Arc<Module>, Arc<ModulePlan>)>,
}

impl Table {
    pub fn new(entries: u64, modules: &[Surveyed]) -> Table {
        let mut table = Table {
            words: vec![0; entries as usize],
            used: 0,
            known: Vec::new(),
        };
        for address in table.add(modules) {
            table.place(address);
        }
        table
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    /// All that is entered.
    pub fn addresses(&self) -> Vec<u64> {
        let words = self.words.iter().copied();
        words.filter(|word| *word > REMOVED).collect()
    }

    /// Enters a module that was loaded.
    pub fn insert(&mut self, shared: &Shared, surveyed: &Surveyed) -> Result<()> {
        for address in self.add(std::slice::from_ref(surveyed)) {
            if let Some(index) = self.place(address) {
                self.write(shared, index)?;
            }
        }
        Ok(())
    }

    /// Takes out what lies in a module that was unloaded.
    pub fn remove(&mut self, shared: &Shared, range: Range<u64>) -> Result<()> {
        for index in 0..self.words.len() {
            if range.contains(&self.words[index]) {
                self.words[index] = REMOVED;
                self.write(shared, index)?;
            }
        }
        Ok(())
    }

    /// The probed functions of these modules, and their stubs by which the loader binds calls to probed ones, of these or those
    /// that were there before, at their first use.
    fn add(&mut self, modules: &[Surveyed]) -> Vec<u64> {
        let parts = modules.iter();
        self.known
            .extend(parts.map(|m| (m.module.clone(), m.plan.clone())));
        let slots = modules.iter().flat_map(|m| &m.module.lazy_slots);
        let wanted: HashSet<&str> = slots.map(|slot| slot.symbol.as_str()).collect();
        let probed: HashSet<&str> = self
            .known
            .iter()
            .flat_map(|(module, plan)| {
                let functions = plan.functions.iter();
                functions.map(|plan| module.functions[plan.function].linkage_name.as_deref())
            })
            .flatten()
            .filter(|name| wanted.contains(name))
            .collect();
        let mut addresses = Vec::new();
        for surveyed in modules {
            let functions = surveyed.plan.functions.iter();
            let starts = functions.map(|plan| surveyed.module.functions[plan.function].start);
            let slots = surveyed.module.lazy_slots.iter();
            let lazy = slots.filter(|slot| probed.contains(slot.symbol.as_str()));
            let own = starts.chain(lazy.map(|slot| slot.stub));
            addresses.extend(own.map(|address| address + surveyed.bias));
        }
        addresses
    }

    /// At most three quarters full, so that searches end soon; what finds no room is taken for code without probes.
    fn place(&mut self, address: u64) -> Option<usize> {
        let mask = self.words.len() as u64 - 1;
        let mut index = shm::table_index(address, mask) as usize;
        let mut reusable = None;
        loop {
            match self.words[index] {
                0 => break,
                known if known == address => return None,
                REMOVED => reusable = reusable.or(Some(index)),
                _ => {}
            }
            index = (index + 1) & mask as usize;
        }
        let index = match reusable {
            Some(index) => index,
            None if self.used >= self.words.len() / 4 * 3 => return None,
            None => {
                self.used += 1;
                index
            }
        };
        self.words[index] = address;
        Some(index)
    }

    fn write(&self, shared: &Shared, index: usize) -> Result<()> {
        let place = shm::TABLE_OFFSET + index as u64 * 8;
        shared.write(place, &self.words[index].to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finds(table: &Table, address: u64) -> bool {
        let mask = table.words.len() as u64 - 1;
        let mut index = shm::table_index(address, mask);
        loop {
            match table.words[index as usize] {
                0 => return false,
                known if known == address => return true,
                _ => index = (index + 1) & mask,
            }
        }
    }

    #[test]
    fn what_is_taken_out_leaves_the_rest_to_be_found_and_its_room_to_others() {
        let mut table = Table::new(16, &[]);
        // All with the same first place.
        let addresses = [0x1000, 0x1100, 0x1200, 0x1300].map(|a: u64| a * 16);
        for address in addresses {
            table.place(address);
        }
        for word in &mut table.words {
            if *word == addresses[1] {
                *word = REMOVED;
            }
        }
        assert!(!finds(&table, addresses[1]) && finds(&table, addresses[3]));
        let used = table.used;
        table.place(addresses[1]);
        assert!(finds(&table, addresses[1]) && table.used == used);
        for address in 1..100 {
            table.place(address * 16);
        }
        assert!(
            table.words.contains(&0),
            "a full table would be searched for ever"
        );
    }
}
