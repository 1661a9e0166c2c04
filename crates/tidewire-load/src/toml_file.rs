//! A TOML file in which each mistake has its file and line, and a mistyped key has the key that was probably meant.
//!
//! Problem: people write settings, users and scenarios by hand. An error must lead to its place, and a mistyped key
//! must not be ignored. Approach: the spanned tables of `toml`, in a table that knows its place, and entries that read
//! their value or say what it must be. Rejected: derived deserialisation. Its errors list all keys in place of the
//! nearest key, and do not say what a value may be.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;

use strsim::osa_distance;
use thiserror::Error;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// A mistake in a file: the file, the line, and what is wrong there.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{file}:{line}: {problem}")]
pub struct Mistake {
    file: String,
    line: usize,
    problem: String,
}

impl Mistake {
    /// The line in the file, from 1.
    #[must_use]
    pub fn line(&self) -> usize {
        self.line
    }

    fn new(file: &str, text: &str, offset: usize, problem: String) -> Self {
        let before = text.as_bytes().get(..offset).unwrap_or_default();
        Self {
            file: file.to_owned(),
            line: before.iter().filter(|byte| **byte == b'\n').count() + 1,
            problem,
        }
    }
}

/// A file that is valid TOML.
#[derive(Debug)]
pub struct TomlFile<'t> {
    name: String,
    text: &'t str,
    root: DeTable<'t>,
}

impl<'t> TomlFile<'t> {
    /// Parses the text of a file. Mistakes have the name.
    ///
    /// # Errors
    /// The text is not TOML. A duplicate key is such a case.
    pub fn parse(name: impl Display, text: &'t str) -> Result<Self, Mistake> {
        let name = name.to_string();
        match DeTable::parse(text) {
            Ok(root) => Ok(Self {
                name,
                text,
                root: root.into_inner(),
            }),
            Err(error) => {
                let offset = error.span().map_or(0, |span| span.start);
                let words: Vec<&str> = error.message().split_whitespace().collect();
                let problem = format!("not valid TOML: {}", words.join(" "));
                Err(Mistake::new(&name, text, offset, problem))
            }
        }
    }

    /// The table of the whole file. Unread keys are not refused.
    pub fn root(&self) -> TomlTable<'_> {
        TomlTable {
            file: self,
            table: &self.root,
            path: String::new(),
            offset: 0,
            asked: RefCell::default(),
        }
    }

    /// Reads the table of the whole file, and refuses keys that `read` does not ask for.
    ///
    /// # Errors
    /// Those of `read`, and a key is unknown.
    pub fn read<T, E: From<Mistake>>(
        &self,
        read: impl FnOnce(&TomlTable<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.root().read_all(read)
    }

    fn mistake(&self, offset: usize, problem: String) -> Mistake {
        Mistake::new(&self.name, self.text, offset, problem)
    }
}

/// A table of a file. The keys that a program asks for are the known ones.
#[derive(Debug)]
pub struct TomlTable<'f> {
    file: &'f TomlFile<'f>,
    table: &'f DeTable<'f>,
    /// The text before a key in mistakes: nothing, or such as `users[0].`.
    path: String,
    offset: usize,
    asked: RefCell<Vec<String>>,
}

