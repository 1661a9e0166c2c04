//! Templates read and write like their codecs, and accept no layout that a frame cannot have.

use super::*;
use crate::codec::{AnyCodec, Decoded, Format, RequestIds};
use crate::error::{DecodeError, EncodeError};
use crate::message::Kind;

/// A codec that returns this layout for every frame, and decodes and encodes nothing.
struct Says(Option<FrameLayout>);

impl Codec for Says {
    fn format(&self) -> &'static Format {
        const FORMAT: Format = Format::new("says");
        &FORMAT
    }

    fn decode<'a>(&self, _: &'a [u8], _: usize) -> Result<Decoded<'a>, DecodeError> {
        Err(DecodeError::MalformedFrame)
    }

    fn encode(&self, _: &Message<'_>, _: &mut Vec<u8>) -> Result<(), EncodeError> {
        Err(EncodeError::EmptyFrame { codec: "says" })
    }

    fn layout(&self, _: &[u8], _: &Message<'_>) -> Option<FrameLayout> {
        self.0.clone()
    }
}

/// A layout of each form, for a payload of 6 bytes in a frame of 40.
fn layouts() -> Vec<FrameLayout> {
    let at = |start: usize| FrameLayout::new(start..start + 6);
    vec![
        FrameLayout::new(34..40),
        at(8),
        at(20),
        at(12).with_id(8),
        at(12).with_id(3),
        at(24).with_id(16),
        at(24).with_id_byte(23, 1),
        at(24).with_id_byte(0, 0x200),
        at(24).with_ignored(2..9),
        at(0),
    ]
}

/// Makes a template of a frame of any length, with a message of this layout.
fn learnt<'a>(layout: &FrameLayout, frame: &'a [u8]) -> Option<FrameTemplate<'a>> {
    let payload = frame.get(layout.payload())?;
    let message = Message::with_id(Kind::Request, 3, 7, payload);
    FrameTemplate::learn(&Says(Some(layout.clone())), frame, &message)
}

#[test]
fn every_form_of_layout_round_trips() {
    let bytes: Vec<u8> = (100..140).collect();
    let mut forms = layouts();
    let short = |start: usize| FrameLayout::new(start..40);
    forms.extend([0, 1, 5, 8].map(short));
    forms.extend([
        short(12).with_id(8),
        short(8).with_id(3),
        short(4).with_id(0),
    ]);
    forms.extend([short(4).with_id_byte(1, 1), short(8).with_id_byte(7, 0x200)]);
    forms.push(short(8).with_id_byte(0, 9).with_ignored(3..6));
    for layout in forms {
        let template = learnt(&layout, &bytes).unwrap();
        let payload: Vec<u8> = (0..template.message().payload.len() as u8).collect();
        let id_bytes = layout.id().len();
        for id in [0, 1, 9, 255, 256, 264, 265, 0x2FF, 0x300, u32::MAX] {
            let mut out = b"before".to_vec();
            let is_written = template.write(id, &payload, &mut out);
            let is_expressible =
                id_bytes != 1 || (layout.first_id()..layout.first_id() + 256).contains(&id);
            assert_eq!(is_written, is_expressible, "{layout:?} {id}");
            let mut frame = out.split_off(b"before".len());
            assert_eq!(out, b"before");
            if !is_written {
                assert_eq!(frame, b"");
                continue;
            }
            assert_eq!(frame.len(), bytes.len());
            let expected = Message {
                id: if id_bytes == 0 { 0 } else { id },
                payload: &payload,
                ..*template.message()
            };
            frame.extend_from_slice(b"rest, at least eight");
            let (message, behind) = template.read(&frame).unwrap();
            assert_eq!(
                (message, behind),
                (expected, &b"rest, at least eight"[..]),
                "{layout:?}"
            );
            for end in 0..bytes.len() {
                assert_eq!(template.read(&frame[..end]), None, "{layout:?} {end}");
            }
        }
        for wrong in [&payload[1..], &[&payload[..], b"x"].concat()] {
            assert!(!template.write(layout.first_id(), wrong, &mut Vec::new()));
        }
    }
}

#[test]
fn only_id_payload_and_ignored_bytes_may_differ_in_a_template() {
    let bytes: Vec<u8> = (0..40).collect();
    for layout in layouts() {
        let template = learnt(&layout, &bytes).unwrap();
        let free = [layout.payload(), layout.id(), layout.ignored()];
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0x80;
            let is_free = free.iter().any(|range| range.contains(&at));
            assert_eq!(template.read(&other).is_some(), is_free, "{layout:?} {at}");
        }
    }
}

