//! Where a call is made from, each where it is known.

use serde::Serialize;
use thalweg_model::{Profile, Site, SiteId, Target};

use crate::is_false;

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct SiteOf<'a> {
    /// `main+0x20`
    #[serde(rename = "site", skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    #[serde(rename = "site_file", skip_serializing_if = "Option::is_none")]
    pub file: Option<&'a str>,
    #[serde(rename = "site_line", skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub indirect: Option<bool>,
    #[serde(skip_serializing_if = "is_false")]
    pub tail: bool,
}

impl<'a> SiteOf<'a> {
    pub fn new(profile: &'a Profile, site: Option<SiteId>) -> SiteOf<'a> {
        let Some(site) = find(profile, site) else {
            return SiteOf::default();
        };
        SiteOf {
            name: Some(&site.name),
            file: site.file.as_deref(),
            line: Some(site.line).filter(|&line| line > 0),
            indirect: match site.target {
                Target::Unknown => None,
                target => Some(target == Target::Indirect),
            },
            tail: site.jump,
        }
    }
}

fn find(profile: &Profile, site: Option<SiteId>) -> Option<&Site> {
    site.map(|site| &profile.sites[site.index() as usize])
}
