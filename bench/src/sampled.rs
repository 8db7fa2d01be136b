//! What share of a program's time each function has in truth: the program runs without thalweg, under `perf`, which looks several
//! thousand times a second of processor time where it is and who called that. No probe is in the way, so the shares are those of the
//! program as it is, within the error of a sample.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use object::{Object, ObjectSegment};
use thalweg_model::Profile;

/// Looks a second: odd, so that nothing keeps step with it, and few: each one copies the stack, and five thousand of them a second
/// pushed so much out of the caches that a function of `gzip` had 30 % of the time instead of its 39.
const RATE: &str = "997";
/// Bytes of the stack that are kept with each look: what is beyond them has no callers.
const STACK: &str = "dwarf,32768";

/// Once in so many looks.
const HARDLY_EVER: u64 = 1000;

/// How often functions were seen on the stack, and at its end. By the profile's numbers of the functions.
#[derive(Default)]
pub struct Sampled {
    pub samples: u64,
    on_stack: HashMap<u32, u64>,
    at_end: HashMap<u32, u64>,
    /// Of each run, looks and those at each function.
    runs: Vec<(u64, HashMap<u32, u64>)>,
}

impl Sampled {
    /// The function's share of all time, itself and what it called.
    pub fn cum_share(&self, function: u32) -> f64 {
        let seen = self.on_stack.get(&function).copied().unwrap_or(0);
        seen as f64 / self.samples.max(1) as f64
    }

    /// The function's share of all time, itself alone.
    pub fn own_share(&self, function: u32) -> f64 {
        let seen = self.at_end.get(&function).copied().unwrap_or(0);
        seen as f64 / self.samples.max(1) as f64
    }

    /// By how much the share of one run differs from that, as a standard deviation: it is not known better than by so many looks, and a program
    /// that puts its tables in other places each time does not do the same each time.
    pub fn deviation(&self, function: u32) -> f64 {
        let share = self.cum_share(function);
        let by_chance = |looks: u64| share * (1.0 - share) / looks.max(1) as f64;
        let of_runs = self.runs.iter().map(|(looks, seen)| {
            let seen = seen.get(&function).copied().unwrap_or(0);
            let off = seen as f64 / (*looks).max(1) as f64 - share;
            off * off - by_chance(*looks)
        });
        let runs = self.runs.len().max(2) - 1;
        let of_runs = of_runs.sum::<f64>().max(0.0) / runs as f64;
        (of_runs + by_chance(self.samples)).sqrt()
    }

    /// Most own time first. What was hardly ever seen is not hot.
    pub fn hottest(&self, number: usize) -> Vec<u32> {
        let seen = self.at_end.iter().map(|(f, n)| (*n, *f));
        let mut functions: Vec<(u64, u32)> = seen
            .filter(|(seen, _)| seen * HARDLY_EVER >= self.samples)
            .collect();
        functions.sort_by_key(|&(seen, function)| (std::cmp::Reverse(seen), function));
        functions.truncate(number);
        functions
            .into_iter()
            .map(|(_, function)| function)
            .collect()
    }

    /// Runs the command once more, and adds what was seen.
    pub fn look(&mut self, command: &Command, data: &Path, places: &Places) -> anyhow::Result<()> {
        let mut record = Command::new("perf");
        record
            .args([
                "record",
                "-q",
                "-e",
                "cpu-clock",
                "-F",
                RATE,
                "--call-graph",
                STACK,
                "-o",
            ])
            .arg(data)
            .arg("--")
            .arg(command.get_program())
            .args(command.get_args());
        if let Some(folder) = command.get_current_dir() {
            record.current_dir(folder);
        }
        for (name, value) in command.get_envs() {
            record.env(name, value.unwrap_or_default());
        }
        // As where its time is measured: writing into a pipe takes longer than writing to nowhere.
        record.stdout(Stdio::null());
        let output = record.output().context("cannot run perf")?;
        ensure!(
            output.status.success(),
            "perf record ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let mut script = Command::new("perf");
        script
            .args(["script", "--no-inline", "-F", "ip,sym,dso", "-i"])
            .arg(data);
        let output = script.output().context("cannot run perf script")?;
        let text = String::from_utf8_lossy(&output.stdout);
        self.runs.push(Default::default());
        for stack in text.split("\n\n") {
            self.add(stack, places);
        }
        Ok(())
    }

    /// One stack, innermost frame first. The time of functions that are not counted is their callers', as in a profile; stacks
    /// of none but such (the loader's) are in no profile and count for nothing.
    fn add(&mut self, stack: &str, places: &Places) {
        let mut seen = HashSet::new();
        let mut end = None;
        for (depth, line) in stack
            .lines()
            .filter(|line| !line.trim().is_empty())
            .enumerate()
        {
            let Some(function) = places.function(line, depth > 0) else {
                continue;
            };
            end.get_or_insert(function);
            seen.insert(function);
        }
        let Some(end) = end else {
            return;
        };
        self.samples += 1;
        *self.at_end.entry(end).or_default() += 1;
        for &function in &seen {
            *self.on_stack.entry(function).or_default() += 1;
        }
        if let Some((looks, of_run)) = self.runs.last_mut() {
            *looks += 1;
            for function in seen {
                *of_run.entry(function).or_default() += 1;
            }
        }
    }
}

/// Which function of a profile is at which place of which file.
pub struct Places {
    /// By file name, then address; `None` for functions that are not counted.
    modules: HashMap<String, BTreeMap<u64, Option<u32>>>,
    /// By file name: how much larger addresses are than places in the file, by the latter. `perf` tells places in files.
    shifts: HashMap<String, BTreeMap<u64, u64>>,
}

impl Places {
    pub fn of(profile: &Profile) -> Places {
        let mut modules: HashMap<String, BTreeMap<u64, Option<u32>>> = HashMap::new();
        let shifts = profile.modules.iter().filter_map(|module| {
            let shifts = shifts(Path::new(&module.path))?;
            Some((module.name.clone(), shifts))
        });
        for skipped in &profile.skipped {
            let module = modules.entry(skipped.module.clone()).or_default();
            module.insert(skipped.address, None);
        }
        for (number, function) in (0..).zip(&profile.functions) {
            let module = &profile.modules[function.module as usize].name;
            let module = modules.entry(module.clone()).or_default();
            module.insert(function.address, Some(number));
        }
        Places {
            modules,
            shifts: shifts.collect(),
        }
    }

