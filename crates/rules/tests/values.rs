//! The whole way of a value: a real program calls a function, a rule's program looks at its
//! registers and memory, and what comes out is what the program called it with. Optimised and not.

mod support;

use support::Target;
use thalweg_rules::{Options, Redactions, throwing_programs, thrown_descriptions};

/// By both compilers, optimised and not.
const WAYS: [(bool, bool); 3] = [(false, false), (true, false), (true, true)];

fn c_by(optimised: bool, clang: bool) -> Target {
    let level = if optimised { "-O2" } else { "-O0" };
    let compiler = if clang { "clang" } else { "gcc" };
    Target::build(compiler, "values.c", &[level, "-g", "-w"])
}

fn c(optimised: bool, debug: bool) -> Target {
    let level = if optimised { "-O2" } else { "-O0" };
    let debug = if debug { "-g" } else { "-g0" };
    Target::build("gcc", "values.c", &[level, debug, "-w"])
}

fn cpp(optimised: bool, clang: bool) -> Target {
    let level = if optimised { "-O2" } else { "-O0" };
    let compiler = if clang { "clang++" } else { "g++" };
    Target::build(compiler, "values.cpp", &["-std=c++17", level, "-g", "-w"])
}

fn rust(optimised: bool) -> Target {
    let level = if optimised {
        "opt-level=2"
    } else {
        "opt-level=0"
    };
    Target::build("rustc", "values.rs", &["--edition=2021", "-C", level, "-g"])
}

/// All calls that a rule keeps, one line each.
fn kept(target: &Target, rule: &str) -> Vec<String> {
    let seen = target.run(rule);
    assert!(!seen.is_empty(), "{rule}: no call");
    // Addresses are others in every run.
    let address = regex::Regex::new("0x[0-9a-f]+").unwrap();
    let texts = seen.iter().filter(|s| s.kept).map(|s| s.text());
    texts
        .map(|text| address.replace_all(&text, "0x_").into_owned())
        .collect()
}

#[track_caller]
fn check(target: &Target, rule: &str, expected: &[&str]) {
    assert_eq!(kept(target, rule), expected, "{rule}");
}

#[test]
fn values_of_c_are_what_the_program_has() {
    for (optimised, clang) in WAYS {
        let target = c_by(optimised, clang);
        check(
            &target,
            "integers; record args, ret",
            &[
                "a=-3 b=65535 c=-70000 d=4000000000 e=-5000000000 f=18000000000000000000 g=-7 h=1099511627776 ret=-1989335931",
            ],
        );
        check(
            &target,
            "floats: b < 0 and d > 9999999999.5 and a == 1.5; record args, ret",
            &["a=1.5 b=-2.25 c=3 d=10000000000 ret=10000000002.25"],
        );
        check(
            &target,
            "text; record args, ret",
            &[
                "s=\"SELECT 1\" c='q' yes=true color=GREEN ret=\"SELECT 1\"",
                "s=\"INSERT\" c='\\0' yes=false color=BLUE ret=null",
            ],
        );
        check(
            &target,
            "text: color == BLUE or s =~ /^SEL.*X/; record s",
            &["s=\"INSERT\""],
        );
        check(
            &target,
            "text: s == \"SELECT 1\" and c == 'q'; record s",
            &["s=\"SELECT 1\""],
        );
        check(
            &target,
            "text: ret is not null and s !~ /INS/; record s",
            &["s=\"SELECT 1\""],
        );
        check(&target, "text: not yes; record color", &["color=BLUE"]);
        check(
            &target,
            "by_value; record p, q, s, b, last, ret, b.name",
            &[
                "p={x: 1, y: -2} q={a: 2.5, b: 7} s={f: 0.5, g: -0.5} b={numbers: [1, 2, 3, 4], name: \"biggest\"} last=11 b.name=\"biggest\" ret={x: 12, y: 11}",
            ],
        );
        check(
            &target,
            "by_value: p.y == -2 and q.a > 2 and s.g < 0 and b.numbers[2] == 3; record p.y, s.g",
            &["p.y=-2 s.g=-0.5"],
        );
        check(
            &target,
            "large_result; record n, ret",
            &["n=40 ret={numbers: [40, 41, 42, 43], name: \"large\"}"],
        );
        check(
            &target,
            "pair_result: ret.a > 3; record ret.a, ret",
            &["ret.a=3.5 ret={a: 3.5, b: 3}"],
        );
        check(
            &target,
            "pointers; record args, *nowhere",
            &["bad=<unreadable> null=null nowhere=null anything=0x_ *nowhere=null"],
        );
        check(
            &target,
            "lengths; record buffer[..count]:str, numbers[..how_many], numbers[1..3], numbers[how_many - 1]",
            &[
                "buffer[0..count]:str=\"ab\\0cd\" numbers[0..how_many]=[5, 6, 7, 8] numbers[1..3]=[6, 7] numbers[(how_many - 1)]=8",
            ],
        );
    }
}

