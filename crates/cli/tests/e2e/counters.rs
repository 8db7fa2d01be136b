//! What the kernel counts is with the functions that it happened in: to the unit where every event is looked at, and what is nobody's is said.

use crate::support::build::{Build, Program};
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::text::assert_restored;
use crate::support::thalweg::{command, refuse, succeed, text};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use thalweg_model::{Counting, FuncId, Metric, Profile, Thread, read_file};

fn program() -> Program {
    let program = Build::new("kernel_counts").source("kernel_counts.c");
    program.flags(&["-O2", "-pthread"]).finish()
}

/// Whether this user may count what happens in the kernel. Where not, that is said.
fn may_count_switches() -> bool {
    let mut run = command();
    run.args(["record", "-q", "--metric", "switches", "-o", "/dev/null"]);
    let run = run.args(["--", "true"]).output().expect("thalweg starts");
    if !run.status.success() {
        assert_eq!(run.status.code(), Some(2));
        let said = text(&run);
        assert!(said.contains("kernel.perf_event_paranoid"), "{said}");
    }
    run.status.success()
}

/// What the program said, the profile, and its file.
#[track_caller]
fn record(options: &[&str], program: &Path, arguments: &[&str]) -> (String, Profile, Scratch) {
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let mut run = command();
    run.args(["record", "--no-report", "-q", "-o"]).arg(&file);
    run.args(options).arg("--").arg(program).args(arguments);
    let run = run.output().expect("thalweg starts");
    assert!(run.status.success(), "{}", text(&run));
    let said = String::from_utf8(run.stdout).expect("text");
    (said, read_file(&file).expect("a profile"), scratch)
}

fn counting(profile: &Profile, metric: Metric) -> Counting {
    *profile.meta.counting_of(metric).expect("it was counted")
}

fn threads(profile: &Profile) -> impl Iterator<Item = &Thread> {
    profile.processes.iter().flat_map(|p| &p.threads)
}

/// Of contexts of this function, below one of that, what they have themselves and below.
fn below(profile: &Profile, metric: Metric, above: &str, function: &str) -> u64 {
    let number = |name: &str| {
        let mut all = (0..).zip(&profile.functions);
        all.find(|(_, f)| f.name == name)
            .map(|(number, _)| FuncId(number))
    };
    let (above, function) = (number(above), number(function));
    let mut sum = 0;
    for thread in threads(profile) {
        // By node: whether it is below, and how many of both it is below of.
        let mut inside: Vec<(bool, bool)> = Vec::new();
        for (index, node) in (0..).zip(&thread.nodes) {
            let (is_above, is_in) = node.parent.map_or((false, false), |p| inside[p as usize]);
            let is_above = is_above || Some(node.function) == above;
            let is_in = is_in || (is_above && Some(node.function) == function);
            inside.push((is_above, is_in));
            if is_in {
                sum += thread.metrics.at(index).get(metric);
            }
        }
    }
    sum
}

/// Of all contexts of a function, without what is below.
fn own(profile: &Profile, metric: Metric, name: &str) -> u64 {
    let mut sum = 0;
    for thread in threads(profile) {
        for (index, node) in (0..).zip(&thread.nodes) {
            if profile.functions[node.function].name == name {
                sum += thread.metrics.at(index).get(metric);
            }
        }
    }
    sum
}

/// All that the kernel told of.
fn all(profile: &Profile, metric: Metric) -> u64 {
    let counting = counting(profile, metric);
    let nobodys = counting.in_probes + counting.nobodys + counting.lost;
    profile.total_metrics().get(metric) + nobodys
}

/// Columns of numbers, added up.
fn sums(said: &str) -> Vec<u64> {
    let mut sums = Vec::new();
    for line in said.lines().filter(|line| *line != "ready") {
        for (column, word) in line.split_whitespace().enumerate() {
            let number: u64 = word.parse().expect("a number");
            match sums.get_mut(column) {
                Some(sum) => *sum += number,
                None => sums.push(number),
            }
        }
    }
    sums
}

#[test]
fn every_page_fault_is_with_the_function_that_caused_it_and_with_its_callers() {
    let program = program();
    for options in [
        &[][..],
        &["--no-clock"],
        &["--samples", "1999", "--metric", "alloc"],
        &["--call-sites"],
    ] {
        let options = [&["--metric", "faults"], options].concat();
        let (said, profile, _scratch) = record(&options, &program.path, &["10"]);
        let counted = counting(&profile, Metric::Faults);
        assert_eq!((counted.lost, counted.period), (0, 1), "{counted:?}");
        assert!(counted.cut_short >= 150, "the stacks of deep: {counted:?}");
        let faults = |above: &str, function: &str| below(&profile, Metric::Faults, above, function);
        // In two threads, one does twice as much.
        assert_eq!(faults("few", "touch"), 3 * 100, "{options:?}");
        assert_eq!(faults("many", "touch"), 3 * 3000, "{options:?}");
        assert_eq!(faults("deep", "touch"), 3 * 50, "{options:?}");
        assert_eq!(own(&profile, Metric::Faults, "touch"), 3 * 3150);
        if counted.in_kernel {
            assert_eq!(faults("filled", "read"), 3 * 70, "{options:?}");
        }
        let kernels = sums(&said)[0];
        let parts = ["few", "many", "filled", "deep"].map(|part| faults("work", part));
        let ours: u64 = parts.iter().sum();
        let others = all(&profile, Metric::Faults) - ours;
        assert!(
            ours <= kernels && kernels <= ours + others,
            "{kernels} {counted:?} {parts:?}"
        );
    }
}

