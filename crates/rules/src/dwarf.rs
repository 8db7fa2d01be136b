//! What debug information says of a function: the names and types of its arguments, and what it
//! returns.
//!
//! Looked up by the function's address, and only for functions that a rule means. Types are read
//! when something asks for them.

mod go;
mod types;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use gimli::{AttributeValue, UnitOffset, UnitSectionOffset};
use thalweg_symbols::{Dwarf, Reader};

pub(crate) use self::go::{Go, Piece, Where};
use crate::types::{Type, TypeRef};

type Entry = gimli::DebuggingInformationEntry<Reader>;
type Unit = gimli::Unit<Reader>;

/// How many entries lead from one to the next before it is a circle.
const CHAIN: usize = 32;

/// What one structure or enumeration may have.
const MEMBERS: usize = 4096;

/// How many types are looked up for one function. Structures that contain each other in great
/// numbers, or that a damaged file makes contain themselves, are not followed further.
const LOOKUPS: u32 = 50_000;

/// The debug information of one module.
pub(crate) struct Debug {
    dwarf: Dwarf,
    /// Where the units begin, in order.
    starts: Vec<usize>,
    shared_starts: Vec<usize>,
    units: RefCell<HashMap<TypeRef, Option<Rc<Unit>>>>,
    /// From, to (exclusive), start of the unit; in order.
    ranges: Vec<(u64, u64, usize)>,
    /// The functions of the units that were looked into, by address.
    functions: RefCell<HashMap<usize, Rc<HashMap<u64, UnitOffset>>>>,
    types: RefCell<HashMap<TypeRef, Rc<Type>>>,
    /// Where the structures of a name are defined; made when the first is looked for that is only
    /// declared.
    definitions: OnceCell<HashMap<String, Definition>>,
    lookups: Cell<u32>,
}

/// Where one structure is defined.
#[derive(Clone, Copy)]
struct Definition {
    at: TypeRef,
    size: u64,
    /// Others of this name have other sizes, so nobody knows which is meant.
    ambiguous: bool,
}

/// A function as it is declared.
#[derive(Debug, Clone)]
pub(crate) struct Declared {
    pub parameters: Vec<(String, Rc<Type>)>,
    /// `None`: nothing.
    pub returns: Option<Rc<Type>>,
    pub rust: bool,
    /// The compiler changed how this copy is called: arguments are not where the convention puts
    /// them.
    pub altered: bool,
    pub go: Option<Go>,
}

impl Debug {
    pub(crate) fn load(path: &Path) -> Option<Debug> {
        Debug::new(thalweg_symbols::debug_info(path)?)
    }

    /// Unless the file is another build.
    pub(crate) fn load_build(path: &Path, build_id: &str) -> Option<Debug> {
        Debug::new(thalweg_symbols::debug_info_of(path, build_id)?)
    }

    fn new(dwarf: Dwarf) -> Option<Debug> {
        let starts = unit_starts(&dwarf);
        let shared_starts = dwarf.sup().map(unit_starts).unwrap_or_default();
        let mut debug = Debug {
            dwarf,
            starts,
            shared_starts,
            units: RefCell::default(),
            ranges: Vec::new(),
            functions: RefCell::default(),
            types: RefCell::default(),
            definitions: OnceCell::new(),
            lookups: Cell::new(0),
        };
        let mut ranges = Vec::new();
        for start in &debug.starts {
            let Some(unit) = debug.unit(false, *start) else {
                continue;
            };
            let Ok(mut list) = debug.dwarf.unit_ranges(&unit) else {
                continue;
            };
            while let Ok(Some(range)) = list.next() {
                if range.begin < range.end {
                    ranges.push((range.begin, range.end, *start));
                }
            }
        }
        ranges.sort_unstable();
        debug.ranges = ranges;
        (!debug.starts.is_empty()).then_some(debug)
    }

    fn dwarf(&self, supplementary: bool) -> Option<&Dwarf> {
        if supplementary {
            self.dwarf.sup()
        } else {
            Some(&self.dwarf)
        }
    }

