//! Names of services, hosts and releases. They become folders of the store: what could lead elsewhere is refused here, once.

use std::fmt;
use std::str::FromStr;

use anyhow::bail;

const MAX_BYTES: usize = 128;

/// Letters, digits, `.`, `_`, `-`, `+`; not hidden, not empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(String);

impl Label {
    /// From what somebody else has named: other characters become `_`.
    pub fn from_any(text: &str) -> Label {
        let mut label: String = text.chars().take(MAX_BYTES).collect();
        label = label.replace(|c: char| !is_allowed(c), "_");
        if label.is_empty() || label.starts_with('.') {
            label.insert(0, '_');
            label.truncate(MAX_BYTES);
        }
        Label(label)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-+".contains(c)
}

impl FromStr for Label {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Label> {
        if text.is_empty()
            || text.len() > MAX_BYTES
            || text.starts_with('.')
            || !text.chars().all(is_allowed)
        {
            bail!(
                "'{}' is no name for a service, host or release: letters, digits, '.', '_', '-' and '+', at most {MAX_BYTES}, not '.' first",
                text.escape_default()
            );
        }
        Ok(Label(text.to_owned()))
    }
}

impl<'de> serde::Deserialize<'de> for Label {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Label, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_label_leads_out_of_its_folder() {
        for bad in [
            "", "..", ".hidden", "a/b", "a=b", "a b", "a\nb", "é", "a%2Fb",
        ] {
            assert!(bad.parse::<Label>().is_err(), "{bad:?}");
            let made = Label::from_any(bad);
            assert!(
                made.as_str().parse::<Label>().is_ok(),
                "{bad:?} became {made}"
            );
        }
        assert!("web-7.eu_1+b".parse::<Label>().is_ok());
        assert!(
            Label::from_any(&"x/".repeat(500))
                .as_str()
                .parse::<Label>()
                .is_ok()
        );
    }
}
