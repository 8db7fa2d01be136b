//! A server that is recorded for a long time: memory and cost stay what they were after the first minutes, and at the end every
//! command that the server itself has counted is in the profile. `THALWEG_MINUTES` says how long (docs/torture.md).

use crate::processor;
use crate::server::place;
use crate::support::live::Live;
use crate::support::thalweg::{export, succeed};
use crate::support::watched::Recording;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Commands, each with the function that does it and how often it is sent in a batch.
const COMMANDS: [(&str, &str, usize); 8] = [
    ("set", "setCommand", 13),
    ("get", "getCommand", 29),
    ("incr", "incrCommand", 11),
    ("lpush", "lpushCommand", 7),
    ("lpop", "lpopCommand", 7),
    ("hset", "hsetCommand", 5),
    ("zadd", "zaddCommand", 3),
    ("ping", "pingCommand", 2),
];
/// About 4,000 commands a second: a server that works, on a machine that others need too.
const PAUSE: Duration = Duration::from_millis(19);

struct Redis {
    live: Live,
    connection: BufReader<TcpStream>,
    increments: u64,
}

/// A connection to a redis that has answered.
fn answering(port: u16) -> std::io::Result<BufReader<TcpStream>> {
    let mut connection = TcpStream::connect(("127.0.0.1", port))?;
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(Duration::from_secs(10)))?;
    connection.write_all(b"ping\r\n")?;
    let mut connection = BufReader::new(connection);
    let mut line = String::new();
    connection.read_line(&mut line)?;
    match line.trim_end() {
        "+PONG" => {
            connection.get_ref().set_read_timeout(None)?;
            Ok(connection)
        }
        other => Err(std::io::Error::other(format!("it says {other:?}"))),
    }
}

impl Redis {
    fn start(directory: &Path, port: u16) -> Redis {
        let mut server = Command::new("/usr/bin/redis-server");
        server.args(["--daemonize", "no", "--save", "", "--loglevel", "warning"]);
        server
            .args(["--port", &port.to_string(), "--dir"])
            .arg(directory);
        let live = Live::spawn(&mut server);
        let deadline = Instant::now() + Duration::from_secs(30);
        // Until redis listens, the socket that found the port may still do so in a process that another test is just starting.
        let connection = loop {
            match answering(port) {
                Ok(connection) => break connection,
                Err(error) => assert!(Instant::now() < deadline, "redis does not answer: {error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        Redis {
            live,
            connection,
            increments: 0,
        }
    }

    fn send(&mut self, commands: &str) {
        let socket = self.connection.get_mut();
        if let Err(error) = socket.write_all(commands.as_bytes()) {
            self.is_gone(error);
        }
    }

    /// If it has ended, its last words tell why.
    fn is_gone(&mut self, error: std::io::Error) -> ! {
        std::thread::sleep(Duration::from_secs(1));
        self.live.assert_healthy();
        panic!("redis lives, but does not talk to us: {error}");
    }

    /// One reply: a line, or the text that it announces.
    fn reply(&mut self) -> String {
        let mut line = String::new();
        if let Err(error) = self.connection.read_line(&mut line) {
            self.is_gone(error);
        }
        let line = line.trim_end();
        assert!(
            !line.is_empty() && !line.starts_with('-'),
            "redis says {line:?}"
        );
        let Some(length) = line.strip_prefix('$') else {
            return line.to_owned();
        };
        let mut text = vec![0; length.parse::<usize>().expect("a length") + 2];
        self.connection
            .read_exact(&mut text)
            .expect("redis answers");
        text.truncate(text.len() - 2);
        String::from_utf8(text).expect("text")
    }

    /// Sends all commands at once and checks every answer.
    fn batch(&mut self, number: u64) {
        let mut text = String::new();
        let mut expected = Vec::new();
        for (command, _, times) in COMMANDS {
            for time in 0..times {
                let key = (number * 31 + time as u64) % 1000;
                let (line, reply) = match command {
                    "set" => (format!("set k{time} v{number}-{time}"), "+OK".into()),
                    "get" => {
                        let time = time % 13;
                        (format!("get k{time}"), format!("v{number}-{time}"))
                    }
                    "incr" => {
                        self.increments += 1;
                        ("incr n".into(), format!(":{}", self.increments))
                    }
                    "lpush" => (format!("lpush l x{time}"), format!(":{}", time + 1)),
                    "lpop" => ("lpop l".into(), format!("x{}", 6 - time)),
                    "hset" => (format!("hset h{key} f v"), String::new()),
                    "zadd" => (format!("zadd z {number} m{key}"), String::new()),
                    _ => ("ping".into(), "+PONG".into()),
                };
                text += &line;
                text += "\r\n";
                expected.push(reply);
            }
        }
        self.send(&text);
        for expected in expected {
            let reply = self.reply();
            // How many fields or members are new depends on how often the numbers went round.
            assert!(
                expected.is_empty() || reply == expected,
                "{reply:?} for {expected:?}"
            );
        }
    }

    /// How often each command was done, as redis itself has counted.
    fn statistics(&mut self) -> BTreeMap<String, u64> {
        self.send("info commandstats\r\n");
        let text = self.reply();
        let lines = text.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let (calls, _) = rest.split_once(',')?;
            Some((name.to_owned(), calls.parse().ok()?))
        });
        lines.collect()
    }

