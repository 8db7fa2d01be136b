//! Linkage names to the names people wrote.

use std::fmt::{self, Write};

/// Longer demangled names are given up and shown mangled: a few hundred bytes of C++ can unfold
/// into gigabytes.
const LIMIT: usize = 64 * 1024;

/// Rust names without their hash, C++ names with their parameters, anything else unchanged.
pub fn demangle(linkage_name: &str) -> String {
    demangled(linkage_name).unwrap_or_else(|| linkage_name.to_owned())
}

/// Name of a function that has none.
pub(crate) fn nameless(address: u64) -> String {
    format!("sub_{address:x}")
}

fn demangled(name: &str) -> Option<String> {
    let cpp = name.starts_with("_Z") || name.starts_with("__Z");
    if name.starts_with("_R") || cpp && has_rust_hash(name) {
        let demangled = rustc_demangle::try_demangle(name).ok()?;
        let mut out = Bounded(String::new());
        write!(out, "{demangled:#}").ok()?;
        return Some(out.0);
    }
    if !cpp {
        return None;
    }
    let symbol = cpp_demangle::BorrowedSymbol::with_tail(name.as_bytes()).ok()?;
    let (symbol, tail) = symbol;
    let mut out = Bounded(String::with_capacity(name.len() * 2));
    symbol
        .structured_demangle(&mut out, &cpp_demangle::DemangleOptions::default())
        .ok()?;
    if !tail.is_empty() {
        // Suffixes of copies that the compiler made (.cold, .isra.0, .part.3) stay readable as they
        // are.
        if tail[0] != b'.' {
            return None;
        }
        out.write_str(std::str::from_utf8(tail).ok()?).ok()?;
    }
    Some(out.0)
}

/// The legacy Rust scheme is C++'s with a last component `17h` and sixteen hex digits.
fn has_rust_hash(name: &str) -> bool {
    let Some(at) = name.rfind("17h") else {
        return false;
    };
    let rest = &name.as_bytes()[at + 3..];
    rest.len() > 16 && rest[..16].iter().all(u8::is_ascii_hexdigit) && rest[16] == b'E'
}

struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LIMIT {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_as_they_were_written() {
        let pairs = [
            ("main", "main"),
            (
                "_ZN4core3fmt9Formatter3pad17h0123456789abcdefE",
                "core::fmt::Formatter::pad",
            ),
            (
                "_ZN4core3fmt9Formatter3pad17h0123456789abcdefE.llvm.123",
                "core::fmt::Formatter::pad",
            ),
            ("_RNvCs15kBYyAo9fc_7mycrate7example", "mycrate::example"),
            ("_ZN3foo3barEi", "foo::bar(int)"),
            (
                "_ZNSt6vectorIiSaIiEE9push_backERKi",
                "std::vector<int, std::allocator<int> >::push_back(int const&)",
            ),
            ("_ZN3foo3barEi.cold", "foo::bar(int) [clone .cold]"),
            ("_ZN3foo3barEi.isra.0", "foo::bar(int) [clone .isra.0]"),
            ("_Znot_a_name", "_Znot_a_name"),
            ("_start", "_start"),
        ];
        for (linkage, expected) in pairs {
            assert_eq!(demangle(linkage), expected, "{linkage}");
        }
    }

    #[test]
    fn a_name_that_unfolds_without_end_stays_mangled() {
        // Each step doubles the one before: pair<T, T> by substitution.
        let name = |steps: usize| {
            let digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ".chars().take(steps);
            digits.fold("_Z1fSt4pairIiiE".to_owned(), |name, d| {
                format!("{name}S_IS{d}_S{d}_E")
            })
        };
        assert_eq!(
            demangle(&name(1)),
            "f(std::pair<int, int>, std::pair<std::pair<int, int>, std::pair<int, int> >)"
        );
        assert!(demangle(&name(8)).len() > 4000);
        assert_eq!(demangle(&name(30)), name(30));
    }
}
