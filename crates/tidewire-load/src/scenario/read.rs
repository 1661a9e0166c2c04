//! From spanned TOML to a [`Scenario`], remembering for every key where it stands.
//!
//! Both versions share this file: a place in the file and ways to read a value from it. The meaning of the keys is in
//! `version1` and `version2`.

use tidewire_proto::text::is_hazardous;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::suggest::nearest_key;
use super::{KEYS, Scenario, ScenarioError, Warning, WarningKind, version1, version2};

/// Reads a whole scenario. Warnings come in the order of their lines.
pub(super) fn scenario(text: &str, file: &str) -> Result<(Scenario, Vec<Warning>), ScenarioError> {
    let mut reader = Reader {
        text,
        file,
        warnings: Vec::new(),
    };
    let root = DeTable::parse(text).map_err(|error| ScenarioError::Syntax {
        file: file.to_owned(),
        line: reader.line(error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    })?;
    let place = Place {
        table: root.get_ref(),
        prefix: String::new(),
        offset: 0,
    };
    let version = if place.table.contains_key("version") {
        reader.integer(
            &place,
            "version",
            1,
            2,
            "1 or 2, the versions this build knows",
        )?
    } else {
        1
    };
    let scenario = match version {
        1 => version1::scenario(&mut reader, &place)?,
        _ => version2::scenario(&mut reader, &place)?,
    };
    let mut warnings = reader.warnings;
    warnings.sort_by_key(|warning| warning.line);
    Ok((scenario, warnings))
}

pub(super) struct Reader<'t> {
    text: &'t str,
    file: &'t str,
    warnings: Vec<Warning>,
}

/// A table of the file together with what is needed to speak about its keys.
#[derive(Clone)]
pub(super) struct Place<'p, 'i> {
    pub(super) table: &'p DeTable<'i>,
    /// The text before a key in messages: nothing, or such as `steps[0].`.
    pub(super) prefix: String,
    /// Offset of the table itself, for keys that are missing.
    pub(super) offset: usize,
}

impl Place<'_, '_> {
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }
}

pub(super) type Value<'i> = Spanned<DeValue<'i>>;

