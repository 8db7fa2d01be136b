//! What `record` asks for: which bytes are copied, and the shape that makes a value of them again.

mod texts;

use std::collections::HashMap;
use std::rc::Rc;

use thalweg_bytecode::{Status, op};

use self::texts::List;
use crate::abi::{Place, Types, width};
use crate::ast::{Expr, Kind};
use crate::error::Problem;
use crate::ir::{Emit, Ir};
use crate::lower::{Lowering, named};
use crate::operand::{Known, Operand, is_char};
use crate::redact::Redactions;
use crate::shape::{assembled, flat};
use crate::types::{Struct, Type, TypeKind, Variants};
use crate::value::{Case, Description, Part, Shape, When};

/// How deep structures within structures are shown.
const DEPTH: usize = 5;

/// How many fields of one structure.
pub(crate) const FIELDS: usize = 64;

/// How many fields of all values of one function.
pub(crate) const ALL_FIELDS: usize = 512;

/// The meanings of value ids, for all rules together.
#[derive(Default)]
pub(crate) struct Descriptions {
    pub list: Vec<Description>,
    ids: HashMap<Description, u16>,
}

impl Descriptions {
    /// Values of one meaning have one id.
    fn id(&mut self, description: Description) -> Option<u16> {
        if let Some(id) = self.ids.get(&description) {
            return Some(*id);
        }
        let id = u16::try_from(self.list.len())
            .ok()
            .filter(|id| *id < 0xfff0)?;
        self.list.push(description.clone());
        self.ids.insert(description, id);
        Some(id)
    }
}

pub(crate) struct Recording<'a> {
    pub types: &'a dyn Types,
    pub redactions: &'a Redactions,
    pub limit: u16,
    pub descriptions: &'a mut Descriptions,
    pub emits: Vec<Emit>,
    /// How many more fields are shown.
    pub fields_left: usize,
}

/// There are more values than ids.
pub(crate) struct TooMany;

