//! Lines: LF-terminated text, for people with `nc` and programs that print.
//!
//! Problem: the simplest peer has no header, no ids and a terminal at its end. Approach: every line that arrives is a
//! one-way message, and every message that leaves is rendered as a line that a person understands. Text of other people
//! passes [`crate::text`] on the way out, because a terminal obeys control characters.
//!
//! The first characters of a line give its kind: `[ada]: ` and `[ada -> you]: ` for messages of a member, `* ` for
//! notices, `! ` for refusals. No name can contain these characters, see [`validate_name`](crate::body::validate_name),
//! so no name can make a line look like another kind of line.
//!
//! Rejected: escaping people's text instead of replacing characters (a line within its limit would grow beyond it).

use super::scan::{find_byte, find_line};
use super::spec::BuiltIn;
use super::{ChatMessage, Codec, ConnectionState, Decoded, Format, Presence, Text, check_unnamed};
use crate::body::{ErrorBody, GoAwayBody, displayed_name};
use crate::error::{DecodeError, EncodeError};
use crate::limits::LINE_BYTES_MAX;
use crate::message::{Kind, Message, PresenceEvent};
use crate::text::push_visible;

/// The codec of LF-terminated lines. A line is at most [`LINE_BYTES_MAX`] bytes with its terminator, or
/// less if the frame limit is smaller; one CR before the LF belongs to the terminator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines;

impl BuiltIn for Lines {
    const FORMAT: Format = FORMAT;
}

impl Codec for Lines {
    #[inline(always)]
    fn format(&self) -> &'static Format {
        &FORMAT
    }

    #[inline]
    fn decode<'a>(
        &self,
        input: &'a [u8],
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        self.decode_next(&mut ConnectionState::default(), input, 0, frame_bytes_max)
    }

    #[inline]
    fn decode_next<'a>(
        &self,
        _: &mut ConnectionState,
        input: &'a [u8],
        searched: usize,
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        let limit = frame_bytes_max.min(LINE_BYTES_MAX);
        Ok(match find_line(input, searched, limit)? {
            None => Decoded::Incomplete { frame_bytes: 0 },
            Some(end) => {
                let line = &input[..end];
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                Decoded::Frame {
                    message: Message::new(Kind::OneWay, 0, line),
                    consumed: end + 1,
                }
            }
        })
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match message.kind {
            Kind::OneWay | Kind::Reply | Kind::Deliver => {
                check_unnamed(message, NAME)?;
                encode_verbatim(message.payload, out)
            }
            Kind::Error => {
                let invalid = EncodeError::InvalidBody { kind: message.kind };
                let body = ErrorBody::decode(message.payload).map_err(|_| invalid)?;
                encode_reason(body.text, &body.code, out);
                Ok(())
            }
            Kind::GoAway => {
                let invalid = EncodeError::InvalidBody { kind: message.kind };
                let body = GoAwayBody::decode(message.payload).map_err(|_| invalid)?;
                encode_reason(body.text, &body.code, out);
                Ok(())
            }
            kind => Err(EncodeError::Unsupported { codec: NAME, kind }),
        }
    }

    fn encode_chat_message(
        &self,
        message: &ChatMessage<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        if message.name.is_empty() {
            return encode_announced(message.payload, out);
        }
        let address: &[u8] = if message.private {
            b" -> you]: "
        } else {
            b"]: "
        };
        let name = displayed_name(message.name);
        let frame_bytes = 1 + name.len() + address.len() + message.payload.len() + 1;
        check_line_bytes(message.payload.len(), frame_bytes)?;
        out.reserve(frame_bytes);
        out.push(b'[');
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(address);
        push_visible(message.payload, out);
        out.push(b'\n');
        Ok(())
    }

    fn encode_presence(
        &self,
        presence: &Presence<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let what: &[u8] = match presence.event {
            PresenceEvent::Here => b" is here\n",
            PresenceEvent::Joined => b" joined\n",
            PresenceEvent::Left => b" left\n",
        };
        let name = displayed_name(presence.name);
        check_line_bytes(name.len(), 2 + name.len() + what.len())?;
        out.extend_from_slice(b"* ");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(what);
        Ok(())
    }

    fn encode_gap(&self, _channel: u16, lost: u64, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        push_line(format_args!("* {lost} messages were lost here"), out);
        Ok(())
    }
}

