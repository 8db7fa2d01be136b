//! The built page: what `web/` becomes, embedded, and the document around it.

/// Built from `web/`, committed so that cargo alone builds everything; the tests build it again and compare.
pub const SCRIPT: &str = include_str!("built/page.js");
pub const STYLE: &str = include_str!("built/page.css");
pub const ICON: &str = include_str!("built/icon.svg");

/// The document: `head` brings the script and the style in, `body` what the script starts from.
pub fn page(title: &str, head: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{}</title>\n{head}</head>\n<body>\n<div id=\"page\"></div>\n\
         <noscript>This page needs JavaScript; 'thalweg report' shows the same figures as text.</noscript>\n\
         {body}</body>\n</html>\n",
        escaped(title)
    )
}

/// Text that is nothing but text in HTML.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