impl Recording<'_> {
    /// Records the value of `e`, or all that it stands for.
    pub(crate) fn expression(&mut self, e: &Expr, lowering: &Lowering<'_>) -> Result<(), Problem> {
        let too_many = |_| {
            Problem::new(e.at, "the rules record more values than can be told apart")
                .help("record fewer, or let fewer functions match")
        };
        match &e.kind {
            Kind::Args => {
                let signature = lowering.signature.as_ref().map_err(|why| {
                    Problem::new(e.at, format!("the arguments are not known: {why}"))
                        .help("say what is where, as in: record arg1:int, arg2:str")
                })?;
                for (i, (name, ty, place)) in signature.parameters.iter().enumerate() {
                    let own = lowering.rule.names.get(i).cloned().flatten();
                    let shown = own.or_else(|| (!name.is_empty()).then(|| name.clone()));
                    let shown = shown.unwrap_or_else(|| format!("arg{}", i + 1));
                    if self.redactions.hides(name) || self.redactions.hides(&shown) {
                        self.redacted(&shown).map_err(too_many)?;
                        continue;
                    }
                    let operand = Operand::new(ty.clone(), place.clone());
                    let operand = operand.through_references(self.types);
                    self.operand(&shown, &operand, false, DEPTH)
                        .map_err(too_many)?;
                }
                Ok(())
            }
            Kind::Exception | Kind::Message => {
                let (name, source, shape) = match e.kind {
                    Kind::Exception => ("exception", op::source::EXCEPTION_TYPE, Shape::TypeName),
                    _ => (
                        "exception.message",
                        op::source::EXCEPTION_MESSAGE,
                        Shape::Text { padded: false },
                    ),
                };
                let id = self
                    .id(name, "", shape, When::Exit, false)
                    .map_err(too_many)?;
                self.emits.push(Emit::Thrown { id, source });
                Ok(())
            }
            Kind::Changed(of) => {
                lowering.check_stays(of.at)?;
                let before = lowering.value(of)?;
                let name = of.to_string();
                self.operand(&name, &before, false, DEPTH)
                    .map_err(too_many)?;
                self.operand(&format!("exit({name})"), &before.at_exit(), false, DEPTH)
                    .map_err(too_many)
            }
            Kind::Slice(of, from, to) => {
                let (base, element) = lowering.elements(of)?;
                let (from, to) = (lowering.whole(from)?, lowering.whole(to)?);
                let stride = Ir::Const(element.size.max(1));
                let at = Ir::binary(
                    op::ADD,
                    base,
                    Ir::binary(op::MUL, from.clone(), stride.clone()),
                );
                let count = Ir::binary(op::SUB, to, from);
                self.list(&name_of(e), at, count, &element, false)
                    .map_err(too_many)
            }
            Kind::Cast(of, crate::ast::RawType::Text) if matches!(of.kind, Kind::Slice(..)) => {
                let Kind::Slice(list, from, to) = &of.kind else {
                    return Ok(());
                };
                let (base, element) = lowering.elements(list)?;
                let from_word = lowering.whole(from)?;
                let count = Ir::binary(op::SUB, lowering.whole(to)?, from_word.clone());
                let stride = Ir::Const(element.size.max(1));
                let at = Ir::binary(op::ADD, base, Ir::binary(op::MUL, from_word, stride));
                self.list(
                    &name_of(e),
                    at,
                    count,
                    &Type::raw(crate::ast::RawType::Char),
                    false,
                )
                .map_err(too_many)
            }
            _ => {
                let operand = lowering.value(e)?;
                if let Place::Missing(why) = operand.place {
                    return Err(Problem::new(
                        e.at,
                        format!("'{e}' is {}: {why}", named(&operand.ty)),
                    ));
                }
                self.operand(&name_of(e), &operand, false, DEPTH)
                    .map_err(too_many)
                    .map(drop)
            }
        }
    }

    pub(crate) fn redacted(&mut self, name: &str) -> Result<u16, TooMany> {
        let shape = Shape::Opaque("redacted".into());
        let id = self.id(name, "", shape, When::Entry, false)?;
        self.emits.push(Emit::Status {
            id,
            status: Status::Redacted as u8,
        });
        Ok(id)
    }

    fn id(
        &mut self,
        name: &str,
        type_name: &str,
        shape: Shape,
        when: When,
        inner: bool,
    ) -> Result<u16, TooMany> {
        self.descriptions
            .id(Description {
                name: name.to_owned(),
                type_name: type_name.to_owned(),
                shape,
                when,
                inner,
            })
            .ok_or(TooMany)
    }

    fn operand(
        &mut self,
        name: &str,
        operand: &Operand,
        inner: bool,
        depth: usize,
    ) -> Result<(), TooMany> {
        self.operand_id(name, operand, inner, depth).map(drop)
    }

    fn operand_id(
        &mut self,
        name: &str,
        operand: &Operand,
        inner: bool,
        depth: usize,
    ) -> Result<u16, TooMany> {
        let when = if operand.is_late() {
            When::Exit
        } else {
            When::Entry
        };
        let type_name = operand.ty.name.clone();
        if let Place::Missing(why) = operand.place {
            let id = self.id(name, &type_name, Shape::Opaque(why.into()), when, inner)?;
            self.emits.push(Emit::Status {
                id,
                status: Status::Unreadable as u8,
            });
            return Ok(id);
        }
        let whole_array = matches!(operand.ty.kind, TypeKind::Array { .. });
        if let Some((at, len)) = operand.text(self.types).filter(|_| !whole_array) {
            let id = self.id(name, &type_name, Shape::Text { padded: false }, when, inner)?;
            let limit = self.limit;
            self.emits.push(Emit::Text { id, at, len, limit });
            return Ok(id);
        }
        match operand.known(self.types) {
            Some(Known::List { at, count, of }) => {
                return self.list_id(name, &type_name, at, count, &of, inner);
            }
            Some(Known::Pointer { at, .. }) => {
                let id = self.id(name, &type_name, Shape::Pointer, when, inner)?;
                self.emits.push(Emit::Word {
                    id,
                    value: at,
                    size: 8,
                });
                return Ok(id);
            }
            _ => {}
        }
        if operand.ty.is_scalar() || matches!(operand.ty.kind, TypeKind::Time) {
            return self.scalar(name, operand, when, inner);
        }
        self.contents(name, operand, when, inner, depth)
    }

    fn scalar(
        &mut self,
        name: &str,
        operand: &Operand,
        when: When,
        inner: bool,
    ) -> Result<u16, TooMany> {
        let Ok(value) = operand.word() else {
            let why = Shape::Opaque("it is spread over registers".into());
            let id = self.id(name, &operand.ty.name, why, when, inner)?;
            let status = Status::Unreadable as u8;
            self.emits.push(Emit::Status { id, status });
            return Ok(id);
        };
        let shape = match operand.bits {
            // The bits are taken out in the target.
            Some(_) if operand.ty.is_signed() => Shape::Signed(8),
            Some(_) => Shape::Unsigned(8),
            None => flat(&operand.ty, self.types, DEPTH),
        };
        let size = match operand.bits {
            Some(_) => 8,
            None => width(&operand.ty) & !op::width::SIGNED,
        };
        let id = self.id(name, &operand.ty.name, shape, when, inner)?;
        self.emits.push(Emit::Word { id, value, size });
        Ok(id)
    }

    fn list(
        &mut self,
        name: &str,
        at: Ir,
        count: Ir,
        of: &Rc<Type>,
        inner: bool,
    ) -> Result<(), TooMany> {
        let type_name = format!("{}[]", of.name);
        self.list_id(name, &type_name, at, count, of, inner)
            .map(drop)
    }

    fn list_id(
        &mut self,
        name: &str,
        type_name: &str,
        at: Ir,
        count: Ir,
        of: &Rc<Type>,
        inner: bool,
    ) -> Result<u16, TooMany> {
        let late = at.is_late() || count.is_late();
        let when = if late { When::Exit } else { When::Entry };
        let list = List {
            name,
            type_name,
            at: at.clone(),
            count: count.clone(),
            of,
            when,
            inner,
        };
        if let Some(id) = self.texts(&list)? {
            return Ok(id);
        }
        let stride = of.size.max(1);
        let shape = if is_char(of) {
            Shape::Text { padded: false }
        } else if self.hides_within(of, DEPTH) {
            let why = "its elements have fields that are redacted";
            let id = self.id(name, type_name, Shape::Opaque(why.into()), when, inner)?;
            let status = Status::Redacted as u8;
            self.emits.push(Emit::Status { id, status });
            return Ok(id);
        } else {
            Shape::List {
                stride: u32::try_from(stride).unwrap_or(u32::MAX),
                of: Box::new(flat(of, self.types, DEPTH)),
            }
        };
        let len = match count {
            Ir::Const(count) => Ir::Const(count.saturating_mul(stride)),
            count => Ir::binary(op::MUL, count, Ir::Const(stride)),
        };
        let id = self.id(name, type_name, shape, when, inner)?;
        let limit = self.limit;
        self.emits.push(Emit::Text { id, at, len, limit });
        Ok(id)
    }

    /// A structure or an array as a whole: its bytes, and beside them the texts that it points to.
    fn contents(
        &mut self,
        name: &str,
        operand: &Operand,
        when: When,
        inner: bool,
        depth: usize,
    ) -> Result<u16, TooMany> {
        if self.hides_within(&operand.ty, depth) {
            return self.field_by_field(name, operand, when, inner, depth);
        }
        let mut inside = Vec::new();
        std::mem::swap(&mut inside, &mut self.emits);
        let shape = self.shape(name, operand, depth);
        std::mem::swap(&mut inside, &mut self.emits);
        let shape = shape?;
        let id = self.id(name, &operand.ty.name, shape, when, inner)?;
        let size = operand.ty.size;
        match &operand.place {
            Place::Memory(at) => self.emits.push(Emit::Text {
                id,
                at: at.clone(),
                len: Ir::Const(size),
                limit: self
                    .limit
                    .max(u16::try_from(size.min(1024)).unwrap_or(1024)),
            }),
            _ => {
                let mut values = Vec::new();
                // Registers hold 16 bytes, Go's more.
                let size = size.min(8 * thalweg_bytecode::INTS as u64);
                for offset in (0..size).step_by(8) {
                    let word = Type {
                        size: (size - offset).min(8),
                        ..Type::clone(&Type::raw(crate::ast::RawType::Unsigned(8)))
                    };
                    values.push(assembled(&operand.part(offset, Rc::new(word))));
                }
                self.emits.push(Emit::Words {
                    id,
                    values,
                    size: u8::try_from(size).unwrap_or(u8::MAX),
                });
            }
        }
        self.emits.extend(inside);
        Ok(id)
    }

    /// With fields that must not be read the others are copied one by one.
    fn field_by_field(
        &mut self,
        name: &str,
        operand: &Operand,
        when: When,
        inner: bool,
        depth: usize,
    ) -> Result<u16, TooMany> {
        let mut parts = Vec::new();
        let fields = match (&operand.ty.kind, depth.checked_sub(1)) {
            (TypeKind::Struct(contents), Some(_)) if contents.variants.is_none() => {
                &contents.fields[..]
            }
            _ => &[],
        };
        for field in fields.iter().take(FIELDS) {
            let path = format!("{name}.{}", field.name);
            let id = if self.redactions.hides(&field.name) {
                let shape = Shape::Opaque("redacted".into());
                let id = self.id(&path, "", shape, when, true)?;
                let status = Status::Redacted as u8;
                self.emits.push(Emit::Status { id, status });
                id
            } else {
                let part = operand.field(field, self.types);
                self.operand_id(&path, &part, true, depth - 1)?
            };
            parts.push(Part {
                name: field.name.clone(),
                offset: 0,
                size: 0,
                shape: Shape::At(id),
            });
        }
        let shape = Shape::Struct {
            name: operand.ty.name.clone(),
            fields: parts,
        };
        let id = self.id(name, &operand.ty.name, shape, when, inner)?;
        let status = Status::Ok as u8;
        self.emits.push(Emit::Status { id, status });
        Ok(id)
    }

    fn hides_within(&self, ty: &Type, depth: usize) -> bool {
        let Some(depth) = depth.checked_sub(1) else {
            return false;
        };
        match &ty.kind {
            TypeKind::Struct(contents) => {
                let fields = contents.fields.iter().map(|f| (&f.name, f.ty));
                let variants = contents.variants.iter().flat_map(|v| &v.list);
                fields
                    .chain(variants.map(|v| (&v.name, v.ty)))
                    .any(|(name, ty)| {
                        self.redactions.hides(name)
                            || self.hides_within(&self.types.resolve(Some(ty)), depth)
                    })
            }
            TypeKind::Array { of, .. } => self.hides_within(&self.types.resolve(Some(*of)), depth),
            _ => false,
        }
    }

    /// The shape of what lies within a value; texts that it points to become items of their own.
    fn shape(&mut self, name: &str, operand: &Operand, depth: usize) -> Result<Shape, TooMany> {
        let Some(depth) = depth.checked_sub(1) else {
            return Ok(Shape::Opaque("more".into()));
        };
        let array = matches!(operand.ty.kind, TypeKind::Array { .. });
        let known = operand.known(self.types);
        if !array
            && (operand.text(self.types).is_some() || matches!(known, Some(Known::List { .. })))
        {
            return Ok(Shape::At(self.operand_id(name, operand, true, depth)?));
        }
        if known.is_some() {
            return Ok(Shape::Pointer);
        }
        match &operand.ty.kind {
            TypeKind::Struct(contents) => {
                let fields = self.parts(name, operand, contents, depth)?;
                match &contents.variants {
                    None => Ok(Shape::Struct {
                        name: operand.ty.name.clone(),
                        fields,
                    }),
                    Some(variants) => self.variants(name, operand, variants, depth),
                }
            }
            _ => Ok(flat(&operand.ty, self.types, depth)),
        }
    }

    fn parts(
        &mut self,
        name: &str,
        operand: &Operand,
        contents: &Struct,
        depth: usize,
    ) -> Result<Vec<Part>, TooMany> {
        let mut parts = Vec::new();
        for field in contents.fields.iter().take(FIELDS) {
            let Some(left) = self.fields_left.checked_sub(1) else {
                break;
            };
            self.fields_left = left;
            let part = operand.field(field, self.types);
            let shape = match field.bits {
                Some((first, count)) => Shape::Bits {
                    size: part.ty.size.clamp(1, 8) as u8,
                    first: first.min(63) as u8,
                    count: count.min(64) as u8,
                    signed: part.ty.is_signed(),
                },
                None => self.shape(&format!("{name}.{}", field.name), &part, depth)?,
            };
            // The fields of bases and nameless members are the structure's own.
            if field.transparent
                && let Shape::Struct { fields, .. } = shape
            {
                parts.extend(fields.into_iter().map(|inner| Part {
                    offset: inner.offset.saturating_add(field.offset as u32),
                    ..inner
                }));
                continue;
            }
            parts.push(Part {
                name: field.name.clone(),
                offset: u32::try_from(field.offset).unwrap_or(u32::MAX),
                size: u32::try_from(part.ty.size).unwrap_or(u32::MAX),
                shape,
            });
        }
        Ok(parts)
    }

    fn variants(
        &mut self,
        name: &str,
        operand: &Operand,
        variants: &Variants,
        depth: usize,
    ) -> Result<Shape, TooMany> {
        let mut list = Vec::new();
        for variant in variants.list.iter().take(FIELDS) {
            let part = operand.part(variant.offset, self.types.resolve(Some(variant.ty)));
            let mut fields = Vec::new();
            if let TypeKind::Struct(contents) = &part.ty.kind {
                let before = self.emits.len();
                let path = format!("{name}.{}", variant.name);
                fields = self.parts(&path, &part, contents, depth)?;
                // What one variant points to is read only if it is that one.
                let own = self.emits.split_off(before);
                if let (false, Some(Ok(condition))) = (
                    own.is_empty(),
                    operand.is_variant(&variant.name, self.types),
                ) {
                    self.emits.push(Emit::If(condition, own));
                }
            }
            list.push(Case {
                name: variant.name.clone(),
                tag: variant.tag,
                fields: fields
                    .into_iter()
                    .map(|field| Part {
                        offset: field.offset.saturating_add(variant.offset as u32),
                        ..field
                    })
                    .collect(),
            });
        }
        let tag = variants.tag.map(|(offset, ty)| {
            let size = self.types.resolve(Some(ty)).size.clamp(1, 8);
            (offset as u32, size as u8)
        });
        Ok(Shape::Variants {
            name: operand.ty.name.clone(),
            tag,
            list,
        })
    }
}

/// What a recorded value is called: as it was written, without the outermost brackets.
fn name_of(e: &Expr) -> String {
    let name = e.to_string();
    match name.strip_prefix('(').and_then(|n| n.strip_suffix(')')) {
        Some(inner) => inner.to_owned(),
        None => name,
    }
}
