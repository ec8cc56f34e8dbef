//! Where a registry or artifacts in a bucket are: a URL, and how a client for it is made.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{BackoffConfig, ObjectStore as Client, RetryConfig};
use percent_encoding::percent_decode_str;

use super::credentials::{self, CredentialSource, FromProcess, Missing, Profile};
use super::wire::{Connector, Wire};

/// What the records of runs are in, below the prefix, where a URL does not say.
pub const RUNS: &str = "runs";

/// Whose buckets they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Provider {
    S3,
    Google,
    Azure,
}

/// Where something in a bucket is: `s3://BUCKET/PREFIX?endpoint=https://HOST&region=NAME&runs=runs`.
///
/// Credentials are those that every other client of such a bucket finds (the environment, the shared files of the AWS tools,
/// a web identity, a container, the instance), or those of the URL: `s3://KEY:SECRET@BUCKET/PREFIX`.
#[derive(Clone, PartialEq, Eq)]
pub struct BucketAddress {
    kind: Provider,
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

/// The failure to read a [`BucketAddress`] from a URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidBucketAddress(String);

impl BucketAddress {
    /// Whether `url` is of this kind.
    pub fn is_meant(url: &str) -> bool {
        ["s3://", "gs://", "az://"].iter().any(|scheme| url.starts_with(scheme))
    }

    /// The place that another URL names, reached as this one is where it does not say how.
    pub fn beside(&self, url: &str) -> Result<Self, InvalidBucketAddress> {
        let mut other: Self = url.parse()?;
        if other.kind == self.kind {
            other.endpoint = other.endpoint.or_else(|| self.endpoint.clone());
            other.region = other.region.or_else(|| self.region.clone());
            other.key = other.key.or_else(|| self.key.clone());
        }
        Ok(other)
    }

    /// The server that is asked, where it is not the provider's own.
    pub(super) fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    /// Whether both are of one bucket, wherever in it.
    pub fn is_same_bucket(&self, other: &Self) -> bool {
        (self.kind, &self.bucket, &self.endpoint) == (other.kind, &other.bucket, &other.endpoint)
    }

    /// A client that asks once: whether to ask again is decided here.
    pub(super) fn connect(&self, wire: Arc<Wire>) -> Result<Arc<dyn Client>, InvalidBucketAddress> {
        let retry =
            RetryConfig { max_retries: 0, retry_timeout: Default::default(), backoff: BackoffConfig::default() };
        let connector = Connector(wire);
        let unusable = |error: object_store::Error| InvalidBucketAddress(format!("`{self}` cannot be used: {error}"));
        let endpoint = self.endpoint.clone();
        let is_plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        Ok(match self.kind {
            Provider::S3 => {
                let builder = self.amazon()?.with_retry(retry).with_http_connector(connector);
                Arc::new(builder.build().map_err(unusable)?)
            }
            Provider::Google => {
                let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(&self.bucket);
                Arc::new(builder.with_retry(retry).with_http_connector(connector).build().map_err(unusable)?)
            }
            Provider::Azure => {
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

impl BucketAddress {
    /// What the URL says, else the environment, else the profile of the shared files.
    fn amazon(&self) -> Result<AmazonS3Builder, InvalidBucketAddress> {
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(&self.bucket)
            .with_conditional_put(S3ConditionalPut::ETagMatch);
        let is_set =
            |names: &[&str]| names.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
        let has_keys = self.key.is_some() || is_set(&["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]);
        let profile = match credentials::profile() {
            Err(_) if has_keys => Profile::default(),
            profile => profile.map_err(InvalidBucketAddress)?,
        };
        let endpoint = self.endpoint.clone().or_else(|| {
            let is_named = is_set(&["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"]);
            profile.endpoint.filter(|_| !is_named)
        });
        if let Some(endpoint) = endpoint {
            let is_plain = endpoint.starts_with("http://");
            builder = builder.with_endpoint(endpoint).with_allow_http(is_plain);
        }
        let is_placed = is_set(&["AWS_REGION", "AWS_DEFAULT_REGION"]);
        if let Some(region) = self.region.clone().or_else(|| profile.region.filter(|_| !is_placed)) {
            builder = builder.with_region(region);
        }
        if let Some((key, secret)) = &self.key {
            return Ok(builder.with_access_key_id(key).with_secret_access_key(secret));
        }
        if has_keys {
            return Ok(builder);
        }
        let asks_others = ["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"];
        let is_off = std::env::var("AWS_EC2_METADATA_DISABLED").is_ok_and(|value| value.eq_ignore_ascii_case("true"));
        Ok(match profile.source {
            Some(CredentialSource::Keys { id, secret, token }) => {
                let builder = builder.with_access_key_id(id).with_secret_access_key(secret);
                token.into_iter().fold(builder, |builder, token| builder.with_token(token))
            }
            Some(CredentialSource::Process(line)) => builder.with_credentials(Arc::new(FromProcess::new(line))),
            None if is_off && !is_set(&asks_others) && !is_set(&["AWS_CONTAINER_CREDENTIALS_FULL_URI"]) => {
                builder.with_credentials(Arc::new(Missing))
            }
            None => builder,
        })
    }
}

impl FromStr for BucketAddress {
    type Err = InvalidBucketAddress;

    fn from_str(url: &str) -> Result<Self, InvalidBucketAddress> {
        let refuse = |why: String| InvalidBucketAddress(why);
        let (scheme, rest) = url.split_once("://").ok_or_else(|| refuse("it has no scheme".into()))?;
        let kind = match scheme {
            "s3" => Provider::S3,
            "gs" => Provider::Google,
            "az" => Provider::Azure,
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
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

impl fmt::Display for BucketAddress {
    /// As writers that share a bucket name it: without a key, and without how it is reached.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.kind {
            Provider::S3 => "s3",
            Provider::Google => "gs",
            Provider::Azure => "az",
        };
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        write!(f, "{scheme}://{}{slash}{}", self.bucket, self.prefix)
    }
}

impl fmt::Debug for BucketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_shows_no_secret() {
        let address: BucketAddress =
            "s3://AK:s%2Fcret@data/a/b/?endpoint=http://127.0.0.1:9&region=r&runs=log".parse().unwrap();
        assert_eq!((address.bucket.as_str(), address.prefix.as_str(), address.runs.as_str()), ("data", "a/b", "log"));
        assert_eq!(address.key, Some(("AK".into(), "s/cret".into())));
        assert_eq!(format!("{address} {address:?}"), "s3://data/a/b s3://data/a/b");
        let beside = address.beside("s3://other/x").unwrap();
        assert_eq!((beside.key, beside.endpoint), (address.key, address.endpoint));
        assert_eq!("gs://b".parse::<BucketAddress>().unwrap().to_string(), "gs://b");
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
            let refused = url.parse::<BucketAddress>().unwrap_err().to_string();
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }
}
