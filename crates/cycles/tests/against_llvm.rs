//! Real blocks cost what `llvm-mca` says, whose models the tables are from: the tables, the forms and the sums are right.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use thalweg_blocks::{Ending, Others, plan};
use thalweg_cycles::{PER_CYCLE, by_name, cost, names, shares};
use thalweg_symbols::Module;

/// An instruction that no compiler makes, and what it is in the assembler's words.
const BETWEEN: (&str, &str) = ("0xcd 0x77", "int\t$119");
/// Blocks of a module that are looked at.
const LOOKED_AT: usize = 1000;
/// So that the first ones do not matter.
const ROUNDS: &str = "500";

struct Real {
    code: Vec<u8>,
    address: u64,
    loops: bool,
}

/// Blocks of a library, from all over it; `loops`: those that jump to their own start.
fn real(path: &str, loops: bool) -> Vec<Real> {
    let module = Module::load(Path::new(path)).expect("a library of the system");
    let all = vec![true; module.functions.len()];
    let plan = plan(&module, &all, &Others::default(), true);
    let blocks = plan.blocks.iter().filter_map(|block| {
        let section = module.sections.iter().find(|one| {
            one.vaddr <= block.start && block.start - one.vaddr < one.bytes.len() as u64
        })?;
        let from = (block.start - section.vaddr) as usize;
        let code = section
            .bytes
            .get(from..from + (block.end - block.start) as usize)?;
        Some(Real {
            code: code.to_vec(),
            address: block.start,
            loops: matches!(block.ending, Ending::Branch(to) if to == block.start),
        })
    });
    let mut all: Vec<Real> = blocks.filter(|one| one.loops == loops).collect();
    let step = all.len().div_ceil(LOOKED_AT).max(1);
    let mut index = 0;
    all.retain(|_| {
        index += 1;
        index % step == 0
    });
    all
}

fn run(program: &str, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}: run .ci/install"));
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("it ends").expect("it reads all");
    String::from_utf8(output.stdout).expect("text")
}

/// Of each block its throughput, and the cycles of a round where it is repeated.
fn by_llvm(blocks: &[Real], processor: &str) -> Vec<Option<(f64, f64)>> {
    let mut hex = String::new();
    for block in blocks {
        for byte in &block.code {
            hex += &format!("{byte:#04x} ");
        }
        hex += "\n";
        hex += BETWEEN.0;
        hex += "\n";
    }
    let cpu = format!("-mcpu={processor}");
    let text = run(
        "llvm-mc-19",
        &["--disassemble", "-triple=x86_64", &cpu],
        &hex,
    );
    let mut parts: Vec<String> = vec![String::new()];
    for line in text.lines() {
        match line.trim() {
            ".text" => {}
            line if line == BETWEEN.1 => parts.push(String::new()),
            line => {
                let last = parts.last_mut().expect("never empty");
                *last += line;
                *last += "\n";
            }
        }
    }
    assert_eq!(parts.len(), blocks.len() + 1, "blocks are lost");
    let mut regions = String::new();
    for (index, part) in parts.iter().take(blocks.len()).enumerate() {
        // A prefix that stands alone costs something there.
        if !part
            .lines()
            .any(|line| line.starts_with("lock") || !line.contains('\t') && line.starts_with("rep"))
        {
            regions += &format!("# LLVM-MCA-BEGIN {index}\n{part}# LLVM-MCA-END {index}\n");
        }
    }
    let iterations = match blocks.iter().any(|block| block.loops) {
        true => format!("-iterations={ROUNDS}"),
        false => "-iterations=1".into(),
    };
    let json = run(
        "llvm-mca-19",
        &[
            "-mtriple=x86_64",
            &cpu,
            &iterations,
            "-json",
            "-all-views=false",
            "-summary-view",
        ],
        &regions,
    );
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let mut all = vec![None; blocks.len()];
    for region in json["CodeRegions"].as_array().expect("regions") {
        let index: usize = region["Name"]
            .as_str()
            .expect("a name")
            .parse()
            .expect("a number");
        let view = &region["SummaryView"];
        let number = |name: &str| view[name].as_f64().expect("a number");
        all[index] = Some((
            number("BlockRThroughput"),
            number("TotalCycles") / number("Iterations"),
        ));
    }
    all
}

