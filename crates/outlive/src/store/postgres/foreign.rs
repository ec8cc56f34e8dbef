//! Tables of other systems: read once, row by row, in one snapshot that changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::TryStreamExt;
use tokio::sync::mpsc;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, NoTls};

use super::address::DatabaseAddress;
use super::pool::in_passing;
use crate::store::Error;

/// The most rows that were read and wait to be taken.
const AHEAD: usize = 500;

/// Which tables of another system are read.
#[derive(Debug, Clone)]
pub struct ForeignTables {
    /// The table with a row for each run.
    pub runs: String,
    /// The table with the last heartbeat of each replica.
    pub replicas: String,
}

/// What a read brings: how long each replica has been silent, then row after row as JSON.
#[derive(Debug)]
pub enum ForeignRow {
    /// The replicas by id, with the time since the last heartbeat of each. Comes first; empty where there is no such table.
    Replicas(BTreeMap<String, Duration>),
    /// A run, as PostgreSQL writes a row in JSON.
    Run(String),
}

/// Rows on their way from another system's database.
#[derive(Debug)]
pub struct ForeignRows(mpsc::Receiver<Result<ForeignRow, Error>>);

impl ForeignRows {
    /// Begins to read tables of the database at `address`.
    pub fn read(address: &DatabaseAddress, tables: &ForeignTables) -> Result<Self, Error> {
        let [runs, replicas] = [quoted(&tables.runs)?, quoted(&tables.replicas)?];
        let (sender, receiver) = mpsc::channel(AHEAD);
        let address = address.clone();
        in_passing(async move {
            let shown = address.to_string();
            if let Err(error) = send_rows(&address, &runs, &replicas, &sender).await {
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
                let _ = sender.send(Err(Error::Denied(format!("`{shown}` cannot be read: {error}{cause}")))).await;
            }
        })?;
        Ok(Self(receiver))
    }

    /// The next row; none behind the last.
    pub async fn next(&mut self) -> Option<Result<ForeignRow, Error>> {
        self.0.recv().await
    }
}

/// The name of a table, `NAME` or `SCHEMA.NAME`, as SQL takes it.
fn quoted(name: &str) -> Result<String, Error> {
    let parts: Vec<&str> = name.split('.').collect();
    let is_name = |part: &&str| !part.is_empty() && part.len() <= 63 && !part.contains(['"', '\0']);
    if parts.len() > 2 || !parts.iter().all(is_name) {
        return Err(Error::Denied(format!("`{}` names no table", name.escape_default())));
    }
    Ok(parts.iter().map(|part| format!("\"{part}\"")).collect::<Vec<_>>().join("."))
}

async fn send_rows(
    address: &DatabaseAddress,
    runs: &str,
    replicas: &str,
    sender: &mpsc::Sender<Result<ForeignRow, Error>>,
) -> Result<(), tokio_postgres::Error> {
    let client = connect(address).await?;
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").await?;
    if sender.send(Ok(ForeignRow::Replicas(silences(&client, replicas).await?))).await.is_err() {
        return Ok(());
    }
    let none: [&(dyn ToSql + Sync); 0] = [];
    let rows = client.query_raw(&format!("SELECT to_jsonb(run)::text FROM {runs} AS run ORDER BY id"), none).await?;
    let mut rows = std::pin::pin!(rows);
    while let Some(row) = rows.try_next().await? {
        // The reader may have seen enough.
        if sender.send(Ok(ForeignRow::Run(row.try_get(0)?))).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// A connection to the first server that answers; the error of the last where none does.
async fn connect(address: &DatabaseAddress) -> Result<Client, tokio_postgres::Error> {
    let mut servers = address.servers.iter().peekable();
    loop {
        let Some(config) = servers.next() else { return Config::new().connect(NoTls).await.map(|(client, _)| client) };
        match config.connect(address.tls.clone()).await {
            Err(_) if servers.peek().is_some() => {}
            connected => {
                let (client, connection) = connected?;
                tokio::spawn(async move { drop(connection.await) });
                return Ok(client);
            }
        }
    }
}

/// How long each replica has been silent, by the clock of the server.
async fn silences(client: &Client, table: &str) -> Result<BTreeMap<String, Duration>, tokio_postgres::Error> {
    let found = client.query_one("SELECT to_regclass($1::text) IS NOT NULL", &[&table]).await?;
    if !found.try_get::<_, bool>(0)? {
        return Ok(BTreeMap::new());
    }
    let sql = format!(
        "SELECT replica_id::text, greatest(extract(epoch FROM now() - last_heartbeat), 0)::float8 FROM {table}
         WHERE replica_id IS NOT NULL AND last_heartbeat IS NOT NULL"
    );
    let rows = client.query(&sql, &[]).await?;
    let silence = |row: &tokio_postgres::Row| {
        let seconds = Duration::try_from_secs_f64(row.try_get(1)?).unwrap_or(Duration::MAX);
        Ok((row.try_get(0)?, seconds))
    };
    rows.iter().map(silence).collect()
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn table_names_are_quoted_and_others_refused() {
        assert_eq!(quoted("task_run").unwrap(), "\"task_run\"");
        assert_eq!(quoted("public.Task Run").unwrap(), "\"public\".\"Task Run\"");
        for name in ["", ".", "a.b.c", "a\"; DROP TABLE b; --", &"x".repeat(64)] {
            quoted(name).unwrap_err();
        }
    }
}
