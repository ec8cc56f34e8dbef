//! A small part of Parquet: flat tables of text, integers and times, in row groups of one compressed page a column.
//!
//! What is written is read by whatever reads Parquet; what is read is what was written here, and everything else is refused.
//! A library for all of Parquet takes 10 packages and a sixth of the time of `cargo install` (ADR 0037).

use std::collections::BTreeMap;
use std::io::{Read, Write as _};
use std::ops::Range;

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

use super::thrift::{self, Fields, ThriftInput, Value};

/// What a file begins and ends with.
const MAGIC: &[u8; 4] = b"PAR1";
/// What is behind the footer: its length and the mark.
pub(super) const TAIL: usize = 8;
/// The most bytes that one page unpacks to.
const PAGE: u64 = 1 << 28;
/// The most rows of a row group.
const ROWS: usize = 1 << 20;

// Numbers of the format: parquet.thrift.
const INT64: i32 = 2;
const BYTE_ARRAY: i32 = 6;
const REQUIRED: i32 = 0;
const OPTIONAL: i32 = 1;
const UTF8: i32 = 0;
const TIMESTAMP_MICROS: i32 = 10;
const CONVERTED_JSON: i32 = 19;
const LOGICAL_STRING: i16 = 1;
const LOGICAL_TIMESTAMP: i16 = 8;
const LOGICAL_JSON: i16 = 12;
const PLAIN: i32 = 0;
const RLE: i32 = 3;
const GZIP: i32 = 2;
const DATA_PAGE: i32 = 0;

/// What a column has in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnKind {
    Text,
    Json,
    Int,
    /// Microseconds since 1970, UTC.
    Time,
}

/// A column of a table.
#[derive(Debug)]
pub(super) struct ParquetColumn {
    pub(super) name: &'static str,
    pub(super) kind: ColumnKind,
    /// Rows may have nothing there.
    pub(super) optional: bool,
}

/// What a row has in a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cell {
    Nothing,
    Int(i64),
    Text(String),
}

impl ParquetColumn {
    fn physical(&self) -> i32 {
        if matches!(self.kind, ColumnKind::Text | ColumnKind::Json) { BYTE_ARRAY } else { INT64 }
    }

    /// How the schema tells of it.
    fn element(&self) -> Value {
        let nothing = || Value::Struct(Fields::new());
        let mut fields = Fields::from([
            (1, Value::I32(self.physical())),
            (3, Value::I32(if self.optional { OPTIONAL } else { REQUIRED })),
            (4, Value::text(self.name)),
        ]);
        let micros = || Value::structure([(1, Value::Bool(true)), (2, Value::structure([(2, nothing())]))]);
        let said = match self.kind {
            ColumnKind::Text => Some((UTF8, LOGICAL_STRING, nothing())),
            ColumnKind::Json => Some((CONVERTED_JSON, LOGICAL_JSON, nothing())),
            ColumnKind::Time => Some((TIMESTAMP_MICROS, LOGICAL_TIMESTAMP, micros())),
            ColumnKind::Int => None,
        };
        if let Some((converted, logical, what)) = said {
            fields.extend([(6, Value::I32(converted)), (10, Value::structure([(logical, what)]))]);
        }
        Value::Struct(fields)
    }

    /// The least and the greatest, by which readers pass over row groups: of integers and times, and of what rows are sorted by.
    fn statistics(&self, cells: &[&Cell], is_sorted: bool) -> Value {
        let nothing = cells.iter().filter(|cell| ***cell == Cell::Nothing).count();
        let mut fields = Fields::from([(3, Value::I64(nothing as i64))]);
        let ints = || cells.iter().filter_map(|cell| if let Cell::Int(value) = cell { Some(*value) } else { None });
        let bounds = match (cells.first(), cells.last(), ints().min(), ints().max()) {
            (Some(Cell::Text(first)), Some(Cell::Text(last)), ..) if is_sorted => {
                Some((first.as_bytes().to_vec(), last.as_bytes().to_vec()))
            }
            (_, _, Some(least), Some(most)) => Some((least.to_le_bytes().to_vec(), most.to_le_bytes().to_vec())),
            _ => None,
        };
        if let Some((least, most)) = bounds {
            fields.extend([(5, Value::Binary(most)), (6, Value::Binary(least))]);
        }
        Value::Struct(fields)
    }

