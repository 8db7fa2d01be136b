use super::*;
use crate::filter::Filter;
use crate::survey::Survey;
use std::path::Path;

/// A library of this machine, analysed.
fn fresh(name: &str) -> (Fresh, File) {
    fresh_for(name, Filter::default())
}

fn fresh_for(name: &str, filter: Filter) -> (Fresh, File) {
    let directories = ["/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib"];
    let paths = directories.map(|directory| Path::new(directory).join(name));
    let path = paths.into_iter().find(|path| path.exists());
    let path = path.expect("a library of this machine");
    let file = File::open(&path).expect("readable");
    let mut survey = Survey::of_file(&path, &filter).expect("analysed");
    let fresh = Fresh {
        key: FileKey::of(&file, &path, &filter).expect("a file"),
        debug_files: vec![("/nonexistent/debug".into(), None)],
        content: Content::Surveyed(Box::new(survey.modules.remove(0))),
    };
    (fresh, file)
}

fn surveyed_of(fresh: &Fresh) -> &Surveyed {
    match &fresh.content {
        Content::Surveyed(surveyed) => surveyed,
        Content::Bytes(_) => panic!("a surveyed file"),
    }
}

fn writer() -> Stamp {
    Stamp::of_path("/proc/self/exe".as_ref()).expect("this program")
}

/// What comes of `bytes`, as bytes.
fn again(bytes: &[u8], of: &Fresh, file: &File) -> Option<Vec<u8>> {
    let surveyed = unpack(bytes, &writer(), &of.key, file)?;
    let again = Fresh {
        key: of.key.clone(),
        debug_files: of.debug_files.clone(),
        content: Content::Surveyed(Box::new(surveyed)),
    };
    pack(&again, &writer())
}

#[test]
fn what_comes_back_is_what_was_kept() {
    for name in ["libc.so.6", "libm.so.6"] {
        let (fresh, file) = fresh(name);
        let bytes = pack(&fresh, &writer()).expect("packed");
        assert!(!surveyed_of(&fresh).plan.functions.is_empty());
        assert_eq!(again(&bytes, &fresh, &file), Some(bytes), "{name}");
        let back = {
            let bytes = pack(&fresh, &writer()).expect("packed");
            unpack(&bytes, &writer(), &fresh.key, &file).expect("unpacked")
        };
        assert_eq!(back.module.functions, surveyed_of(&fresh).module.functions);
        for (a, b) in back
            .module
            .sections
            .iter()
            .zip(&surveyed_of(&fresh).module.sections)
        {
            assert!(a.name == b.name && a.size == b.size, "{}", a.name);
            // Code, and what else is asked for without an analysis.
            let is_needed = a.executable || a.name == ".dynamic";
            assert!(a.bytes == b.bytes || !is_needed, "{}", a.name);
        }
    }
}

#[test]
fn plans_of_blocks_come_back_as_they_were_kept() {
    let blocks = || Filter::default().with_blocks(true);
    let (fresh, file) = fresh_for("libm.so.6", blocks());
    let bytes = pack(&fresh, &writer()).expect("packed");
    assert_eq!(again(&bytes, &fresh, &file).as_ref(), Some(&bytes));
    let back = unpack(&bytes, &writer(), &fresh.key, &file).expect("unpacked");
    let kept = surveyed_of(&fresh).blocks.as_ref().expect("blocks");
    let back = back.blocks.expect("blocks");
    assert!(kept.blocks.len() > 1000 && back.blocks == kept.blocks);
    // What a plan says is all in what it emits.
    let code = |plan: &thalweg_blocks::BlockPlan| {
        let place = thalweg_blocks::Placement {
            bias: 0x10_0000,
            base: 0x4000_0000,
            encoder: &Numbers,
        };
        let module = &surveyed_of(&fresh).module;
        let code = thalweg_blocks::emit(module, plan, &place).expect("emitted");
        format!("{code:?}")
    };
    assert!(code(&back) == code(kept), "another cave");
}

