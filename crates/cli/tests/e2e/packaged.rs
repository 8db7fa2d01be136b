//! The Debian package holds a thalweg that works where it is installed, its man pages and completions, and goes away whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::scratch::Scratch;
use crate::support::thalweg::through;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// dpkg on a system of its own, which has what this one has, so that dependencies count.
fn dpkg(root: &Path, arguments: &[&str]) {
    run(Command::new("dpkg")
        .arg(format!("--root={}", root.display()))
        .args(["--force-not-root", "--force-script-chrootless"])
        .args(arguments));
}

/// What is installed, without dpkg's own records.
fn files(root: &Path) -> Vec<String> {
    let listed = run(Command::new("find")
        .arg(root)
        .args(["(", "-type", "f", "-o", "-type", "l", ")"])
        .args(["-not", "-path", "*/var/*", "-printf", "%P\n"]));
    let mut files: Vec<String> = listed.lines().map(str::to_owned).collect();
    files.sort();
    files
}

#[test]
fn the_debian_package_is_installed_works_and_goes_away() {
    let scratch = Scratch::new();
    let search = format!(
        "{}:{}",
        top().join(".ci/consumers/bin").display(),
        std::env::var("PATH").expect("PATH")
    );
    run(through(top().join("packaging/deb"))
        .args([env!("CARGO_BIN_EXE_thalweg"), &scratch.word("built")])
        .env("PATH", search));
    let built = scratch.join("built");
    let package = fs::read_dir(&built)
        .expect("the package's directory")
        .next()
        .expect("a package")
        .expect("entry")
        .path();

    let root = scratch.join("root");
    fs::create_dir_all(root.join("var/lib/dpkg/info")).expect("created");
    fs::create_dir_all(root.join("var/lib/dpkg/updates")).expect("created");
    fs::copy("/var/lib/dpkg/status", root.join("var/lib/dpkg/status")).expect("copied");
    dpkg(&root, &["--install", package.to_str().expect("UTF-8")]);

    let installed = files(&root);
    for wanted in [
        "usr/bin/thalweg",
        "usr/share/bash-completion/completions/thalweg",
        "usr/share/fish/vendor_completions.d/thalweg.fish",
        "usr/share/man/man1/thalweg.1.gz",
        "usr/share/zsh/vendor-completions/_thalweg",
        "usr/share/doc/thalweg/copyright",
    ] {
        assert!(
            installed.iter().any(|f| f == wanted),
            "{wanted}: {installed:#?}"
        );
    }

    let thalweg = root.join("usr/bin/thalweg");
    // A page of the manual for each command that the help lists.
    let help = run(Command::new(&thalweg).arg("--help"));
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| line.starts_with("  "))
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|&command| command != "help")
        .collect();
    assert!(commands.len() > 10, "{help}");
    for command in &commands {
        let page = format!("usr/share/man/man1/thalweg-{command}.1.gz");
        assert!(installed.contains(&page), "{page}: {installed:#?}");
    }
    // Bash completes them.
    let script = root.join("usr/share/bash-completion/completions/thalweg");
    let completed = run(Command::new("bash").args([
        "-c",
        "source \"$1\"; COMP_WORDS=(thalweg rec) COMP_CWORD=1; _thalweg thalweg rec thalweg; echo \"${COMPREPLY[@]}\"",
        "bash",
        script.to_str().expect("UTF-8"),
    ]));
    assert_eq!(completed.trim(), "record");
    // It profiles.
    let profile = scratch.word("true.thalweg");
    run(through(&thalweg).args(["record", "-q", "-o", &profile, "--", "true"]));
    let report = run(through(&thalweg).args(["report", "--flat", &profile]));
    assert!(report.contains("main"), "{report}");

    dpkg(&root, &["--purge", "thalweg"]);
    assert_eq!(files(&root), Vec::<String>::new());
}
