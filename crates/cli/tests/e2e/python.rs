//! Functions of Python are counted exactly, each by its own name, and the interpreter is left as it was.

use crate::support::build::run;
use crate::support::live::{Live, get};
use crate::support::profile::{Node, Profile};
use crate::support::scratch::Scratch;
use crate::support::text::assert_restored;
use crate::support::thalweg::{command, export, record_path, refuse, succeed};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PYTHON: &str = "/usr/bin/python3.11";

/// Calls of functions of the script, by name. `-c` has no file.
fn calls(profile: &Profile) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for node in profile.threads.iter().flat_map(|thread| &thread.nodes) {
        let function = &profile.functions[node.function];
        if function.module == "<string>" {
            *calls.entry(function.name.clone()).or_insert(0) += node.calls;
        }
    }
    calls
}

fn recorded(options: &[&str], script: &str) -> (String, Profile) {
    let options = [&["--quiet", "--time", "all"], options].concat();
    let run = record_path(&options, Path::new(PYTHON), &["-c", script]);
    let said = String::from_utf8(run.stdout).expect("UTF-8");
    (said, run.profile)
}

/// What it prints is what the interpreter's own hook counts.
const WORK: &str = r#"
import sys, threading, asyncio
class Shape:
    def area(self): return side(self)
    @property
    def name(self): return 'shape'
def side(shape): return 3
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
def fall(n):
    if n == 0: raise ValueError
    fall(n - 1)
def each(n):
    for i in range(n): yield i
async def pause(n):
    await asyncio.sleep(0)
    return n
async def several():
    return await asyncio.gather(*[pause(n) for n in range(5)])
def work():
    shape = Shape()
    total = sum(shape.area() + len(shape.name) for _ in range(300))
    total += fib(12) + sum(each(20)) + len(sorted([3, 1, 2], key=lambda n: -n))
    for _ in range(4):
        try: fall(6)
        except ValueError: pass
    return total + sum(asyncio.run(several()))
counts = {}
def hook(frame, event, argument):
    code = frame.f_code
    if event == 'call' and code.co_filename == '<string>':
        counts[code.co_qualname] = counts.get(code.co_qualname, 0) + 1
if len(sys.argv) > 1:
    threading.setprofile(hook)
    sys.setprofile(hook)
work()
thread = threading.Thread(target=work)
thread.start()
thread.join()
sys.setprofile(None)
for name, count in sorted(counts.items()): print(name, count)
"#;

#[test]
fn calls_are_those_that_the_interpreters_own_hook_counts() {
    let plain = Command::new(PYTHON).args(["-c", WORK, "count"]).output();
    let plain = String::from_utf8(plain.expect("runs").stdout).expect("UTF-8");
    let mut expected: BTreeMap<String, u64> = plain
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, count)| (name.to_owned(), count.parse().expect("a count")))
        .collect();
    assert_eq!(expected.get("Shape.area"), Some(&600), "{plain}");
    // Modules make some of that name, too, before the hook is set.
    expected.remove("<lambda>");
    // Of a generator or a coroutine the call that makes one is a call here, too.
    let makers = [("each", 2), ("work.<locals>.<genexpr>", 2), ("pause", 10)];
    for (name, made) in makers.into_iter().chain([("several", 2)]) {
        *expected.get_mut(name).expect("called") += made;
    }
    let (_, profile) = recorded(&["--python", "on"], WORK);
    let found = calls(&profile);
    for (name, count) in expected {
        assert_eq!(found.get(&name), Some(&count), "{name} in {found:?}");
    }
    assert!(
        !profile
            .calls_by_name()
            .contains_key("_PyEval_EvalFrameDefault")
    );
}

#[test]
fn python_calls_c_that_calls_python_in_one_chain() {
    let script = "import sqlite3\n\
        def double(n): return 2 * n\n\
        def ask(db): return db.execute('select double(21)').fetchone()\n\
        db = sqlite3.connect(':memory:')\n\
        db.create_function('double', 1, double)\n\
        for _ in range(7): print(ask(db)[0])";
    let (said, profile) = recorded(&["--python", "on"], script);
    assert_eq!(said, "42\n".repeat(7));
    let mut chains = 0;
    for (thread, node) in profile.nodes_named("double") {
        let path = profile.path(thread, node);
        let place = |name: &str| path.iter().position(|one| one == name);
        assert!(place("ask") < place("sqlite3_step"), "{path:?}");
        assert!(place("sqlite3_step") < place("double"), "{path:?}");
        chains += node.calls;
    }
    assert_eq!(chains, 7);
}

