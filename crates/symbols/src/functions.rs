//! One list of functions out of symbols and unwind information.
//!
//! A function starts at each function symbol and at each FDE that is not inside a symbol's extent.
//! It ends where its FDE or its symbol ends, whichever is later; with neither, where control flow
//! does; and in any case before the next start, so that ranges never overlap:
//!
//! ```text
//! symbols      memmove_a      memmove_b(inside)        frame_dummy (size 0)
//! FDEs        [------------------------------)                           [----
//! functions   [-------------)[---------------)        [-----)            [----
//!                                                     as far as code is reached
//! ```

use crate::cfi::CfiTable;
use crate::fragments;
use crate::frames::Fde;
use crate::kinds::{self, Facts};
use crate::names;
use crate::padding::{padding_len, trim_both, trim_end};
use crate::reach;
use crate::rseq::Sequences;
use crate::symtab::{Symbol, SymbolKind};
use crate::{FoundIn, Function, FunctionKind, Section};

pub(crate) struct Sources<'a, 'd> {
    pub sections: &'a [Section],
    pub symbols: &'a [Symbol<'d>],
    pub fdes: &'a [Fde],
    pub cfi: &'a CfiTable,
    /// Sorted.
    pub resolvers: &'a [u64],
    /// Addresses of code that data holds; and whether code may hold them as absolute numbers.
    pub pointers: &'a [u64],
    pub fixed: bool,
    pub rseq: &'a Sequences,
    pub entry: u64,
    /// How many bytes all names together may take: symbols of a hostile file can share one long
    /// string.
    pub name_budget: usize,
}

/// A place where a function begins.
struct Start<'d> {
    address: u64,
    symbol: Option<Symbol<'d>>,
    size: u64,
    fde: Option<Fde>,
}

impl Start<'_> {
    fn symbol_end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }

    /// Its symbol says that it is a function, or unwind information does; not a label that
    /// something seems to call.
    fn is_certain(&self) -> bool {
        let untyped = |s: Symbol<'_>| s.kind == SymbolKind::Untyped;
        self.fde.is_some() || !self.symbol.is_some_and(untyped)
    }
}

/// What the executable sections hold.
pub(crate) struct Built {
    pub functions: Vec<Function>,
    pub gaps: Vec<(u64, u64)>,
    pub padding: Vec<(u64, u64)>,
}

pub(crate) fn build(from: &Sources<'_, '_>) -> Built {
    let objects = data_in_code(from);
    let untyped = from
        .symbols
        .iter()
        .filter(|s| s.kind == SymbolKind::Untyped);
    let mut labels: Vec<u64> = untyped.map(|s| s.address).collect();
    labels.sort_unstable();
    let starts = starts(from, &objects);
    let mut functions = Vec::with_capacity(starts.len());
    let mut budget = from.name_budget;
    for section in from.sections.iter().filter(|s| is_plt(s)) {
        functions.push(Function {
            start: section.vaddr,
            end: section.end(),
            name: section.name.clone(),
            linkage_name: None,
            kind: FunctionKind::Plt,
            found_in: FoundIn::Symtab,
        });
    }
    let mut padding = Vec::new();
    let mut section_index = 0;
    for (index, start) in starts.iter().enumerate() {
        while from.sections[section_index].end() <= start.address {
            section_index += 1;
        }
        let section = &from.sections[section_index];
        let limit = starts
            .get(index + 1)
            .map_or(u64::MAX, |next| next.address)
            .min(section.end());
        let Some(end) = end(start, limit, from, &objects, &labels, section) else {
            continue;
        };
        functions.push(describe(start, end, from, section, &mut budget));
        let next = starts.get(index + 1);
        let next = next.filter(|next| next.address < section.end());
        let told = told_end(start, from);
        if let Some(told) = told.filter(|_| next.is_none_or(Start::is_certain)) {
            let next = next.map(|next| next.address);
            padding.extend(padding_between(end, told, next, section));
        }
    }
    functions.sort_by_key(|f| f.start);
    mark_cold_parts(&mut functions, from);
    let gaps = gaps(&functions, from.sections, &objects);
    Built {
        functions,
        gaps,
        padding,
    }
}

