//! Where a server is.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::Uri;

/// Where a server is: its scheme, its name, and what its paths begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    is_secret: bool,
    host: String,
    port: u16,
    prefix: String,
}

impl ServerAddress {
    /// How it is written.
    pub const FORM: &'static str = "http://127.0.0.1:7878 or https://HOST";

    /// Whether a registry's URL is meant for a server.
    pub fn is_meant(url: &str) -> bool {
        url.starts_with("http://") || url.starts_with("https://")
    }

    /// Whether the connection is encrypted.
    pub(super) fn is_secret(&self) -> bool {
        self.is_secret
    }

    /// Whether it is on this machine.
    pub(super) fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The host and port as a request names them.
    pub(super) fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        format!("{host}:{}", self.port)
    }

    /// Where a call is sent to.
    pub(super) fn path(&self, call: &str) -> String {
        format!("{}/v1/store/{call}", self.prefix)
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_secret { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.prefix)
    }
}

impl FromStr for ServerAddress {
    type Err = InvalidServerAddress;

    fn from_str(url: &str) -> Result<Self, InvalidServerAddress> {
        let refuse = |why: &str| InvalidServerAddress(why.into());
        let uri: Uri = url.parse().map_err(|error| InvalidServerAddress(format!("{error}")))?;
        let is_secret = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(refuse("it begins with neither http:// nor https://")),
        };
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(refuse("a token does not belong into a URL; set OUTLIVE_TOKEN"));
        }
        if uri.query().is_some() {
            return Err(refuse("nothing is asked behind a `?`"));
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| refuse("it names no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_lowercase();
        let port = uri.port_u16().unwrap_or(if is_secret { 443 } else { 80 });
        Ok(Self { is_secret, host, port, prefix: uri.path().trim_end_matches('/').into() })
    }
}

/// The failure to read a [`ServerAddress`] from text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidServerAddress(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_a_server_is() {
        for (url, shown, is_loopback) in [
            ("http://127.0.0.1:7878", "http://127.0.0.1:7878", true),
            ("http://localhost:7878/", "http://localhost:7878", true),
            ("http://[::1]:7878", "http://[::1]:7878", true),
            ("https://Runs.Example.org/team/", "https://runs.example.org:443/team", false),
            ("http://127.0.0.1.evil.test", "http://127.0.0.1.evil.test:80", false),
        ] {
            let address: ServerAddress = url.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.is_loopback()), (shown, is_loopback));
        }
        for wrong in ["http://", "ftp://x", "http://me:secret@host", "http://host/?token=x", "http://a b"] {
            assert!(wrong.parse::<ServerAddress>().is_err(), "{wrong}");
        }
    }
}
