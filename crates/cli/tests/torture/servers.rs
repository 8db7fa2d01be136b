//! The servers, each with the load that its own people test it with.

use crate::cycles::Generates;
use crate::server::{Server, place};
use crate::support::build::{run, targets};
use crate::support::scratch;
use nix::sys::signal::Signal;
use nix::unistd::User;
use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

fn itself(root: u32) -> Option<u32> {
    Some(root)
}

fn accepts(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Requests per second; fails where wrk saw any error.
fn wrk(url: &str, seconds: u64) -> f64 {
    let out = run(Command::new("wrk").args(["-t1", "-c10", &format!("-d{seconds}s"), url]));
    for wrong in ["Non-2xx", "Socket errors"] {
        assert!(!out.contains(wrong), "{out}");
    }
    let rate = out.lines().find_map(|l| l.strip_prefix("Requests/sec:"));
    let rate: f64 = rate
        .and_then(|rate| rate.trim().parse().ok())
        .expect("wrk gives a rate");
    assert!(rate > 0.0, "{out}");
    rate
}

#[test]
fn redis() {
    let (directory, port) = place();
    let path = directory.path().display();
    let mut arguments = words(&format!(
        "/usr/bin/redis-server --port {port} --dir {path} --daemonize no --save"
    ));
    // Never saved to disk.
    arguments.push(String::new());
    let load = |seconds: u64| {
        // An error reply ends the benchmark (-e), and a lost connection does anyway.
        let count = 10_000 * seconds;
        let out = run(Command::new("redis-benchmark").args(words(&format!(
            "-p {port} -n {count} -c 20 -e --csv -t set,get,incr,lpush,lpop,sadd,hset,zadd,mset"
        ))));
        // "test","rps",... and a line for each command
        let rates = out.lines().filter_map(|line| {
            let field = line.split(',').nth(1)?.trim_matches('"');
            field.parse::<f64>().ok()
        });
        let times: Vec<f64> = rates.map(|rate| 1.0 / rate).collect();
        assert!(times.len() == 9, "{out}");
        1.0 / times.iter().sum::<f64>()
    };
    Server {
        program: "redis-server",
        generates: Generates::Nothing,
        arguments,
        answers: &|| accepts(port),
        load: &load,
        victim: &itself,
        before_stop: &|| (),
        user: None,
        stop: Signal::SIGTERM,
    }
    .try_out(directory.path());
}

#[test]
fn nginx() {
    let (directory, port) = place();
    let path = directory.path().display();
    let configuration = directory.path().join("nginx.conf");
    fs::write(directory.path().join("index.html"), "hello\n".repeat(100)).expect("a page");
    fs::write(
        &configuration,
        format!(
            "daemon off; master_process off; pid {path}/nginx.pid; error_log {path}/error.log;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log off; client_body_temp_path {path}/body; proxy_temp_path {path}/proxy;\n\
             fastcgi_temp_path {path}/fastcgi; uwsgi_temp_path {path}/uwsgi; scgi_temp_path {path}/scgi;\n\
             server {{ listen 127.0.0.1:{port}; root {path}; }} }}\n"
        ),
    )
    .expect("a configuration");
    Server {
        program: "nginx",
        generates: Generates::Nothing,
        arguments: words(&format!("/usr/sbin/nginx -c {}", configuration.display())),
        answers: &|| accepts(port),
        load: &|seconds| wrk(&format!("http://127.0.0.1:{port}/index.html"), seconds),
        victim: &itself,
        before_stop: &|| (),
        user: None,
        stop: Signal::SIGTERM,
    }
    .try_out(directory.path());
}

/// The newest installed version's programs.
fn postgres_programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("postgresql is installed");
    let newest = versions.filter_map(|entry| Some(entry.ok()?.path())).max();
    newest.expect("a version").join("bin")
}

/// A connection whose backend computes and checks its sums for as long as it is let.
struct Session(Child);

impl Session {
    const WORK: &str = "select pg_backend_pid();\n\
        do $$ begin while (select sum(g) from generate_series(1, 1000) g) = 500500 loop end loop;\n\
        raise exception 'a wrong sum'; end $$;\n";

    fn begin(psql: &mut Command) -> (Session, u32) {
        let piped = psql.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().expect("psql starts");
        let stdin = child.stdin.as_mut().expect("piped");
        stdin
            .write_all(Session::WORK.as_bytes())
            .expect("psql reads");
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        stdout.read_line(&mut line).expect("psql prints");
        (Session(child), line.trim().parse().expect("a pid"))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let status = self.0.try_wait();
        let _ = self.0.kill();
        let _ = self.0.wait();
        if !std::thread::panicking() {
            assert!(matches!(status, Ok(None)), "the session ended: {status:?}");
        }
    }
}

/// Which of PostgreSQL's processes is attached to.
#[derive(PartialEq, Eq)]
enum Part {
    Backend,
    /// While every transaction has a connection of its own, so that it forks all the time.
    Postmaster,
}

