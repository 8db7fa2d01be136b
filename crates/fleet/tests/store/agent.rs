//! The agent, with real programs under load: what it records gets into the store, and every process
//! is afterwards what it was.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::s3;
use crate::support::{
    Place, ask, fleet, profile, recorded, refuse, stored_totals, succeed, thalweg, totals,
};

/// Nothing depends on it but how soon a failure is told.
const PATIENCE: Duration = Duration::from_secs(180);
const ENDLESS: &str =
    "with recursive c(x) as (select 1 union all select x+1 from c) select sum(x) from c";

#[track_caller]
fn eventually(what: &str, agent: &Agent, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: {}", agent.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A program that computes until it is dropped.
struct Target {
    child: Child,
    /// Of its executable mappings, before anything was done to it.
    code: Vec<u8>,
}

impl Target {
    /// `name`: of a copy of sqlite3, so that a test finds its own.
    fn new(place: &Place, name: &str) -> Target {
        let program = place.path(name);
        if !program.exists() {
            let found = succeed(Command::new("which").arg("sqlite3"));
            fs::copy(found.trim(), &program).expect("copied");
        }
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(&program);
        Target::started(command.args([":memory:", ENDLESS]))
    }

    fn started(command: &mut Command) -> Target {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut target = Target {
            child,
            code: Vec::new(),
        };
        // It computes: all libraries are loaded.
        while target.ticks() < 10 {
            std::thread::sleep(Duration::from_millis(10));
        }
        target.code = target.read_code();
        target
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time.
    fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("it lives");
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        let ticks = fields.split_whitespace().nth(11).expect("a time");
        ticks.parse().expect("a number")
    }

    fn maps(&self) -> String {
        fs::read_to_string(format!("/proc/{}/maps", self.pid())).expect("it lives")
    }

    fn is_attached(&self) -> bool {
        self.maps().contains("/memfd:thalweg")
    }

    fn read_code(&self) -> Vec<u8> {
        let mut memory = fs::File::open(format!("/proc/{}/mem", self.pid())).expect("readable");
        let mut code = Vec::new();
        for line in self.maps().lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if fields.len() < 6 || fields[1] != "r-xp" || !fields[5].starts_with('/') {
                continue;
            }
            let (from, to) = fields[0].split_once('-').expect("a range");
            let number = |text| u64::from_str_radix(text, 16).expect("an address");
            memory.seek(SeekFrom::Start(number(from))).expect("sought");
            let mut bytes = vec![0; (number(to) - number(from)) as usize];
            memory.read_exact(&mut bytes).expect("read");
            code.extend(bytes);
        }
        code
    }

    /// Nothing of ours is in it, and it goes on.
    #[track_caller]
    fn assert_as_it_was(&self) {
        assert!(!self.is_attached(), "process {} is attached", self.pid());
        assert!(self.read_code() == self.code, "its code was changed");
        let before = self.ticks();
        let began = Instant::now();
        while self.ticks() == before {
            assert!(began.elapsed() < PATIENCE, "it stands still");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Agent {
    child: Child,
    log: PathBuf,
}

impl Agent {
    fn start(place: &Place, command: &mut Command) -> Agent {
        let log = place.path("agent.log");
        let to = fs::OpenOptions::new().create(true).append(true).open(&log);
        let child = command
            .env("THALWEG_NO_CALIBRATE", "1")
            .env("THALWEG_CACHE", "off")
            .stdin(Stdio::null())
            .stderr(to.expect("a log"))
            .spawn()
            .expect("it starts");
        Agent { child, log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        succeed(Command::new("kill").args([&format!("-{signal}"), &pid]));
    }

    #[track_caller]
    fn end(mut self, signal: &str) -> ExitStatus {
        self.signal(signal);
        self.child.wait().expect("it ends")
    }
}

impl Drop for Agent {
    /// Of a test that fails: its recorder ends by itself.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Other tests run beside.
const WHILE_BUSY: [&str; 4] = ["--max-load", "off", "--max-pressure", "off"];

/// As often as it can, of processes with this name.
fn command(place: &Place, store: &str, name: &str) -> Command {
    agent(place, store, name, "1s", "400ms")
}

fn agent(place: &Place, store: &str, name: &str, every: &str, duration: &str) -> Command {
    let mut command = bare(place);
    command.args(["--to", store, "--name", &format!("^{name}$")]);
    command.args(["--every", every, "--for", duration]);
    command.args(["--service", "db", "--release", "r1", "--host", "a"]);
    command.args(WHILE_BUSY);
    command
}

fn bare(place: &Place) -> Command {
    let mut command = fleet();
    command.arg("agent").arg("--spool").arg(place.path("spool"));
    command.arg("--thalweg").arg(thalweg());
    command.args(["--keep-free", "0"]);
    command
}

fn spooled(place: &Place) -> Vec<String> {
    let entries = fs::read_dir(place.path("spool"))
        .into_iter()
        .flatten()
        .flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".thalweg")).collect();
    names.sort();
    names
}

fn counter(place: &Place, name: &str) -> u64 {
    let text = fs::read(place.path("spool/counters.json")).unwrap_or_default();
    let counters: Option<serde_json::Value> = serde_json::from_slice(&text).ok();
    counters
        .and_then(|counters| counters[name].as_u64())
        .unwrap_or(0)
}

/// A profile as an agent leaves it that has sent nothing yet; `ms` is when.
fn spool(place: &Place, ms: u64, bytes: &[u8]) -> PathBuf {
    let folder = place.path("spool");
    if !folder.exists() {
        fs::create_dir(&folder).expect("made");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("set");
    }
    let path = folder.join(format!("{ms:013}-1@db@r1@a.thalweg"));
    fs::write(&path, bytes).expect("written");
    path
}

fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("a time").as_millis() as u64
}

/// The recorder of an agent that may have been killed.
fn recorder_of(target: &Target) -> Option<u32> {
    let wanted = format!("\0-p\0{}\0", target.pid());
    let entries = fs::read_dir("/proc").expect("readable").flatten();
    let mut numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.find(|pid: &u32| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.contains("\0record\0") && command.contains(&wanted)
    })
}

#[test]
fn chosen_processes_are_recorded_again_and_again_and_new_ones_too() {
    let place = Place::new();
    let store = place.store();
    let first = Target::new(&place, "twagain");
    let other = Target::new(&place, "twother");
    let agent = Agent::start(&place, &mut command(&place, &store, "twagain"));
    eventually("two profiles", &agent, || counter(&place, "sent") >= 2);
    let second = Target::new(&place, "twagain");
    let pids = || ask(&store, "select distinct pid from figures order by pid");
    let mut expected = [first.pid(), second.pid()];
    expected.sort();
    let expected = expected.map(|pid| pid.to_string());
    eventually("the new process", &agent, || pids() == expected);
    let log = agent.log();
    assert!(agent.end("TERM").success(), "{log}");
    for target in [&first, &second, &other] {
        target.assert_as_it_was();
    }
    assert!(spooled(&place).is_empty(), "{log}");
    let stored = ask(&store, "select count(*) from profiles");
    assert_eq!(stored, [counter(&place, "sent").to_string()]);
    let labels = "select distinct service, release, host from profiles";
    assert_eq!(ask(&store, labels), ["db,r1,a"]);
    assert_eq!(
        ask(&store, "select count(*) from profiles where calls = 0"),
        ["0"]
    );
    let mode = fs::metadata(place.path("spool")).expect("there").mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_file_has_groups_of_processes_and_the_first_that_fits_counts() {
    let place = Place::new();
    let store = place.store();
    let _targets = ["twgroup1", "twgroup2", "twgroup3"].map(|name| Target::new(&place, name));
    let own = fs::read_to_string("/proc/self/cgroup").expect("readable");
    let own = own.lines().next().and_then(|line| line.rsplit(':').next());
    let config = place.path("agent.toml");
    let text = format!(
        "to = '{store}'\nevery = '1s'\nfor = '300ms'\nhost = 'a'\n\
         [[process]]\nname = '^twgroup1$'\nservice = 'one'\n\
         [[process]]\nname = '^twgroup'\nuser = '12345'\nservice = 'nobody'\n\
         [[process]]\nname = '^twgroup'\ncgroup = '/no/such/group'\nservice = 'nowhere'\n\
         [[process]]\ncommand = 'twgroup[12] :memory:'\ncgroup = '^{}$'\nuser = '{}'\nservice = 'two'\n",
        own.expect("a group"),
        fs::metadata("/proc/self").expect("there").uid()
    );
    fs::write(&config, text).expect("written");
    let mut command = bare(&place);
    command.args(WHILE_BUSY).arg("--config").arg(&config);
    let agent = Agent::start(&place, &mut command);
    let services = || {
        let known = place.path("store/thalweg-store.json").exists();
        match known {
            true => ask(&store, "select distinct service from profiles order by 1"),
            false => Vec::new(),
        }
    };
    eventually("both", &agent, || services() == ["one", "two"]);
    eventually("more", &agent, || counter(&place, "sent") >= 6);
    assert_eq!(services(), ["one", "two"]);
    let programs = "select distinct command like '%twgroup1%', service from profiles order by 2";
    assert_eq!(ask(&store, programs), ["true,one", "false,two"]);
    agent.end("TERM");
}

#[test]
fn sigterm_ends_the_recording_and_its_profile_is_sent() {
    for signal in ["TERM", "INT"] {
        let place = Place::new();
        let store = place.store();
        let target = Target::new(&place, "twstop");
        let agent = Agent::start(&place, &mut agent(&place, &store, "twstop", "30s", "30s"));
        eventually("a recording", &agent, || target.is_attached());
        let log = agent.log();
        assert!(agent.end(signal).success(), "{log}");
        target.assert_as_it_was();
        assert!(spooled(&place).is_empty());
        let short = "select count(*) from profiles where duration_ns < 29000000000";
        assert_eq!(ask(&store, short), ["1"], "{log}");
    }
}

#[test]
fn a_killed_agent_loses_nothing_and_leaves_nothing() {
    let place = Place::new();
    let store = place.store();
    let target = Target::new(&place, "twkilled");
    let agent = Agent::start(&place, &mut agent(&place, &store, "twkilled", "4s", "4s"));
    eventually("a recording", &agent, || target.is_attached());
    agent.end("KILL");
    // The recorder goes on without it, and nobody sends what it leaves.
    let began = Instant::now();
    while spooled(&place).is_empty() {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!place.path("store").exists());
    let again = || {
        Agent::start(
            &place,
            &mut self::agent(&place, &store, "twkilled", "9h", "1s"),
        )
    };
    let agent = again();
    eventually("it is sent", &agent, || spooled(&place).is_empty());
    agent.end("TERM");
    assert_eq!(ask(&store, "select count(*) from profiles"), ["1"]);
    target.assert_as_it_was();
}

#[test]
fn what_an_agent_and_its_recorder_left_is_detached_by_the_next_agent() {
    let place = Place::new();
    let store = place.store();
    let target = Target::new(&place, "twleft");
    let agent = Agent::start(&place, &mut agent(&place, &store, "twleft", "5s", "5s"));
    eventually("a recording", &agent, || {
        target.is_attached() && recorder_of(&target).is_some()
    });
    let recorder = recorder_of(&target).expect("it lives").to_string();
    agent.end("KILL");
    succeed(Command::new("kill").args(["-KILL", &recorder]));
    assert!(target.is_attached(), "it was left");
    let agent = Agent::start(
        &place,
        &mut self::agent(&place, &store, "twleft", "9h", "1s"),
    );
    eventually("it is detached", &agent, || {
        agent.log().contains("is detached now")
    });
    agent.end("TERM");
    target.assert_as_it_was();
    assert!(spooled(&place).is_empty(), "no half profile");
}

#[test]
fn a_store_that_is_away_gets_all_later_and_is_not_made_again() {
    let place = Place::new();
    let store = place.store();
    let _target = Target::new(&place, "twaway");
    let agent = Agent::start(&place, &mut command(&place, &store, "twaway"));
    eventually("a profile", &agent, || counter(&place, "sent") >= 1);
    let away = place.path("away");
    fs::rename(&store, &away).expect("moved");
    eventually("three wait", &agent, || spooled(&place).len() >= 3);
    // As a mount point is without its disk.
    fs::create_dir(&store).expect("made");
    let waiting = spooled(&place);
    eventually("three more wait", &agent, || {
        spooled(&place).len() >= waiting.len() + 3
    });
    assert_eq!(fs::read_dir(&store).expect("there").count(), 0);
    assert!(agent.log().contains("profiles wait in the spool"));
    fs::remove_dir(&store).expect("removed");
    fs::rename(&away, &store).expect("moved");
    eventually("they are sent", &agent, || {
        spooled(&place).iter().all(|name| !waiting.contains(name))
    });
    eventually("it is told", &agent, || {
        agent.log().contains("the store is back")
    });
    agent.end("TERM");
    assert!(spooled(&place).is_empty());
    let stored = ask(&store, "select count(*) from profiles");
    assert_eq!(stored, [counter(&place, "recorded").to_string()]);
}

#[test]
fn wrong_credentials_keep_profiles_and_right_ones_send_them() {
    let place = Place::new();
    let address = s3::server(&place);
    let credentials = place.path("credentials");
    let write = |secret: &str| {
        let text = format!(
            "[web]\naws_access_key_id = {}\naws_secret_access_key = {secret}\n",
            s3::KEY
        );
        fs::write(&credentials, text).expect("written");
    };
    write("wrong-secret");
    let config = place.path("config");
    fs::write(&config, "").expect("written");
    let settings = [
        ("AWS_PROFILE", "web"),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", &address),
    ];
    let _target = Target::new(&place, "twkeys");
    let mut command = command(&place, s3::STORE, "twkeys");
    command
        .envs(settings)
        .env("AWS_CONFIG_FILE", &config)
        .env("AWS_SHARED_CREDENTIALS_FILE", &credentials);
    let agent = Agent::start(&place, &mut command);
    eventually("profiles wait", &agent, || {
        spooled(&place).len() >= 2 && agent.log().contains("refuses these credentials")
    });
    let waiting = spooled(&place);
    write(s3::SECRET);
    eventually("they are sent", &agent, || {
        spooled(&place).iter().all(|name| !waiting.contains(name))
    });
    let log = agent.log();
    agent.end("TERM");
    for secret in ["wrong-secret", s3::SECRET, s3::KEY] {
        assert!(!log.contains(secret), "{log}");
    }
    let mut query = fleet();
    query
        .args([
            "query",
            "select count(*) as n from profiles",
            "--format",
            "csv",
        ])
        .args(["--from", s3::STORE])
        .envs(settings)
        .env("AWS_CONFIG_FILE", &config)
        .env("AWS_SHARED_CREDENTIALS_FILE", &credentials);
    let sent = counter(&place, "sent");
    assert_eq!(succeed(&mut query), format!("n\n{sent}\n"));
    assert_eq!(sent, counter(&place, "recorded"));
}

#[test]
fn an_agent_that_is_killed_while_it_sends_shows_no_half_profile() {
    // Contexts, figures: killed after each object.
    for objects in 1..=2 {
        let place = Place::new();
        let store = place.store();
        let bytes = fs::read(recorded(500)).expect("readable");
        spool(&place, now_ms(), &bytes);
        let mut killed = agent(&place, &store, "twnothing", "9h", "1s");
        killed.env("THALWEG_TEST_KILL_AFTER", objects.to_string());
        let mut killed = Agent::start(&place, &mut killed);
        assert!(killed.child.wait().expect("it ends").code().is_none());
        let seen = ask(&store, "select count(*) from profiles");
        assert_eq!(seen, [if objects == 2 { "1" } else { "0" }]);
        assert_eq!(spooled(&place).len(), 1);
        let agent = Agent::start(&place, &mut agent(&place, &store, "twnothing", "9h", "1s"));
        eventually("it is sent", &agent, || spooled(&place).is_empty());
        agent.end("TERM");
        assert_eq!(stored_totals(&store, "true"), totals(profile(500)));
    }
}

#[test]
fn a_spool_has_bounds_and_the_oldest_goes() {
    let place = Place::new();
    let bytes = fs::read(recorded(500)).expect("readable");
    let now = now_ms();
    const HOUR: u64 = 3_600_000;
    let paths = [
        now - 9 * 24 * HOUR,
        now - 3 * HOUR,
        now - 2 * HOUR,
        now - HOUR,
    ]
    .map(|ms| spool(&place, ms, &bytes));
    // A file in the place of a store.
    let store = place.path("file");
    fs::write(&store, "").expect("written");
    let store = store.to_str().expect("UTF-8");
    let mut command = agent(&place, store, "twnothing", "9h", "1s");
    let one = Agent::start(&place, &mut command);
    eventually("what is too old goes", &one, || !paths[0].exists());
    one.end("TERM");
    assert!(paths[1..].iter().all(|path| path.exists()));
    command.args(["--spool-size", &(bytes.len() * 5 / 2).to_string()]);
    let two = Agent::start(&place, &mut command);
    eventually("what is too much goes", &two, || !paths[1].exists());
    let log = two.log();
    two.end("TERM");
    assert!(paths[2].exists() && paths[3].exists(), "{log}");
    assert_eq!(counter(&place, "dropped"), 2);
    assert!(log.contains("2 dropped so far"), "{log}");
}

/// The spool is a file system of its own, in a mount namespace; that takes root.
#[test]
fn a_full_disk_takes_no_profile_that_was_whole() {
    let place = Place::new();
    let target = Target::new(&place, "twfull");
    let kept = recorded(500);
    let (script, folder) = (place.path("script"), place.path("spool"));
    fs::create_dir(&folder).expect("made");
    // Nothing more than that profile has room.
    let room = fs::metadata(kept)
        .expect("there")
        .len()
        .next_multiple_of(4096)
        + 8192;
    let text = format!(
        "set -e\nmount -t tmpfs -o mode=700,size={room} none '{folder}'\n\
         cp '{kept}' '{folder}/{:013}-1@db@r1@a.thalweg'\n\
         head -c 10000000 /dev/zero > '{folder}/filler' || true\nexec \"$@\"\n",
        now_ms(),
        folder = folder.display(),
        kept = kept.display(),
    );
    fs::write(&script, text).expect("written");
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash"]).arg(&script);
    let nowhere = place.path("file");
    fs::write(&nowhere, "").expect("written");
    let inner = self::command(&place, nowhere.to_str().expect("UTF-8"), "twfull");
    command.arg(inner.get_program()).args(inner.get_args());
    command.env("HOME", "/nonexistent");
    let agent = Agent::start(&place, &mut command);
    eventually("it is told", &agent, || {
        agent.log().to_lowercase().contains("no space left")
    });
    let inside = format!("/proc/{}/root{}", agent.child.id(), folder.display());
    let there: Vec<_> = fs::read_dir(inside)
        .expect("readable")
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(".thalweg"))
        .collect();
    assert_eq!(there.len(), 1);
    let bytes = fs::read(there[0].path()).expect("readable");
    assert!(bytes == fs::read(kept).expect("readable"));
    agent.end("TERM");
    target.assert_as_it_was();
}

#[test]
fn no_link_in_a_spool_is_followed() {
    let place = Place::new();
    let store = place.store();
    let bytes = fs::read(recorded(500)).expect("readable");
    let planted = spool(&place, now_ms() - 1000, b"");
    fs::remove_file(&planted).expect("removed");
    let elsewhere = place.path("elsewhere.thalweg");
    fs::write(&elsewhere, fs::read(recorded(5000)).expect("readable")).expect("written");
    symlink(&elsewhere, &planted).expect("linked");
    for name in ["counters.json", ".counters.json.tmp", "store", ".store.tmp"] {
        let other = place.path(&format!("other{name}"));
        fs::write(&other, "as it was").expect("written");
        symlink(&other, place.path("spool").join(name)).expect("linked");
    }
    spool(&place, now_ms(), &bytes);
    let command = || agent(&place, &store, "twnothing", "9h", "1s");
    let agent = Agent::start(&place, &mut command());
    eventually("the profile is sent", &agent, || {
        spooled(&place).len() == 1 && agent.log().contains("is passed over")
    });
    agent.end("TERM");
    assert!(planted.is_symlink() && elsewhere.exists());
    assert_eq!(stored_totals(&store, "true"), totals(profile(500)));
    for name in ["counters.json", ".counters.json.tmp", "store", ".store.tmp"] {
        let other = fs::read_to_string(place.path(&format!("other{name}"))).expect("readable");
        assert_eq!(other, "as it was", "{name}");
    }
    // Nor is the spool itself a link, or open to others.
    let spool = place.path("spool");
    let moved = place.path("moved");
    fs::rename(&spool, &moved).expect("moved");
    symlink(&moved, &spool).expect("linked");
    assert!(refuse(&mut command()).contains("no link"));
    fs::remove_file(&spool).expect("removed");
    fs::rename(&moved, &spool).expect("moved");
    fs::set_permissions(&spool, fs::Permissions::from_mode(0o755)).expect("set");
    assert!(refuse(&mut command()).contains("chmod 700"));
}

#[test]
fn a_damaged_profile_is_set_aside_and_the_others_are_sent() {
    let place = Place::new();
    let store = place.store();
    let bytes = fs::read(recorded(500)).expect("readable");
    let bad = spool(&place, now_ms() - 1000, &bytes[..bytes.len() / 2]);
    spool(&place, now_ms(), &bytes);
    let agent = Agent::start(&place, &mut agent(&place, &store, "twnothing", "9h", "1s"));
    eventually("the profile is sent", &agent, || spooled(&place).is_empty());
    let log = agent.log();
    agent.end("TERM");
    assert!(log.contains("is set aside"), "{log}");
    assert!(bad.with_extension("damaged").exists());
    assert_eq!(stored_totals(&store, "true"), totals(profile(500)));
}

#[test]
fn a_busy_host_is_left_alone() {
    let place = Place::new();
    let store = place.store();
    let target = Target::new(&place, "twbusy");
    let mut command = bare(&place);
    command.args([
        "--to", &store, "--name", "^twbusy$", "--every", "1s", "--for", "400ms",
    ]);
    // No load is below nothing.
    command.args(["--max-load", "0"]);
    let agent = Agent::start(&place, &mut command);
    eventually("it is told", &agent, || {
        agent.log().contains("while the host is busy")
    });
    for _ in 0..100 {
        assert!(!target.is_attached());
        std::thread::sleep(Duration::from_millis(20));
    }
    agent.end("TERM");
    assert_eq!(counter(&place, "recorded"), 0);
    target.assert_as_it_was();
}

#[test]
fn what_is_attached_or_traced_is_left_alone() {
    let place = Place::new();
    let store = place.store();
    let attached = Target::new(&place, "twtaken");
    let traced = Target::new(&place, "twtaken");
    let free = Target::new(&place, "twtaken");
    succeed(
        Command::new(thalweg())
            .args(["attach", &attached.pid().to_string()])
            .env("THALWEG_NO_CALIBRATE", "1")
            .env("THALWEG_CACHE", "off"),
    );
    let mut tracer = Command::new("strace")
        .args(["-qq", "-o", "/dev/null", "-p", &traced.pid().to_string()])
        .spawn()
        .expect("strace");
    let status = format!("/proc/{}/status", traced.pid());
    while !fs::read_to_string(&status)
        .expect("it lives")
        .contains(&format!("TracerPid:\t{}", tracer.id()))
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    let agent = Agent::start(&place, &mut command(&place, &store, "twtaken"));
    eventually("all are told, and the other is recorded", &agent, || {
        let log = agent.log();
        let told = |target: &Target, why: &str| {
            log.contains(&format!(
                "process {} (twtaken) is not recorded: {why}",
                target.pid()
            ))
        };
        told(&attached, "it is attached already")
            && told(&traced, "it is traced")
            && counter(&place, "sent") >= 2
    });
    agent.end("TERM");
    let pids = ask(&store, "select distinct pid from figures");
    assert_eq!(pids, [free.pid().to_string()]);
    assert!(attached.is_attached(), "somebody else has attached it");
    succeed(Command::new(thalweg()).args(["detach", &attached.pid().to_string()]));
    tracer.kill().expect("killed");
    tracer.wait().expect("ended");
    for target in [&attached, &traced, &free] {
        target.assert_as_it_was();
    }
}

#[test]
fn settings_that_cannot_be_kept_are_refused() {
    let place = Place::new();
    let store = place.store();
    let to = ["--to", &*store];
    for (options, expected) in [
        (vec![], "which processes"),
        (vec!["--service", "db"], "it chooses nothing"),
        (
            vec!["--name", "a", "--every", "1s", "--for", "2s"],
            "must end",
        ),
        (vec!["--name", "a", "--every", "soon"], "every = soon"),
        (vec!["--name", "a", "--spool-size", "1X"], "spool-size = 1X"),
        (vec!["--name", "a", "--max-load", "much"], "no limit"),
        (
            vec!["--name", "a", "--user", "no such"],
            "no user 'no such'",
        ),
        (
            vec!["--name", "a", "--config", "/nonexistent"],
            "/nonexistent",
        ),
    ] {
        let message = refuse(bare(&place).args(to).args(&options));
        assert!(message.contains(expected), "{options:?}: {message}");
    }
    assert!(refuse(bare(&place).args(["--name", "a"])).contains("which store"));
    assert!(!place.path("spool").exists());
    let agent = Agent::start(&place, &mut command(&place, &store, "twnothing"));
    eventually("it runs", &agent, || agent.log().contains("records for"));
    let message = refuse(&mut command(&place, &store, "twnothing"));
    assert!(message.contains("another agent"), "{message}");
    agent.end("TERM");
}
