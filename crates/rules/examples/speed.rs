//! What a program costs in a process that has nothing else to do: nanoseconds an entry and an exit.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use thalweg_bytecode::{Call, Machine, Memory, Nowhere, Out, Verdict, entry, exit};
use thalweg_rules::{FunctionInfo, Options, Rule, compile};

struct Text(Vec<u8>);

const AT: u64 = 0x1000;

impl Memory for Text {
    fn read(&mut self, at: u64, into: &mut [u8]) -> usize {
        let from = (at.wrapping_sub(AT) as usize).min(self.0.len());
        let len = into.len().min(self.0.len() - from);
        into[..len].copy_from_slice(&self.0[from..from + len]);
        len
    }
}

fn main() {
    let function = FunctionInfo {
        number: 0,
        name: "f",
        linkage_name: None,
        module: Path::new(""),
        address: 0,
        go: false,
        managed: false,
    };
    let mut memory =
        Text(b"SELECT name, size FROM files WHERE owner = 17 ORDER BY size\0".to_vec());
    let machine = Machine {
        int: [AT, 50, 0, 0, 0, 0, 0, 0, 0],
        ret: [1, 0],
        ..Machine::default()
    };
    let call = Call::default();
    for text in [
        "f: arg2:int > 100",
        "f: arg2:int > 100 or ret:int < 0",
        "f: arg2:int > 10 and ret:int > 0",
        "f: arg2:int > 10; record arg1:str, arg2:int, ret:int",
        "f: arg1:str =~ /^INSERT/",
        "f: arg1:str =~ /ORDER BY/",
        "f: arg1:str == \"COMMIT\"",
    ] {
        let rule = Rule::parse(text).expect("written here");
        let compiled = compile(&[rule], &[function], &Options::default()).expect("written here");
        let program = &compiled.programs[0];
        let rounds = 1_000_000u32;
        let mut kept = 0;
        let start = Instant::now();
        for _ in 0..rounds {
            let mut buffer = [0; 512];
            let mut out = Out::new(&mut buffer);
            let program = black_box(program);
            let verdict = entry(program, &machine, &mut memory, &Nowhere, &call, &mut out);
            if verdict == Verdict::No {
                continue;
            }
            let mut values = [0; 512];
            let len = out.len();
            values[..len].copy_from_slice(out.written());
            kept += u32::from(exit(
                program,
                &machine,
                &mut memory,
                &call,
                &values[..len],
                &mut out,
            ));
        }
        let each = start.elapsed().as_secs_f64() * 1e9 / f64::from(rounds);
        println!("{each:6.1} ns  {:3} % kept  {text}", kept / (rounds / 100));
    }
}
