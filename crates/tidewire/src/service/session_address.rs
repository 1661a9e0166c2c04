//! Sessions of other nodes: their addresses, and sending to them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tidewire_proto::backplane::{Directed as Packet, NodeLife, encode_directed, validate_node};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::Message;
use tidewire_proto::text::hexadecimal;

use super::Sessions;
use crate::broker::Directed;
use crate::session::{SendError, SessionId};
use tidewire_proto::setting::SettingError;

/// A session of any node of a cluster: its node, the run of that node, and its id there. As text it can be kept in a
/// database, and any node sends to it. It is never the address of another session, even after its node has started
/// again.
///
/// ```
/// use tidewire::backplane::NodeSettings;
/// use tidewire::{Client, Context, Event, Kind, Message, Server, SessionAddress};
/// # let engine = tidewire_testkit::backplane::InprocEngine::default();
/// # use tidewire_testkit::backplane::Engine;
///
/// let node = |id: &str| {
///     let settings = NodeSettings::new(id).expect("a valid id");
///     Server::builder().listen("tcp://127.0.0.1:0")?.backplane(engine.backplane(), settings).start_one(
///         |cx: &mut Context<'_>, _: Message<'_>| {
///             let address = cx.sessions().address(cx.id()).expect("a node").to_string();
///             cx.reply(address.as_bytes())
///         }
///     )
/// };
/// let (one, two) = (node("one")?, node("two")?);
/// let client = Client::connect(&one.to_string()).wait()?;
/// let reply = client.request(b"who am I?").wait()?;
/// let address: SessionAddress = std::str::from_utf8(reply.payload())?.parse()?;
/// assert_eq!(address.node(), "one");
///
/// # let peers = || two.inspector().node().expect("a node").peers;
/// # tidewire_testkit::wait_until("they meet", || (!peers().is_empty()).then_some(()));
/// two.sessions().send_to_address(&address, &Message::new(Kind::OneWay, 0, b"news"))?;
/// let news = loop {
///     if let Event::Message(message) = client.next_event().wait() { break message };
/// };
/// assert_eq!(news.payload, b"news");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionAddress {
    life: NodeLife<Arc<str>>,
    id: SessionId,
}

impl SessionAddress {
    /// The id of its node.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.life.node
    }

    /// Its id at its node.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.id
    }
}

impl fmt::Display for SessionAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}.{:x}.{}",
            self.life.node, self.life.epoch, self.id
        )
    }
}

impl FromStr for SessionAddress {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let mut parts = text.split('.');
        let node = parts.next().filter(|node| validate_node(node).is_ok());
        let mut number = || {
            let digits = hexadecimal(parts.next()?)?;
            u64::try_from(digits).ok()
        };
        let (epoch, id) = (number(), number());
        match (node, epoch, id, parts.next()) {
            (Some(node), Some(epoch), Some(id), None) => Ok(Self {
                life: NodeLife::new(node, epoch),
                id: SessionId::from_number(id),
            }),
            _ => Err(SettingError::new(
                "session address",
                text,
                "not the address of a session (it is written as NODE.RUN.SESSION, both numbers in hexadecimal digits)",
            )),
        }
    }
}

impl Sessions {
    /// Returns the address by which other nodes send to a session of this server. `None` without a backplane. The
    /// session need not be open.
    #[must_use]
    pub fn address(&self, id: SessionId) -> Option<SessionAddress> {
        let link = self.link().filter(|_| id != SessionId::NONE)?;
        Some(SessionAddress {
            life: link.life().clone(),
            id,
        })
    }

    /// Sends a message to a session of any node. To a session of this server it is [`Sessions::send_to`]. For a session
    /// of another node, `Ok` means that this node takes the message there: messages of one thread to one session arrive
    /// in their order, and are lost if the session, its node or the backplane is gone. Use
    /// [`Upstream::nodes`](crate::upstream::Upstream::nodes) where an answer is needed. `backplane_sent` and
    /// `backplane_unsent` count these messages here, `backplane_received` and `backplane_dropped` there.
    ///
    /// # Errors
    /// Those of [`Sessions::send_to`] for a session of this server. For other nodes: [`SendError::NotOpen`] without a
    /// backplane, [`SendError::QueueFull`] if the node does not keep up, and [`SendError::Encode`] if the message fits
    /// no packet.
    pub fn send_to_address(
        &self,
        to: &SessionAddress,
        message: &Message<'_>,
    ) -> Result<(), SendError> {
        let link = self.link().ok_or(SendError::NotOpen)?;
        if link.life().node == to.life.node {
            return match *link.life() == to.life {
                true => self.send_to(to.id, message),
                false => Err(SendError::NotOpen),
            };
        }
        let (bytes, limit) = (message.payload.len(), link.payload_bytes_max());
        if bytes > limit {
            let (bytes, limit) = (bytes as u64, limit as u64);
            return Err(EncodeError::PayloadTooLarge { bytes, limit }.into());
        }
        let (bytes, limit) = (message.name.len(), usize::from(u8::MAX));
        if bytes > limit {
            return Err(EncodeError::TextTooLong { bytes, limit }.into());
        }
        let packet = Packet {
            epoch: to.life.epoch,
            session: to.id.number(),
            message: *message,
        };
        let mut bytes = Vec::with_capacity(message.payload.len() + message.name.len() + 96);
        encode_directed(link.life().borrow(), &packet, &mut bytes);
        let directed = Directed::Message {
            to: to.life.clone(),
            packet: bytes,
        };
        link.direct(directed).map_err(|_| SendError::QueueFull)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        let address = SessionAddress {
            life: NodeLife::new("eu-1", u64::MAX),
            id: SessionId::new(3, 9, 5),
        };
        assert_eq!(address.to_string().parse(), Ok(address));
        for text in [
            "",
            "eu-1",
            "eu-1.1",
            "eu-1.1.2.3",
            "eu 1.1.2",
            "eu-1.+1.2",
            "eu-1..2",
            ".1.2",
        ] {
            let parsed: Result<SessionAddress, _> = text.parse();
            assert_eq!(parsed.unwrap_err().value(), text);
        }
    }
}
