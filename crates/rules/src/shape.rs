//! The shapes of types whose pointers are not followed, and values that lie in registers put
//! together.

use thalweg_bytecode::op;

use crate::abi::{Place, Types};
use crate::ir::Ir;
use crate::operand::{Operand, is_char};
use crate::record::FIELDS;
use crate::types::{Struct, Type, TypeKind};
use crate::value::{Case, Part, Shape};

/// One word of a value that lies in registers, put together from the pieces in it.
pub(crate) fn assembled(word: &Operand) -> Ir {
    let Place::Pieces(pieces) = &word.place else {
        return Ir::Const(0);
    };
    pieces
        .iter()
        .map(|(offset, size, ir)| {
            let clean = match size {
                1 | 2 | 4 => Ir::Extend(Box::new(ir.clone()), *size as u8),
                8.. => ir.clone(),
                size => {
                    let mask = Ir::Const((1 << (8 * size)) - 1);
                    Ir::binary(op::AND, ir.clone(), mask)
                }
            };
            match offset {
                0 => clean,
                offset => Ir::binary(op::SHL, clean, Ir::Const(8 * offset)),
            }
        })
        .reduce(|a, b| Ir::binary(op::OR, a, b))
        .unwrap_or(Ir::Const(0))
}

/// The shape of a type whose pointers are not followed.
pub(crate) fn flat(ty: &Type, types: &dyn Types, depth: usize) -> Shape {
    let Some(depth) = depth.checked_sub(1) else {
        return Shape::Opaque("more".into());
    };
    let size = ty.size.min(255) as u8;
    match &ty.kind {
        TypeKind::Int { .. } | TypeKind::Enum { .. } if ty.size > 8 => Shape::List {
            stride: 8,
            of: Box::new(Shape::Unsigned(8)),
        },
        TypeKind::Int { signed: true } => Shape::Signed(size),
        TypeKind::Int { signed: false } => Shape::Unsigned(size),
        TypeKind::Bool => Shape::Bool,
        // Who says which sign a character has means a number.
        TypeKind::Char { .. } if ty.name == "signed char" => Shape::Signed(1),
        TypeKind::Char { .. } if ty.name == "unsigned char" => Shape::Unsigned(1),
        TypeKind::Char { .. } => Shape::Char(size),
        TypeKind::Float => Shape::Float(size),
        TypeKind::Pointer { .. } | TypeKind::Text => Shape::Pointer,
        TypeKind::Time => Shape::Time,
        TypeKind::Enum { names, .. } => Shape::Enum {
            size,
            names: names.clone(),
        },
        TypeKind::Array { of, .. } => {
            let of = types.resolve(Some(*of));
            if is_char(&of) {
                return Shape::Text { padded: true };
            }
            Shape::List {
                stride: u32::try_from(of.size).unwrap_or(u32::MAX),
                of: Box::new(flat(&of, types, depth)),
            }
        }
        TypeKind::Struct(contents) => {
            let parts = |contents: &Struct, base: u64| -> Vec<Part> {
                contents
                    .fields
                    .iter()
                    .take(FIELDS)
                    .map(|field| {
                        let inner = types.resolve(Some(field.ty));
                        Part {
                            name: field.name.clone(),
                            offset: u32::try_from(base.saturating_add(field.offset))
                                .unwrap_or(u32::MAX),
                            size: u32::try_from(inner.size).unwrap_or(u32::MAX),
                            shape: flat(&inner, types, depth),
                        }
                    })
                    .collect()
            };
            match &contents.variants {
                None => Shape::Struct {
                    name: ty.name.clone(),
                    fields: parts(contents, 0),
                },
                Some(variants) => Shape::Variants {
                    name: ty.name.clone(),
                    tag: variants.tag.map(|(offset, tag)| {
                        let size = types.resolve(Some(tag)).size.clamp(1, 8);
                        (offset as u32, size as u8)
                    }),
                    list: variants
                        .list
                        .iter()
                        .take(FIELDS)
                        .map(|variant| {
                            let inner = types.resolve(Some(variant.ty));
                            let fields = match &inner.kind {
                                TypeKind::Struct(contents) => parts(contents, variant.offset),
                                _ => Vec::new(),
                            };
                            Case {
                                name: variant.name.clone(),
                                tag: variant.tag,
                                fields,
                            }
                        })
                        .collect(),
                },
            }
        }
        TypeKind::Void => Shape::Opaque("nothing".into()),
        TypeKind::Other(what) => Shape::Opaque((*what).into()),
    }
}
