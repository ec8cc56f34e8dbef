//! Sessions: one connection, and what is prepared on it.
//!
//! Planning a statement takes longer than carrying it out for a few runs, so one that is used again is prepared. A pooler
//! may hand every transaction to another session, where the same name means another client's statement. So a session is
//! marked, every transaction that uses or prepares a statement looks for the mark first, and where it is missing nothing is
//! prepared any more.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::SinkExt;
use futures_util::future::{join_all, join3};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};

use super::copy_in::Copy;
use super::pool::{Bound, CallError, Effect, TIMEOUT, answered, within};
use super::reads::Query;
use crate::model::id::{Entropy, SystemEntropy};
use crate::store::Error;

/// The settings that every session is opened with. It waits for no lock for longer than a beat may be late, and a process
/// that is stopped in the middle of a transaction loses its locks before its lease is over. There is an index for whatever
/// is looked for: a table that has grown since it was last counted is not to be read from end to end, or sorted, for that;
/// nor is anything worth compiling. `outlive.settings` tells that they hold.
pub(super) const SETTINGS: &str = "-c lock_timeout=2s -c statement_timeout=8s -c idle_in_transaction_session_timeout=8s
                                   -c jit=off -c enable_seqscan=off -c enable_sort=off -c outlive.settings=on";

/// How a transaction begins where a session may not have those settings: a pooler refuses them, or shares its sessions.
const BEGIN: &str = "BEGIN; SET LOCAL lock_timeout = '2s'; SET LOCAL statement_timeout = '8s';
                     SET LOCAL idle_in_transaction_session_timeout = '8s'; SET LOCAL jit = off;
                     SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off";

/// What tells of a session that is not ours alone: the mark is missing (a division by zero), a statement is, or its name is
/// taken.
pub(super) const SHARED: [&str; 3] = ["22012", "26000", "42P05"];

/// How many transactions a session has seen before anything is prepared on it: most commands make one or two.
const USES: u32 = 3;
/// How many statements are prepared on a session at most.
const STATEMENTS: usize = 64;

/// One connection.
pub(super) struct Session {
    client: Client,
    /// It was opened with [`SETTINGS`].
    has_settings: bool,
    /// How a transaction begins on it, once it is marked.
    begin: Option<String>,
    uses: u32,
    prepared: HashMap<String, Statement>,
}

impl Session {
    pub(super) fn new(client: Client, has_settings: bool) -> Self {
        Self { client, has_settings, begin: None, uses: 0, prepared: HashMap::new() }
    }

