//! The line of a topic's message.
//!
//! Payloads are untrusted bytes. A file or pipe gets them unchanged, because the next program needs that. On a
//! terminal, which obeys control characters, those are escaped, and in JSON always.

use std::io::{self, Write};
use std::sync::Arc;

use serde_json::{Map, json};
use tidewire::{CloseReason, Disconnected, TopicEvent, TopicMessage};
use tidewire_proto::text::escaped;

use crate::payload::{insert_payload, json_text};

#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// Whether lines are JSON objects.
    pub(super) json: bool,
    /// Whether lines start with the topic.
    pub(super) with_topic: bool,
    /// Whether the reader is a terminal.
    pub(super) escape: bool,
}

impl View {
    pub(super) fn message(self, message: &TopicMessage, out: &mut impl Write) -> io::Result<()> {
        let (topic, payload) = (&*message.topic, &message.payload[..]);
        if self.json {
            let mut object = Map::new();
            object.insert("topic".to_owned(), topic.into());
            insert_payload(&mut object, payload);
            if let Some(position) = message.position {
                object.insert("position".to_owned(), position.to_string().into());
            }
            return writeln!(out, "{}", json_text(&object.into()));
        }
        if self.with_topic {
            // The server is untrusted too; a topic of the user's own never has anything to escape.
            let topic = if self.escape {
                escaped(topic.as_bytes())
            } else {
                topic.to_owned()
            };
            write!(out, "{topic} ")?;
        }
        if self.escape {
            writeln!(out, "{}", escaped(payload))
        } else {
            out.write_all(payload)?;
            out.write_all(b"\n")
        }
    }

    /// Writes a notice: in line for programs, else on stderr.
    pub(super) fn notice(
        self,
        pattern: &str,
        event: &TopicEvent,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let (object, text) = match event {
            TopicEvent::Gap { lost } => (
                json!({"pattern": pattern, "gap": lost}),
                format!("{lost} messages of {pattern} were lost here: the server dropped them"),
            ),
            TopicEvent::Lost { count } => (
                json!({"pattern": pattern, "gap": count}),
                format!(
                    "{count} messages of {pattern} were lost here: they were not printed in time"
                ),
            ),
            TopicEvent::Interrupted { reason, text } => {
                let end = Disconnected {
                    reason: *reason,
                    text: Arc::clone(text),
                };
                // The go-away of a slow subscriber comes after all that it has not read, so it never comes.
                let hint = match reason {
                    CloseReason::PeerClosed | CloseReason::PeerReset => {
                        ", as a server also does to a subscriber that is too slow"
                    }
                    _ => "",
                };
                (
                    json!({"pattern": pattern, "interrupted": end.to_string(), "missing": "unknown"}),
                    format!("{pattern} is interrupted: {end}{hint}; connecting again"),
                )
            }
            TopicEvent::Resumed => (
                json!({"pattern": pattern, "resumed": true}),
                format!(
                    "{pattern} is resumed. Unless the server keeps a history, messages that were on their way or were \
                     published meanwhile are missing, and their number is unknown"
                ),
            ),
            TopicEvent::Recovered { missing } => (
                json!({"pattern": pattern, "recovered": *missing == Some(0), "missing": missing}),
                match missing {
                    Some(0) => format!("nothing of {pattern} is missing: what was kept follows"),
                    Some(count) => format!(
                        "{count} messages of {pattern} are missing: the server does not keep them any more"
                    ),
                    None => {
                        format!("messages of {pattern} may be missing, and their number is unknown")
                    }
                },
            ),
            _ => return Ok(()),
        };
        if self.json {
            writeln!(out, "{}", json_text(&object))?;
        }
        out.flush()?;
        // If stderr is closed, no error can be reported.
        let _ = writeln!(io::stderr().lock(), "! {}", escaped(text.as_bytes()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn line(view: View, topic: &str, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let (topic, payload) = (topic.into(), payload.to_vec());
        view.message(
            &TopicMessage {
                topic,
                payload,
                position: None,
            },
            &mut out,
        )
        .unwrap();
        out
    }

    const PLAIN: View = View {
        json: false,
        with_topic: false,
        escape: false,
    };

    #[test]
    fn a_pipe_gets_the_bytes_and_a_terminal_gets_escapes() {
        let payload = b"a\x1b[2J\xff\n\tGr\xc3\xbc\xc3\x9fe";
        assert_eq!(line(PLAIN, "t", payload), [payload, &b"\n"[..]].concat());
        let terminal = View {
            escape: true,
            with_topic: true,
            ..PLAIN
        };
        assert_eq!(
            String::from_utf8(line(terminal, "t\x1b", payload)).unwrap(),
            "t\\u{1b} a\\u{1b}[2J\\xff\\n\\tGrüße\n"
        );
    }

    #[test]
    fn json_holds_text_or_base64() {
        let json = View {
            json: true,
            ..PLAIN
        };
        let object = |payload: &[u8]| -> Value {
            serde_json::from_slice(&line(json, "a.b", payload)).unwrap()
        };
        assert_eq!(
            object(b"say \"x\"\n"),
            json!({"topic": "a.b", "payload": "say \"x\"\n"})
        );
        assert_eq!(
            object(b"\xff\x00"),
            json!({"topic": "a.b", "payload_base64": "/wA="})
        );
    }

    /// The bug: `sub --json` wrote C1 controls and bidirectional controls unescaped.
    #[test]
    fn json_on_a_terminal_commands_nothing() {
        let view = View {
            json: true,
            ..PLAIN
        };
        let attack = "\u{9b}2J\u{202e}\u{7f}".as_bytes();
        let text = String::from_utf8(line(view, "t", attack)).unwrap();
        assert_eq!(
            text,
            "{\"payload\":\"\\u009b2J\\u202e\\u007f\",\"topic\":\"t\"}\n"
        );
    }

    #[test]
    fn losses_are_told_in_line_to_programs() {
        let mut out = Vec::new();
        let view = View {
            json: true,
            ..PLAIN
        };
        view.notice("a.*", &TopicEvent::Gap { lost: 3 }, &mut out)
            .unwrap();
        let object: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(object, json!({"pattern": "a.*", "gap": 3}));
    }
}