fn postgres(program: &str, part: Part) {
    let (directory, port) = place();
    // The server refuses to run as root.
    let root = nix::unistd::geteuid().is_root();
    let user = User::from_name("postgres").expect("users can be read");
    let user = user.filter(|_| root).map(|user| user.uid.as_raw());
    let path = directory.path();
    if user.is_some() {
        std::os::unix::fs::chown(path, user, None).expect("a directory of the server's");
    }
    let programs = postgres_programs();
    let as_user = |name: &str, arguments: &str| {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(programs.join(name));
        command.args(words(arguments)).current_dir(path);
        if let Some(user) = user {
            command.uid(user);
        }
        command
    };
    let data = path.join("data");
    let socket = path.display();
    run(&mut as_user(
        "initdb",
        &format!("-A trust -U postgres --no-sync -D {}", data.display()),
    ));
    let ready = || {
        let mut ask = as_user("pg_isready", &format!("-q -h {socket} -p {port}"));
        ask.status().is_ok_and(|status| status.success())
    };
    let bench = |arguments: &str| {
        let connect = format!("-h {socket} -p {port} -U postgres {arguments} postgres");
        run(&mut as_user("pgbench", &connect))
    };
    let load = |seconds: u64| {
        let exists = as_user("psql", &format!("-h {socket} -p {port} -U postgres -Atc"))
            .arg("select count(*) from pgbench_accounts")
            .output();
        if !exists.is_ok_and(|output| output.stdout == b"100000\n") {
            bench("-i -q -s 1");
        }
        let anew = match part {
            Part::Postmaster => "-C",
            Part::Backend => "",
        };
        let out = bench(&format!("-c 2 -T {seconds} {anew}"));
        assert!(out.contains("number of failed transactions: 0 "), "{out}");
        assert!(!out.contains("aborted"), "{out}");
        let rate = out.lines().find_map(|line| line.strip_prefix("tps = "));
        let rate = rate.and_then(|rate| rate.split(' ').next()?.parse().ok());
        rate.unwrap_or_else(|| panic!("pgbench gives no rate: {out}"))
    };
    let session = RefCell::new(None);
    let victim = |postmaster: u32| {
        if part == Part::Postmaster {
            return Some(postmaster);
        }
        let mut session = session.borrow_mut();
        let connect = format!("-AtX -h {socket} -p {port} -U postgres postgres");
        let (_, pid) =
            session.get_or_insert_with(|| Session::begin(&mut as_user("psql", &connect)));
        Some(*pid)
    };
    let program_path = programs.join("postgres");
    Server {
        program,
        generates: Generates::Nothing,
        arguments: words(&format!(
            "{} -D {} -p {port} -k {socket} -c listen_addresses= -c fsync=off -c logging_collector=off",
            program_path.display(),
            data.display()
        )),
        answers: &ready,
        load: &load,
        victim: &victim,
        before_stop: &|| drop(session.take()),
        user,
        stop: Signal::SIGINT,
    }
    .try_out(path);
}

#[test]
fn postgres_backend() {
    postgres("PostgreSQL, a backend", Part::Backend);
}

#[test]
fn postgres_postmaster() {
    postgres("PostgreSQL, the postmaster", Part::Postmaster);
}

#[test]
fn node() {
    let (directory, port) = place();
    let script = targets().join("real/server.js");
    Server {
        program: "node",
        generates: Generates::Code,
        arguments: words(&format!("/usr/bin/node {} {port}", script.display())),
        answers: &|| accepts(port),
        load: &|seconds| wrk(&format!("http://127.0.0.1:{port}/"), seconds),
        victim: &itself,
        before_stop: &|| (),
        user: None,
        stop: Signal::SIGTERM,
    }
    .try_out(directory.path());
}

fn go(name: &str) -> PathBuf {
    let program = scratch::root().join(format!("torture-go-{name}"));
    run(Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(format!("./{name}"))
        .env("GOCACHE", scratch::root().join("go-cache"))
        .env("GOFLAGS", "-mod=mod")
        .current_dir(targets().join("real/go")));
    program
}

#[test]
fn go_server() {
    let (directory, port) = place();
    let (server, client) = (go("server"), go("client"));
    // Sorted digits of the path's hash, the depths of three goroutines, the size of a map.
    let expected =
        "000111112222233334444666677788999999aaaaaaaabbbbccccdddeeeefffff 153 20".to_owned();
    let load = |seconds: u64| {
        let url = format!("http://127.0.0.1:{port}/abc");
        let ask = [&url, &expected, &seconds.to_string()];
        let out = run(Command::new(&client).args(ask));
        let count: f64 = out.trim().parse().expect("the client prints a count");
        assert!(count > 0.0);
        count / seconds as f64
    };
    Server {
        program: "Go HTTP server",
        generates: Generates::Nothing,
        arguments: vec![
            server.to_str().expect("UTF-8").to_owned(),
            format!("127.0.0.1:{port}"),
        ],
        answers: &|| accepts(port),
        load: &load,
        victim: &itself,
        before_stop: &|| (),
        user: None,
        stop: Signal::SIGTERM,
    }
    .try_out(directory.path());
}
