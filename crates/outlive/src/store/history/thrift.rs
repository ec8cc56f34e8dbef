//! Thrift's compact protocol, as far as the footers and page headers of Parquet need it.
//!
//! What is read may come from anywhere: nothing is believed about a length before the bytes are there, and nesting ends.

use std::collections::BTreeMap;

/// How deep structures are nested at most.
const DEEPEST: u32 = 16;

/// The types of the protocol that are used here.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// A value of a field.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    I16(i16),
    I32(i32),
    I64(i64),
    Binary(Vec<u8>),
    List(Vec<Value>),
    Struct(Fields),
}

/// The fields of a structure by their numbers.
pub(super) type Fields = BTreeMap<i16, Value>;

impl Value {
    pub(super) fn text(text: &str) -> Self {
        Self::Binary(text.as_bytes().to_vec())
    }

    pub(super) fn structure<const N: usize>(fields: [(i16, Self); N]) -> Self {
        Self::Struct(Fields::from(fields))
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Bool(true) => TRUE,
            Self::Bool(false) => FALSE,
            Self::I16(_) => I16,
            Self::I32(_) => I32,
            Self::I64(_) => I64,
            Self::Binary(_) => BINARY,
            Self::List(_) => LIST,
            Self::Struct(_) => STRUCT,
        }
    }

    pub(super) fn int(&self) -> Option<i64> {
        match self {
            Self::I16(value) => Some((*value).into()),
            Self::I32(value) => Some((*value).into()),
            Self::I64(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn bytes(&self) -> Option<&[u8]> {
        if let Self::Binary(bytes) = self { Some(bytes) } else { None }
    }

    pub(super) fn list(&self) -> Option<&[Self]> {
        if let Self::List(items) = self { Some(items) } else { None }
    }

    pub(super) fn fields(&self) -> Option<&Fields> {
        if let Self::Struct(fields) = self { Some(fields) } else { None }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            // Said by its type.
            Self::Bool(_) => {}
            Self::I16(_) | Self::I32(_) | Self::I64(_) => {
                let value = self.int().unwrap_or_default();
                varint(out, (value << 1 ^ value >> 63).cast_unsigned());
            }
            Self::Binary(bytes) => {
                varint(out, bytes.len() as u64);
                out.extend_from_slice(bytes);
            }
            Self::List(items) => {
                out.push(0xf0 | items.first().map_or(STRUCT, Self::kind));
                varint(out, items.len() as u64);
                items.iter().for_each(|item| item.write(out));
            }
            Self::Struct(fields) => write(fields, out),
        }
    }
}

/// Appends a structure.
pub(super) fn write(fields: &Fields, out: &mut Vec<u8>) {
    let mut last = 0;
    for (number, value) in fields {
        // The numbers of all fields that are written rise by less than 16.
        out.push(u8::try_from(number - last).unwrap_or_default() << 4 | value.kind());
        value.write(out);
        last = *number;
    }
    out.push(0);
}

/// Appends a number, seven bits a byte.
pub(super) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads from the beginning of bytes.
pub(super) struct ThriftInput<'a>(pub(super) &'a [u8]);

impl<'a> ThriftInput<'a> {
    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|taken| taken[0])
    }

    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(self.varint()?).ok()
    }

    /// A structure.
    pub(super) fn fields(&mut self) -> Option<Fields> {
        self.structure(0)
    }

    fn structure(&mut self, depth: u32) -> Option<Fields> {
        let (mut fields, mut last) = (Fields::new(), 0_i16);
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(fields);
            }
            let number = match head >> 4 {
                0 => i16::try_from(self.int()?).ok()?,
                step => last.checked_add(step.into())?,
            };
            fields.insert(number, self.value(head & 0xf, depth)?);
            last = number;
        }
    }

    fn int(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    fn value(&mut self, kind: u8, depth: u32) -> Option<Value> {
        if depth > DEEPEST {
            return None;
        }
        Some(match kind {
            TRUE => Value::Bool(true),
            FALSE => Value::Bool(false),
            I16 => Value::I16(self.int()?.try_into().ok()?),
            I32 => Value::I32(self.int()?.try_into().ok()?),
            I64 => Value::I64(self.int()?),
            BINARY => {
                let length = self.length()?;
                Value::Binary(self.take(length)?.to_vec())
            }
            LIST => {
                let head = self.byte()?;
                let length = if head >> 4 == 0xf { self.length()? } else { usize::from(head >> 4) };
                // An item of a list takes a byte at least, so that no length leads beyond the bytes.
                (length <= self.0.len()).then_some(())?;
                Value::List((0..length).map(|_| self.value(head & 0xf, depth + 1)).collect::<Option<_>>()?)
            }
            STRUCT => Value::Struct(self.structure(depth + 1)?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structure_is_read_back_and_no_part_of_it() {
        let inner = Value::structure([(1, Value::I64(i64::MIN)), (15, Value::Bool(true)), (16, Value::Bool(false))]);
        let fields = Fields::from([
            (1, Value::I32(-7)),
            (2, Value::List(vec![inner.clone(), inner])),
            (3, Value::text("größe")),
            (7, Value::I16(300)),
            (9, Value::List(Vec::new())),
        ]);
        let mut bytes = Vec::new();
        write(&fields, &mut bytes);
        assert_eq!(ThriftInput(&bytes).fields().unwrap(), fields);
        for length in 0..bytes.len() {
            assert_eq!(ThriftInput(&bytes[..length]).fields(), None, "{length}");
        }
        // A structure in a structure, without an end.
        assert_eq!(ThriftInput(&[0x1c; 100_000]).fields(), None);
        assert_eq!(ThriftInput(&[0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x0f]).fields(), None);
    }
}
