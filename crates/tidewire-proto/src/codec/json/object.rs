//! Reads a line into the fields of an object.
//!
//! The parser is `serde_json`. A text without escapes borrows the line. A text with escapes is a copy.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

use crate::json::{FieldName, JsonField, JsonKind, LineFault, Type};

/// The fields of a line. A field that is not there is 0, empty or false.
pub(super) struct Object<'a> {
    kind: JsonKind,
    given: u64,
    numbers: [u64; FIELDS],
    texts: [Cow<'a, str>; FIELDS],
}

impl<'a> Object<'a> {
    /// Reads a line without its end.
    pub(super) fn parse(line: &'a [u8]) -> Result<Self, LineFault> {
        let mut reader = Reader {
            object: Self {
                kind: JsonKind::Ping,
                given: 0,
                numbers: [0; FIELDS],
                texts: [const { Cow::Borrowed("") }; FIELDS],
            },
            current: None,
            fault: None,
        };
        let mut parser = serde_json::Deserializer::from_slice(line);
        let read = parser
            .deserialize_map(&mut reader)
            .and_then(|()| parser.end());
        match read {
            Ok(()) => reader.object.checked(),
            Err(error) => Err(reader.fault(&error)),
        }
    }

    pub(super) fn kind(&self) -> JsonKind {
        self.kind
    }

    /// Checks that the fields are those of the kind.
    fn checked(mut self) -> Result<Self, LineFault> {
        if !self.has(JsonField::Kind) {
            return Err(LineFault::NoKind);
        }
        let field = JsonField::Kind;
        let kind = JsonKind::named(self.text(field)).ok_or(LineFault::BadValue { field })?;
        self.kind = kind;
        let allowed = kind.fields();
        let foreign = |field: &&JsonField| {
            self.has(**field) && **field != JsonField::Kind && !allowed.contains(field)
        };
        match JsonField::ALL.iter().find(foreign) {
            Some(&field) => Err(LineFault::ForeignField { kind, field }),
            None => Ok(self),
        }
    }

    pub(super) fn has(&self, field: JsonField) -> bool {
        self.given >> field as u8 & 1 != 0
    }

    /// The number in a field, which its type bounds.
    pub(super) fn number(&self, field: JsonField) -> u64 {
        self.numbers[field as usize]
    }

    pub(super) fn u32(&self, field: JsonField) -> u32 {
        self.number(field) as u32
    }

    pub(super) fn u16(&self, field: JsonField) -> u16 {
        self.number(field) as u16
    }

    pub(super) fn text(&self, field: JsonField) -> &str {
        &self.texts[field as usize]
    }

    pub(super) fn take_text(&mut self, field: JsonField) -> Cow<'a, str> {
        std::mem::take(&mut self.texts[field as usize])
    }
}

/// Fills an object, and keeps why it cannot: the parser's errors hold only text.
struct Reader<'a> {
    object: Object<'a>,
    current: Option<JsonField>,
    fault: Option<LineFault>,
}

impl Reader<'_> {
    fn fault(&self, error: &serde_json::Error) -> LineFault {
        match (self.fault, error.classify(), self.current) {
            (Some(fault), ..) => fault,
            (None, Category::Data, Some(field)) => LineFault::BadValue { field },
            (None, Category::Data, None) => LineFault::NotAnObject,
            _ => LineFault::Syntax {
                at: u32::try_from(error.column()).unwrap_or(u32::MAX),
            },
        }
    }

    fn fail<E: serde::de::Error>(&mut self, fault: LineFault) -> E {
        self.fault = Some(fault);
        E::custom("")
    }
}

impl<'de> Visitor<'de> for &mut Reader<'de> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        loop {
            self.current = None;
            let field = match map.next_key_seed(Seed::<Result<JsonField, FieldName>>::NEW)? {
                None => return Ok(()),
                Some(Err(name)) => return Err(self.fail(LineFault::UnknownField { name })),
                Some(Ok(field)) => field,
            };
            if self.object.has(field) {
                return Err(self.fail(LineFault::RepeatedField { field }));
            }
            self.object.given |= 1 << field as u8;
            self.current = Some(field);
            let at = field as usize;
            match field.type_of() {
                Type::Text => {
                    self.object.texts[at] = map.next_value_seed(Seed::<Cow<'_, str>>::NEW)?;
                }
                Type::Number(most) => {
                    let number = map.next_value()?;
                    if number > most {
                        return Err(self.fail(LineFault::BadValue { field }));
                    }
                    self.object.numbers[at] = number;
                }
                Type::Truth => self.object.numbers[at] = u64::from(map.next_value::<bool>()?),
                Type::Value => {
                    let value = map.next_value::<&RawValue>()?;
                    self.object.texts[at] = Cow::Borrowed(value.get());
                }
            }
        }
    }
}

/// Reads a text as a `T`.
struct Seed<T>(std::marker::PhantomData<T>);

impl<T> Seed<T> {
    const NEW: Self = Self(std::marker::PhantomData);
}

impl<'de> DeserializeSeed<'de> for Seed<Cow<'de, str>> {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Self::Value, D::Error> {
        value.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Seed<Cow<'de, str>> {
    type Value = Cow<'de, str>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a text")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

impl<'de> DeserializeSeed<'de> for Seed<Result<JsonField, FieldName>> {
    type Value = Result<JsonField, FieldName>;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Self::Value, D::Error> {
        value.deserialize_str(self)
    }
}

impl Visitor<'_> for Seed<Result<JsonField, FieldName>> {
    type Value = Result<JsonField, FieldName>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the name of a field")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(JsonField::named(name).ok_or_else(|| FieldName::new(name)))
    }
}

const FIELDS: usize = JsonField::ALL.len();
