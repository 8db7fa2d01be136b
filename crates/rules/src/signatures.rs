//! How functions are declared, for people who read what was recorded of them: `int db::query(const
//! char* sql, int n)`.

use std::path::Path;

use crate::dwarf::{Debug, Declared};
use crate::pattern::base_name;

/// How functions of one module are declared, where its debug information says so: for each that is
/// given by its address and its name. Nothing where the file is another build than `build_id`,
/// which may be empty.
pub fn signatures(module: &Path, build_id: &str, functions: &[(u64, &str)]) -> Vec<Option<String>> {
    let debug = Debug::load_build(module, build_id);
    let one = |(address, name): &(u64, &str)| {
        let declared = debug.as_ref()?.function(*address, None)?;
        Some(declaration(name, &declared))
    };
    functions.iter().map(one).collect()
}

/// `int db::query(const char* sql, int n)`
pub(crate) fn declaration(name: &str, declared: &Declared) -> String {
    if let Some(go) = &declared.go {
        return crate::go::declaration(name, &declared.parameters, go);
    }
    let parameters: Vec<String> = declared
        .parameters
        .iter()
        .map(|(name, ty)| match name.as_str() {
            "" => ty.name.clone(),
            name if declared.rust => format!("{name}: {}", ty.name),
            name => format!("{} {name}", ty.name),
        })
        .collect();
    let returns = declared.returns.as_ref().map_or("void", |ty| &ty.name);
    let base = base_name(name);
    let parameters = parameters.join(", ");
    if !declared.rust {
        return format!("{returns} {base}({parameters})");
    }
    match returns {
        "void" | "()" => format!("fn {base}({parameters})"),
        _ => format!("fn {base}({parameters}) -> {returns}"),
    }
}
