//! The two kinds of files that are compared.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};

/// The kind of a side's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Reports of load tests.
    #[default]
    Load,
    /// Files of the benchmark.
    Bench,
}

impl Kind {
    /// The kind of a file, or the one that it had before it was damaged: its first keys tell, as far as they can be
    /// read.
    pub fn of_file(path: &Path) -> Self {
        Self::of_json(&fs::read(path).unwrap_or_default())
    }

    pub(super) fn of_json(text: &[u8]) -> Self {
        let mut keys = Vec::new();
        // The reader of the file reports errors in it.
        let _ = serde_json::Deserializer::from_slice(text).deserialize_map(Keys(&mut keys));
        let has = |name: &str| keys.iter().any(|key| key == name);
        if has("suites") || (has("env") && !has("steps") && !has("target_server")) {
            Self::Bench
        } else {
            Self::Load
        }
    }
}

/// Collects the keys of an object up to its end, or up to the first error.
struct Keys<'a>(&'a mut Vec<String>);

impl<'de> Visitor<'de> for Keys<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(key) = map.next_key()? {
            self.0.push(key);
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Load => "load tests",
            Self::Bench => "benchmarks",
        })
    }
}