    /// The cells as a page has them, before it is compressed.
    fn body(&self, cells: &[&Cell]) -> Vec<u8> {
        let mut body = Vec::new();
        if self.optional {
            let mut levels = Vec::new();
            for run in cells.chunk_by(|one, other| (**one == Cell::Nothing) == (**other == Cell::Nothing)) {
                thrift::varint(&mut levels, (run.len() as u64) << 1);
                levels.push(u8::from(*run[0] != Cell::Nothing));
            }
            body.extend((levels.len() as u32).to_le_bytes());
            body.extend(levels);
        }
        for cell in cells {
            match cell {
                Cell::Nothing => {}
                Cell::Int(value) => body.extend(value.to_le_bytes()),
                Cell::Text(text) => {
                    body.extend((text.len() as u32).to_le_bytes());
                    body.extend(text.as_bytes());
                }
            }
        }
        body
    }

    /// The cells of a chunk of that many rows; none where it is not as they were written.
    pub(super) fn cells(&self, chunk: &[u8], rows: usize) -> Option<Vec<Cell>> {
        let mut input = ThriftInput(chunk);
        let header = input.fields()?;
        let size = u64::try_from(header.get(&2)?.int()?).ok().filter(|size| *size <= PAGE)?;
        if header != page_header(usize::try_from(size).ok()?, input.0.len(), rows) {
            return None;
        }
        let mut body = Vec::new();
        MultiGzDecoder::new(input.0).take(size + 1).read_to_end(&mut body).ok()?;
        (body.len() as u64 == size).then_some(())?;
        let mut input = ThriftInput(&body);
        let present = if self.optional { levels(&mut input, rows)? } else { vec![true; rows] };
        let cells =
            present.into_iter().map(|is_there| if is_there { self.cell(&mut input) } else { Some(Cell::Nothing) });
        let cells = cells.collect::<Option<Vec<_>>>()?;
        input.0.is_empty().then_some(cells)
    }

    fn cell(&self, input: &mut ThriftInput<'_>) -> Option<Cell> {
        if self.physical() == INT64 {
            return Some(Cell::Int(i64::from_le_bytes(input.take(8)?.try_into().ok()?)));
        }
        let length = u32::from_le_bytes(input.take(4)?.try_into().ok()?);
        let bytes = input.take(usize::try_from(length).ok()?)?;
        Some(Cell::Text(String::from_utf8(bytes.to_vec()).ok()?))
    }
}

/// Which of so many rows have something in a column.
fn levels(input: &mut ThriftInput<'_>, rows: usize) -> Option<Vec<bool>> {
    let length = u32::from_le_bytes(input.take(4)?.try_into().ok()?);
    let mut levels = ThriftInput(input.take(usize::try_from(length).ok()?)?);
    let mut present = Vec::with_capacity(rows);
    while !levels.0.is_empty() {
        let head = levels.varint()?;
        let count = usize::try_from(head >> 1).ok().filter(|count| *count <= rows - present.len())?;
        let [level @ (0 | 1)] = levels.take(1)? else { return None };
        (head & 1 == 0).then_some(())?;
        present.resize(present.len() + count, *level == 1);
    }
    (present.len() == rows).then_some(present)
}

fn page_header(size: usize, compressed: usize, rows: usize) -> Fields {
    let number = |value: usize| Value::I32(i32::try_from(value).unwrap_or(i32::MAX));
    let [plain, rle] = [PLAIN, RLE].map(Value::I32);
    let page = Value::structure([(1, number(rows)), (2, plain), (3, rle.clone()), (4, rle)]);
    Fields::from([(1, Value::I32(DATA_PAGE)), (2, number(size)), (3, number(compressed)), (5, page)])
}

/// A file that is written, a row group after the other.
pub(super) struct ParquetWriter {
    columns: &'static [ParquetColumn],
    out: Vec<u8>,
    groups: Vec<Value>,
    rows: usize,
}

impl ParquetWriter {
    pub(super) fn new(columns: &'static [ParquetColumn]) -> Self {
        Self { columns, out: MAGIC.to_vec(), groups: Vec::new(), rows: 0 }
    }

