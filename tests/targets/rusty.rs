//! A Rust target: trait objects, closures, sorting with callbacks, threads, and panics that are caught.

use std::hint::black_box;
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc;
use std::thread;

#[inline(never)]
fn collatz(n: u64) -> u64 {
    let n = black_box(n);
    if n == 1 {
        return 0;
    }
    let steps = if n % 2 == 0 { collatz(n / 2) } else { collatz(3 * n + 1) };
    black_box(steps) + 1
}

trait Shape {
    fn area(&self) -> u64;
}

struct Square(u64);
struct Strip(u64, u64);

impl Shape for Square {
    #[inline(never)]
    fn area(&self) -> u64 {
        black_box(self.0) * self.0
    }
}

impl Shape for Strip {
    #[inline(never)]
    fn area(&self) -> u64 {
        black_box(self.0) * self.1
    }
}

#[inline(never)]
fn total_area(shapes: &[Box<dyn Shape>]) -> u64 {
    shapes.iter().map(|shape| shape.area()).sum()
}

#[inline(never)]
fn by_last_digit(a: &u64, b: &u64) -> std::cmp::Ordering {
    (a % 10, a).cmp(&(b % 10, b))
}

#[inline(never)]
fn sort_numbers() -> u64 {
    let mut numbers: Vec<u64> = (0..300).map(|i| i * 7919 % 1000).collect();
    numbers.sort_by(by_last_digit);
    numbers.iter().enumerate().map(|(at, n)| at as u64 * n).sum()
}

#[inline(never)]
fn fails_on(n: u64) -> u64 {
    if black_box(n) % 3 == 0 {
        panic!("multiple of three");
    }
    n
}

struct Counted<'a>(&'a std::cell::Cell<u64>);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[inline(never)]
fn guarded(n: u64, drops: &std::cell::Cell<u64>) -> u64 {
    let _guard = Counted(drops);
    fails_on(n) + black_box(1)
}

#[inline(never)]
fn survives(n: u64, drops: &std::cell::Cell<u64>) -> Option<u64> {
    panic::catch_unwind(AssertUnwindSafe(|| guarded(n, drops))).ok()
}

#[inline(never)]
fn worker(seed: u64) -> u64 {
    (1..50).map(|i| collatz(seed + i)).sum()
}

fn main() {
    panic::set_hook(Box::new(|_| {}));
    let shapes: Vec<Box<dyn Shape>> =
        (0..40).map(|i| if i % 3 == 0 { Box::new(Square(i)) as Box<dyn Shape> } else { Box::new(Strip(i, 2)) }).collect();
    let area = total_area(&shapes);
    let sorted = sort_numbers();
    let drops = std::cell::Cell::new(0);
    let caught = (0..60).filter(|&n| survives(n, &drops).is_none()).count();
    assert_eq!(caught, 20);
    assert_eq!(drops.get(), 60);
    let (sender, receiver) = mpsc::channel();
    let threads: Vec<_> = (0..4)
        .map(|i| {
            let sender = sender.clone();
            thread::spawn(move || sender.send(worker(i * 100)).expect("receiver lives"))
        })
        .collect();
    drop(sender);
    for thread in threads {
        thread.join().expect("worker ends well");
    }
    let steps: u64 = receiver.iter().sum();
    println!("rusty: ok {area} {sorted} {steps}");
}
