//! Where a registry in a database is: a URL, with our parameters kept apart from PostgreSQL's.

use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use super::dialect::Dialect;
use super::schema::MIGRATIONS;
use super::tls::{CertificateCheck, Tls};

/// The schema of a registry whose URL names none.
pub const SCHEMA: &str = "outlive";
/// How many connections a process has at most, its beats not counted.
const CONNECTIONS: usize = 4;
/// The most connections that one process may be configured to have.
const MOST_CONNECTIONS: usize = 64;
/// The longest name that PostgreSQL does not cut.
const NAME_LIMIT: usize = 63;

/// Where a registry in a database is: `postgres://USER@HOST/DATABASE?schema=outlive&connections=4`.
///
/// `schema` (`outlive` by default) and `connections` (4 by default, 64 at most) are parameters of outlive, as are `sslmode` and
/// `sslrootcert`, which mean what they mean to libpq. All others are passed to the server, such as `application_name`. A URL
/// with `schema` or `connections` is refused by `tokio_postgres::connect`: connect your own client with a URL that has neither.
#[derive(Clone)]
pub struct DatabaseAddress {
    /// Each server that the URL names.
    pub(super) servers: Vec<Config>,
    pub(super) tls: Tls,
    /// What the tables are in.
    pub schema: String,
    /// How many connections there are at most, the one of the beats not counted.
    pub connections: usize,
    /// What the engine lacks, where the URL says so. A registry that is there already knows by itself.
    pub(super) dialect: Option<Dialect>,
    /// What brings a registry from the first format to the newest; tests have more.
    pub(super) migrations: &'static [&'static str],
    shown: String,
}

/// A URL that names no registry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidDatabaseAddress(String);

impl DatabaseAddress {
    /// How it is written.
    pub const FORM: &str = "postgres://USER@HOST:PORT/DATABASE?schema=NAME";

    /// Whether `url` is of this kind.
    pub fn is_meant(url: &str) -> bool {
        url.starts_with("postgres://") || url.starts_with("postgresql://")
    }

    /// The address as an outlive of later formats would have it, to test that older ones are brought up to date.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn with_migrations(self, migrations: &'static [&'static str]) -> Self {
        Self { migrations, ..self }
    }

    /// The newest format of a registry that is known.
    pub(super) fn format(&self) -> i64 {
        1 + self.migrations.len() as i64
    }

    pub(super) fn quoted_schema(&self) -> String {
        format!("\"{}\"", self.schema)
    }
}

impl FromStr for DatabaseAddress {
    type Err = InvalidDatabaseAddress;

    fn from_str(url: &str) -> Result<Self, InvalidDatabaseAddress> {
        let refuse = |why: String| InvalidDatabaseAddress(why);
        let (server, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut schema, mut connections, mut theirs) = (SCHEMA.to_owned(), CONNECTIONS, Vec::new());
        let (mut ssl_mode, mut roots, mut dialect) = (None, None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("schema", name)) => schema = name.into(),
                Some(("connections", number)) => {
                    let parsed = number.parse().ok().filter(|number| (1..=MOST_CONNECTIONS).contains(number));
                    let why = || refuse(format!("`connections={number}` is not a number from 1 to {MOST_CONNECTIONS}"));
                    connections = parsed.ok_or_else(why)?;
                }
                Some(("without", names)) => dialect = Some(Dialect::without(names).map_err(refuse)?),
                Some(("sslmode", mode)) => ssl_mode = Some(mode),
                Some(("sslrootcert", path)) if !path.is_empty() => roots = Some(path_in(path)),
                _ => theirs.push(pair),
            }
        }
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if schema.is_empty() || schema.len() > NAME_LIMIT || !schema.chars().all(is_plain) {
            let why = "a schema is named with up to 63 lower case letters, digits and underscores";
            return Err(refuse(format!("`schema={schema}`: {why}")));
        }
        let url = if theirs.is_empty() { server.to_owned() } else { format!("{server}?{}", theirs.join("&")) };
        let parse = |url: &str| -> Result<Config, InvalidDatabaseAddress> {
            url.parse().map_err(|error: tokio_postgres::Error| {
                // The cause says what is wrong; the URL itself may bear a password.
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                refuse(cause.unwrap_or_else(|| error.to_string()))
            })
        };
        let (mode, asked) = secrecy(ssl_mode, roots.is_some()).map_err(refuse)?;
        let server = |url: String| -> Result<Config, InvalidDatabaseAddress> {
            let mut config = parse(&url)?;
            complete(&mut config);
            config.ssl_mode(mode);
            Ok(config)
        };
        let mut all = parse(&url)?;
        complete(&mut all);
        let servers = of_each_server(&url).into_iter().map(server).collect::<Result<_, _>>()?;
        let tls = Tls::new(asked, roots.as_deref()).map_err(refuse)?;
        let shown = shown(&all, &schema);
        Ok(Self { servers, tls, schema, connections, dialect, migrations: MIGRATIONS, shown })
    }
}