    /// Writes a row group. Rows are sorted by the first column.
    pub(super) fn group(&mut self, rows: &[Vec<Cell>]) -> std::io::Result<()> {
        let begin = self.out.len();
        let (mut chunks, mut unpacked) = (Vec::new(), 0);
        for (place, column) in self.columns.iter().enumerate() {
            let cells: Vec<&Cell> = rows.iter().map(|row| &row[place]).collect();
            let (offset, body) = (self.out.len(), column.body(&cells));
            let mut packing = GzEncoder::new(Vec::new(), Compression::fast());
            packing.write_all(&body)?;
            let packed = packing.finish()?;
            let mut header = Vec::new();
            thrift::write(&page_header(body.len(), packed.len(), rows.len()), &mut header);
            let size = header.len() + body.len();
            self.out.extend(header);
            self.out.extend(packed);
            unpacked += size;
            let meta = Value::structure([
                (1, Value::I32(column.physical())),
                (2, Value::List([PLAIN, RLE].map(Value::I32).into())),
                (3, Value::List(vec![Value::text(column.name)])),
                (4, Value::I32(GZIP)),
                (5, Value::I64(rows.len() as i64)),
                (6, Value::I64(size as i64)),
                (7, Value::I64((self.out.len() - offset) as i64)),
                (9, Value::I64(offset as i64)),
                (12, column.statistics(&cells, place == 0)),
            ]);
            chunks.push(Value::structure([(2, Value::I64(offset as i64)), (3, meta)]));
        }
        self.groups.push(Value::structure([
            (1, Value::List(chunks)),
            (2, Value::I64(unpacked as i64)),
            (3, Value::I64(rows.len() as i64)),
            (5, Value::I64(begin as i64)),
            (6, Value::I64((self.out.len() - begin) as i64)),
        ]));
        self.rows += rows.len();
        Ok(())
    }

    /// How many row groups there are.
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// The bytes of the file, and the footer in them, which has these notes.
    pub(super) fn finish<const N: usize>(mut self, notes: [(&str, &str); N]) -> (Vec<u8>, Range<usize>) {
        let columns = self.columns.len();
        let root = Value::structure([(4, Value::text("run")), (5, Value::I32(columns as i32))]);
        let schema = std::iter::once(root).chain(self.columns.iter().map(ParquetColumn::element));
        let note = |(key, value)| Value::structure([(1, Value::text(key)), (2, Value::text(value))]);
        let by_type = Value::structure([(1, Value::Struct(Fields::new()))]);
        let fields = Fields::from([
            (1, Value::I32(1)),
            (2, Value::List(schema.collect())),
            (3, Value::I64(self.rows as i64)),
            (4, Value::List(self.groups)),
            (5, Value::List(notes.map(note).into())),
            (6, Value::text(concat!("outlive version ", env!("CARGO_PKG_VERSION")))),
            (7, Value::List(vec![by_type; columns])),
        ]);
        let begin = self.out.len();
        thrift::write(&fields, &mut self.out);
        let footer = begin..self.out.len();
        self.out.extend((footer.len() as u32).to_le_bytes());
        self.out.extend(MAGIC);
        (self.out, footer)
    }
}

/// What the footer of a file tells of it.
#[derive(Debug)]
pub(super) struct Footer {
    pub(super) groups: Vec<RowGroup>,
    pub(super) notes: BTreeMap<String, String>,
}

/// Where the rows of a group are.
#[derive(Debug)]
pub(super) struct RowGroup {
    pub(super) rows: usize,
    /// What the first column has in the first row, and in the last.
    pub(super) bounds: (String, String),
    /// The bytes of each column.
    pub(super) chunks: Vec<Range<u64>>,
}

/// How long the footer is, by the last bytes of a file.
pub(super) fn footer_length(tail: &[u8]) -> Option<usize> {
    let (length, mark) = tail.split_first_chunk::<4>()?;
    usize::try_from(u32::from_le_bytes(*length)).ok().filter(|_| mark == MAGIC)
}

impl Footer {
    /// The footer of a file with these columns; none where it is not as it was written.
    pub(super) fn parse(footer: &[u8], columns: &[ParquetColumn]) -> Option<Self> {
        let fields = ThriftInput(footer).fields()?;
        let schema = fields.get(&2)?.list()?;
        let is_known = schema.len() == columns.len() + 1
            && schema[1..].iter().zip(columns).all(|(element, column)| *element == column.element());
        is_known.then_some(())?;
        let mut notes = BTreeMap::new();
        for note in fields.get(&5)?.list()? {
            let text = |number| String::from_utf8(note.fields()?.get(&number)?.bytes()?.to_vec()).ok();
            notes.insert(text(1)?, text(2)?);
        }
        let groups = fields.get(&4)?.list()?.iter().map(|group| RowGroup::parse(group.fields()?, columns.len()));
        Some(Self { groups: groups.collect::<Option<_>>()?, notes })
    }
}

