//! Go's functions in rules: arguments where debug information says that they are at the first
//! instruction, results by the convention (ABIInternal): numbers one after the other in the
//! registers of their kind, structures field by field, each value whole or not at all.

use std::rc::Rc;

use thalweg_bytecode::{FLOATS, INTS, op};

use crate::abi::{Place, Types, narrow};
use crate::dwarf::{Go, Piece, Where};
use crate::ir::Ir;
use crate::lower::Signature;
use crate::types::{Field, Struct, Type, TypeKind, TypeRef};

const UNUSED: &str = "the debug information does not say where it is when the function begins: the function does not look at it";
const ON_STACK: &str = "results that are no registers' are not read";

pub(crate) fn signature(
    parameters: &[(String, Rc<Type>)],
    go: &Go,
    types: &dyn Types,
) -> Signature {
    let places = go.places.iter().zip(parameters);
    let places = places.map(|(pieces, (_, ty))| argument(ty, pieces.as_deref(), types));
    let parameters = parameters.iter().zip(places);
    Signature {
        parameters: parameters
            .map(|((name, ty), place)| (name.clone(), ty.clone(), place))
            .collect(),
        returns: returns(go, types),
    }
}

/// What is said of one part alone, the only one that is used, is not said to be of a part: so a
/// value of several words must have several parts, unless the compiler never takes it apart.
fn argument(ty: &Type, pieces: Option<&[Piece]>, types: &dyn Types) -> Place {
    let Some(pieces) = pieces else {
        return Place::Missing(UNUSED);
    };
    let word = |piece: &Piece| {
        Some(Ir::Held(Box::new(match piece.at {
            Where::Int(n) => Ir::int(n),
            Where::Float(n) => Ir::Leaf(op::FLOAT, Some(n)),
            Where::Stack(_) | Where::Nowhere => return None,
        })))
    };
    let memory = |at: i64| Place::Memory(Ir::Leaf(op::SP, None).plus(at as u64));
    match pieces {
        [] => Place::Missing(UNUSED),
        [whole] if whole.size == u64::MAX => match (whole.at, word(whole)) {
            _ if !is_said_whole(ty, types) => Place::Missing(UNUSED),
            (Where::Stack(at), _) => memory(at),
            (_, Some(word)) if ty.is_scalar() => Place::Value(narrow(ty, word)),
            (_, Some(word)) => Place::Pieces(vec![(0, ty.size.min(8), word)]),
            (_, None) => Place::Missing(UNUSED),
        },
        pieces => {
            if let Some(at) = on_stack(pieces) {
                return memory(at);
            }
            let words = pieces
                .iter()
                .map(|piece| Some((piece.offset, piece.size, word(piece)?)));
            let whole = pieces.iter().map(|piece| piece.size).sum::<u64>() >= ty.size;
            match words.collect() {
                Some(words) if whole => Place::Pieces(words),
                _ => Place::Missing(UNUSED),
            }
        }
    }
}

/// Where a value begins whose known parts are all on the stack.
fn on_stack(pieces: &[Piece]) -> Option<i64> {
    let mut begins = None;
    for piece in pieces {
        let at = match piece.at {
            Where::Stack(at) => at.checked_sub_unsigned(piece.offset)?,
            Where::Nowhere => continue,
            _ => return None,
        };
        if *begins.get_or_insert(at) != at {
            return None;
        }
    }
    begins
}

/// Whether a place that is said of a value without parts is that of all of it.
fn is_said_whole(ty: &Type, types: &dyn Types) -> bool {
    let mut leaves = Vec::new();
    match flatten(ty, 0, types, &mut leaves, 8) {
        Assigned::Fits => leaves.len() == 1 || ty.size > TAKEN_APART,
        Assigned::OnStack => true,
        Assigned::Unknown => false,
    }
}

/// Values of more bytes are not taken apart.
const TAKEN_APART: u64 = 32;

/// One result is itself, several are a structure with their names or numbers.
fn returns(go: &Go, types: &dyn Types) -> Option<(Rc<Type>, Place)> {
    let mut free = Free::default();
    let mut places = go
        .results
        .iter()
        .map(|(_, _, ty)| (ty, free.result(ty, types)));
    if let [(_, _, ty)] = go.results.as_slice() {
        let (_, pieces) = places.next()?;
        let place = match pieces {
            None => Place::Missing(ON_STACK),
            Some(pieces) => match pieces.as_slice() {
                [] => Place::Missing("it has no contents"),
                [(0, _, word)] if ty.is_scalar() => Place::Value(narrow(ty, word.clone())),
                _ => Place::Pieces(pieces),
            },
        };
        return Some((ty.clone(), place));
    }
    let mut all = Vec::new();
    let mut at = 0u64;
    let mut fields = Vec::new();
    let places: Vec<_> = places.collect();
    for (index, ((name, at_type, _), (ty, pieces))) in go.results.iter().zip(places).enumerate() {
        let name = match name.strip_prefix('~') {
            None if !name.is_empty() => name.clone(),
            _ => index.to_string(),
        };
        fields.push(Field {
            name,
            offset: at,
            ty: *at_type,
            bits: None,
            transparent: false,
        });
        for (offset, size, word) in pieces.into_iter().flatten() {
            all.push((at.saturating_add(offset), size, word));
        }
        at = at.saturating_add(ty.size.next_multiple_of(8));
    }
    if fields.is_empty() {
        return None;
    }
    let names: Vec<&str> = go
        .results
        .iter()
        .map(|(_, _, ty)| ty.name.as_str())
        .collect();
    let ty = Type {
        name: format!("({})", names.join(", ")),
        size: at,
        kind: TypeKind::Struct(Struct {
            fields,
            ..Struct::default()
        }),
    };
    Some((Rc::new(ty), Place::Pieces(all)))
}

