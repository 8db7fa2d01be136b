//! What a budget keeps: four real programs that go on for some seconds, by themselves, fully timed, as recorded by default, and with `--budget 5%`; a thread
//! among others that would hide what the probes cost it; and goroutines.
//!
//! Each says itself how much processor time a round of its work takes, after the first second: so neither thalweg's
//! own work before and after, nor the moments in which it learns what is hot, is in the figures.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::redis::{self, Redis};
use super::table::{Goal, Table};
use super::{Bench, find};

pub(super) const BUDGET: &str = "5%";
/// How much slower than plain a program may be with it.
const MOST: f64 = 1.06;
/// The same by default, where every call is counted.
const MOST_AUTO: f64 = 2.0;

/// A round is one run of the work as the other benchmarks have it; the first argument is the file with it.
const PYTHON: &str = r#"import io, sys, time
work = compile(open(sys.argv[1]).read(), sys.argv[1], "exec")
sys.argv = [sys.argv[1], "1"]
out, start, rounds, since = sys.stdout, time.process_time(), 0, None
while True:
    sys.stdout = io.StringIO()
    exec(work, {"__name__": "__main__"})
    now = time.process_time()
    if since is None and now - start > 1.0:
        since, rounds = now, 0
    elif since is not None:
        rounds += 1
        if now - since > 1.5:
            print((now - since) / rounds, file=out)
            break
"#;
const LUA: &str = r#"local work = assert(loadfile(arg[1]))
local say = print
print = function() end
arg = { [0] = arg[1], "1" }
local start, rounds, since = os.clock(), 0, nil
while true do
  work()
  local now = os.clock()
  if not since and now - start > 1.0 then
    since, rounds = now, 0
  elseif since then
    rounds = rounds + 1
    if now - since > 1.5 then say((now - since) / rounds) break end
  end
end
"#;
/// About as many rounds as take three seconds.
const SQL_ROUNDS: usize = 400;

/// Programs that are built here: by gcc, and by the Go compiler.
const HOT: &str = "hot";
const GO: &str = "go";

#[derive(Clone, Copy)]
enum Way {
    Plain,
    Timed,
    Auto,
    Budget,
}

impl Bench {
    pub(super) fn budget(&self, table: &mut Table) -> anyhow::Result<()> {
        table.heading(&format!(
            "--budget {BUDGET}: processor time of a round, or of a thousand requests, after the first second"
        ));
        let programs: [(&str, &str, Measure); 6] = [
            ("cpython", "python3.11", Bench::script),
            ("lua", "lua5.4", Bench::script),
            ("sqlite", "sqlite3", Bench::sqlite),
            ("redis", "redis-server", Bench::redis),
            ("one hot thread of eight", HOT, Bench::hot),
            ("four goroutines", GO, Bench::hot),
        ];
        for (name, command, measure) in programs {
            let path = match command {
                HOT => Some(self.build_hot()?),
                GO => self.build_hot_go()?,
                _ => find(command),
            };
            let Some(path) = path else {
                eprintln!("{command} is not installed: its rows are left out");
                continue;
            };
            let path = path.to_string_lossy();
            let mut best = [f64::INFINITY; 4];
            let ways = [Way::Plain, Way::Timed, Way::Auto, Way::Budget];
            for _ in 0..self.rounds {
                for (best, way) in best.iter_mut().zip(ways) {
                    *best = best.min(measure(self, &path, way)?);
                }
            }
            let [plain, timed, auto, budget] = best;
            let us = |seconds: f64| seconds * 1e6;
            table.row(&format!("{name}, plain (us)"), us(plain), 1.0, 0, None);
            table.row(
                &format!("{name}, thalweg --time all (us)"),
                us(timed),
                timed / plain,
                0,
                None,
            );
            // The others show what becomes of threads and goroutines.
            let is_program = !matches!(command, HOT | GO);
            let goal = Goal::at_most("x plain", auto / plain, MOST_AUTO);
            let goal = is_program.then_some(goal);
            table.row(
                &format!("{name}, thalweg (us)"),
                us(auto),
                auto / plain,
                0,
                goal,
            );
            let goal = Goal::at_most("x plain", budget / plain, MOST);
            let name = format!("{name}, thalweg --budget {BUDGET} (us)");
            table.row(&name, us(budget), budget / plain, 0, Some(goal));
        }
        Ok(())
    }

