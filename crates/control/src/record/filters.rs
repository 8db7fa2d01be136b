//! What the hot path compares before the slow path is asked about a call: see `thalweg_shm::rules::Filter`.
//!
//! A formula becomes a chain of comparisons, each of which says where it goes on either way. Filters are given out once and then stay as they are, since
//! threads may be looking at them; where there are no more, or where a formula is too long, every call is asked about.

use std::mem::offset_of;

use thalweg_rules::{Formula, Source, Test};
use thalweg_shm as shm;
use thalweg_shm::rules::{self, Filter};

use crate::error::Result;
use crate::memory::{Shared, bytes_of};

/// The most comparisons that are made of one call. Beyond that asking is not much dearer.
const MOST_TESTS: usize = 24;

/// Which calls of a function the slow path is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// When they begin.
    pub entry: Formula,
    /// When they end, with what they were called with.
    pub saved: Formula,
    /// When they return, of those that it was not asked about before.
    pub exit: Formula,
}

/// The filters of one target.
pub struct Filters<'a> {
    shared: &'a Shared,
    rules_offset: u64,
    heads: Vec<Filter>,
    steps: Vec<Filter>,
}

impl Filters<'_> {
    pub fn read<'a>(shared: &'a Shared, header: &shm::Header) -> Result<Filters<'a>> {
        let head: rules::Head = shared.read(header.rules_offset)?;
        let start = header.rules_offset + rules::FILTERS_OFFSET;
        let all = |first: u64, end: u64, most: u64| -> Result<Vec<Filter>> {
            let numbers = first..end.min(most).max(first);
            let filters = numbers.map(|number| shared.read(start + number * rules::FILTER_SIZE));
            filters.collect()
        };
        let first_step = u64::from(rules::FIRST_STEP);
        Ok(Filters {
            shared,
            rules_offset: header.rules_offset,
            heads: all(rules::FIRST_FILTER.into(), head.filters_used, first_step)?,
            steps: all(first_step, head.steps_used, rules::FILTERS)?,
        })
    }

    /// What a function's bytes have to be.
    pub fn bytes_for(&mut self, asked: &Asked) -> Result<[u8; 2]> {
        let exit = self.byte_for(&[(&asked.exit, rules::ASK)], rules::GO_ON)?;
        let (saved, unasked) = match exit {
            rules::GO_ON => (rules::SAVE, rules::GO_ON),
            _ => (rules::SAVE_AND_WATCH, rules::WATCH),
        };
        let formulas = [(&asked.entry, rules::ASK), (&asked.saved, saved)];
        Ok([self.byte_for(&formulas, unasked)?, exit])
    }

    /// The number of what decides which of these is the first to hold, or `otherwise`.
    fn byte_for(&mut self, formulas: &[(&Formula, u8)], otherwise: u8) -> Result<u8> {
        let tests: usize = formulas.iter().map(|(formula, _)| formula.tests()).sum();
        if tests > MOST_TESTS {
            return Ok(rules::ASK);
        }
        let mut chain = Chain {
            filters: self,
            kind: 0,
        };
        let mut first = Link::To(otherwise.into());
        for (formula, then) in formulas.iter().rev() {
            let Some(next) = chain.number(first)? else {
                return Ok(rules::ASK);
            };
            let Some(made) = chain.add(formula, (*then).into(), next)? else {
                return Ok(rules::ASK);
            };
            first = made;
        }
        let needs = chain.kind;
        match first {
            Link::To(known) if known < rules::FIRST_FILTER.into() => Ok(known as u8),
            // It would have to be a first one: it is one of the second formula's.
            Link::To(step) => match self
                .steps
                .get(usize::from(step) - usize::from(rules::FIRST_STEP))
            {
                Some(filter) => self.head(Filter {
                    kind: filter.kind | needs,
                    ..*filter
                }),
                None => Ok(rules::ASK),
            },
            Link::Filter(filter) => self.head(Filter {
                kind: filter.kind | needs,
                ..filter
            }),
        }
    }

    /// The number of a filter that a function's byte can name.
    fn head(&mut self, filter: Filter) -> Result<u8> {
        let byte = |index: usize| u8::try_from(usize::from(rules::FIRST_FILTER) + index).ok();
        if let Some(index) = self.heads.iter().position(|known| *known == filter) {
            return Ok(byte(index).unwrap_or(rules::ASK));
        }
        let Some(number) = byte(self.heads.len()) else {
            return Ok(rules::ASK);
        };
        self.write(number.into(), &filter)?;
        self.heads.push(filter);
        let used = offset_of!(rules::Head, filters_used);
        self.write_word(used, u64::from(number) + 1)?;
        Ok(number)
    }

    /// The number of a filter that others go on to.
    fn step(&mut self, filter: Filter) -> Result<Option<u16>> {
        let number = |index: usize| rules::FIRST_STEP + index as u16;
        if let Some(index) = self.steps.iter().position(|known| *known == filter) {
            return Ok(Some(number(index)));
        }
        if u64::from(rules::FIRST_STEP) + self.steps.len() as u64 >= rules::FILTERS {
            return Ok(None);
        }
        let new = number(self.steps.len());
        self.write(new, &filter)?;
        self.steps.push(filter);
        self.write_word(offset_of!(rules::Head, steps_used), u64::from(new) + 1)?;
        Ok(Some(new))
    }

    fn write(&self, number: u16, filter: &Filter) -> Result<()> {
        let start = self.rules_offset + rules::FILTERS_OFFSET;
        let place = start + u64::from(number) * rules::FILTER_SIZE;
        self.shared.write(place, bytes_of(filter))
    }

    fn write_word(&self, field: usize, value: u64) -> Result<()> {
        let place = self.rules_offset + field as u64;
        self.shared.write(place, &value.to_le_bytes())
    }
}

