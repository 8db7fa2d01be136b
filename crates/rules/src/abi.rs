//! Where arguments and results are, by the calling convention: System V's for C and C++, and Rust's
//! own.
//!
//! Debug information says where a variable is in the middle of a function, which at its first and
//! last instruction is no use; the convention holds just there.

use std::rc::Rc;

use thalweg_bytecode::op;

use crate::ir::Ir;
use crate::types::{Field, Type, TypeKind, TypeRef};

/// Where a value is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    /// It is this number.
    Value(Ir),
    /// It is in memory, at this address.
    Memory(Ir),
    /// It is spread over registers: offset, size, contents.
    Pieces(Vec<(u64, u64, Ir)>),
    /// It cannot be had; the words say why.
    Missing(&'static str),
}

/// The places of a function's arguments and of its result.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub parameters: Vec<Place>,
    pub returns: Place,
}

/// Looks types up.
pub(crate) trait Types {
    fn resolve(&self, at: Option<TypeRef>) -> Rc<Type>;
}

const INTS: u8 = 6;
const FLOATS: u8 = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Int,
    Float,
}

/// A number within a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leaf {
    offset: u64,
    size: u64,
    class: Class,
}

/// What registers and stack are still free.
#[derive(Default)]
struct Free {
    ints: u8,
    floats: u8,
    /// From the return address on.
    stack: u64,
}

impl Free {
    fn new() -> Free {
        Free {
            stack: 8,
            ..Free::default()
        }
    }

    fn has(&self, ints: u8, floats: u8) -> bool {
        self.ints + ints <= INTS && self.floats + floats <= FLOATS
    }

    /// The contents of the next register of a class, or of the stack.
    fn word(&mut self, class: Class) -> Ir {
        let ir = match class {
            Class::Int if self.ints < INTS => {
                self.ints += 1;
                Ir::int(self.ints - 1)
            }
            Class::Float if self.floats < FLOATS => {
                self.floats += 1;
                Ir::Leaf(op::FLOAT, Some(self.floats - 1))
            }
            _ => self.memory(8, 8).load(8),
        };
        Ir::Held(Box::new(ir))
    }

    /// The address of `size` bytes on the stack.
    fn memory(&mut self, size: u64, align: u64) -> Ir {
        // The first argument is 8 above the return address, which is 8 below a multiple of 16.
        let at = (self.stack + 8).next_multiple_of(align.max(8)) - 8;
        self.stack = at + size.next_multiple_of(8);
        Ir::Leaf(op::SP, None).plus(at)
    }
}

/// The nth argument (from 1) of a function of which nothing is known but that its other arguments
/// are of the same class.
pub(crate) fn unknown_argument(n: u32, float: bool) -> Ir {
    let mut free = Free::new();
    let class = if float { Class::Float } else { Class::Int };
    (1..n).for_each(|_| drop(free.word(class)));
    free.word(class)
}

pub(crate) fn system_v(
    parameters: &[Rc<Type>],
    returns: Option<&Rc<Type>>,
    types: &dyn Types,
) -> Places {
    let mut free = Free::new();
    let result = match returns {
        None => Place::Missing("nothing is returned"),
        Some(ty) => match eightbytes(ty, types) {
            Some(classes) => result(ty, &classes),
            None if matches!(ty.kind, TypeKind::Other(_)) => {
                Place::Missing("it is not in a register that is read")
            }
            // The caller gives an address, which comes back in rax.
            None => {
                free.ints = 1;
                Place::Memory(ret(Class::Int, 0))
            }
        },
    };
    let parameters = parameters
        .iter()
        .map(|ty| system_v_argument(ty, &mut free, types))
        .collect();
    Places {
        parameters,
        returns: result,
    }
}

fn system_v_argument(ty: &Type, free: &mut Free, types: &dyn Types) -> Place {
    if is_address(ty, types, 8) {
        return Place::Memory(free.word(Class::Int));
    }
    if ty.is_scalar() {
        return Place::Value(narrow(ty, free.word(class_of(ty))));
    }
    match eightbytes(ty, types) {
        Some(classes) if classes.is_empty() => Place::Missing("it has no contents"),
        Some(classes) => {
            let floats = classes.iter().filter(|c| **c == Class::Float).count() as u8;
            if !free.has(classes.len() as u8 - floats, floats) {
                return Place::Memory(free.memory(ty.size, 8));
            }
            let words = classes.iter().map(|class| free.word(*class)).collect();
            Place::Pieces(pieces(ty.size, words))
        }
        None if matches!(ty.kind, TypeKind::Other(_)) && ty.size == 16 => {
            Place::Memory(free.memory(16, 16))
        }
        None => Place::Memory(free.memory(ty.size, 8)),
    }
}

fn pieces(size: u64, words: Vec<Ir>) -> Vec<(u64, u64, Ir)> {
    words
        .into_iter()
        .enumerate()
        .map(|(i, word)| (8 * i as u64, (size - 8 * i as u64).min(8), word))
        .collect()
}

