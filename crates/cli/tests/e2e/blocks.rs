//! Blocks: every instruction as often as callgrind has it, every line as often as gcov has it, and targets that are as they were.

use crate::support::build::{Build, Program, rust_program, targets};
use crate::support::in_short_or_long;
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::text::{assert_restored, compare};
use crate::support::thalweg::{command, refuse, succeed, text, thalweg};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

struct Block {
    function: String,
    address: u64,
    bytes: u64,
    executions: u64,
    taken: Option<u64>,
    not_taken: Option<u64>,
}

/// The blocks of one module in a profile.
fn blocks(profile: &Path, module: &str) -> Vec<Block> {
    let json = succeed(&["export", "-f", "json", "-i", &profile.display().to_string()]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let functions = json["functions"].as_array().expect("functions");
    let all = json["blocks"].as_array().expect("blocks");
    let number = |value: &Value| value.as_u64().expect("a number");
    all.iter()
        .filter_map(|block| {
            let function = &functions[number(&block["function"]) as usize];
            let address = block["address"].as_str().expect("an address");
            (function["module"] == module).then(|| Block {
                function: function["name"].as_str().expect("a name").to_owned(),
                address: u64::from_str_radix(&address[2..], 16).expect("hexadecimal"),
                bytes: number(&block["bytes"]),
                executions: number(&block["executions"]),
                taken: block["taken"].as_u64(),
                not_taken: block["not_taken"].as_u64(),
            })
        })
        .collect()
}

/// Records a command with blocks; what it printed.
fn record(file: &Path, program: &Path, arguments: &[&str], input: &str) -> String {
    let scratch = Scratch::new();
    let input_file = scratch.join("input");
    fs::write(&input_file, input).expect("room for a file");
    let output = command()
        .args(["record", "--blocks", "--no-report", "-o"])
        .arg(file)
        .arg("--")
        .arg(program)
        .args(arguments)
        .stdin(fs::File::open(&input_file).expect("just written"))
        .output()
        .expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8(output.stdout).expect("text")
}

/// Executions of each instruction of an object, as callgrind has them. What it attributes to callers of linkage stubs is told apart.
fn callgrind(program: &Path, arguments: &[&str], input: &str, object: &str) -> BTreeMap<u64, u64> {
    let scratch = Scratch::new();
    let (out, input_file) = (scratch.join("callgrind.out"), scratch.join("input"));
    fs::write(&input_file, input).expect("room for a file");
    let status = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "-q",
            "--dump-instr=yes",
            "--skip-plt=no",
        ])
        .args(["--compress-pos=no", "--compress-strings=no"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(arguments)
        .stdin(fs::File::open(&input_file).expect("just written"))
        .stdout(Stdio::null())
        .status()
        .expect("valgrind starts");
    assert!(status.success());
    let dump = fs::read_to_string(&out).expect("callgrind writes its file");
    let (mut found, mut is_own, mut is_call) = (BTreeMap::new(), false, false);
    for line in dump.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            is_own = name.contains(object);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if let Some(position) = line.strip_prefix("0x") {
            let mut words = position.split(' ');
            let mut word = || words.next().unwrap_or_default();
            if !is_call && is_own {
                let address = u64::from_str_radix(word(), 16).expect("hexadecimal");
                let (_, times) = (word(), word().parse::<u64>().expect("a number"));
                *found.entry(address).or_default() += times;
            }
            is_call = false;
        }
    }
    assert!(!found.is_empty(), "nothing of {object} ran");
    found
}

/// Addresses of instructions that repeat, which callgrind counts once for each time round.
fn repeating(path: &Path) -> Vec<u64> {
    let output = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn"])
        .arg(path)
        .output();
    let listing = String::from_utf8(output.expect("objdump starts").stdout).expect("text");
    let rows = listing.lines().filter_map(|line| line.split_once(":\t"));
    rows.filter(|(_, instruction)| instruction.starts_with("rep"))
        .map(|(at, _)| u64::from_str_radix(at.trim(), 16).expect("an address"))
        .collect()
}

