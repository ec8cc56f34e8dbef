//! The tables of a registry: made, brought up to date and refused, by one of many that come at once.

use super::address::Address;
use super::clock::ServerClock;
use super::dialect::{Dialect, Feature, LAYOUT_FORMAT};
use super::pool::{self, CallError, Pool, PooledClient, with_retry};
use crate::model::time::{Clock, SystemClock};
use crate::store::Error;
use std::time::Duration;
use tokio_postgres::types::Type;

/// What brings format n to format n+1. Never edited once released.
const MIGRATIONS: [&str; 7] = [
    include_str!("format_1.sql"),
    include_str!("format_2.sql"),
    include_str!("format_3.sql"),
    include_str!("format_4.sql"),
    include_str!("format_5.sql"),
    include_str!("format_6.sql"),
    include_str!("format_7.sql"),
];

/// The format this outlive writes.
const FORMAT: i64 = MIGRATIONS.len() as i64;

/// The oldest server whose features are relied on.
const OLDEST_SERVER: i64 = 130_000;

/// How long opening a registry waits for a server that starts, is full, or makes its tables for another process.
const OPENING: Duration = Duration::from_secs(5);
/// How long it rests between two tries.
const REST: Duration = Duration::from_millis(200);

/// What a registry says of itself.
#[derive(Debug, Clone)]
pub(super) struct Made {
    /// What tells it from any other.
    pub(super) id: String,
    pub(super) dialect: Dialect,
}

/// Opens the registry, made or brought up to date if need be.
pub(super) async fn open(links: &Pool, schema: &str, address: &Address, clock: &ServerClock) -> Result<Made, Error> {
    let began = SystemClock.awake();
    loop {
        let opened = try_open(links, schema, address, clock).await;
        if let Some(id) = unless_away(opened, address, began).await? {
            return Ok(id);
        }
    }
}

/// The registry as it is, which is neither made nor brought up to date; none where there is none.
pub(super) async fn find(
    links: &Pool,
    schema: &str,
    address: &Address,
    clock: &ServerClock,
) -> Result<Option<Made>, Error> {
    let began = SystemClock.awake();
    loop {
        let found = try_find(links, schema, address, clock).await;
        if let Some(id) = unless_away(found, address, began).await? {
            return Ok(id);
        }
    }
}

/// What a call answered; none, after a pause, where the server cannot be reached yet and the call is to be made again.
async fn unless_away<T>(answered: Result<T, Error>, address: &Address, began: Duration) -> Result<Option<T>, Error> {
    let waited = SystemClock.awake().saturating_sub(began);
    match answered {
        Err(Error::Unavailable(text)) if waited >= OPENING => {
            Err(Error::Unavailable(format!("{text}; tried for {} s", waited.as_secs())))
        }
        // What was asked for is there or not, and is asked for again as it was.
        Err(Error::Unavailable(_) | Error::Unknown(_)) if waited < OPENING => pool::rest(REST).await.map(|()| None),
        answered => answered.map(Some).map_err(|error| pool::named(&address.to_string(), error)),
    }
}

async fn find_on(
    link: &mut PooledClient<'_>,
    schema: &str,
    address: &Address,
    clock: &ServerClock,
) -> Result<Option<Made>, CallError> {
    greet(link, clock).await?;
    known(link, schema, address).await
}

async fn try_open(links: &Pool, schema: &str, address: &Address, clock: &ServerClock) -> Result<Made, Error> {
    with_retry!(links, |link| open_on(&mut link, schema, address, clock))
}

async fn try_find(links: &Pool, schema: &str, address: &Address, clock: &ServerClock) -> Result<Option<Made>, Error> {
    with_retry!(links, |link| find_on(&mut link, schema, address, clock))
}

async fn open_on(
    link: &mut PooledClient<'_>,
    schema: &str,
    address: &Address,
    clock: &ServerClock,
) -> Result<Made, CallError> {
    let (version, recovers, read_only) = greet(link, clock).await?;
    if version < OLDEST_SERVER {
        let text = format!("`{address}`: PostgreSQL {version} is older than 13, which is the first to do");
        return Err(Error::Unsupported(text).into());
    }
    if recovers || read_only {
        return Err(pool::read_only(&address.to_string()).into());
    }
    if let Some(made) = known(link, schema, address).await? {
        return Ok(made);
    }
    make(link, schema, address).await?;
    known(link, schema, address).await?.ok_or_else(|| odd("has lost the tables that were made in it"))
}

