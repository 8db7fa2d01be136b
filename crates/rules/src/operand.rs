//! Values in the target: a type and a place. Parts of them, the numbers in them, and the texts and
//! lists that libraries make of pointers and lengths.

use std::rc::Rc;

use thalweg_bytecode::{NUL_TERMINATED, op};

use crate::abi::{Place, Types, narrow, width};
use crate::ir::{Ir, TextSource};
use crate::types::{Field, Struct, Type, TypeKind, TypeRef};

#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub ty: Rc<Type>,
    pub place: Place,
    /// First bit and number of bits, for bit fields.
    pub bits: Option<(u64, u64)>,
}

/// What a structure of a known library stands for.
pub(crate) enum Known {
    Text { at: Ir, len: Ir },
    List { at: Ir, count: Ir, of: Rc<Type> },
    Pointer { at: Ir, to: Option<TypeRef> },
}

/// How deep a library may hide a pointer.
const HIDDEN: usize = 10;

impl Operand {
    pub(crate) fn new(ty: Rc<Type>, place: Place) -> Operand {
        Operand {
            ty,
            place,
            bits: None,
        }
    }

    pub(crate) fn value(ty: Rc<Type>, ir: Ir) -> Operand {
        Operand::new(ty, Place::Value(ir))
    }

    /// As it is when the call ends.
    pub(crate) fn at_exit(self) -> Operand {
        let late = |ir: Ir| Ir::AtExit(Box::new(ir));
        let place = match self.place {
            Place::Value(ir) => Place::Value(late(ir)),
            Place::Memory(at) => Place::Memory(late(at)),
            Place::Pieces(pieces) => Place::Pieces(
                pieces
                    .into_iter()
                    .map(|(offset, size, ir)| (offset, size, late(ir)))
                    .collect(),
            ),
            missing @ Place::Missing(_) => missing,
        };
        Operand { place, ..self }
    }

    pub(crate) fn is_late(&self) -> bool {
        match &self.place {
            Place::Value(ir) | Place::Memory(ir) => ir.is_late(),
            Place::Pieces(pieces) => pieces.iter().any(|(_, _, ir)| ir.is_late()),
            Place::Missing(_) => false,
        }
    }

