//! Makes the corpus: small real inputs for every driver, out of the sources in `seeds` and of what `thalweg` makes of them.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::unistd::{Whence, lseek64};
use thalweg_bytecode::{Header, Out, Status};
use thalweg_fuzz::{corpus, image_of, named};
use thalweg_ptrace::proc::Pid;
use thalweg_region::memory::{self, Shared};

const PAGE: u64 = 4096;

const PERF: &str = include_str!("../seeds/two-threads.perf");
const CHROME: &str = include_str!("../seeds/two-threads.chrome");

const RULES: &str = "\
redact = [\"password\"]
[[rule]]
rule = \"handle: duration > 5ms && arg(0) != 0; record args, ret\"
";

const RULE_LINES: &str = "\
/^db::|^main$/: duration >= 1ms || threw; record args, ret
libc.so.6!read: ret < 0 && errno == 4; record arg(0), arg(2)
handle: job->size > 3 && text == \"more\"; record text, *job, share
";

fn save(target: &str, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let folder = corpus::folder(named(target).context("no such target")?);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), bytes)?;
    println!("{target}/{name}: {} bytes", bytes.len());
    Ok(())
}

fn succeed(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("{command:?} failed");
    }
    Ok(output.stdout)
}

/// What gcc makes of a source in `seeds`.
fn compiled(source: &str, flags: &[&str]) -> anyhow::Result<PathBuf> {
    let from = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("seeds")
        .join(source);
    let name = format!("fuzz-{}-{source}.out", std::process::id());
    let to = std::env::temp_dir().join(name);
    // Seeds name no folder of the machine that made them.
    let mapped = concat!(
        "-ffile-prefix-map=",
        env!("CARGO_MANIFEST_DIR"),
        "=/srv/build/fuzz"
    );
    let mut gcc = Command::new("gcc");
    succeed(gcc.args(flags).arg(mapped).arg(from).arg("-o").arg(&to))?;
    Ok(to)
}

pub fn make(thalweg: &Path) -> anyhow::Result<()> {
    programs()?;
    texts()?;
    let worker = compiled("worker.c", &["-O1", "-g"])?;
    files(thalweg, &worker)?;
    region(thalweg, &worker)
}

