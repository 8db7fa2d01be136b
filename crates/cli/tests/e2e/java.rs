//! Java methods: exact counts whatever the virtual machine does with them, and a machine that is attached to, left and attached to
//! again goes on with the right results.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use thalweg_instrument::java::Machine;
use thalweg_ptrace::proc::Pid;

use crate::support::build::{run, targets};
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, export, record_path, succeed};

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
        let calls = recorded.profile.calls_by_name();
        let told = String::from_utf8(recorded.stdout).unwrap();
        let told: BTreeMap<String, u64> = told
            .lines()
            .filter(|line| line.starts_with("Count"))
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(name, calls)| (name.into(), calls.parse().unwrap()))
            .collect();
        assert_eq!(told.len(), 5);
        for (name, own) in told {
            assert_eq!(calls.get(&name), Some(&own), "{way}: {name}");
        }
    }
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
