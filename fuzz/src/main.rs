//! `fuzz TARGET [--seconds N] [--seed S] [FILE]...`: feeds one reader mutations of its corpus, or of the files.
//! `fuzz seeds THALWEG`: makes the corpus anew; see seeds.rs.

mod seeds;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use thalweg_fuzz::{TARGETS, corpus, named};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fuzz: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = || {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        format!(
            "usage: fuzz TARGET [--seconds N] [--seed S] [FILE]...\ntargets: {}",
            names.join(" ")
        )
    };
    let name = arguments.next().with_context(usage)?;
    if name == "seeds" {
        let thalweg = arguments.next().context("usage: fuzz seeds THALWEG")?;
        return seeds::make(Path::new(&thalweg));
    }
    let target = named(&name).with_context(usage)?;
    let (mut seconds, mut seed, mut inputs) = (60, 1, Vec::new());
    while let Some(argument) = arguments.next() {
        let mut number = || -> anyhow::Result<u64> {
            let text = arguments.next().with_context(usage)?;
            text.parse().with_context(|| format!("{text} is no number"))
        };
        match argument.as_str() {
            "--seconds" => seconds = number()?,
            "--seed" => seed = number()?,
            option if option.starts_with("--") => bail!("{}", usage()),
            file => inputs.push(std::fs::read(file).with_context(|| file.to_owned())?),
        }
    }
    if inputs.is_empty() {
        inputs = corpus::files(&corpus::folder(target))?;
    }
    corpus::bound_memory()?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let count = corpus::run(target, &inputs, seed, |_| Instant::now() < end)?;
    println!("{name}: {count} inputs, seed {seed}: nothing found");
    Ok(())
}