    /// A statement that takes as long as it takes.
    pub(super) async fn say_patiently(&self, sql: &str) -> Result<(), CallError> {
        if !self.has_settings {
            return self.say(sql, Effect::None).await;
        }
        self.say("SET statement_timeout = 0", Effect::None).await?;
        let said = self.say(sql, Effect::None).await;
        self.say("RESET statement_timeout", Effect::None).await?;
        said
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// How a transaction begins.
    pub(super) fn begin(&self) -> String {
        self.begin.clone().unwrap_or_else(|| BEGIN.to_owned())
    }

    /// Sees to it that a statement is prepared that is to be used again, outside of any transaction.
    pub(super) async fn prepare_alone(&mut self, may: bool, sql: &str, bound: &[Bound<'_>]) -> Result<(), CallError> {
        self.uses = self.uses.saturating_add(1);
        if !may {
            self.begin = None;
            self.prepared.clear();
            return Ok(());
        }
        if self.uses <= USES || self.prepared.contains_key(sql) || self.prepared.len() >= STATEMENTS {
            return Ok(());
        }
        let begin = match &self.begin {
            Some(begin) => begin.clone(),
            None => {
                let mark = format!("{:x}", SystemEntropy.draw());
                self.say(&format!("SET outlive.session = '{mark}'"), Effect::None).await?;
                let is_ours = format!("coalesce(current_setting('outlive.session', true), '') = '{mark}'");
                let generic = "set_config('plan_cache_mode', 'force_generic_plan', true)";
                if self.has_settings {
                    let is_set = "coalesce(current_setting('outlive.settings', true), '') = 'on'";
                    format!("BEGIN; SELECT {generic}, 1 / ({is_ours} AND {is_set})::int")
                } else {
                    format!("{BEGIN}; SELECT {generic}, 1 / ({is_ours})::int")
                }
            }
        };
        let (begun, statement, ended) =
            join3(self.say(&begin, Effect::None), self.parse(sql, bound), self.say("COMMIT", Effect::None)).await;
        begun?;
        let statement = statement?;
        ended?;
        self.prepared.insert(sql.to_owned(), statement);
        self.begin = Some(begin);
        Ok(())
    }

    /// Prepares statements that are sent at once, as one is prepared alone.
    pub(super) async fn prepare_all_alone(&mut self, may: bool, queries: &[Query]) -> Result<(), CallError> {
        for (place, query) in queries.iter().enumerate() {
            // They are one transaction.
            if place == 0 || self.begin.is_some() {
                self.prepare_alone(may, &query.sql, &query.bound()).await?;
            }
        }
        Ok(())
    }

    /// Prepares a statement within a transaction.
    pub(super) async fn prepare_within(&mut self, may: bool, sql: &str, bound: &[Bound<'_>]) -> Result<(), CallError> {
        let is_wanted = may && self.begin.is_some() && self.prepared.len() < STATEMENTS;
        if is_wanted && !self.prepared.contains_key(sql) {
            let statement = self.parse(sql, bound).await?;
            self.prepared.insert(sql.to_owned(), statement);
        }
        Ok(())
    }

    async fn parse(&self, sql: &str, bound: &[Bound<'_>]) -> Result<Statement, CallError> {
        let types: Vec<Type> = bound.iter().map(|(_, of)| of.clone()).collect();
        answered(within(TIMEOUT, self.client.prepare_typed(sql, &types)).await?, TIMEOUT, Effect::None)
    }

    pub(super) fn is_prepared(&self, sql: &str) -> bool {
        self.prepared.contains_key(sql)
    }

    /// Rows for a table, by a statement that was prepared.
    pub(super) async fn copy(&self, copy: &Copy) -> Result<(), CallError> {
        let Some(statement) = self.prepared.get(&copy.sql) else {
            return Err(Error::Unavailable("nothing takes the rows".into()).into());
        };
        let copying = async {
            let mut sink = std::pin::pin!(self.client.copy_in::<Statement, Bytes>(statement).await?);
            sink.send(copy.rows.clone()).await?;
            sink.finish().await
        };
        answered(within(TIMEOUT, copying).await?, TIMEOUT, Effect::None).map(drop)
    }

    /// Statements without values.
    pub(super) async fn say(&self, sql: &str, effect: Effect) -> Result<(), CallError> {
        answered(within(TIMEOUT, self.client.batch_execute(sql)).await?, TIMEOUT, effect)
    }

    /// A statement.
    pub(super) async fn ask(
        &self,
        sql: &str,
        bound: &[Bound<'_>],
        timeout: Duration,
        effect: Effect,
    ) -> Result<Vec<Row>, CallError> {
        answered(within(timeout, self.client.query_typed(sql, bound)).await?, timeout, effect)
    }

    /// A statement of a transaction, as it was prepared if it was.
    pub(super) async fn ask_within(
        &self,
        sql: &str,
        bound: &[Bound<'_>],
        effect: Effect,
    ) -> Result<Vec<Row>, CallError> {
        let Some(statement) = self.prepared.get(sql) else { return self.ask(sql, bound, TIMEOUT, effect).await };
        let values: Vec<&(dyn ToSql + Sync)> = bound.iter().map(|(value, _)| *value).collect();
        answered(within(TIMEOUT, self.client.query(statement, &values)).await?, TIMEOUT, effect)
    }

    /// Statements of a transaction, sent at once. The first that fails says why those behind it fail.
    pub(super) async fn ask_all_within(&self, queries: &[Query]) -> Result<Vec<Vec<Row>>, CallError> {
        let bound: Vec<Vec<Bound<'_>>> = queries.iter().map(Query::bound).collect();
        let asked = queries.iter().zip(&bound).map(|(query, bound)| self.ask_within(&query.sql, bound, Effect::None));
        join_all(asked).await.into_iter().collect()
    }
}
