// Values of Rust and its library.
use std::hint::black_box;
use std::io::Read;

#[derive(Clone, Copy, Debug)]
pub enum Color {
    Red,
    Green,
}

#[derive(Debug)]
pub enum Event {
    Quit,
    Move { x: i32, y: i32 },
    Say(String),
}

pub struct Account {
    pub id: u64,
    pub name: String,
    pub tags: Vec<u16>,
}

pub struct Two {
    pub a: u32,
    pub b: f64,
}

#[inline(never)]
pub fn texts(a: &str, b: String, c: &String, n: u32) -> usize {
    black_box(a.len() + b.len() + c.len() + n as usize)
}

#[inline(never)]
pub fn lists(a: &[u16], b: &Vec<u64>, c: Vec<u8>) -> usize {
    black_box(a.len() + b.len() + c.len())
}

#[inline(never)]
pub fn many(names: &[String], words: Vec<&str>) -> usize {
    black_box(names.len() + words.len())
}

#[inline(never)]
pub fn options(a: Option<u32>, b: Option<&str>, c: Option<Box<u8>>, color: Color) -> bool {
    black_box(a.is_some() && b.is_some() && c.is_none() && matches!(color, Color::Green))
}

#[inline(never)]
pub fn results(n: u32) -> Result<u32, String> {
    if black_box(n) > 5 {
        Err(format!("{n} is too large"))
    } else {
        Ok(n)
    }
}

#[inline(never)]
pub fn pairs(two: Two, tuple: (u8, i64), big: [u32; 3]) -> (i32, f32) {
    black_box((two.a as i32 + tuple.0 as i32 + big[2] as i32, two.b as f32 + tuple.1 as f32))
}

#[inline(never)]
pub fn events(event: &Event) -> Option<&str> {
    match black_box(event) {
        Event::Say(text) => Some(text),
        _ => None,
    }
}

impl Account {
    #[inline(never)]
    pub fn rename(&mut self, name: &str) -> u64 {
        self.name = name.to_owned();
        black_box(self.id)
    }
}

/// A function whose address is taken is called as it was written, whatever the compiler sees.
fn at<F>(function: F) -> F {
    black_box(function)
}

fn main() {
    let mut byte = [0];
    let _ = std::io::stdin().read(&mut byte);
    let owned = String::from("an owned text");
    at::<fn(&str, String, &String, u32) -> usize>(texts)("borrowed", owned.clone(), &owned, 77);
    at::<fn(&[u16], &Vec<u64>, Vec<u8>) -> usize>(lists)(&[1, 2, 3], &vec![10, 20], b"bytes".to_vec());
    at::<fn(&[String], Vec<&str>) -> usize>(many)(&["one".into(), "two".into()], vec!["three"]);
    let options = at::<fn(Option<u32>, Option<&str>, Option<Box<u8>>, Color) -> bool>(options);
    options(Some(4), Some("inside"), None, Color::Green);
    options(None, None, Some(Box::new(3)), Color::Red);
    let results = at::<fn(u32) -> Result<u32, String>>(results);
    black_box(results(3).is_ok());
    black_box(results(9).is_ok());
    at::<fn(Two, (u8, i64), [u32; 3]) -> (i32, f32)>(pairs)(Two { a: 5, b: 2.5 }, (6, -7), [1, 2, 3]);
    let events = at::<fn(&Event) -> Option<&str>>(events);
    events(&Event::Quit);
    events(&Event::Move { x: 3, y: -4 });
    events(&Event::Say("hello".into()));
    let mut account = Account { id: 12, name: "before".into(), tags: vec![7, 8] };
    at::<fn(&mut Account, &str) -> u64>(Account::rename)(&mut account, "after");
    black_box(account.tags.len());
    black_box(std::panic::catch_unwind(|| {
        std::panic::set_hook(Box::new(|_| {}));
        if black_box(true) {
            panic!("it went wrong");
        }
    })
    .is_err());
}
