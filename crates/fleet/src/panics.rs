//! The library of the file format panics at some of what is no Parquet, in a thread of the engine's, which then may answer
//! without that file's rows: an answer during which something panicked is none.

use std::sync::atomic::{AtomicBool, Ordering};

static ANY: AtomicBool = AtomicBool::new(false);

/// From now on; panics of the main thread are told, as ever.
pub fn note() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        ANY.store(true, Ordering::SeqCst);
        if std::thread::current().name() == Some("main") {
            usual(panic);
        }
    }));
}

pub fn any() -> bool {
    ANY.load(Ordering::SeqCst)
}