#[test]
fn recursion_goes_as_deep_as_by_itself() {
    let script = "import sys, threading\n\
        sys.setrecursionlimit(10**6)\n\
        def down(n): return 0 if n == 0 else 1 + down(n - 1)\n\
        def run(): print(down(50000), down(100))\n\
        run()\n\
        threading.stack_size(256 * 1024)\n\
        thread = threading.Thread(target=run)\n\
        thread.start(); thread.join()";
    let (said, profile) = recorded(&["--python", "on"], script);
    assert_eq!(said, "50000 100\n50000 100\n");
    let told = profile
        .notes
        .iter()
        .any(|note| note.contains("went so deep"));
    assert!(told, "{:?}", profile.notes);
    // Nobody knows of which functions calls are missing.
    for (name, wanted) in [("down", true), ("run", true), ("Py_BytesMain", false)] {
        let nodes: Vec<_> = profile.nodes_named(name).collect();
        let are_bounds = nodes.iter().all(|(_, node)| node.at_least == wanted);
        assert!(!nodes.is_empty() && are_bounds, "{name}: {wanted}");
    }
    // What follows is counted again.
    let (_, shallow) = recorded(
        &["--python", "on"],
        &script.replace("50000", "300").replace("256", "8192"),
    );
    assert_eq!(calls(&shallow).get("down"), Some(&(2 * (301 + 101))));
    assert!(shallow.nodes_named("down").all(|(_, node)| !node.at_least));
}

#[test]
fn python_functions_are_told_apart_unless_they_are_not_wanted() {
    let script = "def f(): pass\nf()";
    let (_, profile) = recorded(&[], script);
    assert_eq!(calls(&profile).get("f"), Some(&1));
    let (_, profile) = recorded(&["--python", "off"], script);
    assert!(calls(&profile).is_empty());
    let evaluator = profile.calls_by_name();
    assert!(evaluator.contains_key("_PyEval_EvalFrameDefault"));
    // Whoever leaves the evaluator out is told what that means if Python was asked for.
    for (options, is_told) in [
        (&["-F", "^PyDict"][..], false),
        (&["-F", "^PyDict", "--python", "on"], true),
    ] {
        let (_, profile) = recorded(options, script);
        assert!(calls(&profile).is_empty());
        let told = profile.notes.iter().any(|n| n.contains("not counted"));
        assert_eq!(told, is_told, "{:?}", profile.notes);
    }
}

/// The interpreter ends recursion where it does by itself, and says the same.
#[test]
fn recursion_ends_at_the_same_depth() {
    let script = "depth = 0\n\
        def down():\n    global depth\n    depth += 1\n    down()\n\
        class Deep:\n    def __repr__(self):\n        global depth\n        depth += 1\n        return repr([self])\n\
        for what in (down, lambda: repr(Deep())):\n    depth = 0\n    try: what()\n    except RecursionError as error: print(depth, error)";
    let plain = Command::new(PYTHON).args(["-c", script]).output();
    let plain = String::from_utf8(plain.expect("runs").stdout).expect("UTF-8");
    assert!(plain.contains("recursion"), "{plain}");
    let (said, _) = recorded(&[], script);
    assert_eq!(said, plain);
}

