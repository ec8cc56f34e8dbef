//! Fields that may be of any shape: what is not of the wanted one is noted as other, and spoils nothing around it.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// A field that is of the wanted shape, is something else, or is not there.
#[derive(Debug, Default)]
pub(super) enum Field<T> {
    #[default]
    Absent,
    Is(T),
    Other,
}

impl<T> Field<T> {
    pub(super) fn get(&self) -> Option<&T> {
        match self {
            Self::Is(found) => Some(found),
            Self::Absent | Self::Other => None,
        }
    }

    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    pub(super) fn is_other(&self) -> bool {
        matches!(self, Self::Other)
    }
}

impl Field<Shape> {
    /// Whether it is of this shape, if it is there.
    pub(super) fn is_absent_or(&self, wanted: &Shape) -> bool {
        self.is_absent() || self.get() == Some(wanted)
    }
}

/// What can be wanted of a field: an object, a list, or either.
pub(super) trait Wanted<'de>: Sized {
    fn from_map<A: MapAccess<'de>>(map: A) -> Result<Option<Self>, A::Error> {
        skip_map(map)?;
        Ok(None)
    }

    fn from_list<A: SeqAccess<'de>>(list: A) -> Result<Option<Self>, A::Error> {
        skip_list(list)?;
        Ok(None)
    }
}

/// What an object says in the fields that are known.
pub(super) fn from_object<'de, T: Deserialize<'de>, A: MapAccess<'de>>(map: A) -> Result<Option<T>, A::Error> {
    T::deserialize(MapAccessDeserializer::new(map)).map(Some)
}

/// A field of which only the shape is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    List,
    Object,
}

impl<'de> Wanted<'de> for Shape {
    fn from_map<A: MapAccess<'de>>(map: A) -> Result<Option<Self>, A::Error> {
        skip_map(map)?;
        Ok(Some(Self::Object))
    }

    fn from_list<A: SeqAccess<'de>>(list: A) -> Result<Option<Self>, A::Error> {
        skip_list(list)?;
        Ok(Some(Self::List))
    }
}

/// A field that is there, null or not.
pub(super) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

fn skip_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<(), A::Error> {
    while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
    Ok(())
}

fn skip_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<(), A::Error> {
    while list.next_element::<IgnoredAny>()?.is_some() {}
    Ok(())
}

impl<'de, T: Wanted<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any(PhantomData))
    }
}

/// Takes any value.
struct Any<T>(PhantomData<T>);

impl<'de, T: Wanted<'de>> Visitor<'de> for Any<T> {
    type Value = Field<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Field<T>, A::Error> {
        Ok(T::from_map(map)?.map_or(Field::Other, Field::Is))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Field<T>, A::Error> {
        Ok(T::from_list(list)?.map_or(Field::Other, Field::Is))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Field<T>, E> {
        Ok(Field::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Field<T>, E> {
        Ok(Field::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Field<T>, E> {
        Ok(Field::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Field<T>, E> {
        Ok(Field::Other)
    }

    fn visit_str<E>(self, _: &str) -> Result<Field<T>, E> {
        Ok(Field::Other)
    }

    fn visit_unit<E>(self) -> Result<Field<T>, E> {
        Ok(Field::Other)
    }
}