/// Where the function is not counted, who called it is charged.
#[test]
fn faults_of_functions_that_are_left_out_are_with_their_callers() {
    let program = program();
    let options = ["--metric", "faults", "-F", "^(many|work)$"];
    let (_, profile, _scratch) = record(&options, &program.path, &["10"]);
    assert_eq!(own(&profile, Metric::Faults, "many"), 3 * 3000);
    assert!(own(&profile, Metric::Faults, "work") >= 3 * (100 + 50));
    // The loader's and what is below main, but not below work.
    assert!(counting(&profile, Metric::Faults).nobodys > 0);
}

#[test]
fn every_switch_is_with_the_function_that_waited() {
    if !may_count_switches() {
        return;
    }
    let program = program();
    let (said, profile, _scratch) = record(&["--metric", "switches"], &program.path, &["10"]);
    let counted = counting(&profile, Metric::Switches);
    assert_eq!(counted.lost, 0);
    let [_, voluntary, others] = sums(&said)[..] else {
        panic!("{said}")
    };
    let [work, dozed] =
        ["work", "doze"].map(|name| below(&profile, Metric::Switches, "work", name));
    let nobodys = counted.in_probes + counted.nobodys;
    // A sleep that is over before it has begun does not make a thread leave.
    assert!(dozed > 3 * 100, "{dozed} of {said}");
    assert!(dozed <= voluntary + others, "{dozed} of {said}");
    assert!(
        voluntary + others <= work + nobodys,
        "{work} {counted:?} of {said}"
    );
    let waited = below(&profile, Metric::Switches, "main", "pthread_join");
    assert!(waited >= 1, "main waits for its thread");
}

#[test]
fn children_have_figures_of_their_own() {
    let program = program();
    let (_, profile, _scratch) = record(&["--metric", "faults"], &program.path, &["10", "fork"]);
    let of = |process: usize| {
        let mut profile = profile.clone();
        profile.processes = vec![profile.processes.swap_remove(process)];
        below(&profile, Metric::Faults, "few", "touch")
    };
    assert_eq!(profile.processes.len(), 2);
    assert_eq!([of(0), of(1)], [100, 300]);
}

#[test]
fn a_process_that_is_attached_has_them_in_all_that_is_read_of_it() {
    let program = program();
    let mut live = Live::ready(&program.path, &["10", "ask"]);
    live.ask("go");
    let before = live.text();
    succeed(&[
        "attach",
        "--budget",
        "off",
        &live.id(),
        "-q",
        "--metric",
        "faults",
    ]);
    live.ask("go");
    let flat = succeed(&["report", "-p", &live.id(), "--flat", "--json"]);
    let flat: Value = serde_json::from_str(&flat).expect("JSON");
    let rows = flat["functions"].as_array().expect("functions");
    let touch = rows.iter().find(|row| row["name"] == "touch");
    assert_eq!(touch.expect("touch")["metrics"]["faults"], 3150);
    live.ask("go");
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    succeed(&[
        "detach",
        &live.id(),
        "-q",
        "-o",
        file.to_str().expect("a path"),
    ]);
    assert_restored(&before, &live.text());
    live.ask("go");
    live.tell("end");
    let (_, status) = live.wait(Duration::from_secs(60));
    assert!(status.success());
    let profile = read_file(&file).expect("a profile");
    assert_eq!(counting(&profile, Metric::Faults).lost, 0);
    assert_eq!(own(&profile, Metric::Faults, "touch"), 2 * 3150);
    assert_eq!(below(&profile, Metric::Faults, "many", "touch"), 2 * 3000);
}

/// CPython says itself what the kernel has counted for it, between two moments within the recording and between two around it.
#[test]
fn no_fault_of_an_interpreter_is_missing_and_none_is_invented() {
    const SCRIPT: &str = "
import resource, sys
def faults():
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_minflt + usage.ru_majflt
print('ready', flush=True)
for line in sys.stdin:
    before = faults()
    if line.startswith('go'):
        all = [list(range(1000)) for i in range(3000)]
        del all
    print(before, faults(), flush=True)
";
    let mut live = Live::spawn(Command::new("python3").args(["-u", "-c", SCRIPT]));
    assert_eq!(live.line(), "ready");
    let numbers = |said: String| -> [u64; 2] {
        let words = said
            .split_whitespace()
            .map(|w| w.parse().expect("a number"));
        words.collect::<Vec<u64>>().try_into().expect("two numbers")
    };
    numbers(live.ask("go"));
    let [first, _] = numbers(live.ask("look"));
    succeed(&[
        "attach",
        "--budget",
        "off",
        &live.id(),
        "-q",
        "--metric",
        "faults",
    ]);
    let [from, to] = numbers(live.ask("go"));
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    succeed(&[
        "detach",
        &live.id(),
        "-q",
        "-o",
        file.to_str().expect("a path"),
    ]);
    let [last, _] = numbers(live.ask("look"));
    let profile = read_file(&file).expect("a profile");
    let told = all(&profile, Metric::Faults);
    assert!(to - from > 2000, "it needs memory: {from} {to}");
    assert!(
        to - from <= told && told <= last - first,
        "{from} to {to} within {first} to {last}, and {told}: {:?}",
        profile.meta.counting
    );
    let counted = counting(&profile, Metric::Faults);
    assert!(counted.nobodys * 100 < told, "{counted:?}");
}

