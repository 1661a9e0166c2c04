//! Tidewire's publishers and subscribers: sessions of one lane.

use super::super::numbers::Place;
use tidewire::{
    CloseReason, ConnectError, Context, Endpoint, HandlerResult, Kind, Message, Moment, Server,
    Service, SessionId,
};
use tidewire_io::clock::now_ns;
use tidewire_proto::body::SubscribeBody;

use super::super::course::Part;
use super::LOOK_EVERY_NS;
use super::flow::{Deliveries, Flow};
use crate::contract::Work;
use crate::plan::RoleError;
use crate::stage::OrFailed;
use crate::subscriber::TOPIC;

/// All sessions. Their tags count the subscribers, then the publishers.
struct Exchange {
    endpoint: Endpoint,
    part: Part<Deliveries>,
    subscribers: usize,
    publishers: Vec<SessionId>,
    /// The alias of the topic in deliveries to each subscriber; 0 until the server has told it.
    aliases: Vec<u16>,
    /// Subscriptions and connections that are still to come about.
    awaited: usize,
    connects: bool,
    /// Nothing when it is over.
    flow: Option<Flow>,
    payload: Vec<u8>,
}

pub(super) fn start(
    endpoint: &Endpoint,
    work: &Work,
    part: &Part<Deliveries>,
) -> Result<Server, RoleError> {
    super::super::spinning(Server::builder(), work)
        .start(|_| Exchange {
            endpoint: endpoint.clone(),
            part: part.clone(),
            subscribers: work.subscribers,
            publishers: vec![SessionId::NONE; work.publishers],
            aliases: vec![0; work.subscribers],
            awaited: work.subscribers + work.publishers,
            connects: true,
            flow: Some(Flow::new(work)),
            payload: Vec::new(),
        })
        .or_failed("start the clients")
}

impl Exchange {
    /// A session is ready: the last one is the beginning.
    fn note_ready(&mut self) {
        self.awaited -= 1;
        if self.awaited == 0 {
            self.part.connected();
        }
    }

    /// Lets every publisher send what it may.
    fn publish(&mut self, cx: &mut Context<'_>, now_ns: u64) {
        let Some(flow) = &mut self.flow else {
            return;
        };
        for (publisher, &session) in self.publishers.iter().enumerate() {
            let room = flow.room(publisher);
            if room == 0 || cx.is_full(session) {
                continue;
            }
            let payload = &mut self.payload;
            let sent = cx.with_sender(session, |publisher_session| {
                for _ in 0..room {
                    payload.clear();
                    flow.append(publisher, now_ns, payload);
                    let message = Message::new(Kind::Publish, 0, payload).with_name(TOPIC);
                    publisher_session.send(&message)?;
                }
                Ok(())
            });
            if let Err(error) = sent.and_then(|sent| sent) {
                return self.part.fail_by(&error);
            }
        }
    }
}

impl Service for Exchange {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        let index = Place::of(cx).unwrap_or_default();
        match index.checked_sub(self.subscribers) {
            Some(publisher) => {
                self.publishers[publisher] = cx.id();
                self.note_ready();
            }
            None => {
                let (policy, pattern, mut body) = (None, TOPIC, Vec::new());
                SubscribeBody {
                    policy,
                    pattern,
                    group: None,
                }
                .encode(&mut body);
                let message = Message::with_id(Kind::Subscribe, 0, 1, &body);
                if let Err(error) = cx.send(message) {
                    self.part.fail_by(&error);
                }
            }
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        match message.kind {
            Kind::Deliver => {
                if let Some(flow) = &mut self.flow {
                    let subscriber = Place::of(cx).unwrap_or_default();
                    let alias = self.aliases.get(subscriber).copied();
                    let payload = published(&message, alias.unwrap_or_default());
                    flow.take(subscriber, payload, cx.now().as_ns(), &self.part);
                }
            }
            Kind::Reply => {
                if let Some(alias) = self.aliases.get_mut(Place::of(cx).unwrap_or_default()) {
                    *alias = message.channel;
                }
                self.note_ready();
            }
            // The numbers show dropped messages.
            Kind::Gap => {}
            kind => self.part.fail(format!("the server answers {kind:?}")),
        }
        Ok(())
    }

    fn on_close(&mut self, _: &mut Context<'_>, reason: CloseReason) {
        if self.flow.is_some() {
            self.part.fail(format!("a session ended: {reason}"));
        }
    }

    fn on_connect_failed(&mut self, _: &mut Context<'_>, error: ConnectError) {
        self.part.fail_by(&error);
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        if std::mem::take(&mut self.connects) {
            let sessions = self.subscribers + self.publishers.len();
            self.part.connect(cx, &self.endpoint, sessions);
        }
        let now_ns = now_ns();
        let flow = self.flow.as_mut()?;
        if self.awaited == 0 {
            let is_complete = flow.expire(now_ns);
            if !self.part.is_over(now_ns) {
                self.publish(cx, now_ns);
            } else if is_complete && let Some(flow) = self.flow.take() {
                self.part.done(flow.into_deliveries());
                return None;
            }
        }
        Some(Moment::from_ns(now_ns + LOOK_EVERY_NS))
    }
}

/// The payload of a delivery if its head is that of a publication of the topic; otherwise nothing, which is never
/// right. The bare subscriber compares the same bytes before they are decoded. The topic has no wildcard, so its alias
/// identifies it.
fn published<'m>(message: &Message<'m>, alias: u16) -> &'m [u8] {
    let Message {
        kind,
        flags,
        channel,
        id,
        name,
        payload,
    } = *message;
    if (kind, flags, channel, id, name.is_empty()) == (Kind::Deliver, 0, alias, 0, true) {
        payload
    } else {
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_with_another_head_is_not_what_was_published() {
        let right = Message::with_id(Kind::Deliver, 3, 0, b"news");
        assert_eq!(published(&right, 3), b"news");
        let wrong = [
            Message {
                channel: 4,
                ..right
            },
            Message { flags: 1, ..right },
            Message { id: 9, ..right },
            right.with_name("other"),
        ];
        for message in wrong {
            assert_eq!(published(&message, 3), b"", "{message:?}");
        }
        assert_eq!(published(&right, 0), b"", "nothing is subscribed to yet");
    }
}
