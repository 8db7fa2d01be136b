//! What a model says of each form of an instruction. `derive` writes it, `examples/tables.rs` packs it.
//!
//! ```text
//! width | resources | units of each | classes | of each: uops latency advance, uses (resource cycles)... | forms |
//! of each: difference to the form before, class
//! ```
//! All of them numbers in LEB128, lists with their length before them.

use crate::form::Form;

/// The same numbers for many instructions.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// Micro-operations.
    pub uops: u32,
    /// Cycles from operands to result.
    pub latency: u32,
    /// By how many cycles later than an address other operands may come.
    pub advance: u32,
    /// Resource, and for how many cycles one of its units is busy.
    pub uses: Vec<(u32, u32)>,
}

/// A model of a family of processors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Micro-operations that can begin in a cycle.
    pub width: u32,
    /// Of each resource, how many there are of it.
    pub units: Vec<u32>,
    pub classes: Vec<Class>,
    /// In order.
    forms: Vec<(Form, u32)>,
    /// Of what the model does not know.
    other: Class,
}

impl Table {
    pub fn new(width: u32, units: Vec<u32>, classes: Vec<Class>, forms: Vec<(Form, u32)>) -> Table {
        Table {
            width,
            units,
            classes,
            forms,
            other: Class {
                uops: 1,
                latency: 1,
                ..Class::default()
            },
        }
    }

    /// `None`: the model does not know it.
    pub fn known(&self, form: Form) -> Option<&Class> {
        let find = |form: Form| {
            let found = self.forms.binary_search_by_key(&form, |known| known.0);
            let (_, class) = self.forms[found.ok()?];
            self.classes.get(class as usize)
        };
        find(form).or_else(|| find(form.plain()))
    }

    pub fn class(&self, form: Form) -> &Class {
        self.known(form).unwrap_or(&self.other)
    }

    pub fn pack(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.width);
        put(&mut out, self.units.len() as u32);
        for &units in &self.units {
            put(&mut out, units);
        }
        put(&mut out, self.classes.len() as u32);
        for class in &self.classes {
            put(&mut out, class.uops);
            put(&mut out, class.latency);
            put(&mut out, class.advance);
            put(&mut out, class.uses.len() as u32);
            for &(resource, cycles) in &class.uses {
                put(&mut out, resource);
                put(&mut out, cycles);
            }
        }
        put(&mut out, self.forms.len() as u32);
        let mut before = 0;
        for &(form, class) in &self.forms {
            put(&mut out, form.number() - before);
            put(&mut out, class);
            before = form.number();
        }
        out
    }

    /// `None`: these are not the bytes of a table.
    pub fn unpack(bytes: &[u8]) -> Option<Table> {
        let mut input = bytes.iter();
        let input = &mut input;
        let width = take(input)?;
        let units = list(input, take)?;
        let classes = list(input, |input| {
            Some(Class {
                uops: take(input)?,
                latency: take(input)?,
                advance: take(input)?,
                uses: list(input, |input| Some((take(input)?, take(input)?)))?,
            })
        })?;
        let mut number = 0u32;
        let forms = list(input, |input| {
            number = number.checked_add(take(input)?)?;
            Some((Form::from_number(number), take(input)?))
        })?;
        let uses = classes.iter().flat_map(|class| &class.uses);
        let is_sound = width > 0
            && uses
                .clone()
                .all(|&(resource, _)| units.get(resource as usize).is_some_and(|&units| units > 0));
        is_sound.then(|| Table::new(width, units, classes, forms))
    }
}

fn put(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take(input: &mut std::slice::Iter<u8>) -> Option<u32> {
    let (mut value, mut shift) = (0u32, 0);
    loop {
        let byte = *input.next()?;
        value |= u32::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(value);
        }
        shift += 7;
    }
}

fn list<T>(
    input: &mut std::slice::Iter<u8>,
    mut one: impl FnMut(&mut std::slice::Iter<u8>) -> Option<T>,
) -> Option<Vec<T>> {
    let many = take(input)?;
    (0..many).map(|_| one(input)).collect()
}