#[test]
fn paths_lead_through_structures() {
    for (optimised, clang) in WAYS {
        let target = c_by(optimised, clang);
        check(
            &target,
            "handle: req->level == 5 and req->delta < 0 and req->ready; record req->uri, req->host, req->level, req->delta, req->at, req->next->host, req->bytes, req->half",
            &[
                "req->uri=\"/abc\" req->host=\"example.org\" req->level=5 req->delta=-3 req->at={x: 10, y: 20} req->next->host=\"next\" req->bytes=[1, 2, 3, 255] req->half=4464",
            ],
        );
        check(
            &target,
            "handle(r, by): by == 41 and exit(r->method) == 42 and changed(r->at.y); record r->method, exit(r->method), changed(r->at.y), exit(r->at)",
            &[
                "r->method=1 r->at.y=20 exit(r->method)=42 exit(r->at.y)=99 exit(r->at)={x: 10, y: 99}",
            ],
        );
        check(
            &target,
            "handle: req->uri.data =~ /^.abcdef$/ and req->uri == \"/abc\" and len(req->uri) == 4; record req->uri.data",
            &["req->uri.data=\"/abcdef\""],
        );
        check(&target, "handle: ret > 42; record n", &[]);
    }
}

#[test]
fn names_that_are_not_to_be_seen_are_never_read() {
    let target = c(true, true);
    let options = Options {
        redact: Redactions::new(&["pass".into()]).unwrap(),
        text_limit: 6,
    };
    let seen = target.run_with(
        "handle; record req->password, *req, req->host:str, req->uri",
        &options,
    );
    let text = seen[0].text();
    assert!(text.starts_with("req->password=<redacted> *req={method: 1, ready: 1, level: 5, delta: -3, password: <redacted>, host: "), "{text}");
    assert!(
        text.ends_with(" req->host:str=\"exampl\"... req->uri=\"/abc\""),
        "{text}"
    );
    let bytes = &seen[0].items;
    assert!(!bytes.windows(6).any(|w| w == b"hunter"));
    let error = target
        .compile(&["handle: req->password == \"x\""], &options)
        .unwrap_err();
    assert_eq!(
        (error.column, error.message.as_str()),
        (14, "'password' is on the list of names that are never read")
    );
}

#[test]
fn without_debug_information_the_convention_says_where_values_are() {
    for optimised in [false, true] {
        let target = c(optimised, false);
        check(
            &target,
            "integers; record arg1:i8, arg2:u16, arg3:int, arg4:uint, arg5:long, arg6:ulong, arg7:int, arg8:i64, ret:int",
            &[
                "arg1:i8=-3 arg2:u16=65535 arg3:i32=-70000 arg4:u32=4000000000 arg5:i64=-5000000000 arg6:u64=18000000000000000000 arg7:i32=-7 arg8:i64=1099511627776 ret:i32=-1989335931",
            ],
        );
        check(
            &target,
            "floats(a, b, c, d): b:f64 < 0; record a:f32, b:f64, c:int, d:f64, ret:f64",
            &["a:f32=1.5 b:f64=-2.25 c:i32=3 d:f64=10000000000 ret:f64=10000000002.25"],
        );
        check(
            &target,
            "text: arg1:str =~ /ELE/; record arg1:str, arg2:char, arg3:bool, ret:str",
            &["arg1:str=\"SELECT 1\" arg2:char='q' arg3:bool=true ret:str=\"SELECT 1\""],
        );
        check(
            &target,
            "handle: arg1:ptr[0]:int == 1; record arg1:ptr[8]:str, arg1:ptr[40]:str, (arg1:long + 16):str, arg1:ptr[56]:ptr[16]:char, exit(arg1:ptr[0]:int)",
            &[
                "arg1:ptr[8]:str=\"hunter2\" arg1:ptr[40]:str=\"/abcdef\" (arg1:i64 + 16):str=\"example.org\" arg1:ptr[56]:ptr[16]:char='n' exit(arg1:ptr[0]:i32)=42",
            ],
        );
        let error = target.error("text(sql): sql == \"x\"");
        assert_eq!(
            (error.column, error.message.as_str(), error.help.as_deref()),
            (
                12,
                "the type of arg1 is not known: target has no debug information",
                Some("say it, as in: arg1:int, arg1:str, arg1:f64")
            )
        );
    }
}

