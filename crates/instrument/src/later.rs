//! What nobody waits for.

/// Gives memory back beside other work: the tables of a program with 100,000 functions take a tenth
/// of a second, which the target would stand still for, or whoever waits for the end of a
/// recording.
pub fn drop_later<T: Send + 'static>(what: T) {
    // Without a thread it is dropped here.
    let _ = std::thread::Builder::new()
        .name("drop".into())
        .spawn(move || drop(what));
}
