//! Rooms and topics over several servers.
//!
//! A server with a backplane is a *node*. Members of a room see each other and get each other's messages, whichever
//! node they are connected to; subscribers get what is published at any node. The crate `tidewire-nats` is a backplane
//! on NATS.
//!
//! # The contract of a backplane
//!
//! A backplane carries packets between nodes, and knows nothing of their content. [`Node`] does the rest for all of
//! them: sequences and gaps, presence, heartbeats, the framing for the lanes. An implementation supplies two types:
//!
//! - [`Backplane`]: [`connect`](Backplane::connect) blocks the thread that starts the server until the engine can be
//!   used, or fails. It must check what it can: the address, the credentials, the largest packet.
//! - [`Carrier`]: [`run`](Carrier::run) drives a node on a thread of its own until [`Node::turn`] returns `None`.
//!
//! The loop of `run` is: wait for a packet, an event of the engine, the waker of [`Node::set_waker`], or the time that
//! [`Node::turn`] returned; give packets to [`Node::handle_packet`] and events to [`Node::handle_connected`],
//! [`Node::handle_disconnected`], [`Node::handle_packet_limit`] and [`Node::handle_refusal`], and a request that no
//! node takes to [`Node::handle_unserved`]; then call [`Node::turn`], which hands out packets and subscriptions through
//! [`Wire`].
//!
//! These are the duties of an engine, which the suite `tidewire_testkit::backplane` checks:
//!
//! 1. A packet to a [`Subject`] reaches every other node that has subscribed to it. It may also reach its sender, who
//!    ignores it. A packet to a [`Subject::Topic`] reaches the nodes that have subscribed to a [`Subject::Pattern`]
//!    that matches.
//! 2. Packets of one node to one subject arrive in their order. They may be lost, or come twice if several patterns
//!    match.
//! 3. Nothing blocks: [`Wire::publish`] returns false for a packet that cannot go out now. The node counts its
//!    messages, and the other nodes find that they are missing.
//! 4. Subscriptions outlive a lost connection; the implementation makes them again before it calls `handle_connected`.
//! 5. Memory is bounded: packets that arrive faster than the node handles them are dropped.
//! 6. A packet of [`Wire::ask`] reaches one of the other nodes that have subscribed to the service, or none. If there
//!    is none, the asking node is told, unless the engine cannot know.
//!
//! Clocks need not agree: no packet has a time, and a node compares only times of its own.
//!
//! # Histories
//!
//! An engine may also keep histories, one for each room or topic with a [history](crate::History), and number their
//! packets. It then implements [`Carrier::open_histories`] and [`Wire::append`], [`Wire::follow`], [`Wire::replace`]
//! and [`Wire::unfollow`], with these duties:
//!
//! 7. A history gives its packets offsets without holes. Appended packets of one node keep their order. A packet with
//!    the id of an earlier one is not appended.
//! 8. New packets reach all nodes that follow the history, by [`Node::handle_appended`], also the one that appended
//!    them. They may be lost; the node finds that by their offsets, and reads the history.
//! 9. The oldest packets beyond the limits are removed. A history that is lost and made again has another epoch. Its
//!    offsets begin above those before, as far as the engine knows them; lower ones are followed, too.
//! 10. A history may lose its newest packets, as by a power cut, and then gives their offsets to others. A node that
//!     finds this
//!     replaces the history, so that all nodes begin a new epoch.

mod author;
mod heartbeats;
mod histories;
mod membership;
mod node;
mod openings;
mod peers;
mod presence;
mod requests;
mod to_engine;
mod to_lanes;
mod topics;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
pub use tidewire_proto::backplane::{NODE_BYTES_MAX, validate_node};

use crate::broker::Position;
pub use crate::broker::RoomOrTopic;
pub use histories::{HistoryMessage, HistoryState};
pub use node::Node;
pub(crate) use node::NodeParts;
pub(crate) use requests::request_number;
use tidewire_proto::setting::SettingError;

use crate::history::History;