#[test]
fn values_of_cpp_and_its_library_are_what_the_program_has() {
    for (optimised, clang) in WAYS {
        let target = cpp(optimised, clang);
        check(
            &target,
            "db::query; record args, ret",
            &[
                "sql=\"SELECT short\" n=3 ret=15",
                "sql=\"SELECT something that is longer than the space inside\" n=300 ret=353",
            ],
        );
        check(
            &target,
            "query(sql, n): n > 100 || ret < 0; record len(sql)",
            &["len(sql)=53"],
        );
        check(&target, "query: sql =~ /short$/; record n", &["n=3"]);
        check(
            &target,
            "db::by_value: mode == Write and mode == db::Mode::Write and view == \"a view\"; record args, ret",
            &["sql=\"hello\" view=\"a view\" mode=Write ret=13"],
        );
        check(
            &target,
            "db::list: len(numbers) == 3 and numbers[1] == 2; record numbers, floats, len(floats)",
            &["numbers=[1, 2, 3] floats=[0.5, 1.5] len(floats)=2"],
        );
        check(
            &target,
            "db::pointers: row is not null and row->id == 41 and shared->cells[0] == 9; record row->name, shared->id, row->cells",
            &["row->name=\"row\" shared->id=41 row->cells=[9, 8]"],
        );
        check(
            &target,
            "db::result: len(ret) == 20; record n, ret",
            &["n=20 ret=\"xxxxxxxxxxxxxxxxxxxx\""],
        );
        check(
            &target,
            "Table::count: this->rows == 7; record *this, more",
            &["*this={rows: 7, title: \"a title that is longer than sixteen\"} more=5"],
        );
        check(
            &target,
            "db::twice; record value, ret",
            &["value=21 ret=42", "value=1.25 ret=2.5"],
        );
    }
}

#[test]
fn classes_that_are_passed_as_addresses_are_known_without_being_told() {
    let old = ["-std=c++17", "-O2", "-w", "-gdwarf-4", "-gstrict-dwarf"];
    for target in [
        cpp(true, false),
        cpp(true, true),
        Target::build("g++", "values.cpp", &old),
    ] {
        check(
            &target,
            "db::copied; record named, n, ret",
            &["named={name: \"inside\", id: 6} n=8 ret=20"],
        );
        check(
            &target,
            "db::by_value; record sql, view",
            &["sql=\"hello\" view=\"a view\""],
        );
    }
}

#[test]
fn values_of_rust_and_its_library_are_what_the_program_has() {
    for optimised in [false, true] {
        let target = rust(optimised);
        check(
            &target,
            "texts: a =~ /^borrow/ and len(b) == 13; record args, ret",
            &["a=\"borrowed\" b=\"an owned text\" c=\"an owned text\" n=77 ret=111"],
        );
        check(
            &target,
            "lists; record args, len(c)",
            &["a=[1, 2, 3] b=[10, 20] c=[98, 121, 116, 101, 115] len(c)=5"],
        );
        check(
            &target,
            "many: names[1] == \"two\"; record names[0], words, names",
            &["names[0]=\"one\" words=[\"three\"] names=[\"one\", \"two\"]"],
        );
        check(
            &target,
            "options; record args",
            &[
                "a=Some(4) b=Some(\"inside\") c=None color=Green",
                "a=None b=None c=Some(0x_) color=Red",
            ],
        );
        check(
            &target,
            "options: a is Some and color == Green and b.Some.0 == \"inside\"; record a.Some.0",
            &["a.Some.0=4"],
        );
        check(
            &target,
            "results: ret is Err; record n, ret",
            &["n=9 ret=Err(\"9 is too large\")"],
        );
        check(
            &target,
            "results; record ret",
            &["ret=Ok(3)", "ret=Err(\"9 is too large\")"],
        );
        check(
            &target,
            "pairs; record args, ret",
            &["two={a: 5, b: 2.5} tuple=(6, -7) big=[1, 2, 3] ret=(14, -4.5)"],
        );
        check(
            &target,
            "events; record event, ret",
            &[
                "event=Quit ret=None",
                "event=Move {x: 3, y: -4} ret=None",
                "event=Say(\"hello\") ret=Some(\"hello\")",
            ],
        );
        check(
            &target,
            "Account::rename: self.id == 12 and self.name == \"before\"; record *self, exit(self.name), name",
            &[
                "*self={id: 12, name: \"before\", tags: [7, 8]} name=\"after\" exit(self.name)=\"after\"",
            ],
        );
    }
}

