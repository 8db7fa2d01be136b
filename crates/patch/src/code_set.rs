//! A set of addresses of code: one bit for each byte.
//!
//! Every branch of a program is put into such sets, and every function's targets are looked for in them. A hash table that no
//! file can be made to slow down costs some 50 ns each time, and these are millions of times.

use crate::image::Image;

#[derive(Clone, Default)]
pub struct CodeSet {
    sections: Vec<Bits>,
}

#[derive(Clone)]
struct Bits {
    start: u64,
    len: u64,
    words: Vec<u64>,
}

impl CodeSet {
    /// Without any address yet.
    pub fn of(image: &Image) -> CodeSet {
        let sections = image.code.iter().map(|&index| {
            let section = &image.module.sections[index];
            Bits {
                start: section.vaddr,
                len: section.bytes.len() as u64,
                words: vec![0; section.bytes.len().div_ceil(64)],
            }
        });
        let mut sections: Vec<Bits> = sections.collect();
        // Nearly all code is in one section.
        sections.sort_by_key(|bits| std::cmp::Reverse(bits.len));
        CodeSet { sections }
    }

    fn place(&self, address: u64) -> Option<(usize, usize, u64)> {
        self.sections.iter().enumerate().find_map(|(index, bits)| {
            let offset = address.wrapping_sub(bits.start);
            (offset < bits.len).then(|| (index, (offset / 64) as usize, 1 << (offset % 64)))
        })
    }

    /// `Some(true)`: it is new. `None`: it is none of code, and was not put in.
    pub fn insert(&mut self, address: u64) -> Option<bool> {
        let (section, word, bit) = self.place(address)?;
        let word = &mut self.sections[section].words[word];
        let is_new = *word & bit == 0;
        *word |= bit;
        Some(is_new)
    }

    pub fn contains(&self, address: &u64) -> bool {
        self.place(*address)
            .is_some_and(|(section, word, bit)| self.sections[section].words[word] & bit != 0)
    }

    /// Puts in what is in another set of the same code.
    pub fn extend(&mut self, other: &CodeSet) {
        for (bits, others) in self.sections.iter_mut().zip(&other.sections) {
            for (word, other) in bits.words.iter_mut().zip(&others.words) {
                *word |= other;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_symbols::{DebugLookup, Module};

    #[test]
    fn code_is_in_the_set_once_it_was_put_in_and_nothing_else_is() {
        let path = std::env::current_exe().expect("this program");
        let data = std::fs::read(path).expect("a file");
        let module = Module::parse("tests", &data, &DebugLookup::none()).expect("a program");
        let image = Image::new(&module);
        let mut set = CodeSet::of(&image);
        let mut other = set.clone();
        for &index in &image.code {
            let section = &module.sections[index];
            let (first, last) = (section.vaddr, section.end() - 1);
            assert_eq!(set.insert(first), Some(true));
            assert_eq!(set.insert(first), Some(false));
            assert!(set.contains(&first) && !set.contains(&last));
            assert_eq!(other.insert(last), Some(true));
        }
        set.extend(&other);
        for &index in &image.code {
            assert!(set.contains(&(module.sections[index].end() - 1)));
        }
        let end = image.code.iter().map(|&i| module.sections[i].end()).max();
        assert_eq!(set.insert(end.expect("code")), None);
        assert_eq!(set.insert(u64::MAX), None);
    }
}
