//! panics [uncaught]: panics that are caught, that end a thread, and, if asked, that end the program.
//! Prints per function how often it was entered and how often it returned.

use std::hint::black_box;
use std::panic;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

static ENTERED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static RETURNED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

#[inline(never)]
fn fails(n: u64) -> u64 {
    ENTERED[0].fetch_add(1, Relaxed);
    if black_box(n) % 4 == 0 {
        panic!("multiple of four");
    }
    RETURNED[0].fetch_add(1, Relaxed);
    n
}

#[inline(never)]
fn descends(depth: u64, n: u64) -> u64 {
    ENTERED[1].fetch_add(1, Relaxed);
    let held = vec![n; 4];
    let r = if depth == 0 { fails(n) } else { descends(depth - 1, n) };
    RETURNED[1].fetch_add(1, Relaxed);
    r + black_box(held)[0]
}

fn main() {
    if std::env::args().nth(1).is_some() {
        descends(5, 0);
    }
    panic::set_hook(Box::new(|_| {}));
    let caught = (0..40).filter(|&n| panic::catch_unwind(|| descends(3, n)).is_err()).count();
    let ended = (0..8).filter(|&n| thread::spawn(move || descends(2, n)).join().is_err()).count();
    println!("panics: ok {caught} {ended}");
    for (at, name) in ["panics::fails", "panics::descends"].iter().enumerate() {
        println!("{name} {} {}", ENTERED[at].load(Relaxed), RETURNED[at].load(Relaxed));
    }
}