/// Every instruction of the counted functions of `path` ran as often as callgrind says; how many those are.
#[track_caller]
fn assert_same(
    profile: &Path,
    path: &Path,
    reference: &BTreeMap<u64, u64>,
    is_own: impl Fn(&str) -> bool,
) -> usize {
    let module = path
        .file_name()
        .expect("a file")
        .to_string_lossy()
        .into_owned();
    let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
    let mut owners = BTreeMap::new();
    let all = blocks(profile, &module);
    for block in all.iter().filter(|block| is_own(&block.function)) {
        let inside = reference.range(block.address..block.address + block.bytes);
        if block.executions > 0 {
            assert!(
                inside.clone().next().is_some(),
                "{} at {:#x} ran {} times and not under callgrind",
                block.function,
                block.address,
                block.executions
            );
        }
        for (&address, _) in inside {
            *sums.entry(address).or_default() += block.executions;
            owners.insert(address, block.function.clone());
        }
    }
    let repeating = repeating(path);
    let wrong: Vec<String> = sums
        .iter()
        .filter(|(address, times)| reference[*address] != **times && !repeating.contains(address))
        .map(|(address, times)| {
            let known = reference[address];
            format!(
                "{} at {address:#x}: {times} and not {known}",
                owners[address]
            )
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "{} differ: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(20)]
    );
    sums.len()
}

const STATEMENTS: &str = "create table t(a integer primary key, b text, c real);
with recursive n(i) as (select 1 union all select i+1 from n where i<3000)
  insert into t select i, 'row '||(i*7919%10007), i*1.5 from n;
create index ti on t(b);
select b, count(*) from t group by b order by 2 desc, 1 limit 5;
update t set c=c+1 where a%3=0;
delete from t where a%5=0;
select avg(c), min(b), max(b), count(*) from t;
";

#[test]
fn every_instruction_of_sqlite_ran_as_often_as_callgrind_says() {
    let Some(library) = ["/usr/lib/x86_64-linux-gnu/libsqlite3.so.0"]
        .iter()
        .find_map(|path| fs::canonicalize(path).ok())
    else {
        return eprintln!("no libsqlite3 here: not tested");
    };
    let scratch = Scratch::new();
    let file = scratch.join("sqlite.thalweg");
    let program = Path::new("/usr/bin/sqlite3");
    let printed = record(&file, program, &[":memory:"], STATEMENTS);
    assert!(printed.contains("2400"), "{printed}");
    let reference = callgrind(program, &[":memory:"], STATEMENTS, "libsqlite3");
    let compared = assert_same(&file, &library, &reference, |_| true);
    assert!(compared > 20_000, "{compared} instructions ran");
}

#[track_caller]
fn assert_same_as_callgrind(program: &Program, is_own: impl Fn(&str) -> bool) {
    let scratch = Scratch::new();
    let file = scratch.join("blocks.thalweg");
    let printed = record(&file, &program.path, &[], "");
    assert_eq!(printed, program.run(&[]));
    let reference = callgrind(&program.path, &[], "", &program.module());
    assert!(assert_same(&file, &program.path, &reference, is_own) > 50);
}

#[test]
fn programs_with_exceptions_longjmps_and_loops_are_counted_exactly() {
    let simple = |source: &str| Build::simple(source);
    let loops = Build::new("loops")
        .source("loops.c")
        .source("loops_asm.S")
        .flag("-O2");
    let exceptions = Build::new("exceptions")
        .source("exceptions.cpp")
        .compiler("g++")
        .flag("-O2");
    let programs = [
        simple("jumps.c"),
        simple("recursion.c"),
        simple("edge.c"),
        loops.finish(),
        exceptions.finish(),
    ];
    for program in programs {
        // The loader calls them, of which callgrind says nothing.
        assert_same_as_callgrind(&program, |name| !["_init", "_fini"].contains(&name));
    }
}

/// What runs at home would be amid a jump of ours.
#[test]
fn a_function_that_jumps_to_computed_places_is_left_alone() {
    let program = Build::new("computed_jumps")
        .source("computed_jumps.c")
        .source("computed_jumps_asm.S")
        .finish();
    let scratch = Scratch::new();
    let file = scratch.join("blocks.thalweg");
    assert_eq!(record(&file, &program.path, &[], ""), program.run(&[]));
    let counted = blocks(&file, &program.module());
    let is_counted = |name: &str| counted.iter().any(|block| block.function == name);
    for name in ["forwards", "backwards", "moved"] {
        assert!(!is_counted(name), "{name}");
    }
    assert!(is_counted("through") && is_counted("main"));
}

#[test]
fn a_rust_program_is_counted_exactly() {
    let program = rust_program("panics.rs", &["-O"]);
    assert_same_as_callgrind(&program, |name| name.contains("panics::"));
}

#[test]
fn what_threads_count_adds_up_and_branches_are_told() {
    let program = Build::new("blocks")
        .source("blocks.c")
        .flag("-O1")
        .flag("-g")
        .link_flag("-pthread")
        .finish();
    let scratch = Scratch::new();
    let file = scratch.join("threads.thalweg");
    let printed = record(&file, &program.path, &["run", "8", "100000"], "");
    assert_eq!(printed.trim(), "counted 800000 odd 266672");
    let all = blocks(&file, &program.module());
    let entry = all
        .iter()
        .find(|block| block.function == "step")
        .expect("step has blocks");
    assert_eq!(entry.executions, 800_000);
    let ways = [entry.taken, entry.not_taken].map(|way| way.expect("it ends with a branch"));
    assert!(
        ways.contains(&266_672) && ways.contains(&533_328),
        "{ways:?}"
    );
}

#[test]
fn what_ran_before_an_attach_and_what_was_counted_after_it_is_everything() {
    let program = Build::new("blocks")
        .source("blocks.c")
        .flag("-O1")
        .flag("-g")
        .link_flag("-pthread")
        .finish();
    let scratch = Scratch::new();
    let file = scratch.join("middle.thalweg");
    // Long enough that it is still at it, however busy the machine.
    let mut steps = 200_000_000u64;
    loop {
        let mut live = Live::ready(&program.path, &["watch", &steps.to_string()]);
        let output = command()
            .args([
                "record",
                "--blocks",
                "--no-report",
                "-q",
                "-p",
                &live.id(),
                "-o",
            ])
            .arg(&file)
            .output()
            .expect("thalweg starts");
        let (said, status) = live.wait(Duration::from_secs(120));
        assert!(status.success(), "{status}: {said}");
        let before: i64 = said
            .trim()
            .rsplit(' ')
            .next()
            .and_then(|n| n.parse().ok())
            .expect("a number");
        if !output.status.success() || before < 0 {
            // It had ended.
            steps *= 4;
            assert!(steps < 100_000_000_000, "{}", text(&output));
            continue;
        }
        let all = blocks(&file, &program.module());
        let entry = all
            .iter()
            .find(|block| block.function == "step")
            .expect("step has blocks");
        let missing = steps as i64 - before - entry.executions as i64;
        // The step that was being made may be on either side.
        assert!(
            (-1..=1).contains(&missing),
            "{steps} steps, {before} before, {} counted",
            entry.executions
        );
        return;
    }
}

#[test]
fn a_busy_program_is_as_it_was_after_each_of_many_attaches() {
    let mut live = Live::ready(&Build::simple("torture.c").path, &[]);
    let before = live.text();
    let scratch = Scratch::new();
    let file = scratch.join("torture.thalweg");
    for cycle in 0..in_short_or_long(8, 100) {
        let mut recording = command()
            .args([
                "record",
                "--blocks",
                "--no-report",
                "-q",
                "-p",
                &live.id(),
                "-o",
            ])
            .arg(&file)
            .stderr(Stdio::piped())
            .spawn()
            .expect("thalweg starts");
        while compare(&before, &live.text()).0.is_empty() {
            assert!(
                recording
                    .try_wait()
                    .expect("it can be waited for")
                    .is_none(),
                "it ended early"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        // The stop is over.
        let status = || fs::read_to_string(format!("/proc/{}/status", live.pid()));
        while !status().is_ok_and(|status| status.contains("TracerPid:\t0")) {
            std::thread::sleep(Duration::from_millis(5));
        }
        live.assert_healthy();
        let pid = nix::unistd::Pid::from_raw(recording.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("it runs");
        let output = recording.wait_with_output().expect("it ends");
        assert!(output.status.success(), "cycle {cycle}: {}", text(&output));
        live.assert_healthy();
        let (changed, added) = compare(&before, &live.text());
        assert!(
            changed.is_empty() && added.is_empty(),
            "cycle {cycle}: changed {changed:#?}, left behind {added:#?}"
        );
    }
    let (words, status) = live.terminate();
    assert!(
        status.success() && words.starts_with("OK "),
        "{status}: {words}"
    );
}

#[test]
fn controllers_that_are_killed_leave_a_program_that_works_and_can_be_restored() {
    let mut live = Live::ready(&Build::simple("torture.c").path, &["forgiving"]);
    let before = live.text();
    let mut patched = 0;
    let rounds = in_short_or_long(24, 100);
    for round in 0..rounds {
        let mut child = command()
            .args([
                "record",
                "--blocks",
                "-p",
                &live.id(),
                "-d",
                "10s",
                "--no-report",
                "-o",
                "/dev/null",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("thalweg starts");
        // Until it has begun to change something, and then a little more each time.
        let is_changed = || {
            let (changed, added) = compare(&before, &live.text());
            !changed.is_empty() || !added.is_empty()
        };
        while round % 2 == 0 && !is_changed() && child.try_wait().is_ok_and(|ended| ended.is_none())
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(round * 3));
        child.kill().expect("thalweg can be killed");
        child.wait().expect("thalweg ends");
        std::thread::sleep(Duration::from_millis(20));
        live.assert_healthy();
        let (changed, added) = compare(&before, &live.text());
        let output = thalweg(&["detach", &live.id()]);
        if !changed.is_empty() || !added.is_empty() {
            patched += 1;
            assert!(output.status.success(), "round {round}: {}", text(&output));
        }
        assert_restored(&before, &live.text());
        live.assert_healthy();
    }
    assert!(patched > 0, "no kill came while the target was patched");
    let (words, status) = live.terminate();
    assert!(
        status.success() && words.starts_with("OK "),
        "{status}: {words}"
    );
}

#[test]
fn fork_children_and_what_they_become_are_counted_too() {
    let program = Build::simple("forking.c");
    let scratch = Scratch::new();
    let file = scratch.join("fork.thalweg");
    let printed = record(&file, &program.path, &[], "");
    assert_eq!(printed, program.run(&[]));
    let shell = scratch.join("shell.thalweg");
    record(
        &shell,
        Path::new("/bin/sh"),
        &["-c", "ls / >/dev/null; ls / >/dev/null"],
        "",
    );
    let mains = |module: &str| {
        let all = blocks(&shell, module);
        all.iter().map(|block| block.executions).max().unwrap_or(0)
    };
    assert!(mains("ls") > 0);
}

#[test]
fn code_that_is_loaded_later_is_counted_whatever_else_is_loaded_and_closed() {
    let plug = Build::new("plug")
        .source("plug.c")
        .flags(&["-O2", "-fPIC", "-shared"])
        .finish();
    let program = Build::new("loading")
        .source("loading.c")
        .flag("-O2")
        .link_flag("-ldl")
        .finish();
    let path = plug.path.display().to_string();
    for how in ["now", "lazy", "fork"] {
        let scratch = Scratch::new();
        let file = scratch.join("loaded.thalweg");
        let said = record(&file, &program.path, &[&path, "20", how], "");
        let all = blocks(&file, &plug.module());
        let calls = |name: &str| {
            let entry = all.iter().find(|block| block.function == name);
            entry
                .unwrap_or_else(|| panic!("{name} has no blocks"))
                .executions
        };
        assert_eq!(calls("plug_work"), 2000, "loaded {how}");
        assert_eq!(calls("plug_begin"), 20, "loaded {how}");
        let own = blocks(&file, &program.module());
        let busy = own
            .iter()
            .find(|block| block.function == "busy")
            .expect("busy has blocks");
        let told = said.split_whitespace().nth(1).expect("busy N sum M");
        assert_eq!(
            busy.executions.to_string(),
            told,
            "threads that worked meanwhile"
        );
    }
}

#[test]
fn lines_ran_as_often_as_gcov_says() {
    let scratch = Scratch::new();
    let source = targets().join("loops.c");
    let run = |command: &mut Command| {
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    let build = |name: &str, flags: &[&str]| {
        let out = scratch.join(name);
        let mut gcc = Command::new("gcc");
        gcc.current_dir(scratch.path())
            .args(["-O0", "-g"])
            .args(flags);
        run(gcc
            .arg(&source)
            .arg(targets().join("loops_asm.S"))
            .arg("-o")
            .arg(&out));
        out
    };
    let (plain, covered) = (build("plain", &[]), build("covered", &["--coverage"]));
    run(Command::new(&covered).current_dir(scratch.path()));
    let mut written = fs::read_dir(scratch.path()).expect("a directory");
    let notes = written
        .find_map(|entry| {
            let path = entry.ok()?.path();
            path.to_str()?.ends_with("loops.gcda").then_some(path)
        })
        .expect("the program has written its counts");
    let json = run(Command::new("gcov")
        .current_dir(scratch.path())
        .args(["--json-format", "--stdout"])
        .arg(&notes));
    let json: Value = serde_json::from_str(json.lines().next().expect("a document")).expect("JSON");
    let files = json["files"].as_array().expect("files");
    let own = files
        .iter()
        .find(|file| {
            file["file"]
                .as_str()
                .is_some_and(|name| name.ends_with("loops.c"))
        })
        .expect("the source");
    let mut known: BTreeMap<u64, u64> = BTreeMap::new();
    for line in own["lines"].as_array().expect("lines") {
        let number = line["line_number"].as_u64().expect("a number");
        *known.entry(number).or_default() += line["count"].as_u64().expect("a number");
    }
    let file = scratch.join("lines.thalweg");
    record(&file, &plain, &[], "");
    let json = succeed(&[
        "annotate",
        "loops.c",
        "--json",
        "-i",
        &file.display().to_string(),
    ]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let lines = json["files"][0]["lines"].as_array().expect("lines");
    let found: BTreeMap<u64, u64> = lines
        .iter()
        .map(|line| {
            (
                line["line"].as_u64().unwrap_or(0),
                line["executions"].as_u64().unwrap_or(0),
            )
        })
        .collect();
    let wrong: Vec<String> = known
        .iter()
        .filter(|(number, times)| found.get(*number).is_some_and(|own| own != *times))
        .map(|(number, times)| format!("line {number}: {} and not {times}", found[number]))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let missing = known
        .keys()
        .filter(|number| !found.contains_key(*number))
        .count();
    assert!(
        missing * 4 < known.len(),
        "{missing} of {} lines are not told of",
        known.len()
    );
}

#[test]
fn annotated_source_and_assembler_show_what_ran_and_what_never_did() {
    let program = Build::new("blocks")
        .source("blocks.c")
        .flag("-O1")
        .flag("-g")
        .link_flag("-pthread")
        .finish();
    let scratch = Scratch::new();
    let file = scratch.join("annotate.thalweg");
    record(&file, &program.path, &["run", "1", "3000"], "");
    let file = file.display().to_string();
    let shown = succeed(&["annotate", "step", "-i", &file]);
    let row = |what: &str| {
        let row = shown.lines().find(|line| line.contains(what));
        row.unwrap_or_else(|| panic!("no line with {what} in\n{shown}"))
            .to_owned()
    };
    assert!(
        row("n % 3 == 0").trim_start().starts_with("3,000"),
        "{shown}"
    );
    let shown = succeed(&["annotate", "main", "-i", &file]);
    let watch = shown.lines().find(|line| line.contains("sum += step(n)"));
    assert!(watch.is_some_and(|line| line.contains("never")), "{shown}");
    let shown = succeed(&["annotate", "step", "--asm", "-i", &file]);
    assert!(
        shown.contains("taken") && shown.contains("3,000"),
        "{shown}"
    );
    let never = succeed(&["annotate", "--never", "-i", &file]);
    assert!(
        never.contains(&program.module()) || never.contains("libc"),
        "{never}"
    );
    let lcov = succeed(&["export", "-f", "lcov", "-i", &file]);
    assert!(
        lcov.contains("FNDA:3000,step") && lcov.contains("end_of_record"),
        "{lcov}"
    );
    let gcov = succeed(&["export", "-f", "gcov", "-i", &file]);
    let gcov: Value = serde_json::from_str(&gcov).expect("JSON");
    assert_eq!(gcov["format_version"], "1");
    let callgrind = scratch.join("callgrind.out");
    succeed(&[
        "export",
        "-f",
        "callgrind",
        "-i",
        &file,
        "-o",
        &callgrind.display().to_string(),
    ]);
    let output = Command::new("callgrind_annotate")
        .arg("--auto=yes")
        .arg(&callgrind)
        .output();
    let output = output.expect("callgrind_annotate starts");
    let annotated = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && annotated.contains("n % 3 == 0"),
        "{annotated}"
    );
}

#[test]
fn what_does_not_go_with_blocks_is_refused() {
    let program = Build::simple("recursion.c");
    let path = program.path.display().to_string();
    for option in [
        ["--budget", "5"],
        ["--time", "all"],
        ["--metric", "alloc"],
        ["--rule", "f: record x"],
    ] {
        let mut arguments = vec!["record", "--blocks"];
        arguments.extend(option);
        arguments.extend(["--", &path]);
        refuse(&arguments);
    }
    let scratch = Scratch::new();
    let file = scratch.join("calls.thalweg").display().to_string();
    succeed(&["record", "--no-report", "-o", &file, "--", &path]);
    let said = refuse(&["annotate", "-i", &file]);
    assert!(said.contains("record --blocks"), "{said}");
    let said = refuse(&["export", "-f", "lcov", "-i", &file]);
    assert!(said.contains("record --blocks"), "{said}");
}

/// The cycles of a profile by its blocks, and the model's name.
fn cycles(profile: &Path) -> (f64, String) {
    let json = succeed(&["export", "-f", "json", "-i", &profile.display().to_string()]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let blocks = json["blocks"].as_array().expect("blocks");
    let sum = blocks
        .iter()
        .map(|block| {
            let times = block["executions"].as_u64().expect("a number");
            times as f64 * block["cycles"].as_f64().unwrap_or(0.0)
        })
        .sum();
    let model = json["meta"]["cycles_of"].as_str().expect("a name");
    (sum, model.to_owned())
}

#[test]
fn virtual_cycles_are_the_same_in_every_run_and_on_every_path_out() {
    let program = Build::new("loops_cycles")
        .source("loops.c")
        .source("loops_asm.S")
        .flag("-O2")
        .flag("-g")
        .finish();
    let scratch = Scratch::new();
    let files = ["one", "two"].map(|name| scratch.join(name));
    for file in &files {
        record(file, &program.path, &[], "");
    }
    let shown = |file: &Path| {
        let file = file.display().to_string();
        let list = succeed(&["annotate", "-i", &file, "-n", "1000"]);
        let own: Vec<String> = list
            .lines()
            .filter(|line| line.contains(&program.module()))
            .map(str::to_owned)
            .collect();
        assert!(!own.is_empty(), "{list}");
        own
    };
    assert_eq!(shown(&files[0]), shown(&files[1]));
    // The same on the way to callgrind, to JSON, and by lines.
    let file = files[0].display().to_string();
    let (sum, model) = cycles(&files[0]);
    let export = succeed(&["export", "-f", "callgrind", "-i", &file]);
    let totals = export
        .lines()
        .find_map(|line| line.strip_prefix("totals: "))
        .expect("totals");
    let told: f64 = totals
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .expect("cycles");
    assert!((told - sum).abs() <= 1.0, "{told} and {sum}");
    let rows: u64 = export
        .lines()
        .filter(|line| line.starts_with("0x"))
        .filter_map(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok())
        .sum();
    assert_eq!(rows as f64, told, "the lines' sum");
    // The model can be another one.
    let other = match model.as_str() {
        "skylake" => "zen4",
        _ => "skylake",
    };
    let json = succeed(&[
        "annotate",
        "main",
        "--json",
        "-i",
        &file,
        "--processor",
        other,
    ]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["cycles_of"], other);
    let main = &json["functions"][0];
    let lines = json["files"].as_array().expect("files").iter();
    let lines = lines.flat_map(|file| file["lines"].as_array().expect("lines"));
    let sum: f64 = lines
        .map(|line| line["cycles"].as_f64().expect("cycles"))
        .sum();
    let whole = main["cycles"].as_f64().expect("cycles");
    assert!(
        whole > 0.0 && sum <= whole + 0.5 && sum > whole * 0.9,
        "{sum} of {whole}"
    );
    refuse(&["annotate", "-i", &file, "--processor", "pentium"]);
}

#[test]
fn a_programs_virtual_cycles_are_the_sum_of_what_llvm_says_of_its_blocks() {
    let scratch = Scratch::new();
    let file = scratch.join("lua.thalweg");
    let script = scratch.join("queens.lua");
    fs::write(
        &script,
        "local t = {} for i = 1, 200000 do t[i % 100] = (t[i % 97] or 0) + i % 7 end print(#t)",
    )
    .expect("room");
    record(
        &file,
        Path::new("/usr/bin/lua5.4"),
        &[&script.display().to_string()],
        "",
    );
    let name = file.display().to_string();
    let json = succeed(&["export", "-f", "json", "-i", &name]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let functions = json["functions"].as_array().expect("functions");
    let lua = fs::read("/usr/bin/lua5.4").expect("lua");
    // The blocks of its own that ran most, which are nearly all that ran.
    let number = |value: &Value| value.as_u64().expect("a number");
    let mut blocks: Vec<&Value> = json["blocks"]
        .as_array()
        .expect("blocks")
        .iter()
        .filter(|block| functions[number(&block["function"]) as usize]["module"] == "lua5.4")
        .filter(|block| block["target"] != block["address"])
        .collect();
    blocks.sort_by_key(|block| std::cmp::Reverse(number(&block["executions"])));
    blocks.truncate(400);
    let mut hex = String::new();
    for block in &blocks {
        let address = block["address"].as_str().expect("an address");
        let start = usize::from_str_radix(&address[2..], 16).expect("hexadecimal");
        // Its code lies in the file where it lies in memory.
        for byte in &lua[start..start + number(&block["bytes"]) as usize] {
            hex += &format!("{byte:#04x} ");
        }
        hex += "\n0xcd 0x77\n";
    }
    let (_, model) = cycles(&file);
    let cpu = match model.as_str() {
        "zen4" => "znver4",
        "skylake-server" => "skylake-avx512",
        "icelake" => "icelake-server",
        "sapphire-rapids" => "sapphirerapids",
        own => own,
    };
    let cpu = format!("-mcpu={cpu}");
    let run = |program: &str, arguments: &[&str], input: &str| {
        let input_file = scratch.join("input");
        fs::write(&input_file, input).expect("room for a file");
        let output = Command::new(program)
            .arg(&cpu)
            .args(arguments)
            .stdin(fs::File::open(&input_file).expect("just written"))
            .output()
            .unwrap_or_else(|error| panic!("{program}: {error}: run .ci/install"));
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    let listing = run("llvm-mc-19", &["--disassemble", "-triple=x86_64"], &hex);
    let parts: Vec<String> = listing
        .replace(".text\n", "")
        .split("int\t$119")
        .map(|part| part.trim().to_owned())
        .collect();
    assert_eq!(parts.len(), blocks.len() + 1);
    let mut regions = String::new();
    for (index, part) in parts.iter().take(blocks.len()).enumerate() {
        regions += &format!("# LLVM-MCA-BEGIN {index}\n{part}\n# LLVM-MCA-END {index}\n");
    }
    let views = [
        "-mtriple=x86_64",
        "-iterations=1",
        "-json",
        "-all-views=false",
        "-summary-view",
    ];
    let told: Value = serde_json::from_str(&run("llvm-mca-19", &views, &regions)).expect("JSON");
    let (mut ours, mut theirs) = (0.0, 0.0);
    for region in told["CodeRegions"].as_array().expect("regions") {
        let index: usize = region["Name"]
            .as_str()
            .and_then(|name| name.parse().ok())
            .expect("a number");
        let times = number(&blocks[index]["executions"]) as f64;
        theirs += times
            * region["SummaryView"]["BlockRThroughput"]
                .as_f64()
                .expect("a number");
        ours += times * blocks[index]["cycles"].as_f64().unwrap_or(0.0);
    }
    assert!(theirs > 1e6, "{theirs} cycles");
    assert!((ours / theirs - 1.0).abs() <= 0.05, "{ours} and {theirs}");
}

#[test]
fn system_calls_are_told_by_kind_and_counted_exactly() {
    let program = Build::new("syscalls")
        .source("syscalls.c")
        .flag("-O2")
        .link_flag("-pthread")
        .finish();
    let scratch = Scratch::new();
    let file = scratch.join("syscalls.thalweg");
    record(&file, &program.path, &[], "");
    let file = file.display().to_string();
    let rows = succeed(&["annotate", "--syscalls", "--json", "-i", &file]);
    let rows: Value = serde_json::from_str(&rows).expect("JSON");
    let rows = rows.as_array().expect("rows");
    let row = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name);
        let row = row.unwrap_or_else(|| panic!("no {name} in {rows:#?}"));
        (row["kind"].as_str(), row["calls"].as_u64())
    };
    // A thousand times, a hundred in the thread, ten in the child.
    assert_eq!(row("getuid"), (Some("fixed"), Some(1110)));
    assert_eq!(row("read"), (Some("variable"), Some(1110)));
    assert_eq!(row("wait4").0, Some("indeterminate"));
    // What may wait is in no figure.
    for row in rows {
        let waits = row["kind"] == "indeterminate";
        assert!(!waits || row["cycles_each"].is_null(), "{row}");
    }
    let shown = succeed(&["annotate", "--syscalls", "-i", &file]);
    assert!(
        shown.contains("in no figure") && shown.contains("getuid"),
        "{shown}"
    );
}