    /// Of a line `address name (file)`; a caller's is the address behind its call.
    fn function(&self, line: &str, is_caller: bool) -> Option<u32> {
        let (address, rest) = line.trim_start().split_once(' ')?;
        let address = u64::from_str_radix(address, 16).ok()?;
        let file = rest.rsplit_once('(')?.1.strip_suffix(')')?;
        let file = file.rsplit('/').next()?;
        let place = address.saturating_sub(is_caller.into());
        let shift = self
            .shifts
            .get(file)
            .and_then(|shifts| Some(*shifts.range(..=place).next_back()?.1));
        let address = place.wrapping_add(shift.unwrap_or(0));
        let (_, function) = self.modules.get(file)?.range(..=address).next_back()?;
        *function
    }
}

/// Of the file's segments; none where there is no such file.
fn shifts(path: &Path) -> Option<BTreeMap<u64, u64>> {
    let data = std::fs::read(path).ok()?;
    let file = object::File::parse(&*data).ok()?;
    let shift = |segment: object::Segment| {
        let (place, _) = segment.file_range();
        (place, segment.address().wrapping_sub(place))
    };
    Some(file.segments().map(shift).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_model::{Function, Module, Skipped};

    fn profile() -> Profile {
        let function = |name: &str, address| Function {
            name: name.into(),
            address,
            ..Function::default()
        };
        Profile {
            modules: vec![Module {
                name: "demo".into(),
                ..Module::default()
            }],
            functions: vec![function("main", 0x100), function("leaf", 0x200)],
            skipped: vec![Skipped {
                name: "start".into(),
                module: "demo".into(),
                address: 0x80,
                reason: "entry code".into(),
            }],
            ..Profile::default()
        }
    }

    #[test]
    fn a_stack_counts_for_each_function_once_and_its_innermost_has_the_time() {
        let places = Places::of(&profile());
        let mut sampled = Sampled::default();
        sampled.add(
            "  ffffffff8100 page_fault ([kernel.kallsyms])\n  210 leaf (/tmp/demo)\n  200 main (/tmp/demo)\n  120 main (/tmp/demo)\n  90 start (/tmp/demo)",
            &places,
        );
        sampled.add("\t 90 start (/tmp/demo)\n", &places);
        sampled.add("\t 120 main (/tmp/demo)\n", &places);
        assert_eq!(sampled.samples, 2, "what no profile has is left out");
        assert_eq!(sampled.hottest(5), [0, 1]);
        // The address 0x200 of a caller is the end of main, not the start of leaf.
        assert_eq!((sampled.cum_share(0), sampled.cum_share(1)), (1.0, 0.5));
    }

    #[test]
    fn runs_that_differ_by_more_than_chance_are_told_from_those_that_do_not() {
        let of = |shares: [u64; 4]| Sampled {
            samples: 40_000,
            on_stack: HashMap::from([(0, shares.iter().sum())]),
            at_end: HashMap::new(),
            runs: shares
                .map(|seen| (10_000, HashMap::from([(0, seen)])))
                .into(),
        };
        let same = of([5000, 5030, 4970, 5000]).deviation(0);
        assert!((0.0025..0.003).contains(&same), "{same}");
        let other = of([4500, 5500, 4500, 5500]).deviation(0);
        assert!((0.05..0.06).contains(&other), "{other}");
    }
}
