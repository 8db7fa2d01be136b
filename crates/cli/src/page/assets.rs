//! The built page: what `web/` becomes, embedded, and the document around it.

use thalweg_formats::graph::svg::escaped;

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