/// What a mode means, and what it asks of the server's certificate.
fn secrecy(mode: Option<&str>, has_roots: bool) -> Result<(SslMode, CertificateCheck), String> {
    let root = if has_roots { CertificateCheck::Root } else { CertificateCheck::Nothing };
    match mode {
        Some("disable") => Ok((SslMode::Disable, CertificateCheck::Nothing)),
        None | Some("prefer") => Ok((SslMode::Prefer, CertificateCheck::Nothing)),
        Some("require") => Ok((SslMode::Require, root)),
        Some("verify-ca") => Ok((SslMode::Require, CertificateCheck::Root)),
        Some("verify-full") => Ok((SslMode::Require, CertificateCheck::RootAndName)),
        Some(other) => Err(format!("`sslmode={other}` is none of disable, prefer, require, verify-ca and verify-full")),
    }
}

fn path_in(text: &str) -> PathBuf {
    std::ffi::OsString::from_vec(percent_decode_str(text).collect()).into()
}

/// The URL of each server that `url` names before its path.
fn of_each_server(url: &str) -> Vec<String> {
    let start = url.find("://").map_or(0, |at| at + "://".len());
    let end = url[start..].find(['/', '?']).map_or(url.len(), |at| start + at);
    let hosts = url[start..end].rfind('@').map_or(start, |at| start + at + 1);
    url[hosts..end].split(',').map(|host| format!("{}{host}{}", &url[..hosts], &url[end..])).collect()
}

/// Fills in what the URL leaves open, as other clients do.
fn complete(config: &mut Config) {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        config.host(variable("PGHOST").unwrap_or_else(|| "/var/run/postgresql".into()));
    }
    if config.get_user().is_none() {
        config.user(variable("PGUSER").unwrap_or_else(|| crate::host::home::actor().user.to_string()));
    }
    if config.get_password().is_none()
        && let Some(password) = variable("PGPASSWORD")
    {
        config.password(password);
    }
    if config.get_application_name().is_none() {
        config.application_name("outlive");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(std::time::Duration::from_secs(10));
    }
    // Of several servers the one that can be written to: decisions are made nowhere else.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
}

fn shown(config: &Config, schema: &str) -> String {
    let host = |host: &Host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    };
    let port = |place: usize| config.get_ports().get(place).or(config.get_ports().first());
    let with_port = |(place, at): (usize, &Host)| match port(place) {
        Some(port) => format!("{}:{port}", host(at)),
        None => host(at),
    };
    let hosts: Vec<String> = config.get_hosts().iter().enumerate().map(with_port).collect();
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("postgres://{}/{database}?schema={schema}", hosts.join(","))
}

impl fmt::Display for DatabaseAddress {
    /// Without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for DatabaseAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ours_is_taken_out_and_the_rest_is_theirs() {
        let address: DatabaseAddress =
            "postgres://ada:secret@db:5433/jobs?schema=night&connections=9&sslmode=disable".parse().unwrap();
        assert_eq!((address.schema.as_str(), address.connections), ("night", 9));
        assert_eq!(address.to_string(), "postgres://db:5433/jobs?schema=night");
        assert!(!format!("{address:?}").contains("secret"));
    }

    #[test]
    fn servers_are_named_one_by_one_with_all_that_is_said_of_them() {
        let url = "postgres://ada:se%40cret@db1:5433,db2/jobs?connect_timeout=2&application_name=night";
        let address: DatabaseAddress = url.parse().unwrap();
        let alone = |host: &str| url.replace("db1:5433,db2", host).parse::<DatabaseAddress>().unwrap().servers;
        assert_eq!(address.servers, [alone("db1:5433"), alone("db2")].concat());
        assert_eq!(address.to_string(), "postgres://db1:5433,db2:5432/jobs?schema=outlive");
        let address: DatabaseAddress = "postgres:///jobs?host=db1".parse().unwrap();
        assert_eq!((address.servers.len(), address.to_string().as_str()), (1, "postgres://db1/jobs?schema=outlive"));
    }

    #[test]
    fn modes_mean_what_they_mean_to_other_clients() {
        let meant = |mode: Option<&str>, has_roots| secrecy(mode, has_roots).ok();
        assert_eq!(meant(None, false), Some((SslMode::Prefer, CertificateCheck::Nothing)));
        assert_eq!(meant(Some("require"), false), Some((SslMode::Require, CertificateCheck::Nothing)));
        assert_eq!(meant(Some("require"), true), Some((SslMode::Require, CertificateCheck::Root)));
        assert_eq!(meant(Some("verify-ca"), false), Some((SslMode::Require, CertificateCheck::Root)));
        assert_eq!(meant(Some("verify-full"), true), Some((SslMode::Require, CertificateCheck::RootAndName)));
        assert_eq!(meant(Some("allow"), false), None);
        assert_eq!(path_in("/a%20b/100%25%zz"), PathBuf::from("/a b/100%%zz"));
    }

    #[test]
    fn what_cannot_be_is_refused_and_says_no_password() {
        for url in [
            "postgres://ada:hunter2@db/jobs?schema=Night",
            "postgres://ada:hunter2@db/jobs?schema=",
            "postgres://ada:hunter2@db/jobs?connections=0",
            "postgres://ada:hunter2@db/jobs?without=everything",
            "postgres://ada:hunter2@db/jobs?sslmode=perhaps",
            "postgres://ada:hunter2@db/jobs?sslmode=verify-full&sslrootcert=/nowhere/root.crt",
            "postgres://ada:hunter2@db:port/jobs",
        ] {
            let refused = url.parse::<DatabaseAddress>().unwrap_err().to_string();
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }
}
