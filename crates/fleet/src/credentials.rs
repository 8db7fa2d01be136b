//! Settings of S3 as Amazon's own tools take them: the environment, and where it has none, the profile in `~/.aws`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context;
use object_store::aws::AmazonS3ConfigKey;

use crate::place::AwsSetting;

/// Larger files are none of settings.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The environment comes last: it wins.
pub fn aws(bucket: &str) -> anyhow::Result<Vec<AwsSetting>> {
    let mut settings = vec![(AmazonS3ConfigKey::Bucket, bucket.to_owned())];
    let environment: HashMap<String, String> = std::env::vars()
        .filter(|(key, _)| key.starts_with("AWS_"))
        .collect();
    let chosen = environment.get("AWS_PROFILE");
    let profile = chosen.map_or("default", String::as_str);
    let has_key = environment.contains_key("AWS_ACCESS_KEY_ID") && chosen.is_none();
    let mut found = HashMap::new();
    for (variable, file, section) in [
        ("AWS_CONFIG_FILE", "config", profile_section(profile)),
        (
            "AWS_SHARED_CREDENTIALS_FILE",
            "credentials",
            profile.to_owned(),
        ),
    ] {
        if let Some(text) = read(environment.get(variable), file)? {
            found.extend(section_of(&text, &section));
        }
    }
    if chosen.is_some() && found.is_empty() {
        anyhow::bail!(
            "AWS_PROFILE names '{profile}', but ~/.aws/config and ~/.aws/credentials have no such profile"
        );
    }
    for (name, key) in [
        ("aws_access_key_id", AmazonS3ConfigKey::AccessKeyId),
        ("aws_secret_access_key", AmazonS3ConfigKey::SecretAccessKey),
        ("aws_session_token", AmazonS3ConfigKey::Token),
        ("region", AmazonS3ConfigKey::Region),
        ("endpoint_url", AmazonS3ConfigKey::Endpoint),
    ] {
        let is_secret = name.starts_with("aws_");
        if let Some(value) = found.get(name).filter(|_| !(is_secret && has_key)) {
            settings.push((key, value.clone()));
        }
    }
    for (variable, value) in environment.clone() {
        // A profile that was named is meant, not keys that are left over.
        let is_secret = [
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
        ]
        .contains(&&*variable);
        if is_secret && chosen.is_some() {
            continue;
        }
        if let Ok(key) = AmazonS3ConfigKey::from_str(&variable.to_ascii_lowercase()) {
            settings.push((key, value));
        }
    }
    Ok(settings)
}

fn profile_section(profile: &str) -> String {
    match profile {
        "default" => profile.to_owned(),
        other => format!("profile {other}"),
    }
}

fn read(named: Option<&String>, file: &str) -> anyhow::Result<Option<String>> {
    let path = match named {
        Some(path) => PathBuf::from(path),
        None => match std::env::var_os("HOME") {
            Some(home) => PathBuf::from(home).join(".aws").join(file),
            None => return Ok(None),
        },
    };
    match std::fs::metadata(&path) {
        Err(_) if named.is_none() => return Ok(None),
        Ok(about) if about.len() > MAX_FILE_BYTES => {
            anyhow::bail!("{} is too large for settings", path.display())
        }
        _ => {}
    }
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Some(text))
}

fn section_of(text: &str, wanted: &str) -> HashMap<String, String> {
    let mut inside = false;
    let mut found = HashMap::new();
    for line in text.lines() {
        let line = line.trim();
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            inside = name.trim() == wanted;
        } else if inside
            && !line.starts_with(['#', ';'])
            && let Some((key, value)) = line.split_once('=')
        {
            found.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_has_what_is_in_its_section() {
        let text = "[default]\nregion = a\n[profile web]\n# region = c\nregion=b\nendpoint_url = http://x/?a=b\n[other]\nregion = d";
        let web = section_of(text, &profile_section("web"));
        assert_eq!(web["region"], "b");
        assert_eq!(web["endpoint_url"], "http://x/?a=b");
        assert_eq!(section_of(text, "default")["region"], "a");
        assert!(section_of(text, "none").is_empty());
    }
}
