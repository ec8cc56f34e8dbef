//! Locations: where artifacts are, kept apart from how they are reached.
//!
//! A location is compared by its words alone. Nothing is opened, so that a record whose location is denied has caused neither
//! a connection nor a look at the file system.

use std::fmt;
use std::path::{Component, Path, PathBuf};

/// The schemes of URLs that name a bucket.
const BUCKETS: [&str; 3] = ["s3", "gs", "az"];

/// A prefix of a bucket, or a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArtifactLocation {
    /// `scheme://bucket/prefix`.
    Bucket {
        /// `s3`, `gs` or `az`.
        scheme: String,
        /// The bucket's name.
        bucket: String,
        /// The prefix, without slashes at its ends; empty for the whole bucket.
        prefix: String,
    },
    /// The full path of a directory.
    Directory(PathBuf),
}

/// Why a text names no location that may be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidLocation(String);

impl ArtifactLocation {
    /// The location that a record names. A URL that also says how to reach it is refused.
    pub fn parse(text: &str) -> Result<Self, InvalidLocation> {
        let refuse = |why: &str| Err(InvalidLocation(why.to_owned()));
        let Some((scheme, place)) = text.split_once("://").filter(|(scheme, _)| *scheme != "file") else {
            return Self::directory(text.strip_prefix("file://").unwrap_or(text));
        };
        if !BUCKETS.contains(&scheme) {
            return refuse("it is neither a bucket nor the full path of a directory");
        }
        if place.contains(['@', '?', '#']) {
            return refuse("it names an endpoint, a region or credentials, which only the user's configuration may");
        }
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let prefix = prefix.trim_matches('/');
        let is_name = |part: &str| !part.is_empty() && part != "." && part != "..";
        if bucket.is_empty() || !prefix.is_empty() && !prefix.split('/').all(is_name) {
            return refuse("it names no bucket, or its prefix has parts that are empty or lead elsewhere");
        }
        Ok(Self::Bucket { scheme: scheme.into(), bucket: bucket.into(), prefix: prefix.into() })
    }

    fn directory(path: &str) -> Result<Self, InvalidLocation> {
        let path = Path::new(path);
        let leads_elsewhere = path.components().any(|part| matches!(part, Component::ParentDir));
        if !path.is_absolute() || leads_elsewhere {
            return Err(InvalidLocation("it is neither a bucket nor the full path of a directory".into()));
        }
        Ok(Self::Directory(path.components().collect()))
    }

    /// Whether `other` is this location or below it.
    pub fn contains(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Directory(one), Self::Directory(other)) => other.starts_with(one),
            (
                Self::Bucket { scheme, bucket, prefix },
                Self::Bucket { scheme: other_scheme, bucket: other_bucket, prefix: other_prefix },
            ) => {
                let rest = other_prefix.strip_prefix(prefix.as_str());
                let is_below = rest.is_some_and(|rest| prefix.is_empty() || rest.is_empty() || rest.starts_with('/'));
                (scheme, bucket) == (other_scheme, other_bucket) && is_below
            }
            _ => false,
        }
    }
}

impl fmt::Display for ArtifactLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bucket { scheme, bucket, prefix } => {
                let slash = if prefix.is_empty() { "" } else { "/" };
                write!(f, "{scheme}://{bucket}{slash}{prefix}")
            }
            Self::Directory(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A location that the user's configuration names, and how it is reached.
#[derive(Clone, PartialEq, Eq)]
pub struct NamedLocation {
    pub(crate) location: ArtifactLocation,
    /// The URL as it was written. It may bear credentials.
    pub(crate) url: String,
}

impl NamedLocation {
    /// The location that a text of the user's configuration names: a directory, or a bucket's URL with whatever it takes to
    /// reach it.
    pub fn parse(text: &str) -> Result<Self, InvalidLocation> {
        let is_bucket = text.split_once("://").is_some_and(|(scheme, _)| BUCKETS.contains(&scheme));
        let plain = match text.split_once("://").filter(|_| is_bucket) {
            Some((scheme, rest)) => {
                let place = rest.split('?').next().unwrap_or_default();
                let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
                format!("{scheme}://{place}")
            }
            None => text.to_owned(),
        };
        Ok(Self { location: ArtifactLocation::parse(&plain)?, url: text.to_owned() })
    }
}

impl fmt::Display for NamedLocation {
    /// Where it is, without how it is reached.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.location, f)
    }
}

impl fmt::Debug for NamedLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.location, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(text: &str) -> ArtifactLocation {
        ArtifactLocation::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn t8_02_location_with_endpoint_or_credentials_is_refused() {
        for text in [
            "s3://bucket/p?endpoint=http://evil",
            "s3://bucket/p?region=x",
            "s3://K:S@bucket/p",
            "s3://K:S/x@bucket/p",
            "s3://bucket/p#x",
            "s3://",
            "s3://bucket/a//b",
            "s3://bucket/a/../b",
            "http://evil/p",
            "relative",
            "/data/../etc",
            "file://relative",
            "",
        ] {
            assert!(ArtifactLocation::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn t6_01_location_contains_itself_and_what_is_below() {
        for (outer, inner) in [
            ("s3://b/p", "s3://b/p/"),
            ("s3://b/p", "s3://b/p/x/y"),
            ("s3://b", "s3://b/p"),
            ("/data", "/data/x"),
            ("/data/", "file:///data"),
            ("/data", "/data/./x//y"),
        ] {
            assert!(location(outer).contains(&location(inner)), "{outer} {inner}");
        }
        for (outer, inner) in [
            ("s3://b/p", "s3://b/pq"),
            ("s3://b/p/x", "s3://b/p"),
            ("s3://b/p", "s3://c/p"),
            ("s3://b/p", "gs://b/p"),
            ("s3://b/p", "/b/p"),
            ("/data", "/database"),
            ("/data/x", "/data"),
        ] {
            assert!(!location(outer).contains(&location(inner)), "{outer} {inner}");
        }
    }

    #[test]
    fn named_location_keeps_how_it_is_reached_and_shows_no_secret() {
        let named = NamedLocation::parse("s3://AK:hunter2@data/p?endpoint=http://127.0.0.1:9").unwrap();
        assert_eq!(named.location, location("s3://data/p"));
        assert!(!format!("{named:?}").contains("hunter2"));
        assert!(NamedLocation::parse("data").is_err() && NamedLocation::parse("ftp://x").is_err());
    }
}
