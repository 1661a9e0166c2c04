//! From spanned TOML to a [`Scenario`], remembering for every key where it stands.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::suggest::nearest_key;
use super::{
    CONCURRENCY_MAX, DURATION_SECS_MAX, STEPS_MAX, Scenario, ScenarioError, Step,
    THINK_TIME_MS_MAX, ThinkTime, Warning, WarningKind,
};

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
    let scenario = reader.root(root.get_ref())?;
    let mut warnings = reader.warnings;
    warnings.sort_by_key(|warning| warning.line);
    Ok((scenario, warnings))
}

struct Reader<'t> {
    text: &'t str,
    file: &'t str,
    warnings: Vec<Warning>,
}

/// A table of the file together with what is needed to speak about its keys.
struct Place<'p, 'i> {
    table: &'p DeTable<'i>,
    /// What stands before a key in messages: nothing, or such as `steps[0].`.
    prefix: String,
    /// Offset of the table itself, for keys that are missing.
    offset: usize,
}

type Value<'i> = Spanned<DeValue<'i>>;

impl Reader<'_> {
    fn root(&mut self, table: &DeTable<'_>) -> Result<Scenario, ScenarioError> {
        let place = Place {
            table,
            prefix: String::new(),
            offset: 0,
        };
        self.warn_unknown(&place, ROOT_KEYS);
        self.version(&place)?;
        let host = self.host(&place)?;
        let port = self.integer(
            &place,
            "port",
            1,
            u64::from(u16::MAX),
            "a port from 1 to 65535",
        )?;
        let steps = self.steps(&place)?;
        Ok(Scenario {
            host,
            port: port as u16,
            steps,
        })
    }

    fn version(&self, place: &Place<'_, '_>) -> Result<(), ScenarioError> {
        if place.table.contains_key("version") {
            let expected = "1, the only version this build knows";
            self.integer(place, "version", 1, 1, expected)?;
        }
        Ok(())
    }

    fn host(&self, place: &Place<'_, '_>) -> Result<String, ScenarioError> {
        let expected = "a host name or address such as \"127.0.0.1\"";
        let value = self.value(place, "host", expected)?;
        let host = value.get_ref().as_str().unwrap_or_default();
        if host.is_empty() || host.contains(char::is_whitespace) {
            return Err(self.invalid(place, "host", value, expected));
        }
        Ok(host.to_owned())
    }

    fn steps(&mut self, place: &Place<'_, '_>) -> Result<Vec<Step>, ScenarioError> {
        let expected = "one to 255 [[steps]] tables";
        let value = self.value(place, "steps", expected)?;
        let tables = match value.get_ref().as_array() {
            Some(array) if (1..=STEPS_MAX).contains(&array.len()) => array,
            _ => return Err(self.invalid(place, "steps", value, expected)),
        };
        let mut steps: Vec<Step> = Vec::with_capacity(tables.len());
        let mut name_lines: Vec<usize> = Vec::with_capacity(tables.len());
        for (index, entry) in tables.iter().enumerate() {
            let Some(table) = entry.get_ref().as_table() else {
                let error = self.invalid(place, &format!("steps[{index}]"), entry, "a table");
                return Err(error);
            };
            let place = Place {
                table,
                prefix: format!("steps[{index}]."),
                offset: entry.span().start,
            };
            let (step, name_line) = self.step(&place)?;
            if let Some(first) = steps.iter().position(|earlier| earlier.name == step.name) {
                let key = format!("{}name", place.prefix);
                let first_line = name_lines[first];
                self.warn(name_line, WarningKind::NameRepeated { key, first_line });
            }
            steps.push(step);
            name_lines.push(name_line);
        }
        Ok(steps)
    }

    /// A step and the line of its name.
    fn step(&mut self, place: &Place<'_, '_>) -> Result<(Step, usize), ScenarioError> {
        self.warn_unknown(place, STEP_KEYS);

        let expected = "a text that is not empty and has no control characters";
        let value = self.value(place, "name", expected)?;
        let name = value.get_ref().as_str().unwrap_or_default().to_owned();
        if name.trim().is_empty() || name.chars().any(char::is_control) {
            return Err(self.invalid(place, "name", value, expected));
        }
        let name_line = self.line(value.span().start);

        let expected = "a whole number of agents from 1 to 1000000";
        let most = u64::from(CONCURRENCY_MAX);
        let concurrency = self.integer(place, "concurrency", 1, most, expected)? as u32;
        if concurrency == 1 {
            let value = self.value(place, "concurrency", expected)?;
            let line = self.line(value.span().start);
            let key = format!("{}concurrency", place.prefix);
            self.warn(line, WarningKind::NoReceivers { key });
        }

        let expected = "a number of seconds above 0 and at most 604800 (a week)";
        let value = self.value(place, "duration_secs", expected)?;
        let duration_secs = number(value.get_ref())
            .filter(|secs| *secs > 0.0 && *secs <= DURATION_SECS_MAX)
            .ok_or_else(|| self.invalid(place, "duration_secs", value, expected))?;

        let think_time_ms = self.think_time(place)?;
        Ok((
            Step {
                name,
                concurrency,
                duration_secs,
                think_time_ms,
            },
            name_line,
        ))
    }

    fn think_time(&self, place: &Place<'_, '_>) -> Result<ThinkTime, ScenarioError> {
        let key = "think_time_ms";
        let expected = "two numbers of milliseconds [shortest, longest], \
                        0 ≤ shortest ≤ longest ≤ 86400000 and longest > 0";
        let value = self.value(place, key, expected)?;
        let think_time = match value.get_ref().as_array().map(|array| &array[..]) {
            Some([min, max]) => number(min.get_ref())
                .zip(number(max.get_ref()))
                .map(|(min_ms, max_ms)| ThinkTime { min_ms, max_ms }),
            _ => None,
        };
        // Below half a nanosecond the range would round to a mean of nothing and an endless rate.
        think_time
            .filter(|think| think.min_ms >= 0.0 && think.min_ms <= think.max_ms)
            .filter(|think| think.max_ms <= THINK_TIME_MS_MAX && think.max_ns() > 0)
            .ok_or_else(|| self.invalid(place, key, value, expected))
    }

    fn integer(
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

    fn value<'p, 'i>(
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
    fn misspelt<'p>(&self, place: &'p Place<'_, '_>, key: &str) -> Option<(&'p str, usize)> {
        place.table.keys().find_map(|written| {
            let name: &str = written.get_ref();
            let is_known = ROOT_KEYS.contains(&name) || STEP_KEYS.contains(&name);
            (!is_known && nearest_key(name, &[key]).is_some())
                .then(|| (name, self.line(written.span().start)))
        })
    }

    fn invalid(
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

    fn warn_unknown(&mut self, place: &Place<'_, '_>, known: &[&'static str]) {
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

    fn warn(&mut self, line: usize, kind: WarningKind) {
        self.warnings.push(Warning {
            file: self.file.to_owned(),
            line,
            kind,
        });
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
fn number(value: &DeValue<'_>) -> Option<f64> {
    let number = match value {
        DeValue::Integer(integer) => {
            i64::from_str_radix(integer.as_str(), integer.radix()).ok()? as f64
        }
        DeValue::Float(float) => float.as_str().parse().ok()?,
        _ => return None,
    };
    number.is_finite().then_some(number)
}

const ROOT_KEYS: &[&str] = &["version", "host", "port", "steps"];

const STEP_KEYS: &[&str] = &["name", "concurrency", "duration_secs", "think_time_ms"];

/// How much of a wrong value an error repeats.
const FOUND_CHARS_MAX: usize = 60;