    fn processor(&self) -> f64 {
        processor::seconds(self.live.pid())
    }

    fn resident_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.live.pid()));
        let status = status.expect("redis lives");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.expect("a size")
    }
}

/// What is looked at in the course of time.
#[derive(Debug)]
struct Look {
    /// Processor time of the recorded server for that of the other one, since the last look.
    cost: f64,
    resident_kb: u64,
    contexts: u64,
}

#[test]
fn redis_for_a_long_time() {
    let minutes: f64 = match std::env::var("THALWEG_MINUTES") {
        Ok(minutes) => minutes.parse().expect("THALWEG_MINUTES is a number"),
        Err(_) => 0.25,
    };
    let whole = Duration::from_secs_f64(minutes * 60.0);
    let ((directory, port), (other, other_port)) = (place(), place());
    let mut redis = Redis::start(directory.path(), port);
    let mut plain = Redis::start(other.path(), other_port);
    let file = directory.path().join("hour.thalweg");
    let before = redis.live.text();
    let recording = Recording::of(&redis.live, &file, &["--no-report"]);
    redis.send("config resetstat\r\n");
    assert_eq!(redis.reply(), "+OK");

    let (began, mut number, mut looks) = (Instant::now(), 0, Vec::new());
    const LOOKS: u32 = 12;
    for look in 1..=LOOKS {
        let from = (redis.processor(), plain.processor());
        while began.elapsed() < whole * look / LOOKS {
            redis.batch(number);
            plain.batch(number);
            number += 1;
            std::thread::sleep(PAUSE);
        }
        let status = succeed(&["status", &redis.live.id(), "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let seen = Look {
            cost: (redis.processor() - from.0) / (plain.processor() - from.1),
            resident_kb: redis.resident_kb(),
            contexts: status["contexts"].as_u64().expect("a number"),
        };
        println!(
            "{:5.1} min {seen:.2?}",
            began.elapsed().as_secs_f64() / 60.0
        );
        looks.push(seen);
    }

    let counted = redis.statistics();
    recording.interrupt();
    let profile = export(&file).calls_by_name();
    for (command, function, times) in COMMANDS {
        assert_eq!(
            counted[command],
            number * times as u64,
            "{command} as redis counts"
        );
        assert_eq!(
            profile[function], counted[command],
            "{function} for {command}"
        );
    }
    assert_eq!(before, redis.live.text());
    redis.batch(number);

    let mean = |looks: &[Look]| looks.iter().map(|l| l.cost).sum::<f64>() / looks.len() as f64;
    let (early, late) = looks.split_at(looks.len() / 2);
    let (early, late) = (mean(early), mean(late));
    println!("{number} batches; cost {early:.2} in the first half, {late:.2} in the second");
    if minutes < 10.0 {
        // Rare paths are still met for the first time.
        return;
    }
    let (first, last) = (&looks[looks.len() / 3], &looks[looks.len() - 1]);
    // A path that comes once in a million commands is a context of 128 bytes: there are always some more.
    let flat = |from: u64, to: u64, percent: u64| to <= from + from * percent / 100;
    assert!(flat(first.contexts, last.contexts, 25), "{looks:.2?}");
    assert!(flat(first.resident_kb, last.resident_kb, 5), "{looks:.2?}");
    assert!(late < early * 1.15, "{looks:.2?}");
}
