//! What was recorded, as people and programs read it: the bytes of an item and the shape of its
//! type in, a `Value` out.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};
use thalweg_bytecode::{Item, Items, STATE_ID, Status};

/// What a value id means.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Description {
    /// As in the rule: `req->uri`.
    pub name: String,
    /// The type's name, where it has one.
    pub type_name: String,
    pub shape: Shape,
    pub when: When,
    /// It is shown inside of another value, which refers to it by its id.
    pub inner: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    Entry,
    Exit,
}

/// How bytes become a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    Signed(u8),
    Unsigned(u8),
    Float(u8),
    Bool,
    /// One character, of 1, 2 or 4 bytes.
    Char(u8),
    Pointer,
    /// Nanoseconds.
    Time,
    Enum {
        size: u8,
        names: Vec<(String, i64)>,
    },
    /// Bytes that are text. With `padded` they end at the first zero.
    Text {
        padded: bool,
    },
    /// The name of a C++ type as the compiler writes it.
    TypeName,
    /// The whole value is another item.
    At(u16),
    Struct {
        name: String,
        fields: Vec<Part>,
    },
    /// The bytes are how many there are; the first of them are items of their own.
    Each(Vec<u16>),
    /// As many as the bytes hold.
    List {
        stride: u32,
        of: Box<Shape>,
    },
    Bits {
        size: u8,
        first: u8,
        count: u8,
        signed: bool,
    },
    Variants {
        name: String,
        /// Offset and size.
        tag: Option<(u32, u8)>,
        list: Vec<Case>,
    },
    /// Cannot be shown; the words say why.
    Opaque(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    pub name: String,
    pub offset: u32,
    pub size: u32,
    pub shape: Shape,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Case {
    pub name: String,
    pub tag: Option<u64>,
    pub fields: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Bool(bool),
    Char(char),
    Pointer(u64),
    Time(u64),
    /// The name, if the value has one.
    Enum(Option<String>, i64),
    /// Not necessarily UTF-8.
    Text(Vec<u8>),
    Struct(String, Vec<(String, Value)>),
    List(Vec<Value>),
    /// Name of the type and of the variant, its fields.
    Variant(String, String, Vec<(String, Value)>),
    Null,
    Unreadable,
    Redacted,
    /// Only the beginning of it.
    Cut(Box<Value>),
    /// Cannot be shown, with the reason.
    Opaque(String),
}

/// A recorded value with its name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recorded {
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub type_name: String,
    pub when: When,
    pub value: Value,
}

/// How deep values are shown.
const DEPTH: usize = 16;

/// All values of a recorded call, from the items of its entry and of its exit one behind the other.
pub fn decode_all(descriptions: &[Description], items: &[u8]) -> Vec<Recorded> {
    Items::new(items)
        .filter(|item| item.id != STATE_ID)
        .filter_map(|item| {
            let description = descriptions.get(usize::from(item.id))?;
            (!description.inner).then(|| Recorded {
                name: description.name.clone(),
                type_name: description.type_name.clone(),
                when: description.when,
                value: decode(descriptions, &item, items),
            })
        })
        .collect()
}

/// One item; `items` has those that it refers to.
pub fn decode(descriptions: &[Description], item: &Item<'_>, items: &[u8]) -> Value {
    match descriptions.get(usize::from(item.id)) {
        Some(description) => Decoder {
            descriptions,
            items,
        }
        .item(&description.shape, item, DEPTH),
        None => Value::Opaque("nobody says what this value is".into()),
    }
}

struct Decoder<'a> {
    descriptions: &'a [Description],
    items: &'a [u8],
}

