//! The page of `thalweg serve`: what another user of the machine, and debug information that names any file, get out of it.

use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, succeed};
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

/// `thalweg serve` in a terminal, with a browser that only writes down what it was given.
struct Page {
    server: Child,
    address: String,
    /// What is written down.
    seen: PathBuf,
}

impl Page {
    fn of(scratch: &Scratch, profile: &Path) -> Page {
        let (tools, seen) = (scratch.join("bin"), scratch.join("seen"));
        fs::create_dir_all(&tools).expect("a folder");
        fs::create_dir_all(&seen).expect("a folder");
        let browser = tools.join("xdg-open");
        let script = format!(
            "#!/bin/sh\nexec 2>/dev/null\ncd {}\nprintf '%s\\n' \"$@\" > arguments\n\
             stat -c %a \"$1\" \"$(dirname \"$1\")\" > modes\ncat \"$1\" > page\nmv arguments done\n",
            seen.display()
        );
        fs::write(&browser, script).expect("a script");
        fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).expect("a script");
        let path = std::env::var("PATH").unwrap_or_default();
        let pty = openpty(None, None).expect("a pty");
        let end = || File::from(pty.slave.try_clone().expect("clone"));
        let server = command()
            .arg("serve")
            .arg(profile)
            .env("PATH", format!("{}:{path}", tools.display()))
            .env("DISPLAY", ":0")
            .env("XDG_RUNTIME_DIR", scratch.path())
            .env_remove("SUDO_UID")
            .stdin(end())
            .stdout(end())
            .spawn()
            .expect("thalweg starts");
        drop(pty.slave);
        let mut address = String::new();
        let mut output = BufReader::new(File::from(pty.master));
        output.read_line(&mut address).expect("an address");
        let address = address.trim().to_owned();
        assert!(address.starts_with("http://127.0.0.1:"), "{address:?}");
        Page {
            server,
            address,
            seen,
        }
    }

    fn token(&self) -> &str {
        self.address.split_once("token=").expect("a token").1
    }

    /// The answer to a GET, head and all.
    fn get(&self, path: &str) -> String {
        let host = self.address.trim_start_matches("http://");
        let host = host.split('/').next().expect("a host");
        let mut stream = TcpStream::connect(host).expect("the server listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // One that has ended cannot be signalled.
        let _ = kill(Pid::from_raw(self.server.id() as i32), Signal::SIGINT);
        let _ = self.server.wait();
    }
}

#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A profile of one function.
fn profile(scratch: &Scratch) -> PathBuf {
    let (folded, file) = (scratch.join("f.folded"), scratch.join("f.thalweg"));
    fs::write(&folded, "main 10\n").expect("a file");
    let [folded, path] = [&folded, &file].map(|path| path.to_str().expect("a path"));
    succeed(&["import", folded, "-o", path]);
    file
}

#[test]
fn no_secret_is_on_the_command_line_of_the_browser() {
    let scratch = Scratch::new();
    let page = Page::of(&scratch, &profile(&scratch));
    let done = page.seen.join("done");
    wait_until("the browser is started", || done.exists());
    let arguments = fs::read_to_string(&done).expect("what it was given");
    assert!(
        !arguments.contains(page.token()) && !arguments.contains("http"),
        "every user can read this: {arguments}"
    );
    // Of the file and of its folder.
    let modes = fs::read_to_string(page.seen.join("modes")).expect("modes");
    assert_eq!(modes.split_whitespace().collect::<Vec<_>>(), ["600", "700"]);
    let redirect = fs::read_to_string(page.seen.join("page")).expect("the file");
    assert!(redirect.contains(&page.address), "{redirect}");
    let file = PathBuf::from(arguments.trim());
    let path = page.address.trim_start_matches("http://");
    let path = &path[path.find('/').expect("a path")..];
    assert!(page.get(path).starts_with("HTTP/1.1 200"));
    wait_until("the file goes when the page was loaded", || !file.exists());
}

/// A function of the program, and a source of that name which is a link.
#[test]
fn no_link_that_debug_information_names_is_followed() {
    let scratch = Scratch::new();
    let secret = scratch.join("secret");
    fs::write(&secret, "root:x:0:0\n").expect("a file");
    let planted = scratch.join("planted.c");
    symlink(&secret, &planted).expect("a link");
    let honest = scratch.join("honest.c");
    fs::write(&honest, "int honest;\n").expect("a file");
    let pipe = scratch.join("pipe.c");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o644)).expect("a pipe");
    let callgrind = scratch.join("callgrind.out");
    let mut text = String::from("events: Ir\n");
    for (name, file) in [("a", &planted), ("b", &honest), ("c", &pipe)] {
        text += &format!("fl={}\nfn={name}\n1 10\n\n", file.display());
    }
    fs::write(&callgrind, text).expect("a file");
    let file = scratch.join("c.thalweg");
    let [from, to] = [&callgrind, &file].map(|path| path.to_str().expect("a path"));
    succeed(&["import", from, "-o", to]);
    let page = Page::of(&scratch, &file);
    let shown = (0..3).map(|function| {
        let token = page.token();
        page.get(&format!("/api/source?f={function}&token={token}"))
    });
    let shown: Vec<String> = shown.collect();
    assert!(
        shown.iter().all(|source| !source.contains("root:x")),
        "{shown:?}"
    );
    let honest = shown.iter().filter(|source| source.contains("int honest;"));
    assert_eq!(honest.count(), 1, "{shown:?}");
}