/// From `end`, where the function's last instruction ends, to the next function or the end of the
/// section, if nothing but padding is there. `told` is where the function ends as its symbol or its
/// unwind information has it: zeroes before that are its constants, and more of them than alignment
/// takes are somebody's, too.
fn padding_between(
    end: u64,
    told: u64,
    next: Option<u64>,
    section: &Section,
) -> Option<(u64, u64)> {
    let place = |address: u64| (address - section.vaddr) as usize;
    let aligned = next.is_some_and(|next| next.is_multiple_of(16));
    let next = next.unwrap_or(section.end());
    let bytes = section.bytes.get(place(end)..place(next))?;
    if bytes.is_empty() {
        return None;
    }
    let zeroes = told <= end && bytes.len() < 16 && aligned;
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == 0 && !zeroes {
            return None;
        }
        match padding_len(&bytes[at..]) {
            0 => return None,
            length => at += length,
        }
    }
    Some((end, next))
}

fn mark_cold_parts(functions: &mut [Function], from: &Sources<'_, '_>) {
    // Functions are aligned, cold parts are not; those that happen to be follow directly upon one
    // that is not.
    let unaligned = |f: &Function| !f.start.is_multiple_of(16);
    let mut candidates = Vec::new();
    for (index, function) in functions.iter().enumerate() {
        let before = index.checked_sub(1).map(|i| &functions[i]);
        let packed = before.is_some_and(|b| b.end == function.start && unaligned(b));
        let nameless =
            function.found_in == FoundIn::EhFrame && function.kind == FunctionKind::Normal;
        if nameless && (unaligned(function) || packed) {
            candidates.push(index);
        }
    }
    let sources = fragments::Sources {
        sections: from.sections,
        pointers: from.pointers,
        fixed: from.fixed,
    };
    for index in fragments::find(functions, &candidates, &sources) {
        functions[index].kind = FunctionKind::Fragment;
    }
}

fn is_plt(section: &Section) -> bool {
    section.executable
        && matches!(
            section.name.as_str(),
            ".plt" | ".plt.got" | ".plt.sec" | ".plt.bnd" | ".iplt"
        )
}

fn section_of(sections: &[Section], address: u64) -> Option<&Section> {
    let next = sections.partition_point(|s| s.vaddr <= address);
    sections[..next].last().filter(|s| address < s.end())
}

/// Tables that stand among the instructions, as symbols describe them; address order.
fn data_in_code(from: &Sources<'_, '_>) -> Vec<(u64, u64)> {
    let mut objects: Vec<_> = from
        .symbols
        .iter()
        .filter(|s| s.kind == SymbolKind::Object && s.size > 0)
        .filter(|s| section_of(from.sections, s.address).is_some_and(|section| section.executable))
        .map(|s| (s.address, s.address.saturating_add(s.size)))
        .collect();
    objects.sort_unstable();
    reach_right(&mut objects);
    objects
}

/// Stretches each range of a sorted list to the farthest end so far, so that one look to the left
/// tells whether anything covers an address.
fn reach_right(ranges: &mut [(u64, u64)]) {
    let mut reach = 0;
    for range in ranges {
        reach = reach.max(range.1);
        range.1 = reach;
    }
}

/// `ranges` as `reach_right` leaves them.
fn covers(ranges: &[(u64, u64)], address: u64) -> bool {
    let next = ranges.partition_point(|r| r.0 <= address);
    ranges[..next].last().is_some_and(|r| address < r.1)
}