struct Numbers;

impl thalweg_blocks::Encoder for Numbers {
    fn count(&self, counter: u32) -> [u8; thalweg_blocks::COUNT_BYTES] {
        let mut code = [0x65, 0x48, 0xff, 0x04, 0x25, 0, 0, 0, 0];
        code[5..].copy_from_slice(&(counter * 8).to_le_bytes());
        code
    }

    fn claim(&self) -> u64 {
        0x3000_0000
    }
}

#[test]
fn a_damaged_plan_of_blocks_is_none_or_another_one_and_nothing_breaks() {
    let (fresh, file) = fresh_for("libdl.so.2", Filter::default().with_blocks(true));
    let mut stored = Out::default();
    stored::store(&mut stored, surveyed_of(&fresh)).expect("stored");
    for at in 0..stored.0.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, stored.0[at] ^ 4] {
            let mut damaged = stored.0.clone();
            damaged[at] = value;
            let _ = stored::restore(&mut In(&damaged), &file);
            let _ = stored::restore(&mut In(&damaged[..at]), &file);
        }
    }
}

#[test]
fn a_damaged_entry_is_none_wherever_the_damage_is() {
    let (fresh, file) = fresh("libdl.so.2");
    let bytes = pack(&fresh, &writer()).expect("packed");
    for at in 0..bytes.len() {
        assert!(again(&bytes[..at], &fresh, &file).is_none(), "cut at {at}");
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            // Bits that mean nothing to the unpacker are no damage.
            let came = again(&damaged, &fresh, &file);
            assert!(came.is_none_or(|came| came == bytes), "byte {at} bit {bit}");
        }
    }
}

#[test]
fn reading_stored_bytes_is_total() {
    let (fresh, file) = fresh("libdl.so.2");
    let mut stored = Out::default();
    stored::store(&mut stored, surveyed_of(&fresh)).expect("stored");
    for at in 0..stored.0.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, stored.0[at] ^ 4] {
            let mut damaged = stored.0.clone();
            damaged[at] = value;
            let _ = stored::restore(&mut In(&damaged), &file);
            let _ = stored::restore(&mut In(&damaged[..at]), &file);
        }
    }
}

#[test]
fn an_entry_is_for_one_file_one_program_and_its_debug_files_only() {
    let (mut fresh, file) = fresh("libdl.so.2");
    let bytes = pack(&fresh, &writer()).expect("packed");
    let (other, _) = self::fresh("libm.so.6");
    assert!(unpack(&bytes, &writer(), &fresh.key, &file).is_some());
    assert!(unpack(&bytes, &writer(), &other.key, &file).is_none());
    let another = Stamp::of_path("/bin/sh".as_ref()).expect("a shell");
    assert!(unpack(&bytes, &another, &fresh.key, &file).is_none());
    // A debug file that was not there, and now is.
    fresh.debug_files = vec![("/bin/sh".into(), None)];
    let bytes = pack(&fresh, &writer()).expect("packed");
    assert!(unpack(&bytes, &writer(), &fresh.key, &file).is_none());
}

#[test]
fn the_directory_is_bounded_and_what_was_used_last_stays() {
    let path = std::env::temp_dir().join(format!("thalweg-cache-{}", std::process::id()));
    let directory = Directory::open_or_make(&path).expect("made");
    for name in ["a", "b", "c", "d"] {
        directory.write(name, &[7; 1000]);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    directory.touch("a");
    directory.prune(2500);
    let left: Vec<String> = directory.entries().into_iter().map(|e| e.name).collect();
    assert_eq!(left, ["a", "d"]);
    assert_eq!(directory.read("a", 999), None, "too long");
    assert_eq!(directory.read("a", 1000), Some(vec![7; 1000]));
    assert_eq!(directory.clear().0, 2);
    std::fs::remove_dir(path).expect("empty");
}