fn result(ty: &Type, classes: &[Class]) -> Place {
    if classes.is_empty() {
        return Place::Missing("it has no contents");
    }
    if ty.is_scalar() {
        return Place::Value(narrow(ty, ret(class_of(ty), 0)));
    }
    let (mut ints, mut floats) = (0, 0);
    let words = classes
        .iter()
        .map(|class| {
            let used = match class {
                Class::Int => &mut ints,
                Class::Float => &mut floats,
            };
            *used += 1;
            ret(*class, *used - 1)
        })
        .collect();
    Place::Pieces(pieces(ty.size, words))
}

fn ret(class: Class, n: u8) -> Ir {
    match class {
        Class::Int => Ir::Leaf(op::RET, Some(n)),
        Class::Float => Ir::Leaf(op::RET_FLOAT, Some(n)),
    }
}

/// A register holds more bits than a number has; the others mean nothing.
pub(crate) fn narrow(ty: &Type, word: Ir) -> Ir {
    match (ty.size, &ty.kind) {
        (8.., _) => word,
        (4, TypeKind::Float) => Ir::Extend(Box::new(word), 4),
        _ => Ir::Extend(Box::new(word), width(ty)),
    }
}

/// The operand of loads and extensions for a number of this type.
pub(crate) fn width(ty: &Type) -> u8 {
    let size = match ty.size {
        1 => 1,
        2 => 2,
        3 | 4 => 4,
        _ => 8,
    };
    if ty.is_signed() && size < 8 {
        size | op::width::SIGNED
    } else {
        size
    }
}

fn class_of(ty: &Type) -> Class {
    match ty.kind {
        TypeKind::Float => Class::Float,
        _ => Class::Int,
    }
}

/// A C++ class that is not copied as bytes, so that its address is passed: it, or something in it,
/// has code of its own for that.
fn is_address(ty: &Type, types: &dyn Types, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else {
        return false;
    };
    match &ty.kind {
        TypeKind::Struct(contents) if contents.certain => contents.not_trivial,
        TypeKind::Struct(contents) => {
            let inside = |field: &Field| is_address(&types.resolve(Some(field.ty)), types, depth);
            contents.not_trivial || contents.fields.iter().any(inside)
        }
        TypeKind::Array { of, .. } => is_address(&types.resolve(Some(*of)), types, depth),
        _ => false,
    }
}

/// The classes of the 8-byte words of a value that is passed in registers; `None`: it is passed in
/// memory.
fn eightbytes(ty: &Type, types: &dyn Types) -> Option<Vec<Class>> {
    if ty.is_scalar() {
        return Some(vec![class_of(ty)]);
    }
    if is_address(ty, types, 8) || ty.size > 16 || matches!(ty.kind, TypeKind::Other(_)) {
        return None;
    }
    let mut leaves = Vec::new();
    flatten(ty, 0, types, &mut leaves, 8)?;
    if leaves.is_empty() {
        return Some(Vec::new());
    }
    let mut words = vec![Class::Float; ty.size.div_ceil(8) as usize];
    for leaf in leaves {
        for at in [leaf.offset, leaf.offset.saturating_add(leaf.size - 1)] {
            if leaf.class == Class::Int {
                *words.get_mut((at / 8) as usize)? = Class::Int;
            }
        }
    }
    Some(words)
}

/// The numbers that a value consists of; `None` if there are things among them that are passed
/// otherwise.
fn flatten(
    ty: &Type,
    base: u64,
    types: &dyn Types,
    out: &mut Vec<Leaf>,
    depth: usize,
) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    if out.len() > 64 {
        return None;
    }
    match &ty.kind {
        TypeKind::Void => {}
        TypeKind::Other(_) => return None,
        TypeKind::Int { .. } if ty.size == 16 => {
            for offset in [base, base + 8] {
                out.push(Leaf {
                    offset,
                    size: 8,
                    class: Class::Int,
                });
            }
        }
        TypeKind::Array { of, count } => {
            let of = types.resolve(Some(*of));
            // What is passed in registers has 16 bytes at most.
            for i in 0..(*count).min(16) {
                flatten(
                    &of,
                    base.saturating_add(i * of.size.min(16)),
                    types,
                    out,
                    depth,
                )?;
            }
        }
        TypeKind::Struct(contents) => {
            for field in &contents.fields {
                let ty = types.resolve(Some(field.ty));
                flatten(&ty, base.saturating_add(field.offset), types, out, depth)?;
            }
            if let Some(variants) = &contents.variants {
                if let Some((offset, tag)) = variants.tag {
                    flatten(
                        &types.resolve(Some(tag)),
                        base.saturating_add(offset),
                        types,
                        out,
                        depth,
                    )?;
                }
                for variant in &variants.list {
                    let ty = types.resolve(Some(variant.ty));
                    flatten(&ty, base.saturating_add(variant.offset), types, out, depth)?;
                }
            }
        }
        _ => out.push(Leaf {
            offset: base,
            size: ty.size.max(1),
            class: class_of(ty),
        }),
    }
    Some(())
}

