//! Other rules for a target that is attached and runs on: nothing is stopped, and what was recorded stays.
//!
//! Rules keep their numbers, since records name them: one that is taken out stays in the list as removed, and new ones follow it.

use regex::Regex;
use thalweg_abi as shm;
use thalweg_model::Language;
use thalweg_rules::{Options, Redactions, Rule};

use super::Recording;
use super::needed::{check_for_budget, check_for_off};
use super::tables::{About, Counted, Tables, about};
use crate::attendants;
use crate::catalogs;
use crate::error::{Error, Result};
use crate::loaded;
use crate::memory::Shared;

/// What is to change.
#[derive(Clone, Debug, Default)]
pub struct Change {
    pub add: Vec<Rule>,
    /// By number, from 1 on.
    pub remove: Vec<usize>,
}

/// Changes the rules of an attached target, or only says what they are.
pub fn change(shared: &Shared, change: &Change) -> Result<About> {
    let header = shared.header()?;
    if header.flags & shm::HEADER_RECORDS == 0 {
        return Err(Error::Refused(
            "no calls are recorded here: its probes cannot do so unless it is attached with --rule or --recordable"
                .into(),
        ));
    }
    match attendants::keeper(&header) {
        Some(_) => check_for_budget(&change.add)?,
        None => check_for_off(&change.add, shared, &header)?,
    }
    let known = about(shared, &header)?;
    if change.add.is_empty() && change.remove.is_empty() {
        return Ok(known);
    }
    write(shared, &header, known, change)
}

fn write(shared: &Shared, header: &shm::Header, known: About, change: &Change) -> Result<About> {
    let wrong = |error: thalweg_rules::RuleError| Error::Rule(Box::new(error));
    let mut rules = Vec::new();
    for rule in &known.rules {
        rules.push(Rule::parse(&rule.text).map_err(wrong)?);
    }
    let removed = known.rules.iter().enumerate();
    let removed = removed.filter(|(_, rule)| rule.removed);
    let mut removed: std::collections::BTreeSet<usize> = removed.map(|(index, _)| index).collect();
    for &number in &change.remove {
        let index = number.checked_sub(1).filter(|index| *index < rules.len());
        match index {
            Some(index) if removed.insert(index) => {}
            _ => {
                return Err(Error::Refused(format!(
                    "there is no rule {number}: `thalweg rules -p PID` lists them"
                )));
            }
        }
    }
    rules.extend(change.add.iter().cloned());
    let roots = known.roots.iter().map(|root| Regex::new(root));
    let roots = roots.collect::<std::result::Result<_, _>>();
    let recording = Recording {
        rules,
        removed,
        options: Options {
            redact: Redactions::new(&known.redact).map_err(wrong)?,
            text_limit: known.text_limit,
        },
        redact: known.redact,
        roots: roots.map_err(|error| Error::Damaged(format!("the target's rules: {error}")))?,
        memory: 0,
        overwrite: false,
        keep: 0,
    };
    let functions = functions(shared, header, &known.go)?;
    let tables = Tables::compile(&recording, &functions, true)?;
    tables.write(shared, header)?;
    about(shared, header)
}

/// The same rules once more, for functions that were loaded since.
pub fn reapply(shared: &Shared) -> Result<()> {
    let header = shared.header()?;
    let known = about(shared, &header)?;
    write(shared, &header, known, &Change::default()).map(drop)
}

/// All functions that the target counts, by its own catalog.
pub(super) fn functions(
    shared: &Shared,
    header: &shm::Header,
    go: &[(u32, u32)],
) -> Result<Vec<Counted>> {
    let catalog = shared.read_vec(header.catalog_offset, header.catalog_len)?;
    let mut profile = catalogs::read(&catalog)?;
    loaded::add_catalogs(&mut profile, shared, header)?;
    let counted = (0..).zip(&profile.functions).map(|(number, function)| {
        let module = &profile.modules[function.module as usize];
        Counted {
            number,
            name: function.name.clone(),
            linkage_name: None,
            module: module.path.clone().into(),
            address: function.address,
            go: go
                .iter()
                .any(|(first, end)| (*first..*end).contains(&number)),
            managed: matches!(function.language, Language::Python | Language::Java),
        }
    });
    Ok(counted.collect())
}