    fn unit(&self, supplementary: bool, start: usize) -> Option<Rc<Unit>> {
        let key = TypeRef {
            supplementary,
            offset: start,
        };
        if let Some(unit) = self.units.borrow().get(&key) {
            return unit.clone();
        }
        let dwarf = self.dwarf(supplementary)?;
        let unit = dwarf
            .unit_header(gimli::DebugInfoOffset(start))
            .and_then(|header| dwarf.unit(header))
            .ok()
            .map(Rc::new);
        self.units.borrow_mut().insert(key, unit.clone());
        unit
    }

    /// The unit and the entry that `at` means.
    fn entry(&self, at: TypeRef) -> Option<(Rc<Unit>, Entry)> {
        let starts = if at.supplementary {
            &self.shared_starts
        } else {
            &self.starts
        };
        let next = starts.partition_point(|start| *start <= at.offset);
        let start = *starts.get(next.checked_sub(1)?)?;
        let unit = self.unit(at.supplementary, start)?;
        let entry = unit.entry(UnitOffset(at.offset.checked_sub(start)?)).ok()?;
        Some((unit, entry))
    }

    fn reference(
        &self,
        of: TypeRef,
        unit: &Unit,
        entry: &Entry,
        name: gimli::DwAt,
    ) -> Option<TypeRef> {
        match entry.attr_value(name)? {
            AttributeValue::UnitRef(offset) => Some(TypeRef {
                supplementary: of.supplementary,
                offset: start_of(unit)?.checked_add(offset.0)?,
            }),
            AttributeValue::DebugInfoRef(offset) => Some(TypeRef {
                supplementary: of.supplementary,
                offset: offset.0,
            }),
            AttributeValue::DebugInfoRefSup(offset) => Some(TypeRef {
                supplementary: true,
                offset: offset.0,
            }),
            _ => None,
        }
    }

    fn string(&self, of: TypeRef, unit: &Unit, entry: &Entry, name: gimli::DwAt) -> Option<String> {
        let value = entry.attr_value(name)?;
        let text = self
            .dwarf(of.supplementary)?
            .attr_string(unit, value)
            .ok()?;
        let text = gimli::Reader::to_string_lossy(&text).ok()?;
        Some(text.into_owned())
    }

    /// The function that begins at `address` (the module's own).
    pub(crate) fn function(&self, address: u64, linkage_name: Option<&str>) -> Option<Declared> {
        self.lookups.set(0);
        let next = self.ranges.partition_point(|range| range.0 <= address);
        // Ranges of units may contain each other; the innermost are nearest.
        let candidates = self.ranges[..next].iter().rev().take(64);
        candidates
            .filter(|range| address < range.1)
            .find_map(|range| {
                let functions = self.functions_of(range.2)?;
                let offset = *functions.get(&address)?;
                let at = TypeRef {
                    supplementary: false,
                    offset: range.2 + offset.0,
                };
                self.declared(at, linkage_name, address)
            })
    }

    fn functions_of(&self, start: usize) -> Option<Rc<HashMap<u64, UnitOffset>>> {
        if let Some(functions) = self.functions.borrow().get(&start) {
            return Some(functions.clone());
        }
        let unit = self.unit(false, start)?;
        let mut functions = HashMap::new();
        let mut entries = unit.entries();
        while let Ok(Some(entry)) = entries.next_dfs() {
            if entry.tag() != gimli::DW_TAG_subprogram {
                continue;
            }
            let Ok(mut ranges) = self.dwarf.die_ranges(&unit, entry) else {
                continue;
            };
            while let Ok(Some(range)) = ranges.next() {
                functions.entry(range.begin).or_insert(entry.offset());
            }
        }
        let functions = Rc::new(functions);
        self.functions.borrow_mut().insert(start, functions.clone());
        Some(functions)
    }

