//! A module as the planner looks at it: bytes by address, functions by address.

use thalweg_symbols::{FunctionKind, Module, Section};

/// No program has anything above this; below it, sums of addresses do not overflow.
const ADDRESS_LIMIT: u64 = 1 << 47;

pub struct Image<'m> {
    pub module: &'m Module,
    /// Indices of the executable sections, in address order.
    pub code: Vec<usize>,
    /// The largest of them, in which nearly all code is.
    main: Option<usize>,
}

impl<'m> Image<'m> {
    pub fn new(module: &'m Module) -> Self {
        let usable = |s: &Section| {
            let end = s.vaddr.checked_add(s.bytes.len() as u64);
            s.executable && !s.bytes.is_empty() && end.is_some_and(|end| end <= ADDRESS_LIMIT)
        };
        let mut code: Vec<usize> = (0..module.sections.len())
            .filter(|&i| usable(&module.sections[i]))
            .collect();
        code.sort_by_key(|&i| module.sections[i].vaddr);
        let bytes = |index: &usize| module.sections[*index].bytes.len();
        let main = code.iter().copied().max_by_key(bytes);
        // Where sections overlap each address is that of the last one that begins before it.
        let main = main.filter(|&main| {
            let start = module.sections[main].vaddr;
            let range = start..start + module.sections[main].bytes.len() as u64;
            let apart =
                |&index: &usize| index == main || !range.contains(&module.sections[index].vaddr);
            code.iter().all(apart)
        });
        Image { module, code, main }
    }

    fn code_section(&self, addr: u64) -> Option<&'m Section> {
        let main = self.main.map(|main| &self.module.sections[main]);
        if let Some(main) = main
            && addr.wrapping_sub(main.vaddr) < main.bytes.len() as u64
        {
            return Some(main);
        }
        let after = self
            .code
            .partition_point(|&i| self.module.sections[i].vaddr <= addr);
        let section = &self.module.sections[*self.code.get(after.checked_sub(1)?)?];
        (addr - section.vaddr < section.bytes.len() as u64).then_some(section)
    }

    pub fn is_code(&self, addr: u64) -> bool {
        self.code_section(addr).is_some()
    }

    /// The bytes from `addr` to the end of its executable section.
    pub fn code_at(&self, addr: u64) -> Option<&'m [u8]> {
        let section = self.code_section(addr)?;
        section.bytes.get((addr - section.vaddr) as usize..)
    }

    /// The bytes of `[start, end)`, if one executable section holds them all.
    pub fn code_range(&self, start: u64, end: u64) -> Option<&'m [u8]> {
        self.code_at(start)?
            .get(..usize::try_from(end.checked_sub(start)?).ok()?)
    }

    /// The bytes from `addr` on that may be a table of jump targets: constants, or data among the code.
    pub fn table_at(&self, addr: u64) -> Option<&'m [u8]> {
        if self.is_code(addr) {
            let starts_function = self
                .function_at(addr)
                .is_some_and(|f| self.module.functions[f].start == addr);
            return if starts_function {
                None
            } else {
                self.code_at(addr)
            };
        }
        self.constants_at(addr)
    }

    /// The bytes from `addr` to the end of its section, if that can only be read.
    fn constants_at(&self, addr: u64) -> Option<&'m [u8]> {
        let after = self.module.sections.partition_point(|s| s.vaddr <= addr);
        // Empty sections share their address with a neighbour.
        self.module.sections[..after]
            .iter()
            .rev()
            .take(3)
            .find_map(|section| {
                if section.executable || section.writable {
                    return None;
                }
                let bytes = section.bytes.get((addr - section.vaddr) as usize..)?;
                (!bytes.is_empty()).then_some(bytes)
            })
    }

    /// The function (of whatever kind) that holds `addr`.
    pub fn function_at(&self, addr: u64) -> Option<usize> {
        let functions = &self.module.functions;
        let i = functions
            .partition_point(|f| f.start <= addr)
            .checked_sub(1)?;
        (addr < functions[i].end).then_some(i)
    }

    pub fn is_fragment(&self, function: usize) -> bool {
        self.module.functions[function].kind == FunctionKind::Fragment
    }

    /// First address behind `addr` that a function or another section claims.
    pub fn next_start(&self, addr: u64) -> u64 {
        let functions = &self.module.functions;
        let next = functions.partition_point(|f| f.start < addr);
        let function = functions.get(next).map_or(u64::MAX, |f| f.start);
        let after = self
            .code
            .partition_point(|&i| self.module.sections[i].vaddr < addr);
        let end = after.checked_sub(1).map_or(0, |i| {
            let section = &self.module.sections[self.code[i]];
            section.vaddr + section.bytes.len() as u64
        });
        function.min(end)
    }
}