fn starts<'d>(from: &Sources<'_, 'd>, objects: &[(u64, u64)]) -> Vec<Start<'d>> {
    let belongs = |address| {
        section_of(from.sections, address).is_some_and(|s| s.executable && !is_plt(s))
            && !covers(objects, address)
    };
    let mut symbols: Vec<Symbol<'d>> = from
        .symbols
        .iter()
        .filter(|s| matches!(s.kind, SymbolKind::Function | SymbolKind::Ifunc))
        .filter(|s| belongs(s.address))
        .copied()
        .collect();
    symbols.extend(
        called_labels(from, &symbols)
            .into_iter()
            .filter(|s| belongs(s.address)),
    );
    symbols.sort_by(|a, b| (a.address, rank(a)).cmp(&(b.address, rank(b))));

    let mut starts: Vec<Start<'d>> = Vec::with_capacity(symbols.len().max(from.fdes.len()));
    for symbol in symbols {
        match starts.last_mut().filter(|s| s.address == symbol.address) {
            Some(start) if start.size == 0 => start.size = symbol.size,
            Some(_) => {}
            None => starts.push(Start {
                address: symbol.address,
                size: symbol.size,
                symbol: Some(symbol),
                fde: None,
            }),
        }
    }
    let by_symbols = starts.len();
    for fde in from.fdes {
        let address = frame_start(fde, from.sections);
        match starts[..by_symbols].binary_search_by_key(&address, |s| s.address) {
            Ok(index) => starts[index].fde = Some(*fde),
            // A symbol may span several frame descriptions: assembler that changes stacks in the
            // middle.
            Err(next) if next > 0 && starts[next - 1].symbol_end() > address => {}
            Err(_) if belongs(address) => {
                starts.push(Start {
                    address,
                    size: 0,
                    symbol: None,
                    fde: Some(*fde),
                });
            }
            Err(_) => {}
        }
    }
    starts.sort_by_key(|s| s.address);
    starts.dedup_by_key(|s| s.address);
    starts
}

/// The first instruction that a frame description means. One of a signal restorer begins a byte
/// early, because unwinders look up the byte before an address; assembler may open one before the
/// padding that aligns the function.
fn frame_start(fde: &Fde, sections: &[Section]) -> u64 {
    let Some(section) = section_of(sections, fde.start) else {
        return fde.start;
    };
    let code = &section.bytes[(fde.start - section.vaddr) as usize..];
    if fde.signal && kinds::is_restorer(&code[1..]) {
        return fde.start + 1;
    }
    let mut skip = 0;
    while !(fde.start + skip as u64).is_multiple_of(16) {
        match padding_len(&code[skip..]) {
            0 => return fde.start,
            n => skip += n,
        }
    }
    let aligned = fde.start + skip as u64;
    if aligned < fde.end {
        aligned
    } else {
        fde.start
    }
}

/// The best of several names for one address comes first: visible, current, written without leading
/// underscores.
fn rank<'s>(symbol: &Symbol<'s>) -> impl Ord + use<'s> {
    let underscores = symbol.name.iter().take_while(|&&b| b == b'_').count();
    let mangled = symbol.name.starts_with(b"_Z") || symbol.name.starts_with(b"_R");
    (
        symbol.kind == SymbolKind::Untyped,
        symbol.name.is_empty(),
        symbol.local,
        symbol.old_version,
        if mangled { 0 } else { underscores },
        symbol.weak,
        symbol.name.len(),
        symbol.name,
        symbol.found_in,
    )
}

/// Assembler code without `.type`: a label that no other information covers is a function if
/// something calls it.
fn called_labels<'d>(from: &Sources<'_, 'd>, known: &[Symbol<'d>]) -> Vec<Symbol<'d>> {
    let mut covered: Vec<(u64, u64)> = known
        .iter()
        .map(|s| (s.address, s.address.saturating_add(s.size.max(1))))
        .collect();
    covered.extend(from.fdes.iter().map(|f| (f.start, f.end)));
    covered.sort_unstable();
    reach_right(&mut covered);
    let mut labels: Vec<Symbol<'d>> = from
        .symbols
        .iter()
        .filter(|s| {
            s.kind == SymbolKind::Untyped && !s.name.is_empty() && !covers(&covered, s.address)
        })
        .copied()
        .collect();
    if labels.is_empty() {
        return labels;
    }
    labels.sort_by_key(|s| s.address);
    let mut called = vec![false; labels.len()];
    for section in from.sections.iter().filter(|s| s.executable) {
        for (at, window) in section
            .bytes
            .windows(5)
            .enumerate()
            .filter(|(_, w)| w[0] == 0xe8)
        {
            let distance = i32::from_le_bytes([window[1], window[2], window[3], window[4]]);
            let target = (section.vaddr + at as u64 + 5).wrapping_add_signed(i64::from(distance));
            let first = labels.partition_point(|s| s.address < target);
            for index in (first..labels.len()).take_while(|&i| labels[i].address == target) {
                called[index] = true;
            }
        }
    }
    let mut called = called.into_iter();
    labels.retain(|s| called.next() == Some(true) || s.address == from.entry);
    labels
}

