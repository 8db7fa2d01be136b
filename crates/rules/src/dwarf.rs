//! What debug information says of a function: the names and types of its arguments, and what it returns.
//!
//! Looked up by the function's address, and only for functions that a rule means. Types are read when something asks for them.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use gimli::{AttributeValue, UnitOffset, UnitSectionOffset};
use thalweg_symbols::{Dwarf, Reader};

use crate::types::{Field, Struct, Type, TypeKind, TypeRef, Variant, Variants};

type Entry = gimli::DebuggingInformationEntry<Reader>;
type Unit = gimli::Unit<Reader>;

/// How many entries lead from one to the next before it is a circle.
const CHAIN: usize = 32;

/// What one structure or enumeration may have.
const MEMBERS: usize = 4096;

/// How many types are looked up for one function. Structures that contain each other in great numbers, or that a damaged file makes contain
/// themselves, are not followed further.
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
    /// Where the structures of a name are defined; made when the first is looked for that is only declared.
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
    /// The compiler changed how this copy is called: arguments are not where the convention puts them.
    pub altered: bool,
}

impl Debug {
    pub(crate) fn load(path: &Path) -> Option<Debug> {
        Debug::new(thalweg_symbols::debug_info(path)?)
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
                self.declared(
                    TypeRef {
                        supplementary: false,
                        offset: range.2 + offset.0,
                    },
                    linkage_name,
                )
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

    fn declared(&self, at: TypeRef, linkage_name: Option<&str>) -> Option<Declared> {
        let (unit, entry) = self.entry(at)?;
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

    /// The type that stands at `at`; `None` is void.
    pub(crate) fn resolve(&self, at: Option<TypeRef>) -> Rc<Type> {
        self.lookups.set(self.lookups.get() + 1);
        let Some(at) = at.filter(|_| self.lookups.get() < LOOKUPS) else {
            return Rc::new(void());
        };
        if let Some(known) = self.types.borrow().get(&at) {
            return known.clone();
        }
        let ty = Rc::new(self.read(at, CHAIN).unwrap_or_else(|| Type {
            name: "?".into(),
            size: 0,
            kind: TypeKind::Other("a type that the debug information does not describe"),
        }));
        self.types.borrow_mut().insert(at, ty.clone());
        ty
    }

    fn read(&self, at: TypeRef, depth: usize) -> Option<Type> {
        let depth = depth.checked_sub(1)?;
        let (unit, entry) = self.entry(at)?;
        let name = self.string(at, &unit, &entry, gimli::DW_AT_name);
        let inner = self.reference(at, &unit, &entry, gimli::DW_AT_type);
        let size = number(&entry, gimli::DW_AT_byte_size);
        let read_inner = || match inner {
            Some(inner) => self.read(inner, depth),
            None => Some(void()),
        };
        Some(match entry.tag() {
            gimli::DW_TAG_base_type => base(name.unwrap_or_default(), size?, &entry)?,
            gimli::DW_TAG_typedef => {
                let mut ty = read_inner()?;
                ty.name = name.unwrap_or(ty.name);
                // The numbers among the types that are characters to the compiler.
                if matches!(ty.kind, TypeKind::Char { .. }) && ty.name.contains("int8") {
                    ty.kind = TypeKind::Int {
                        signed: !ty.name.contains("uint8") && !ty.name.contains("u_int8"),
                    };
                }
                ty
            }
            gimli::DW_TAG_const_type
            | gimli::DW_TAG_volatile_type
            | gimli::DW_TAG_restrict_type
            | gimli::DW_TAG_atomic_type => read_inner()?,
            tag @ (gimli::DW_TAG_pointer_type
            | gimli::DW_TAG_reference_type
            | gimli::DW_TAG_rvalue_reference_type) => {
                // Rust's references are pointers with a telling name.
                let reference = tag != gimli::DW_TAG_pointer_type
                    || name.as_deref().is_some_and(|name| name.starts_with('&'));
                let to = inner
                    .and_then(|inner| self.name_of(inner, depth))
                    .unwrap_or_else(|| "void".into());
                let mark = if reference { "&" } else { "*" };
                Type {
                    name: name.unwrap_or_else(|| format!("{to}{mark}")),
                    size: 8,
                    kind: TypeKind::Pointer {
                        to: inner,
                        reference,
                    },
                }
            }
            tag @ (gimli::DW_TAG_structure_type
            | gimli::DW_TAG_class_type
            | gimli::DW_TAG_union_type) => {
                let name = name.unwrap_or_default();
                if entry.attr_value(gimli::DW_AT_declaration).is_some() {
                    if let Some(defined) = self.definition(&name) {
                        return self.read(defined, depth);
                    }
                    let why = "only declared where the function is";
                    return Some(Type {
                        name,
                        size: 0,
                        kind: TypeKind::Other(why),
                    });
                }
                let mut contents = self.members(at, &name);
                contents.union = tag == gimli::DW_TAG_union_type;
                contents.not_trivial = match convention(&entry) {
                    Some(gimli::DW_CC_pass_by_reference) => true,
                    Some(gimli::DW_CC_pass_by_value) => false,
                    _ => contents.not_trivial,
                };
                Type {
                    name,
                    size: size.unwrap_or(0),
                    kind: TypeKind::Struct(contents),
                }
            }
            gimli::DW_TAG_enumeration_type => {
                let underlying = inner.and_then(|inner| self.read(inner, depth));
                let size = size.or(underlying.as_ref().map(|ty| ty.size))?;
                let (names, negative) = self.enumerators(at);
                let signed = match underlying {
                    Some(ty) => ty.is_signed(),
                    None => negative,
                };
                Type {
                    name: name.unwrap_or_default(),
                    size,
                    kind: TypeKind::Enum { signed, names },
                }
            }
            gimli::DW_TAG_array_type => {
                let of = inner?;
                let element = self.read(of, depth)?;
                let count = self.count(at);
                Type {
                    name: format!("{}[{count}]", element.name),
                    size: element.size.saturating_mul(count),
                    kind: TypeKind::Array { of, count },
                }
            }
            gimli::DW_TAG_unspecified_type => Type {
                name: name.unwrap_or_default(),
                ..void()
            },
            gimli::DW_TAG_subroutine_type => Type {
                name: "function".into(),
                size: 0,
                kind: TypeKind::Other("a function"),
            },
            gimli::DW_TAG_ptr_to_member_type => Type {
                name: "member".into(),
                size: 8,
                kind: TypeKind::Other("a pointer to a member"),
            },
            _ => return None,
        })
    }

    /// The name alone: what a pointer points to need not be read for it.
    fn name_of(&self, at: TypeRef, depth: usize) -> Option<String> {
        let depth = depth.checked_sub(1)?;
        let (unit, entry) = self.entry(at)?;
        if let Some(name) = self.string(at, &unit, &entry, gimli::DW_AT_name) {
            return Some(name);
        }
        let inner = self
            .reference(at, &unit, &entry, gimli::DW_AT_type)
            .and_then(|inner| self.name_of(inner, depth));
        match entry.tag() {
            gimli::DW_TAG_const_type => Some(format!("const {}", inner.unwrap_or("void".into()))),
            gimli::DW_TAG_pointer_type => Some(format!("{}*", inner.unwrap_or("void".into()))),
            gimli::DW_TAG_subroutine_type => Some("function".into()),
            _ => inner,
        }
    }

    /// The definition of a structure that a unit only declares.
    fn definition(&self, name: &str) -> Option<TypeRef> {
        let all = self.definitions.get_or_init(|| {
            let mut all = HashMap::new();
            for supplementary in [false, true] {
                let starts = if supplementary {
                    &self.shared_starts
                } else {
                    &self.starts
                };
                for start in starts {
                    self.definitions_of(supplementary, *start, &mut all);
                }
            }
            all
        });
        let found = all.get(name).filter(|found| !found.ambiguous)?;
        Some(found.at)
    }

    fn definitions_of(
        &self,
        supplementary: bool,
        start: usize,
        all: &mut HashMap<String, Definition>,
    ) -> Option<()> {
        let unit = self.unit(supplementary, start)?;
        let mut entries = unit.entries_raw(None).ok()?;
        while !entries.is_empty() {
            let offset = entries.next_offset();
            let Some(abbreviation) = entries.read_abbreviation().ok()? else {
                continue;
            };
            let is_structure = matches!(
                abbreviation.tag(),
                gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type
            );
            if !is_structure {
                entries.skip_attributes(abbreviation.attributes()).ok()?;
                continue;
            }
            let (mut name, mut size, mut declared) = (None, None, false);
            for specification in abbreviation.attributes() {
                let attribute = entries.read_attribute(*specification).ok()?;
                match attribute.name() {
                    gimli::DW_AT_name => name = Some(attribute.value()),
                    gimli::DW_AT_byte_size => size = attribute.udata_value(),
                    gimli::DW_AT_declaration => declared = true,
                    _ => {}
                }
            }
            if let (Some(name), Some(size), false) = (name, size, declared) {
                let dwarf = self.dwarf(supplementary)?;
                let Ok(name) = dwarf.attr_string(&unit, name) else {
                    continue;
                };
                let Ok(name) = gimli::Reader::to_string_lossy(&name) else {
                    continue;
                };
                let at = TypeRef {
                    supplementary,
                    offset: start + offset.0,
                };
                all.entry(name.into_owned())
                    .and_modify(|known| known.ambiguous |= known.size != size)
                    .or_insert(Definition {
                        at,
                        size,
                        ambiguous: false,
                    });
            }
        }
        Some(())
    }

    fn members(&self, at: TypeRef, name: &str) -> Struct {
        let mut contents = Struct::default();
        let base = name.split('<').next().unwrap_or_default();
        self.children(at, |child, unit, entry| match entry.tag() {
            gimli::DW_TAG_member | gimli::DW_TAG_inheritance => {
                let is_base = entry.tag() == gimli::DW_TAG_inheritance;
                // Statics, and bases whose place only the object knows.
                let is_static = entry.attr_value(gimli::DW_AT_external).is_some()
                    || entry.attr_value(gimli::DW_AT_declaration).is_some();
                let virtual_base = is_base && entry.attr_value(gimli::DW_AT_virtuality).is_some();
                if is_static || virtual_base {
                    contents.not_trivial |= virtual_base;
                    return;
                }
                if let Some(field) = self.field(child, unit, entry, is_base) {
                    contents.fields.push(field);
                }
            }
            gimli::DW_TAG_variant_part => contents.variants = self.variants(child, unit, entry),
            gimli::DW_TAG_template_type_parameter => {
                let name = self.string(child, unit, entry, gimli::DW_AT_name);
                let ty = self.reference(child, unit, entry, gimli::DW_AT_type);
                contents.parameters.extend(name.zip(ty));
            }
            gimli::DW_TAG_subprogram => {
                // A destructor or a copy constructor of its own.
                let own = self.string(child, unit, entry, gimli::DW_AT_name);
                let defaulted = entry.attr_value(gimli::DW_AT_defaulted).is_some();
                if let Some(own) = own
                    && own.strip_prefix('~') == Some(base)
                    && !defaulted
                {
                    contents.not_trivial = true;
                }
                if entry
                    .attr_value(gimli::DW_AT_vtable_elem_location)
                    .is_some()
                {
                    contents.not_trivial = true;
                }
            }
            _ => {}
        });
        contents
    }

    fn field(&self, at: TypeRef, unit: &Unit, entry: &Entry, is_base: bool) -> Option<Field> {
        let ty = self.reference(at, unit, entry, gimli::DW_AT_type)?;
        let name = self.string(at, unit, entry, gimli::DW_AT_name);
        let mut offset = match entry.attr_value(gimli::DW_AT_data_member_location) {
            None => 0,
            Some(value) => value.udata_value()?,
        };
        let mut bits = None;
        if let Some(count) = number(entry, gimli::DW_AT_bit_size) {
            let first = number(entry, gimli::DW_AT_data_bit_offset)?;
            let size = self.read(ty, CHAIN)?.size.clamp(1, 8);
            let bytes = first / (8 * size) * size;
            offset = bytes;
            bits = Some((first - bytes * 8, count.min(64)));
        }
        Some(Field {
            transparent: is_base || name.is_none(),
            name: name.unwrap_or_default(),
            offset,
            ty,
            bits,
        })
    }

    fn variants(&self, at: TypeRef, unit: &Unit, entry: &Entry) -> Option<Variants> {
        let tag = self
            .reference(at, unit, entry, gimli::DW_AT_discr)
            .and_then(|tag| {
                let (unit, entry) = self.entry(tag)?;
                let offset = entry
                    .attr_value(gimli::DW_AT_data_member_location)
                    .and_then(|v| v.udata_value())
                    .unwrap_or(0);
                Some((
                    offset,
                    self.reference(tag, &unit, &entry, gimli::DW_AT_type)?,
                ))
            });
        let mut list = Vec::new();
        self.children(at, |variant, _, entry| {
            if entry.tag() != gimli::DW_TAG_variant {
                return;
            }
            let value = entry
                .attr_value(gimli::DW_AT_discr_value)
                .and_then(|value| {
                    value
                        .udata_value()
                        .or(value.sdata_value().map(|v| v as u64))
                });
            self.children(variant, |member, unit, entry| {
                if entry.tag() == gimli::DW_TAG_member
                    && let Some(field) = self.field(member, unit, entry, false)
                {
                    list.push(Variant {
                        name: field.name,
                        tag: value,
                        offset: field.offset,
                        ty: field.ty,
                    });
                }
            });
        });
        Some(Variants { tag, list })
    }

    fn enumerators(&self, at: TypeRef) -> (Vec<(String, i64)>, bool) {
        let mut names = Vec::new();
        let mut negative = false;
        self.children(at, |child, unit, entry| {
            if entry.tag() != gimli::DW_TAG_enumerator {
                return;
            }
            let value = entry.attr_value(gimli::DW_AT_const_value);
            let value = value.and_then(|v| v.sdata_value().or(v.udata_value().map(|u| u as i64)));
            let name = self.string(child, unit, entry, gimli::DW_AT_name);
            if let (Some(name), Some(value)) = (name, value) {
                negative |= value < 0;
                names.push((name, value));
            }
        });
        (names, negative)
    }

    fn count(&self, at: TypeRef) -> u64 {
        let mut count = None::<u64>;
        self.children(at, |_, _, entry| {
            if entry.tag() == gimli::DW_TAG_subrange_type {
                let upper = number(entry, gimli::DW_AT_upper_bound).map(|n| n.saturating_add(1));
                let own = number(entry, gimli::DW_AT_count).or(upper).unwrap_or(0);
                count = Some(count.unwrap_or(1).saturating_mul(own));
            }
        });
        count.unwrap_or(0)
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

fn void() -> Type {
    Type {
        name: "void".into(),
        size: 0,
        kind: TypeKind::Void,
    }
}

fn base(name: String, size: u64, entry: &Entry) -> Option<Type> {
    let AttributeValue::Encoding(encoding) = entry.attr_value(gimli::DW_AT_encoding)? else {
        return None;
    };
    let kind = match encoding {
        _ if size == 0 => TypeKind::Void,
        gimli::DW_ATE_boolean => TypeKind::Bool,
        gimli::DW_ATE_signed_char => TypeKind::Char { signed: true },
        gimli::DW_ATE_unsigned_char | gimli::DW_ATE_UTF => TypeKind::Char { signed: false },
        gimli::DW_ATE_signed => TypeKind::Int { signed: true },
        gimli::DW_ATE_unsigned => TypeKind::Int { signed: false },
        gimli::DW_ATE_float if size <= 8 => TypeKind::Float,
        gimli::DW_ATE_float => TypeKind::Other("a long double"),
        _ => TypeKind::Other("a kind of number that is not read"),
    };
    Some(Type { name, size, kind })
}
