//! Where a registry or artifacts in a bucket are: a URL, and how a client for it is made.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{BackoffConfig, ObjectStore as Client, RetryConfig};

use super::wire::{Connector, Wire};
use crate::store::escapes;

/// What the records of runs are in, below the prefix, where a URL does not say.
pub const RUNS: &str = "runs";

/// Whose buckets they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    S3,
    Google,
    Azure,
}

/// Where something in a bucket is: `s3://BUCKET/PREFIX?endpoint=https://HOST&region=NAME&runs=runs`.
///
/// Who may use it is told by the environment, as for every other client of such a bucket, or by the URL:
/// `s3://KEY:SECRET@BUCKET/PREFIX`.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    kind: Kind,
    /// The bucket.
    pub bucket: String,
    /// What is before every name in it; without slashes at its ends.
    pub prefix: String,
    /// What the records of runs are in, below the prefix.
    pub runs: String,
    endpoint: Option<String>,
    region: Option<String>,
    key: Option<(String, String)>,
}

/// A URL that names no place in a bucket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidAddress(String);

impl Address {
    /// Whether `url` is of this kind.
    pub fn is_meant(url: &str) -> bool {
        ["s3://", "gs://", "az://"].iter().any(|scheme| url.starts_with(scheme))
    }

    /// The place that another URL names, reached as this one is where it does not say how.
    pub fn beside(&self, url: &str) -> Result<Self, InvalidAddress> {
        let mut other: Self = url.parse()?;
        if other.kind == self.kind {
            other.endpoint = other.endpoint.or_else(|| self.endpoint.clone());
            other.region = other.region.or_else(|| self.region.clone());
            other.key = other.key.or_else(|| self.key.clone());
        }
        Ok(other)
    }

    /// Whether both are of one bucket, wherever in it.
    pub fn is_same_bucket(&self, other: &Self) -> bool {
        (self.kind, &self.bucket, &self.endpoint) == (other.kind, &other.bucket, &other.endpoint)
    }

    /// A client that asks once: whether to ask again is decided here.
    pub(super) fn connect(&self, wire: Arc<Wire>) -> Result<Arc<dyn Client>, InvalidAddress> {
        let retry =
            RetryConfig { max_retries: 0, retry_timeout: Default::default(), backoff: BackoffConfig::default() };
        let connector = Connector(wire);
        let unusable = |error: object_store::Error| InvalidAddress(format!("`{self}` cannot be used: {error}"));
        let endpoint = self.endpoint.clone();
        let is_plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        Ok(match self.kind {
            Kind::S3 => {
                let mut builder = AmazonS3Builder::from_env()
                    .with_bucket_name(&self.bucket)
                    .with_conditional_put(S3ConditionalPut::ETagMatch)
                    .with_retry(retry)
                    .with_http_connector(connector);
                if let Some(endpoint) = endpoint {
                    builder = builder.with_endpoint(endpoint).with_allow_http(is_plain);
                }
                if let Some(region) = &self.region {
                    builder = builder.with_region(region);
                }
                if let Some((key, secret)) = &self.key {
                    builder = builder.with_access_key_id(key).with_secret_access_key(secret);
                }
                Arc::new(builder.build().map_err(unusable)?)
            }
            Kind::Google => {
                let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(&self.bucket);
                Arc::new(builder.with_retry(retry).with_http_connector(connector).build().map_err(unusable)?)
            }
            Kind::Azure => {
                let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(&self.bucket);
                if let Some((account, key)) = &self.key {
                    builder = builder.with_account(account).with_access_key(key);
                }
                if let Some(endpoint) = endpoint {
                    builder = builder.with_endpoint(endpoint).with_allow_http(is_plain);
                }
                Arc::new(builder.with_retry(retry).with_http_connector(connector).build().map_err(unusable)?)
            }
        })
    }
}

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(url: &str) -> Result<Self, InvalidAddress> {
        let refuse = |why: String| InvalidAddress(why);
        let (scheme, rest) = url.split_once("://").ok_or_else(|| refuse("it has no scheme".into()))?;
        let kind = match scheme {
            "s3" => Kind::S3,
            "gs" => Kind::Google,
            "az" => Kind::Azure,
            other => return Err(refuse(format!("`{other}:` is no kind of bucket"))),
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (key, place) = match place.rsplit_once('@') {
            None => (None, place),
            Some((user, place)) => {
                let (key, secret) =
                    user.split_once(':').ok_or_else(|| refuse("there is a key without its secret".into()))?;
                (Some((unescaped(key), unescaped(secret))), place)
            }
        };
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let prefix = prefix.trim_matches('/');
        if bucket.is_empty() {
            return Err(refuse("it names no bucket".into()));
        }
        if !prefix.is_empty() && !is_path(prefix) {
            return Err(refuse("its prefix has parts that are empty or lead elsewhere".into()));
        }
        let (bucket, prefix) = (bucket.to_owned(), prefix.to_owned());
        let mut address = Self { kind, bucket, prefix, runs: RUNS.into(), endpoint: None, region: None, key };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("endpoint", endpoint)) => address.endpoint = Some(unescaped(endpoint)),
                Some(("region", region)) => address.region = Some(unescaped(region)),
                Some(("runs", runs)) if is_path(runs) => address.runs = runs.to_owned(),
                _ => {
                    let name = pair.split('=').next().unwrap_or_default();
                    return Err(refuse(format!(
                        "`{name}` is none of endpoint, region and runs, or not as it should be"
                    )));
                }
            }
        }
        Ok(address)
    }
}

/// Names, one below the other, that lead nowhere else. What clients write otherwise on the wire is refused.
fn is_path(text: &str) -> bool {
    let is_name = |part: &str| !part.is_empty() && part != "." && part != "..";
    let is_usual = |c: char| c.is_ascii_alphanumeric() || "-_.=+,:@!$&'();/ ".contains(c);
    text.split('/').all(is_name) && text.chars().all(is_usual)
}

fn unescaped(text: &str) -> String {
    String::from_utf8_lossy(&escapes::unescaped(text)).into_owned()
}

impl fmt::Display for Address {
    /// As writers that share a bucket name it: without a key, and without how it is reached.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.kind {
            Kind::S3 => "s3",
            Kind::Google => "gs",
            Kind::Azure => "az",
        };
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        write!(f, "{scheme}://{}{slash}{}", self.bucket, self.prefix)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_shows_no_secret() {
        let address: Address =
            "s3://AK:s%2Fcret@data/a/b/?endpoint=http://127.0.0.1:9&region=r&runs=log".parse().unwrap();
        assert_eq!((address.bucket.as_str(), address.prefix.as_str(), address.runs.as_str()), ("data", "a/b", "log"));
        assert_eq!(address.key, Some(("AK".into(), "s/cret".into())));
        assert_eq!(format!("{address} {address:?}"), "s3://data/a/b s3://data/a/b");
        let beside = address.beside("s3://other/x").unwrap();
        assert_eq!((beside.key, beside.endpoint), (address.key, address.endpoint));
        assert_eq!("gs://b".parse::<Address>().unwrap().to_string(), "gs://b");
    }

    #[test]
    fn what_cannot_be_is_refused_and_says_no_secret() {
        for url in [
            "s3://",
            "s3:///x",
            "s3://AKhunter2@b/x",
            "s3://AK:hunter2@b/../x",
            "s3://AK:hunter2@b/x//y",
            "s3://AK:hunter2@b/x?secret=hunter2",
            "s3://AK:hunter2@b/x?runs=../y",
            "s3://AK:hunter2@b/{x}",
        ] {
            let refused = url.parse::<Address>().unwrap_err().to_string();
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }
}
