//! Profiles, stores and the two programs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;
use thalweg_model::Profile;

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// `thalweg` itself, built where it is not; THALWEG_BINARY names one that is.
pub fn thalweg() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(built) = std::env::var_os("THALWEG_BINARY") {
            return built.into();
        }
        let target = root().join("target");
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "thalweg", "--target-dir"])
            .arg(&target)
            .current_dir(root())
            .status()
            .expect("cargo");
        assert!(built.success());
        target.join("debug/thalweg")
    })
}

/// What sqlite3 did with a question of so many steps.
pub fn recorded(steps: u32) -> &'static Path {
    static RECORDED: [OnceLock<(TempDir, PathBuf)>; 2] = [OnceLock::new(), OnceLock::new()];
    let (_, path) = RECORDED[usize::from(steps > 1000)].get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sqlite.thalweg");
        let sql = format!("with recursive c(x) as (select 1 union all select x+1 from c where x<{steps}) select sum(x) from c;");
        let status = Command::new(thalweg())
            .args(["record", "--quiet", "-o"])
            .arg(&path)
            .args(["--", "sqlite3", ":memory:", &sql])
            .env("THALWEG_NO_CALIBRATE", "1")
            .env("THALWEG_CACHE", "off")
            .stdout(std::process::Stdio::null())
            .status()
            .expect("thalweg runs");
        assert!(status.success());
        (folder, path)
    });
    path
}

pub fn profile(steps: u32) -> Profile {
    thalweg_model::read_file(recorded(steps)).expect("a profile")
}

/// The same recording, as if it had been made then.
pub fn dated(folder: &Path, steps: u32, time: &str) -> PathBuf {
    let mut profile = profile(steps);
    let time: jiff::Timestamp = time.parse().expect("a time");
    profile.meta.created_unix_ns = time.as_nanosecond() as u64;
    let path = folder.join(format!("{steps}-{}.thalweg", time.as_second()));
    thalweg_model::write_file(&path, &profile).expect("written");
    path
}

/// The companion, with no settings of the user's.
pub fn fleet() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg-fleet"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    command.env("HOME", "/nonexistent");
    command
}

pub fn run(command: &mut Command) -> Output {
    command.output().expect("it runs")
}

#[track_caller]
pub fn succeed(command: &mut Command) -> String {
    let output = run(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The message.
#[track_caller]
pub fn refuse(command: &mut Command) -> String {
    let output = run(command);
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{command:?}: {errors}");
    assert!(!errors.contains("panicked"), "{errors}");
    errors
}

pub fn push(store: &str, host: &str, file: &Path) -> Command {
    let mut command = fleet();
    command
        .args([
            "push",
            "--quiet",
            "--to",
            store,
            "--service",
            "db",
            "--release",
            "r1",
            "--host",
            host,
        ])
        .arg(file);
    command
}

/// Rows of an answer as lines of CSV, without the head.
#[track_caller]
pub fn ask(store: &str, sql: &str) -> Vec<String> {
    let csv = succeed(fleet().args(["query", sql, "--from", store, "--format", "csv"]));
    csv.lines().skip(1).map(str::to_owned).collect()
}

/// Calls and own time of each function, as this profile's export has them.
pub fn totals(profile: Profile) -> BTreeMap<(String, String), (u64, u64)> {
    let patterns = thalweg_analysis::Patterns {
        runtime_frames: thalweg_analysis::RuntimeFrames::Shown,
        ..Default::default()
    };
    let pipeline = thalweg_analysis::Pipeline {
        patterns,
        ..Default::default()
    };
    let profile = pipeline.run(profile).expect("figures");
    let mut totals: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
    for row in thalweg_analysis::flat(&profile) {
        let function = &profile.functions[row.function];
        let module = profile.modules[function.module as usize].name.clone();
        let sum = totals.entry((function.name.clone(), module)).or_default();
        sum.0 += row.calls;
        sum.1 += row.self_ns;
    }
    totals
}

/// The same out of a store.
#[track_caller]
pub fn stored_totals(store: &str, condition: &str) -> BTreeMap<(String, String), (u64, u64)> {
    let sql = format!(
        "select c.function as function, c.module as module, sum(f.calls) as calls, sum(f.self_ns) as self_ns \
         from figures f join contexts c on f.tree = c.tree and f.node = c.node where {condition} group by 1, 2"
    );
    let json = succeed(fleet().args(["query", &sql, "--from", store, "--format", "json"]));
    let rows = json
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    rows.map(|row| {
        let text = |name: &str| row[name].as_str().expect("text").to_owned();
        let number = |name: &str| row[name].as_u64().expect("a number");
        (
            (text("function"), text("module")),
            (number("calls"), number("self_ns")),
        )
    })
    .collect()
}

pub fn times(
    totals: BTreeMap<(String, String), (u64, u64)>,
    factor: u64,
) -> BTreeMap<(String, String), (u64, u64)> {
    totals
        .into_iter()
        .map(|(key, (calls, own))| (key, (calls * factor, own * factor)))
        .collect()
}

pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path => files.push(path),
            }
        }
    }
    files.sort();
    files
}

pub struct Place(pub TempDir);

impl Place {
    pub fn new() -> Place {
        Place(tempfile::tempdir().expect("a folder"))
    }

    pub fn store(&self) -> String {
        self.0
            .path()
            .join("store")
            .to_str()
            .expect("UTF-8")
            .to_owned()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}