impl RowGroup {
    fn parse(fields: &Fields, columns: usize) -> Option<Self> {
        let chunks = fields.get(&1)?.list()?;
        (chunks.len() == columns).then_some(())?;
        let meta = |chunk: &'_ Value| chunk.fields()?.get(&3)?.fields().cloned();
        let range = |chunk: &Value| {
            let meta = meta(chunk)?;
            let [length, offset] = [7, 9].map(|number| u64::try_from(meta.get(&number)?.int()?).ok());
            Some(offset?..offset?.checked_add(length?)?)
        };
        let bounds = meta(chunks.first()?)?.get(&12)?.fields()?.clone();
        let bound = |number| String::from_utf8(bounds.get(&number)?.bytes()?.to_vec()).ok();
        Some(Self {
            rows: usize::try_from(fields.get(&3)?.int()?).ok().filter(|rows| *rows <= ROWS)?,
            bounds: (bound(6)?, bound(5)?),
            chunks: chunks.iter().map(range).collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[ParquetColumn] = &[
        ParquetColumn { name: "id", kind: ColumnKind::Text, optional: false },
        ParquetColumn { name: "at", kind: ColumnKind::Time, optional: true },
        ParquetColumn { name: "body", kind: ColumnKind::Json, optional: true },
        ParquetColumn { name: "count", kind: ColumnKind::Int, optional: false },
    ];

    fn row(number: i64) -> Vec<Cell> {
        let at = if number % 3 == 0 { Cell::Nothing } else { Cell::Int(number * 1_000_000) };
        let body = if number % 5 == 0 { Cell::Nothing } else { Cell::Text(format!("{{\"n\":{number}}}")) };
        vec![Cell::Text(format!("{number:04}")), at, body, Cell::Int(-number)]
    }

    fn file() -> (Vec<u8>, Range<usize>) {
        let mut writer = ParquetWriter::new(COLUMNS);
        for first in [0, 20] {
            writer.group(&(first..first + 20).map(row).collect::<Vec<_>>()).unwrap();
        }
        writer.finish([("made.by", "a test")])
    }

    /// The rows of a file; none where any of it is not understood.
    fn rows(bytes: &[u8]) -> Option<Vec<Vec<Cell>>> {
        let end = bytes.len().checked_sub(TAIL)?;
        let length = footer_length(&bytes[end..])?;
        let footer = Footer::parse(&bytes[end.checked_sub(length)?..end], COLUMNS)?;
        let mut rows = Vec::new();
        for group in &footer.groups {
            let cells = group.chunks.iter().zip(COLUMNS).map(|(chunk, column)| {
                column
                    .cells(bytes.get(usize::try_from(chunk.start).ok()?..usize::try_from(chunk.end).ok()?)?, group.rows)
            });
            let cells: Vec<Vec<Cell>> = cells.collect::<Option<_>>()?;
            rows.extend((0..group.rows).map(|place| cells.iter().map(|cells| cells[place].clone()).collect()));
        }
        Some(rows)
    }

    #[test]
    fn rows_and_bounds_are_read_back() {
        let (bytes, footer) = file();
        assert_eq!(rows(&bytes).unwrap(), (0..40).map(row).collect::<Vec<_>>());
        let footer = Footer::parse(&bytes[footer], COLUMNS).unwrap();
        assert_eq!(footer.notes["made.by"], "a test");
        assert_eq!(footer.groups[1].bounds, ("0020".to_owned(), "0039".to_owned()));
        assert!(Footer::parse(&bytes[bytes.len() - 60..], COLUMNS).is_none());
    }

    #[test]
    fn damaged_file_is_refused_or_read_as_it_was() {
        let (bytes, footer) = file();
        let whole = rows(&bytes).unwrap();
        let (mut refused, mut unharmed) = (0, 0);
        // The digest of a footer is on record, so that damage to it is noticed before it is parsed.
        for place in 0..footer.start {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1 << (place % 8);
            match rows(&damaged) {
                None => refused += 1,
                Some(read) if read == whole => unharmed += 1,
                Some(_) => panic!("byte {place} was changed, and so are the rows"),
            }
        }
        assert!(refused > 4 * unharmed, "{refused} refused, {unharmed} unharmed");
        for place in footer {
            let mut damaged = bytes.clone();
            damaged[place] ^= 0xff;
            let _ = rows(&damaged);
        }
    }
}
