//! Which model is whose.

use std::fs;
use std::sync::OnceLock;

use crate::table::Table;

/// A family of processors whose model there is.
#[derive(Debug)]
pub struct Processor {
    pub name: &'static str,
    /// What LLVM calls it.
    pub llvm: &'static str,
    bytes: &'static [u8],
    table: OnceLock<Table>,
}

macro_rules! processors {
    ($($name:literal is $llvm:literal),* $(,)?) => {
        static ALL: [Processor; 5] = [$(Processor {
            name: $name,
            llvm: $llvm,
            bytes: include_bytes!(concat!("../tables/", $llvm, ".bin")),
            table: OnceLock::new(),
        }),*];
    };
}

processors! {
    "zen4" is "znver4",
    "skylake" is "skylake",
    "skylake-server" is "skylake-avx512",
    "icelake" is "icelake-server",
    "sapphire-rapids" is "sapphirerapids",
}

impl Processor {
    pub fn table(&self) -> &Table {
        self.table
            .get_or_init(|| Table::unpack(self.bytes).unwrap_or_default())
    }
}

/// The names by which they can be chosen.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|one| one.name)
}

pub fn by_name(name: &str) -> Option<&'static Processor> {
    ALL.iter().find(|one| one.name == name)
}

/// The nearest to the processor of this machine.
pub fn of_this_machine() -> &'static Processor {
    let told = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = nearest(&told);
    by_name(name).unwrap_or(&ALL[0])
}

fn nearest(cpuinfo: &str) -> &'static str {
    let field = |name: &str| {
        let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let value = lines.find(|(key, _)| key.trim() == name)?.1;
        Some(value.trim())
    };
    let number = |name: &str| field(name).and_then(|value| value.parse::<u32>().ok());
    if field("vendor_id") != Some("GenuineIntel") {
        return "zen4";
    }
    match number("model").unwrap_or(0) {
        0x55 => "skylake-server",
        0x6a | 0x6c | 0x7d | 0x7e | 0x8c | 0x8d | 0xa7 => "icelake",
        0x4e | 0x5e | 0x8e | 0x9e | 0xa5 | 0xa6 => "skylake",
        // Older ones: Haswell, Broadwell and before.
        0..0x55 | 0x56 | 0x57 => "skylake",
        _ => "sapphire-rapids",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_has_a_sound_table() {
        for one in &ALL {
            let table = Table::unpack(one.bytes).expect("a sound table");
            assert!(table.width >= 4, "{}", one.name);
            assert_eq!(table.pack(), one.bytes, "{}", one.name);
        }
    }

    #[test]
    fn machines_get_the_nearest_model() {
        let of = |vendor, family, model| {
            nearest(&format!(
                "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n"
            ))
        };
        assert_eq!(of("AuthenticAMD", 26, 2), "zen4");
        assert_eq!(of("GenuineIntel", 6, 0x8f), "sapphire-rapids");
        assert_eq!(of("GenuineIntel", 6, 0x6a), "icelake");
        assert_eq!(of("GenuineIntel", 6, 0x55), "skylake-server");
        assert_eq!(of("GenuineIntel", 6, 0x9e), "skylake");
        assert_eq!(nearest(""), "zen4");
    }
}
