//! What happens at a client without being asked for: messages, opening, closing, reconnecting.

use std::time::Duration;

use tidewire_proto::message::{Kind, Message};

use super::event_queue::Queued;
use crate::session::CloseReason;

/// Something that happened at a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The connection is open. After a reconnect, rooms must be joined again.
    Opened {
        /// What the server says of itself, if its codec can tell.
        agent: String,
    },
    /// A message that answers no request.
    Message(OwnedMessage),
    /// The connection ended.
    Closed {
        /// Why.
        reason: CloseReason,
    },
    /// The next attempt to connect follows after a pause.
    Reconnecting {
        /// How long the pause is.
        delay: Duration,
        /// What went wrong.
        cause: String,
    },
    /// The application did not take its events; this many were dropped here.
    Lost {
        /// How many.
        count: u64,
    },
    /// The client was shut down; nothing follows.
    Ended,
}

/// A message that owns its name and its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedMessage {
    /// What the frame is for.
    pub kind: Kind,
    /// Bits whose meaning depends on the kind.
    pub flags: u8,
    /// Alias of a method, topic or room.
    pub channel: u16,
    /// Request id or origin.
    pub id: u32,
    /// Name of the method that it is for, or its topic; empty if the channel says it.
    pub name: String,
    /// The payload.
    pub payload: Vec<u8>,
}

impl From<Message<'_>> for OwnedMessage {
    fn from(message: Message<'_>) -> Self {
        Self {
            kind: message.kind,
            flags: message.flags,
            channel: message.channel,
            id: message.id,
            name: message.name.to_owned(),
            payload: message.payload.to_vec(),
        }
    }
}

impl Queued for Event {
    fn lost(count: u64) -> Self {
        Self::Lost { count }
    }

    fn ended() -> Self {
        Self::Ended
    }

    fn missing(&self) -> u64 {
        match self {
            Self::Lost { count } => *count,
            _ => 0,
        }
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Self::Opened { agent: text } | Self::Reconnecting { cause: text, .. } => text.len(),
            Self::Message(message) => message.name.len() + message.payload.len(),
            Self::Closed { .. } | Self::Lost { .. } | Self::Ended => 0,
        }
    }
}