/// An engine that carries packets between nodes. See the [module](self) for the contract; [`NodeSettings`] has an
/// example.
pub trait Backplane: Send + Sync {
    /// Connects to the engine. It blocks until the engine can be used.
    ///
    /// # Errors
    /// [`BackplaneError`] if the engine cannot be reached, or cannot serve.
    fn connect(&self) -> Result<Box<dyn Carrier>, BackplaneError>;
}

/// A connected engine. See the [module](self) for the contract, and [`NodeSettings`] for the node that it drives.
pub trait Carrier: Send {
    /// The largest packet that the engine carries, in bytes.
    fn packet_bytes_max(&self) -> usize;

    /// Prepares the engine for histories. A server whose [`NodeSettings`] ask for them calls it before it starts.
    ///
    /// # Errors
    /// [`BackplaneError`] if the engine keeps none. This is the default.
    fn open_histories(&mut self) -> Result<(), BackplaneError> {
        Err(BackplaneError::NoHistory)
    }

    /// Drives the node until [`Node::turn`] returns `None`. It runs on a thread of its own.
    fn run(self: Box<Self>, node: Node);
}

/// The addressees of a packet between nodes, each with its [`NodeSettings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject<'a> {
    /// All nodes.
    Nodes,
    /// The node with this id.
    Node(&'a str),
    /// The nodes with members in the room of this name.
    Room(&'a str),
    /// The nodes with subscribers of this topic. Nodes only publish to it.
    Topic(&'a str),
    /// The topics that a pattern matches. Nodes only subscribe to it.
    Pattern(&'a str),
    /// The requests to a service. Nodes only subscribe to it; [`Wire::ask`] sends.
    Service(&'a str),
}

/// The way of a node to its engine. See the [module](self) for the contract. [`NodeSettings`] has an example of its
/// node.
pub trait Wire {
    /// Sends a packet. Returns false if it cannot go out now; it is then lost.
    fn publish(&mut self, to: Subject<'_>, packet: &[u8]) -> bool;

    /// Sends a request to one of the other nodes that have subscribed to the service. Returns false if it cannot go out
    /// now. If no node has subscribed, the carrier calls [`Node::handle_unserved`] with the number of the request.
    fn ask(&mut self, service: &str, request: u64, packet: &[u8]) -> bool;

    /// Begins to receive the packets to a subject.
    fn subscribe(&mut self, subject: Subject<'_>);

    /// Ends a subscription.
    fn unsubscribe(&mut self, subject: Subject<'_>);

    /// Appends a packet to a history. The id is different for each packet of the cluster. A packet that is appended
    /// again, because its fate was unknown, must not come twice.
    /// Returns false if the packet cannot go out now; the node tries it again.
    fn append(&mut self, name: &RoomOrTopic, id: &str, packet: &[u8]) -> bool;

    /// Makes the history of a room or topic with these limits, unless there is one, and begins to receive its new
    /// packets. Then reads its packets from this offset on, at most the newest `messages_max`, and tells them by
    /// [`Node::handle_history`]. A later call reads again. From `u64::MAX` on there are none, and only the state is
    /// told. Any other offset above 0 is that of the newest packet that the node has, which shows it whether the
    /// history is the one that it knows. A history that ends below is not, and is read from its beginning.
    fn follow(&mut self, name: &RoomOrTopic, limits: &History, from: u64);

    /// Removes a history that has lost its newest packets, and makes it again with offsets above those that the node
    /// has. Then reads it as [`follow`](Self::follow) does, from this position. A history with another epoch than this
    /// is left as it is: another node has made it.
    fn replace(&mut self, name: &RoomOrTopic, limits: &History, lost: Position);

    /// Ends to receive the packets of a history. The history stays.
    fn unfollow(&mut self, name: &RoomOrTopic);
}

/// The settings of a node.
///
/// ```
/// use tidewire::backplane::NodeSettings;
///
/// let mut settings = NodeSettings::new("eu-1")?;
/// settings.refuses_when_cut_off = true;
/// assert!(NodeSettings::new("eu 1").is_err());
/// # Ok::<(), tidewire::SettingError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeSettings {
    /// The id of the node. Every node of a cluster has another one.
    pub id: String,
    /// The interval of heartbeats. Default 1 s.
    pub heartbeat: Duration,
    /// The silence after which another node is dead, and its members leave. Default 5 s. At least two heartbeats.
    pub silence_max: Duration,
    /// How long the node waits at its start for another one with its id to object. Default 300 ms.
    pub claim: Duration,
    /// Whether messages that are published while the node is cut off from the others are refused. Otherwise they reach
    /// the members and subscribers of this node, and the others are told later how many they missed. Default: no.
    pub refuses_when_cut_off: bool,
    /// The names of the methods that other nodes may call here. A request of another node to one of them comes to the
    /// [`Service`](crate::Service) like one of a client, in a call without a session. Each goes to one of the nodes
    /// that have the method. The asking node checks what its client may do. See
    /// [`Upstream::nodes`](crate::upstream::Upstream::nodes). Default: none.
    pub services: Vec<String>,
    /// Whether rooms and topics keep histories, which the engine numbers and keeps. Default: no.
    pub keeps_histories: bool,
}

impl NodeSettings {
    /// The default settings for a node with this id.
    ///
    /// # Errors
    /// [`SettingError`] if the id is empty, too long, or has characters other than letters, digits, `-` and `_`.
    pub fn new(id: &str) -> Result<Self, SettingError> {
        validate_node(id)?;
        Ok(Self {
            id: id.to_owned(),
            heartbeat: Duration::from_secs(1),
            silence_max: Duration::from_secs(5),
            claim: Duration::from_millis(300),
            refuses_when_cut_off: false,
            services: Vec::new(),
            keeps_histories: false,
        })
    }
}

/// A node with these [`NodeSettings`] cannot start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BackplaneError {
    /// The engine cannot be reached, or refuses the node. The text says why, and what to do.
    #[error("{0}")]
    Engine(Box<dyn std::error::Error + Send + Sync>),
    /// Another node with the id lives.
    #[error(
        "another node has the id {id}; give each node of the cluster another id, or wait until the other one has ended"
    )]
    DuplicateNode {
        /// The id.
        id: String,
    },
    /// Histories are wanted, and the engine keeps none.
    #[error("the backplane keeps no histories; use one that does, or leave histories out")]
    NoHistory,
    /// The engine refuses what the node needs.
    #[error(
        "the backplane refuses the node: {text} (let it publish and subscribe to all subjects of its prefix)"
    )]
    Refused {
        /// The text of the engine.
        text: String,
    },
    /// The engine carries only packets that are too small.
    #[error(
        "the backplane carries at most {bytes} bytes in a packet, and a node needs {PACKET_BYTES_MIN}; raise its limit"
    )]
    PacketLimit {
        /// The limit of the engine.
        bytes: usize,
    },
    /// The interval of heartbeats is zero, or too long for the silence that ends a node.
    #[error(
        "a node is dead after {silence_max:?} of silence, so its heartbeat of {heartbeat:?} is too long; use at most \
        half"
    )]
    Heartbeat {
        /// The interval of heartbeats.
        heartbeat: Duration,
        /// The silence.
        silence_max: Duration,
    },
    /// The thread of the node could not start, or has ended.
    #[error("the thread of the node has ended; the log says why")]
    Thread,
}

/// The settings of a server's backplane.
#[derive(Clone)]
pub(crate) struct BackplaneChoice {
    pub(crate) backplane: Arc<dyn Backplane>,
    pub(crate) settings: NodeSettings,
}

impl fmt::Debug for BackplaneChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(formatter)
    }
}

/// A node at one moment; see [`NodeSettings`]. Given by
/// [`Inspector::node`](crate::metrics::Inspector::node).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeFigures {
    /// Its id.
    pub id: String,
    /// Whether it is cut off from the other nodes.
    pub is_cut_off: bool,
    /// The other nodes that live.
    pub peers: Vec<PeerFigures>,
}

/// Another node, as this one sees it; see [`NodeSettings`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerFigures {
    /// Its id.
    pub id: String,
    /// The time from a question of this node to the answer of that one, when it was last asked.
    pub lag: Option<Duration>,
    /// Messages of that node that are missing.
    pub lost: u64,
    /// Messages of that node that came.
    pub received: u64,
}

/// The smallest limit of packets with which a node starts, and is not cut off.
pub(crate) const PACKET_BYTES_MIN: usize = 4 * 1024;
