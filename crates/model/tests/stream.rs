//! A file's recorded calls, read some at a time, are those that are there when it is read as a
//! whole.

mod common;

use common::{add_calls, any_profile, body_of, file_of, realistic};
use proptest::prelude::*;
use thalweg_model::{Call, CallFile, CallValue, Profile, ReadError, read, write};

/// What a call is, without where it lies: its values by name, and the id of its parent.
type Told = (Call, Option<u64>, Vec<(String, bool, String)>);

fn told(profile: &Profile, ids: &[u64]) -> Vec<Told> {
    let recorded = &profile.recorded;
    let of = |call: &Call| {
        let values = recorded.values.at(call.values);
        let values = values.map(|value| {
            let name = recorded.names[value.name as usize].clone();
            (name, value.at_entry, value.json.to_owned())
        });
        let parent = call.parent.map(|parent| ids[parent as usize]);
        let values = values.collect();
        let mut call = call.clone();
        call.values = Default::default();
        (call, parent, values)
    };
    recorded.calls.iter().map(of).collect()
}

fn in_blocks(file: &[u8]) -> Result<(Profile, Vec<Told>, usize), ReadError> {
    let mut file = CallFile::read(&mut &file[..])?;
    let mut all = Vec::new();
    let mut blocks = 0;
    file.for_each_block(|block| {
        all.extend(told(block.profile, block.ids));
        blocks += 1;
        Ok::<(), ReadError>(())
    })?;
    Ok((file.profile().clone(), all, blocks))
}

#[track_caller]
fn comes_out_alike(file: &[u8]) -> usize {
    let whole = read(&mut &file[..]).expect("a profile");
    let ids: Vec<u64> = whole.recorded.calls.iter().map(|call| call.id).collect();
    let (about, calls, blocks) = in_blocks(file).expect("the same");
    assert!(calls == told(&whole, &ids));
    assert_eq!(about.functions, whole.functions);
    assert_eq!(about.recorded.rules, whole.recorded.rules);
    assert_eq!(about.recorded.signatures, whole.recorded.signatures);
    assert_eq!(about.recorded.dropped, whole.recorded.dropped);
    blocks
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_calls_of_every_profile_come_out_alike(mut profile in any_profile()) {
        if profile.recorded.calls.is_empty() {
            add_calls(&mut profile);
        }
        comes_out_alike(&write(&profile).unwrap());
    }

    #[test]
    fn what_is_damaged_is_refused_or_sound_but_never_panics(
        mut profile in any_profile(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        if profile.recorded.calls.is_empty() {
            add_calls(&mut profile);
        }
        let mut body = body_of(&write(&profile).unwrap());
        for (place, value) in changes {
            let place = place.index(body.len());
            body[place] = value;
        }
        let _ = in_blocks(&file_of(&body));
    }
}

#[test]
fn calls_and_values_that_no_block_and_no_window_holds_come_out_alike() {
    let mut profile = realistic(10);
    add_calls(&mut profile);
    let recorded = &mut profile.recorded;
    let call = recorded.calls[0].clone();
    let long = format!("{:?}", "x".repeat(300_000));
    for index in 0..20_000u32 {
        let json = match index {
            7_777 => long.clone(),
            _ => index.to_string(),
        };
        let value = CallValue {
            name: 0,
            at_entry: index % 2 == 0,
            json: &json,
        };
        let values = recorded.values.add([value]);
        recorded.calls.push(Call {
            id: u64::from(index) * 3 + 100,
            parent: Some(index / 2),
            values,
            ..call.clone()
        });
    }
    assert!(comes_out_alike(&write(&profile).unwrap()) > 4);
}

#[test]
fn who_has_seen_enough_is_given_no_more() {
    let mut profile = realistic(10);
    add_calls(&mut profile);
    let call = profile.recorded.calls[0].clone();
    profile.recorded.calls.resize(50_000, call);
    let bytes = write(&profile).unwrap();
    let mut file = CallFile::read(&mut bytes.as_slice()).unwrap();
    let mut blocks = 0;
    let stopped = file.for_each_block(|_| {
        blocks += 1;
        Err(ReadError::Corrupt("enough"))
    });
    assert!(matches!(stopped, Err(ReadError::Corrupt("enough"))));
    assert_eq!(blocks, 1);
}
