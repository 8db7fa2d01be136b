//! Links the freestanding agent into one flat image and writes down where its probes are.
//!
//! The agent is a package of the workspace, a library that the host tests. Its image is compiled here by plain rustc calls
//! with `--cfg freestanding`: cargo cannot build a second, differently linked artefact for the same target.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSection, ObjectSymbol};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let agent = Path::new(thalweg_agent::SOURCE);
    let abi = Path::new(thalweg_abi::SOURCE);
    let bytecode = Path::new(thalweg_bytecode::SOURCE);
    for watched in [
        agent.join("src"),
        agent.join("agent.ld"),
        agent.join("calibration"),
        agent.join("jvmti"),
        agent.join("start"),
        abi.join("src"),
        bytecode.join("src"),
        "build.rs".into(),
    ] {
        println!("cargo::rerun-if-changed={}", watched.display());
    }

    rustc(
        &["--crate-type=rlib", "--crate-name=thalweg_abi"],
        &abi.join("src/lib.rs"),
        &out,
    );
    rustc(
        &["--crate-type=rlib", "--crate-name=thalweg_bytecode"],
        &bytecode.join("src/lib.rs"),
        &out,
    );
    let script = format!("-Clink-arg=-Wl,-T,{}", agent.join("agent.ld").display());
    let shm = format!(
        "--extern=thalweg_abi={}",
        out.join("libthalweg_abi.rlib").display()
    );
    let bytecode = format!(
        "--extern=thalweg_bytecode={}",
        out.join("libthalweg_bytecode.rlib").display()
    );
    rustc(
        &[
            "--crate-type=bin",
            "--crate-name=thalweg_agent",
            // One program: calls between crates would go through a table of addresses.
            "-Clto=fat",
            &shm,
            &bytecode,
            &script,
            "-Clink-arg=-nostdlib",
            "-Clink-arg=-nostartfiles",
            "-Clink-arg=-static",
            "-Clink-arg=-no-pie",
            "-Clink-arg=-Wl,--build-id=none",
        ],
        &agent.join("src/lib.rs"),
        &out,
    );
    describe(&out, "thalweg_agent", "agent");
    let script = format!(
        "-Clink-arg=-Wl,-T,{}",
        agent.join("start/start.ld").display()
    );
    rustc(
        &[
            "--crate-type=bin",
            "--crate-name=thalweg_start",
            "-Clto=fat",
            &shm,
            &script,
            "-Clink-arg=-nostdlib",
            "-Clink-arg=-nostartfiles",
            "-Clink-arg=-static",
            "-Clink-arg=-no-pie",
            "-Clink-arg=-Wl,--build-id=none",
        ],
        &agent.join("start/main.rs"),
        &out,
    );
    describe(&out, "thalweg_start", "start");
    rustc(
        &[
            "--crate-type=bin",
            "--crate-name=thalweg_calibration",
            "-Clink-arg=-nostdlib",
            "-Clink-arg=-nostartfiles",
            "-Clink-arg=-static",
            "-Clink-arg=-no-pie",
        ],
        &agent.join("calibration/main.rs"),
        &out,
    );
    rustc(
        &[
            "--crate-type=cdylib",
            "--crate-name=thalweg_jvm",
            "-Crelocation-model=pic",
            "-Cstrip=symbols",
            "-Clink-arg=-nostdlib",
            "-Clink-arg=-nostartfiles",
            "-Clink-arg=-Wl,--build-id=none",
        ],
        &agent.join("jvmti/main.rs"),
        &out,
    );
}

fn rustc(arguments: &[&str], source: &Path, out: &Path) {
    let mut command = Command::new(env::var_os("RUSTC").expect("cargo sets it"));
    command
        .args([
            "--edition=2024",
            "--cfg=freestanding",
            "-Copt-level=3",
            "-Cpanic=abort",
            "-Crelocation-model=pie",
            "-Ccodegen-units=1",
        ])
        .args([
            "-Coverflow-checks=off",
            "-Cdebug-assertions=off",
            "-Cforce-unwind-tables=no",
            "-Ctarget-cpu=x86-64",
        ])
        .args(arguments)
        .arg("--out-dir")
        .arg(out)
        .arg(source);
    let status = command.status().expect("rustc runs");
    assert!(status.success(), "compiling {} failed", source.display());
}

/// Splits a linked file into `NAME.bin` and a table of symbol offsets, `NAME_symbols.rs`.
fn describe(out: &Path, file: &str, name: &str) {
    let data = fs::read(out.join(file)).expect("the linker wrote it");
    let elf = object::File::parse(&*data).expect("the linker wrote ELF");
    let blob = elf
        .section_by_name(".blob")
        .expect("named in the linker script");
    assert_eq!(blob.address(), 0, "the image must start at 0");
    fs::write(
        out.join(format!("{name}.bin")),
        blob.data().expect("has bytes"),
    )
    .expect("OUT_DIR is writable");
    let mut table = String::new();
    let mut symbols: Vec<_> = elf
        .symbols()
        .filter(|s| s.name().is_ok_and(|n| n.starts_with("tw_")))
        .collect();
    symbols.sort_by_key(|s| s.address());
    for symbol in symbols {
        let name = symbol.name().expect("filtered").to_uppercase();
        writeln!(
            table,
            "#[allow(dead_code)]\npub const {name}: u64 = {:#x};",
            symbol.address()
        )
        .expect("a string");
    }
    fs::write(out.join(format!("{name}_symbols.rs")), table).expect("OUT_DIR is writable");
}
