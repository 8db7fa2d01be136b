//! Entries of types, read one by one when something asks for them.

use std::collections::HashMap;
use std::rc::Rc;

use gimli::AttributeValue;

use super::{CHAIN, Debug, Definition, Entry, LOOKUPS, Unit, convention, number};
use crate::types::{Field, Struct, Type, TypeKind, TypeRef, Variant, Variants};

impl Debug {
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
                let said = match convention(&entry) {
                    Some(gimli::DW_CC_pass_by_reference) => Some(true),
                    Some(gimli::DW_CC_pass_by_value) => Some(false),
                    _ => None,
                };
                contents.certain = said.is_some();
                contents.not_trivial = said.unwrap_or(contents.not_trivial);
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
            // Go's are values: the address of what is called.
            gimli::DW_TAG_subroutine_type
                if name
                    .as_deref()
                    .is_some_and(|name| name.starts_with("func(")) =>
            {
                Type {
                    name: name.unwrap_or_default(),
                    size: 8,
                    kind: TypeKind::Pointer {
                        to: None,
                        reference: false,
                    },
                }
            }
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
            let size = self.read(ty, CHAIN)?.size.clamp(1, 8);
            let first = match number(entry, gimli::DW_AT_data_bit_offset) {
                // From the structure's beginning; the bytes are those of one number of the type.
                Some(first) => {
                    offset = first / (8 * size) * size;
                    first - offset * 8
                }
                // The old way: from the highest bit of a number at the member's place.
                None => {
                    let from_top = number(entry, gimli::DW_AT_bit_offset)?;
                    (8 * size).checked_sub(from_top.checked_add(count)?)?
                }
            };
            bits = Some((first, count.min(64)));
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
