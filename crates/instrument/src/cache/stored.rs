//! A surveyed file as bytes and back.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_blocks::BlockPlan;
use thalweg_patch::{EntersKernel, ModulePlan, Watched};
use thalweg_symbols::Module;
use thalweg_symbols::store::{In, Out};

use crate::gate;
use crate::survey::Surveyed;

pub fn store_path(out: &mut Out, path: &Path) {
    out.bytes(path.as_os_str().as_bytes());
}

pub fn restore_path(stored: &mut In<'_>) -> Option<PathBuf> {
    Some(OsString::from_vec(stored.bytes()?.to_vec()).into())
}

/// `None` for what could not be read again.
pub fn store(out: &mut Out, surveyed: &Surveyed) -> Option<()> {
    // Where it is mapped is known when it is used.
    let Surveyed {
        module,
        plan,
        gates,
        gate_plan,
        blocks,
        first_counter: _,
        allocators,
        enters_kernel,
        watched,
        path,
        bias: _,
        low,
        high,
        text: _,
        wanted,
        left_alone,
        top_byte,
        paced,
        python: _,
    } = surveyed;
    if gates
        .iter()
        .any(|(_, kind)| restored(kind.number()) != Some(*kind))
    {
        return None;
    }
    module.store(out);
    plan.store(out);
    out.list(gates, |out, (function, kind)| {
        out.size(*function);
        out.number(kind.number().into());
    });
    gate_plan.store(out);
    out.optional(blocks.as_ref(), |out, blocks| blocks.store(out));
    out.list(allocators, |out, &(function, kind)| {
        out.size(function);
        out.number(kind.into());
    });
    out.list(enters_kernel, |out, one| one.store(out));
    out.list(watched, |out, one| one.store(out));
    store_path(out, path);
    out.number(*low);
    out.number(*high);
    out.flag(*wanted);
    out.optional(*left_alone, Out::text);
    out.optional(*top_byte, |out, byte| out.0.push(byte));
    out.flag(*paced);
    Some(())
}

pub fn restore(stored: &mut In<'_>, file: &File) -> Option<Surveyed> {
    let module = Module::restore(stored, file)?;
    let functions = module.functions.len();
    let index = |i: &mut In<'_>| i.size().filter(|&index| index < functions);
    Some(Surveyed {
        plan: Arc::new(ModulePlan::restore(stored, functions)?),
        gates: stored.list(|i| Some((index(i)?, restored(small(i)?)?)))?,
        gate_plan: Arc::new(ModulePlan::restore(stored, functions)?),
        blocks: stored
            .optional(|i| BlockPlan::restore(i, functions))?
            .map(Arc::new),
        first_counter: 0,
        allocators: stored.list(|i| Some((index(i)?, small(i)?)))?,
        enters_kernel: stored.list(|i| EntersKernel::restore(i, functions))?,
        watched: stored.list(|i| Watched::restore(i, functions))?,
        path: restore_path(stored)?,
        bias: 0,
        low: stored.number()?,
        high: stored.number()?,
        text: Vec::new(),
        wanted: stored.flag()?,
        left_alone: stored.optional(In::constant)?,
        top_byte: stored.optional(In::byte)?,
        paced: stored.flag()?,
        // Found anew in each process: it costs little beside the rest.
        python: Default::default(),
        module: Arc::new(module),
    })
}

fn small(stored: &mut In<'_>) -> Option<u32> {
    u32::try_from(stored.number()?).ok()
}

/// The kind of gate with this number.
fn restored(number: u32) -> Option<gate::Kind> {
    gate::Kind::ALL
        .into_iter()
        .find(|kind| kind.number() == number)
}
