//! The tables of the codec `json` in `docs/protocol.md` are test vectors: every line is the message that the table of
//! TW1 gives as bytes.

use std::collections::{BTreeMap, BTreeSet};

use tidewire_proto::codec::{Codec, Decoded, Json, JsonField, JsonKind, Tw1};
use tidewire_proto::error::DecodeError;
use tidewire_proto::limits::FRAME_BYTES_MAX;
use tidewire_proto::message::{Kind, Message};

const PAGE: &str = include_str!("../../../docs/protocol.md");

/// Returns the rows of the table whose header line is `header`, with trimmed cells.
fn table(header: &str) -> Vec<Vec<&'static str>> {
    let rows: Vec<Vec<_>> = PAGE
        .lines()
        .skip_while(|line| *line != header)
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(!rows.is_empty(), "the page has no table {header:?}");
    rows
}

/// Passes the message of a line to `look`.
fn translate(line: &str, look: impl FnOnce(&Message<'_>)) {
    let input = format!("{line}\n");
    let decoded = Json.decode(input.as_bytes(), FRAME_BYTES_MAX);
    let Ok(Decoded::Frame { message, consumed }) = decoded else {
        panic!("{line} is not one line");
    };
    assert_eq!(consumed, input.len());
    let mut scratch = Vec::new();
    let message = Json.translate(message, &mut scratch);
    look(&message.unwrap_or_else(|error| panic!("{line}: {error}")));
}

/// Returns the line that the codec writes for a message of this kind.
fn written(kind: JsonKind, message: &Message<'_>) -> String {
    let mut out = Vec::new();
    let written = match kind {
        JsonKind::Joined => Json.encode_room_reply(Kind::Join, message, &mut out),
        JsonKind::Members => Json.encode_room_reply(Kind::Request, message, &mut out),
        _ => Json.encode(message, &mut out),
    };
    written.expect("a message of the codec");
    String::from_utf8(out).expect("a line is text")
}

#[test]
fn every_line_is_the_message_that_the_frame_is() {
    let frames: BTreeMap<(&str, &str), Vec<u8>> = table("| kind | what it says | frame |")
        .into_iter()
        .map(|row| {
            let bytes = row[2].trim_matches('`').split(' ');
            let bytes = bytes.map(|byte| u8::from_str_radix(byte, 16).expect("a byte in hex"));
            ((row[0], row[1]), bytes.collect())
        })
        .collect();
    let mut found = BTreeSet::new();
    for row in table("| kind | what it says | line |") {
        let (name, what, line) = (row[0], row[1], row[2].trim_matches('`'));
        let kind = *JsonKind::ALL
            .iter()
            .find(|kind| kind.name() == name)
            .unwrap_or_else(|| panic!("no kind {name}"));
        found.insert(name);
        assert!(
            line.starts_with(&format!("{{\"kind\":\"{name}\"")),
            "{line}"
        );
        let tw1 = match kind {
            JsonKind::List | JsonKind::Whisper => "request",
            JsonKind::Joined | JsonKind::Members => "reply",
            _ => name,
        };
        let frame = frames.get(&(tw1, what));
        let frame = frame.unwrap_or_else(|| panic!("TW1 has no example {what:?}"));
        let decoded = Tw1.decode(frame, FRAME_BYTES_MAX);
        let Ok(Decoded::Frame { message, .. }) = decoded else {
            panic!("{what}: {decoded:?}");
        };
        translate(line, |translated| {
            assert_eq!(*translated, message, "{line}");
        });
        let again = written(kind, &message);
        if matches!(kind, JsonKind::List | JsonKind::Whisper) {
            // These kinds are written as their request.
            translate(again.trim_end(), |translated| {
                assert_eq!(*translated, message);
            });
        } else {
            assert_eq!(again.trim_end(), line);
        }
    }
    let all: BTreeSet<_> = JsonKind::ALL.iter().map(|kind| kind.name()).collect();
    assert_eq!(found, all, "every kind has an example");
}

#[test]
fn the_fields_of_every_kind_are_documented() {
    let mut documented = BTreeSet::new();
    for row in table("| kind | fields | payload in TW1 |") {
        for kind in row[0].split(", ") {
            assert!(documented.insert(kind), "{kind} is there twice");
            let kind = JsonKind::ALL.iter().find(|it| it.name() == kind);
            let kind = kind.unwrap_or_else(|| panic!("no kind {}", row[0]));
            let fields: Vec<_> = kind.fields().iter().map(|it| it.name()).collect();
            let fields = fields.join(", ").replace("data, data64, json", "*payload*");
            assert_eq!(row[1], fields, "{kind}");
        }
    }
    let all: BTreeSet<_> = JsonKind::ALL.iter().map(|kind| kind.name()).collect();
    assert_eq!(documented, all);
    let words: BTreeSet<_> = table("| field | value |")
        .into_iter()
        .flat_map(|row| row[0].split(", ").map(|it| it.trim_matches('`')))
        .collect();
    let all: BTreeSet<_> = JsonField::ALL.iter().map(|field| field.name()).collect();
    assert_eq!(words, all);
}

#[test]
fn every_faulty_line_ends_a_connection_with_its_text() {
    for row in table("| faulty line | text |") {
        let line = row[0].trim_matches('`');
        let frame = Message::new(Kind::OneWay, 0, line.as_bytes());
        match Json.translate(frame, &mut Vec::new()) {
            Err(error @ DecodeError::Json(_)) => assert_eq!(error.to_string(), row[1], "{line}"),
            other => panic!("{line}: {other:?}"),
        }
    }
}
