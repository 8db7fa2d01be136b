//! Hostile files: small ones that unpack to very much, and trees that are deeper than any stack.

use crate::support::in_short_or_long;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, through, words};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// thalweg within `limits`, which are commands of the shell's, and as an argument of `runner` where that is not empty.
pub fn limited(limits: &str, runner: &str) -> Command {
    let script = format!("{limits}; exec {runner} \"$@\"");
    let mut shell = through("sh");
    shell.args(["-c", &script, "sh"]);
    shell.arg(command().get_program()).stdin(Stdio::null());
    shell
}

/// Runs thalweg with bounds on its address space and on its processor time, which other load does not change.
fn bounded(kib: u64, seconds: u64, arguments: &[&str]) -> Output {
    let limits = format!("ulimit -v {kib}; ulimit -t {seconds}");
    let mut thalweg = limited(&limits, "");
    thalweg.args(arguments).output().expect("a shell")
}

#[test]
fn a_small_file_that_unpacks_to_very_much_is_refused_with_a_message() {
    let scratch = Scratch::new();
    let (bomb, profile) = (scratch.join("bomb.gz"), scratch.join("p.thalweg"));
    // Members of 16 MiB, one after the other: 3 GiB.
    let mut member = GzEncoder::new(Vec::new(), Compression::best());
    let lines = "main;parse;read 8\n".repeat((16 << 20) / 18);
    member.write_all(lines.as_bytes()).expect("memory");
    let member = member.finish().expect("memory");
    let all = member.repeat(192);
    assert!(all.len() < 16 << 20, "{} bytes", all.len());
    fs::write(&bomb, all).expect("a file");
    let [from, to] = [&bomb, &profile].map(|path| path.to_str().expect("a path"));
    let output = bounded(3 << 20, 120, &["import", from, "-o", to]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("unpacks to more than 1 GiB"), "{told}");
    assert!(!profile.exists());
}

/// Each level a function of its own, as far down as a square is felt: these took half a minute in `summary`, now a second.
const LEVELS: u64 = 200_000;
/// For any report.
const SECONDS: u64 = 20;

fn chain(levels: u64, name: impl Fn(u64) -> String) -> String {
    let names: Vec<String> = (0..levels).map(name).collect();
    names.join(";") + " 10\n"
}

#[test]
fn no_report_takes_the_square_of_a_trees_depth_or_overflows_the_stack() {
    let levels = in_short_or_long(LEVELS, 5 * LEVELS);
    let seconds = in_short_or_long(SECONDS, 5 * SECONDS);
    let scratch = Scratch::new();
    let path = |name: &str| {
        let path = scratch.join(name);
        path.to_str().expect("a path").to_owned()
    };
    // Distinct functions; and a recursion with a leaf on some of its levels.
    let distinct = chain(levels, |level| format!("f{level}"));
    let leaves: String = (1..40)
        .map(|part| {
            let above = chain(levels / 40 * part, |_| "f".into());
            above.replace(" 10", ";leaf 1")
        })
        .collect();
    let recursion = chain(levels, |_| "f".into()) + &leaves;
    let (merged, page) = (
        path("merged.thalweg"),
        format!("--html={}", path("page.html")),
    );
    for (number, text) in [distinct, recursion].into_iter().enumerate() {
        let (folded, file) = (path("deep.folded"), path(&format!("{number}.thalweg")));
        fs::write(&folded, text).expect("a file");
        let file = file.as_str();
        let all: [&[&str]; 12] = [
            &["import", &folded, "--format", "folded", "-q", "-o", file],
            &["summary", file],
            &["report", file],
            &["report", file, "--flat"],
            &["report", file, "--tree"],
            &["report", file, "--arcs"],
            &["report", file, &page],
            &["graph", file],
            &["diff", file, file],
            &["merge", file, file, "-o", &merged],
            &["export", file, "--format", "json"],
            &["export", file, "--format", "callgrind"],
        ];
        for arguments in all {
            let output = bounded(8 << 20, seconds, arguments);
            assert_eq!(
                output.status.code(),
                Some(0),
                "{}: {:?} {}",
                words(arguments),
                output.status,
                String::from_utf8_lossy(&output.stderr),
            );
        }
    }
}
