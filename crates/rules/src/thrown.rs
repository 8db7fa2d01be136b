//! What is thrown, read where it is thrown: programs that need no rule, for the functions through
//! which exceptions and panics begin.
//!
//! `__cxa_throw(object, type, destructor)` gets the type's information, whose name is its second
//! word. A class with one base has that base's information in its third. From there up to
//! `std::runtime_error` and `std::logic_error`, of which both C++ libraries keep the message as a
//! pointer behind the object's first word. Other exceptions make their message when asked, by code
//! that nobody here runs: of them the type is known.

use thalweg_bytecode::{NUL_TERMINATED, op};

use crate::ir::{Emit, Ir, Plan, TextSource};
use crate::value::{Description, Shape, When};

/// How much of a name or a message is kept.
const LIMIT: u16 = 400;

/// How many bases lead from a thrown class to the known ones.
const BASES: usize = 8;

/// A function through which exceptions begin, and the program that reads them at its entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throwing {
    /// What it has been called over the years.
    pub functions: &'static [&'static str],
    pub program: Vec<u8>,
}

impl Throwing {
    /// Is this the function? `name` is demangled.
    pub fn matches(&self, name: &str, linkage_name: Option<&str>) -> bool {
        self.functions
            .iter()
            .any(|own| *own == name || linkage_name == Some(own))
    }
}

/// What the ids of items mean that these programs write.
pub fn thrown_descriptions() -> Vec<Description> {
    let description = |name: &str, shape| Description {
        name: name.to_owned(),
        type_name: String::new(),
        shape,
        when: When::Exit,
        inner: false,
    };
    vec![
        description("exception", Shape::TypeName),
        description("exception.message", Shape::Text { padded: false }),
        description("exception.object", Shape::Pointer),
    ]
}

/// The programs, for C++ and for Rust. `rule` is what their headers say.
pub fn throwing_programs(rule: u16) -> Vec<Throwing> {
    let assembled = |emits: Vec<Emit>| {
        let plan = Plan {
            rule,
            emits,
            ..Plan::default()
        };
        plan.assemble().unwrap_or_default()
    };
    vec![
        Throwing {
            functions: &["__cxa_throw"],
            program: assembled(cxx()),
        },
        Throwing {
            functions: &[
                "std::panicking::panic_with_hook",
                "std::panicking::rust_panic_with_hook",
            ],
            program: assembled(rust()),
        },
    ]
}

fn c_string(id: u16, at: Ir) -> Emit {
    Emit::Text {
        id,
        at,
        len: Ir::Const(NUL_TERMINATED),
        limit: LIMIT,
    }
}

fn is_named(information: &Ir, name: &[u8]) -> Ir {
    let at = information.clone().plus(8).load(8);
    let source = TextSource::Memory(Box::new(at), Box::new(Ir::Const(NUL_TERMINATED)));
    Ir::TextEq(source, name.to_vec())
}

fn cxx() -> Vec<Emit> {
    let object = Ir::int(0);
    let information = Ir::int(1);
    let mut emits = vec![
        c_string(op::thrown::TYPE, information.clone().plus(8).load(8)),
        Emit::Word {
            id: op::thrown::OBJECT,
            value: object.clone(),
            size: 8,
        },
    ];
    let message = || c_string(op::thrown::MESSAGE, object.clone().plus(8).load(8));
    let mut class = information.clone();
    for _ in 0..BASES {
        let known = Ir::binary(
            op::EITHER,
            is_named(&class, b"St13runtime_error"),
            is_named(&class, b"St11logic_error"),
        );
        emits.push(Emit::If(known, vec![message()]));
        class = class.plus(16).load(8);
    }
    // What is thrown as a text says itself what it says.
    emits.push(Emit::If(
        is_named(&information, b"PKc"),
        vec![c_string(op::thrown::MESSAGE, object.clone().load(8))],
    ));
    emits.push(Emit::If(
        is_named(
            &information,
            b"NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        ),
        vec![Emit::Text {
            id: op::thrown::MESSAGE,
            at: object.clone().load(8),
            len: object.plus(8).load(8),
            limit: LIMIT,
        }],
    ));
    emits
}

/// `panic_with_hook(payload, its vtable, location, ..)`: the file in which it panicked. The message
/// is made by code that nobody here runs.
fn rust() -> Vec<Emit> {
    let location = Ir::int(2);
    vec![Emit::Text {
        id: op::thrown::MESSAGE,
        at: location.clone().load(8),
        len: location.plus(8).load(8),
        limit: LIMIT,
    }]
}