    /// The number, extended to 64 bits; of floats the bits.
    pub(crate) fn word(&self) -> Result<Ir, &'static str> {
        if !self.ty.is_scalar() && !matches!(self.ty.kind, TypeKind::Time) {
            return Err("it is more than a number");
        }
        let whole = match &self.place {
            Place::Value(ir) => ir.clone(),
            Place::Memory(at) => at.clone().load(width(&self.ty)),
            Place::Pieces(pieces) => {
                let (offset, size, ir) = pieces
                    .iter()
                    .find(|(offset, size, _)| *offset == 0 && *size >= self.ty.size)
                    .ok_or("it is spread over registers")?;
                debug_assert!(*offset == 0 && *size > 0);
                narrow(&self.ty, ir.clone())
            }
            Place::Missing(why) => return Err(why),
        };
        Ok(match self.bits {
            None => whole,
            Some((first, count)) => {
                let up = Ir::Const(64u64.saturating_sub(first.saturating_add(count)));
                let down = Ir::Const(64u64.saturating_sub(count));
                let shift = if self.ty.is_signed() {
                    op::SAR
                } else {
                    op::SHR
                };
                Ir::binary(shift, Ir::binary(op::SHL, whole, up), down)
            }
        })
    }

    /// `ty` at `offset` within this value.
    pub(crate) fn part(&self, offset: u64, ty: Rc<Type>) -> Operand {
        let size = ty.size;
        let place = match &self.place {
            Place::Memory(at) => Place::Memory(at.clone().plus(offset)),
            Place::Value(ir) => {
                Operand::new(
                    self.ty.clone(),
                    Place::Pieces(vec![(0, self.ty.size, ir.clone())]),
                )
                .part(offset, ty.clone())
                .place
            }
            Place::Pieces(pieces) => {
                let end = offset.saturating_add(size);
                let inside = pieces.iter().filter_map(|(at, len, ir)| {
                    if *at >= offset && *at < end {
                        Some((at - offset, (*len).min(end - at), ir.clone()))
                    } else if *at < offset && at + len > offset {
                        let down = Ir::Const(8 * (offset - at));
                        let ir = Ir::binary(op::SHR, ir.clone(), down);
                        Some((0, (at + len - offset).min(size), ir))
                    } else {
                        None
                    }
                });
                Place::Pieces(inside.collect())
            }
            Place::Missing(why) => Place::Missing(why),
        };
        Operand::new(ty, place)
    }

    pub(crate) fn field(&self, field: &Field, types: &dyn Types) -> Operand {
        let mut part = self.part(field.offset, types.resolve(Some(field.ty)));
        part.bits = field.bits;
        part
    }

    /// What the pointer that this is points to.
    pub(crate) fn target(&self, types: &dyn Types) -> Option<Operand> {
        let (at, to) = match &self.ty.kind {
            TypeKind::Pointer { to, .. } => (self.word().ok()?, (*to)?),
            TypeKind::Struct(_) => match self.known(types)? {
                Known::Pointer { at, to: Some(to) } => (at, to),
                _ => return None,
            },
            _ => return None,
        };
        Some(Operand::new(types.resolve(Some(to)), Place::Memory(at)))
    }

    /// References stand for what they refer to.
    pub(crate) fn through_references(self, types: &dyn Types) -> Operand {
        match &self.ty.kind {
            TypeKind::Pointer {
                reference: true, ..
            } => self.target(types).unwrap_or(self),
            _ => self,
        }
    }

    fn find(&self, name: &str, types: &dyn Types, depth: usize) -> Option<Operand> {
        let depth = depth.checked_sub(1)?;
        let TypeKind::Struct(contents) = &self.ty.kind else {
            return None;
        };
        let direct = contents.fields.iter().find(|field| field.name == name);
        if let Some(field) = direct {
            let found = self.field(field, types);
            // Rust nests several things of one name.
            if found.ty.is_scalar() {
                return Some(found);
            }
        }
        contents
            .fields
            .iter()
            .find_map(|field| self.field(field, types).find(name, types, depth))
    }

    /// What a structure is to people, where it is one of the known ones.
    pub(crate) fn known(&self, types: &dyn Types) -> Option<Known> {
        let TypeKind::Struct(contents) = &self.ty.kind else {
            return None;
        };
        let name = self.ty.name.as_str();
        let word = |field: &str| self.find(field, types, HIDDEN)?.word().ok();
        let text = |at: &str, len: &str| {
            Some(Known::Text {
                at: word(at)?,
                len: word(len)?,
            })
        };
        let pointer = |field: &str| {
            let found = self.find(field, types, HIDDEN)?;
            let TypeKind::Pointer { to, .. } = found.ty.kind else {
                return None;
            };
            Some(Known::Pointer {
                at: found.word().ok()?,
                to,
            })
        };
        let base = name.split('<').next().unwrap_or_default();
        let own: Vec<&str> = contents.fields.iter().map(|f| f.name.as_str()).collect();
        match own.as_slice() {
            ["str", "len"] if self.ty.size == 16 => return text("str", "len"),
            ["array", "len", "cap"] if self.ty.size == 24 => return self.slice(types),
            // Of an interface what it says of the type: nothing if it is nil.
            ["tab" | "_type", "data"] if self.ty.size == 16 => {
                return Some(Known::Pointer {
                    at: word(own[0])?,
                    to: None,
                });
            }
            _ => {}
        }
        match base {
            "basic_string" | "string" => text("_M_p", "_M_string_length"),
            "basic_string_view" | "string_view" => text("_M_str", "_M_len"),
            "ngx_str_t" => text("data", "len"),
            "String" => text("pointer", "len"),
            "&str" | "&mut str" => text("data_ptr", "length"),
            "Box" | "alloc::boxed::Box" if name.contains("<str") => text("data_ptr", "length"),
            "unique_ptr" => pointer("_M_head_impl"),
            "shared_ptr" | "__shared_ptr" | "weak_ptr" => pointer("_M_ptr"),
            "vector" => self.vector(types),
            "Vec" => {
                let of = parameter(contents, "T")?;
                Some(Known::List {
                    at: word("pointer")?,
                    count: word("len")?,
                    of: types.resolve(Some(of)),
                })
            }
            _ if base.starts_with('&') || base.ends_with("Box") => {
                let data = self.find("data_ptr", types, HIDDEN)?;
                let TypeKind::Pointer { to, .. } = data.ty.kind else {
                    return None;
                };
                Some(Known::List {
                    at: data.word().ok()?,
                    count: word("length")?,
                    of: types.resolve(to),
                })
            }
            _ => None,
        }
    }

    /// Go's. One of bytes is a text.
    fn slice(&self, types: &dyn Types) -> Option<Known> {
        let array = self.find("array", types, HIDDEN)?;
        let TypeKind::Pointer { to: Some(to), .. } = array.ty.kind else {
            return None;
        };
        let of = types.resolve(Some(to));
        let at = array.word().ok()?;
        let count = self.find("len", types, HIDDEN)?.word().ok()?;
        Some(
            match of.size == 1 && matches!(of.kind, TypeKind::Int { signed: false }) {
                true => Known::Text { at, len: count },
                false => Known::List { at, count, of },
            },
        )
    }

    fn vector(&self, types: &dyn Types) -> Option<Known> {
        let start = self.find("_M_start", types, HIDDEN)?;
        let finish = self.find("_M_finish", types, HIDDEN)?;
        let TypeKind::Pointer { to: Some(to), .. } = start.ty.kind else {
            return None;
        };
        let of = types.resolve(Some(to));
        let at = start.word().ok()?;
        let bytes = Ir::binary(op::SUB, finish.word().ok()?, at.clone());
        let count = Ir::binary(op::DIV_UNSIGNED, bytes, Ir::Const(of.size.max(1)));
        Some(Known::List { at, count, of })
    }

    /// Address and length of the text that this is.
    pub(crate) fn text(&self, types: &dyn Types) -> Option<(Ir, Ir)> {
        let nul = Ir::Const(NUL_TERMINATED);
        match &self.ty.kind {
            TypeKind::Text => match &self.place {
                Place::Pieces(pieces) => match pieces.as_slice() {
                    [(0, 8, at), (8, 8, len)] => Some((at.clone(), len.clone())),
                    _ => None,
                },
                _ => Some((self.word().ok()?, nul)),
            },
            TypeKind::Pointer { to: Some(to), .. } => {
                let target = types.resolve(Some(*to));
                is_char(&target).then_some(())?;
                Some((self.word().ok()?, nul))
            }
            TypeKind::Array { of, .. } => {
                is_char(&types.resolve(Some(*of))).then_some(())?;
                match &self.place {
                    Place::Memory(at) => Some((at.clone(), nul)),
                    _ => None,
                }
            }
            TypeKind::Struct(_) => match self.known(types)? {
                Known::Text { at, len } => Some((at, len)),
                _ => None,
            },
            _ => None,
        }
    }

    pub(crate) fn text_source(&self, types: &dyn Types) -> Option<TextSource> {
        let (at, len) = self.text(types)?;
        Some(TextSource::Memory(Box::new(at), Box::new(len)))
    }

    /// Is the structure of this value that of variant `name`? `None`: there is no such variant.
    pub(crate) fn is_variant(
        &self,
        name: &str,
        types: &dyn Types,
    ) -> Option<Result<Ir, &'static str>> {
        let TypeKind::Struct(Struct {
            variants: Some(variants),
            ..
        }) = &self.ty.kind
        else {
            return None;
        };
        let variant = variants.list.iter().find(|variant| variant.name == name)?;
        let Some((offset, tag)) = variants.tag else {
            return Some(Ok(Ir::Const(1)));
        };
        let tag = match self.part(offset, types.resolve(Some(tag))).word() {
            Ok(tag) => tag,
            Err(why) => return Some(Err(why)),
        };
        let equals = |value: u64| Ir::binary(op::EQ, tag.clone(), Ir::Const(value));
        Some(Ok(match variant.tag {
            Some(value) => equals(value),
            // Any tag that is none of the others'.
            None => variants
                .list
                .iter()
                .filter_map(|variant| variant.tag)
                .map(|value| equals(value).not())
                .reduce(|a, b| Ir::binary(op::BOTH, a, b))
                .unwrap_or(Ir::Const(1)),
        }))
    }
}

