//! Keys pressed, screens read.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use thalweg_model::{
    FuncId, Function, Module, Node, NodeFlags, ProbeState, Process, Profile, SampledFunction,
    Switched, Thread,
};

use super::{Probes, State, Wish, draw};

/// main -> { parse 300, run -> eval 600 }, each figure times `rounds`.
fn profile(rounds: u64) -> Profile {
    let node = |parent, function, calls: u64, self_ns: u64, total_ns: u64| Node {
        parent,
        function,
        calls: calls * rounds,
        self_ns: self_ns * rounds,
        total_ns: total_ns * rounds,
        ..Node::default()
    };
    let mut profile = Profile {
        modules: vec![Module {
            name: "demo".into(),
            ..Module::default()
        }],
        functions: ["main", "parse", "run", "eval"]
            .map(|name| Function {
                name: name.into(),
                ..Function::default()
            })
            .to_vec(),
        processes: vec![Process {
            pid: 7,
            threads: vec![Thread {
                tid: 7,
                name: "demo".into(),
                nodes: vec![
                    node(None, FuncId(0), 1, 100, 1000),
                    node(Some(0), FuncId(1), 3, 300, 300),
                    node(Some(0), FuncId(2), 2, 0, 600),
                    node(Some(2), FuncId(3), 50, 600, 600),
                ],
                ..Thread::default()
            }],
            ..Process::default()
        }],
        ..Profile::default()
    };
    profile.meta.timed = true;
    profile.meta.duration_ns = rounds * 1_000_000_000;
    profile
}

fn screen(state: &mut State) -> String {
    let mut terminal = Terminal::new(TestBackend::new(100, 14)).unwrap();
    terminal.draw(|frame| draw(state, frame)).unwrap();
    terminal.backend().to_string()
}

/// Names in the order in which their rows stand.
fn names(state: &mut State) -> Vec<String> {
    state.rows.iter().map(|row| row.name.clone()).collect()
}

fn press(state: &mut State, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '>' => KeyCode::Right,
            '<' => KeyCode::Left,
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            key => KeyCode::Char(key),
        };
        assert_eq!(state.key(KeyEvent::from(code)), Wish::Stay);
    }
}

fn state() -> State {
    State::new(profile(1), "demo".into())
}

#[test]
fn functions_are_sorted_by_what_was_asked_for() {
    let mut state = state();
    assert_eq!(names(&mut state), ["eval", "parse", "main", "run"]);
    press(&mut state, "s");
    assert_eq!(names(&mut state), ["main", "eval", "run", "parse"]);
    press(&mut state, "s");
    assert_eq!(names(&mut state), ["eval", "parse", "run", "main"]);
    press(&mut state, "s");
    assert_eq!(names(&mut state), ["eval", "main", "parse", "run"]);
    assert!(screen(&mut state).contains("sorted by name"));
}

#[test]
fn the_tree_opens_and_closes_row_by_row() {
    let mut state = state();
    press(&mut state, "2");
    assert_eq!(names(&mut state), ["thread 7 demo"]);
    press(&mut state, ">j>");
    assert_eq!(names(&mut state), ["thread 7 demo", "main", "parse", "run"]);
    press(&mut state, "<");
    assert_eq!(names(&mut state), ["thread 7 demo", "main"]);
    press(&mut state, "<<");
    assert_eq!(names(&mut state), ["thread 7 demo"]);
    press(&mut state, "x");
    assert!(names(&mut state).contains(&"eval".to_string()));
}

#[test]
fn a_search_shows_matches_and_what_leads_to_them() {
    let mut state = state();
    press(&mut state, "/EVA\n");
    assert_eq!(names(&mut state), ["eval"]);
    press(&mut state, "2");
    assert_eq!(names(&mut state), ["thread 7 demo", "main", "run", "eval"]);
    press(&mut state, "\x1b1");
    assert_eq!(names(&mut state).len(), 4);
}

#[test]
fn a_frozen_screen_stays_and_a_running_one_follows() {
    let mut state = state();
    state.feed(profile(2));
    assert!(
        screen(&mut state).contains("112 calls (56/s)"),
        "{}",
        screen(&mut state)
    );
    press(&mut state, " ");
    let frozen = screen(&mut state);
    assert!(frozen.contains("[frozen]"));
    state.feed(profile(9));
    assert_eq!(screen(&mut state), frozen);
    press(&mut state, " ");
    state.feed(profile(10));
    assert!(screen(&mut state).contains("560 calls"));
}

