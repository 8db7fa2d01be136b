//! gcov's JSON (`gcov --json-format`, version 1), for tools that read it: one document for all
//! files.

use std::io::{self, Write};

use serde::Serialize;
use thalweg_analysis::Code;
use thalweg_model::{FuncId, Profile};

use crate::covered::{Covered, Files};

#[derive(Serialize)]
struct Document<'a> {
    format_version: &'static str,
    gcc_version: String,
    current_working_directory: &'static str,
    data_file: &'static str,
    files: Vec<File<'a>>,
}

#[derive(Serialize)]
struct File<'a> {
    file: &'a str,
    functions: Vec<Function<'a>>,
    lines: Vec<Line<'a>>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    demangled_name: &'a str,
    start_line: u32,
    start_column: u32,
    end_line: u32,
    end_column: u32,
    blocks: u32,
    blocks_executed: u32,
    execution_count: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    line_number: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_name: Option<&'a str>,
    count: u64,
    unexecuted_block: bool,
    branches: Vec<Branch>,
}

#[derive(Serialize)]
struct Branch {
    count: u64,
    throw: bool,
    fallthrough: bool,
}

pub fn write(profile: &Profile, code: &Code, mut out: impl Write) -> io::Result<()> {
    let files = Files::of(profile, code);
    let document = Document {
        format_version: "1",
        gcc_version: format!("thalweg {}", profile.meta.version),
        current_working_directory: ".",
        data_file: "",
        files: files.each().map(|file| described(profile, &file)).collect(),
    };
    serde_json::to_writer(&mut out, &document)?;
    out.write_all(b"\n")?;
    out.flush()
}

fn described<'a>(profile: &'a Profile, file: &Covered<'a>) -> File<'a> {
    let name = |function: FuncId| profile.functions[function].name.as_str();
    let functions = file.functions.iter().map(|one| {
        let mut of_it = file
            .lines
            .iter()
            .filter(|(_, line)| line.functions.contains(&one.function));
        let start = profile.functions[one.function].line;
        Function {
            name: name(one.function),
            demangled_name: name(one.function),
            start_line: start,
            start_column: 1,
            end_line: of_it.next_back().map_or(start, |(number, _)| *number),
            end_column: 1,
            blocks: one.blocks,
            blocks_executed: one.blocks_run,
            execution_count: one.calls,
        }
    });
    let lines = file.lines.iter().map(|(&line_number, line)| {
        let ways = line.branches.iter();
        let ways = ways.flat_map(|one| [(one.taken, false), (one.not_taken, true)]);
        Line {
            line_number,
            function_name: line.functions.first().map(|&function| name(function)),
            count: line.executions,
            unexecuted_block: line.blocks.iter().any(|block| block.1 == 0),
            branches: ways
                .map(|(count, fallthrough)| Branch {
                    count,
                    throw: false,
                    fallthrough,
                })
                .collect(),
        }
    });
    File {
        file: file.path,
        functions: functions.collect(),
        lines: lines.collect(),
    }
}
