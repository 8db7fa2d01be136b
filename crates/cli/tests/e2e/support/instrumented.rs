//! The second reference: a second build of the same source with -finstrument-functions and `cyg.c`, which
//! gives every context to the unit. It knows C and C++ functions, not assembler ones.

use super::build::{Program, run, symbols};
use super::counts::{Context, Forest};
use super::scratch::Scratch;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::process::Command;

pub struct Instrumented {
    pub forest: Forest,
    pub stdout: String,
}

/// `program` is built by `Build::instrumented`.
pub fn instrumented(program: &Program, arguments: &[&str]) -> Instrumented {
    let scratch = Scratch::new();
    let out = scratch.join("contexts.txt");
    let stdout = run(Command::new(&program.path)
        .args(arguments)
        .env("CYG_OUT", &out));
    let text = fs::read_to_string(&out).expect("the runtime writes its contexts");
    let mut lines = text.lines();
    let base = lines
        .next()
        .and_then(|line| line.strip_prefix("base "))
        .map(address)
        .expect("base line");
    let names = names(program);
    let home = symbols(&program.path)
        .into_iter()
        .find(|(_, _, name)| name == "__cyg_profile_func_enter")
        .map(|(address, _, _)| address)
        .expect("the runtime is linked in");

    let mut forest = Forest::default();
    let mut at: HashMap<&str, usize> = HashMap::new();
    for line in lines {
        let (calls, path) = line.split_once(' ').expect("calls path");
        let (parent, last) = match path.rsplit_once(';') {
            Some((parent, last)) => (Some(parent), last),
            None => (None, path),
        };
        let file_address = address(last).wrapping_sub(base).wrapping_add(home);
        let name = names.get(&file_address).cloned();
        // One file holds the trees of all threads: equal paths of two threads are added up by the reader of paths.
        let parent = parent.map(|parent| at[parent]);
        at.insert(path, forest.nodes.len());
        forest.nodes.push(Context {
            parent,
            name,
            calls: calls.parse().expect("a count"),
        });
    }
    Instrumented { forest, stdout }
}

fn names(program: &Program) -> BTreeMap<u64, String> {
    program
        .modules
        .values()
        .flatten()
        .map(|(address, name)| (*address, name.clone()))
        .collect()
}

fn address(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a hexadecimal address")
}