/// Makes the tables of the registry, or brings them up to date.
async fn make(link: &mut PooledClient<'_>, schema: &str, address: &Address) -> Result<(), CallError> {
    // One of many makes the tables; the others wait, and find them made. Where the engine has no such lock, they fail to
    // make what is there, and look again.
    let has_locks = address.dialect.unwrap_or_default().has(Feature::AdvisoryLocks);
    let lock = match has_locks {
        true => "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))",
        false => "SELECT $1",
    };
    let name = format!("outlive {schema}");
    link.begin_with(None, lock, &[(&name, Type::TEXT)]).await?;
    link.run("SET LOCAL statement_timeout = 0").await?;
    // A user without the right to make schemas may still be given one.
    let there = link.then("SELECT to_regnamespace($1) IS NOT NULL", &[(&schema, Type::TEXT)]).await?;
    if !there.first().is_some_and(|row| row.get(0)) {
        link.run(&format!("CREATE SCHEMA {schema}")).await.map_err(|fault| given(fault, schema))?;
    }
    let mut found = format(link, schema).await?.unwrap_or(0);
    if let (0, Some(dialect)) = (found, address.dialect) {
        let layout = dialect.layout();
        link.run(&format!("SET LOCAL search_path TO {schema}; {layout}")).await?;
        let note = format!("INSERT INTO {schema}.meta VALUES ('without', $1)");
        link.then(&note, &[(&dialect.to_string(), Type::TEXT)]).await?;
        found = LAYOUT_FORMAT as i64;
    }
    let rest = MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(MIGRATIONS.len()));
    for migration in rest {
        link.run(&format!("SET LOCAL search_path TO {schema}; {migration}")).await?;
    }
    let note = format!(
        "INSERT INTO {schema}.meta VALUES ('format', $1) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    );
    link.commit_with(&note, &[(&FORMAT.max(found).to_string(), Type::TEXT)]).await?;
    Ok(())
}

/// The server's version, and whether it recovers or is read only. What its clock says is noted.
async fn greet(link: &mut PooledClient<'_>, clock: &ServerClock) -> Result<(i64, bool, bool), CallError> {
    let server = "SELECT current_setting('server_version_num')::int8, pg_is_in_recovery(),
                         current_setting('transaction_read_only') = 'on',
                         (extract(epoch FROM clock_timestamp()) * 1000000)::int8";
    let asked = SystemClock.now();
    let rows = link.read(server, &[]).await?;
    let [row] = rows.as_slice() else { return Err(odd("tells nothing of itself")) };
    clock.heard(row.get(3), asked);
    Ok((row.get(0), row.get(1), row.get(2)))
}

/// Says how a user without the right to make a schema gets one.
fn given(fault: CallError, schema: &str) -> CallError {
    match fault {
        CallError::Error(Error::Denied(text)) => {
            let sql = format!("CREATE SCHEMA {schema} AUTHORIZATION …");
            CallError::Error(Error::Denied(format!(
                "{text}: have the database's owner execute `{sql}` with your role's name"
            )))
        }
        fault => fault,
    }
}

fn odd(what: &str) -> CallError {
    Error::Unavailable(format!("the database {what}")).into()
}

/// The registry, where its tables are as this outlive knows them.
async fn known(link: &mut PooledClient<'_>, schema: &str, address: &Address) -> Result<Option<Made>, CallError> {
    match format(link, schema).await? {
        Some(found) if found > FORMAT => Err(Error::Newer { what: address.to_string(), found, known: FORMAT }.into()),
        Some(FORMAT) => {
            let sql = format!("SELECT name, value FROM {schema}.meta WHERE name IN ('id', 'without')");
            let rows = link.read(&sql, &[]).await?;
            let said = |name: &str| rows.iter().find(|row| row.get::<_, &str>(0) == name).map(|row| row.get(1));
            let dialect = Dialect::recorded(said("without").unwrap_or_default())?;
            if let Some(named) = address.dialect.filter(|named| *named != dialect) {
                let text =
                    format!("`{address}`: the registry was made with `without={dialect}`, not `without={named}`");
                return Err(Error::Unsupported(text).into());
            }
            Ok(said("id").map(|id: &str| Made { id: id.to_owned(), dialect }))
        }
        _ => Ok(None),
    }
}

async fn format(link: &mut PooledClient<'_>, schema: &str) -> Result<Option<i64>, CallError> {
    let there = link.read("SELECT to_regclass($1) IS NOT NULL", &[(&format!("{schema}.meta"), Type::TEXT)]).await?;
    if !there.first().is_some_and(|row| row.get(0)) {
        return Ok(None);
    }
    let rows = link.read(&format!("SELECT value FROM {schema}.meta WHERE name = 'format'"), &[]).await?;
    Ok(rows.first().and_then(|row| row.get::<_, String>(0).parse().ok()))
}
