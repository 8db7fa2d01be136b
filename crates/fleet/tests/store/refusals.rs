//! What cannot be read is refused in one message, with exit code 2.

use crate::support::{Place, files, fleet, push, recorded, refuse, succeed};

fn query(store: &str) -> std::process::Command {
    let mut command = fleet();
    command.args([
        "query",
        "select sum(calls), min(thread), sum(self_ns) from figures",
        "--from",
        store,
    ]);
    command
}

#[test]
fn a_store_of_a_later_schema_is_refused() {
    let place = Place::new();
    let store = place.store();
    succeed(&mut push(&store, "a", recorded(500)));
    std::fs::write(place.path("store/thalweg-store.json"), r#"{"schema": 2}"#).expect("written");
    let before = files(&place.path("store"));
    for mut command in [push(&store, "b", recorded(500)), query(&store)] {
        assert!(refuse(&mut command).contains("use a later"), "{command:?}");
    }
    assert_eq!(files(&place.path("store")), before);
}

#[test]
fn what_is_no_store_is_not_asked() {
    let place = Place::new();
    assert!(refuse(&mut query(&place.store())).contains("no store"));
    std::fs::create_dir(place.path("store")).expect("made");
    assert!(refuse(&mut query(&place.store())).contains("no store"));
    for bad in ["ftp://x/y", "s3://", "s3://key:secret@bucket/x"] {
        let message = refuse(&mut query(bad));
        assert!(!message.contains("secret"), "{message}");
    }
    let missing = refuse(&mut push(&place.store(), "a", &place.path("none")));
    assert!(missing.contains("none"), "{missing}");
    refuse(&mut push(&place.store(), "../../a", recorded(500)));
}

#[test]
fn hostile_files_are_named() {
    let place = Place::new();
    let store = place.store();
    succeed(&mut push(&store, "a", recorded(500)));
    let figures = files(&place.path("store/figures")).remove(0);
    let contexts = files(&place.path("store/contexts")).remove(0);
    let whole = std::fs::read(&figures).expect("a file");
    let mut scribbled = whole.clone();
    let middle = whole.len() / 3;
    scribbled[middle..middle + 400].fill(0xff);
    let hostile: [(&str, Vec<u8>); 5] = [
        ("nothing", Vec::new()),
        ("text", b"PAR1 this is no Parquet PAR1".to_vec()),
        ("half", whole[..whole.len() / 2].to_vec()),
        ("scribbled", scribbled),
        ("another table's", std::fs::read(contexts).expect("a file")),
    ];
    for (what, bytes) in hostile {
        let bad = figures.with_file_name("20260101T000000Z-0000000000000bad.parquet");
        std::fs::write(&bad, bytes).expect("written");
        let mut check = fleet();
        let message = refuse(check.args(["store", "check", &store]));
        assert!(message.contains("0bad.parquet"), "{what}: {message}");
        println!("asked with {what}");
        let message = refuse(fleet().args(["query", "select * from figures", "--from", &store]));
        assert!(message.contains("0bad.parquet"), "{what}: {message}");
        std::fs::remove_file(bad).expect("removed");
    }
    succeed(&mut query(&store));
}

#[test]
fn questions_change_nothing_and_read_no_other_files() {
    let place = Place::new();
    let store = place.store();
    succeed(&mut push(&store, "a", recorded(500)));
    let before = files(place.0.path());
    let other = place.path("other.csv");
    for sql in [
        format!("copy figures to '{}'", other.display()),
        format!(
            "create external table t stored as csv location '{}'",
            place.path("store").display()
        ),
        "create table t as select 1".to_owned(),
        "drop table figures".to_owned(),
        "select * from '/etc/passwd'".to_owned(),
        "set datafusion.execution.batch_size = 1".to_owned(),
    ] {
        refuse(fleet().args(["query", &sql, "--from", &store]));
    }
    assert_eq!(files(place.0.path()), before);
}