impl Decoder<'_> {
    fn item(&self, shape: &Shape, item: &Item<'_>, depth: usize) -> Value {
        match item.status {
            Status::Ok => self.value(shape, item.bytes, depth),
            Status::Redacted => Value::Redacted,
            Status::Null => Value::Null,
            Status::Unreadable if item.bytes.is_empty() => Value::Unreadable,
            Status::Cut | Status::Unreadable => {
                Value::Cut(Box::new(self.value(shape, item.bytes, depth)))
            }
        }
    }

    fn value(&self, shape: &Shape, bytes: &[u8], depth: usize) -> Value {
        let Some(depth) = depth.checked_sub(1) else {
            return Value::Opaque("nested too deeply".into());
        };
        match shape {
            Shape::Signed(size) => signed(bytes, *size).map(Value::Signed),
            Shape::Unsigned(size) => unsigned(bytes, *size).map(Value::Unsigned),
            Shape::Float(4) => {
                unsigned(bytes, 4).map(|b| Value::Float(f64::from(f32::from_bits(b as u32))))
            }
            Shape::Float(_) => unsigned(bytes, 8).map(|b| Value::Float(f64::from_bits(b))),
            Shape::Bool => unsigned(bytes, 1).map(|b| Value::Bool(b != 0)),
            Shape::Char(size) => unsigned(bytes, *size).map(|c| {
                let c = u32::try_from(c).ok().and_then(char::from_u32);
                Value::Char(c.unwrap_or(char::REPLACEMENT_CHARACTER))
            }),
            Shape::Pointer => unsigned(bytes, 8).map(|at| match at {
                0 => Value::Null,
                _ => Value::Pointer(at),
            }),
            Shape::Time => unsigned(bytes, 8).map(Value::Time),
            Shape::Enum { size, names } => signed(bytes, *size).map(|value| {
                let mask = u64::MAX >> (64 - 8 * u32::from((*size).clamp(1, 8)));
                let same = |n: i64| n as u64 & mask == value as u64 & mask;
                let name = names.iter().find(|(_, n)| same(*n));
                Value::Enum(name.map(|(name, _)| name.clone()), value)
            }),
            Shape::Text { padded } => {
                let end = bytes.iter().position(|b| *b == 0).filter(|_| *padded);
                Some(Value::Text(bytes[..end.unwrap_or(bytes.len())].to_vec()))
            }
            Shape::TypeName => Some(Value::Text(type_name(bytes).into_bytes())),
            Shape::At(id) => Some(self.other(*id, depth)),
            Shape::Struct { name, fields } => Some(Value::Struct(
                name.clone(),
                self.parts(fields, bytes, depth),
            )),
            Shape::Each(ids) => unsigned(bytes, 8).map(|count| {
                let there = ids
                    .iter()
                    .take(usize::try_from(count).unwrap_or(usize::MAX));
                let values = there.map(|id| self.other(*id, depth)).collect();
                match count > ids.len() as u64 {
                    true => Value::Cut(Box::new(Value::List(values))),
                    false => Value::List(values),
                }
            }),
            Shape::List { stride, of } => {
                let parts = bytes.chunks_exact((*stride).max(1) as usize);
                Some(Value::List(
                    parts.map(|part| self.value(of, part, depth)).collect(),
                ))
            }
            Shape::Bits {
                size,
                first,
                count,
                signed,
            } => unsigned(bytes, *size).map(|word| {
                let up = 64 - u32::from(*first + *count).min(64);
                let down = 64 - u32::from(*count).clamp(1, 64);
                let high = word << up;
                if *signed {
                    Value::Signed((high as i64) >> down)
                } else {
                    Value::Unsigned(high >> down)
                }
            }),
            Shape::Variants { name, tag, list } => {
                let tag = match tag {
                    Some((offset, size)) => bytes
                        .get(*offset as usize..)
                        .and_then(|rest| unsigned(rest, *size)),
                    None => Some(0),
                };
                tag.map(|tag| {
                    let case = list.iter().find(|case| case.tag == Some(tag));
                    let case = case.or_else(|| list.iter().find(|case| case.tag.is_none()));
                    match case {
                        Some(case) => Value::Variant(
                            name.clone(),
                            case.name.clone(),
                            self.parts(&case.fields, bytes, depth),
                        ),
                        None => Value::Opaque(format!("no variant has the tag {tag}")),
                    }
                })
            }
            Shape::Opaque(why) => Some(Value::Opaque(why.clone())),
        }
        .unwrap_or(Value::Unreadable)
    }

    fn other(&self, id: u16, depth: usize) -> Value {
        let item = Items::new(self.items).find(|item| item.id == id);
        match (item, self.descriptions.get(usize::from(id))) {
            (Some(item), Some(description)) => self.item(&description.shape, &item, depth),
            _ => Value::Unreadable,
        }
    }

    fn parts(&self, parts: &[Part], bytes: &[u8], depth: usize) -> Vec<(String, Value)> {
        parts
            .iter()
            .map(|part| {
                let end = part.offset.saturating_add(part.size) as usize;
                let value = match (&part.shape, bytes.get(part.offset as usize..end)) {
                    (Shape::At(id), _) => self.other(*id, depth),
                    (shape, Some(bytes)) => self.value(shape, bytes, depth),
                    (_, None) => Value::Unreadable,
                };
                (part.name.clone(), value)
            })
            .collect()
    }
}

fn unsigned(bytes: &[u8], size: u8) -> Option<u64> {
    let part = bytes.get(..usize::from(size))?;
    let mut word = [0; 8];
    word.get_mut(..part.len())?.copy_from_slice(part);
    Some(u64::from_le_bytes(word))
}

fn signed(bytes: &[u8], size: u8) -> Option<i64> {
    let up = 64 - 8 * u32::from(size.clamp(1, 8));
    unsigned(bytes, size).map(|word| ((word << up) as i64) >> up)
}

