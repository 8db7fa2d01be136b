//! Requests that no browser of the user's would send, byte by byte.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use super::served::{Served, thalweg};

fn served() -> (tempfile::TempDir, Served) {
    let scratch = tempfile::tempdir().unwrap();
    let (folded, file) = (scratch.path().join("f"), scratch.path().join("f.thalweg"));
    fs::write(&folded, "main;a;b 10\nmain;c 5\n").unwrap();
    thalweg(&[
        "import",
        folded.to_str().unwrap(),
        "-o",
        file.to_str().unwrap(),
    ]);
    let served = Served::start(&[file.to_str().unwrap()]);
    (scratch, served)
}

/// The whole answer, head and all.
fn raw(served: &Served, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", served.port())).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(served: &Served, path: &str, headers: &str) -> String {
    let host = format!("Host: 127.0.0.1:{}\r\n", served.port());
    raw(
        served,
        &format!("GET {path} HTTP/1.1\r\n{host}Connection: close\r\n{headers}\r\n"),
    )
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("")
}

#[test]
fn nothing_is_answered_without_the_secret() {
    let (_scratch, served) = served();
    let token = served.token();
    let wrong = format!("{}0", &token[..token.len() - 1]);
    for path in [
        "/",
        "/page.js",
        "/page.css",
        "/icon.svg",
        "/api/meta",
        "/api/functions",
        "/nothing",
    ] {
        assert_eq!(status(&get(&served, path, "")), "403", "{path}");
        assert_eq!(
            status(&get(&served, &format!("{path}?token="), "")),
            "403",
            "{path}"
        );
        let almost = format!("X-Thalweg-Token: {wrong}\r\n");
        if wrong != token {
            assert_eq!(status(&get(&served, path, &almost)), "403", "{path}");
        }
    }
    assert_eq!(
        status(&get(
            &served,
            "/api/meta",
            &format!("X-Thalweg-Token: {token}\r\n")
        )),
        "200"
    );
    let cookie = format!("Cookie: other=1; thalweg-{}={token}\r\n", served.port());
    assert_eq!(status(&get(&served, "/page.js", &cookie)), "200");
    // What changes something wants the header: a cookie is sent by any page that posts here.
    let post = |headers: &str| {
        let host = format!("Host: 127.0.0.1:{}\r\n", served.port());
        raw(
            &served,
            &format!(
                "POST /api/do/detach HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: 0\r\n{headers}\r\n"
            ),
        )
    };
    assert_eq!(status(&post(&cookie)), "403");
    assert_eq!(
        status(&post(&format!(
            "X-Thalweg-Token: {token}\r\nOrigin: http://evil.example\r\n"
        ))),
        "403"
    );
    assert_eq!(
        status(&post(&format!("X-Thalweg-Token: {token}\r\n"))),
        "404"
    );
}

#[test]
fn a_name_that_is_rebound_to_this_machine_gets_nothing() {
    let (_scratch, served) = served();
    let (port, token) = (served.port(), served.token());
    let with_host = |host: &str| {
        raw(
            &served,
            &format!("GET /?token={token} HTTP/1.1\r\n{host}Connection: close\r\n\r\n"),
        )
    };
    for host in [
        "Host: evil.example\r\n".into(),
        format!("Host: evil.example:{port}\r\n"),
        "Host: 127.0.0.1\r\n".into(),
        format!("Host: 127.0.0.1:{port}.evil.example\r\n"),
    ] {
        assert_eq!(status(&with_host(&host)), "421", "{host}");
    }
    for host in [
        format!("Host: localhost:{port}\r\n"),
        format!("Host: 127.0.0.1:{port}\r\n"),
    ] {
        assert_eq!(status(&with_host(&host)), "200", "{host}");
    }
}

#[test]
fn every_answer_forbids_what_the_page_does_not_need() {
    let (_scratch, served) = served();
    for path in [
        format!("/?token={}", served.token()),
        "/".into(),
        format!("/api/meta?token={}", served.token()),
    ] {
        let answer = get(&served, &path, "").to_lowercase();
        let policy = answer
            .lines()
            .find(|line| line.starts_with("content-security-policy:"))
            .unwrap();
        assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
        assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"));
        assert!(
            answer.contains("x-content-type-options: nosniff")
                && answer.contains("referrer-policy: no-referrer")
        );
        assert!(!answer.contains("access-control-allow"));
    }
    let page = get(&served, &format!("/?token={}", served.token()), "");
    assert!(page.contains("HttpOnly; SameSite=Strict"));
}

#[test]
fn it_listens_on_this_machine_only() {
    let (_scratch, served) = served();
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{:04X}", served.port());
    let listening: Vec<&str> = table
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .filter(|address| address.ends_with(&port))
        .collect();
    assert!(!listening.is_empty());
    assert!(
        listening
            .iter()
            .all(|address| address.starts_with("0100007F")),
        "{listening:?}"
    );
    let table = fs::read_to_string("/proc/net/tcp6").unwrap_or_default();
    assert!(
        !table
            .lines()
            .any(|line| line.contains(&port) && line.contains(" 0A "))
    );
}

#[test]
fn odd_requests_do_not_end_the_server() {
    let (_scratch, served) = served();
    let token = served.token();
    let secret = format!("X-Thalweg-Token: {token}\r\n");
    for question in [
        "river?cut=nan",
        "river?cut=%ff",
        "river?threads=1,2,3",
        "river?closed=4294967295",
        "tree?at=-1",
        "tree?limit=99999999999999999999",
        "river?width=1%25:1,100%25:99999",
        "function?f=",
        "%00",
        "..%2f..%2fetc%2fpasswd",
        "source?f=9",
    ] {
        let answer = get(&served, &format!("/api/{question}"), &secret);
        assert!(
            ["400", "404"].contains(&status(&answer)),
            "{question}: {answer}"
        );
    }
    let long = "1,".repeat(20_000);
    get(&served, &format!("/api/river?closed={long}"), &secret);
    raw(&served, "\x16\x03\x01\r\n\r\n");
    assert_eq!(status(&get(&served, "/api/river", &secret)), "200");
}

#[test]
fn bad_files_are_refused_with_a_message() {
    let scratch = tempfile::tempdir().unwrap();
    let bad = scratch.path().join("bad.thalweg");
    fs::write(&bad, "this is no profile").unwrap();
    for arguments in [
        ["serve", bad.to_str().unwrap(), "--no-open"],
        ["report", bad.to_str().unwrap(), "--html=/dev/null"],
    ] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_thalweg"))
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("bad.thalweg"));
    }
}