/// Where a comparison goes on.
#[derive(Clone, Copy)]
enum Link {
    To(u16),
    /// One that has no number yet.
    Filter(Filter),
}

/// A formula on its way to become filters, from its end on.
struct Chain<'c, 'a> {
    filters: &'c mut Filters<'a>,
    /// What the first one has to say of all of them.
    kind: u8,
}

impl Chain<'_, '_> {
    /// What decides `formula`, going on to `met` or `other`. `None`: there are no more filters.
    fn add(&mut self, formula: &Formula, met: u16, other: u16) -> Result<Option<Link>> {
        Ok(match formula {
            Formula::Always => Some(Link::To(met)),
            Formula::Never => Some(Link::To(other)),
            Formula::Test(test) => self.filter(test, met, other).map(Link::Filter),
            Formula::All(parts) | Formula::Any(parts) => {
                let all = matches!(formula, Formula::All(_));
                let mut first = match all {
                    true => Link::To(met),
                    false => Link::To(other),
                };
                for part in parts.iter().rev() {
                    let Some(next) = self.number(first)? else {
                        return Ok(None);
                    };
                    let made = match all {
                        true => self.add(part, next, other)?,
                        false => self.add(part, met, next)?,
                    };
                    let Some(made) = made else { return Ok(None) };
                    first = made;
                }
                Some(first)
            }
        })
    }

    fn number(&mut self, link: Link) -> Result<Option<u16>> {
        match link {
            Link::To(number) => Ok(Some(number)),
            Link::Filter(filter) => self.filters.step(filter),
        }
    }

    fn filter(&mut self, test: &Test, met: u16, other: u16) -> Option<Filter> {
        let vector = |n: u8| rules::FILTER_VECTORS - 8 * i16::from(n);
        let place = match test.source {
            Source::Int(n) => *rules::FILTER_REGISTERS.get(usize::from(n))?,
            Source::Ret(n) => *rules::FILTER_RESULTS.get(usize::from(n))?,
            Source::Float(n) | Source::RetFloat(n) => {
                self.kind |= rules::FILTER_NEEDS_FLOATS;
                vector(n)
            }
            Source::Stack(offset) => rules::FILTER_STACK + i16::try_from(offset).ok()?,
            Source::Errno => {
                self.kind |= rules::FILTER_NEEDS_ERRNO;
                rules::FILTER_ERRNO
            }
        };
        Some(Filter {
            low: test.low,
            span: test.span,
            mask: test.mask,
            place,
            cut: test.cut,
            kind: if test.float { rules::FILTER_FLOAT } else { 0 },
            met,
            other,
        })
    }
}
