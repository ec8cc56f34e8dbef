//! The schema of a database that may come from anywhere: only what outlive itself creates is accepted.
//!
//! A trigger could empty a list, a view in place of a table could compute for ever, and both would run with the rights of
//! the reader. So every connection compares the schema with the statements of the layout before it reads a row.

use rusqlite::Connection;
use sha2::{Digest, Sha256};

use super::schema::{LAYOUT, from_sqlite};
use crate::model::hex::hex;
use crate::store::Error;

/// The digest of the schema that the layout makes, so that a command need not make one to compare with.
const EXPECTED: &str = "43d01bfec9ce795efd8818bc539d745b2c0f89e00ff4cc478a15b4d4dc03eee3";

/// What a schema contains: kind, name and statement of each item, in order.
type Items = Vec<(String, String, String)>;

/// Refuses a database that contains anything but what this outlive makes. Of another format, whose statements may be
/// unknown, tables and indexes are accepted, and the triggers of this one.
pub(super) fn check(connection: &Connection, version: i64, migrations: &[&str]) -> Result<(), Error> {
    let found = items(connection)?;
    let is_plain =
        |item: &&(String, String, String)| matches!(item.0.as_str(), "table" | "index") && !is_virtual(&item.2);
    let newest = 1 + migrations.len() as i64;
    let stranger = if version != newest {
        let known = made(migrations)?;
        found.iter().find(|item| !is_plain(item) && !known.contains(item)).cloned()
    } else if digest(&found) == EXPECTED {
        None
    } else {
        let known = made(migrations)?;
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

/// The items of a database that is made and brought up to date now.
fn made(migrations: &[&str]) -> Result<Items, Error> {
    let connection = Connection::open_in_memory().map_err(from_sqlite)?;
    for script in [LAYOUT].iter().chain(migrations) {
        connection.execute_batch(script).map_err(from_sqlite)?;
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
    use crate::store::sqlite::schema::MIGRATIONS;

    fn database() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(LAYOUT).unwrap();
        connection
    }

    #[test]
    fn t8_07_the_expected_digest_is_that_of_the_layout() {
        assert_eq!(digest(&made(MIGRATIONS).unwrap()), EXPECTED, "the layout has changed: take the left one");
    }

    #[test]
    fn t8_07_only_the_schema_of_the_layout_is_accepted() {
        check(&database(), 1, &[]).unwrap();
        let planted = [
            "CREATE TRIGGER empties AFTER INSERT ON runs BEGIN DELETE FROM runs; END",
            "CREATE VIEW event_logs AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n",
            "CREATE TABLE other (x, y GENERATED ALWAYS AS (x || x))",
            "CREATE INDEX costly ON runs (length(body))",
            "CREATE VIRTUAL TABLE found USING fts5(text)",
        ];
        for statement in planted {
            let connection = database();
            connection.execute_batch(statement).unwrap();
            let refused = check(&connection, 1, &[]).unwrap_err().to_string();
            assert!(refused.contains("which outlive did not make"), "{statement}: {refused}");
        }
    }

    #[test]
    fn t8_07_a_later_format_may_have_tables_and_indexes_alone() {
        let connection = database();
        connection.execute_batch("CREATE TABLE later (x); CREATE INDEX later_x ON later (x)").unwrap();
        check(&connection, 2, &[]).unwrap();
        connection.execute_batch("CREATE VIEW seen AS SELECT * FROM later").unwrap();
        assert!(check(&connection, 2, &[]).is_err());
    }
}