impl<'f> TomlTable<'f> {
    /// All keys with their values.
    pub fn entries(&self) -> impl Iterator<Item = TomlEntry<'f>> {
        let entries = self.table.iter();
        entries.map(|(key, value)| self.entry(key, value))
    }

    fn entry(
        &self,
        key: &'f Spanned<DeString<'f>>,
        value: &'f Spanned<DeValue<'f>>,
    ) -> TomlEntry<'f> {
        TomlEntry {
            file: self.file,
            path: format!("{}{}", self.path, key.get_ref()),
            name: key.get_ref(),
            offset: key.span().start,
            value,
        }
    }

    /// The key with its value, if the key is there.
    pub fn get(&self, key: &str) -> Option<TomlEntry<'f>> {
        self.asked.borrow_mut().push(key.to_owned());
        let (key, value) = self.table.get_key_value(key)?;
        Some(self.entry(key, value))
    }

    /// The keys that are not among the known ones, in the order of the file.
    pub fn unknown(&self, known: &[&str]) -> Vec<TomlEntry<'f>> {
        let unknown = self.entries().filter(|it| !known.contains(&it.name));
        let mut unknown: Vec<_> = unknown.collect();
        unknown.sort_by_key(|entry| entry.offset);
        unknown
    }

    /// A mistake about a key, in the line of its value, or of the table if the key is missing. The text follows the
    /// key.
    pub fn mistake(&self, key: &str, rest: impl Display) -> Mistake {
        let value = self.table.get(key);
        let offset = value.map_or(self.offset, |value| value.span().start);
        let problem = format!("`{}{key}`{rest}", self.path);
        self.file.mistake(offset, problem)
    }

    /// Reads the value of a key, if the key is there.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn read<T, E>(
        &self,
        key: &str,
        read: impl FnOnce(&TomlEntry<'f>) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        self.get(key).map(|entry| read(&entry)).transpose()
    }

    /// Reads the value of a key that must be there.
    ///
    /// # Errors
    /// Those of `read`, and the key is missing.
    pub fn require<T, E: From<Mistake>>(
        &self,
        key: &str,
        read: impl FnOnce(&TomlEntry<'f>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.read(key, read)?.ok_or_else(|| {
            let mut entries = self.entries();
            let mistyped = entries.find(|entry| nearest_key(entry.name, &[key]).is_some());
            let mistake = match mistyped {
                Some(entry) => entry.unknown(&[key], ""),
                None => {
                    let problem = format!("the key `{}{key}` is missing", self.path);
                    self.file.mistake(self.offset, problem)
                }
            };
            mistake.into()
        })
    }

    /// Reads the entries of the list of a key. Without the key there are none.
    ///
    /// # Errors
    /// The value is no list, and the errors of `read`.
    pub fn list<T, E: From<Mistake>>(
        &self,
        key: &str,
        read: impl FnMut(&TomlEntry<'f>) -> Result<T, E>,
    ) -> Result<Vec<T>, E> {
        let list = self.read(key, |entry| entry.list(read))?;
        Ok(list.unwrap_or_default())
    }

    /// Reads the table, and refuses keys that `read` does not ask for.
    fn read_all<T, E: From<Mistake>>(
        self,
        read: impl FnOnce(&Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let content = read(&self)?;
        let asked = self.asked.borrow();
        let known: Vec<&str> = asked.iter().map(String::as_str).collect();
        match self.unknown(&known).first() {
            Some(entry) => {
                let all = format!("the keys are {}", known.join(", "));
                Err(entry.unknown(&known, &all).into())
            }
            None => Ok(content),
        }
    }
}

/// A key of a table with its value.
#[derive(Clone, Debug)]
pub struct TomlEntry<'f> {
    file: &'f TomlFile<'f>,
    path: String,
    name: &'f str,
    offset: usize,
    value: &'f Spanned<DeValue<'f>>,
}

