//! Compiles rules against the functions of a file and says what came of it: `check FILE RULE...`.

use std::path::Path;
use std::time::Instant;

use thalweg_bytecode::Header;
use thalweg_rules::{FunctionInfo, Options, Rule, compile};
use thalweg_symbols::{FunctionKind, Module};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_default();
    let module = match Module::load(Path::new(&path)) {
        Ok(module) => module,
        Err(error) => return eprintln!("{error}"),
    };
    let functions: Vec<FunctionInfo<'_>> = module
        .functions
        .iter()
        .enumerate()
        .filter(|(_, f)| f.kind == FunctionKind::Normal)
        .map(|(number, f)| FunctionInfo {
            number: number as u32,
            name: &f.name,
            linkage_name: f.linkage_name.as_deref(),
            module: Path::new(&path),
            address: f.start,
            go: false,
            managed: false,
        })
        .collect();
    let rules: Result<Vec<Rule>, _> = arguments.map(|text| Rule::parse(&text)).collect();
    let start = Instant::now();
    let compiled = rules.and_then(|rules| compile(&rules, &functions, &Options::default()));
    let took = start.elapsed();
    match compiled {
        Err(error) => eprintln!("{error}"),
        Ok(compiled) => {
            for (_, signature) in compiled.signatures.iter().take(20) {
                println!("{signature}");
            }
            for note in &compiled.notes {
                println!("left out: {note}");
            }
            for program in compiled.programs.iter().take(20) {
                println!("{} bytes, {:?}", program.len(), Header::read(program));
            }
            for description in compiled.descriptions.iter().take(20) {
                println!("{}: {}", description.name, description.type_name);
            }
            println!(
                "{} functions of {}, {} programs, {took:?}",
                compiled.of_function.len(),
                functions.len(),
                compiled.programs.len()
            );
        }
    }
}
