//! Files that users are sent: profiles, other tools' data, rules.

use thalweg_formats::import::{Format, Unit, read};
use thalweg_model::{CallFile, Profile, ReadError};
use xxhash_rust::xxh3::xxh3_64;

/// The bytes as the body of a profile's file, with the lengths and the checksum that belong to them.
pub fn packed(body: &[u8]) -> Vec<u8> {
    let len = (body.len() as u64).to_le_bytes();
    let mut file = b"\x89thalweg\x01\0\0\0".to_vec();
    file.extend(len);
    file.extend(len);
    file.extend(body);
    file.extend(xxh3_64(&file).to_le_bytes());
    file
}

/// The body of a profile; also as the whole of a file, which goes no further than the checksum.
pub fn profile(data: &[u8]) {
    let _ = thalweg_model::read(&mut &*data);
    let file = packed(data);
    if let Ok(profile) = thalweg_model::read(&mut &*file) {
        use_all(&profile);
        let again = thalweg_model::write(&profile).expect("what was read can be written");
        let again = thalweg_model::read(&mut &*again).expect("and read again");
        assert_eq!(again, profile);
    }
    if let Ok(mut calls) = CallFile::read(&mut &*file) {
        let _ = calls.for_each_block(|_| Ok::<(), ReadError>(()));
    }
}

/// What reports make of a profile.
fn use_all(profile: &Profile) {
    use thalweg_analysis as analysis;
    analysis::summary(profile);
    analysis::executed(profile);
    analysis::total_executed(profile);
    analysis::hottest_path(profile);
    analysis::Overview::from_profile(profile);
    analysis::flat(profile);
    analysis::stanzas(profile);
    analysis::together(profile);
}

fn imported(data: &[u8], format: Format) {
    let _ = read(data, None, Unit::Samples);
    if let Ok((_, profile)) = read(data, Some(format), Unit::Milliseconds) {
        use_all(&profile);
        thalweg_model::write(&profile).expect("what is imported can be saved");
    }
}

pub fn pprof(data: &[u8]) {
    imported(data, Format::Pprof);
}

pub fn callgrind(data: &[u8]) {
    imported(data, Format::Callgrind);
}

pub fn folded(data: &[u8]) {
    imported(data, Format::Folded);
}

pub fn perf_script(data: &[u8]) {
    imported(data, Format::PerfScript);
}

pub fn chrome(data: &[u8]) {
    imported(data, Format::Chrome);
}

pub fn rules(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = thalweg_rules::RulesFile::parse(&text, "rules.toml");
    for line in text.lines() {
        let _ = thalweg_rules::Rule::parse(line);
    }
}
