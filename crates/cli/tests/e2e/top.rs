//! `thalweg top` in a terminal, on a process that works: what keys do is seen on the screen, and the process is as it was
//! afterwards.

use crate::budget;
use crate::support::build::Build;
use crate::support::live::Live;
use crate::support::screen::Screen;
use crate::support::text::{assert_patched, assert_restored};
use crate::support::thalweg::{succeed, thalweg};
use std::time::Duration;

fn torture() -> Live {
    Live::ready(&Build::simple("torture.c").path, &[])
}

/// The lines of the table, below its title.
fn table(screen: &str) -> Vec<&str> {
    let lines: Vec<&str> = screen.lines().collect();
    let title = lines.iter().position(|line| line.contains("Calls"));
    let end = lines.len().saturating_sub(1);
    title.map_or(Vec::new(), |title| lines[title + 1..end].to_vec())
}

fn calls(line: &str) -> u64 {
    let first = line.split_whitespace().next().unwrap_or_default();
    first.replace(',', "").parse().unwrap_or(0)
}

fn depth(line: &str) -> usize {
    // The name's column is as wide as it is deep; figures stand before it.
    line.len() - line.trim_start().len()
}

#[test]
fn keys_choose_what_the_screen_shows_of_a_working_process() {
    let mut live = torture();
    let before = live.text();
    let id = live.id();
    let mut screen = Screen::start(&["top", "-p", &id, "--budget", "off", "--interval", "200ms"]);

    screen.until("functions", |text| {
        text.contains("Function") && text.contains("fib")
    });
    assert_patched(&before, &live.text());
    screen.until("what happens now", |text| {
        text.contains("now, sorted by self")
    });
    screen.press("d");
    screen.until("totals", |text| text.contains("in all, sorted by self"));

    screen.press("s");
    screen.until("by total", |text| text.contains("sorted by total"));
    screen.press("s");
    // Rows of the moment before may still be on the screen.
    screen.until("by calls", |text| {
        let rows: Vec<u64> = table(text).iter().map(|line| calls(line)).collect();
        let sorted = rows.len() > 5 && rows.is_sorted_by(|a, b| a >= b);
        text.contains("sorted by calls") && sorted
    });

    screen.press("/pong\r");
    let found = screen.until("only pong", |text| text.contains("showing 'pong' only"));
    assert!(
        table(&found)
            .iter()
            .filter(|line| !line.trim().is_empty())
            .all(|line| line.contains("pong")),
        "{found}"
    );
    screen.press("\x1b");
    screen.until("all again", |text| {
        !text.contains("showing") && text.contains("hash")
    });

    screen.press(" ");
    let frozen = screen.until("frozen", |text| text.contains("[frozen]"));
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(screen.text(), frozen, "a frozen picture moves");
    screen.press(" ");
    screen.until("going on", |text| {
        !text.contains("[frozen]") && text != frozen
    });

    screen.press("3");
    let threads = screen.until("threads", |text| text.contains("Thread"));
    let names = table(&threads)
        .iter()
        .filter(|line| calls(line) > 0)
        .count();
    assert!(names >= 8, "{threads}");

    screen.press("2");
    let closed = screen.until("the tree", |text| text.contains("Context"));
    let rows = |text: &str| {
        table(text)
            .iter()
            .filter(|line| !line.trim().is_empty())
            .count()
    };
    let few = rows(&closed);
    screen.press("x");
    let open = screen.until("an open path", |text| rows(text) > few);
    assert!(table(&open).iter().map(|line| depth(line)).max() > Some(0));
    screen.press("\x1b[D");
    screen.until("a closed row", |text| rows(text) < rows(&open));
    screen.press("?");
    screen.until("help", |text| text.contains("open the heaviest path"));

    screen.press("q");
    assert!(screen.wait().success());
    live.assert_healthy();
    assert_restored(&before, &live.text());
    let (words, status) = live.terminate();
    assert!(status.success() && words.starts_with("OK "), "{words}");
}

#[test]
fn an_attached_process_is_only_read_and_its_end_is_told() {
    let mut live = torture();
    let before = live.text();
    succeed(&["attach", "--budget", "off", &live.id()]);
    let mut screen = Screen::start(&["top", "-p", &live.id(), "--interval", "200ms"]);
    screen.until("functions", |text| text.contains("fib"));
    screen.press("q");
    assert!(screen.wait().success());
    live.assert_healthy();
    assert_patched(&before, &live.text());

    let mut screen = Screen::start(&["top", "-p", &live.id(), "--interval", "200ms"]);
    screen.until("functions", |text| text.contains("fib"));
    let (words, status) = live.terminate();
    assert!(status.success(), "{words}");
    let last = screen.until("the end", |text| text.contains("ended"));
    assert!(last.contains("fib"), "its last figures stay: {last}");
    screen.press("q");
    assert!(screen.wait().success());
}

/// Figures that come from samples, as `report -p` has them.
#[track_caller]
fn assert_shows_samples(screen: &mut Screen) {
    screen.until("a function that is off, by samples", |text| {
        let is_estimate = |line: &&str| line.contains(" [off ") && line.contains(" samples]");
        text.contains("Error") && table(text).iter().any(is_estimate)
    });
    screen.press("2/one_round\r");
    screen.until("contexts by samples", |text| text.contains(" [by samples]"));
    screen.press("q");
    assert!(screen.wait().success());
}

#[test]
fn what_is_off_has_its_time_from_samples_whoever_has_attached() {
    for attached in [true, false] {
        let mut live = budget::target();
        let before = live.text();
        let budget = ["--budget", "5%", "--samples", "1999"];
        let mut arguments = vec!["top", "-p", "", "--interval", "200ms"];
        let id = live.id();
        arguments[2] = &id;
        match attached {
            true => drop(succeed(&[&["attach", &id][..], &budget].concat())),
            false => arguments.extend(budget),
        }
        live.tell("go");
        let mut screen = Screen::start(&arguments);
        screen.until("functions", |text| text.contains("Function"));
        // Errors are those of the sums.
        screen.press("d");
        assert_shows_samples(&mut screen);
        if attached {
            let shown = succeed(&["report", "-p", &id, "--flat"]);
            assert!(shown.contains(" samples"), "{shown}");
            succeed(&["detach", &id]);
        }
        assert_restored(&before, &live.text());
        budget::own_counts(&mut live);
        live.tell("end");
        let (_, status) = live.wait(Duration::from_secs(60));
        assert!(status.success(), "{status}");
    }
}

#[test]
fn without_a_terminal_there_is_a_reason_and_nothing_is_attached() {
    let live = torture();
    let before = live.text();
    let output = thalweg(&["top", "-p", &live.id()]);
    assert_ne!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("terminal"));
    assert_restored(&before, &live.text());
}
