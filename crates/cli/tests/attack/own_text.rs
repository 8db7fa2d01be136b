//! A program whose text is not what its file says when it begins, as after another tool's
//! breakpoint: that is found while the text is written, when half of it is patched already.

use crate::support::build::{Build, Program};
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{export, refuse, through};
use std::time::Duration;

const UNTOUCHED: &str = "victim 2, chosen 3, 1 bytes differ\n";
const REASON: &str = "is not what its file says";

fn program() -> Program {
    let program = Build::simple("own_text.c");
    let (plain, _) = Live::start(&program.path, &[]).wait(Duration::from_secs(60));
    assert_eq!(plain, UNTOUCHED, "by itself");
    program
}

#[test]
fn a_command_with_foreign_text_is_ended_before_it_begins() {
    let program = program();
    let scratch = Scratch::new();
    let file = &scratch.word("refused.thalweg");
    let path = &program.path.display().to_string();
    // Nothing on its standard output: `refuse` asks for that.
    let message = refuse(&["record", "-q", "-o", file, "--", path]);
    assert!(message.contains(REASON), "{message}");
    assert!(!std::path::Path::new(file).exists());
}

/// It is not ours to end: all patches are taken back, from its ledger, and it runs as it is.
#[test]
fn a_followed_program_with_foreign_text_gets_it_back_as_it_was() {
    let program = program();
    let scratch = Scratch::new();
    let file = scratch.join("followed.thalweg");
    let output = through(env!("CARGO_BIN_EXE_thalweg"))
        .args(["record", "-q", "--no-report", "-o"])
        .arg(&file)
        .args(["--", "sh", "-c", "\"$0\"; echo after"])
        .arg(&program.path)
        .output()
        .expect("thalweg starts");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("{UNTOUCHED}after\n")
    );
    let profile = export(&file);
    let mut notes = profile.notes.iter();
    assert!(
        notes.any(|note| note.contains("own_text") && note.contains(REASON)),
        "{:?}",
        profile.notes
    );
}
