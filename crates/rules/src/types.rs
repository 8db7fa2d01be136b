//! Types of the target's values, as far as reading and showing them needs them.

use std::rc::Rc;

use crate::ast::RawType;

/// A type that is looked up when it is needed: types refer to each other in circles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TypeRef {
    /// In the supplementary file that several debug files share.
    pub supplementary: bool,
    /// Of its entry in .debug_info.
    pub offset: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Type {
    pub name: String,
    pub size: u64,
    pub kind: TypeKind,
}

#[derive(Clone, Debug)]
pub(crate) enum TypeKind {
    Void,
    Int {
        signed: bool,
    },
    Bool,
    /// A character; of one byte also what C uses for small numbers.
    Char {
        signed: bool,
    },
    Float,
    Pointer {
        /// `None`: void, or unknown.
        to: Option<TypeRef>,
        /// C++'s `&`: what it refers to is meant.
        reference: bool,
    },
    Struct(Struct),
    Enum {
        signed: bool,
        names: Vec<(String, i64)>,
    },
    Array {
        of: TypeRef,
        count: u64,
    },
    /// Nanoseconds, which only rules know.
    Time,
    /// What `str` says without debug information: the address of a C string.
    Text,
    /// Not looked into: the words say what it is.
    Other(&'static str),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Struct {
    pub fields: Vec<Field>,
    pub variants: Option<Variants>,
    /// The type arguments, by name.
    pub parameters: Vec<(String, TypeRef)>,
    /// C++: cannot be copied as bytes, so an argument of this type is an address.
    pub not_trivial: bool,
    /// The debug information says so itself, or that it is not so.
    pub certain: bool,
    pub union: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub name: String,
    pub offset: u64,
    pub ty: TypeRef,
    /// First bit and number of bits within the field's bytes.
    pub bits: Option<(u64, u64)>,
    /// A base class or a member without a name: its fields are also those of what contains it.
    pub transparent: bool,
}

/// A Rust enumeration whose variants have fields.
#[derive(Clone, Debug)]
pub(crate) struct Variants {
    /// Where the tag is, and its type; `None`: there is but one variant.
    pub tag: Option<(u64, TypeRef)>,
    pub list: Vec<Variant>,
}

#[derive(Clone, Debug)]
pub(crate) struct Variant {
    pub name: String,
    /// `None`: every other tag.
    pub tag: Option<u64>,
    pub offset: u64,
    pub ty: TypeRef,
}

impl Type {
    pub(crate) fn raw(raw: RawType) -> Rc<Type> {
        let (name, size, kind) = match raw {
            RawType::Signed(size) => (
                format!("i{}", u64::from(size) * 8),
                size,
                TypeKind::Int { signed: true },
            ),
            RawType::Unsigned(size) => (
                format!("u{}", u64::from(size) * 8),
                size,
                TypeKind::Int { signed: false },
            ),
            RawType::F32 => ("f32".into(), 4, TypeKind::Float),
            RawType::F64 => ("f64".into(), 8, TypeKind::Float),
            RawType::Bool => ("bool".into(), 1, TypeKind::Bool),
            RawType::Char => ("char".into(), 1, TypeKind::Char { signed: true }),
            RawType::Pointer => (
                "ptr".into(),
                8,
                TypeKind::Pointer {
                    to: None,
                    reference: false,
                },
            ),
            RawType::Text => ("str".into(), 8, TypeKind::Text),
        };
        Rc::new(Type {
            name,
            size: u64::from(size),
            kind,
        })
    }

    /// One number that fits into a register.
    pub(crate) fn is_scalar(&self) -> bool {
        self.size <= 8
            && matches!(
                self.kind,
                TypeKind::Int { .. }
                    | TypeKind::Bool
                    | TypeKind::Char { .. }
                    | TypeKind::Float
                    | TypeKind::Pointer { .. }
                    | TypeKind::Enum { .. }
                    | TypeKind::Text
            )
    }

    pub(crate) fn is_signed(&self) -> bool {
        match self.kind {
            TypeKind::Int { signed }
            | TypeKind::Enum { signed, .. }
            | TypeKind::Char { signed } => signed,
            _ => false,
        }
    }
}
