//! How reports name the place that a call is made from.

use thalweg_views::sites::SiteOf;

use super::text::printable;

/// ` @ main+0x20 main.c:7, indirect`, or nothing where sites are not told apart or not known.
pub fn at_site(site: &SiteOf) -> String {
    let Some(name) = site.name else {
        return String::new();
    };
    let mut text = format!(" @ {}", printable(name));
    if let Some(place) = place(site) {
        text += &format!(" {}", printable(&place));
    }
    match (site.indirect == Some(true), site.tail) {
        (true, false) => text += ", indirect",
        (true, true) => text += ", indirect tail call",
        (false, true) => text += ", tail call",
        (false, false) => {}
    }
    text
}

/// The file's own name and the line: whole paths would fill the terminal.
fn place(site: &SiteOf) -> Option<String> {
    let file = site.file?;
    let name = file.rsplit('/').next().unwrap_or(file);
    Some(format!("{name}:{}", site.line.unwrap_or(0)))
}
