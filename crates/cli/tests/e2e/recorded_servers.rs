//! Recorded calls of servers that people run: what was slow is found with the very arguments that the client sent, and nothing else is.
//!
//! "Slow" is time on a processor (`duration - waiting`), so that a machine that is busy with other tests makes nothing slow.

use crate::support::build::run;
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::thalweg::succeed;
use nix::unistd::User;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Built with debug information from the system's sources.
fn server(name: &str) -> PathBuf {
    let servers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/consumers/servers/bin");
    let path = servers.join(name);
    assert!(
        path.exists(),
        "{} is missing: run .ci/install",
        path.display()
    );
    path
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

fn connect(port: u16) -> TcpStream {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < deadline, "nobody answers: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Attaches with these rules, does what is to be done, detaches. The calls that were chosen.
fn recorded(pid: &str, options: &[&str], work: impl FnOnce()) -> Vec<Value> {
    let scratch = Scratch::new();
    let file = &scratch.word("calls.thalweg");
    succeed(&[&["attach", "--budget", "off", "-q", pid], options].concat());
    work();
    succeed(&["detach", "-q", pid, "-o", file]);
    let lines = succeed(&["calls", "-i", file, "--json"]);
    let calls = lines.lines();
    let calls = calls.map(|line| serde_json::from_str(line).expect("JSON"));
    calls
        .filter(|call: &Value| !call["rule"].is_null())
        .collect()
}

fn texts<'a>(call: &'a Value, names: &[&str]) -> Vec<&'a str> {
    let of = |name: &&str| call["entry"][*name].as_str();
    names.iter().filter_map(of).collect()
}

struct Redis {
    connection: BufReader<TcpStream>,
}

impl Redis {
    /// Sends one command in redis's own form and takes the first line of its answer.
    fn ask(&mut self, words: &[&str]) -> String {
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        let stream = self.connection.get_mut();
        stream.write_all(bytes.as_bytes()).expect("redis reads");
        let mut line = String::new();
        self.connection.read_line(&mut line).expect("redis answers");
        if let Some(length) = line
            .strip_prefix('$')
            .and_then(|n| n.trim().parse::<usize>().ok())
        {
            let mut rest = vec![0; length + 2];
            self.connection
                .read_exact(&mut rest)
                .expect("redis answers");
            line = String::from_utf8_lossy(&rest).into_owned();
        }
        line.trim_end().to_owned()
    }
}

#[test]
fn slow_commands_of_redis_have_the_arguments_that_were_sent() {
    let scratch = Scratch::new();
    let port = free_port();
    let live = Live::spawn(
        Command::new(server("redis-server"))
            .args(["--port", &port.to_string(), "--save", "", "--dir"])
            .arg(scratch.path()),
    );
    let mut redis = Redis {
        connection: BufReader::new(connect(port)),
    };
    assert_eq!(redis.ask(&["client", "setname", "tester-7"]), "+OK");
    let count = "local n = 0 for i = 1, 2000000 do n = n + i % 3 end return n";
    // A first time, so that nothing is compiled or read from disk later.
    redis.ask(&["eval", count, "0", "warm", "up"]);
    let slow = "call(c, flags): duration - waiting > 5ms; \
                record c->argc, c->argv[0]->ptr:str, c->argv[1]->ptr:str, c->argv[3]->ptr:str, c->argv[4]->ptr:str, c->name->ptr:str";
    let tenth =
        "setCommand: c->argv[1]->ptr:str =~ /0$/; record c->argv[1]->ptr:str, c->argv[2]->ptr:str";
    let mut expected = Vec::new();
    let calls = recorded(&live.id(), &["--rule", slow, "--rule", tenth], || {
        for n in 0..200 {
            let (key, value) = (format!("key:{n}"), format!("value {}", n * n));
            assert_eq!(redis.ask(&["set", &key, &value]), "+OK");
            assert_eq!(redis.ask(&["get", &key]), value);
            if n % 10 == 0 {
                expected.push(vec![key, value]);
            }
            if n % 50 == 25 {
                let (number, what) = (n.to_string(), format!("what {n}"));
                assert_eq!(redis.ask(&["EVAL", count, "0", &number, &what]), ":2000001");
                expected.push(vec![
                    "EVAL".into(),
                    count.into(),
                    number,
                    what,
                    "tester-7".into(),
                ]);
            }
        }
    });
    let found: Vec<Vec<&str>> = calls
        .iter()
        .map(|call| match call["function"].as_str() {
            Some("call") => {
                assert_eq!(call["entry"]["c->argc"], 5, "{call:#}");
                let argument = |n: u32| format!("c->argv[{n}]->ptr:str");
                let [a, b, c, d] = [0, 1, 3, 4].map(argument);
                texts(call, &[&a, &b, &c, &d, "c->name->ptr:str"])
            }
            _ => texts(call, &["c->argv[1]->ptr:str", "c->argv[2]->ptr:str"]),
        })
        .collect();
    assert_eq!(found, expected, "{calls:#?}");
}