type Words = Vec<(u64, u64, Ir)>;

/// Which registers are taken.
#[derive(Default)]
struct Free {
    ints: u8,
    floats: u8,
    /// A result of a kind that is not known came before: nobody knows how many registers it has
    /// taken.
    lost: bool,
}

impl Free {
    /// The registers of a result; `None`: it is not in registers.
    fn result(&mut self, ty: &Type, types: &dyn Types) -> Option<Words> {
        let mut leaves = Vec::new();
        match flatten(ty, 0, types, &mut leaves, 8) {
            Assigned::Fits if !self.lost => {}
            Assigned::Fits | Assigned::Unknown => {
                self.lost = true;
                return None;
            }
            Assigned::OnStack => return None,
        }
        let floats = leaves.iter().filter(|leaf| leaf.2).count();
        let ints = leaves.len() - floats;
        if usize::from(self.ints) + ints > INTS || usize::from(self.floats) + floats > FLOATS {
            return None;
        }
        let word = |(offset, size, float): (u64, u64, bool)| {
            let (op, used) = match float {
                true => (op::RET_FLOAT, &mut self.floats),
                false => (op::RET, &mut self.ints),
            };
            *used += 1;
            (offset, size, Ir::Leaf(op, Some(*used - 1)))
        };
        Some(leaves.into_iter().map(word).collect())
    }
}

enum Assigned {
    Fits,
    OnStack,
    Unknown,
}

/// The numbers of a value: offset, size, whether it is a float.
fn flatten(
    ty: &Type,
    base: u64,
    types: &dyn Types,
    leaves: &mut Vec<(u64, u64, bool)>,
    depth: usize,
) -> Assigned {
    let Some(depth) = depth.checked_sub(1) else {
        return Assigned::Unknown;
    };
    if leaves.len() > INTS + FLOATS {
        return Assigned::OnStack;
    }
    let inner = |at: TypeRef| types.resolve(Some(at));
    match &ty.kind {
        _ if ty.is_scalar() => {
            let float = matches!(ty.kind, TypeKind::Float);
            leaves.push((base, ty.size, float));
            Assigned::Fits
        }
        TypeKind::Array { count: 0, .. } => Assigned::Fits,
        TypeKind::Array { of, count: 1 } => flatten(&inner(*of), base, types, leaves, depth),
        TypeKind::Array { .. } => Assigned::OnStack,
        TypeKind::Struct(contents) => {
            for field in &contents.fields {
                let at = base.saturating_add(field.offset);
                match flatten(&inner(field.ty), at, types, leaves, depth) {
                    Assigned::Fits => {}
                    other => return other,
                }
            }
            Assigned::Fits
        }
        _ => Assigned::Unknown,
    }
}

/// What is in the nth register of its kind, from 1 on, of a function of which nothing is known.
pub(crate) fn unknown_argument(n: u32, float: bool) -> Option<Ir> {
    let index = u8::try_from(n).ok()?.checked_sub(1)?;
    let most = if float { FLOATS } else { INTS };
    let ir = match float {
        true => Ir::Leaf(op::FLOAT, Some(index)),
        false => Ir::int(index),
    };
    (usize::from(index) < most).then(|| Ir::Held(Box::new(ir)))
}

/// `func main.query(sql string, n int) (int, error)`
pub(crate) fn declaration(name: &str, parameters: &[(String, Rc<Type>)], go: &Go) -> String {
    let one = |name: &str, ty: &Type| match name {
        "" => ty.name.clone(),
        name if name.starts_with('~') => ty.name.clone(),
        name => format!("{name} {}", ty.name),
    };
    let parameters: Vec<String> = parameters.iter().map(|(n, ty)| one(n, ty)).collect();
    let results: Vec<String> = go.results.iter().map(|(n, _, ty)| one(n, ty)).collect();
    let parameters = parameters.join(", ");
    match results.as_slice() {
        [] => format!("func {name}({parameters})"),
        [only] if !only.contains(' ') => format!("func {name}({parameters}) {only}"),
        results => format!("func {name}({parameters}) ({})", results.join(", ")),
    }
}