/// Appends a message of a service, unchanged.
fn encode_verbatim(payload: &[u8], out: &mut Vec<u8>) -> Result<(), EncodeError> {
    // The receiver reads one CR as a part of the terminator, so a payload that ends in CR gets another CR.
    let terminator: &[u8] = if payload.ends_with(b"\r") {
        b"\r\n"
    } else {
        b"\n"
    };
    check_line_bytes(payload.len(), payload.len() + terminator.len())?;
    if find_byte(payload, b'\n').is_some() {
        return Err(EncodeError::ContainsDelimiter { codec: NAME });
    }
    out.reserve(payload.len() + terminator.len());
    out.extend_from_slice(payload);
    out.extend_from_slice(terminator);
    Ok(())
}

/// Appends a message of the room itself, as a notice: no name of a member can contain its first characters.
fn encode_announced(payload: &[u8], out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let frame_bytes = NOTICE.len() + payload.len() + 1;
    check_line_bytes(payload.len(), frame_bytes)?;
    out.reserve(frame_bytes);
    out.extend_from_slice(NOTICE);
    push_visible(payload, out);
    out.push(b'\n');
    Ok(())
}

/// Appends a refusal or a farewell: the text, or the code's own text if it is empty.
fn encode_reason(text: &str, code: &dyn std::fmt::Display, out: &mut Vec<u8>) {
    if text.is_empty() {
        push_line(format_args!("! {code}"), out);
    } else {
        out.extend_from_slice(b"! ");
        push_visible(text.as_bytes(), out);
        out.push(b'\n');
    }
}

/// Formats directly into `out`, without a string in between.
fn push_line(line: std::fmt::Arguments<'_>, out: &mut Vec<u8>) {
    use std::io::Write;
    // Writing to a vector cannot fail.
    let _ = writeln!(out, "{line}");
}

/// Refuses a line that the same codec would refuse to decode.
fn check_line_bytes(payload_bytes: usize, frame_bytes: usize) -> Result<(), EncodeError> {
    if frame_bytes > LINE_BYTES_MAX {
        let around = frame_bytes - payload_bytes;
        return Err(EncodeError::PayloadTooLarge {
            bytes: payload_bytes as u64,
            limit: LINE_BYTES_MAX.saturating_sub(around) as u64,
        });
    }
    Ok(())
}

const FORMAT: Format = Format {
    text: Text::Typed,
    repeats_names: false,
    ..Format::new("lines")
};
const NAME: &str = FORMAT.name;

