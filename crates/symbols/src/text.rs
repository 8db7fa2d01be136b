//! The bytes of a module's code, for those who show them: nothing is analysed.

use crate::elf::Elf;
use crate::lines::has_build_id;
use crate::regular;
use std::path::Path;

/// The executable parts of a file.
pub struct Text {
    /// Address and bytes.
    parts: Vec<(u64, Vec<u8>)>,
}

impl Text {
    /// `None` where there is no such file, or it is another build than `build_id` (empty: not
    /// known).
    pub fn load(path: &Path, build_id: &str) -> Option<Text> {
        let data = regular::read(path).ok()?;
        if !build_id.is_empty() && !has_build_id(&data, build_id) {
            return None;
        }
        let elf = Elf::parse("", &data).ok()?;
        let sections = elf.load_sections().into_iter();
        let code = sections.filter(|section| section.executable);
        let mut parts: Vec<_> = code.map(|section| (section.vaddr, section.bytes)).collect();
        parts.sort_unstable_by_key(|part| part.0);
        Some(Text { parts })
    }

    /// As many of these bytes as are code of the file.
    pub fn bytes_at(&self, address: u64, len: u64) -> &[u8] {
        let next = self.parts.partition_point(|part| part.0 <= address);
        let part = next.checked_sub(1).map(|index| &self.parts[index]);
        part.and_then(|(start, bytes)| {
            let from = usize::try_from(address - start).ok()?;
            let rest = bytes.get(from..)?;
            Some(&rest[..rest.len().min(usize::try_from(len).ok()?)])
        })
        .unwrap_or_default()
    }
}
