//! A regular expression as a table that the target walks: one step a byte, no memory, always ends.
//! The layout is that of `thalweg_bytecode`'s text.rs.

use std::collections::HashMap;

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::util::{start, syntax};
use regex_automata::{Anchored, MatchKind};

/// What one table may take: programs are copied into the target.
const LARGEST: usize = 24 * 1024;

/// Why an expression cannot be decided in the target.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// What the automaton is made from says so.
    Unsupported(String),
    TooLarge,
}

/// Bytes are bytes: `.` is any but a line's end, `\d` and `(?i)` mean ASCII.
pub(crate) fn table(pattern: &str) -> Result<Vec<u8>, Refusal> {
    let dfa = dense::Builder::new()
        .configure(
            dense::Config::new()
                .match_kind(MatchKind::LeftmostFirst)
                .start_kind(StartKind::Unanchored)
                .minimize(true)
                .accelerate(false)
                .dfa_size_limit(Some(1 << 20))
                .determinize_size_limit(Some(4 << 20)),
        )
        .syntax(syntax::Config::new().unicode(false).utf8(false))
        .build(pattern)
        .map_err(|error| {
            if error.is_size_limit_exceeded() {
                return Refusal::TooLarge;
            }
            let source = std::error::Error::source(&error).map(ToString::to_string);
            let all = source.unwrap_or_else(|| error.to_string());
            let last = all.lines().last().unwrap_or_default();
            Refusal::Unsupported(last.trim_start_matches("error: ").to_owned())
        })?;
    let config = start::Config::new().anchored(Anchored::No);
    let first = dfa
        .start_state(&config)
        .map_err(|error| Refusal::Unsupported(error.to_string()))?;
    let (map, examples) = classes(&dfa);
    let mut numbers = HashMap::from([(first, 0u16)]);
    let mut states = vec![first];
    let mut next = Vec::new();
    let mut at = 0;
    while let Some(state) = states.get(at).copied() {
        at += 1;
        let mut successors: Vec<StateID> = examples
            .iter()
            .map(|byte| dfa.next_state(state, *byte))
            .collect();
        successors.push(dfa.next_eoi_state(state));
        for successor in successors {
            let number = match numbers.get(&successor) {
                Some(number) => *number,
                None => {
                    let number = u16::try_from(states.len()).map_err(|_| Refusal::TooLarge)?;
                    numbers.insert(successor, number);
                    states.push(successor);
                    number
                }
            };
            next.extend(number.to_le_bytes());
            if next.len() > LARGEST {
                return Err(Refusal::TooLarge);
            }
        }
    }
    let mut table = Vec::with_capacity(8 + 256 + states.len() + next.len());
    table.extend((states.len() as u16).to_le_bytes());
    table.extend((examples.len() as u16).to_le_bytes());
    table.extend([0; 4]);
    table.extend(map);
    table.extend(states.iter().map(|state| kind(&dfa, *state)));
    table.extend(next);
    Ok(table)
}

fn kind(dfa: &dense::DFA<Vec<u32>>, state: StateID) -> u8 {
    if dfa.is_match_state(state) {
        1
    } else if dfa.is_dead_state(state) {
        2
    } else {
        0
    }
}

/// Each byte's class, and one byte of each class.
fn classes(dfa: &dense::DFA<Vec<u32>>) -> ([u8; 256], Vec<u8>) {
    let mut map = [0; 256];
    let mut examples = Vec::new();
    let mut numbers = HashMap::new();
    for byte in 0..=255u8 {
        let class = dfa.byte_classes().get(byte);
        let number = *numbers.entry(class).or_insert_with(|| {
            examples.push(byte);
            (examples.len() - 1) as u8
        });
        map[usize::from(byte)] = number;
    }
    (map, examples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_small_and_what_is_too_large_is_refused() {
        assert!(table("^SELECT .* FROM").unwrap().len() < 2000);
        assert!(table("(?i)timeout|refused").unwrap().len() < 4000);
        assert_eq!(table("(a|b)*a(a|b){14}"), Err(Refusal::TooLarge));
        assert!(matches!(table(r"\p{Greek}"), Err(Refusal::Unsupported(_))));
    }
}
