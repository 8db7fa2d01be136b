//! Which functions are meant: a name, or a regular expression, and perhaps the module that they are
//! in.
//!
//! A plain name means the functions of that name, whatever their parameters, template arguments and
//! outer namespaces: `query` is `query`, `db::query(int)` and `db::query<long>(long)`, not
//! `query_all`. Anything with a sign that regular expressions use is one, and is searched for in
//! the demangled and in the linkage name.

use std::fmt;

use regex::Regex;

use crate::ast::Quoted;
use crate::error::{Problem, near_miss};

#[derive(Clone, Debug)]
pub struct Pattern {
    /// Searched for in the file name of the module.
    module: Option<Matcher>,
    function: Matcher,
}

#[derive(Clone, Debug)]
enum Matcher {
    Plain(String),
    Regex(Regex),
}

impl PartialEq for Matcher {
    fn eq(&self, other: &Matcher) -> bool {
        match (self, other) {
            (Matcher::Plain(a), Matcher::Plain(b)) => a == b,
            (Matcher::Regex(a), Matcher::Regex(b)) => a.as_str() == b.as_str(),
            _ => false,
        }
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.module == other.module && self.function == other.function
    }
}

impl Pattern {
    /// `text` as it stands in a rule, `at` its place there.
    pub(crate) fn parse(text: &str, at: usize) -> Result<Pattern, Problem> {
        let (module, function, function_at) = match text.split_once('!') {
            Some((module, function)) if !module.contains('/') => {
                let module = Matcher::parse(module, at)?;
                (Some(module), function, at + text.len() - function.len())
            }
            _ => (None, text, at),
        };
        if function.is_empty() {
            return Err(Problem::new(function_at, "a rule begins with a function")
                .help("as in: handle_request: duration > 5ms"));
        }
        Ok(Pattern {
            module,
            function: Matcher::parse(function, function_at)?,
        })
    }

    pub(crate) fn regex(text: &str, at: usize) -> Result<Pattern, Problem> {
        Ok(Pattern {
            module: None,
            function: Matcher::regex(text, at)?,
        })
    }

    /// `module` is the last part of the module's path.
    pub fn matches(&self, module: &str, name: &str, linkage_name: Option<&str>) -> bool {
        self.is_in(module)
            && match &self.function {
                Matcher::Plain(plain) => linkage_name == Some(plain) || is_called(name, plain),
                Matcher::Regex(regex) => {
                    regex.is_match(name) || linkage_name.is_some_and(|l| regex.is_match(l))
                }
            }
    }

    /// Whether it may mean functions of this module.
    pub(crate) fn is_in(&self, module: &str) -> bool {
        match &self.module {
            None => true,
            Some(Matcher::Plain(plain)) => module == plain || without_version(module) == plain,
            Some(Matcher::Regex(regex)) => regex.is_match(module),
        }
    }

    /// The module that it names, if that is none of these nor nearly one of them: one that is yet
    /// to be loaded.
    pub(crate) fn absent_module<'m>(
        &self,
        modules: impl Iterator<Item = &'m str> + Clone,
    ) -> Option<String> {
        let module = self.module.as_ref()?;
        let is_there = modules.clone().any(|module| self.is_in(module));
        let is_misspelt = match module {
            Matcher::Plain(plain) => near_miss(plain, modules.map(without_version)).is_some(),
            Matcher::Regex(_) => false,
        };
        (!is_there && !is_misspelt).then(|| module.to_string())
    }

    /// What a misspelt name is compared with: the plain name, if it is one.
    pub(crate) fn plain(&self) -> Option<&str> {
        match &self.function {
            Matcher::Plain(plain) => Some(plain),
            Matcher::Regex(_) => None,
        }
    }
}

/// `libc` of `libc.so.6`.
fn without_version(module: &str) -> &str {
    module.split(".so").next().unwrap_or(module)
}

impl Matcher {
    fn parse(text: &str, at: usize) -> Result<Matcher, Problem> {
        let inside = text.strip_prefix('/').and_then(|t| t.strip_suffix('/'));
        match inside {
            Some(regex) => Matcher::regex(regex, at + 1),
            None if is_go_name(text) => Ok(Matcher::Plain(text.to_owned())),
            None if text.contains(['*', '+', '?', '[', ']', '{', '}', '|', '^', '$', '\\'])
                || text.contains('(')
                || text.contains(".*") =>
            {
                Matcher::regex(text, at)
            }
            None => Ok(Matcher::Plain(text.to_owned())),
        }
    }

    fn regex(text: &str, at: usize) -> Result<Matcher, Problem> {
        Regex::new(text).map(Matcher::Regex).map_err(|error| {
            let all = error.to_string();
            let reason = all.lines().last().unwrap_or_default();
            let reason = reason.trim_start_matches("error: ");
            Problem::new(
                at,
                format!("'{text}' is not a regular expression: {reason}"),
            )
            .help("a literal . ( [ * + ? needs a \\ before it")
        })
    }
}

impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Matcher::Plain(plain) => f.write_str(plain),
            Matcher::Regex(regex) => Quoted(regex.as_str(), '/').fmt(f),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.module {
            Some(module) => write!(f, "{module}!{}", self.function),
            None => self.function.fmt(f),
        }
    }
}