impl<'f> TomlEntry<'f> {
    /// The key.
    pub fn name(&self) -> &'f str {
        self.name
    }

    /// The value.
    pub fn value(&self) -> &'f DeValue<'f> {
        self.value.get_ref()
    }

    /// The line of the key, from 1.
    pub fn line(&self) -> usize {
        self.file.mistake(self.offset, String::new()).line
    }

    /// A text.
    ///
    /// # Errors
    /// The value is none.
    pub fn text(&self) -> Result<&'f str, Mistake> {
        let text = self.value().as_str();
        text.ok_or_else(|| self.wrong("a text in quotes"))
    }

    /// A text that is allowed. `expected` says which texts are.
    ///
    /// # Errors
    /// The value is no such text.
    pub fn text_if(
        &self,
        is_allowed: impl FnOnce(&str) -> bool,
        expected: &str,
    ) -> Result<&'f str, Mistake> {
        let text = self.value().as_str().filter(|text| is_allowed(text));
        text.ok_or_else(|| self.wrong(expected))
    }

    /// A whole number within a range. `expected` says which it is.
    ///
    /// # Errors
    /// The value is no such number.
    pub fn whole_in(&self, range: RangeInclusive<u64>, expected: &str) -> Result<u64, Mistake> {
        let whole = self.value().as_integer();
        let whole = whole.and_then(|it| u64::from_str_radix(it.as_str(), it.radix()).ok());
        let whole = whole.filter(|number| range.contains(number));
        whole.ok_or_else(|| self.wrong(expected))
    }

    /// A finite number that is allowed. `expected` says which numbers are.
    ///
    /// # Errors
    /// The value is no such number.
    pub fn number_if(
        &self,
        is_allowed: impl FnOnce(f64) -> bool,
        expected: &str,
    ) -> Result<f64, Mistake> {
        let number = self.number().filter(|number| is_allowed(*number));
        number.ok_or_else(|| self.wrong(expected))
    }

    /// The number, if the value is an integer or a finite float.
    pub fn number(&self) -> Option<f64> {
        let number = match self.value() {
            DeValue::Integer(_) => self.integer()? as f64,
            DeValue::Float(float) => float.as_str().parse().ok()?,
            _ => return None,
        };
        number.is_finite().then_some(number)
    }

    /// The integer, if the value is an integer of 64 bits.
    pub fn integer(&self) -> Option<i64> {
        let integer = self.value().as_integer()?;
        i64::from_str_radix(integer.as_str(), integer.radix()).ok()
    }

    /// A whole number that fits `T`.
    ///
    /// # Errors
    /// The value is none.
    pub fn whole<T: TryFrom<i64>>(&self) -> Result<T, Mistake> {
        let whole = self.integer().and_then(|number| number.try_into().ok());
        whole.ok_or_else(|| self.wrong("a whole number"))
    }

    /// A table. Keys that `read` does not ask for are refused.
    ///
    /// # Errors
    /// The value is no table, a key is unknown, and the errors of `read`.
    pub fn table<T, E: From<Mistake>>(
        &self,
        read: impl FnOnce(&TomlTable<'f>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.open_table("a table")?.read_all(read)
    }

    /// A table whose unknown keys are for the caller to refuse. `expected` says what the table is.
    ///
    /// # Errors
    /// The value is no table.
    pub fn open_table(&self, expected: &str) -> Result<TomlTable<'f>, Mistake> {
        let table = self.value().as_table();
        Ok(TomlTable {
            file: self.file,
            table: table.ok_or_else(|| self.wrong(expected))?,
            path: format!("{}.", self.path),
            offset: self.value.span().start,
            asked: RefCell::default(),
        })
    }

    /// A list, each entry of which `read` reads.
    ///
    /// # Errors
    /// The value is none, and those of `read`.
    pub fn list<T, E: From<Mistake>>(
        &self,
        mut read: impl FnMut(&Self) -> Result<T, E>,
    ) -> Result<Vec<T>, E> {
        let list = self.value().as_array();
        let list = list.ok_or_else(|| self.wrong("an array"))?;
        let entries = list.iter().enumerate().map(|(index, value)| Self {
            path: format!("{}[{index}]", self.path),
            value,
            ..self.clone()
        });
        entries.map(|entry| read(&entry)).collect()
    }

    /// The mistake that the value is not what it must be.
    pub fn wrong(&self, expected: &str) -> Mistake {
        let span = self.value.span();
        let source = self.file.text.get(span).unwrap_or_default();
        let in_line = |letter: char| if letter.is_control() { ' ' } else { letter };
        let mut shown: String = source.chars().take(SHOWN_CHARS_MAX).map(in_line).collect();
        if shown.len() < source.len() {
            shown.push('…');
        }
        let found = self.value().type_str();
        self.mistake(&format!(
            " must be {expected}, but it is the {found} {shown}"
        ))
    }

    /// The mistake that the value cannot be used for this reason.
    pub fn unusable(&self, reason: impl Display) -> Mistake {
        self.mistake(&format!(": {reason}"))
    }

    /// The mistake that the key is not a known key. Where no known key is near, `advice` follows.
    pub fn unknown(&self, known: &[&str], advice: &str) -> Mistake {
        let nearest = nearest_key(self.name, known);
        let advice = nearest.map_or(format!("; {advice}"), did_you_mean);
        self.mistaken_key(&advice)
    }

    /// The mistake that the key is none of the known ones, in a file that may be used all the same.
    pub fn ignored(&self, known: &[&str]) -> Mistake {
        let nearest = nearest_key(self.name, known).map(did_you_mean);
        self.mistaken_key(&format!(" is ignored{}", nearest.unwrap_or_default()))
    }

    fn mistaken_key(&self, rest: &str) -> Mistake {
        let problem = format!("unknown key `{}`{rest}", self.path);
        self.file.mistake(self.offset, problem)
    }

    fn mistake(&self, rest: &str) -> Mistake {
        let problem = format!("`{}`{rest}", self.path);
        self.file.mistake(self.value.span().start, problem)
    }
}

fn did_you_mean(key: &str) -> String {
    format!("; did you mean `{key}`?")
}