/// The median of the relative errors, and the sum of ours over the sum of theirs.
fn compare(pairs: &[(f64, f64)]) -> (f64, f64) {
    let mut errors: Vec<f64> = pairs
        .iter()
        .map(|(ours, theirs)| (ours - theirs).abs() / theirs)
        .collect();
    errors.sort_by(f64::total_cmp);
    let sum = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>();
    (
        errors[errors.len() / 2],
        sum(|pair| pair.0) / sum(|pair| pair.1),
    )
}

fn in_cycles(cost: u32) -> f64 {
    f64::from(cost) / f64::from(PER_CYCLE)
}

const SQLITE: &str = "/usr/lib/x86_64-linux-gnu/libsqlite3.so.0";
const LUA: &str = "/usr/bin/lua5.4";
const MATHS: &str = "/usr/lib/x86_64-linux-gnu/libm.so.6";

#[test]
fn blocks_cost_what_llvm_says() {
    for path in [SQLITE, LUA, MATHS] {
        let blocks = real(path, false);
        assert!(blocks.len() > 500, "{path}: {} blocks", blocks.len());
        for name in names() {
            let processor = by_name(name).expect("a name");
            let theirs = by_llvm(&blocks, processor.llvm);
            let table = processor.table();
            let pairs: Vec<(f64, f64)> = blocks
                .iter()
                .zip(&theirs)
                .filter_map(|(block, theirs)| {
                    let ours = cost(table, &block.code, block.address, false);
                    Some((in_cycles(ours), theirs.as_ref()?.0))
                })
                .filter(|pair| pair.1 > 0.0)
                .collect();
            assert!(
                pairs.len() * 10 > blocks.len() * 9,
                "{path} {name}: {} of {}",
                pairs.len(),
                blocks.len()
            );
            if std::env::var_os("EACH").is_some() {
                for (block, theirs) in blocks.iter().zip(&theirs) {
                    let ours = in_cycles(cost(table, &block.code, block.address, false));
                    if let Some((theirs, _)) = theirs
                        && (ours - theirs).abs() > 0.002 + theirs * 0.01
                    {
                        eprintln!(
                            "  {:#x} {} {ours} {theirs}",
                            block.address,
                            block.code.len()
                        );
                    }
                }
            }
            let (median, sum) = compare(&pairs);
            let right = pairs
                .iter()
                .filter(|(ours, theirs)| (ours - theirs).abs() < 0.002 + theirs * 0.01);
            eprintln!(
                "{path} {name}: median error {median:.4}, sum {sum:.4}, {} of {} within 1 %",
                right.count(),
                pairs.len()
            );
            assert!(median <= 0.05, "{path} {name}: median error {median}");
            assert!((sum - 1.0).abs() <= 0.05, "{path} {name}: sum {sum}");
        }
    }
}

#[test]
fn loops_cost_what_llvm_says() {
    let mut blocks = real(SQLITE, true);
    blocks.extend(real(LUA, true));
    // No x87 code, whose stack of registers llvm-mca does not follow.
    blocks.extend(real("/usr/bin/python3.11", true));
    assert!(blocks.len() > 100, "{} loops", blocks.len());
    for name in names() {
        let processor = by_name(name).expect("a name");
        let theirs = by_llvm(&blocks, processor.llvm);
        let pairs: Vec<(f64, f64)> = blocks
            .iter()
            .zip(&theirs)
            .filter_map(|(block, theirs)| {
                let ours = cost(processor.table(), &block.code, block.address, true);
                Some((in_cycles(ours), theirs.as_ref()?.1))
            })
            .collect();
        let (median, sum) = compare(&pairs);
        eprintln!(
            "{name}: {} loops, median error {median:.4}, sum {sum:.4}",
            pairs.len()
        );
        if std::env::var_os("EACH").is_some() {
            for (block, (ours, theirs)) in blocks.iter().zip(&pairs) {
                eprintln!("  {:#x} {ours} {theirs}", block.address);
            }
        }
        assert!(median <= 0.05, "{name}: median error {median}");
        assert!((sum - 1.0).abs() <= 0.15, "{name}: sum {sum}");
    }
}

#[test]
fn a_blocks_cost_is_shared_out_to_the_last_thousandth() {
    let processor = by_name("zen4").expect("a name");
    for block in real(SQLITE, false) {
        let cost = cost(processor.table(), &block.code, block.address, false);
        let shares = shares(processor.table(), &block.code, block.address, cost);
        assert_eq!(shares.iter().sum::<u32>(), cost, "{:#x}", block.address);
    }
}
