//! What the hot path compares before the slow path is asked about an entry: see `thalweg_shm::rules::Filter`.
//!
//! Filters are given out once and then stay as they are, since threads may be looking at them; where there are no more, every entry is asked about.

use std::mem::offset_of;

use thalweg_rules::Quick;
use thalweg_shm as shm;
use thalweg_shm::rules::{self, Filter};

use crate::error::Result;
use crate::memory::{Shared, bytes_of};

/// Which entries of a function are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Never,
    If(Quick),
    Always,
}

/// The filters of one target.
pub struct Filters {
    rules_offset: u64,
    known: Vec<Filter>,
}

impl Filters {
    pub fn read(shared: &Shared, header: &shm::Header) -> Result<Filters> {
        let head: rules::Head = shared.read(header.rules_offset)?;
        let first = u64::from(rules::FIRST_FILTER);
        let count = head.filters_used.min(rules::FILTERS).saturating_sub(first);
        let mut filters = Filters {
            rules_offset: header.rules_offset,
            known: Vec::new(),
        };
        for index in 0..count {
            filters.known.push(shared.read(filters.place(index))?);
        }
        Ok(filters)
    }

    fn place(&self, index: u64) -> u64 {
        let number = u64::from(rules::FIRST_FILTER) + index;
        self.rules_offset + rules::FILTERS_OFFSET + number * rules::FILTER_SIZE
    }

    /// What a function's byte has to be.
    pub fn byte_for(&mut self, asked: Asked, shared: &Shared) -> Result<u8> {
        let quick = match asked {
            Asked::Never => return Ok(0),
            Asked::Always => return Ok(rules::ASK),
            Asked::If(quick) => quick,
        };
        let Some(&register) = rules::FILTER_REGISTERS.get(usize::from(quick.register)) else {
            return Ok(rules::ASK);
        };
        let filter = Filter {
            low: quick.low,
            span: quick.span,
            register,
            cut: quick.cut,
            ..Filter::default()
        };
        let byte = |index: usize| u8::try_from(usize::from(rules::FIRST_FILTER) + index).ok();
        if let Some(index) = self.known.iter().position(|known| *known == filter) {
            return Ok(byte(index).unwrap_or(rules::ASK));
        }
        let index = self.known.len();
        let Some(new) = byte(index) else {
            return Ok(rules::ASK);
        };
        shared.write(self.place(index as u64), bytes_of(&filter))?;
        self.known.push(filter);
        let used = self.rules_offset + offset_of!(rules::Head, filters_used) as u64;
        shared.write(used, &(u64::from(new) + 1).to_le_bytes())?;
        Ok(new)
    }
}
