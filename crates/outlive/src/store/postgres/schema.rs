//! The tables of a registry: made, brought up to date and refused, by one of many that come at once.

use super::address::DatabaseAddress;
use super::clock::ServerClock;
use super::dialect::{Dialect, Feature};
use super::pool::{self, CallError, Pool, PooledClient, with_retry};
use crate::model::time::{Clock, SystemClock};
use crate::store::Error;
use std::time::Duration;
use tokio_postgres::types::Type;

/// What makes the tables of the newest format at once.
pub(super) const LAYOUT: &str = include_str!("layout.sql");
/// What brings format n to format n+1, from format 1 on. Never edited once released.
pub(super) const MIGRATIONS: &[&str] = &[];

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
pub(super) async fn open(
    links: &Pool,
    schema: &str,
    address: &DatabaseAddress,
    clock: &ServerClock,
) -> Result<Made, Error> {
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
    address: &DatabaseAddress,
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
async fn unless_away<T>(
    answered: Result<T, Error>,
    address: &DatabaseAddress,
    began: Duration,
) -> Result<Option<T>, Error> {
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
    address: &DatabaseAddress,
    clock: &ServerClock,
) -> Result<Option<Made>, CallError> {
    greet(link, clock).await?;
    known(link, schema, address).await
}

async fn try_open(links: &Pool, schema: &str, address: &DatabaseAddress, clock: &ServerClock) -> Result<Made, Error> {
    with_retry!(links, |link| open_on(&mut link, schema, address, clock))
}

async fn try_find(
    links: &Pool,
    schema: &str,
    address: &DatabaseAddress,
    clock: &ServerClock,
) -> Result<Option<Made>, Error> {
    with_retry!(links, |link| find_on(&mut link, schema, address, clock))
}

async fn open_on(
    link: &mut PooledClient<'_>,
    schema: &str,
    address: &DatabaseAddress,
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
async fn make(link: &mut PooledClient<'_>, schema: &str, address: &DatabaseAddress) -> Result<(), CallError> {
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
    let found = format(link, schema).await?;
    let dialect = match found {
        Some(_) => recorded(link, schema).await?.dialect,
        None => {
            let dialect = address.dialect.unwrap_or_default();
            link.run(&format!("SET LOCAL search_path TO {schema}; {}", dialect.kept(LAYOUT))).await?;
            let note = format!("INSERT INTO {schema}.meta VALUES ('without', $1)");
            link.then(&note, &[(&dialect.to_string(), Type::TEXT)]).await?;
            dialect
        }
    };
    let older = usize::try_from(found.unwrap_or(1) - 1).unwrap_or_default();
    for migration in address.migrations.iter().skip(older) {
        let migration = dialect.kept(migration);
        link.run(&format!("SET LOCAL search_path TO {schema}; {migration}")).await?;
    }
    let note = format!(
        "INSERT INTO {schema}.meta VALUES ('format', $1) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    );
    link.commit_with(&note, &[(&address.format().max(found.unwrap_or(1)).to_string(), Type::TEXT)]).await?;
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
async fn known(
    link: &mut PooledClient<'_>,
    schema: &str,
    address: &DatabaseAddress,
) -> Result<Option<Made>, CallError> {
    let known = address.format();
    match format(link, schema).await? {
        Some(found) if found > known => Err(Error::Newer { what: address.to_string(), found, known }.into()),
        Some(found) if found == known => {
            let made = recorded(link, schema).await?;
            if let Some(named) = address.dialect.filter(|named| *named != made.dialect) {
                let text = format!(
                    "`{address}`: the registry was made with `without={}`, not `without={named}`",
                    made.dialect
                );
                return Err(Error::Unsupported(text).into());
            }
            Ok(Some(made))
        }
        _ => Ok(None),
    }
}

/// What the registry in a schema says of itself.
async fn recorded(link: &mut PooledClient<'_>, schema: &str) -> Result<Made, CallError> {
    let sql = format!("SELECT name, value FROM {schema}.meta WHERE name IN ('id', 'without')");
    let rows = link.read(&sql, &[]).await?;
    let said = |name: &str| rows.iter().find(|row| row.get::<_, &str>(0) == name).map(|row| row.get(1));
    let dialect = Dialect::recorded(said("without").unwrap_or_default())?;
    let id = said("id").ok_or_else(|| Error::Corrupt("the registry has no id".into()))?;
    Ok(Made { id: id.to_owned(), dialect })
}

async fn format(link: &mut PooledClient<'_>, schema: &str) -> Result<Option<i64>, CallError> {
    let there = link.read("SELECT to_regclass($1) IS NOT NULL", &[(&format!("{schema}.meta"), Type::TEXT)]).await?;
    if !there.first().is_some_and(|row| row.get(0)) {
        return Ok(None);
    }
    let rows = link.read(&format!("SELECT value FROM {schema}.meta WHERE name = 'format'"), &[]).await?;
    Ok(rows.first().and_then(|row| row.get::<_, String>(0).parse().ok()))
}
