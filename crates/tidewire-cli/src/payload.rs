//! JSON of results and of untrusted bytes.
//!
//! JSON may be printed on a terminal, too, which obeys control characters. [`tidewire_proto::text`] describes how they
//! are kept from terminals otherwise.

use std::path::Path;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Map, Value};
use tidewire_proto::text::escape_json;

/// Returns the JSON of a value, for a line that a terminal may show.
pub(crate) fn json_text(value: &Value) -> String {
    escape_json(&value.to_string()).into_owned()
}

/// Returns the JSON of a result in lines of its own.
pub(crate) fn json_pretty(value: &impl Serialize) -> anyhow::Result<String> {
    let json =
        serde_json::to_string_pretty(value).context("the result cannot be expressed as JSON")?;
    Ok(escape_json(&json).into_owned() + "\n")
}

/// Writes the record of a measurement.
pub(crate) fn write_json(record: &impl Serialize, path: &Path) -> anyhow::Result<()> {
    std::fs::write(path, json_pretty(record)?)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Adds `payload` as text, or `payload_base64` if it is not UTF-8.
pub(crate) fn insert_payload(object: &mut Map<String, Value>, payload: &[u8]) {
    let (key, text) = match str::from_utf8(payload) {
        Ok(text) => ("payload", text.to_owned()),
        Err(_) => ("payload_base64", STANDARD.encode(payload)),
    };
    object.insert(key.to_owned(), text.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_holds_text_or_base64() {
        let object = |payload: &[u8]| {
            let mut object = Map::new();
            insert_payload(&mut object, payload);
            json_text(&object.into())
        };
        assert_eq!(object(b"say \"x\"\n"), r#"{"payload":"say \"x\"\n"}"#);
        assert_eq!(object(b"\xff\x00"), r#"{"payload_base64":"/wA="}"#);
        let attack = "\u{1b}[2J\u{9b}2J\u{202e}\u{2028}".as_bytes();
        assert_eq!(
            object(attack),
            r#"{"payload":"\u001b[2J\u009b2J\u202e\u2028"}"#
        );
    }
}
