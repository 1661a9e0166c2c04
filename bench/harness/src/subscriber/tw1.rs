//! TW1, the native protocol: as a client of Tidewire with its handshake, or as the bare publisher writes it, without.

use tidewire::{Kind, Message};
use tidewire_proto::body::{ErrorBody, SubscribeBody};
use tidewire_proto::codec::{Codec, Decoded};

use super::dialect::{Dialect, DialectError, FRAME_BYTES_MAX, Next, Role, TOPIC, whole};
use crate::probes::echo::push_hello;

/// Says hello, subscribes, and answers pings.
#[derive(Debug, Default)]
pub(super) struct Tw1 {
    is_welcome: bool,
    is_subscribed: bool,
}

/// The same frames from a server that asks for nothing: being connected is being subscribed.
#[derive(Debug, Default)]
pub(super) struct BareTw1;

impl Dialect for Tw1 {
    fn greet(&mut self, _: Role, out: &mut Vec<u8>) {
        push_hello("bench", out);
    }

    #[inline]
    fn next<'a>(&mut self, bytes: &'a [u8], out: &mut Vec<u8>) -> Result<Next<'a>, DialectError> {
        let (message, consumed) = whole!(decode(bytes)?);
        if message.kind == Kind::Deliver {
            return Ok(Next::Message(message.payload, consumed));
        }
        self.handle_control(&message, out)?;
        Ok(Next::Other(consumed))
    }

    fn is_ready(&self) -> bool {
        self.is_subscribed
    }
}

impl Tw1 {
    #[cold]
    fn handle_control(
        &mut self,
        message: &Message<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), DialectError> {
        match message.kind {
            Kind::Welcome if !self.is_welcome => {
                self.is_welcome = true;
                let (policy, pattern, mut body) = (None, TOPIC, Vec::new());
                SubscribeBody {
                    policy,
                    pattern,
                    group: None,
                }
                .encode(&mut body);
                push(
                    &Message::with_id(Kind::Subscribe, 0, SUBSCRIBE_ID, &body),
                    out,
                );
            }
            Kind::Reply if message.id == SUBSCRIBE_ID => self.is_subscribed = true,
            Kind::Ping => push(&Message::new(Kind::Pong, 0, message.payload), out),
            Kind::Error => {
                let body = ErrorBody::decode(message.payload);
                let text = body.map_or("an error without words", |body| body.text);
                return Err(DialectError::Refused(text.to_owned()));
            }
            Kind::GoAway => return Err(DialectError::Refused("it goes away".to_owned())),
            // The numbers show dropped messages.
            Kind::Gap => {}
            _ => return Err(DialectError::Malformed("a frame that no subscriber gets")),
        }
        Ok(())
    }
}

impl Dialect for BareTw1 {
    fn greet(&mut self, _: Role, _: &mut Vec<u8>) {}

    #[inline]
    fn next<'a>(&mut self, bytes: &'a [u8], _: &mut Vec<u8>) -> Result<Next<'a>, DialectError> {
        let (message, consumed) = whole!(decode(bytes)?);
        match message.kind {
            Kind::Deliver => Ok(Next::Message(message.payload, consumed)),
            _ => Err(DialectError::Malformed("a frame that is no delivery")),
        }
    }

    fn is_ready(&self) -> bool {
        true
    }
}

#[inline]
fn decode(bytes: &[u8]) -> Result<Option<(Message<'_>, usize)>, DialectError> {
    match tidewire_proto::codec::Tw1.decode(bytes, FRAME_BYTES_MAX) {
        Ok(Decoded::Frame { message, consumed }) => Ok(Some((message, consumed))),
        Ok(Decoded::Incomplete { .. }) => Ok(None),
        Err(_) => Err(DialectError::Malformed("a broken frame of tw1")),
    }
}

fn push(message: &Message<'_>, out: &mut Vec<u8>) {
    // A client sends frames here that are far below every limit.
    let _ = tidewire_proto::codec::Tw1.encode(message, out);
}

const SUBSCRIBE_ID: u32 = 1;

#[cfg(test)]
mod tests {
    use tidewire_proto::handshake::{PROTOCOL_VERSION, Welcome};
    use tidewire_proto::limits::FRAME_BYTES_MAX as HELLO_FRAME_BYTES_MAX;

    use super::super::dialect::tests::{error, hear, survives_anything};
    use super::*;

    fn conversation() -> Vec<u8> {
        let mut input = Vec::new();
        let welcome = Welcome {
            version: PROTOCOL_VERSION,
            features: 0,
            frame_bytes_max: HELLO_FRAME_BYTES_MAX as u32,
            heartbeat_ms: 0,
            session: 1,
            agent: "test",
            expires_in_ms: 0,
        };
        welcome.encode_frame(&mut input).unwrap();
        push(
            &Message::with_id(Kind::Reply, 7, SUBSCRIBE_ID, &[]),
            &mut input,
        );
        push(&Message::new(Kind::Ping, 0, b"12345678"), &mut input);
        let delivery = Message::with_id(Kind::Deliver, 7, 0, b"news").with_name(TOPIC);
        push(&delivery, &mut input);
        input
    }

    #[test]
    fn it_subscribes_when_it_is_welcome_and_answers_pings() {
        let (heard, out, ready) = hear::<Tw1>(&conversation());
        assert_eq!(heard, [b"news"]);
        assert!(ready);
        let mut pong = Vec::new();
        push(&Message::new(Kind::Pong, 0, b"12345678"), &mut pong);
        assert!(out.ends_with(&pong));
    }

    #[test]
    fn the_bare_publisher_is_heard_without_a_word() {
        let mut input = Vec::new();
        push(&Message::with_id(Kind::Deliver, 1, 0, b"news"), &mut input);
        let (heard, out, ready) = hear::<BareTw1>(&input);
        assert_eq!(heard, [b"news"]);
        assert!(out.is_empty() && ready);
        assert!(matches!(
            error::<BareTw1>(&conversation()),
            DialectError::Malformed(_)
        ));
    }

    #[test]
    fn refusals_are_told_and_nothing_panics() {
        let mut input = Vec::new();
        let mut body = Vec::new();
        ErrorBody {
            code: tidewire_proto::body::ErrorCode::LimitReached,
            text: "full",
        }
        .encode(&mut body);
        push(&Message::with_id(Kind::Error, 0, 0, &body), &mut input);
        assert_eq!(
            error::<Tw1>(&input),
            DialectError::Refused("full".to_owned())
        );
        survives_anything::<Tw1>(&conversation());
        survives_anything::<BareTw1>(&conversation());
    }
}