#[test]
fn what_the_interpreter_does_between_python_functions_is_folded_in_reports() {
    let scratch = Scratch::new();
    let file = scratch.join("folded.thalweg").display().to_string();
    let script = "def pair(n): return n, n\ndef all(): return sorted(range(50), key=pair)\nall()";
    let options = [
        "record",
        "-q",
        "--no-report",
        "-o",
        &file,
        "--",
        PYTHON,
        "-c",
        script,
    ];
    succeed(&options);
    let caller = |options: &[&str]| {
        let options = [
            &["report", "--callers", "^pair$", "--json"],
            options,
            &[&file],
        ]
        .concat();
        let shown: serde_json::Value = serde_json::from_str(&succeed(&options)).expect("JSON");
        shown["functions"][0]["tree"]["rows"][1]["name"].clone()
    };
    assert_eq!(caller(&[]), "all");
    assert_eq!(caller(&["--fold-runtime", "off"]), "_PyFunction_Vectorcall");
    // No figure is lost.
    let summary = |options: &[&str]| {
        let options = [&["report", "--flat", "--json"], options, &[&file]].concat();
        let rows: serde_json::Value = serde_json::from_str(&succeed(&options)).expect("JSON");
        rows
    };
    let calls = |rows: &serde_json::Value| {
        let rows = rows["functions"].as_array().expect("rows").clone();
        let of = rows
            .into_iter()
            .find(|row| row["name"] == "pair")
            .expect("pair");
        of["calls"].as_u64()
    };
    assert_eq!(calls(&summary(&[])), Some(50));
    assert_eq!(calls(&summary(&["--fold-runtime", "off"])), Some(50));
}

/// Answers each line with a sum, and whether its interpreter's evaluator is set: by the offset that its own accessor has.
const SERVER: &str = r#"
import ctypes, sys, threading
api = ctypes.pythonapi
accessor = ctypes.cast(api._PyInterpreterState_GetEvalFrameFunc, ctypes.c_void_p).value
code = ctypes.string_at(accessor, 7)
assert code[:3] == b'\x48\x8b\x87', code
api.PyInterpreterState_Get.restype = ctypes.c_void_p
word = ctypes.c_uint64.from_address(api.PyInterpreterState_Get() + int.from_bytes(code[3:], 'little'))
def double(n): return 2 * n
def total(n): return sum(double(i) for i in range(n))
def busy():
    while True: assert total(50) == 2450
threading.Thread(target=busy, daemon=True).start()
print('ready', flush=True)
for line in sys.stdin:
    print(total(int(line)), 'set' if word.value else 'not set', flush=True)
"#;

#[test]
fn an_interpreter_answers_right_and_is_as_it_was_after_each_detach() {
    let mut live = Live::ready(Path::new(PYTHON), &["-c", SERVER]);
    let before = live.text();
    assert_eq!(live.ask("100"), "9900 not set");
    for _ in 0..3 {
        succeed(&[
            "attach",
            "--python",
            "on",
            "--budget",
            "off",
            "--quiet",
            &live.id(),
        ]);
        assert_eq!(live.ask("100"), "9900 set");
        succeed(&["detach", "--quiet", &live.id()]);
        assert_restored(&before, &live.text());
        assert_eq!(live.ask("100"), "9900 not set");
    }
    live.assert_healthy();
}

/// What a busy interpreter is asked, by what a budget leaves of it.
#[test]
fn a_budget_ends_what_telling_python_functions_apart_costs() {
    let mut live = Live::ready(Path::new(PYTHON), &["-c", SERVER]);
    let before = live.text();
    let id = live.id();
    succeed(&["attach", "--budget", "2%", "--quiet", &id]);
    // It comes back now and then, to see whether that is still so.
    let set = (0..2000).find(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        live.ask("100") == "9900 not set"
    });
    assert!(set.is_some(), "the budget switches it off");
    let scratch = Scratch::new();
    let file = scratch.join("budget.thalweg");
    succeed(&["detach", "--quiet", "-o", &file.display().to_string(), &id]);
    assert_restored(&before, &live.text());
    assert_eq!(live.ask("100"), "9900 not set");
    let profile = export(&file);
    assert!(calls(&profile).get("double") > Some(&0));
    let told = profile
        .notes
        .iter()
        .any(|n| n.contains("not told apart for"));
    assert!(told, "{:?}", profile.notes);
    let text = succeed(&[
        "report",
        "--flat",
        "--limit",
        "100000",
        &file.display().to_string(),
    ]);
    let line = text.lines().find(|line| line.contains(" double "));
    assert!(line.is_some_and(|line| line.contains(">=")), "{text}");
    live.assert_healthy();
}

