//! The language itself: what is read, what is refused and where, and that writing a rule out gives
//! the same rule.

use proptest::prelude::*;
use thalweg_rules::{Rule, RulesFile};

#[test]
fn every_example_is_read() {
    for text in [
        "handle_request: duration > 5ms",
        "db::query(sql, n): n > 100 || ret < 0; record sql, n, ret, errno",
        "ngx_http_process_request",
        "^db::.*: self >= 1.5ms and not waiting > 10us",
        "/operator\\(\\)/: duration > 1s",
        "(?:foo|bar)_[[:alpha:]]+: ret == null; record args",
        "libc!malloc: arg1:size > 0x1000; record arg1:size, ret:ptr",
        "f: arg2:str =~ /^SELECT/ and arg3:f64 < 0.5",
        "parse: exception =~ /timeout/ or exception.message == \"no route\"",
        "work: thread == \"worker-1\" && (caller main or above \"^http::\")",
        "work: every 100 and first 10 and 5/s",
        "inner: while slow active; as inner",
        "handler: after failing; record req->uri.data, req->headers[0].value, *req",
        "copy: len(buf) > 10; record buf[..16], exit(buf), changed(n)",
        "get: ret is Err; record ret, self.name",
        "flags: (mode & 0x3) != 0 and x.0.1 == -5 and c == 'q'",
        "write(fd, buf, count): fd == 2; record buf[..count]:str",
    ] {
        let rule = Rule::parse(text).unwrap_or_else(|error| panic!("{error}"));
        let written = rule.to_string();
        let again = Rule::parse(&written).unwrap_or_else(|error| panic!("{written}\n{error}"));
        assert_eq!(rule, again, "{text}\n{written}");
    }
}

#[test]
fn what_is_wrong_is_said_with_its_column_and_what_was_meant() {
    for (text, column, message, help) in [
        (
            "f: duration > 5 parsecs",
            17,
            "'parsecs' stands where the end of the rule is expected",
            "",
        ),
        (
            "f: duration > 5mss",
            16,
            "'mss' is no unit of time",
            "units are ns, us, ms, s, min and h",
        ),
        ("f: n >", 7, "the rule ends where a value is expected", ""),
        (
            "f: n = 3",
            6,
            "'=' stands where the end of the rule is expected",
            "two values are compared with ==",
        ),
        ("f: (n > 3", 10, "the rule ends where ')' is expected", ""),
        (
            "f: n > 3 record n",
            10,
            "'record' stands where the end of the rule is expected",
            "a ; stands before 'record'",
        ),
        (
            "f: n > 3; recrod n",
            11,
            "after a ; stands 'record' with values or 'as' with a name",
            "did you mean 'record'?",
        ),
        (
            "f: arg1:itn > 3",
            9,
            "there is no type 'itn'",
            "did you mean 'int'?",
        ),
        (
            "f: lne(s) > 3",
            4,
            "'lne' cannot be called: the target does not run anything for a rule",
            "did you mean 'len'?",
        ),
        ("f: every 0", 10, "'every 0' keeps no call", ""),
        (
            "f: n > 3 or first 10",
            13,
            "a limit cannot stand inside 'or' or 'not'",
            "join it to the whole condition: (...) and first 10",
        ),
        (
            "[: n > 3",
            1,
            "'[: n > 3' is not a regular expression: unclosed character class",
            "a literal . ( [ * + ? needs a \\ before it",
        ),
        (
            ": n > 3",
            1,
            "a rule begins with a function",
            "as in: handle_request: duration > 5ms",
        ),
        (
            "f: s =~ /(/",
            9,
            "'(' is not a regular expression: unclosed group",
            "a literal . ( [ * + ? needs a \\ before it",
        ),
        ("f: s == \"abc", 9, "the \" that ends this is missing", ""),
        ("ä: € > 3", 4, "'€' means nothing in a rule", ""),
        (
            "f: n > 99999999999999999999",
            8,
            "the number does not fit into 64 bits",
            "",
        ),
    ] {
        let error = Rule::parse(text).unwrap_err();
        let found = (
            error.column,
            error.message.as_str(),
            error.help.as_deref().unwrap_or(""),
        );
        assert_eq!(found, (column, message, help), "{text}\n{error}");
    }
    let shown = Rule::parse("f: n > 3; recrod n").unwrap_err().to_string();
    assert_eq!(
        shown,
        "after a ; stands 'record' with values or 'as' with a name\n  f: n > 3; recrod n\n            ^\n  did you mean 'record'?"
    );
}

