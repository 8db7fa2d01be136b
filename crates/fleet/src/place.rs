//! Where a store is: a directory, or a bucket and a prefix in it. Keys and tokens come from the environment and from profile
//! files, never from the command line, and no message has one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};

/// A store that is away for longer is an error: whoever spools tries again later.
const RETRY_FOR: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// As it was named, for messages.
#[derive(Clone, Debug)]
pub struct Place {
    name: String,
    objects: Arc<dyn ObjectStore>,
}

impl Place {
    /// `create`: a directory that is not there yet is made.
    pub fn open(name: &str, create: bool) -> anyhow::Result<Place> {
        let objects = match name.split_once("://") {
            Some((scheme, rest)) => remote(scheme, rest)?,
            None => local(name, create)?,
        };
        Ok(Place {
            name: name.to_owned(),
            objects,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn objects(&self) -> &Arc<dyn ObjectStore> {
        &self.objects
    }
}

fn local(name: &str, create: bool) -> anyhow::Result<Arc<dyn ObjectStore>> {
    let path = PathBuf::from(name);
    if create {
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot make the directory {name}"))?;
    }
    let path = std::fs::canonicalize(&path).with_context(|| {
        format!("there is no store at {name}: 'thalweg push FILE --to {name}' begins one")
    })?;
    if !path.is_dir() {
        bail!("{name} is a file: a store is a directory, or s3://, gs://, az:// with a bucket");
    }
    let objects =
        LocalFileSystem::new_with_prefix(path).with_context(|| format!("cannot open {name}"))?;
    Ok(Arc::new(objects))
}

fn remote(scheme: &str, rest: &str) -> anyhow::Result<Arc<dyn ObjectStore>> {
    if rest.contains('@') {
        bail!(
            "a store's address has no user or password: they come from the environment or a profile file"
        );
    }
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        bail!("{scheme}:// needs a bucket: {scheme}://bucket/prefix");
    }
    let prefix =
        Path::parse(prefix.trim_end_matches('/')).context("the store's prefix is no path")?;
    let retry = RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 5,
        retry_timeout: RETRY_FOR,
    };
    let client = ClientOptions::new().with_connect_timeout(CONNECT_TIMEOUT);
    let problem = || format!("cannot use {scheme}://{bucket}: see 'Credentials' in docs/store.md");
    let objects: Arc<dyn ObjectStore> = match scheme {
        "s3" => {
            let mut builder = AmazonS3Builder::new();
            for (key, value) in crate::credentials::aws(bucket)? {
                builder = builder.with_config(key, value);
            }
            let plain = std::env::var("AWS_ALLOW_HTTP").is_ok_and(|value| value == "true");
            let builder = builder.with_client_options(client.with_allow_http(plain));
            let store = builder.with_retry(retry).build().with_context(problem)?;
            Arc::new(PrefixStore::new(store, prefix))
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
            let builder = builder.with_client_options(client).with_retry(retry);
            Arc::new(PrefixStore::new(
                builder.build().with_context(problem)?,
                prefix,
            ))
        }
        "az" => {
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket);
            let builder = builder.with_client_options(client).with_retry(retry);
            Arc::new(PrefixStore::new(
                builder.build().with_context(problem)?,
                prefix,
            ))
        }
        _ => bail!("a store is a directory, s3://, gs:// or az://, not {scheme}://"),
    };
    Ok(objects)
}

/// What the builder of S3 is told.
pub type AwsSetting = (AmazonS3ConfigKey, String);
