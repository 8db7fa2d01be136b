//! The instructions of blocks and where they were written, from the files of the modules. What is not there any more, or is another
//! build, has none.

use std::collections::HashMap;
use std::path::Path;

use thalweg_analysis::{Code, Insn, Place};
use thalweg_blocks::{Listed, listed};
use thalweg_model::{Block, FuncId, Profile};
use thalweg_symbols::{Lines, Text};

use crate::cycles;

/// Of all blocks.
pub fn read_all(profile: &Profile) -> Code {
    read(profile, |_| true)
}

/// Of the blocks of those functions that `wanted` wants.
pub fn read(profile: &Profile, wanted: impl Fn(FuncId) -> bool) -> Code {
    let mut code = Code::default();
    let mut numbers: HashMap<String, u32> = HashMap::new();
    for own in &profile.blocks {
        let is_wanted = |block: &Block| wanted(block.function);
        let mut blocks = vec![Vec::new(); own.blocks.len()];
        if own.blocks.iter().any(is_wanted) {
            let module = &profile.modules[own.module as usize];
            let path = Path::new(&module.path);
            if let Some(text) = Text::load(path, &module.build_id) {
                let lines = Lines::load(path, &module.build_id);
                for (insns, block) in blocks.iter_mut().zip(&own.blocks) {
                    if is_wanted(block) {
                        *insns = instructions(&text, &lines, block, &mut numbers, &mut code.files);
                        let shares = cycles::shares(profile, &text, block);
                        for (insn, share) in insns.iter_mut().zip(shares) {
                            insn.cost = share;
                        }
                    }
                }
            }
        }
        code.modules.push(blocks);
    }
    code
}

fn instructions(
    text: &Text,
    lines: &Lines,
    block: &Block,
    numbers: &mut HashMap<String, u32>,
    files: &mut Vec<String>,
) -> Vec<Insn> {
    let mut place = |file: &str, line: u32| {
        let file = *numbers.entry(file.to_owned()).or_insert_with(|| {
            files.push(file.to_owned());
            files.len() as u32 - 1
        });
        (line > 0).then_some(Place { file, line })
    };
    let found = disassembled(text, block).into_iter().map(|one| {
        let frames = match lines.is_empty() {
            true => Vec::new(),
            false => lines.frames(one.address),
        };
        let mut of = |written: Option<&thalweg_symbols::Written>| {
            written.and_then(|written| place(&written.file, written.line))
        };
        Insn {
            address: one.address,
            written: of(frames.first()),
            outer: of(frames.last()),
            cost: 0,
        }
    });
    found.collect()
}

/// The instructions of one block.
pub fn disassembled(text: &Text, block: &Block) -> Vec<Listed> {
    listed(text.bytes_at(block.start, block.bytes.into()), block.start)
}
