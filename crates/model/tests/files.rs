//! A profile stands under its name entirely or not at all.

mod common;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::Command;
use std::thread;

use common::realistic;
use thalweg_model::{FileError, OutputFile, read_file, write_file};

fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_comes_back_and_nothing_else_is_left_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.thalweg");
    for nodes in [50, 20] {
        let profile = realistic(nodes);
        write_file(&path, &profile).unwrap();
        assert_eq!(read_file(&path).unwrap(), profile);
    }
    assert_eq!(names_in(directory.path()), ["a.thalweg"]);
}

#[test]
fn a_write_that_fails_half_way_leaves_what_was_there_before() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.thalweg");
    let disk_full = |file: &mut fs::File| {
        file.write_all(b"half")?;
        Err(io::Error::from(io::ErrorKind::StorageFull))
    };

    let error = OutputFile::create(&path).unwrap().save_with(disk_full);
    assert!(matches!(error, Err(FileError::Write { .. })));
    assert!(names_in(directory.path()).is_empty());

    let before = realistic(5);
    write_file(&path, &before).unwrap();
    OutputFile::create(&path)
        .unwrap()
        .save_with(disk_full)
        .unwrap_err();
    assert_eq!(read_file(&path).unwrap(), before);
    assert_eq!(names_in(directory.path()), ["a.thalweg"]);
}

#[test]
fn a_place_that_is_not_used_after_all_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    drop(OutputFile::create(directory.path().join("a.thalweg")).unwrap());
    assert!(names_in(directory.path()).is_empty());
}

#[test]
fn a_place_that_cannot_be_written_is_known_before_there_is_a_profile() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("no/such/directory/a.thalweg");
    for path in [
        missing.as_path(),
        directory.path(),
        Path::new("/proc/a.thalweg"),
        Path::new(""),
    ] {
        let error = OutputFile::create(path).unwrap_err();
        assert!(matches!(error, FileError::Write { .. }), "{error}");
    }
}

/// A pipe stands for all that is no plain file. Not a device of the machine: if the promise is
/// broken, and the test is run by root, `/dev/null` is gone.
#[test]
fn a_pipe_is_written_to_and_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());

    let reader = thread::spawn({
        let pipe = pipe.clone();
        move || read_file(pipe)
    });
    write_file(&pipe, &realistic(5)).unwrap();
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    assert_eq!(reader.join().unwrap().unwrap(), realistic(5));
    assert_eq!(names_in(directory.path()), ["pipe"]);
}

#[test]
fn a_symbolic_link_stays_one() {
    let directory = tempfile::tempdir().unwrap();
    let real = directory.path().join("real.thalweg");
    let link = directory.path().join("link.thalweg");
    write_file(&real, &realistic(1)).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    write_file(&link, &realistic(7)).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(read_file(&real).unwrap(), realistic(7));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = read_file("/no/such/file.thalweg").unwrap_err();
    assert_eq!(error.to_string(), "cannot read /no/such/file.thalweg");
}

#[test]
fn a_link_that_is_planted_meanwhile_is_replaced_and_not_written_through() {
    let directory = tempfile::tempdir().unwrap();
    let victim = directory.path().join("victim");
    let path = directory.path().join("a.thalweg");
    fs::write(&victim, "precious").unwrap();
    let output = OutputFile::create(&path).unwrap();
    std::os::unix::fs::symlink(&victim, &path).unwrap();
    output.save(&realistic(7)).unwrap();
    assert!(!fs::symlink_metadata(&path).unwrap().is_symlink());
    assert_eq!(read_file(&path).unwrap(), realistic(7));
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    assert_eq!(names_in(directory.path()), ["a.thalweg", "victim"]);
}

#[test]
fn a_link_that_leads_nowhere_is_refused_before_there_is_a_profile() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.thalweg");
    std::os::unix::fs::symlink(directory.path().join("new"), &path).unwrap();
    let error = OutputFile::create(&path).unwrap_err();
    assert!(matches!(error, FileError::Write { .. }), "{error}");
    assert_eq!(names_in(directory.path()), ["a.thalweg"]);
}

/// However the folder is called by then.
#[test]
fn a_file_comes_to_lie_in_the_folder_that_was_meant() {
    let directory = tempfile::tempdir().unwrap();
    let [folder, moved] = ["folder", "moved"].map(|name| directory.path().join(name));
    let [meant, other] = [&moved, &folder].map(|folder| folder.join("a.thalweg"));
    fs::create_dir(&folder).unwrap();
    let output = OutputFile::create(&other).unwrap();
    fs::rename(&folder, &moved).unwrap();
    fs::create_dir(&folder).unwrap();
    output.save(&realistic(7)).unwrap();
    assert_eq!(read_file(&meant).unwrap(), realistic(7));
    assert!(!other.exists());
}