/// Rust's own convention, which is not promised but has been the same for years: numbers and pairs
/// of numbers go into registers one by one, what is not larger than a register goes into one,
/// everything else is an address.
pub(crate) fn rust(
    parameters: &[Rc<Type>],
    returns: Option<&Rc<Type>>,
    types: &dyn Types,
) -> Places {
    let mut free = Free::new();
    let result = match returns {
        None => Place::Missing("nothing is returned"),
        Some(ty) if ty.size == 0 => Place::Missing("it has no contents"),
        Some(ty) if ty.is_scalar() => result(ty, &[class_of(ty)]),
        Some(ty) => match scalars(ty, types) {
            Some(leaves) => {
                let (mut ints, mut floats) = (0, 0);
                let words = leaves.iter().map(|leaf| {
                    let used = match leaf.class {
                        Class::Int => &mut ints,
                        Class::Float => &mut floats,
                    };
                    *used += 1;
                    (leaf.offset, leaf.size, ret(leaf.class, *used - 1))
                });
                Place::Pieces(words.collect())
            }
            None if ty.size <= 16 => {
                let words = (0..ty.size.div_ceil(8)).map(|n| ret(Class::Int, n as u8));
                Place::Pieces(pieces(ty.size, words.collect()))
            }
            None => {
                free.ints = 1;
                Place::Memory(ret(Class::Int, 0))
            }
        },
    };
    let parameters = parameters
        .iter()
        .map(|ty| rust_argument(ty, &mut free, types))
        .collect();
    Places {
        parameters,
        returns: result,
    }
}

fn rust_argument(ty: &Type, free: &mut Free, types: &dyn Types) -> Place {
    if ty.size == 0 {
        return Place::Missing("it has no contents");
    }
    if ty.is_scalar() {
        return Place::Value(narrow(ty, free.word(class_of(ty))));
    }
    match scalars(ty, types) {
        Some(leaves) => Place::Pieces(
            leaves
                .iter()
                .map(|leaf| (leaf.offset, leaf.size, free.word(leaf.class)))
                .collect(),
        ),
        None if ty.size <= 8 => Place::Pieces(vec![(0, ty.size, free.word(Class::Int))]),
        None => Place::Memory(free.word(Class::Int)),
    }
}

/// The one or two numbers that a Rust value is to its compiler; `None`: it is more than that.
fn scalars(ty: &Type, types: &dyn Types) -> Option<Vec<Leaf>> {
    let leaves = rust_leaves(ty, 0, types, 8)?;
    (1..=2).contains(&leaves.len()).then_some(leaves)
}

fn rust_leaves(ty: &Type, base: u64, types: &dyn Types, depth: usize) -> Option<Vec<Leaf>> {
    let depth = depth.checked_sub(1)?;
    if ty.size == 0 {
        return Some(Vec::new());
    }
    let TypeKind::Struct(contents) = &ty.kind else {
        // Arrays are more than their numbers.
        if matches!(ty.kind, TypeKind::Array { .. } | TypeKind::Other(_)) {
            return None;
        }
        let mut leaves = Vec::new();
        flatten(ty, base, types, &mut leaves, 4)?;
        return Some(leaves);
    };
    if contents.union {
        return None;
    }
    let mut leaves = Vec::new();
    for field in &contents.fields {
        let ty = types.resolve(Some(field.ty));
        leaves.extend(rust_leaves(
            &ty,
            base.saturating_add(field.offset),
            types,
            depth,
        )?);
    }
    leaves.sort_by_key(|leaf| leaf.offset);
    let Some(variants) = &contents.variants else {
        return Some(leaves);
    };
    let mut filled: Vec<Vec<Leaf>> = Vec::new();
    for variant in &variants.list {
        let ty = types.resolve(Some(variant.ty));
        let own = rust_leaves(&ty, base.saturating_add(variant.offset), types, depth)?;
        if !own.is_empty() {
            filled.push(own);
        }
    }
    let tag = variants.tag.map(|(offset, tag)| Leaf {
        offset: base.saturating_add(offset),
        size: types.resolve(Some(tag)).size,
        class: Class::Int,
    });
    match (tag, filled.as_slice()) {
        (None, [only]) => Some(only.clone()),
        // The tag is a value that one of the variant's own numbers never has.
        (Some(tag), [only]) if only.iter().any(|leaf| leaf.offset == tag.offset) => {
            Some(only.clone())
        }
        (Some(tag), []) => Some(vec![tag]),
        (Some(tag), [first, rest @ ..]) => {
            let same = rest.iter().all(|other| other == first);
            (first.len() == 1 && same).then(|| {
                let mut both = vec![tag, first[0]];
                both.sort_by_key(|leaf| leaf.offset);
                both
            })
        }
        (None, _) => None,
    }
}
