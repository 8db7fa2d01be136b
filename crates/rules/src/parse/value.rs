//! Values: operators, paths, numbers, and the words that stand for what is known of a call.

use super::{DEPTH, Parser, WORDS};
use crate::ast::{Binary, Expr, Kind, RAW_TYPES, RawType};
use crate::error::{Problem, near_miss};
use crate::lex::Token;

impl Parser {
    pub(super) fn value(&mut self) -> Result<Expr, Problem> {
        self.nested(|parser| parser.binary(0))
    }

    fn binary(&mut self, level: usize) -> Result<Expr, Problem> {
        const LEVELS: [&[(&str, Binary)]; 6] = [
            &[("|", Binary::Or)],
            &[("^", Binary::Xor)],
            &[("&", Binary::And)],
            &[("<<", Binary::Shl), (">>", Binary::Shr)],
            &[("+", Binary::Add), ("-", Binary::Sub)],
            &[("*", Binary::Mul), ("/", Binary::Div), ("%", Binary::Rem)],
        ];
        let Some(operators) = LEVELS.get(level) else {
            return self.unary();
        };
        let mut left = self.binary(level + 1)?;
        loop {
            let at = self.at();
            let Some((_, op)) = operators.iter().find(|(sign, _)| self.take(sign)) else {
                return Ok(left);
            };
            let right = self.binary(level + 1)?;
            left = Expr {
                kind: Kind::Binary(*op, Box::new(left), Box::new(right)),
                at,
            };
        }
    }

    fn unary(&mut self) -> Result<Expr, Problem> {
        let at = self.at();
        let make: fn(Box<Expr>) -> Kind = match self.peek() {
            Token::Sign("-") => Kind::Negative,
            Token::Sign("~") => Kind::Invert,
            Token::Sign("*") => Kind::Deref,
            _ => return self.postfix(),
        };
        self.bump();
        let inner = self.nested(Parser::unary)?;
        Ok(Expr {
            kind: make(Box::new(inner)),
            at,
        })
    }

    fn postfix(&mut self) -> Result<Expr, Problem> {
        let mut of = self.primary()?;
        let mut steps = 0;
        loop {
            let mut at = self.at();
            steps += 1;
            if steps > DEPTH {
                return Err(Problem::new(at, "this path is too long"));
            }
            let inner = |of: Expr| Box::new(of);
            let kind = if self.take(".") {
                // A field is where its name stands.
                at = self.at();
                match self.bump() {
                    Token::Word(name) => Kind::Field(inner(of), name),
                    Token::Number(n) => Kind::Field(inner(of), n.to_string()),
                    // `x.0.1` reads as a number with a point.
                    Token::Float(x) if x >= 0.0 => {
                        let both = format!("{x:?}");
                        let (a, b) = both.split_once('.').unwrap_or((&both, "0"));
                        let first = Expr {
                            kind: Kind::Field(inner(of), a.to_owned()),
                            at,
                        };
                        Kind::Field(inner(first), b.to_owned())
                    }
                    _ => {
                        self.next -= 1;
                        return Err(self.unexpected("the name of a field"));
                    }
                }
            } else if self.take("->") {
                at = self.at();
                Kind::Arrow(inner(of), self.name("the name of a field")?)
            } else if self.take("[") {
                self.index(of)?
            } else if self.take(":") {
                let type_at = self.at();
                let name = self.name("a type")?;
                let Some(ty) = RawType::from_name(&name) else {
                    let known = RAW_TYPES.iter().map(|(n, _)| *n).chain(["str"]);
                    let help = near_miss(&name, known).unwrap_or_else(|| {
                        "types are int, uint, long, i8 to u64, f32, f64, bool, char, ptr, str"
                            .into()
                    });
                    return Err(
                        Problem::new(type_at, format!("there is no type '{name}'")).help(help)
                    );
                };
                Kind::Cast(inner(of), ty)
            } else {
                return Ok(of);
            };
            of = Expr { kind, at };
        }
    }

    fn index(&mut self, of: Expr) -> Result<Kind, Problem> {
        let at = self.at();
        let from = if matches!(self.peek(), Token::Sign("..")) {
            Expr {
                kind: Kind::Number(0),
                at,
            }
        } else {
            self.value()?
        };
        let kind = if self.take("..") {
            let to = self.value()?;
            Kind::Slice(Box::new(of), Box::new(from), Box::new(to))
        } else {
            Kind::Index(Box::new(of), Box::new(from))
        };
        self.expect("]")?;
        Ok(kind)
    }

    fn primary(&mut self) -> Result<Expr, Problem> {
        let at = self.at();
        let kind = match self.bump() {
            Token::Number(n) => Kind::Number(n),
            Token::Float(x) => Kind::Float(x),
            Token::Time(ns) => Kind::Time(ns),
            Token::Text(text) => Kind::Text(text),
            Token::Char(byte) => Kind::Char(byte),
            Token::Sign("(") => {
                let inner = self.condition()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Word(word) => self.word(word)?,
            _ => {
                self.next -= 1;
                return Err(self.unexpected("a value"));
            }
        };
        Ok(Expr { kind, at })
    }

    fn word(&mut self, word: String) -> Result<Kind, Problem> {
        if *self.peek() == Token::Sign("(") {
            return self.function(word);
        }
        if let Some(digits) = word.strip_prefix("arg")
            && let Ok(n) = digits.parse::<u32>()
        {
            if n == 0 || n > 255 {
                self.next -= 1;
                return Err(Problem::new(
                    self.at(),
                    "arguments are counted from arg1 on",
                ));
            }
            return Ok(Kind::Arg(n));
        }
        // A Rust method's own argument has the name of a time.
        let path_follows = matches!(self.peek(), Token::Sign("." | "->" | "["));
        Ok(match word.as_str() {
            "self" if path_follows => Kind::Name(word),
            "self" => Kind::SelfTime,
            "exception" if self.take(".") => {
                let at = self.at();
                match self.bump() {
                    Token::Word(w) if w == "message" => Kind::Message,
                    Token::Word(w) if w == "type" => Kind::Exception,
                    _ => {
                        return Err(Problem::new(at, "an exception has a type and a message"));
                    }
                }
            }
            "duration" | "total" => Kind::Duration,
            "waiting" => Kind::Waited,
            "ret" => Kind::Ret,
            "errno" => Kind::Errno,
            "exception" => Kind::Exception,
            "thread" => Kind::Thread,
            "args" => Kind::Args,
            "null" | "nullptr" | "NULL" | "nil" => Kind::Null,
            "true" => Kind::Bool(true),
            "false" => Kind::Bool(false),
            _ => Kind::Name(word),
        })
    }

    fn function(&mut self, word: String) -> Result<Kind, Problem> {
        let make: fn(Box<Expr>) -> Kind = match word.as_str() {
            "len" | "size" => Kind::Length,
            "exit" => Kind::AtExit,
            "changed" => Kind::Changed,
            _ => {
                self.next -= 1;
                let help = near_miss(&word, ["len", "exit", "changed"])
                    .or_else(|| near_miss(&word, WORDS))
                    .unwrap_or_else(|| "there are len(x), exit(x) and changed(x)".into());
                return Err(Problem::new(
                    self.at(),
                    format!(
                        "'{word}' cannot be called: the target does not run anything for a rule"
                    ),
                )
                .help(help));
            }
        };
        self.expect("(")?;
        let inner = self.value()?;
        self.expect(")")?;
        Ok(make(Box::new(inner)))
    }
}