/// The first characters of a notice.
const NOTICE: &[u8] = b"* ";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::{ErrorCode, GoAwayCode};
    use crate::message::MemberId;

    const NO_LIMIT: usize = usize::MAX;

    fn line_of(input: &[u8]) -> (&[u8], usize) {
        match Lines.decode(input, NO_LIMIT) {
            Ok(Decoded::Frame { message, consumed }) => {
                assert_eq!((message.kind, message.channel), (Kind::OneWay, 0));
                (message.payload, consumed)
            }
            other => panic!("no line: {other:?}"),
        }
    }

    fn chat_message<'a>(name: &'a str, payload: &'a [u8], private: bool) -> ChatMessage<'a> {
        ChatMessage {
            channel: 3,
            member: MemberId(1),
            name,
            private,
            payload,
        }
    }

    #[test]
    fn a_line_loses_its_terminator_and_one_cr_only() {
        assert_eq!(line_of(b"hi\nthere\n"), (&b"hi"[..], 3));
        assert_eq!(line_of(b"hi\r\n"), (&b"hi"[..], 4));
        assert_eq!(line_of(b"hi\r\r\n"), (&b"hi\r"[..], 5));
        assert_eq!(line_of(b"\n"), (&b""[..], 1));
    }

    #[test]
    fn the_end_is_found_at_every_position() {
        for end in 0..100 {
            let mut input = vec![b'x'; 130];
            input[end] = b'\n';
            input[120] = b'\n';
            assert_eq!(line_of(&input).1, end + 1);
        }
    }

    #[test]
    fn a_line_may_fill_the_limit_and_no_more() {
        let mut input = vec![b'x'; LINE_BYTES_MAX - 1];
        assert_eq!(
            Lines.decode(&input, NO_LIMIT),
            Ok(Decoded::Incomplete { frame_bytes: 0 })
        );
        input.push(b'\n');
        assert_eq!(line_of(&input).1, LINE_BYTES_MAX);
        input.insert(0, b'x');
        let limit = LINE_BYTES_MAX as u64;
        let too_large = DecodeError::FrameTooLarge {
            bytes: limit + 1,
            limit,
        };
        assert_eq!(Lines.decode(&input, NO_LIMIT), Err(too_large));
    }

    #[test]
    fn a_smaller_frame_limit_applies_to_lines() {
        let too_large = DecodeError::FrameTooLarge { bytes: 5, limit: 4 };
        assert_eq!(Lines.decode(b"abcd", 4), Err(too_large));
        assert!(matches!(
            Lines.decode(b"abc\n", 4),
            Ok(Decoded::Frame { consumed: 4, .. })
        ));
    }

    #[test]
    fn a_chat_line_names_its_speaker() {
        let mut out = Vec::new();
        Lines
            .encode_chat_message(&chat_message("ada", b"hi all", false), &mut out)
            .unwrap();
        Lines
            .encode_chat_message(&chat_message("bob", b"psst", true), &mut out)
            .unwrap();
        assert_eq!(out, b"[ada]: hi all\n[bob -> you]: psst\n");
    }

    #[test]
    fn peers_cannot_command_the_terminal() {
        let mut out = Vec::new();
        // The text has an escape sequence, its one-byte form as UTF-8 and as a raw byte, a forged line, and a tab.
        let text = b"\x1b[2Ja\xC2\x9b2Jb\x9b2Jc\r\n[root]: hi\td";
        Lines
            .encode_chat_message(&chat_message("e\u{7}ve", text, false), &mut out)
            .unwrap();
        assert_eq!(out, b"[e?ve]: ?[2Ja?2Jb?2Jc??[root]: hi\td\n");
    }

    #[test]
    fn presence_and_gaps_read_as_sentences() {
        let mut out = Vec::new();
        for event in [
            PresenceEvent::Joined,
            PresenceEvent::Left,
            PresenceEvent::Here,
        ] {
            let presence = Presence {
                channel: 1,
                member: MemberId(1),
                name: "王",
                event,
            };
            Lines.encode_presence(&presence, &mut out).unwrap();
        }
        Lines.encode_gap(1, 12, &mut out).unwrap();
        let expected = "* 王 joined\n* 王 left\n* 王 is here\n* 12 messages were lost here\n";
        assert_eq!(out, expected.as_bytes());
    }

    #[test]
    fn refusals_and_farewells_show_their_text_or_their_code() {
        let mut out = Vec::new();
        let mut body = Vec::new();
        ErrorBody {
            code: ErrorCode::NameTaken,
            text: "ada is taken\x1b",
        }
        .encode(&mut body);
        Lines
            .encode(&Message::with_id(Kind::Error, 0, 1, &body), &mut out)
            .unwrap();
        body.clear();
        ErrorBody {
            code: ErrorCode::NameTaken,
            text: "",
        }
        .encode(&mut body);
        Lines
            .encode(&Message::with_id(Kind::Error, 0, 1, &body), &mut out)
            .unwrap();
        body.clear();
        GoAwayBody {
            code: GoAwayCode::Shutdown,
            text: "",
        }
        .encode(&mut body);
        Lines
            .encode(&Message::new(Kind::GoAway, 0, &body), &mut out)
            .unwrap();
        assert_eq!(
            out,
            b"! ada is taken?\n! the name is taken\n! the peer is shutting down\n"
        );
    }

    #[test]
    fn a_message_that_fits_no_line_is_refused_and_writes_nothing() {
        let mut out = b"before".to_vec();
        let long = vec![b'x'; LINE_BYTES_MAX];
        let limit = LINE_BYTES_MAX as u64;
        let cases = [
            (
                Kind::OneWay,
                &b"two\nlines"[..],
                EncodeError::ContainsDelimiter { codec: "lines" },
            ),
            (
                Kind::Reply,
                &long,
                EncodeError::PayloadTooLarge {
                    bytes: limit,
                    limit: limit - 1,
                },
            ),
            (
                Kind::Error,
                b"",
                EncodeError::InvalidBody { kind: Kind::Error },
            ),
            (
                Kind::Ping,
                b"",
                EncodeError::Unsupported {
                    codec: "lines",
                    kind: Kind::Ping,
                },
            ),
        ];
        for (kind, payload, expected) in cases {
            assert_eq!(
                Lines.encode(&Message::new(kind, 0, payload), &mut out),
                Err(expected)
            );
        }
        let room_for = limit - "[ada]: \n".len() as u64;
        assert_eq!(
            Lines.encode_chat_message(&chat_message("ada", &long, false), &mut out),
            Err(EncodeError::PayloadTooLarge {
                bytes: limit,
                limit: room_for
            })
        );
        assert_eq!(out, b"before");
        let fits = &long[..room_for as usize];
        assert_eq!(
            Lines.encode_chat_message(&chat_message("ada", fits, false), &mut out),
            Ok(())
        );
        assert_eq!(line_of(&out["before".len()..]).1, LINE_BYTES_MAX);
    }
}