fn parameter(contents: &Struct, name: &str) -> Option<TypeRef> {
    let found = contents.parameters.iter().find(|(own, _)| own == name);
    found.map(|(_, ty)| *ty)
}

pub(crate) fn is_char(ty: &Type) -> bool {
    ty.size == 1 && matches!(ty.kind, TypeKind::Char { .. })
}

/// The field of a structure, or of one of its bases and nameless members.
pub(crate) fn find_field(
    of: &Operand,
    name: &str,
    types: &dyn Types,
    depth: usize,
) -> Option<Operand> {
    let depth = depth.checked_sub(1)?;
    let TypeKind::Struct(contents) = &of.ty.kind else {
        return None;
    };
    let tuple = format!("__{name}");
    let fields = &contents.fields;
    if let Some(field) = fields.iter().find(|f| f.name == name || f.name == tuple) {
        return Some(of.field(field, types));
    }
    if let Some(variants) = &contents.variants
        && let Some(variant) = variants.list.iter().find(|v| v.name == name)
    {
        return Some(of.part(variant.offset, types.resolve(Some(variant.ty))));
    }
    fields
        .iter()
        .filter(|field| field.transparent)
        .find_map(|field| find_field(&of.field(field, types), name, types, depth))
}

/// The names of the fields that `find_field` finds.
pub(crate) fn field_names(ty: &Type, types: &dyn Types, depth: usize) -> Vec<String> {
    let (TypeKind::Struct(contents), Some(depth)) = (&ty.kind, depth.checked_sub(1)) else {
        return Vec::new();
    };
    let mut names = Vec::new();
    for field in &contents.fields {
        if field.transparent {
            names.extend(field_names(&types.resolve(Some(field.ty)), types, depth));
        } else {
            names.push(field.name.trim_start_matches("__").to_owned());
        }
    }
    if let Some(variants) = &contents.variants {
        names.extend(variants.list.iter().map(|v| v.name.clone()));
    }
    names
}
