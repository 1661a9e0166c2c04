//! Header prediction: frames that differ from the last one only in id and payload are served without decoding their
//! headers.

use tidewire_proto::codec::{Codec, FrameTemplate, TemplateForm};
use tidewire_proto::message::Message;

use super::read::serve;
use crate::service::{Context, Service};

/// The form of the template for the frames after this one, if they are predicted to have its header: the last two
/// frames of the lane had equal headers. Where lengths vary, a wrong prediction costs more than a right one saves.
#[inline(always)]
pub(super) fn expected_form<C: Codec + ?Sized>(
    cx: &mut Context<'_>,
    codec: &C,
    (frame, message): (&[u8], &Message<'_>),
    rest: &[u8],
) -> Option<TemplateForm> {
    let header = header_key(message, frame.len());
    match cx.core.replies.repeats_header(header) && !rest.is_empty() {
        true => form_of(codec, frame, message),
        false => None,
    }
}

/// The form of the template that reads frames like this one. `None` if the codec knows no layout for it.
#[inline(always)]
pub(super) fn form_of<C: Codec + ?Sized>(
    codec: &C,
    frame: &[u8],
    message: &Message<'_>,
) -> Option<TemplateForm> {
    let layout = codec.layout(frame, message)?;
    // A loop of its own has the name, so that the loops for messages without a name stay short.
    Some(match message.name {
        "" => FrameTemplate::form(&layout, frame.len()),
        _ => TemplateForm::Other,
    })
}

/// Serves the frames at the front of `rest` that differ from `predicted` only in id and payload. Returns the input
/// after them and their number. The template of `predicted` has this [form](form_of).
#[inline(always)]
pub(super) fn predict<'a, S: Service, C: Codec + ?Sized, const IS_DATAGRAM: bool>(
    cx: &mut Context<'_>,
    service: &mut S,
    codec: &C,
    slot: usize,
    (predicted, form): ((&'a [u8], &Message<'a>), TemplateForm),
    rest: &'a [u8],
) -> (&'a [u8], u64) {
    let serve = match form {
        TemplateForm::Word => serve_predicted::<S, C, Word, IS_DATAGRAM>,
        TemplateForm::WordAndId => serve_predicted::<S, C, WordAndId, IS_DATAGRAM>,
        TemplateForm::InWord => serve_predicted::<S, C, InWord, IS_DATAGRAM>,
        TemplateForm::Other => serve_predicted::<S, C, Other, IS_DATAGRAM>,
    };
    let behind = serve(cx, service, codec, slot, predicted, rest);
    let count = (rest.len() - behind.len()) / predicted.0.len();
    (behind, count as u64)
}

/// A key of a frame's length, kind, channel and name. All frames that one template reads have the same key.
#[inline(always)]
fn header_key(message: &Message<'_>, frame_bytes: usize) -> u64 {
    let head =
        frame_bytes as u64 ^ u64::from(message.kind as u8) << 40 ^ u64::from(message.channel) << 48;
    match message.name.as_bytes() {
        [] => head,
        name => head ^ checksum(name),
    }
}

/// A checksum that differs for most names. A collision costs one comparison.
fn checksum(name: &[u8]) -> u64 {
    let end = name.len().saturating_sub(size_of::<u64>());
    let fold = |sum: u64, byte: &u8| sum.rotate_left(8) ^ u64::from(*byte);
    let last = name.iter().skip(end).fold(0, fold);
    last.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Header prediction: serves the frames at the front of `input` whose header is that of `frame`, until the session
/// stops. Returns the input after them. `frame` was served, so the kind and the length of the others need no check.
///
/// It is a function of its own, so that its loop has all registers, and the compiler knows the common parts of the
/// codec's templates. Each form of template has a copy, because a loop that asks for the form takes 25 instructions for
/// a message in place of 15.
#[inline(never)]
fn serve_predicted<'a, S, C, F, const IS_DATAGRAM: bool>(
    cx: &mut Context<'_>,
    service: &mut S,
    codec: &C,
    slot: usize,
    (frame, message): (&'a [u8], &Message<'a>),
    input: &'a [u8],
) -> &'a [u8]
where
    S: Service,
    C: Codec + ?Sized,
    F: Form,
{
    let template = FrameTemplate::expect(codec, frame, message);
    let Some(template) = template.filter(|it| it.has_form(F::FORM)) else {
        return input;
    };
    let mut rest = input;
    loop {
        let Some((message, behind)) = template.read(rest) else {
            return rest;
        };
        rest = behind;
        serve::<S, C, IS_DATAGRAM>(cx, service, codec, slot, message, frame.len());
        if cx.call.is_stopped() {
            return rest;
        }
    }
}

/// The form of the templates that a copy of the loop is made for.
trait Form {
    const FORM: TemplateForm;
}

struct Word;
struct WordAndId;
struct InWord;
struct Other;

impl Form for Word {
    const FORM: TemplateForm = TemplateForm::Word;
}

impl Form for WordAndId {
    const FORM: TemplateForm = TemplateForm::WordAndId;
}

impl Form for InWord {
    const FORM: TemplateForm = TemplateForm::InWord;
}

impl Form for Other {
    const FORM: TemplateForm = TemplateForm::Other;
}