fn programs() -> anyhow::Result<()> {
    let bare = [
        "-nostdlib",
        "-shared",
        "-fPIC",
        "-Wl,--build-id=none",
        "-Wl,-z,noseparate-code",
    ];
    let with = |more: &[&'static str]| [&bare[..], more].concat();
    let debug = fs::read(compiled("small.c", &with(&["-O2", "-g", "-gz=none"]))?)?;
    let plain = fs::read(compiled("small.c", &with(&["-O2"]))?)?;
    let bare = fs::read(compiled("small.c", &with(&["-O2", "-s"]))?)?;
    save("elf", "plain", &plain)?;
    save("elf", "stripped", &bare)?;
    save("dwarf", "version5", &debug)?;
    let version4 = compiled("small.c", &with(&["-O1", "-gdwarf-4", "-gz=none"]))?;
    save("dwarf", "version4", &fs::read(version4)?)?;
    save("unwind", "plain", &plain)?;
    let frames = compiled("small.c", &with(&["-O0", "-fno-omit-frame-pointer"]))?;
    save("unwind", "frames", &fs::read(frames)?)?;
    let go = compiled("pclntab.S", &with(&[]))?;
    save("pclntab", "three", &fs::read(go)?)
}

fn texts() -> anyhow::Result<()> {
    save("perf", "two-threads", PERF.as_bytes())?;
    save("chrome", "two-threads", CHROME.as_bytes())?;
    save("rules", "file", RULES.as_bytes())?;
    save("rules", "lines", RULE_LINES.as_bytes())?;
    let code: Vec<u8> = (0..=112).collect();
    let header = Header {
        entry_len: 60,
        exit_len: 53,
        ..Header::default()
    };
    let mut program = header.write().to_vec();
    program.extend(&code);
    save("bytecode", "every-operation", &program)
}

/// Profiles, and what is exported of them.
fn files(thalweg: &Path, worker: &Path) -> anyhow::Result<()> {
    let profile = worker.with_extension("profile");
    succeed(
        Command::new("timeout")
            .args(["-s", "INT", "0.4"])
            .arg(thalweg)
            .args([
                "record",
                "-q",
                "-F",
                "^(handle|branch|leaf|main)$",
                "--call-sites",
            ])
            .args(["--rule", "handle: duration >= 0ns; record args, ret", "-o"])
            .arg(&profile)
            .arg("--")
            .arg(worker),
    )
    .or_else(|error| {
        if profile.exists() {
            Ok(Vec::new())
        } else {
            Err(error)
        }
    })?;
    let file = fs::read(&profile)?;
    // Behind the head, before the checksum.
    let body = zstd::decode_all(&file[28..file.len() - 8])?;
    save("profile", "recorded", &body)?;
    let export = |format: &str| {
        let mut command = Command::new(thalweg);
        command.args(["export", "--format", format, "-i"]);
        succeed(command.arg(&profile))
    };
    save("callgrind", "exported", &export("callgrind")?)?;
    save("folded", "exported", &export("folded")?)?;
    let packed = worker.with_extension("pprof");
    fs::write(&packed, export("pprof")?)?;
    let plain = succeed(Command::new("gzip").arg("-dcf").arg(&packed))?;
    save("pprof", "exported", &plain)?;
    let imported = worker.with_extension("folded");
    fs::write(&imported, "main;a;b;a 10\nmain;c 5\nother;b 7\n")?;
    let mut command = Command::new(thalweg);
    command.args(["import", "-q"]).arg(&imported).arg("-o");
    succeed(command.arg(&profile))?;
    let file = fs::read(&profile)?;
    save(
        "profile",
        "imported",
        &zstd::decode_all(&file[28..file.len() - 8])?,
    )
}

/// The memory of a program that is attached to.
fn region(thalweg: &Path, worker: &Path) -> anyhow::Result<()> {
    let mut target = Command::new(worker).spawn()?;
    let made = region_of(thalweg, target.id());
    target.kill()?;
    target.wait()?;
    made
}

fn region_of(thalweg: &Path, pid: u32) -> anyhow::Result<()> {
    let id = pid.to_string();
    std::thread::sleep(Duration::from_millis(100));
    succeed(
        Command::new(thalweg)
            .args([
                "attach",
                &id,
                "-F",
                "^(handle|branch|leaf|main)$",
                "--call-sites",
            ])
            .args(["--rule", "handle: duration >= 0ns; record args, ret"]),
    )?;
    std::thread::sleep(Duration::from_millis(20));
    let (_, shared, header) = memory::find(Pid(pid as i32))?.context("it is attached")?;
    let Shared::File { file, len } = &shared else {
        bail!("the memory cannot be opened: run this as root");
    };
    let image = image_of(file, *len, pages(file, *len)?.into_iter())?;
    save("region", "attached", &image.encode())?;
    let ledger = shared.read_vec(header.ledger_offset, header.ledger_len)?;
    save("ledger", "attached", &zstd::decode_all(&*ledger)?)?;
    let about = thalweg_instrument::call_rules::tables::about(&shared, &header)?;
    let mut values = serde_json::to_vec(&about.descriptions)?;
    values.push(b'\n');
    let mut room = [0; 200];
    let mut out = Out::new(&mut room);
    for id in 0..about.descriptions.len() as u16 {
        out.push(id, Status::from_byte(0), &[7; 12]);
    }
    values.extend(out.written());
    save("values", "read", &values)?;
    succeed(Command::new(thalweg).args(["detach", &id]))?;
    Ok(())
}

/// Where pages of a sparse file that exist begin.
fn pages(file: &File, len: u64) -> anyhow::Result<Vec<u64>> {
    let mut pages = Vec::new();
    let mut at = 0;
    while at < len {
        let Ok(start) = lseek64(file, at as i64, Whence::SeekData) else {
            break;
        };
        let end = lseek64(file, start, Whence::SeekHole)?;
        pages.extend((start as u64..end as u64).step_by(PAGE as usize));
        at = end as u64;
    }
    anyhow::ensure!(file.metadata()?.blocks() > 0 && !pages.is_empty());
    Ok(pages)
}