/// `St13runtime_error` as people write it.
pub(crate) fn type_name(mangled: &[u8]) -> String {
    let mangled = String::from_utf8_lossy(mangled);
    // A star marks types that are compared by address.
    let mangled = mangled.trim_start_matches('*');
    let full = format!("_ZTS{mangled}");
    let name = thalweg_symbols::demangle(&full);
    match name.strip_prefix("typeinfo name for ") {
        Some(name) => name.to_owned(),
        None => mangled.to_owned(),
    }
}

/// A text as it is shown: printable, between quotation marks.
struct Escaped<'a>(&'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '"' => f.write_str("\\\"")?,
                    '\'' => f.write_str("'")?,
                    _ => write!(f, "{}", c.escape_debug())?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        f.write_str("\"")
    }
}

fn fields(f: &mut fmt::Formatter<'_>, name: &str, fields: &[(String, Value)]) -> fmt::Result {
    let tuple = fields
        .iter()
        .all(|(name, _)| name.starts_with("__") && name[2..].parse::<u32>().is_ok());
    if tuple {
        if fields.is_empty() && !name.is_empty() {
            return f.write_str(name);
        }
        write!(f, "{name}(")?;
        for (i, (_, value)) in fields.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{value}")?;
        }
        return f.write_str(")");
    }
    let blank = if name.is_empty() { "" } else { " " };
    write!(f, "{name}{blank}{{")?;
    for (i, (name, value)) in fields.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        write!(f, "{comma}{name}: {value}")?;
    }
    f.write_str("}")
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Signed(n) => write!(f, "{n}"),
            Value::Unsigned(n) => write!(f, "{n}"),
            Value::Float(x) => write!(f, "{x}"),
            Value::Bool(b) => write!(f, "{b}"),
            Value::Char(c) => write!(f, "'{}'", c.escape_debug()),
            Value::Pointer(at) => write!(f, "{at:#x}"),
            Value::Time(ns) => write!(f, "{ns}ns"),
            Value::Enum(Some(name), _) => f.write_str(name),
            Value::Enum(None, value) => write!(f, "{value}"),
            Value::Text(text) => write!(f, "{}", Escaped(text)),
            Value::Struct(_, parts) => fields(f, "", parts),
            Value::List(values) => {
                f.write_str("[")?;
                for (i, value) in values.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{value}")?;
                }
                f.write_str("]")
            }
            Value::Variant(_, name, parts) => fields(f, name, parts),
            Value::Null => f.write_str("null"),
            Value::Unreadable => f.write_str("<unreadable>"),
            Value::Redacted => f.write_str("<redacted>"),
            Value::Cut(value) => write!(f, "{value}..."),
            Value::Opaque(why) => write!(f, "<{why}>"),
        }
    }
}

/// What it is to programs: plain JSON where it can be, an object that says what is the matter where
/// not.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let marked = |serializer: S, key: &str, value: &dyn fmt::Display| {
            let mut map = serializer.serialize_map(Some(1))?;
            map.serialize_entry(key, &value.to_string())?;
            map.end()
        };
        match self {
            Value::Signed(n) => serializer.serialize_i64(*n),
            Value::Unsigned(n) | Value::Time(n) => serializer.serialize_u64(*n),
            Value::Float(x) if x.is_finite() => serializer.serialize_f64(*x),
            Value::Float(x) => serializer.collect_str(x),
            Value::Bool(b) => serializer.serialize_bool(*b),
            Value::Char(c) => serializer.serialize_char(*c),
            Value::Pointer(at) => serializer.collect_str(&format_args!("{at:#x}")),
            Value::Enum(Some(name), _) => serializer.serialize_str(name),
            Value::Enum(None, value) => serializer.serialize_i64(*value),
            Value::Text(text) => serializer.serialize_str(&String::from_utf8_lossy(text)),
            Value::Struct(_, parts) => {
                let parts = parts.iter().map(|(name, value)| (name, value));
                serializer.collect_map(parts)
            }
            Value::List(values) => serializer.collect_seq(values),
            Value::Variant(_, name, parts) if parts.is_empty() => serializer.serialize_str(name),
            Value::Variant(_, name, parts) => {
                let mut map = serializer.serialize_map(Some(1))?;
                match parts.as_slice() {
                    [(_, only)] => map.serialize_entry(name, only)?,
                    _ => {
                        let inner = Value::Struct(String::new(), parts.clone());
                        map.serialize_entry(name, &inner)?;
                    }
                }
                map.end()
            }
            Value::Null => serializer.serialize_none(),
            Value::Unreadable => marked(serializer, "missing", &"unreadable"),
            Value::Redacted => marked(serializer, "missing", &"redacted"),
            Value::Opaque(why) => marked(serializer, "missing", why),
            Value::Cut(value) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("cut", value)?;
                map.end()
            }
        }
    }
}
