//! The page in a real browser, on recordings of real programs, against what the reports say; and the server against those
//! who should get nothing from it.
//!
//! The interactions are in `web/test`, which this runs with what it recorded. `.ci/install` brings the browser.

mod requests;
mod served;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use served::{Served, Target, thalweg};

fn web() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web")
}

const WORK: &str = r#"
import json, re, sys, threading, time
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
data = [{"a": i, "b": [str(i)] * 5} for i in range(120)]
def work(rounds):
    for _ in range(rounds):
        json.loads(json.dumps(data))
    time.sleep(0.02)
threads = [threading.Thread(target=work, args=(2,)) for _ in range(3)]
for t in threads: t.start()
for t in threads: t.join()
work(int(sys.argv[1])); fib(12)
"#;

fn record(options: &[&str], program: &[&str], file: &Path) {
    let file = file.to_str().unwrap();
    thalweg(&[&["record", "-q", "-o", file], options, &["--"], program].concat());
}

fn report(arguments: &[&str]) -> Value {
    let text = thalweg(arguments);
    serde_json::from_str(&text).expect("JSON from --json")
}

#[test]
fn every_interaction_of_the_page_shows_what_the_reports_say() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    let (python, earlier, lua) = (
        path("python.thalweg"),
        path("earlier.thalweg"),
        path("lua.thalweg"),
    );
    fs::write(path("work.py"), WORK).unwrap();
    let work = path("work.py").to_str().unwrap().to_string();
    record(&[], &["/usr/bin/python3.11", &work, "4"], &python);
    record(&[], &["/usr/bin/python3.11", &work, "2"], &earlier);
    let script = "local function f(n) if n < 2 then return n end return f(n-1) + f(n-2) end
                  local t = {} for i = 1, 20000 do t[i] = tostring(i) .. f(5) end table.sort(t)";
    record(&["--call-sites"], &["/usr/bin/lua5.4", "-e", script], &lua);
    let folded = path("hostile.folded");
    fs::write(
        &folded,
        "main;<script>window.hacked=1</script>;<img/src=x/onerror=window.hacked=1> 10\n\
         main;${alert(1)};\u{202e}\u{1b}[31m\"'><svg/onload=window.hacked=1> 7\n",
    )
    .unwrap();
    let hostile = path("hostile.thalweg");
    thalweg(&[
        "import",
        "--format",
        "folded",
        folded.to_str().unwrap(),
        "-o",
        hostile.to_str().unwrap(),
    ]);
    let html = path("python.html");
    thalweg(&[
        "report",
        python.to_str().unwrap(),
        "--html",
        html.to_str().unwrap(),
    ]);

    let python_text = python.to_str().unwrap();
    let of_python = Served::start(&[python_text, "--before", earlier.to_str().unwrap()]);
    let of_lua = Served::start(&[lua.to_str().unwrap()]);
    let of_hostile = Served::start(&[hostile.to_str().unwrap()]);
    let config = json!({
        "thalweg": env!("CARGO_BIN_EXE_thalweg"),
        "file": python_text,
        "python": of_python.address(),
        "lua": of_lua.address(),
        "hostile": of_hostile.address(),
        "html": html,
        "flat": report(&["report", python_text, "--flat", "--json"]),
        "arcs": report(&["report", python_text, "--arcs", "--json"]),
        "threads": report(&["threads", python_text, "--json"]),
        "summary": report(&["summary", python_text, "-n", "12", "--json"]),
        "diff": report(&["diff", earlier.to_str().unwrap(), python_text, "--all", "--json"]),
        "luaTree": report(&["report", lua.to_str().unwrap(), "--tree", "--json", "--min-percent", "0"]),
        "luaFlat": report(&["report", lua.to_str().unwrap(), "--flat", "--json"]),
    });
    fs::write(path("config.json"), config.to_string()).unwrap();
    run_in_browser("page.test.mjs", &path("config.json"));
}