impl Reader<'_> {
    /// Every `[[steps]]` table, with its place.
    pub(super) fn steps<'p, 'i>(
        &self,
        place: &Place<'p, 'i>,
    ) -> Result<Vec<Place<'p, 'i>>, ScenarioError> {
        let expected = "one to 255 [[steps]] tables";
        let value = self.value(place, "steps", expected)?;
        let tables = match value.get_ref().as_array() {
            Some(array) if (1..=super::STEPS_MAX).contains(&array.len()) => array,
            _ => return Err(self.invalid(place, "steps", value, expected)),
        };
        let mut places = Vec::with_capacity(tables.len());
        for (index, entry) in tables.iter().enumerate() {
            let Some(table) = entry.get_ref().as_table() else {
                let key = format!("steps[{index}]");
                return Err(self.invalid(place, &key, entry, "a table"));
            };
            places.push(Place {
                table,
                prefix: format!("steps[{index}]."),
                offset: entry.span().start,
            });
        }
        Ok(places)
    }

    /// The name of a step.
    pub(super) fn name(&self, place: &Place<'_, '_>) -> Result<String, ScenarioError> {
        let expected = "a text that is not empty and has no control characters";
        let value = self.value(place, "name", expected)?;
        let name = value.get_ref().as_str().unwrap_or_default().to_owned();
        if name.trim().is_empty() || name.chars().any(is_hazardous) {
            return Err(self.invalid(place, "name", value, expected));
        }
        Ok(name)
    }

    /// Warns of a name that an earlier step has.
    pub(super) fn check_names(&mut self, places: &[Place<'_, '_>], names: &[String]) {
        for (index, name) in names.iter().enumerate() {
            if let Some(first) = names[..index].iter().position(|earlier| earlier == name) {
                let key = format!("{}name", places[index].prefix);
                let first_line = self.line_of(&places[first], "name");
                let line = self.line_of(&places[index], "name");
                self.warn(line, WarningKind::NameRepeated { key, first_line });
            }
        }
    }

    /// Warns of a fan-out with nobody to deliver to.
    pub(super) fn check_receivers(&mut self, place: &Place<'_, '_>, concurrency: u32) {
        if concurrency == 1 {
            let line = self.line_of(place, "concurrency");
            let key = format!("{}concurrency", place.prefix);
            self.warn(line, WarningKind::NoReceivers { key });
        }
    }

    pub(super) fn integer(
        &self,
        place: &Place<'_, '_>,
        key: &str,
        least: u64,
        most: u64,
        expected: &str,
    ) -> Result<u64, ScenarioError> {
        let value = self.value(place, key, expected)?;
        value
            .get_ref()
            .as_integer()
            .and_then(|integer| u64::from_str_radix(integer.as_str(), integer.radix()).ok())
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| self.invalid(place, key, value, expected))
    }

    pub(super) fn value<'p, 'i>(
        &self,
        place: &Place<'p, 'i>,
        key: &str,
        expected: &str,
    ) -> Result<&'p Value<'i>, ScenarioError> {
        place.table.get(key).ok_or_else(|| ScenarioError::Invalid {
            file: self.file.to_owned(),
            line: self.line(place.offset),
            key: format!("{}{key}", place.prefix),
            expected: expected.to_owned(),
            found: match self.misspelt(place, key) {
                None => "the key is missing".to_owned(),
                Some((written, line)) => {
                    format!("the key is missing; did you mean it by `{written}` in line {line}?")
                }
            },
        })
    }

    /// A key of the table that means nothing but resembles this one, and its line.
    pub(super) fn misspelt<'p>(
        &self,
        place: &'p Place<'_, '_>,
        key: &str,
    ) -> Option<(&'p str, usize)> {
        place.table.keys().find_map(|written| {
            let name: &str = written.get_ref();
            let is_known = version1::is_known(name) || KEYS.iter().any(|known| known.name == name);
            (!is_known && nearest_key(name, &[key]).is_some())
                .then(|| (name, self.line(written.span().start)))
        })
    }

    pub(super) fn invalid(
        &self,
        place: &Place<'_, '_>,
        key: &str,
        value: &Value<'_>,
        expected: &str,
    ) -> ScenarioError {
        let span = value.span();
        let source = self.text.get(span.clone()).unwrap_or_default();
        let mut shown: String = source.chars().take(FOUND_CHARS_MAX).collect();
        if shown.len() < source.len() {
            shown.push('…');
        }
        ScenarioError::Invalid {
            file: self.file.to_owned(),
            line: self.line(span.start),
            key: format!("{}{key}", place.prefix),
            expected: expected.to_owned(),
            found: format!("it is the {} {shown}", value.get_ref().type_str()),
        }
    }

    pub(super) fn warn_unknown(&mut self, place: &Place<'_, '_>, known: &[&'static str]) {
        for key in place.table.keys() {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                let line = self.line(key.span().start);
                let nearest = nearest_key(name, known);
                let key = format!("{}{name}", place.prefix);
                self.warn(line, WarningKind::UnknownKey { key, nearest });
            }
        }
    }

    pub(super) fn warn(&mut self, line: usize, kind: WarningKind) {
        self.warnings.push(Warning {
            file: self.file.to_owned(),
            line,
            kind,
        });
    }

    /// The line of a key's value, or of the table where it is missing.
    pub(super) fn line_of(&self, place: &Place<'_, '_>, key: &str) -> usize {
        let value = place.table.get(key);
        self.line(value.map_or(place.offset, |value| value.span().start))
    }

    /// Refuses the first key that is not known.
    pub(super) fn refuse_unknown(
        &self,
        place: &Place<'_, '_>,
        known: &[&'static str],
    ) -> Result<(), ScenarioError> {
        let unknown = place
            .table
            .keys()
            .filter(|key| {
                let name: &str = key.get_ref();
                !known.contains(&name)
            })
            .min_by_key(|key| key.span().start);
        let Some(key) = unknown else { return Ok(()) };
        let name: &str = key.get_ref();
        Err(ScenarioError::UnknownKey {
            file: self.file.to_owned(),
            line: self.line(key.span().start),
            key: format!("{}{name}", place.prefix),
            nearest: nearest_key(name, known),
        })
    }

    /// Refuses a value for a reason that lies in other keys.
    pub(super) fn conflict(
        &self,
        place: &Place<'_, '_>,
        key: &str,
        expected: &str,
        found: String,
    ) -> ScenarioError {
        ScenarioError::Invalid {
            file: self.file.to_owned(),
            line: self.line_of(place, key),
            key: format!("{}{key}", place.prefix),
            expected: expected.to_owned(),
            found,
        }
    }

    /// A number in a range.
    pub(super) fn number_in(
        &self,
        place: &Place<'_, '_>,
        key: &str,
        is_allowed: impl Fn(f64) -> bool,
        expected: &str,
    ) -> Result<f64, ScenarioError> {
        let value = self.value(place, key, expected)?;
        number(value.get_ref())
            .filter(|number| is_allowed(*number))
            .ok_or_else(|| self.invalid(place, key, value, expected))
    }

    /// The table under a key.
    pub(super) fn table<'p, 'i>(
        &self,
        place: &Place<'p, 'i>,
        key: &str,
    ) -> Result<Option<Place<'p, 'i>>, ScenarioError> {
        let Some(value) = place.table.get(key) else {
            return Ok(None);
        };
        let Some(table) = value.get_ref().as_table() else {
            return Err(self.invalid(place, key, value, "a table"));
        };
        Ok(Some(Place {
            table,
            prefix: format!("{}{key}.", place.prefix),
            offset: value.span().start,
        }))
    }

    fn line(&self, offset: usize) -> usize {
        let before = self
            .text
            .as_bytes()
            .get(..offset)
            .unwrap_or(self.text.as_bytes());
        before.iter().filter(|byte| **byte == b'\n').count() + 1
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
