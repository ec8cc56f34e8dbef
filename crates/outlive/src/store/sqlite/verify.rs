//! The schema of a database that may come from anywhere: only what outlive itself creates is accepted.
//!
//! A trigger could empty a list, a view in place of a table could compute for ever, and both would run with the rights of
//! the reader. So every connection compares the schema with the statements of the migrations before it reads a row.

use rusqlite::Connection;
use sha2::{Digest, Sha256};

use super::schema::{FORMAT, MIGRATIONS, from_sqlite};
use crate::model::hex::hex;
use crate::store::Error;

/// The digest of the schema that the migrations make, so that a command need not make one to compare with.
const EXPECTED: &str = "5a7c9c6821272683be058aada45fa5b38cf67e3b46441b7661fcffde860375fa";

/// What a schema contains: kind, name and statement of each item, in order.
type Items = Vec<(String, String, String)>;

/// Refuses a database that contains anything but what the migrations of this outlive make. Of another format, whose
/// statements may be unknown, tables and indexes are accepted, and the triggers of this one.
pub(super) fn check(connection: &Connection, version: i64) -> Result<(), Error> {
    let found = items(connection)?;
    let is_plain =
        |item: &&(String, String, String)| matches!(item.0.as_str(), "table" | "index") && !is_virtual(&item.2);
    let stranger = if version != FORMAT {
        let known = migrated()?;
        found.iter().find(|item| !is_plain(item) && !known.contains(item)).cloned()
    } else if digest(&found) == EXPECTED {
        None
    } else {
        let known = migrated()?;
        found.into_iter().find(|item| !known.contains(item))
    };
    match stranger {
        None => Ok(()),
        Some((kind, name, _)) => {
            let name: String = name.chars().take(64).collect();
            Err(Error::Corrupt(format!("the database contains the {kind} `{name}`, which outlive did not make")))
        }
    }
}

/// The items of a database. Statistics are SQLite's own: `ANALYZE` makes them.
fn items(connection: &Connection) -> Result<Items, Error> {
    let sql = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_stat%' ORDER BY name";
    let mut statement = connection.prepare(sql).map_err(from_sqlite)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).map_err(from_sqlite)?;
    rows.collect::<Result<Items, _>>().map_err(from_sqlite)
}

/// The items that the migrations make.
fn migrated() -> Result<Items, Error> {
    let connection = Connection::open_in_memory().map_err(from_sqlite)?;
    for migration in MIGRATIONS {
        connection.execute_batch(migration).map_err(from_sqlite)?;
    }
    items(&connection)
}

fn digest(items: &Items) -> String {
    let mut digest = Sha256::new();
    for (kind, name, sql) in items {
        for text in [kind, name, sql] {
            digest.update(text.as_bytes());
            digest.update([0]);
        }
    }
    hex(&digest.finalize())
}

fn is_virtual(sql: &str) -> bool {
    sql.get(..14).is_some_and(|start| start.eq_ignore_ascii_case("CREATE VIRTUAL"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        for migration in MIGRATIONS {
            connection.execute_batch(migration).unwrap();
        }
        connection
    }

    #[test]
    fn t8_07_the_expected_digest_is_that_of_the_migrations() {
        assert_eq!(digest(&migrated().unwrap()), EXPECTED, "the migrations have changed: take the left one");
    }

    #[test]
    fn t8_07_only_the_schema_of_the_migrations_is_accepted() {
        check(&made(), FORMAT).unwrap();
        let planted = [
            "CREATE TRIGGER empties AFTER INSERT ON runs BEGIN DELETE FROM runs; END",
            "CREATE VIEW stories AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n",
            "CREATE TABLE other (x, y GENERATED ALWAYS AS (x || x))",
            "CREATE INDEX costly ON runs (length(body))",
            "CREATE VIRTUAL TABLE found USING fts5(text)",
        ];
        for statement in planted {
            let connection = made();
            connection.execute_batch(statement).unwrap();
            let refused = check(&connection, FORMAT).unwrap_err().to_string();
            assert!(refused.contains("which outlive did not make"), "{statement}: {refused}");
        }
    }

    #[test]
    fn t8_07_a_later_format_may_have_tables_and_indexes_alone() {
        let connection = made();
        connection.execute_batch("CREATE TABLE later (x); CREATE INDEX later_x ON later (x)").unwrap();
        check(&connection, FORMAT + 1).unwrap();
        connection.execute_batch("CREATE VIEW seen AS SELECT * FROM later").unwrap();
        assert!(check(&connection, FORMAT + 1).is_err());
    }
}
