//! Where rows come from: a database, a file or the standard input.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use outlive::error::Error;
#[cfg(feature = "postgres")]
use outlive::store::postgres::{DatabaseAddress, ForeignRow, ForeignRows, ForeignTables};

/// The longest line that is read: more than any input of a run may have.
const LINE_LIMIT: u64 = 16 << 20;

/// What a source brings.
pub enum Row {
    /// For how long each owner has been silent. A file has none.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "a database brings it"))]
    Replicas(BTreeMap<String, Duration>),
    /// A row as JSON.
    Run(String),
}

/// Where rows come from.
pub enum Source {
    /// A row of JSON a line.
    Lines(Box<dyn BufRead>),
    /// A table.
    #[cfg(feature = "postgres")]
    Database(ForeignRows),
}

impl Source {
    /// Opens what `--from-sql` names.
    pub fn open(from: &str, table: &str, replicas: &str) -> Result<Self, Error> {
        if from == "-" {
            return Ok(Self::Lines(Box::new(BufReader::new(std::io::stdin()))));
        }
        #[cfg(feature = "postgres")]
        if DatabaseAddress::is_meant(from) {
            let address: DatabaseAddress =
                from.parse().map_err(|error| Error::Invalid(format!("`--from-sql`: {error}")))?;
            let tables = ForeignTables { runs: table.into(), replicas: replicas.into() };
            return Ok(Self::Database(ForeignRows::read(&address, &tables)?));
        }
        let _ = (table, replicas);
        if from.contains("://") {
            // It may bear a password.
            return Err(Error::Invalid("`--from-sql` takes postgres://…, a file of JSON lines, or -".into()));
        }
        let file = File::open(from).map_err(|error| Error::Invalid(format!("`{from}` cannot be read: {error}")))?;
        Ok(Self::Lines(Box::new(BufReader::new(file))))
    }

    /// The next row; none behind the last. Empty lines are none.
    pub async fn next(&mut self) -> Result<Option<Row>, Error> {
        match self {
            Self::Lines(lines) => loop {
                let mut line = String::new();
                let read = lines.take(LINE_LIMIT).read_line(&mut line);
                let read = read.map_err(|error| Error::Invalid(format!("the rows cannot be read: {error}")))?;
                if read as u64 == LINE_LIMIT {
                    return Err(Error::Invalid(format!("a row is longer than {} MiB", LINE_LIMIT >> 20)));
                }
                match line.trim() {
                    "" if read == 0 => return Ok(None),
                    "" => {}
                    row => return Ok(Some(Row::Run(row.to_owned()))),
                }
            },
            #[cfg(feature = "postgres")]
            Self::Database(rows) => match rows.next().await.transpose()? {
                Some(ForeignRow::Replicas(replicas)) => Ok(Some(Row::Replicas(replicas))),
                Some(ForeignRow::Run(row)) => Ok(Some(Row::Run(row))),
                None => Ok(None),
            },
        }
    }
}