/// By hand, and left behind by controllers that are killed.
#[test]
fn the_evaluator_is_switched_with_its_word_and_left_by_nobody() {
    let mut live = Live::ready(Path::new(PYTHON), &["-c", SERVER]);
    let before = live.text();
    let id = live.id();
    let evaluator = "^_PyEval_EvalFrameDefault$";
    succeed(&["attach", "--budget", "off", "--quiet", &id]);
    for (way, state) in [
        ("--off", "not set"),
        ("--time", "set"),
        ("--off", "not set"),
    ] {
        succeed(&["switch", way, evaluator, &id]);
        assert_eq!(live.ask("100"), format!("9900 {state}"));
    }
    succeed(&["detach", "--quiet", &id]);
    assert_restored(&before, &live.text());
    assert_eq!(live.ask("100"), "9900 not set");
    let scratch = Scratch::new();
    let file = scratch.join("killed.thalweg").display().to_string();
    for budget in ["off", "2%"] {
        let mut killed = command();
        let options = ["record", "--budget", budget, "-q", "-o", &file, "-p", &id];
        let mut killed = killed.args(options).spawn().expect("starts");
        let mut was_set = false;
        for _ in 0..20_000 {
            was_set |= live.ask("10") == "90 set";
            let is_off = live.ask("10") == "90 not set";
            if was_set && (budget == "off" || is_off) {
                break;
            }
        }
        assert!(was_set, "--budget {budget}");
        killed.kill().expect("killed");
        killed.wait().expect("ends");
        succeed(&["detach", "--quiet", &id]);
        assert_restored(&before, &live.text());
        assert_eq!(live.ask("100"), "9900 not set");
    }
    live.assert_healthy();
}

