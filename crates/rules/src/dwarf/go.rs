//! Go's functions. Their compiler leaves parameters without a name out of the debug information, so
//! the convention alone does not tell where the others are; but it says where each one is at the
//! first instruction.

use std::rc::Rc;

use gimli::AttributeValue;

use super::{Debug, Declared, Entry, Unit};
use crate::types::{Type, TypeRef};

/// What is particular about a function of Go's.
#[derive(Debug, Clone)]
pub(crate) struct Go {
    /// Where the parameters are when the function begins; `None`: that is not said, since nobody
    /// looks at them.
    pub places: Vec<Option<Vec<Piece>>>,
    pub results: Vec<(String, TypeRef, Rc<Type>)>,
}

/// Part of a parameter; its size is `u64::MAX` where nothing is said of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub offset: u64,
    pub size: u64,
    pub at: Where,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    /// In the nth register that carries integers, or floats.
    Int(u8),
    Float(u8),
    /// So far above the return address.
    Stack(i64),
    /// That is not said of this part.
    Nowhere,
}

/// Integer registers in the order in which they are used, by their numbers in debug information:
/// rax rbx rcx rdi rsi r8 r9 r10 r11.
const INTS: [u16; 9] = [0, 3, 2, 5, 4, 8, 9, 10, 11];
const FIRST_VECTOR: u16 = 17;
const FLOATS: u16 = 15;

/// The most pieces that one value may have: as many as there are registers.
const PIECES: usize = 24;

impl Debug {
    pub(super) fn is_go(&self, unit: &Unit) -> bool {
        self.language(unit) == Some(gimli::DW_LANG_Go)
    }

    pub(super) fn declared_in_go(&self, at: TypeRef, address: u64) -> Option<Declared> {
        let (unit, entry) = self.entry(at)?;
        let mut parameters = Vec::new();
        let mut go = Go {
            places: Vec::new(),
            results: Vec::new(),
        };
        self.children(at, |child, unit, entry| {
            if entry.tag() != gimli::DW_TAG_formal_parameter {
                return;
            }
            // Of functions that were also copied into others what they have in common stands
            // elsewhere.
            let origin = self
                .reference(child, unit, entry, gimli::DW_AT_abstract_origin)
                .and_then(|origin| Some((origin, self.entry(origin)?)));
            let (of, (unit_of, entry_of)) =
                origin.unwrap_or_else(|| (child, (unit.clone(), entry.clone())));
            let name = self.string(of, &unit_of, &entry_of, gimli::DW_AT_name);
            let name = name.unwrap_or_default();
            let Some(ty) = self.reference(of, &unit_of, &entry_of, gimli::DW_AT_type) else {
                return;
            };
            let resolved = self.resolve(Some(ty));
            if is_result(&entry_of) || is_result(entry) {
                go.results.push((name, ty, resolved));
            } else {
                go.places.push(self.place_at(unit, entry, address));
                parameters.push((name, resolved));
            }
        });
        let origin = self.reference(at, &unit, &entry, gimli::DW_AT_abstract_origin);
        let named = origin.unwrap_or(at);
        let (unit_of, entry_of) = self.entry(named)?;
        let name = self.string(named, &unit_of, &entry_of, gimli::DW_AT_name);
        let root = unit.entry(unit.header.root_offset()).ok()?;
        let producer = self.string(at, &unit, &root, gimli::DW_AT_producer);
        // A copy for type arguments has a parameter that nobody wrote; without optimisation it says
        // where parameters will be once they are stored, not where they are.
        let is_plain = producer.is_some_and(|by| by.split([' ', ';']).all(|flag| flag != "-N"));
        Some(Declared {
            parameters,
            returns: None,
            rust: false,
            altered: !is_plain || name.is_none_or(|name| name.contains('[')),
            go: Some(go),
        })
    }

    /// Where a parameter is at `address`, the function's first.
    fn place_at(&self, unit: &Unit, entry: &Entry, address: u64) -> Option<Vec<Piece>> {
        let value = entry.attr_value(gimli::DW_AT_location)?;
        let expression = match value {
            AttributeValue::Exprloc(expression) => expression,
            value => {
                let mut list = self.dwarf.attr_locations(unit, value).ok()??;
                loop {
                    let found = list.next().ok()??;
                    if (found.range.begin..found.range.end).contains(&address) {
                        break found.data;
                    }
                }
            }
        };
        let mut operations = expression.operations(unit.encoding());
        let mut pieces = Vec::new();
        let mut offset = 0u64;
        let mut last = None;
        while let Ok(Some(operation)) = operations.next() {
            match operation {
                gimli::Operation::Register { register } => last = Some(register_of(register.0)?),
                gimli::Operation::CallFrameCFA => last = Some(Where::Stack(8)),
                gimli::Operation::FrameOffset { offset } => {
                    last = Some(Where::Stack(offset.checked_add(8)?));
                }
                gimli::Operation::PlusConstant { value } => {
                    let Some(Where::Stack(at)) = last else {
                        return None;
                    };
                    last = Some(Where::Stack(at.checked_add_unsigned(value)?));
                }
                gimli::Operation::Piece {
                    size_in_bits,
                    bit_offset: None,
                } => {
                    let size = size_in_bits / 8;
                    let at = last.take().unwrap_or(Where::Nowhere);
                    pieces.push(Piece { offset, size, at });
                    offset = offset.checked_add(size)?;
                }
                _ => return None,
            }
            if pieces.len() > PIECES {
                return None;
            }
        }
        if let Some(at) = last {
            if !pieces.is_empty() {
                return None;
            }
            let size = u64::MAX;
            pieces.push(Piece { offset, size, at });
        }
        (!pieces.is_empty()).then_some(pieces)
    }
}

fn register_of(number: u16) -> Option<Where> {
    if let Some(n) = INTS.iter().position(|int| *int == number) {
        return Some(Where::Int(n as u8));
    }
    let n = number.checked_sub(FIRST_VECTOR)?;
    (n < FLOATS).then_some(Where::Float(n as u8))
}

/// Results stand among the parameters.
fn is_result(entry: &Entry) -> bool {
    match entry.attr_value(gimli::DW_AT_variable_parameter) {
        Some(AttributeValue::Flag(flag)) => flag,
        Some(value) => value.udata_value().is_some_and(|value| value != 0),
        None => false,
    }
}

const _: () =
    assert!(INTS.len() == thalweg_bytecode::INTS && FLOATS as usize == thalweg_bytecode::FLOATS);