#[test]
fn reports_graphs_comparisons_and_exports_show_them() {
    let program = program();
    let options = ["--metric", "faults"];
    let (_, profile, scratch) = record(&options, &program.path, &["10"]);
    let (_, _, other) = record(&options, &program.path, &["20"]);
    let file = |scratch: &Scratch| scratch.join("profile.thalweg").display().to_string();
    let (file, other) = (file(&scratch), file(&other));
    let head = succeed(&["report", "-i", &file]);
    let total = profile.total_metrics().get(Metric::Faults);
    assert!(total > 9450 && head.contains("page faults"), "{head}");
    let flat = succeed(&["report", "-i", &file, "--flat", "--by", "faults", "-n", "1"]);
    assert!(flat.contains("9,450") && flat.contains("touch"), "{flat}");
    let sorted = succeed(&[
        "report", "-i", &file, "--flat", "--sort", "faults", "-n", "1",
    ]);
    assert!(
        sorted.contains("Faults") && sorted.contains("touch"),
        "{sorted}"
    );
    let tree = succeed(&["report", "-i", &file, "--tree", "--by", "faults"]);
    assert!(tree.contains("many"), "{tree}");
    let diff = succeed(&["diff", &file, &other, "--by", "faults"]);
    assert!(diff.contains("+9,450"), "{diff}");
    let graph = succeed(&["graph", "-i", &file, "--by", "faults", "--format", "dot"]);
    assert!(graph.contains("touch"), "{graph}");
    let json = succeed(&["export", "-i", &file, "--format", "json"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let counting = &json["meta"]["counting"][0];
    assert_eq!(
        (&counting["metric"], &counting["exact"]),
        (&"faults".into(), &true.into())
    );
    let said = refuse(&["report", "-i", &file, "--flat", "--by", "switches"]);
    assert!(said.contains("--metric switches"), "{said}");
}

/// Most machines in a cloud have none.
#[test]
fn a_counter_of_the_processor_is_an_estimate_or_refused_before_anything_starts() {
    let program = program();
    for name in ["instructions", "cycles", "cache-misses"] {
        let scratch = Scratch::new();
        let file = scratch.join("profile.thalweg");
        let mut run = command();
        run.args(["record", "-q", "--metric", name, "-o"])
            .arg(&file);
        let run = run.arg("--").arg(&program.path).output();
        let run = run.expect("thalweg starts");
        if run.status.success() {
            let profile = read_file(&file).expect("a profile");
            let metric = Metric::named(name).expect("a metric");
            assert!(!counting(&profile, metric).is_exact());
            continue;
        }
        let said = text(&run);
        assert_eq!(run.status.code(), Some(2), "{said}");
        let known =
            said.contains(&format!("--metric {name}: ")) && said.contains("perf_event_open");
        assert!(known && run.stdout.is_empty() && !file.exists(), "{said}");
    }
}

/// The trees of 280,000 contexts are some 9,000 pages that the program itself never touched.
#[test]
fn what_probes_fault_in_is_in_nobodys_figures() {
    let program = Build::simple("contexts.c");
    // wait4 waits for it, and has what it used.
    #[allow(clippy::zombie_processes)]
    let plain = Command::new(&program.path)
        .arg("300000")
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the program starts");
    let mut usage = std::mem::MaybeUninit::<nix::libc::rusage>::zeroed();
    let mut status = 0;
    // SAFETY: both are places that the kernel may write to, and a rusage of zeros is one.
    let usage = unsafe {
        nix::libc::wait4(plain.id() as i32, &mut status, 0, usage.as_mut_ptr());
        usage.assume_init()
    };
    let plain = (usage.ru_minflt + usage.ru_majflt) as u64;
    assert!(status == 0 && plain > 10, "{status} {plain}");

    let (_, profile, _scratch) = record(&["--metric", "faults"], &program.path, &["300000"]);
    let counted = counting(&profile, Metric::Faults);
    assert_eq!((counted.lost, counted.period), (0, 1), "{counted:?}");
    assert!(counted.in_probes > 10 * plain, "{counted:?}");
    let charged = profile.total_metrics().get(Metric::Faults);
    assert!(
        charged <= plain,
        "{charged} faults of functions, {plain} of the program by itself"
    );
}