/// With such layouts a lane would read or write out of bounds.
#[test]
fn a_layout_that_a_frame_cannot_have_is_not_believed() {
    let bytes: Vec<u8> = (0..40).collect();
    let payload = FrameLayout::new(8..40);
    #[expect(clippy::reversed_empty_ranges, reason = "what a codec may say")]
    let reversed = [
        FrameLayout::new(40..8),
        payload.clone().with_ignored(6..3),
        payload.clone().with_ignored(usize::MAX..0),
    ];
    let wrong = [
        FrameLayout::new(9..41),
        FrameLayout::new(8..39),
        FrameLayout::new(usize::MAX - 31..usize::MAX),
        payload.clone().with_id(5),
        payload.clone().with_id(usize::MAX),
        payload.clone().with_id_byte(8, 0),
        payload.clone().with_id_byte(usize::MAX, u32::MAX),
        payload.clone().with_ignored(4..9),
        payload.with_ignored(0..usize::MAX),
        // Two holes in a frame that is not short.
        FrameLayout::new(8..39).with_id(0).with_ignored(4..5),
    ];
    let message = Message::new(Kind::OneWay, 0, &bytes[8..]);
    for layout in wrong.iter().chain(&reversed) {
        let template = FrameTemplate::learn(&Says(Some(layout.clone())), &bytes, &message);
        assert!(template.is_none(), "{layout:?}");
    }
    let short = Message::new(Kind::OneWay, 0, &bytes[4..7]);
    let layout = Says(Some(FrameLayout::new(4..7)));
    assert!(FrameTemplate::learn(&layout, &bytes[..7], &short).is_none());
    assert!(FrameTemplate::learn(&Says(None), &bytes, &message).is_none());
}

#[test]
fn the_codecs_with_a_layout_are_these() {
    for name in AnyCodec::NAMES {
        let codec = AnyCodec::by_name(name).unwrap();
        let kind = match codec.format().ids {
            RequestIds::None => Kind::OneWay,
            _ => Kind::Reply,
        };
        let message = Message::with_id(kind, 0, 7, b"some payload");
        let mut frame = Vec::new();
        codec.encode(&message, &mut frame).unwrap();
        let is_written = FrameTemplate::learn(&codec, &frame, &message).is_some();
        let written = ["tw1", "srmp", "length-field", "raw", "uvrpc"];
        assert_eq!(is_written, written.contains(&name), "{name}");
        let Ok(Decoded::Frame { message, .. }) = codec.decode(&frame, 1_000) else {
            panic!("{name}: no frame");
        };
        let is_read = FrameTemplate::expect(&codec, &frame, &message).is_some();
        // A raw frame does not contain its length.
        assert_eq!(is_read, is_written && name != "raw", "{name}");
    }
}

#[test]
fn a_part_is_found_in_front_whatever_its_length() {
    let part: Vec<u8> = (1..50).collect();
    for length in 0..part.len() {
        let part = &part[..length];
        let mut input = part.to_vec();
        input.extend_from_slice(b"rest");
        assert_eq!(strip(part, &input), Some(&b"rest"[..]));
        assert_eq!(strip(part, part), Some(&b""[..]));
        for at in 0..length {
            assert_eq!(strip(part, &part[..at]), None, "{at} of {length}");
            input[at] = 0;
            assert_eq!(strip(part, &input), None, "{at} of {length}");
            input[at] = part[at];
        }
    }
}

/// A loop for one form takes no frame of another form. A wrong form only costs time, so no other test detects it.
#[test]
fn the_form_of_a_layout_is_that_of_its_template() {
    let frame = [7; 24];
    for (layout, form) in [
        (FrameLayout::new(8..24), TemplateForm::Word),
        (FrameLayout::new(12..24).with_id(8), TemplateForm::WordAndId),
        (FrameLayout::new(2..24), TemplateForm::InWord),
        (FrameLayout::new(8..24).with_id(4), TemplateForm::InWord),
        (
            FrameLayout::new(8..24).with_id_byte(3, 0),
            TemplateForm::InWord,
        ),
        (
            FrameLayout::new(8..24).with_ignored(2..4),
            TemplateForm::InWord,
        ),
        (FrameLayout::new(13..24).with_id(8), TemplateForm::Other),
        (FrameLayout::new(9..24), TemplateForm::Other),
        (FrameLayout::new(8..23), TemplateForm::Other),
    ] {
        assert_eq!(
            FrameTemplate::form(&layout, frame.len()),
            form,
            "{layout:?}"
        );
        let template = learnt(&layout, &frame).unwrap();
        let forms = [
            TemplateForm::Word,
            TemplateForm::WordAndId,
            TemplateForm::InWord,
        ];
        for other in forms.into_iter().filter(|it| *it != form) {
            // A word is also within a word.
            let is_both = (form, other) == (TemplateForm::Word, TemplateForm::InWord);
            assert_eq!(template.has_form(other), is_both, "{layout:?}: {other:?}");
        }
        assert!(template.has_form(form), "{layout:?}");
    }
}
