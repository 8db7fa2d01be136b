//! What blocks cost, by the model of a processor (`thalweg_cycles`), from the files of their modules.

use std::path::Path;

use thalweg_cycles::{Processor, by_name, names, of_this_machine};
use thalweg_model::{Block, Ending, Profile};
use thalweg_symbols::Text;

/// `--processor NAME`.
pub fn parse_processor(name: &str) -> Result<&'static Processor, String> {
    by_name(name).ok_or_else(|| {
        let all: Vec<&str> = names().collect();
        format!(
            "there is no model of that name: choose one of {}",
            all.join(", ")
        )
    })
}

/// Whether a block ends with a jump to its own start.
fn loops(block: &Block) -> bool {
    matches!(block.ending, Ending::Branch(to) | Ending::Jump(to) if to == block.start)
}

/// Gives each block its cost, where there is none yet. `None`: on the processor of this machine. What is not there any more, or is
/// another build, has none.
pub fn complete(profile: &mut Profile, processor: Option<&'static Processor>) {
    if profile.blocks.is_empty() || (profile.cycles_of.is_some() && processor.is_none()) {
        return;
    }
    profile.forget_costs();
    let processor = processor.unwrap_or_else(of_this_machine);
    let table = processor.table();
    for own in &mut profile.blocks {
        let module = &profile.modules[own.module as usize];
        let Some(text) = Text::load(Path::new(&module.path), &module.build_id) else {
            profile.notes.push(format!(
                "{} is not there any more, or is another build: what its code costs is not known",
                module.name
            ));
            continue;
        };
        for block in &mut own.blocks {
            let code = text.bytes_at(block.start, block.bytes.into());
            block.cost = thalweg_cycles::cost(table, code, block.start, loops(block));
        }
    }
    profile.cycles_of = Some(processor.name.to_owned());
}

/// What part of its cost each instruction of a block has.
pub fn shares(profile: &Profile, text: &Text, block: &Block) -> Vec<u32> {
    let Some(processor) = profile.cycles_of.as_deref().and_then(by_name) else {
        return Vec::new();
    };
    let code = text.bytes_at(block.start, block.bytes.into());
    thalweg_cycles::shares(processor.table(), code, block.start, block.cost)
}
