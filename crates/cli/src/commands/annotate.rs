//! `thalweg annotate`: source and assembler with how often they ran.

use std::process::ExitCode;

use anyhow::{Context, bail};
use thalweg_cycles::Processor;

use crate::annotate::{self, Chosen};
use crate::args::InputArgs;
use crate::cycles;
use crate::report::OutputArgs;

/// Show source lines, or instructions, with how often they ran
///
/// Needs a profile that was recorded with --blocks. Without a name: the functions in which most instructions ran.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A function, a regular expression for several, or a source file by the end of its path
    #[arg(value_name = "FUNCTION|FILE")]
    pub name: Option<String>,

    /// Instructions instead of lines, with the ways that branches went, and the source beside them
    #[arg(long, requires = "name")]
    pub asm: bool,

    /// The functions that never ran, by module and file
    #[arg(long, conflicts_with = "name")]
    pub never: bool,

    /// The system calls that were made, by what is known of their cost: fixed, so much a byte, or not known because they
    /// wait
    #[arg(long, conflicts_with_all = ["name", "never"])]
    pub syscalls: bool,

    /// Show at most this many functions (with --never: of each file)
    #[arg(short = 'n', long, value_name = "ROWS", default_value_t = 30)]
    pub limit: usize,

    /// Cycles by the model of this processor, whatever it ran on: zen4, skylake, skylake-server, icelake,
    /// sapphire-rapids
    #[arg(long, value_name = "NAME", value_parser = cycles::parse_processor)]
    pub processor: Option<&'static Processor>,

    #[command(flatten)]
    pub input: InputArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut profile = args.input.read()?;
    if profile.blocks.is_empty() {
        bail!(
            "{} has no counts of blocks: record it with `thalweg record --blocks`",
            args.input.origin()
        );
    }
    cycles::complete(&mut profile, args.processor);
    let Some(name) = &args.name else {
        let printed =
            args.output.print(
                |out, style| match (args.never, args.syscalls, args.output.json) {
                    (_, true, true) => annotate::print_system_calls_json(&profile, out),
                    (_, true, false) => {
                        annotate::print_system_calls(&profile, args.limit, out, style)
                    }
                    (true, ..) => annotate::print_never(&profile, args.limit, out, style),
                    _ => annotate::print_list(&profile, args.limit, out, style),
                },
            );
        printed.context("cannot write to standard output")?;
        return Ok(ExitCode::SUCCESS);
    };
    let chosen = annotate::choose(&profile, name)?;
    let code = match &chosen {
        Chosen::Functions(functions) => annotate::read(&profile, |f| functions.contains(&f)),
        Chosen::File(_) => annotate::read_all(&profile),
    };
    let mut missing = false;
    let printed = args.output.print(|out, style| match &chosen {
        _ if args.output.json => annotate::print_json(&profile, &code, &chosen, out),
        Chosen::Functions(functions) if args.asm => {
            annotate::print_asm(&profile, &code, functions, out, style)
        }
        _ => {
            let is_any = annotate::print_source(&profile, &code, &chosen, out, style)?;
            match &chosen {
                // Without lines there is still the code.
                Chosen::Functions(functions) if !is_any => {
                    writeln_no_lines(out)?;
                    annotate::print_asm(&profile, &code, functions, out, style)
                }
                _ => {
                    missing = !is_any;
                    Ok(())
                }
            }
        }
    });
    printed.context("cannot write to standard output")?;
    if missing {
        bail!("no line of '{name}' is among the code whose blocks were counted");
    }
    Ok(ExitCode::SUCCESS)
}

fn writeln_no_lines(out: &mut impl std::io::Write) -> std::io::Result<()> {
    writeln!(out, "no debug information says which lines these are\n")
}
