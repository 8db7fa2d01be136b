//! Functions that were seen, numbered in the order in which they were: those that are counted have the number of their probes,
//! the others only a place in a module.

use std::collections::HashMap;
use std::sync::Arc;

use thalweg_model as model;

use super::charge::Numbers;

/// A function that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FunctionId(pub(super) u32);

/// What a function is known by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Function {
    /// The number that its probes have.
    Probed(u32),
    Unprobed {
        module: Arc<ModuleName>,
        address: u64,
        name: String,
    },
}

impl Function {
    /// Stands for callers that are not known, in the place of the outermost frame. No function has this number.
    pub(super) const UNKNOWN: Function = Function::Probed(u32::MAX);
}

/// Names a module as a profile does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ModuleName {
    pub(super) name: String,
    pub(super) path: String,
    pub(super) build_id: String,
    pub(super) functions: u32,
}

#[derive(Default)]
pub(super) struct Functions {
    all: Vec<Function>,
    ids: HashMap<Function, FunctionId>,
}

impl Functions {
    pub(super) fn id(&mut self, function: Function) -> FunctionId {
        let next = FunctionId(self.all.len() as u32);
        let all = &mut self.all;
        *self.ids.entry(function).or_insert_with_key(|function| {
            all.push(function.clone());
            next
        })
    }

    /// The number of its probes, if it has any.
    pub(super) fn number(&self, id: FunctionId) -> Option<u32> {
        match self.all[id.0 as usize] {
            Function::Probed(number) => Some(number),
            Function::Unprobed { .. } => None,
        }
    }

    /// By id: the index in a profile that has as many functions, of those that it counts.
    pub(super) fn numbers(&self, functions: usize) -> Numbers {
        let known = |function: &Function| match function {
            Function::Probed(number) if (*number as usize) < functions => {
                Some(model::FuncId(*number))
            }
            _ => None,
        };
        Numbers {
            counted: self.all.iter().map(known).collect(),
            unknown: self.ids.get(&Function::UNKNOWN).copied(),
        }
    }

    /// Adds to the profile what it does not have yet. By id: the index in the profile, none for a number that it does not know.
    pub(super) fn add_to(&self, profile: &mut model::Profile) -> Vec<Option<model::FuncId>> {
        let counted = profile.functions.len() as u32;
        self.add_each(profile, |_, number| {
            (number < counted).then_some(model::FuncId(number))
        })
    }

    /// Adds all to a profile that has none: those with probes to the module `catalog`, with their numbers for addresses.
    pub(super) fn encode(
        &self,
        profile: &mut model::Profile,
        catalog: u32,
    ) -> Vec<Option<model::FuncId>> {
        self.add_each(profile, |profile, number| {
            profile.functions.push(model::Function {
                module: catalog,
                address: number.into(),
                ..model::Function::default()
            });
            Some(model::FuncId::from_index(profile.functions.len() - 1))
        })
    }

    fn add_each(
        &self,
        profile: &mut model::Profile,
        mut probed: impl FnMut(&mut model::Profile, u32) -> Option<model::FuncId>,
    ) -> Vec<Option<model::FuncId>> {
        let mut modules: HashMap<Arc<ModuleName>, u32> = HashMap::new();
        let indices = self.all.iter().map(|function| match function {
            Function::Probed(number) => probed(profile, *number),
            Function::Unprobed {
                module,
                address,
                name,
            } => {
                let module = match modules.get(module) {
                    Some(known) => *known,
                    None => *modules
                        .entry(module.clone())
                        .or_insert(module_index(profile, module)),
                };
                profile.functions.push(model::Function {
                    name: name.clone(),
                    module,
                    address: *address,
                    ..model::Function::default()
                });
                Some(model::FuncId::from_index(profile.functions.len() - 1))
            }
        });
        indices.collect()
    }
}

fn module_index(profile: &mut model::Profile, module: &ModuleName) -> u32 {
    let same = |m: &model::Module| m.path == module.path && m.build_id == module.build_id;
    let known = profile.modules.iter().position(same);
    known.unwrap_or_else(|| {
        profile.modules.push(model::Module {
            name: module.name.clone(),
            path: module.path.clone(),
            build_id: module.build_id.clone(),
            functions_total: module.functions,
            functions_patched: 0,
        });
        profile.modules.len() - 1
    }) as u32
}
