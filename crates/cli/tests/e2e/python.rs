//! Functions of Python are counted exactly, each by its own name, and the interpreter is left as it was.

use crate::support::live::Live;
use crate::support::profile::Profile;
use crate::support::text::assert_restored;
use crate::support::thalweg::{record_path, succeed};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

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
    // What follows is counted again.
    let (_, shallow) = recorded(
        &["--python", "on"],
        &script.replace("50000", "300").replace("256", "8192"),
    );
    assert_eq!(calls(&shallow).get("down"), Some(&(2 * (301 + 101))));
}

#[test]
fn without_the_option_python_functions_are_the_interpreters() {
    for (options, is_told) in [(&[][..], true), (&["--python", "off"], false)] {
        let (_, profile) = recorded(options, "def f(): pass\nf()");
        assert!(calls(&profile).is_empty());
        let evaluator = profile.calls_by_name();
        assert!(evaluator.contains_key("_PyEval_EvalFrameDefault"));
        let told = profile.notes.iter().any(|n| n.contains("--python on"));
        assert_eq!(told, is_told, "{:?}", profile.notes);
    }
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