/// `main.(*Server).Handle`, `main.Sum[...]`: what Go's functions are called, though it has signs of
/// regular expressions.
fn is_go_name(text: &str) -> bool {
    let text = text.strip_suffix("[...]").unwrap_or(text);
    let rest = match text.split_once(".(*") {
        Some((_, method)) => match method.split_once(").") {
            Some((of, name)) => {
                let of = of.strip_suffix("[...]").unwrap_or(of);
                return is_plain(of) && is_plain(name);
            }
            None => return false,
        },
        None => text,
    };
    rest.contains('.') && is_plain(rest)
}

fn is_plain(text: &str) -> bool {
    let signs = |c: char| c.is_alphanumeric() || "_.-/~·".contains(c);
    !text.is_empty() && text.chars().all(signs) && !text.starts_with('/')
}

/// Is `plain` what a person would call the function `name`?
fn is_called(name: &str, plain: &str) -> bool {
    // Nearly all are out by this.
    if !name.contains(plain) {
        return false;
    }
    let base = base_name(name);
    let fits = |base: &str| {
        base == plain
            || base
                .strip_suffix(plain)
                .is_some_and(|outer| outer.ends_with("::"))
    };
    // Go's packages have paths: `http.Serve` is `net/http.Serve`.
    let in_package = || {
        let outer = name.strip_suffix(plain);
        outer.is_some_and(|outer| outer.ends_with('/'))
    };
    fits(base) || fits(without_arguments(base)) || name == plain || in_package()
}

/// A demangled name without parameters, return type and the marks of copies that the compiler made.
pub(crate) fn base_name(name: &str) -> &str {
    let bytes = name.as_bytes();
    let mut depth = 0usize;
    let mut end = name.len();
    let mut start = 0;
    let mut at = 0;
    while at < bytes.len() {
        let rest = &name[at..];
        if let Some(after) = rest.strip_prefix("operator") {
            // What follows are signs that mean something else here.
            let sign = after.starts_with("()");
            at += "operator".len() + if sign { 2 } else { 0 };
            while !sign && at < bytes.len() && matches!(bytes[at], b'<' | b'>' | b'-' | b'=') {
                at += 1;
            }
            continue;
        }
        match bytes[at] {
            b'<' => depth += 1,
            b'>' if at > 0 && bytes[at - 1] == b'-' => {}
            b'>' => depth = depth.saturating_sub(1),
            b'(' if depth == 0 && rest.starts_with("(anonymous namespace)") => {
                at += "(anonymous namespace)".len();
                continue;
            }
            b'(' if depth == 0 => {
                end = at;
                break;
            }
            b' ' if depth == 0 && !name[..at].ends_with("operator") => start = at + 1,
            _ => {}
        }
        at += next_char(rest);
    }
    let base = &name[start.min(end)..end];
    let copy = [".isra.", ".constprop.", ".lto_priv.", ".llvm."]
        .iter()
        .filter_map(|mark| base.find(mark))
        .min();
    let base = &base[..copy.unwrap_or(base.len())];
    // What the compiler adds where it has two versions of a library's types.
    match base.find("[abi:") {
        Some(mark) if base.ends_with(']') => &base[..mark],
        _ => base,
    }
}

fn next_char(text: &str) -> usize {
    text.chars().next().map_or(1, char::len_utf8)
}

/// `f<int>` without `<int>`.
fn without_arguments(base: &str) -> &str {
    if !base.ends_with('>') {
        return base;
    }
    let mut depth = 0usize;
    for (at, c) in base.char_indices().rev() {
        match c {
            '>' => depth += 1,
            '<' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return base[..at].trim_end_matches("::");
                }
            }
            _ => {}
        }
    }
    base
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_name_means_the_functions_that_people_call_so() {
        for name in [
            "query",
            "db::query",
            "db::query(std::string const&, int)",
            "int db::query<long>(long)",
            "void (anonymous namespace)::db::query(int)",
            "query.isra.0",
            "<app::Db as app::Store>::query",
            "app::query::<u32>",
            "db::query[abi:cxx11](int)",
        ] {
            assert!(is_called(name, "query"), "{name}: {}", base_name(name));
        }
        for name in [
            "query_all",
            "subquery",
            "db::query::inner(int)",
            "f(query)",
            "vec<query>::push(int)",
        ] {
            assert!(!is_called(name, "query"), "{name}");
        }
        assert!(is_called("db::query(int)", "db::query"));
        assert!(!is_called("mydb::query(int)", "db::query"));
        assert!(is_called("X::operator()(int) const", "operator()"));
        assert!(is_called(
            "std::operator<<(std::ostream&, int)",
            "std::operator<<"
        ));
    }

    #[test]
    fn a_module_narrows_the_choice() {
        let pattern = Pattern::parse("libc!malloc", 0).unwrap();
        assert!(pattern.matches("libc.so.6", "malloc", None));
        assert!(!pattern.matches("libother.so", "malloc", None));
        assert!(!pattern.matches("libc.so.6", "malloc_trim", None));
    }
}