#[test]
fn what_is_wrong_with_names_and_types_is_said_before_anything_runs() {
    let target = c(true, true);
    for (rule, column, message, help) in [
        (
            "hanlde: n > 3",
            1,
            "no function is called 'hanlde'",
            "did you mean 'handle'?",
        ),
        (
            "handle: nn > 3",
            9,
            "the function has no argument 'nn'",
            "did you mean 'n'?",
        ),
        (
            "handle: whatever > 3",
            9,
            "the function has no argument 'whatever'",
            "its arguments are: req, n",
        ),
        (
            "handle: req->metod == 3",
            14,
            "'request' has no field 'metod'",
            "did you mean 'method'?",
        ),
        (
            "handle: n->x == 3",
            9,
            "'n' is 'int', which points to nothing that is known",
            "",
        ),
        (
            "handle: duration > 5",
            20,
            "'5' is 'i64', not a time",
            "a time has a unit, as in: 5ms",
        ),
        ("handle: n > 5ms", 9, "'n' is 'int', not a time", ""),
        ("handle: n == \"x\"", 9, "'n' is 'int', not a text", ""),
        (
            "handle: n is null",
            11,
            "'int' is never null: only pointers are",
            "",
        ),
        (
            "text: color == GREAN",
            16,
            "'color' has no name 'GREAN'",
            "did you mean 'GREEN'?",
        ),
        (
            "handle: arg3 == 1",
            9,
            "the function has 2 arguments, no arg3",
            "",
        ),
        (
            "handle: caller mian",
            9,
            "no function is called 'mian'",
            "did you mean 'main'?",
        ),
        (
            "handle: while slow",
            9,
            "there is no rule 'slow'",
            "a rule gets a name with: ; as NAME",
        ),
        (
            "handle; record *n",
            17,
            "'n' is 'int', which points to nothing that is known",
            "",
        ),
        (
            "text: len(s) > 3",
            11,
            "'s' is 'const char*': its length is not known",
            "",
        ),
    ] {
        let error = target.error(rule);
        let found = (
            error.column,
            error.message.as_str(),
            error.help.as_deref().unwrap_or(""),
        );
        assert_eq!(found, (column, message, help), "{rule}\n{error}");
    }
}

#[test]
fn exceptions_are_read_where_they_are_thrown() {
    for optimised in [false, true] {
        let level = if optimised { "-O2" } else { "-O0" };
        let target = Target::build(
            "g++",
            "values.cpp",
            &["-std=c++17", level, "-static-libstdc++", "-static-libgcc"],
        );
        assert_eq!(
            thrown(&target, 0),
            [
                "\"std::runtime_error\" \"no route to host\"",
                "\"std::out_of_range\" \"index 9\"",
                "\"char const*\" \"a text\"",
                "\"std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >\" \"a string\"",
                "\"int\"",
            ]
        );
        let target = rust(optimised);
        assert_eq!(
            thrown(&target, 1),
            [format!("{:?}", support::source("values.rs"))]
        );
    }
}

/// What the nth of the programs for throwing functions writes.
fn thrown(target: &Target, nth: usize) -> Vec<String> {
    let throwing = &throwing_programs(0)[nth];
    let calls = target.entries(
        |name| throwing.matches(name, None),
        &throwing.program,
        &thrown_descriptions(),
    );
    let shown = |values: Vec<thalweg_rules::Recorded>| {
        let values = values.iter().filter(|v| v.name != "exception.object");
        values
            .map(|v| v.value.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    calls.into_iter().map(shown).collect()
}

#[test]
fn structures_that_a_unit_only_declares_are_found_in_others() {
    let target = Target::build_all("gcc", &["declared.c", "defined.c"], &["-O2", "-g", "-w"]);
    check(
        &target,
        "use: thing->weight == 7; record *thing",
        &["*thing={weight: 7, label: \"seven\"}"],
    );
}

#[test]
fn copies_with_other_arguments_are_left_alone() {
    let target = Target::build("gcc", "copies.c", &["-O2", "-g", "-w"]);
    let error = target.error("reduced: n > 3");
    assert_eq!(
        error.message,
        "'n' is not known: the compiler made this copy with other arguments than were written"
    );
}
