//! Call sites in the file: a section of their own, so that profiles without them are what they
//! always were.
//!
//! ```text
//! list of sites, then for all nodes in the order of the processes: 0, or the number of its site plus 1
//! ```

use crate::codec::{Decoder, Encoder};
use crate::error::ReadError;
use crate::profile::{Node, Profile, Site, SiteId, Target};

/// One byte at least in each of a site's seven fields.
const MIN_BYTES_PER_SITE: usize = 7;

pub fn encode(profile: &Profile, out: &mut Encoder) {
    out.number(profile.sites.len() as u64);
    let mut last = 0;
    for site in &profile.sites {
        out.text(&site.name);
        out.number(site.module.into());
        out.difference(site.address, last);
        last = site.address;
        match &site.file {
            None => out.byte(0),
            Some(file) => {
                out.byte(1);
                out.text(file);
            }
        }
        out.number(site.line.into());
        out.byte(match site.target {
            Target::Unknown => 0,
            Target::Direct => 1,
            Target::Indirect => 2,
        });
        out.byte(site.jump.into());
    }
    for node in nodes(profile) {
        out.optional(node.site.map(SiteId::index));
    }
}

fn nodes(profile: &Profile) -> impl Iterator<Item = &Node> {
    let threads = profile.processes.iter().flat_map(|p| &p.threads);
    threads.flat_map(|thread| &thread.nodes)
}

/// Refers to the nodes of the processes, whose section comes before it.
pub fn decode(profile: &mut Profile, input: &mut Decoder) -> Result<(), ReadError> {
    let mut last = 0;
    profile.sites = input.list(MIN_BYTES_PER_SITE, |input| {
        let name = input.text()?;
        let module = input.number32()?;
        let address = input.difference(last)?;
        last = address;
        Ok(Site {
            name,
            module,
            address,
            file: match input.boolean()? {
                true => Some(input.text()?),
                false => None,
            },
            line: input.number32()?,
            target: match input.byte()? {
                0 => Target::Unknown,
                1 => Target::Direct,
                2 => Target::Indirect,
                _ => return Err(ReadError::Corrupt("a call site is of an unknown kind")),
            },
            jump: input.boolean()?,
        })
    })?;
    let threads = profile.processes.iter_mut().flat_map(|p| &mut p.threads);
    for node in threads.flat_map(|thread| &mut thread.nodes) {
        node.site = match input.optional()? {
            None => None,
            Some(index) => Some(
                SiteId::from_index(index)
                    .ok_or(ReadError::Corrupt("a call site's number is too large"))?,
            ),
        };
    }
    Ok(())
}
