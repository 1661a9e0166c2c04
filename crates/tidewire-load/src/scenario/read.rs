//! Values of spanned TOML, of which every key remembers where it stands.
//!
//! Both versions share this file: a table of the file and ways to read a value from it. The meaning of the keys is in
//! `version1` and `version2`.

use std::cell::RefCell;
use std::ops::RangeInclusive;

use tidewire_proto::text::is_hazardous;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::suggest::nearest_key;
use super::{ScenarioError, Warning, WarningKind, keys};

pub(super) type Read<T> = Result<T, ScenarioError>;

pub(super) type Value<'i> = Spanned<DeValue<'i>>;

/// The file, and what is odd in it.
pub(super) struct Source<'t> {
    text: &'t str,
    file: &'t str,
    warnings: RefCell<Vec<Warning>>,
}

impl<'t> Source<'t> {
    pub(super) fn new(text: &'t str, file: &'t str) -> Self {
        let warnings = RefCell::default();
        Self {
            text,
            file,
            warnings,
        }
    }

    /// The warnings, in the order of their lines.
    pub(super) fn into_warnings(self) -> Vec<Warning> {
        let mut warnings = self.warnings.into_inner();
        warnings.sort_by_key(|warning| warning.line);
        warnings
    }

    pub(super) fn line(&self, offset: usize) -> usize {
        let bytes = self.text.as_bytes();
        let before = bytes.get(..offset).unwrap_or(bytes);
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }
}

/// A table of the file together with what is needed to speak about its keys.
#[derive(Clone)]
pub(super) struct TableContext<'p, 'i> {
    source: &'p Source<'p>,
    table: &'p DeTable<'i>,
    /// The text before a key in messages: nothing, or such as `steps[0].`.
    prefix: String,
    /// Offset of the table itself, for keys that are missing.
    offset: usize,
}

