//! Real programs stopped at real functions: compiles a target, stops it by breakpoints at the entry
//! and at the return of the functions that rules mean, and runs the rules' programs on its
//! registers and memory, as the agent does.

#![allow(dead_code)] // each test uses a part of it

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::ptrace::{self, regset};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use thalweg_bytecode::{Call, Machine, Memory, Out, Surroundings, Verdict};
use thalweg_rules::{
    Compiled, Description, FunctionInfo, Options, Recorded, Rule, RuleError, compile, decode_all,
};
use thalweg_symbols::{FunctionKind, Module};

/// A compiled target.
pub struct Target {
    path: PathBuf,
    module: Module,
    _directory: tempfile::TempDir,
}

/// One call of a function that a rule means.
pub struct Seen {
    pub kept: bool,
    pub values: Vec<Recorded>,
    /// The items that were written.
    pub items: Vec<u8>,
}

impl Seen {
    /// `name=value name=value`
    pub fn text(&self) -> String {
        let values = self
            .values
            .iter()
            .map(|v| format!("{}={}", v.name, v.value));
        values.collect::<Vec<_>>().join(" ")
    }
}

impl Target {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn build(compiler: &str, source: &str, flags: &[&str]) -> Target {
        Target::build_all(compiler, &[source], flags)
    }

    pub fn build_all(compiler: &str, sources: &[&str], flags: &[&str]) -> Target {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("target");
        let status = Command::new(compiler)
            .args(flags)
            .arg("-o")
            .arg(&path)
            .args(sources.iter().map(|name| source(name)))
            .current_dir(directory.path())
            .status()
            .unwrap();
        assert!(status.success(), "{compiler} {flags:?}");
        let module = Module::load(&path).unwrap();
        Target {
            path,
            module,
            _directory: directory,
        }
    }

    fn functions(&self) -> Vec<FunctionInfo<'_>> {
        let functions = self.module.functions.iter().enumerate();
        functions
            .filter(|(_, f)| f.kind == FunctionKind::Normal)
            .map(|(number, f)| FunctionInfo {
                number: number as u32,
                name: &f.name,
                linkage_name: f.linkage_name.as_deref(),
                module: &self.path,
                address: f.start,
                go: false,
                managed: false,
            })
            .collect()
    }

    pub fn compile(&self, rules: &[&str], options: &Options) -> Result<Compiled, RuleError> {
        let rules: Vec<Rule> = rules
            .iter()
            .map(|text| Rule::parse(text))
            .collect::<Result<_, _>>()?;
        compile(&rules, &self.functions(), options)
    }

    /// What one rule makes of all calls of its functions in one run.
    pub fn run(&self, rule: &str) -> Vec<Seen> {
        self.run_with(rule, &Options::default())
    }

    pub fn run_with(&self, rule: &str, options: &Options) -> Vec<Seen> {
        let compiled = self
            .compile(&[rule], options)
            .unwrap_or_else(|error| panic!("{error}"));
        self.trace(&compiled)
    }

    pub fn error(&self, rule: &str) -> RuleError {
        match self.compile(&[rule], &Options::default()) {
            Ok(_) => panic!("nothing is wrong with {rule}"),
            Err(error) => error,
        }
    }

    /// What one program writes at the entries of one function, which need not return.
    pub fn entries(
        &self,
        is_it: impl Fn(&str) -> bool,
        program: &[u8],
        descriptions: &[Description],
    ) -> Vec<Vec<Recorded>> {
        let mut stopped = Stopped::start(&self.path);
        let bias = stopped.bias(&self.path, self.module.position_independent);
        let mut functions = self.module.functions.iter();
        let function = functions
            .find(|f| is_it(&f.name))
            .expect("the target has it");
        let at = function.start + bias;
        let byte = stopped.swap_byte(at, 0xcc);
        let mut seen = Vec::new();
        while stopped.go_on() {
            let mut regs = ptrace::getregs(stopped.pid).unwrap();
            regs.rip = at;
            ptrace::setregs(stopped.pid, regs).unwrap();
            let machine = stopped.machine();
            let mut buffer = vec![0; 4096];
            let mut out = Out::new(&mut buffer);
            let call = Call::default();
            thalweg_bytecode::entry(program, &machine, &mut stopped, &Here, &call, &mut out);
            seen.push(decode_all(descriptions, out.written()));
            stopped.swap_byte(at, byte);
            ptrace::step(stopped.pid, None).unwrap();
            waitpid(stopped.pid, None).unwrap();
            stopped.swap_byte(at, 0xcc);
        }
        seen
    }

    /// Runs the target with breakpoints at the functions of `compiled`.
    pub fn trace(&self, compiled: &Compiled) -> Vec<Seen> {
        let mut stopped = Stopped::start(&self.path);
        let bias = stopped.bias(&self.path, self.module.position_independent);
        let breakpoints: Vec<(u64, u32)> = compiled
            .of_function
            .iter()
            .map(|(function, program)| {
                let start = self.module.functions[*function as usize].start;
                (start.wrapping_add(bias), *program)
            })
            .collect();
        let bytes: Vec<u8> = breakpoints
            .iter()
            .map(|(at, _)| stopped.swap_byte(*at, 0xcc))
            .collect();
        let mut seen = Vec::new();
        let mut number = 0;
        while stopped.go_on() {
            let mut regs = ptrace::getregs(stopped.pid).unwrap();
            let at = regs.rip - 1;
            let index = breakpoints
                .iter()
                .position(|b| b.0 == at)
                .expect("a breakpoint");
            let program = breakpoints[index].1;
            let program = &compiled.programs[program as usize];
            regs.rip = at;
            ptrace::setregs(stopped.pid, regs).unwrap();
            number += 1;
            let call = Call {
                number,
                thread: stopped.pid.as_raw() as u32,
                ..Call::default()
            };
            let machine = stopped.machine();
            let mut buffer = vec![0; 4096];
            let mut out = Out::new(&mut buffer);
            let verdict =
                thalweg_bytecode::entry(program, &machine, &mut stopped, &Here, &call, &mut out);
            let entry_values = out.written().to_vec();
            // To the return, then the breakpoint again.
            stopped.swap_byte(at, bytes[index]);
            let back = stopped.word(regs.rsp);
            let under = stopped.swap_byte(back, 0xcc);
            assert!(stopped.go_on(), "the function returns");
            let mut regs = ptrace::getregs(stopped.pid).unwrap();
            assert_eq!(regs.rip - 1, back, "targets do not recurse");
            regs.rip = back;
            ptrace::setregs(stopped.pid, regs).unwrap();
            stopped.swap_byte(back, under);
            stopped.swap_byte(at, 0xcc);
            let machine = stopped.machine();
            let mut buffer = vec![0; 4096];
            let mut out = Out::new(&mut buffer);
            let kept = verdict != Verdict::No
                && thalweg_bytecode::exit(
                    program,
                    &machine,
                    &mut stopped,
                    &call,
                    &entry_values,
                    &mut out,
                );
            let mut items = entry_values;
            items.extend(out.written());
            seen.push(Seen {
                kept,
                values: decode_all(&compiled.descriptions, &items),
                items,
            });
        }
        seen
    }
}

pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/targets")
        .join(name)
}

struct Here;

impl Surroundings for Here {
    fn caller_in(&self, _: u16) -> bool {
        true
    }
    fn above_in(&self, _: u16) -> bool {
        false
    }
    fn active(&self, _: u16) -> bool {
        false
    }
    fn fired(&self, _: u16) -> bool {
        false
    }
    fn thread_name(&self) -> [u8; 16] {
        *b"target\0\0\0\0\0\0\0\0\0\0"
    }
}

/// A process under our control; it waits for a byte on its standard input before it does anything.
struct Stopped {
    child: Child,
    pid: Pid,
    memory: File,
}

impl Stopped {
    fn start(path: &Path) -> Stopped {
        let mut child = Command::new(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        // It has to be past its own start for its code to be there.
        loop {
            let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
            if call.starts_with("0 0x0 ") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        ptrace::attach(pid).unwrap();
        waitpid(pid, None).unwrap();
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .unwrap();
        drop(child.stdin.take());
        Stopped { child, pid, memory }
    }

    fn bias(&self, path: &Path, position_independent: bool) -> u64 {
        if !position_independent {
            return 0;
        }
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap();
        let path = path.to_str().unwrap();
        let line = maps.lines().find(|line| line.ends_with(path)).unwrap();
        u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap()
    }

    /// Until the next breakpoint; false at the end of the process.
    fn go_on(&self) -> bool {
        let mut signal = None;
        loop {
            ptrace::cont(self.pid, signal).unwrap();
            match waitpid(self.pid, None).unwrap() {
                WaitStatus::Stopped(_, Signal::SIGTRAP) => return true,
                WaitStatus::Stopped(_, other) => signal = Some(other),
                WaitStatus::Exited(_, code) => {
                    assert_eq!(code, 0, "the target's own checks");
                    return false;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn swap_byte(&self, at: u64, byte: u8) -> u8 {
        let mut old = [0];
        self.memory.read_exact_at(&mut old, at).unwrap();
        self.memory.write_all_at(&[byte], at).unwrap();
        old[0]
    }

    fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn machine(&self) -> Machine {
        let regs = ptrace::getregs(self.pid).unwrap();
        let vectors = ptrace::getregset::<regset::NT_PRFPREG>(self.pid).unwrap();
        let low = |n: usize| {
            u64::from(vectors.xmm_space[4 * n]) | u64::from(vectors.xmm_space[4 * n + 1]) << 32
        };
        Machine {
            int: [
                regs.rdi, regs.rsi, regs.rdx, regs.rcx, regs.r8, regs.r9, 0, 0, 0,
            ],
            float: std::array::from_fn(low),
            sp: regs.rsp,
            ret: [regs.rax, regs.rdx],
            ret_float: [low(0), low(1)],
            errno: 0,
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Memory for Stopped {
    fn read(&mut self, at: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            match self
                .memory
                .read_at(&mut into[done..], at.wrapping_add(done as u64))
            {
                Ok(0) | Err(_) => break,
                Ok(n) => done += n,
            }
        }
        done
    }
}