#[test]
fn a_running_process_is_watched_switched_saved_and_let_go() {
    let scratch = tempfile::tempdir().unwrap();
    let script = "local function f(n) if n < 2 then return n end return f(n-1) + f(n-2) end while true do f(12) local t = {} for i = 1, 50 do t[i] = tostring(i) end table.sort(t) end";
    let mut child = Target::start(Command::new("/usr/bin/lua5.4").args(["-e", script]));
    let served = Served::start_in(
        scratch.path(),
        &["-p", &child.id().to_string(), "--time", "all"],
    );
    let config = scratch.path().join("config.json");
    let content = json!({
        "live": served.address(),
        "pid": child.id(),
        "thalweg": env!("CARGO_BIN_EXE_thalweg"),
    });
    fs::write(&config, content.to_string()).unwrap();
    run_in_browser("live.test.mjs", &config);
    let saved = scratch
        .path()
        .join(format!("process-{}-1.thalweg", child.id()));
    let flat = report(&["report", saved.to_str().unwrap(), "--flat", "--json"]);
    assert!(flat["functions"].as_array().unwrap().len() > 10);
    let said = Command::new(env!("CARGO_BIN_EXE_thalweg"))
        .args(["status", &child.id().to_string()])
        .output()
        .unwrap();
    assert!(!said.status.success(), "it is still attached");
    assert!(child.is_alive(), "it did not survive");
}

#[test]
fn recorded_calls_and_metrics_are_shown_as_the_reports_have_them() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_string();
    let source = web().join("../tests/targets/requests.cpp");
    let program = path("requests");
    let compiled = Command::new("g++")
        .args(["-g", "-O1", "-pthread", "-o", &program])
        .arg(source)
        .status()
        .expect("g++ starts");
    assert!(compiled.success());
    let rule = "query: n >= 0; record sql, n, ret";
    let rules = ["--rule", rule, "--root", "^handle_request$"];
    let (file, many, html) = (path("calls.thalweg"), path("many.thalweg"), path("a.html"));
    let with_metrics = [&rules[..], &["--metric", "alloc"]].concat();
    record(&with_metrics, &[&program, "200"], Path::new(&file));
    let roomy = [&rules[..], &["--record-memory", "16M"]].concat();
    record(&roomy, &[&program, "27000"], Path::new(&many));
    thalweg(&["report", &file, "--html", &html]);
    let measured = path("measured.thalweg");
    let metrics = ["--metric", "alloc", "--metric", "syscalls"];
    record(&metrics, &[&program, "200"], Path::new(&measured));
    let earlier = path("earlier.thalweg");
    record(&metrics[..2], &[&program, "100"], Path::new(&earlier));

    let child = Target::start(Command::new(&program).arg("0"));
    let pid = child.id().to_string();
    thalweg(&["attach", "--budget", "off", &pid, "--rule", rule]);
    let of_file = Served::start(&[&file]);
    let of_many = Served::start(&[&many]);
    let of_measured = Served::start(&[&measured, "--before", &earlier]);
    let live = Served::start(&["-p", &pid]);
    let config = json!({
        "thalweg": env!("CARGO_BIN_EXE_thalweg"),
        "file": file,
        "html": html,
        "calls": of_file.address(),
        "many": of_many.address(),
        "measured": { "file": measured, "before": earlier, "address": of_measured.address() },
        "live": live.address(),
    });
    fs::write(path("config.json"), config.to_string()).unwrap();
    run_in_browser("calls.test.mjs", Path::new(&path("config.json")));
    thalweg(&["detach", &pid]);
}

fn run_in_browser(tests: &str, config: &Path) {
    let output = Command::new("node")
        .args(["--test", "--test-reporter=spec"])
        .arg(web().join("test").join(tests))
        .env("THALWEG_PAGE", config)
        .output()
        .expect("node starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    println!("{said}");
}

#[test]
fn the_committed_page_is_what_its_sources_make() {
    let scratch = tempfile::tempdir().unwrap();
    let built = Command::new("node")
        .arg(web().join("build.mjs"))
        .arg(scratch.path())
        .output()
        .expect("node starts");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page/built");
    let mut compressed = 0;
    for name in ["page.js", "page.css", "icon.svg"] {
        let bytes = fs::read(scratch.path().join(name)).unwrap();
        let same = bytes == fs::read(committed.join(name)).unwrap();
        assert!(
            same,
            "{name} is not what web/ makes: run 'node web/build.mjs' and commit it"
        );
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut packed, &bytes).unwrap();
        compressed += packed.finish().unwrap().len();
    }
    assert!(
        compressed < 200_000,
        "the page has {compressed} bytes when compressed"
    );
}

#[test]
fn the_sources_of_the_page_have_the_types_they_say() {
    let checked = Command::new(web().join("node_modules/.bin/tsc"))
        .arg("--noEmit")
        .current_dir(web())
        .output()
        .expect("tsc starts");
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stdout)
    );
}