#[test]
fn what_happens_now_is_the_difference_of_two_readings() {
    let mut state = state();
    state.feed(profile(4));
    assert_eq!(state.rows[0].name, "eval");
    assert_eq!(
        (state.rows[0].calls, state.rows[0].self_ns),
        (Some(150), 1800)
    );
    state.feed(profile(5));
    assert_eq!(state.rows[0].sparks, "\u{2588}\u{2583}");
    press(&mut state, "d");
    assert_eq!(
        (state.rows[0].calls, state.rows[0].self_ns),
        (Some(250), 3000)
    );
}

#[test]
fn a_key_switches_the_selected_function_and_what_came_of_it_is_said() {
    let mut state = state();
    let key = |code| {
        KeyEvent::new(
            KeyCode::Char(code),
            ratatui::crossterm::event::KeyModifiers::NONE,
        )
    };
    assert_eq!(state.key(key('o')), Wish::Switch(FuncId(3), Probes::Off));
    state.say("eval is off");
    assert!(screen(&mut state).contains("eval is off"));
    state.end("it has ended".into());
    assert_eq!(state.key(key('o')), Wish::Stay);
}

/// The same with `eval` off for three quarters of the time and never counted: what is known of it comes from samples.
fn sampled() -> Profile {
    let mut profile = profile(1);
    let eval = &mut profile.processes[0].threads[0].nodes[3];
    eval.calls = 0;
    eval.flags |= NodeFlags::SAMPLED;
    profile.switched.push(Switched {
        function: FuncId(3),
        state: ProbeState::Off,
        off_ns: 750_000_000,
        ..Switched::default()
    });
    profile.sampled.push(SampledFunction {
        function: FuncId(3),
        own: 60,
        on_stack: 61,
        error_ns: 155,
        total_error_ns: 155,
        ..SampledFunction::default()
    });
    profile
}

#[test]
fn what_comes_from_looks_has_an_error_and_says_so() {
    let mut state = State::new(sampled(), "demo".into());
    let text = screen(&mut state);
    let eval = text.lines().find(|line| line.contains("eval")).unwrap();
    let words: Vec<&str> = eval.split_whitespace().collect();
    assert_eq!(
        words[1..4],
        ["-", "600", "ns"],
        "no calls are known: {eval}"
    );
    assert!(
        eval.contains(" 155 ns ") && text.contains("Error"),
        "{text}"
    );
    assert!(eval.contains("eval [off 75%, 61 samples]"), "{eval}");
    assert!(
        !text.contains("parse ["),
        "what is exact has no mark: {text}"
    );
    press(&mut state, "2x");
    let tree = screen(&mut state);
    assert!(tree.contains("eval [by samples]"), "{tree}");
    assert!(!tree.contains("Error"), "{tree}");
    assert!(!screen(&mut State::new(profile(1), "demo".into())).contains("Error"));
}

#[test]
fn the_selected_row_stays_selected_while_others_move() {
    let mut state = state();
    press(&mut state, "jj");
    assert_eq!(state.row().unwrap().name, "main");
    press(&mut state, "s");
    assert_eq!(state.row().unwrap().name, "main");
    state.feed(profile(3));
    assert_eq!(state.row().unwrap().name, "main");
}

#[test]
fn any_size_of_terminal_is_drawn() {
    for (width, height) in [(1, 1), (5, 3), (20, 4), (300, 80)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let mut state = state();
        press(&mut state, "2x?");
        terminal.draw(|frame| draw(&mut state, frame)).unwrap();
    }
}

#[test]
fn q_quits() {
    assert_eq!(state().key(KeyEvent::from(KeyCode::Char('q'))), Wish::Quit);
}

#[test]
fn the_callers_of_a_function_open_and_one_goes_back() {
    let mut state = state();
    press(&mut state, "w");
    let opened = names(&mut state);
    assert_eq!(opened[..3], ["callers of eval", "eval", "run"]);
    assert_eq!(opened.last().map(String::as_str), Some("main"));
    assert!(screen(&mut state).contains("Callers"));
    press(&mut state, "w");
    assert_eq!(names(&mut state), ["eval", "parse", "main", "run"]);
}

#[test]
fn the_keys_fit_on_eighty_columns() {
    let mut state = state();
    let mut terminal = Terminal::new(TestBackend::new(80, 14)).unwrap();
    terminal.draw(|frame| draw(&mut state, frame)).unwrap();
    assert!(terminal.backend().to_string().contains("q quit"));
}