#[test]
fn slow_requests_of_nginx_have_their_uri_and_are_trees_of_their_own() {
    let scratch = Scratch::new();
    let port = free_port();
    let path = scratch.path().display();
    let many = scratch.join("many");
    fs::create_dir(&many).expect("a directory");
    for n in 0..6000 {
        fs::write(many.join(format!("{n}")), "").expect("a file");
    }
    fs::write(scratch.join("page.html"), "hello\n").expect("a page");
    let configuration = scratch.join("nginx.conf");
    fs::write(
        &configuration,
        format!(
            "daemon off; master_process off; pid {path}/nginx.pid; error_log {path}/error.log;\n\
             events {{ worker_connections 64; }}\n\
             http {{ access_log off; client_body_temp_path {path}/body; proxy_temp_path {path}/proxy;\n\
             fastcgi_temp_path {path}/fastcgi; uwsgi_temp_path {path}/uwsgi; scgi_temp_path {path}/scgi;\n\
             server {{ listen 127.0.0.1:{port}; root {path}; location /many/ {{ autoindex on; }} }} }}\n"
        ),
    )
    .expect("a configuration");
    let live = Live::spawn(
        Command::new(server("nginx"))
            .arg("-e")
            .arg(scratch.join("error.log"))
            .arg("-c")
            .arg(&configuration),
    );
    let get = |uri: &str| {
        let mut stream = connect(port);
        write!(
            stream,
            "GET {uri} HTTP/1.1\r\nHost: x\r\nUser-Agent: tester\r\nConnection: close\r\n\r\n"
        )
        .expect("nginx reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("nginx answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    };
    get("/many/");
    let slow = "ngx_http_handler: duration - waiting > 3ms; \
                record r->uri, r->args, r->method_name, r->headers_in.user_agent->value";
    let options = ["--rule", slow, "--root", "^ngx_http_handler$"];
    let calls = recorded(&live.id(), &options, || {
        for n in 0..30 {
            get(&format!("/page.html?n={n}"));
            if n % 10 == 3 {
                get(&format!("/many/?sorted={n}"));
            }
        }
    });
    let found: Vec<Vec<&str>> = calls
        .iter()
        .map(|call| {
            assert!(call["parent"].is_null() && call["request"].is_u64());
            let names = [
                "r->uri",
                "r->args",
                "r->method_name",
                "r->headers_in.user_agent->value",
            ];
            texts(call, &names)
        })
        .collect();
    let expected: Vec<String> = [3, 13, 23].map(|n| format!("sorted={n}")).into();
    let expected: Vec<Vec<&str>> = expected
        .iter()
        .map(|query| vec!["/many/", query, "GET", "tester"])
        .collect();
    assert_eq!(found, expected, "{calls:#?}");
}

/// The newest installed version's programs.
fn postgres_programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("postgresql is installed");
    let newest = versions.filter_map(|entry| Some(entry.ok()?.path())).max();
    newest.expect("a version").join("bin")
}

/// Debian's own program, which has neither debug information nor a symbol table: exported functions and the calling convention.
#[test]
fn queries_of_postgresql_have_their_sql() {
    use std::os::unix::process::CommandExt;
    // Not below the build directory, which another user may not be able to reach; a socket's path must be short, too.
    let directory = std::env::temp_dir().join(format!("thalweg-postgres-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    struct Gone(PathBuf);
    impl Drop for Gone {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
    let _gone = Gone(directory.clone());
    // The server refuses to run as root.
    let root = nix::unistd::geteuid().is_root();
    let user = User::from_name("postgres").expect("users can be read");
    let user = user.filter(|_| root).map(|user| user.uid.as_raw());
    if user.is_some() {
        std::os::unix::fs::chown(&directory, user, None).expect("a directory of the server's");
    }
    let programs = postgres_programs();
    let as_user = |name: &str| {
        let mut command = Command::new(programs.join(name));
        command.current_dir(&directory);
        if let Some(user) = user {
            command.uid(user);
        }
        command
    };
    let data = directory.join("data");
    run(as_user("initdb")
        .args(["-A", "trust", "-U", "postgres", "--no-sync", "-D"])
        .arg(&data));
    let mut server = as_user("postgres");
    server.arg("-D").arg(&data).arg("-k").arg(&directory);
    server.args(["-p", "5432", "-c", "listen_addresses=", "-c", "fsync=off"]);
    let server = Live::spawn(server.stderr(std::process::Stdio::null()));
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_ready = || {
        let mut ask = as_user("pg_isready");
        let ask = ask.args(["-q", "-p", "5432", "-h"]).arg(&directory);
        ask.status().is_ok_and(|status| status.success())
    };
    while !is_ready() {
        assert!(Instant::now() < deadline, "postgresql does not answer");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut psql = as_user("psql");
    psql.args(["-AtX", "-p", "5432", "-U", "postgres", "-h"]);
    let mut psql = Live::spawn(psql.arg(&directory).arg("postgres"));
    let backend = psql.ask("select pg_backend_pid();");
    let sum = "select sum(g % 7) from generate_series(1, 200000) g";
    psql.ask(&format!("{sum};"));
    // The third word of what it is given is the query's text.
    let slow = "standard_ExecutorRun: duration - waiting > 10ms; record arg1:ptr[16]:str";
    let every = "pg_parse_query: duration >= 0ns; record arg1:str";
    let mut sent = Vec::new();
    let calls = recorded(&backend, &["--rule", slow, "--rule", every], || {
        for n in 0..20 {
            let quick = format!("select {n} as \"näme\";");
            assert_eq!(psql.ask(&quick), n.to_string());
            sent.push(("pg_parse_query", quick));
            if n % 8 == 5 {
                let query = format!("{sum} /* {n} */;");
                psql.ask(&query);
                sent.push(("pg_parse_query", query.clone()));
                sent.push(("standard_ExecutorRun", query));
            }
        }
    });
    let found: Vec<(&str, String)> = calls
        .iter()
        .map(|call| {
            let values = call["entry"].as_object().expect("values");
            let text = values.values().next().and_then(Value::as_str);
            let function = call["function"].as_str().expect("a name");
            (function, text.unwrap_or_default().to_owned())
        })
        .collect();
    assert_eq!(found, sent, "{calls:#?}");
    drop(psql);
    server.send(nix::sys::signal::Signal::SIGINT);
    drop(server.terminate());
}
