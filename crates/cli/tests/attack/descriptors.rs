//! A target that puts other files in the place of what thalweg made in it: nothing but its own memory is ever written to.

use crate::support::build::Build;
use crate::support::in_short_or_long;
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::text::{assert_restored, compare};
use crate::support::thalweg::{text, thalweg};
use std::path::Path;
use std::time::Duration;

/// Attaches again and again while the target's sibling swaps descriptors.
#[track_caller]
fn attach_while_swapped(other: &str, mut check: impl FnMut()) {
    let program = Build::simple("swapping.c");
    let mut live = Live::ready(&program.path, &[other]);
    let before = live.text();
    let mut swaps = 0;
    // Until the attack has come off a few times, as far as this machine lets it.
    for round in 0..in_short_or_long(20, 200) {
        let output = thalweg(&["attach", "--budget", "off", "-q", &live.id()]);
        check();
        live.assert_healthy();
        if output.status.success() {
            let output = thalweg(&["detach", "-q", &live.id()]);
            assert!(output.status.success(), "round {round}: {}", text(&output));
        } else {
            let said = text(&output);
            assert_eq!(output.status.code(), Some(2), "round {round}: {said}");
            assert!(!said.contains("panicked"), "round {round}: {said}");
        }
        assert_restored(&before, &live.text());
        let (_, added) = compare(&before, &live.text());
        assert!(added.is_empty(), "round {round}: {added:?}");
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", live.id())).expect("it lives");
        assert!(!maps.contains("memfd:thalweg"), "round {round}: {maps}");
        swaps = live.ask("swaps?").parse().expect("a number");
        if swaps >= 8 {
            break;
        }
    }
    eprintln!("{swaps} descriptors were swapped");
    let (words, status) = live.wait(Duration::from_secs(60));
    assert!(
        status.success() && words.contains("OK"),
        "{status}: {words}"
    );
}

#[test]
fn a_swapped_descriptor_leads_to_no_file_of_somebody_else() {
    let scratch = Scratch::new();
    let victim = scratch.join("victim");
    std::fs::write(&victim, "precious").expect("the victim is written");
    attach_while_swapped(victim.to_str().expect("UTF-8"), || {
        assert_eq!(
            std::fs::read(&victim).expect("the victim is read"),
            b"precious"
        );
    });
}

#[test]
fn a_memfd_of_the_attackers_own_is_no_better() {
    attach_while_swapped("-", || ());
}

/// The first words of a shared memory that claims to be attached, for a region at `base`.
fn header(base: u64, len: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(thalweg_abi::MAGIC.to_le_bytes());
    bytes.extend(thalweg_abi::VERSION.to_le_bytes());
    bytes.extend(thalweg_abi::STATE_ATTACHED.to_le_bytes());
    bytes.extend(base.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.resize(len as usize, 0);
    bytes
}

#[test]
fn a_file_that_is_mapped_under_our_name_is_not_written_to() {
    let scratch = Scratch::new();
    let (victim, folder) = (scratch.join("victim"), scratch.join("root"));
    std::fs::create_dir(&folder).expect("a folder");
    const START: u64 = 0x4000_0000_0000;
    let before = header(START - thalweg_abi::PRIVATE_SIZE, 1 << 20);
    std::fs::write(&victim, &before).expect("the victim is written");
    let program = Build::simple("posing.c");
    let arguments = [&victim, &folder].map(|path: &std::path::PathBuf| word(path));
    let address = format!("{START:x}");
    let mut live = Live::start(&program.path, &[&arguments[0], &arguments[1], &address]);
    if live.line() != "ready" {
        eprintln!("skipped: no mount namespaces here");
        return;
    }
    for command in ["status", "detach", "attach"] {
        let output = thalweg(&[command, &live.id()]);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{command}: {}",
            text(&output)
        );
        let after = std::fs::read(&victim).expect("the victim is read");
        assert!(after == before, "{command} wrote to it");
        live.assert_healthy();
    }
    live.tell("");
    let (words, status) = live.wait(Duration::from_secs(60));
    assert!(
        status.success() && words.contains("OK"),
        "{status}: {words}"
    );
}

fn word(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}
