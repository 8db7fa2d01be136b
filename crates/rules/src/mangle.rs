//! Names of C++ types as the compiler writes them into the type information of exceptions: what a
//! rule says of an exception's type is compared with those.

/// `std::runtime_error` -> `St13runtime_error`. `None` for what is more than names joined by `::`.
pub(crate) fn type_name(name: &str) -> Option<Vec<u8>> {
    let name = name.trim();
    let known = match name {
        "int" => "i",
        "unsigned" | "unsigned int" => "j",
        "long" => "l",
        "bool" => "b",
        "char" => "c",
        "double" => "d",
        "float" => "f",
        "const char*" | "const char *" | "char const*" => "PKc",
        "std::string" => "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        _ => "",
    };
    if !known.is_empty() {
        return Some(known.as_bytes().to_vec());
    }
    let mut parts: Vec<&str> = name.trim_start_matches("::").split("::").collect();
    let plain = |part: &&str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if !parts.iter().all(plain) {
        return None;
    }
    let in_std = parts[0] == "std" && parts.len() > 1;
    if in_std {
        parts.remove(0);
    }
    let written: String = parts.iter().map(|p| format!("{}{p}", p.len())).collect();
    let standard = if in_std { "St" } else { "" };
    Some(match parts.len() {
        1 => format!("{standard}{written}").into_bytes(),
        _ => format!("N{standard}{written}E").into_bytes(),
    })
}

/// An expression over names as people write them, as one over names as the compiler does: between
/// two parts of a name stands the length of the second.
pub(crate) fn pattern(regex: &str) -> String {
    let body = regex.strip_prefix('^').unwrap_or(regex);
    let at_start = body.len() != regex.len();
    let (body, at_end) = match body.strip_suffix('$') {
        Some(body) if !body.ends_with('\\') => (body, true),
        _ => (body, false),
    };
    let body = body.replace("std::", "St[0-9]*").replace("::", "[0-9]+");
    format!(
        "{}(?:{body}){}",
        if at_start { "^N?[0-9]*" } else { "" },
        if at_end { "E*$" } else { "" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_compiler() {
        let written = |name| String::from_utf8(type_name(name).unwrap()).unwrap();
        assert_eq!(written("std::runtime_error"), "St13runtime_error");
        assert_eq!(written("net::timeout"), "N3net7timeoutE");
        assert_eq!(written("Oops"), "4Oops");
        assert_eq!(type_name("std::vector<int>"), None);
        for name in ["std::runtime_error", "net::timeout", "Oops"] {
            assert_eq!(crate::value::type_name(&type_name(name).unwrap()), name);
        }
    }

    #[test]
    fn patterns_find_in_written_names_what_people_look_for() {
        for (regex, name, found) in [
            ("timeout", "N3net7timeoutE", true),
            ("net::timeout", "N3net7timeoutE", true),
            ("^net::timeout$", "N3net7timeoutE", true),
            ("^timeout$", "N3net7timeoutE", false),
            ("std::.*_error", "St13runtime_error", true),
            ("^std::runtime_error$", "St13runtime_error", true),
            ("^Oops$", "4Oops", true),
            ("^Oops$", "7OopsOop", false),
        ] {
            let regex = regex::Regex::new(&pattern(regex)).unwrap();
            assert_eq!(regex.is_match(name), found, "{regex} {name}");
        }
    }
}
