//! Copying: many new runs at once, as rows in the form that PostgreSQL reads without planning anything.
//!
//! It takes two thirds of the server's time that a statement takes, and fails as a whole where any of the runs is there
//! already.

use bytes::{BufMut, Bytes, BytesMut};
use tokio_postgres::types::{IsNull, ToSql, Type};

use crate::store::Error;

/// From how many new runs on they are copied.
pub(super) const WORTH_IT: usize = 32;

/// What is before the rows: the mark of the form, no flags, nothing more.
const HEAD: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// What is behind them.
const TAIL: i16 = -1;

/// Rows on their way into a table.
pub(super) struct Copy {
    /// The statement that takes them.
    pub(super) sql: String,
    pub(super) rows: Bytes,
}

/// The columns of a table that are copied, by name, with their types.
pub(super) struct Columns<const N: usize> {
    pub(super) sql: &'static str,
    pub(super) types: [Type; N],
}

impl<const N: usize> Columns<N> {
    /// The rows, a list of values each.
    pub(super) fn copy<'a>(&self, rows: impl Iterator<Item = [&'a (dyn ToSql + Sync); N]>) -> Result<Copy, Error> {
        let mut all = BytesMut::from(HEAD);
        for row in rows {
            all.put_i16(i16::try_from(N).unwrap_or(TAIL));
            for (value, of) in row.into_iter().zip(&self.types) {
                put(&mut all, value, of).map_err(|error| Error::Corrupt(format!("a value cannot be sent: {error}")))?;
            }
        }
        all.put_i16(TAIL);
        Ok(Copy { sql: self.sql.to_owned(), rows: all.freeze() })
    }
}

/// A value behind its length, which is negative where there is none.
fn put(
    row: &mut BytesMut,
    value: &(dyn ToSql + Sync),
    of: &Type,
) -> Result<(), Box<dyn std::error::Error + Sync + Send>> {
    let place = row.len();
    row.put_i32(-1);
    if let IsNull::No = value.to_sql_checked(of, row)? {
        let length = i32::try_from(row.len() - place - 4)?;
        row[place..place + 4].copy_from_slice(&length.to_be_bytes());
    }
    Ok(())
}
