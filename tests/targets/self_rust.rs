// Asks thalweg for its own figures through the crate, and prints what must be 1, 1, 1.
use std::hint::black_box;

#[inline(never)]
fn leaf(number: u64) -> u64 {
    black_box(number) + 1
}

fn main() {
    let before = thalweg_self::thread_totals();
    let sum = thalweg_self::region!(numbers, (0..1000).map(leaf).sum::<u64>());
    let after = thalweg_self::thread_totals();
    let process = thalweg_self::process_totals();
    let calls = after.calls - before.calls;
    assert_eq!(sum, 500_500);
    println!(
        "{} {} {}",
        before.attached,
        u8::from((1002..1100).contains(&calls)),
        u8::from(process.calls >= after.calls)
    );
}
