//! Examining a database: its version and format, what this role may do, and what has piled up. Nothing is changed.

use tokio_postgres::types::Type;

use super::PostgresStore;
use super::pool::{CallError, PooledClient, with_retry};
use crate::model::time::show_duration;
use crate::store::Error;

/// From how many dead rows on a table is called bloated, if they are more than its live rows as well.
const DEAD_ROWS: i64 = 10_000;
/// How long a transaction may be open before it is reported: nothing that ended since can be vacuumed.
const OPEN_FOR: f64 = 600.0;

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseFinding {
    /// Whether something has to be done about it.
    pub is_problem: bool,
    /// What was found.
    pub what: String,
    /// What to do about a problem.
    pub remedy: Option<String>,
}

impl DatabaseFinding {
    fn sound(what: String) -> Self {
        Self { is_problem: false, what, remedy: None }
    }

    fn problem(what: String, remedy: String) -> Self {
        Self { is_problem: true, what, remedy: Some(remedy) }
    }
}

impl PostgresStore {
    /// Examines the database for `outlive doctor`.
    pub async fn examine(&self) -> Result<Vec<DatabaseFinding>, Error> {
        with_retry!(self.links(), |link| self.examine_on(&mut link))
    }

    async fn examine_on(&self, link: &mut PooledClient<'_>) -> Result<Vec<DatabaseFinding>, CallError> {
        let mut found = vec![self.examine_server(link).await?];
        found.push(self.examine_rights(link).await?);
        found.extend(self.examine_tables(link).await?);
        found.extend(self.examine_transactions(link).await?);
        if found.iter().all(|finding| !finding.is_problem) {
            found.push(DatabaseFinding::sound("no table is bloated, and no transaction is held open".into()));
        }
        Ok(found)
    }

    async fn examine_server(&self, link: &mut PooledClient<'_>) -> Result<DatabaseFinding, CallError> {
        let sql = self.sql(
            "SELECT current_setting('server_version'), value, current_setting('autovacuum') = 'on'
             FROM @.meta WHERE name = 'format'",
        );
        let rows = link.read(&sql, &[]).await?;
        let Some(row) = rows.first() else { return Err(Error::Corrupt("the registry has no format".into()).into()) };
        let (version, format): (&str, &str) = (row.get(0), row.get(1));
        let what = format!("PostgreSQL {version}, registry format {format}");
        Ok(match row.get(2) {
            true => DatabaseFinding::sound(what),
            false => DatabaseFinding::problem(
                format!("{what}: autovacuum is off"),
                "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()".into(),
            ),
        })
    }

    async fn examine_rights(&self, link: &mut PooledClient<'_>) -> Result<DatabaseFinding, CallError> {
        let sql = "SELECT current_user::text, string_agg(c.relname, ', ' ORDER BY c.relname) FILTER (WHERE NOT (
                              has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
                              AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))),
                          coalesce(bool_and(pg_has_role(c.relowner, 'USAGE')), false)
                   FROM pg_class c WHERE c.relnamespace = to_regnamespace($1) AND c.relkind IN ('r', 'p')";
        let schema = &self.inner.schema;
        let rows = link.read(sql, &[(schema, Type::TEXT)]).await?;
        let Some(row) = rows.first() else { return Ok(DatabaseFinding::sound("no table is there".into())) };
        let (role, denied, is_owner): (&str, Option<&str>, bool) = (row.get(0), row.get(1), row.get(2));
        Ok(match denied {
            Some(denied) => DatabaseFinding::problem(
                format!("role `{role}` may not read and write {denied}"),
                format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO \"{role}\""),
            ),
            None if is_owner => DatabaseFinding::sound(format!("role `{role}` owns the registry's tables")),
            None => DatabaseFinding::sound(format!(
                "role `{role}` may read and write; tables for the time to come are made by a process of their owner"
            )),
        })
    }

    async fn examine_tables(&self, link: &mut PooledClient<'_>) -> Result<Vec<DatabaseFinding>, CallError> {
        let sql = "SELECT relname::text, n_live_tup, n_dead_tup, pg_size_pretty(pg_total_relation_size(relid))
                   FROM pg_stat_user_tables WHERE schemaname = trim('\"' FROM $1) AND n_dead_tup > greatest($2, n_live_tup)
                   ORDER BY n_dead_tup DESC";
        let schema = &self.inner.schema;
        let rows = link.read(sql, &[(schema, Type::TEXT), (&DEAD_ROWS, Type::INT8)]).await?;
        let finding = |row: &tokio_postgres::Row| {
            let (table, live, dead, size): (&str, i64, i64, &str) = (row.get(0), row.get(1), row.get(2), row.get(3));
            let what = format!("table `{table}` is bloated: {dead} dead rows, {live} live ones, {size}");
            DatabaseFinding::problem(what, format!("VACUUM {schema}.{table}; look for transactions that are held open"))
        };
        Ok(rows.iter().map(finding).collect())
    }

    async fn examine_transactions(&self, link: &mut PooledClient<'_>) -> Result<Vec<DatabaseFinding>, CallError> {
        let sql =
            "SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::float8, coalesce(application_name, '')
                   FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
                       AND xact_start < clock_timestamp() - make_interval(secs => $1) ORDER BY xact_start";
        let rows = link.read(sql, &[(&OPEN_FOR, Type::FLOAT8)]).await?;
        let finding = |row: &tokio_postgres::Row| {
            let (pid, seconds, name): (i32, f64, &str) = (row.get(0), row.get(1), row.get(2));
            let open = show_duration(std::time::Duration::from_secs_f64(seconds.max(0.0)));
            let what = format!("a transaction of server process {pid} `{name}` has been open for {open}");
            DatabaseFinding::problem(what, format!("end it, or SELECT pg_terminate_backend({pid})"))
        };
        Ok(rows.iter().map(finding).collect())
    }
}