#[test]
fn a_file_and_the_command_line_give_the_same_rules() {
    let text = r#"
redact = ["password"]
text_limit = 100

[[rule]]
name = "slow"
function = "db::query(sql, n)"
when = "duration > 5ms and first 3"
record = ["sql", "n"]

[[rule]]
text = "handler: n > 3"
"#;
    let file = RulesFile::parse(text, "rules.toml").unwrap();
    assert_eq!(file.redact, ["password"]);
    assert_eq!(file.text_limit, Some(100));
    let same = [
        "db::query(sql, n): duration > 5ms and first 3; record sql, n; as slow",
        "handler: n > 3",
    ];
    assert_eq!(file.rules, same.map(|text| Rule::parse(text).unwrap()));
}

#[test]
fn errors_in_a_file_name_its_line() {
    for (text, origin, message) in [
        (
            "[[rule]]\nfunction = \"f\"\nwhen = \"n >\"\n",
            "rules.toml:3:12",
            "the rule ends where a value is expected",
        ),
        (
            "[[rule]]\nfunction = \"f\"\nrecord = [\"a\", \"b c\"]\n",
            "rules.toml:3:19",
            "'c' stands where the end of the rule is expected",
        ),
        (
            "[[rule]]\nfunktion = \"f\"\n",
            "rules.toml:2:1",
            "there is no setting 'funktion'",
        ),
        (
            "[[rule]]\nwhen = \"n > 3\"\n",
            "rules.toml:1:1",
            "a rule needs 'function'",
        ),
        (
            "reduct = []\n",
            "rules.toml:1:1",
            "there is no setting 'reduct'",
        ),
        (
            "text_limit = -1\n",
            "rules.toml:1:14",
            "text_limit is a number from 1 to 8192",
        ),
    ] {
        let error = RulesFile::parse(text, "rules.toml").unwrap_err();
        assert_eq!(
            (error.origin.as_deref(), error.message.as_str()),
            (Some(origin), message),
            "{error}"
        );
    }
    assert!(
        RulesFile::parse("[[rule", "rules.toml")
            .unwrap_err()
            .message
            .starts_with("this is not TOML")
    );
}

#[test]
fn every_example_of_the_documentation_is_read() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rules.md");
    let page = std::fs::read_to_string(page).unwrap();
    let part = |title: &str| {
        let start = page.find(&format!("\n## {title}\n")).unwrap() + 4;
        page[start..].split("\n## ").next().unwrap().to_owned()
    };
    // What stands in code marks in the first column of a table's rows.
    let snippets = |title: &str| -> Vec<String> {
        // A second table shows types.
        let part = part(title);
        let part = part.split("\n| type |").next().unwrap();
        let cells = part.lines().filter_map(|line| line.strip_prefix("| `"));
        let firsts = cells.map(|line| {
            line.split(" | ")
                .next()
                .unwrap()
                .trim_end_matches('`')
                .to_owned()
        });
        firsts
            .flat_map(|cell| cell.split("`, `").map(str::to_owned).collect::<Vec<_>>())
            .collect()
    };
    let mut rules: Vec<String> = page
        .split("\n## ")
        .next()
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .take(3)
        .map(str::to_owned)
        .collect();
    rules.extend(snippets("Functions"));
    rules.extend(
        snippets("Conditions")
            .iter()
            .map(|text| format!("f: {}", text.replace("\\|", "|"))),
    );
    let values = snippets("Values");
    rules.extend(values.iter().map(|text| format!("f; record {text}")));
    let without = part("Without debug information");
    rules.extend(
        without
            .lines()
            .filter_map(|line| line.strip_prefix("    "))
            .map(str::to_owned),
    );
    assert!(rules.len() > 50, "{rules:?}");
    for text in rules {
        if let Err(error) = Rule::parse(&text) {
            panic!("{error}");
        }
    }
    let file: String = part("A file of rules")
        .lines()
        .filter_map(|line| line.strip_prefix("    ").or(line.is_empty().then_some("")))
        .map(|line| format!("{line}\n"))
        .collect();
    let file = RulesFile::parse(&file, "rules.toml").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(file.rules.len(), 2);
}

fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        any::<u64>().prop_map(|n| n.to_string()),
        (0u64..1 << 50).prop_map(|n| format!("{n}ns")),
        any::<f32>()
            .prop_filter("finite", |x| x.is_finite() && *x >= 0.0)
            .prop_map(|x| format!("{:?}", f64::from(x))),
        "[a-z]{1,4}_".prop_map(|name| name),
        (1u32..9).prop_map(|n| format!("arg{n}:i32")),
        prop::sample::select(vec![
            "ret", "errno", "duration", "waiting", "thread", "null", "true", "'x'", "ret:str"
        ])
        .prop_map(str::to_owned),
        "\"[ -~]{0,6}\"".prop_filter("closed", |s| Rule::parse(&format!("f: n == {s}")).is_ok()),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            (inner.clone(), "[a-z]{1,3}_").prop_map(|(of, name)| format!("({of}).{name}")),
            (inner.clone(), "[a-z]{1,3}_").prop_map(|(of, name)| format!("({of})->{name}")),
            (inner.clone(), inner.clone()).prop_map(|(of, i)| format!("({of})[{i}]")),
            (
                inner.clone(),
                inner.clone(),
                prop::sample::select(vec!["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"])
            )
                .prop_map(|(a, b, op)| format!("({a} {op} {b})")),
            inner.clone().prop_map(|a| format!("-({a})")),
            inner.clone().prop_map(|a| format!("*({a})")),
            inner.clone().prop_map(|a| format!("exit({a})")),
            inner.prop_map(|a| format!("len({a})")),
        ]
    })
}

fn condition() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        (
            value(),
            value(),
            prop::sample::select(vec!["==", "!=", "<", "<=", ">", ">="])
        )
            .prop_map(|(a, b, op)| format!("{a} {op} {b}")),
        (value(), "[a-z.*]{0,5}")
            .prop_filter("a regular expression", |(_, r)| regex::Regex::new(r)
                .is_ok())
            .prop_map(|(a, r)| format!("{a} =~ /{r}/")),
        (1u64..100).prop_map(|n| format!("every {n}")),
        "[a-z]{1,4}_".prop_map(|name| format!("caller {name}")),
        "[a-z]{1,4}_".prop_map(|name| format!("above \"^{name}\"")),
        "[a-z]{1,4}_".prop_map(|name| format!("while {name}")),
        Just("exception".to_owned()),
    ];
    leaf.prop_recursive(4, 16, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} and {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} || {b})")),
            inner.prop_map(|a| format!("not ({a})")),
        ]
    })
}

proptest! {
    #[test]
    fn a_rule_that_is_written_out_reads_as_the_same(condition in condition(), record in prop::collection::vec(value(), 0..3)) {
        let mut text = format!("f: {condition}");
        if !record.is_empty() {
            text += &format!("; record {}", record.join(", "));
        }
        let rule = Rule::parse(&text).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let again = Rule::parse(&rule.to_string()).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(rule, again);
    }

    #[test]
    fn no_text_is_more_than_refused(text in "\\PC{0,60}") {
        let _ = Rule::parse(&text);
        let _ = RulesFile::parse(&text, "rules.toml");
    }

    #[test]
    fn no_text_of_the_languages_own_words_is_more_than_refused(
        words in prop::collection::vec(prop::sample::select(vec![
            "f", ":", ";", "record", "(", ")", "[", "]", ".", "->", "and", "or", "not", "!", "==", "=~", "/", "\"", "'", "5ms", "1",
            "1.5", "arg1", "ret", ":int", "every", "first", "at most 3/s", "caller", "above", "while", "is", "null", "..", "-", "*", "ä", "::",
        ]), 0..20),
    ) {
        let _ = Rule::parse(&words.join(" "));
        let _ = Rule::parse(&words.concat());
    }
}
