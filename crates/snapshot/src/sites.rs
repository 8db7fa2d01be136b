//! Call sites: from addresses in a target, some of them of code that is long gone, to places in modules; and, once a
//! profile is complete, what the code there is.

use std::collections::HashMap;
use std::path::Path;

use thalweg_abi as shm;
use thalweg_model as model;
use thalweg_model::{FuncId, Site, SiteId, Target};
use thalweg_patch::{Callers, Reach};
use thalweg_symbols::{Lines, Module};

use crate::error::Result;
use crate::ledger::{Home, Ledger};
use crate::loaded;
use crate::memory::Shared;
use crate::survey;

/// Finds places in modules for what the agent noted: return addresses, and for tail jumps addresses in stubs.
pub struct Resolver {
    /// In the order in which modules came; several may have lain at the same place one after the other.
    homes: Vec<Home>,
    /// Stub pc -> original pc, sorted.
    back: Vec<(u64, u64)>,
    stubs: Vec<(u64, u64)>,
    /// By address and the module that the caller is in.
    known: HashMap<(u64, Option<u32>), Option<SiteId>>,
    numbers: HashMap<(u32, u64, bool), SiteId>,
    sites: Vec<Site>,
}

impl Resolver {
    pub fn new(shared: &Shared, header: &shm::Header) -> Result<Resolver> {
        let bytes = shared.read_vec(header.ledger_offset, header.ledger_len)?;
        let mut ledgers = vec![Ledger::decode(&bytes)?];
        ledgers.extend(loaded::ledgers(shared, header)?);
        let mut back: Vec<(u64, u64)> = Vec::new();
        let mut homes = Vec::new();
        for ledger in ledgers {
            back.extend(ledger.back);
            homes.extend(ledger.homes);
        }
        back.sort_unstable();
        let regions = header.code.iter().filter(|region| region.len > 0);
        Ok(Resolver {
            homes,
            back,
            stubs: regions
                .map(|region| (region.start, region.start.wrapping_add(region.len)))
                .collect(),
            known: HashMap::new(),
            numbers: HashMap::new(),
            sites: Vec::new(),
        })
    }

    /// The site that the agent noted as `address`, of a call by the function `caller`.
    pub fn site(
        &mut self,
        profile: &model::Profile,
        address: u64,
        caller: Option<FuncId>,
    ) -> Option<SiteId> {
        let module = |function: FuncId| Some(profile.functions.get(function.index())?.module);
        let caller = caller.and_then(module);
        if let Some(known) = self.known.get(&(address, caller)) {
            return *known;
        }
        let found = self.find(address, caller, module);
        self.known.insert((address, caller), found);
        found
    }

    fn find(
        &mut self,
        address: u64,
        caller: Option<u32>,
        module: impl Fn(FuncId) -> Option<u32>,
    ) -> Option<SiteId> {
        let jump = self
            .stubs
            .iter()
            .any(|&(start, end)| (start..end).contains(&address));
        let place = match jump {
            // The probe stands before the jump, and its own first byte is the jump's place.
            true => {
                let next = self.back.partition_point(|pair| pair.0 < address);
                self.back[..next].last()?.1
            }
            // Inside of the call, so that one at a function's very end is no part of the next.
            false => address.checked_sub(1)?,
        };
        let here = |home: &&Home| (home.low..home.high).contains(&place);
        let in_callers = |home: &&Home| caller.is_some() && module(FuncId(home.function)) == caller;
        let homes = self.homes.iter().rev().filter(here);
        let home = homes.clone().find(in_callers).or(homes.clone().next())?;
        let module = module(FuncId(home.function))?;
        let address = place.wrapping_sub(home.bias);
        if let Some(&known) = self.numbers.get(&(module, address, jump)) {
            return Some(known);
        }
        let number = SiteId::from_index(u32::try_from(self.sites.len()).ok()?)?;
        self.sites.push(Site {
            module,
            address,
            jump,
            ..Site::default()
        });
        self.numbers.insert((module, address, jump), number);
        Some(number)
    }

    pub fn finish(self) -> Vec<Site> {
        self.sites
    }
}

/// Names the sites of one module and says what the code there does.
pub fn describe(module: &model::Module, sites: &mut [&mut Site], lines: &Lines) {
    // Another build under the same name would name other code.
    let loaded = Module::load(Path::new(&module.path)).ok();
    let code = loaded.as_ref().filter(|code| {
        let build_id = code.build_id.as_deref().map(survey::hex);
        build_id.unwrap_or_default() == module.build_id
    });
    let mut callers = code.map(Callers::new);
    for site in sites {
        let inside = site.address;
        if let Some(callers) = &mut callers {
            let reach = match site.jump {
                true => callers.jump_at(inside),
                false => callers.returning_to(inside.wrapping_add(1)).map(|call| {
                    site.address = call.address;
                    call.reach
                }),
            };
            site.target = match reach {
                Some(Reach::Direct) => Target::Direct,
                Some(Reach::Indirect) => Target::Indirect,
                None => Target::Unknown,
            };
        }
        let function = code.and_then(|code| Some(&code.functions[code.function_at(inside)?]));
        site.name = match function {
            Some(function) => {
                let offset = site.address.wrapping_sub(function.start);
                format!("{}+{offset:#x}", function.name)
            }
            None => format!("{}+{:#x}", module.name, site.address),
        };
        if let Some((file, line)) = lines.lookup(inside) {
            site.file = Some(file);
            site.line = line;
        }
    }
}