    fn declared(&self, at: TypeRef, linkage_name: Option<&str>, address: u64) -> Option<Declared> {
        let (unit, entry) = self.entry(at)?;
        if self.is_go(&unit) {
            return self.declared_in_go(at, address);
        }
        let mut parameters = self.parameters(at);
        let mut returns = self.reference(at, &unit, &entry, gimli::DW_AT_type);
        let mut altered = convention(&entry) == Some(gimli::DW_CC_nocall);
        let mut next = at;
        for _ in 0..CHAIN {
            let Some((unit, entry)) = self.entry(next) else {
                break;
            };
            let origin = self
                .reference(next, &unit, &entry, gimli::DW_AT_abstract_origin)
                .or_else(|| self.reference(next, &unit, &entry, gimli::DW_AT_specification));
            let Some(origin) = origin else { break };
            let (unit, entry) = self.entry(origin)?;
            returns = returns.or_else(|| self.reference(origin, &unit, &entry, gimli::DW_AT_type));
            if parameters.is_empty() {
                parameters = self.parameters(origin);
            }
            next = origin;
        }
        let rust = self.language(&unit) == Some(gimli::DW_LANG_Rust)
            && linkage_name.is_none_or(|name| name.starts_with("_ZN") || name.starts_with("_R"));
        if let Some(name) = linkage_name {
            altered |= name.contains(".isra.") || name.contains(".constprop.");
        }
        Some(Declared {
            parameters: parameters
                .into_iter()
                .map(|(name, ty)| (name, self.resolve(ty)))
                .collect(),
            returns: returns.map(|ty| self.resolve(Some(ty))),
            rust,
            altered,
            go: None,
        })
    }

    fn language(&self, unit: &Unit) -> Option<gimli::DwLang> {
        let root = unit.entry(unit.header.root_offset()).ok()?;
        match root.attr_value(gimli::DW_AT_language)? {
            AttributeValue::Language(language) => Some(language),
            _ => None,
        }
    }

    /// Names and types of the arguments that stand below a function's entry.
    fn parameters(&self, at: TypeRef) -> Vec<(String, Option<TypeRef>)> {
        let mut parameters = Vec::new();
        self.children(at, |child, unit, entry| {
            if entry.tag() != gimli::DW_TAG_formal_parameter {
                return;
            }
            let mut name = None;
            let mut ty = None;
            let mut next = Some((child, unit.clone(), entry.clone()));
            for _ in 0..CHAIN {
                let Some((at, unit, entry)) = next else { break };
                name = name.or_else(|| self.string(at, &unit, &entry, gimli::DW_AT_name));
                ty = ty.or_else(|| self.reference(at, &unit, &entry, gimli::DW_AT_type));
                next = self
                    .reference(at, &unit, &entry, gimli::DW_AT_abstract_origin)
                    .and_then(|origin| {
                        let (unit, entry) = self.entry(origin)?;
                        Some((origin, unit, entry))
                    });
            }
            let name = name.unwrap_or_default();
            // Not passed: the constructors that would need it are made one by one.
            if name != "__in_chrg" {
                parameters.push((name, ty));
            }
        });
        parameters
    }

    fn children(&self, at: TypeRef, mut each: impl FnMut(TypeRef, &Rc<Unit>, &Entry)) {
        let Some((unit, _)) = self.entry(at) else {
            return;
        };
        let Some(start) = start_of(&unit) else { return };
        let Ok(mut entries) = unit.entries_at_offset(UnitOffset(at.offset - start)) else {
            return;
        };
        let has_children = matches!(entries.next_dfs(), Ok(Some(parent)) if parent.has_children());
        // To the first child, or to the mark that there is none.
        if !has_children || !matches!(entries.next_entry(), Ok(true)) {
            return;
        }
        for _ in 0..MEMBERS {
            let Some(entry) = entries.current() else {
                return;
            };
            let child = TypeRef {
                supplementary: at.supplementary,
                offset: start + entry.offset().0,
            };
            each(child, &unit, entry);
            if !matches!(entries.next_sibling(), Ok(Some(_))) {
                return;
            }
        }
    }
}

fn unit_starts(dwarf: &Dwarf) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        if let Some(offset) = header.debug_info_offset() {
            starts.push(offset.0);
        }
    }
    starts
}

fn start_of(unit: &Unit) -> Option<usize> {
    let UnitSectionOffset(offset) = unit.header.offset();
    Some(offset)
}

fn number(entry: &Entry, name: gimli::DwAt) -> Option<u64> {
    entry.attr_value(name)?.udata_value()
}

fn convention(entry: &Entry) -> Option<gimli::DwCc> {
    match entry.attr_value(gimli::DW_AT_calling_convention)? {
        AttributeValue::CallingConvention(convention) => Some(convention),
        _ => None,
    }
}