    fn in_way(&self, way: Way, program: &str) -> Command {
        let mut command = match way {
            Way::Plain => return Command::new(program),
            Way::Timed | Way::Auto | Way::Budget => Command::new(&self.thalweg),
        };
        command
            .args(["record", "--no-report", "-q", "-o"])
            .arg(self.path("profile.thalweg"));
        match way {
            Way::Budget => command.args(["--budget", BUDGET]),
            Way::Timed => command.args(["--time", "all"]),
            Way::Auto | Way::Plain => &mut command,
        };
        command.args(["--", program]);
        command
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.path(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {name}"))?;
        Ok(path)
    }

    /// An interpreter: seconds of a round, as the script says.
    fn script(&self, program: &str, way: Way) -> anyhow::Result<f64> {
        let (driver, text, work) = match program.ends_with("lua5.4") {
            true => ("pace.lua", LUA, "work.lua"),
            false => ("pace.py", PYTHON, "work.py"),
        };
        for known in super::Program::all() {
            known.write_files(&self.folder)?;
        }
        let driver = self.write(driver, text)?;
        let mut command = self.in_way(way, program);
        command.arg(driver).arg(self.path(work));
        let (_, said) = self.execute(command)?;
        let seconds = said.trim().parse();
        seconds.with_context(|| format!("{program} says {said:?}"))
    }

    /// Its own timer says what each statement took.
    fn sqlite(&self, program: &str, way: Way) -> anyhow::Result<f64> {
        let work = include_str!("../../tests/targets/real/work.sql");
        let round = format!(".timer on\n{work}.timer off\n");
        let input = self.write("pace.sql", &round.repeat(SQL_ROUNDS))?;
        let mut command = self.in_way(way, program);
        command.arg(":memory:").stdin(std::fs::File::open(input)?);
        let (_, said) = self.execute(command)?;
        // `Run Time: real 0.001 user 0.000987 sys 0.000000`
        let times: Vec<f64> = said
            .lines()
            .filter_map(|line| line.strip_prefix("Run Time: real "))
            .filter_map(|line| {
                let words: Vec<f64> = line
                    .split(' ')
                    .filter_map(|word| word.parse().ok())
                    .collect();
                Some(words.get(1)? + words.get(2)?)
            })
            .collect();
        let mut used = 0.0;
        let warm = times.iter().position(|time| {
            used += time;
            used > 1.0
        });
        let rest = &times[warm.unwrap_or(times.len() / 2)..];
        let statements = times.len() as f64 / SQL_ROUNDS as f64;
        Ok(rest.iter().sum::<f64>() / rest.len().max(1) as f64 * statements)
    }

    /// Processor time of the server for a thousand requests, as it says itself.
    fn redis(&self, program: &str, way: Way) -> anyhow::Result<f64> {
        let redis = Redis::new(&self.folder);
        let mut command = self.in_way(way, program);
        command
            .args(redis::ARGUMENTS)
            .current_dir(&self.folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let server = Server(command.spawn().context("cannot run redis-server")?);
        redis.wait()?;
        while redis.used()? < 1.0 {
            redis.load(100_000)?;
        }
        let before = redis.used()?;
        const REQUESTS: u32 = 300_000;
        redis.load(REQUESTS)?;
        let seconds = (redis.used()? - before) / (redis::KINDS * f64::from(REQUESTS)) * 1000.0;
        redis.stop()?;
        drop(server);
        Ok(seconds)
    }

    /// The hot one of eight threads, or all of the goroutines: seconds of a round, as the program says itself.
    fn hot(&self, program: &str, way: Way) -> anyhow::Result<f64> {
        let (_, said) = self.execute(self.in_way(way, program))?;
        let seconds = said.trim().parse();
        seconds.with_context(|| format!("{program} says {said:?}"))
    }

    fn build_hot(&self) -> anyhow::Result<PathBuf> {
        let source = self.write("hot.c", super::programs::HOT)?;
        let program = self.path("hot");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-pthread", "-o"])
            .arg(&program)
            .arg(source);
        self.execute(gcc).context("the benchmark needs gcc")?;
        Ok(program)
    }

    /// `None`: there is no Go compiler.
    fn build_hot_go(&self) -> anyhow::Result<Option<PathBuf>> {
        let Some(compiler) = find(GO) else {
            return Ok(None);
        };
        let source = self.write("hot.go", super::programs::HOT_GO)?;
        let program = self.path("hot-go");
        let mut go = Command::new(compiler);
        go.args(["build", "-o"])
            .arg(&program)
            .arg(source)
            .env("GOCACHE", self.path("go-cache"))
            .env("GO111MODULE", "off");
        self.execute(go).context("the Go program was not built")?;
        Ok(Some(program))
    }
}

type Measure = fn(&Bench, &str, Way) -> anyhow::Result<f64>;

/// Not left behind.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