/// The known key that is nearest to this one, if fewer than half of its letters would have to change, or if only its
/// unit is missing. Insertions, deletions, substitutions and swaps of neighbours cost one each.
pub fn nearest_key<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let key: String = key.chars().take(LETTERS_MAX).collect();
    // A flag may be written as on the command line.
    let key = key.to_lowercase().replace('-', "_");
    let near = known.iter().filter_map(|candidate| {
        let distance = osa_distance(&key, candidate);
        let rest = candidate.strip_prefix(&key);
        let is_cut = !key.is_empty() && rest.is_some_and(|rest| rest.starts_with('_'));
        (is_cut || distance * 2 < candidate.chars().count()).then_some((distance, *candidate))
    });
    near.min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Longer keys resemble nothing. This bounds the work that a hostile file can cause.
const LETTERS_MAX: usize = 64;

/// The longest part of a wrong value that a mistake shows.
const SHOWN_CHARS_MAX: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T>(text: &str, read: impl FnOnce(&TomlTable<'_>) -> Result<T, Mistake>) -> T {
        TomlFile::parse("t.toml", text).unwrap().read(read).unwrap()
    }

    fn mistake<T: std::fmt::Debug>(
        text: &str,
        read: impl FnOnce(&TomlTable<'_>) -> Result<T, Mistake>,
    ) -> String {
        let file = TomlFile::parse("t.toml", text);
        let mistake = file.and_then(|file| file.read(read)).unwrap_err();
        mistake.to_string()
    }

    #[test]
    fn a_file_is_read_by_key() {
        let text = "name = \"a\"\n[[users]]\nid = 0x10\nnames = [\"b\", \"c\"]\n";
        read(text, |root| {
            assert_eq!(root.require("name", TomlEntry::text)?, "a");
            assert_eq!(root.read("other", TomlEntry::text)?, None);
            let users = root.list("users", |it| {
                it.table(|user| {
                    let names = user.list("names", TomlEntry::text)?;
                    Ok((user.require("id", TomlEntry::whole::<u8>)?, names))
                })
            })?;
            assert!(root.list("none", TomlEntry::text)?.is_empty());
            assert_eq!(users, [(16, vec!["b", "c"])]);
            Ok(())
        });
    }

    #[test]
    fn a_mistake_has_its_file_its_line_and_its_key() {
        let text = "a = 1\n[[users]]\nnmae = \"x\"\nids = [1, -2]\n";
        let of_user = |key: &str, read: fn(&TomlEntry<'_>) -> Result<(), Mistake>| {
            mistake(text, |root| {
                root.read("a", TomlEntry::whole::<u8>)?;
                let table = |it: &TomlEntry<'_>| it.table(|user| user.require(key, read));
                root.list("users", table)
            })
        };
        let nothing = |_: &TomlTable<'_>| Ok(());
        let told = [
            mistake(text, |root| root.read("a", |it| it.text().map(drop))),
            of_user("ids", |it| {
                it.list(|it| it.whole::<u32>().map(drop)).map(drop)
            }),
            of_user("ids", |_| Ok(())),
            of_user("name", |_| Ok(())),
            of_user("room", |_| Ok(())),
            of_user("nmae", |it| Err(it.unusable("it is short"))),
            mistake("a = 1\na = 2", nothing),
        ];
        let expected = [
            "t.toml:1: `a` must be a text in quotes, but it is the integer 1",
            "t.toml:4: `users[0].ids[1]` must be a whole number, but it is the integer -2",
            "t.toml:3: unknown key `users[0].nmae`; the keys are ids",
            "t.toml:3: unknown key `users[0].nmae`; did you mean `name`?",
            "t.toml:2: the key `users[0].room` is missing",
            "t.toml:3: `users[0].nmae`: it is short",
            "t.toml:2: not valid TOML: duplicate key",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn mistyped_keys_find_their_key_and_strange_keys_find_none() {
        let known = ["name", "concurrency", "duration_secs", "think_time_ms"];
        for (key, nearest) in [
            ("concurency", Some("concurrency")),
            ("Duration-Sec", Some("duration_secs")),
            ("nmae", Some("name")),
            ("think_time", Some("think_time_ms")),
            ("colour", None),
            ("", None),
            (&"x".repeat(100_000), None),
        ] {
            assert_eq!(nearest_key(key, &known), nearest, "{key}");
        }
        assert_eq!(nearest_key("p99", &["p50_ms", "p99_ms"]), Some("p99_ms"));
    }
}
