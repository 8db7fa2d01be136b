//! How reports name the place that a call is made from.

use thalweg_model::{Profile, Site, SiteId, Target};

use super::text::printable;

/// ` @ main+0x20 main.c:7, indirect`, or nothing where sites are not told apart or not known.
pub fn at_site(profile: &Profile, site: Option<SiteId>) -> String {
    let Some(site) = find(profile, site) else {
        return String::new();
    };
    let mut text = format!(" @ {}", printable(&site.name));
    if let Some(place) = place(site) {
        text += &format!(" {}", printable(&place));
    }
    match (site.target, site.jump) {
        (Target::Indirect, false) => text += ", indirect",
        (Target::Indirect, true) => text += ", indirect tail call",
        (_, true) => text += ", tail call",
        (_, false) => {}
    }
    text
}

pub fn find(profile: &Profile, site: Option<SiteId>) -> Option<&Site> {
    site.map(|site| &profile.sites[site.index() as usize])
}

/// The file's own name and the line: whole paths would fill the terminal.
fn place(site: &Site) -> Option<String> {
    let file = site.file.as_deref()?;
    let name = file.rsplit('/').next().unwrap_or(file);
    Some(format!("{name}:{}", site.line))
}
