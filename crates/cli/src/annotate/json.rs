//! The same for scripts: `{"files": [{"file", "lines": [...]}], "functions": [...]}`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;
use thalweg_analysis::{By, Code, executed, line_counts};
use thalweg_model::{FuncId, PER_CYCLE, Profile};

use super::choose::{Chosen, is_file};

#[derive(Serialize)]
struct Document {
    /// The model of a processor that `cycles` are of.
    cycles_of: Option<String>,
    functions: Vec<FunctionRow>,
    files: Vec<FileRow>,
}

#[derive(Serialize)]
struct FunctionRow {
    id: FuncId,
    name: String,
    calls: u64,
    instructions: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cycles: Option<f64>,
    blocks: u32,
    blocks_run: u32,
}

#[derive(Serialize)]
struct FileRow {
    file: String,
    lines: Vec<LineRow>,
}

#[derive(Serialize)]
struct LineRow {
    line: u32,
    executions: u64,
    instructions: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cycles: Option<f64>,
    /// Executions of each block with code of the line.
    blocks: Vec<u64>,
    branches: Vec<Ways>,
}

#[derive(Serialize)]
struct Ways {
    address: String,
    taken: u64,
    not_taken: u64,
}

/// Thousandths of a cycle as cycles, where they are known.
fn in_cycles(profile: &Profile, cost: u128) -> Option<f64> {
    let cycles = cost as f64 / f64::from(PER_CYCLE);
    profile.cycles_of.as_ref().map(|_| cycles)
}

pub fn print_json(
    profile: &Profile,
    code: &Code,
    chosen: &Chosen,
    out: &mut impl Write,
) -> io::Result<()> {
    let wants = |function: FuncId| match chosen {
        Chosen::Functions(functions) => functions.contains(&function),
        Chosen::File(_) => true,
    };
    let by = match chosen {
        Chosen::Functions(_) => By::Outer,
        Chosen::File(_) => By::Written,
    };
    let mut files: BTreeMap<u32, Vec<LineRow>> = BTreeMap::new();
    let mut met = std::collections::BTreeSet::new();
    for (place, line) in line_counts(profile, code, by, wants) {
        if let Chosen::File(name) = chosen
            && !is_file(&code.files[place.file as usize], name)
        {
            continue;
        }
        met.extend(line.functions);
        files.entry(place.file).or_default().push(LineRow {
            line: place.line,
            executions: line.executions,
            instructions: line.instructions,
            cycles: in_cycles(profile, line.cost),
            blocks: line.blocks.iter().map(|block| block.1).collect(),
            branches: line
                .branches
                .iter()
                .map(|branch| Ways {
                    address: format!("{:#x}", branch.address),
                    taken: branch.taken,
                    not_taken: branch.not_taken,
                })
                .collect(),
        });
    }
    if let Chosen::Functions(functions) = chosen {
        met.extend(functions);
    }
    let functions = executed(profile).into_iter();
    let functions = functions.filter(|one| met.contains(&one.function));
    let document = Document {
        cycles_of: profile.cycles_of.clone(),
        functions: functions
            .map(|one| FunctionRow {
                id: one.function,
                name: profile.functions[one.function].name.clone(),
                calls: one.calls,
                instructions: one.instructions,
                cycles: in_cycles(profile, one.cost),
                blocks: one.blocks,
                blocks_run: one.blocks_run,
            })
            .collect(),
        files: files
            .into_iter()
            .map(|(file, lines)| FileRow {
                file: code.files[file as usize].clone(),
                lines,
            })
            .collect(),
    };
    serde_json::to_writer(&mut *out, &document)?;
    writeln!(out)
}