impl<'p, 'i> TableContext<'p, 'i> {
    /// The table of the file itself.
    pub(super) fn of(source: &'p Source<'p>, table: &'p DeTable<'i>) -> Self {
        Self {
            source,
            table,
            prefix: String::new(),
            offset: 0,
        }
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    pub(super) fn value(&self, key: &str, expected: &str) -> Read<&'p Value<'i>> {
        self.table.get(key).ok_or_else(|| {
            let found = match self.misspelt(key) {
                None => "the key is missing".to_owned(),
                Some((written, line)) => {
                    format!("the key is missing; did you mean it by `{written}` in line {line}?")
                }
            };
            self.error(self.offset, key, expected, found)
        })
    }

    pub(super) fn text(&self, key: &str, expected: &str) -> Read<(&'p str, &'p Value<'i>)> {
        let value = self.value(key, expected)?;
        Ok((value.get_ref().as_str().unwrap_or_default(), value))
    }

    pub(super) fn integer(
        &self,
        key: &str,
        range: RangeInclusive<u64>,
        expected: &str,
    ) -> Read<u64> {
        let value = self.value(key, expected)?;
        let integer = value.get_ref().as_integer();
        integer
            .and_then(|integer| u64::from_str_radix(integer.as_str(), integer.radix()).ok())
            .filter(|number| range.contains(number))
            .ok_or_else(|| self.invalid(key, value, expected))
    }

    pub(super) fn number(
        &self,
        key: &str,
        is_allowed: impl Fn(f64) -> bool,
        expected: &str,
    ) -> Read<f64> {
        let value = self.value(key, expected)?;
        number(value.get_ref())
            .filter(|number| is_allowed(*number))
            .ok_or_else(|| self.invalid(key, value, expected))
    }

    pub(super) fn table(&self, key: &str) -> Read<Option<Self>> {
        let Some(value) = self.table.get(key) else {
            return Ok(None);
        };
        self.inner(key, value, "a table").map(Some)
    }

    /// The tables of a list under a key, of which `expected` says what they are; `range` says how many there may be.
    pub(super) fn tables(
        &self,
        key: &str,
        range: RangeInclusive<usize>,
        expected: [&str; 2],
    ) -> Read<Vec<Self>> {
        let [list, entry] = expected;
        let value = self.value(key, list)?;
        let entries = value.get_ref().as_array();
        let entries = entries.filter(|entries| range.contains(&entries.len()));
        let entries = entries.ok_or_else(|| self.invalid(key, value, list))?;
        (0..)
            .zip(entries.iter())
            .map(|(index, value): (usize, _)| self.inner(&format!("{key}[{index}]"), value, entry))
            .collect()
    }

    fn inner(&self, key: &str, value: &'p Value<'i>, expected: &str) -> Read<Self> {
        let Some(table) = value.get_ref().as_table() else {
            return Err(self.invalid(key, value, expected));
        };
        Ok(Self {
            source: self.source,
            table,
            prefix: format!("{}{key}.", self.prefix),
            offset: value.span().start,
        })
    }

    /// Every `[[steps]]` table.
    pub(super) fn steps(&self) -> Read<Vec<Self>> {
        let expected = ["one to 255 [[steps]] tables", "a table"];
        self.tables("steps", 1..=super::STEPS_MAX, expected)
    }

    pub(super) fn name(&self) -> Read<String> {
        let expected = "a text that is not empty and has no control characters";
        let (name, value) = self.text("name", expected)?;
        if name.trim().is_empty() || name.chars().any(is_hazardous) {
            return Err(self.invalid("name", value, expected));
        }
        Ok(name.to_owned())
    }

    /// Warns of a fan-out with nobody to deliver to.
    pub(super) fn check_receivers(&self, concurrency: u32) {
        if concurrency == 1 {
            let key = self.full("concurrency");
            self.warn(
                self.line_of("concurrency"),
                WarningKind::NoReceivers { key },
            );
        }
    }

    /// A key of the table that means nothing but resembles this one, and its line.
    pub(super) fn misspelt(&self, key: &str) -> Option<(&'p str, usize)> {
        self.table.keys().find_map(|written| {
            let name: &str = written.get_ref();
            (!keys::is_known(name) && nearest_key(name, &[key]).is_some())
                .then(|| (name, self.source.line(written.span().start)))
        })
    }

    pub(super) fn warn_unknown(&self, known: &[&'static str]) {
        for (name, offset) in self.unknown(known) {
            let (key, nearest) = (self.full(name), nearest_key(name, known));
            let line = self.source.line(offset);
            self.warn(line, WarningKind::UnknownKey { key, nearest });
        }
    }

    pub(super) fn refuse_unknown(&self, known: &[&'static str]) -> Read<()> {
        let Some((name, offset)) = self.unknown(known).min_by_key(|(_, offset)| *offset) else {
            return Ok(());
        };
        Err(ScenarioError::UnknownKey {
            file: self.source.file.to_owned(),
            line: self.source.line(offset),
            key: self.full(name),
            nearest: nearest_key(name, known),
        })
    }

    /// The keys that are not known, with their offsets.
    fn unknown(&self, known: &[&str]) -> impl Iterator<Item = (&'p str, usize)> {
        let named = self.table.keys().map(|key| {
            let name: &str = key.get_ref();
            (name, key.span().start)
        });
        named.filter(|(name, _)| !known.contains(name))
    }

    fn warn(&self, line: usize, kind: WarningKind) {
        let file = self.source.file.to_owned();
        let mut warnings = self.source.warnings.borrow_mut();
        warnings.push(Warning { file, line, kind });
    }

    pub(super) fn invalid(&self, key: &str, value: &Value<'_>, expected: &str) -> ScenarioError {
        let span = value.span();
        let source = self.source.text.get(span.clone()).unwrap_or_default();
        let mut shown: String = source.chars().take(FOUND_CHARS_MAX).collect();
        if shown.len() < source.len() {
            shown.push('…');
        }
        let found = format!("it is the {} {shown}", value.get_ref().type_str());
        self.error(span.start, key, expected, found)
    }

    /// Refuses a value for a reason that lies in other keys.
    pub(super) fn conflict(&self, key: &str, expected: &str, found: String) -> ScenarioError {
        self.error(self.offset_of(key), key, expected, found)
    }

    fn error(&self, offset: usize, key: &str, expected: &str, found: String) -> ScenarioError {
        ScenarioError::Invalid {
            file: self.source.file.to_owned(),
            line: self.source.line(offset),
            key: self.full(key),
            expected: expected.to_owned(),
            found,
        }
    }

    /// The line of a key's value, or of the table where it is missing.
    fn line_of(&self, key: &str) -> usize {
        self.source.line(self.offset_of(key))
    }

    fn offset_of(&self, key: &str) -> usize {
        let value = self.table.get(key);
        value.map_or(self.offset, |value| value.span().start)
    }

    fn full(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

/// Warns of a name that an earlier step has.
pub(super) fn check_names(contexts: &[TableContext<'_, '_>], names: &[&str]) {
    for (index, name) in names.iter().enumerate() {
        if let Some(first) = names[..index].iter().position(|earlier| earlier == name) {
            let key = contexts[index].full("name");
            let first_line = contexts[first].line_of("name");
            let kind = WarningKind::NameRepeated { key, first_line };
            contexts[index].warn(contexts[index].line_of("name"), kind);
        }
    }
}

/// A finite integer or float; `None` for anything else.
pub(super) fn number(value: &DeValue<'_>) -> Option<f64> {
    let number = match value {
        DeValue::Integer(integer) => {
            i64::from_str_radix(integer.as_str(), integer.radix()).ok()? as f64
        }
        DeValue::Float(float) => float.as_str().parse().ok()?,
        _ => return None,
    };
    number.is_finite().then_some(number)
}

/// How much of a wrong value an error repeats.
const FOUND_CHARS_MAX: usize = 60;