/// Where the function ends by its symbol or its unwind information.
fn told_end(start: &Start<'_>, from: &Sources<'_, '_>) -> Option<u64> {
    let fde_end = start.fde.map(|f| f.end).or_else(|| {
        let next = from.fdes.partition_point(|f| f.start <= start.address);
        from.fdes[..next]
            .last()
            .map(|f| f.end)
            .filter(|&end| end > start.address)
    });
    let symbol_end = (start.size > 0).then(|| start.symbol_end());
    fde_end.max(symbol_end)
}

/// `None` where nothing but padding would be left, or what cannot be code.
fn end(
    start: &Start<'_>,
    limit: u64,
    from: &Sources<'_, '_>,
    objects: &[(u64, u64)],
    labels: &[u64],
    section: &Section,
) -> Option<u64> {
    let told = told_end(start, from);
    let mut end = told.unwrap_or(u64::MAX).min(limit);
    let next_object = objects.partition_point(|o| o.0 <= start.address);
    if let Some(object) = objects.get(next_object) {
        end = end.min(object.0);
    }
    let from_byte = (start.address - section.vaddr) as usize;
    let code = section
        .bytes
        .get(from_byte..(end - section.vaddr) as usize)?;
    if told.is_none() {
        return reach::end(code, start.address, labels);
    }
    let trimmed = trim_end(code, start.address);
    (trimmed > start.address).then_some(trimmed)
}

fn describe(
    start: &Start<'_>,
    end: u64,
    from: &Sources<'_, '_>,
    section: &Section,
    budget: &mut usize,
) -> Function {
    let symbol = start.symbol.filter(|s| !s.name.is_empty());
    let linkage_name = symbol.and_then(|s| {
        *budget = budget.checked_sub(s.name.len())?;
        Some(String::from_utf8_lossy(s.name).into_owned())
    });
    let name = linkage_name.as_deref().and_then(|linkage| {
        let name = names::demangle(linkage);
        *budget = budget.checked_sub(name.len())?;
        Some(name)
    });
    let first = (start.address - section.vaddr) as usize;
    let past_end = ((end + 2).min(section.end()) - section.vaddr) as usize;
    let is_ifunc = start.symbol.is_some_and(|s| s.kind == SymbolKind::Ifunc);
    // A cold part that begins with a landing pad has a nop before it: offset 0 would mean that
    // there is none.
    let past_nop = u64::from(section.bytes[first..past_end].first() == Some(&0x90));
    let kind = kinds::kind(&Facts {
        name: linkage_name.as_deref(),
        code: &section.bytes[first..past_end],
        is_entry: from.entry != 0 && (start.address..end).contains(&from.entry),
        is_resolver: is_ifunc || from.resolvers.binary_search(&start.address).is_ok(),
        signal_frame: start.fde.is_some_and(|f| f.signal),
        outermost: start.fde.is_some_and(|f| f.outermost),
        starts_like_a_call: from.cfi.cfa_is_rsp_plus_8(start.address + past_nop),
        in_rseq: from.rseq.touch(start.address, end),
    });
    Function {
        start: start.address,
        end,
        name: name.unwrap_or_else(|| names::nameless(start.address)),
        found_in: symbol.map_or(FoundIn::EhFrame, |s| s.found_in),
        linkage_name,
        kind,
    }
}

/// Executable bytes that are in no function, not known to be data, and not padding.
fn gaps(functions: &[Function], sections: &[Section], objects: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut taken: Vec<(u64, u64)> = functions
        .iter()
        .map(|f| (f.start, f.end))
        .chain(objects.iter().copied())
        .collect();
    taken.sort_unstable();
    let mut gaps = Vec::new();
    let mut next = 0;
    for section in sections.iter().filter(|s| s.executable) {
        let mut at = section.vaddr;
        loop {
            let range = taken.get(next).copied().filter(|r| r.0 < section.end());
            let until = range.map_or(section.end(), |r| r.0.max(section.vaddr));
            if until > at {
                let bytes =
                    &section.bytes[(at - section.vaddr) as usize..(until - section.vaddr) as usize];
                gaps.extend(trim_both(bytes, at));
            }
            match range {
                Some(range) => {
                    at = at.max(range.1).min(section.end());
                    next += 1;
                }
                None => break,
            }
        }
    }
    gaps
}
