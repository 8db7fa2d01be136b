//! What the hot path compares before the slow path is asked about a call: see `thalweg_abi::rules::Filter`.
//!
//! A formula becomes a chain of comparisons, each of which says where it goes on either way. Filters are given out once and then stay as they are, since
//! threads may be looking at them; where there are no more, or where a formula is too long, every call is asked about.

use std::mem::offset_of;

use thalweg_abi as shm;
use thalweg_abi::record as area;
use thalweg_abi::rules::{self, Filter};
use thalweg_rules::{
    Decided, Decision, Formula, Leaf, Pair, Question, Range, Relation, Save, Source, Test, decide,
};

use crate::error::Result;
use crate::memory::{IntoBytes, Shared};

/// The most comparisons that are made at one end of a call. Beyond that asking is not much dearer.
const MOST_TESTS: usize = 24;

/// The filters of one target.
pub struct Filters<'a> {
    shared: &'a Shared,
    rules_offset: u64,
    heads: Vec<Filter>,
    steps: Vec<Filter>,
    ticks_hz: f64,
}

impl<'a> Filters<'a> {
    pub fn read(shared: &'a Shared, header: &shm::Header) -> Result<Filters<'a>> {
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
            ticks_hz: f64::from_bits(header.ticks_hz),
        })
    }

    /// What the bytes of a function with these rules have to be, and how many ticks its calls take that are asked about in any case.
    pub fn bytes_for(&mut self, questions: &[Question]) -> Result<([u8; 2], Option<u64>)> {
        let Some(Decided { decision, longer }) = decide(questions, MOST_TESTS) else {
            return Ok(([rules::ASK; 2], None));
        };
        let longer = longer.map(|ns| self.ticks(ns, 0).0);
        let mut ends = Vec::new();
        collect_ends(&decision, &mut ends);
        // What the function's own byte decides; where the beginning tells ends apart, each of them has its own.
        let whole = match &ends[..] {
            [end] => end.clone(),
            ends => Formula::any(ends.iter().cloned()),
        };
        let exit = self.exit_byte(&whole)?;
        let mut chain = self.chain();
        let mut own = Ends {
            whole,
            named: Vec::new(),
        };
        let first = chain.decision(&decision, &mut own)?;
        let kind = chain.kind;
        Ok(([self.byte_of(first, kind)?, exit], longer))
    }

    /// All ticks that may be one of these nanoseconds, and some more.
    fn ticks(&self, low: u64, span: u64) -> (u64, u64) {
        const MARGIN: f64 = 1e-7;
        let per_ns = self.ticks_hz / 1e9;
        let Some(high) = low.checked_add(span) else {
            return (0, u64::MAX);
        };
        let first = (low as f64 * per_ns * (1.0 - MARGIN)) as u64;
        let first = first.saturating_sub(2);
        let last = match high {
            u64::MAX => u64::MAX,
            high => ((high as f64 + 1.0) * per_ns * (1.0 + MARGIN)) as u64 + 2,
        };
        (first, last.saturating_sub(first))
    }

    fn exit_byte(&mut self, formula: &Formula) -> Result<u8> {
        if formula.tests() > MOST_TESTS {
            return Ok(rules::ASK);
        }
        let mut chain = self.chain();
        let first = chain.add(formula, rules::ASK.into(), rules::GO_ON.into())?;
        let kind = chain.kind;
        self.byte_of(first, kind)
    }

    fn chain(&mut self) -> Chain<'_, 'a> {
        Chain {
            filters: self,
            kind: 0,
        }
    }

    /// The byte that names what was made. `kind`: what the first of them has to say of all.
    fn byte_of(&mut self, first: Option<Link>, kind: u8) -> Result<u8> {
        let filter = match first {
            None => return Ok(rules::ASK),
            Some(Link::To(known)) if known < rules::FIRST_FILTER.into() => return Ok(known as u8),
            // It would have to be a first one.
            Some(Link::To(step)) => {
                let index = usize::from(step).checked_sub(rules::FIRST_STEP.into());
                match index.and_then(|index| self.steps.get(index)) {
                    Some(filter) => *filter,
                    None => return Ok(rules::ASK),
                }
            }
            Some(Link::Filter(filter)) => filter,
        };
        self.head(Filter {
            kind: filter.kind | kind,
            ..filter
        })
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
        self.shared.write(place, filter.as_bytes())
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

/// The different ends that a decision leads to.
fn collect_ends(decision: &Decision, ends: &mut Vec<Formula>) {
    match decision {
        Decision::Test { passed, other, .. } => {
            collect_ends(passed, ends);
            collect_ends(other, ends);
        }
        Decision::Leaf(Leaf::Look { exit, .. }) => {
            if *exit != Formula::Never && !ends.contains(exit) {
                ends.push(exit.clone());
            }
        }
        Decision::Leaf(Leaf::Ask) => {}
    }
}

/// What decides at the ends of a function's calls.
struct Ends {
    whole: Formula,
    named: Vec<(Formula, u8)>,
}

/// A formula on its way to become filters, from its end on.
struct Chain<'c, 'a> {
    filters: &'c mut Filters<'a>,
    /// What the first one has to say of all of them.
    kind: u8,
}

impl Chain<'_, '_> {
    /// What makes `decision`. `None`: there are no more filters.
    fn decision(&mut self, decision: &Decision, ends: &mut Ends) -> Result<Option<Link>> {
        let (test, passed, other) = match decision {
            Decision::Leaf(leaf) => return Ok(Some(Link::To(self.leaf(leaf, ends)?))),
            Decision::Test {
                test,
                passed,
                other,
            } => (test, passed, other),
        };
        let mut number = |to: &Decision| match self.decision(to, ends)? {
            Some(link) => self.number(link),
            None => Ok(None),
        };
        let (Some(met), Some(other)) = (number(passed)?, number(other)?) else {
            return Ok(None);
        };
        Ok(self.filter(test, met, other).map(Link::Filter))
    }

    fn leaf(&mut self, leaf: &Leaf, ends: &mut Ends) -> Result<u16> {
        let (save, exit) = match leaf {
            Leaf::Ask => return Ok(rules::ASK.into()),
            Leaf::Look { save, exit } => (*save, exit),
        };
        if *exit == Formula::Never {
            return Ok(u16::from(match save {
                Save::Nothing => rules::GO_ON,
                Save::Integers => rules::SAVE,
                Save::All => rules::SAVE_ALL,
            }));
        }
        if *exit == ends.whole {
            return Ok(u16::from(match save {
                Save::Nothing => rules::WATCH,
                Save::Integers => rules::SAVE_AND_WATCH,
                Save::All => rules::SAVE_ALL_AND_WATCH,
            }));
        }
        let known = ends.named.iter().find(|(known, _)| known == exit);
        let byte = match known {
            Some((_, byte)) => *byte,
            None => {
                let byte = self.filters.exit_byte(exit)?;
                ends.named.push((exit.clone(), byte));
                byte
            }
        };
        let saved = match save {
            Save::Nothing => 0,
            Save::Integers => area::ARGUMENTS_SAVED,
            Save::All => area::ARGUMENTS_SAVED | area::FLOATS_SAVED,
        };
        Ok(rules::NAMES_EXIT | (saved as u16) << u8::BITS | u16::from(byte))
    }

    /// What decides `formula`, going on to `met` or `other`. `None`: there are no more filters.
    fn add(&mut self, formula: &Formula, met: u16, other: u16) -> Result<Option<Link>> {
        Ok(match formula {
            Formula::Always | Formula::Unknown => Some(Link::To(met)),
            Formula::Never | Formula::Thrown => Some(Link::To(other)),
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
        match test {
            Test::Range(range) => self.range(range, met, other),
            Test::Pair(pair) => self.pair(pair, met, other),
        }
    }

    fn pair(&mut self, pair: &Pair, met: u16, other: u16) -> Option<Filter> {
        let (relation, met, other) = match pair.relation {
            Relation::Equal => (rules::FILTER_EQUAL, met, other),
            Relation::Unequal => (rules::FILTER_EQUAL, other, met),
            Relation::UpTo => (0, met, other),
            Relation::Above => (0, other, met),
        };
        let narrow = if pair.narrow { rules::FILTER_NARROW } else { 0 };
        let signed = if pair.signed { rules::FILTER_SIGNED } else { 0 };
        let second = self.place(pair.right)?;
        // Nothing but the probe's own registers is there for certain.
        (second < 0).then_some(Filter {
            low: u64::from(second as u16),
            span: 0,
            mask: u64::MAX,
            place: self.place(pair.left)?,
            cut: if pair.narrow { 32 } else { 0 },
            kind: rules::FILTER_TWO | relation | narrow | signed,
            met,
            other,
        })
    }

    fn range(&mut self, range: &Range, met: u16, other: u16) -> Option<Filter> {
        let (low, span) = match range.source {
            Source::Took => self.filters.ticks(range.low, range.span),
            _ => (range.low, range.span),
        };
        Some(Filter {
            low,
            span,
            mask: range.mask,
            place: self.place(range.source)?,
            cut: range.cut,
            kind: if range.float { rules::FILTER_FLOAT } else { 0 },
            met,
            other,
        })
    }

    fn place(&mut self, source: Source) -> Option<i16> {
        let vector = |n: u8| rules::FILTER_VECTORS - 8 * i16::from(n);
        Some(match source {
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
            Source::Took => {
                self.kind |= rules::FILTER_NEEDS_TIME;
                rules::FILTER_TIME
            }
        })
    }
}