/// Calls what it is given, by the interpreter's own function: built without any header of CPython's.
const CALLBACK: &str = "
void *PyObject_CallFunction(void *callable, const char *format, ...);
void _Py_DecRef(void *object);
void inner(void *callable, int n) { _Py_DecRef(PyObject_CallFunction(callable, \"i\", n)); }
void each(void *callable, int n) { for (int i = 0; i < n; i++) inner(callable, i); }
";

#[test]
fn an_extension_that_calls_back_is_in_the_middle_of_one_chain() {
    let scratch = Scratch::new();
    let (source, library) = (scratch.join("callback.c"), scratch.join("libcallback.so"));
    std::fs::write(&source, CALLBACK).expect("written");
    let mut compiler = Command::new("gcc");
    let compiler = compiler.args([
        "-O1",
        "-fno-inline",
        "-fno-optimize-sibling-calls",
        "-shared",
        "-fPIC",
        "-o",
    ]);
    run(compiler.arg(&library).arg(&source));
    let script = format!(
        "import ctypes\nlibrary = ctypes.PyDLL('{}')\n\
        def back(n): return [deep(n), n]\n\
        def deep(n): return n\n\
        def ask(): library.each(ctypes.py_object(back), 11)\n\
        for _ in range(7): ask()",
        library.display()
    );
    let (_, profile) = recorded(&[], &script);
    let mut chains = 0;
    for (thread, node) in profile.nodes_named("deep") {
        let path = profile.path(thread, node);
        let place = |name: &str| {
            path.iter()
                .position(|one| one == name)
                .unwrap_or_else(|| panic!("{name} in {path:?}"))
        };
        let chain = ["ask", "each", "inner", "back", "deep"].map(place);
        assert!(chain.is_sorted(), "{path:?}");
        chains += node.calls;
    }
    assert_eq!(chains, 77);
    let calls = profile.calls_by_name();
    for (name, expected) in [("ask", 7), ("each", 7), ("inner", 77), ("back", 77)] {
        assert_eq!(calls.get(name), Some(&expected), "{name}");
    }
}

/// A server of Python's own that is attached to and left while a client asks: each answer is right.
#[test]
fn a_web_server_answers_right_while_it_is_attached_to_and_left() {
    const WEB: &str = r#"
import http.server, json, socketserver
def answer(path): return json.dumps({'path': path, 'sum': sum(weigh(c) for c in path)}).encode()
def weigh(character): return ord(character)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = answer(self.path)
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *ignored): pass
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer): daemon_threads = True
server = Server(('127.0.0.1', 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;
    let mut live = Live::spawn(Command::new(PYTHON).args(["-c", WEB]));
    let port: u16 = live.line().trim().parse().expect("a port");
    let before = live.text();
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..2)
        .map(|client| {
            let over = over.clone();
            std::thread::spawn(move || {
                let mut asked = 0;
                while !over.load(Ordering::Relaxed) {
                    let path = format!("/{client}/{asked}");
                    let sum: u32 = path.chars().map(u32::from).sum();
                    let answer = get(port, &path);
                    let expected = format!("{{\"path\": \"{path}\", \"sum\": {sum}}}");
                    assert!(answer.ends_with(&expected), "{answer}");
                    asked += 1;
                }
                asked
            })
        })
        .collect();
    let scratch = Scratch::new();
    let file = scratch.join("web.thalweg");
    let path = file.display().to_string();
    let mut handled = 0;
    for cycle in 0..10 {
        let budget = if cycle % 2 == 0 { "off" } else { "5%" };
        let id = live.id();
        succeed(&["attach", "--budget", budget, "--quiet", &id]);
        std::thread::sleep(std::time::Duration::from_millis(100));
        succeed(&["detach", "--quiet", "-o", &path, &id]);
        assert_restored(&before, &live.text());
        handled += export(&file)
            .calls_by_name()
            .get("Handler.do_GET")
            .copied()
            .unwrap_or(0);
    }
    over.store(true, Ordering::Relaxed);
    let asked: u64 = clients
        .into_iter()
        .map(|client| client.join().expect("answers are right"))
        .sum();
    assert!(
        0 < handled && handled <= asked,
        "{handled} of {asked} were seen"
    );
    live.assert_healthy();
}

/// Answers each line after one call of `handle`.
const HANDLER: &str = "import sys\n\
    def handle(n): return n + 1\n\
    print('ready', flush=True)\n\
    for line in sys.stdin: print(handle(int(line)), flush=True)";

#[test]
fn rules_choose_calls_of_python_functions_by_their_names() {
    let mut live = Live::ready(Path::new(PYTHON), &["-c", HANDLER]);
    let id = live.id();
    let options = ["attach", "--budget", "off", "-q", "--recordable", &id];
    succeed(&options);
    // From its first call on it is known.
    assert_eq!(live.ask("1"), "2");
    succeed(&["rules", "-p", &id, "--add", "^handle$: duration >= 0ns"]);
    for n in 0..17 {
        assert_eq!(live.ask(&n.to_string()), (n + 1).to_string());
    }
    let shown = succeed(&["calls", "-p", &id, "--list"]);
    let calls = shown
        .lines()
        .filter(|line| line.trim_end().ends_with("handle"));
    assert_eq!(calls.count(), 17, "{shown}");
    let refused = refuse(&["rules", "-p", &id, "--add", "^handle$: arg1:int > 3"]);
    assert!(refused.contains("is not read"), "{refused}");
    succeed(&["detach", "-q", &id]);
    live.assert_healthy();
}

#[test]
fn a_rule_waits_for_the_source_file_of_a_python_function() {
    let scratch = Scratch::new();
    let (app, file) = (scratch.join("app.py"), scratch.join("app.thalweg"));
    let source = "import time\ndef slow(): time.sleep(0.01)\nfor _ in range(500): slow()";
    std::fs::write(&app, source).expect("written");
    let (app, file) = (app.display().to_string(), file.display().to_string());
    let rule = "app.py!slow: duration > 5ms";
    let options = ["record", "-q", "--no-report", "--rule", rule, "-o", &file];
    succeed(&[&options[..], &["--", PYTHON, &app]].concat());
    let shown = succeed(&["calls", "--list", &file]);
    let calls = shown
        .lines()
        .filter(|line| line.trim_end().ends_with("slow"));
    let calls = calls.count();
    assert!((1..=500).contains(&calls), "{calls}: {shown}");
}

/// CPython 3.13, where there is one.
fn newer() -> Option<PathBuf> {
    let asked = Command::new("python3.13")
        .env("PYENV_VERSION", "3.13")
        .args(["-c", "import sys; print(sys.executable)"])
        .output()
        .ok()?;
    let path = String::from_utf8(asked.stdout).ok()?;
    asked.status.success().then(|| path.trim().into())
}

/// It refuses to begin where somebody else evaluates.
#[test]
fn the_support_of_perf_begins_and_ends_as_by_itself() {
    let Some(python) = newer() else {
        return eprintln!("no CPython 3.13 here: not tested");
    };
    let script = "import os, sys\n\
        def work(n): return n + 1\n\
        def tell():\n    \
            for n in range(100): work(n)\n    \
            print(sys.is_stack_trampoline_active())\n\
        tell()\n\
        sys.activate_stack_trampoline('perf')\n\
        tell()\n\
        sys.deactivate_stack_trampoline()\n\
        tell()\n\
        os.unlink(f'/tmp/perf-{os.getpid()}.map')\n";
    for (options, expected) in [
        (&[][..], "False\nTrue\nFalse\n"),
        (&["-X", "perf"], "True\nTrue\nFalse\n"),
    ] {
        let arguments = [options, &["-c", script]].concat();
        let run = record_path(&["--quiet"], &python, &arguments);
        assert_eq!(String::from_utf8_lossy(&run.stdout), expected);
        // When it ends, CPython's own word for who evaluates is 0: what is called next stays inside of its caller.
        let nodes = run.profile.threads.iter().flat_map(|thread| &thread.nodes);
        let of_work = |node: &&Node| run.profile.functions[node.function].name == "work";
        let work: Vec<_> = nodes.filter(of_work).collect();
        let calls: u64 = work.iter().map(|node| node.calls).sum();
        assert!((200..=300).contains(&calls), "{options:?}: {calls}");
        assert!(
            calls == 300 || work.iter().all(|node| node.at_least),
            "{options:?}"
        );
    }
}

#[test]
fn calls_that_stay_inside_of_their_caller_are_lower_bounds() {
    let Some(python) = newer() else {
        return eprintln!("no CPython 3.13 here: not tested");
    };
    let script = "class Thing:\n    \
            def __init__(self): self.name = 1\n    \
            def work(self): return self.name\n\
        print(sum(Thing().work() for _ in range(1000)))\n";
    let run = record_path(&["--quiet"], &python, &["-c", script]);
    assert_eq!(String::from_utf8_lossy(&run.stdout), "1000\n");
    let of = |name: &str| {
        let nodes = run.profile.threads.iter().flat_map(|thread| &thread.nodes);
        let of_name = |node: &&Node| run.profile.functions[node.function].name == name;
        let nodes: Vec<_> = nodes.filter(of_name).collect();
        let calls: u64 = nodes.iter().map(|node| node.calls).sum();
        (calls, nodes.iter().all(|node| node.at_least))
    };
    assert_eq!(of("Thing.work"), (1000, false));
    let (calls, at_least) = of("Thing.__init__");
    assert!(calls <= 1000 && at_least, "{calls}");
    let notes = &run.profile.notes;
    assert!(
        notes.iter().any(|note| note.contains("`__init__`")),
        "{notes:?}"
    );
}

/// Programs with the symbols of a CPython that is not supported: a note says which it is, and the functions of C are counted.
#[test]
fn a_cpython_that_is_not_supported_is_left_alone_with_a_note() {
    let scratch = Scratch::new();
    let (source, program) = (scratch.join("alike.c"), scratch.join("alike"));
    let evaluator = "__attribute__((noinline)) int _PyEval_EvalFrameDefault(int n) { return n > 0 ? n + 1 : 0; }\n\
        int main(int argc, char **argv) { int sum = 0; for (int i = 0; i < 100; i++) sum += _PyEval_EvalFrameDefault(i * argc); return sum == 0; }\n";
    for (more, why) in [
        ("void _Py_DecRefShared(void) {}\n", "free-threaded"),
        (
            "const unsigned long Py_Version = 0x030c07f0;\n",
            "CPython 3.12 allows 800 calls",
        ),
        (
            "const unsigned long Py_Version = 0x030f00f0;\n",
            "CPython 3.15 is not known",
        ),
        (
            "const unsigned long Py_Version = 0x030d00f0;\n",
            "accessors is of no known form",
        ),
        ("", "symbols are stripped"),
    ] {
        std::fs::write(&source, [more, evaluator].concat()).expect("written");
        run(Command::new("gcc")
            .args(["-O1", "-rdynamic", "-o"])
            .arg(&program)
            .arg(&source));
        let recorded = record_path(&["--quiet", "--python", "on"], &program, &[]);
        let notes = &recorded.profile.notes;
        assert!(
            notes.iter().any(|note| note.contains(why)),
            "{why}: {notes:?}"
        );
        let calls = recorded.profile.calls_by_name();
        assert_eq!(calls.get("_PyEval_EvalFrameDefault"), Some(&100), "{why}");
    }
}
