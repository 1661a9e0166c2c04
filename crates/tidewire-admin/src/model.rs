//! The answers of the API. `schema.json` describes them, and a test compares both.

use std::collections::BTreeMap;

use serde::Serialize;
use tidewire::backplane::NodeFigures;
use tidewire::metrics::{Metrics, RoomFigures, SessionFigures};
use tidewire::{Moment, TransportKind};

/// The state of a server at one moment, with rates since the previous moment.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Overview {
    /// Milliseconds since 1970.
    pub(crate) at_ms: u64,
    pub(crate) version: &'static str,
    pub(crate) uptime_seconds: f64,
    /// Whether new clients are wanted, and every lane turns.
    pub(crate) ready: bool,
    /// The time of the rates. 0 in the first overview, which has no rates.
    pub(crate) interval_seconds: f64,
    pub(crate) rates: Rates,
    pub(crate) sessions: SessionCounts,
    pub(crate) turns: Turns,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) memory: Memory,
    /// Frames of rooms and topics that are on their way.
    pub(crate) in_flight: i64,
    /// Frames of rooms and topics that subscribers did not get, by reason.
    pub(crate) dropped: BTreeMap<&'static str, u64>,
    pub(crate) datagrams_dropped: BTreeMap<&'static str, u64>,
    pub(crate) closed: BTreeMap<&'static str, u64>,
    pub(crate) identity: Identity,
    pub(crate) certificate: Option<Certificate>,
    /// The server as a node of its cluster. `null` without a backplane.
    pub(crate) node: Option<Node>,
    pub(crate) tops: Tops,
    /// Every other counter.
    pub(crate) counters: BTreeMap<&'static str, u64>,
}

/// Events a second.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Rates {
    pub(crate) frames_in: f64,
    pub(crate) bytes_in: f64,
    pub(crate) bytes_out: f64,
    pub(crate) chat_messages: f64,
    pub(crate) published: f64,
    /// Frames of rooms and topics, once for each subscriber.
    pub(crate) delivered: f64,
    pub(crate) dropped: f64,
    pub(crate) opened: f64,
    pub(crate) closed: f64,
    pub(crate) system_calls: f64,
    /// Subscribers that a message had, on average. `null` if there was no message.
    pub(crate) fan_out: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct SessionCounts {
    pub(crate) open: u64,
    pub(crate) opened: u64,
    pub(crate) refused: u64,
}

/// The time that lanes take to answer: the time of a turn and of waking the lane. Milliseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Turns {
    /// The slowest lane, now.
    pub(crate) last_ms: Option<f64>,
    /// Of the answers of the last minute.
    pub(crate) p50_ms: Option<f64>,
    pub(crate) max_ms: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Lane {
    pub(crate) lane: usize,
    /// Whether it answered in time. If not, the figures that only the lane knows are missing.
    pub(crate) turns: bool,
    pub(crate) answer_ms: Option<f64>,
    /// The share of a core that its thread used, from 0 to 1.
    pub(crate) load: Option<f64>,
    pub(crate) sessions: Option<usize>,
    pub(crate) memory_bytes: Option<usize>,
    pub(crate) frames_in_rate: f64,
    pub(crate) delivered_rate: f64,
}

/// Bytes that the memory limit counts, by kind. Kinds are summed over the lanes that answered.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Memory {
    pub(crate) bytes: u64,
    pub(crate) bytes_max: u64,
    pub(crate) pressure_changes: u64,
    /// The fixed cost of sessions.
    pub(crate) sessions: usize,
    /// Output, partial frames and queued answers of sessions.
    pub(crate) kept: usize,
    /// Spare buffers, and messages between threads.
    pub(crate) common: usize,
    /// Rooms, topics and their logs.
    pub(crate) rooms: usize,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Identity {
    pub(crate) authenticated: u64,
    pub(crate) auth_refused: u64,
    pub(crate) forbidden: u64,
    pub(crate) auth_reloads: u64,
    pub(crate) auth_reloads_refused: u64,
    pub(crate) handshakes_refused: u64,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Certificate {
    /// Milliseconds since 1970.
    pub(crate) expires_ms: u64,
    pub(crate) days_left: f64,
}

/// A node, and its view of the others.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) cut_off: bool,
    pub(crate) reconnects: u64,
    /// Messages that went to other nodes, and messages that could not.
    pub(crate) sent: u64,
    pub(crate) unsent: u64,
    /// Messages of other nodes that came, and missing messages.
    pub(crate) received: u64,
    pub(crate) lost: u64,
    /// Requests to services of other nodes, and those without an answer.
    pub(crate) requests: u64,
    pub(crate) requests_failed: u64,
    /// Requests of other nodes that were answered here.
    pub(crate) served: u64,
    pub(crate) peers: Vec<Peer>,
}

/// Another node that lives.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Peer {
    pub(crate) id: String,
    pub(crate) lag_ms: Option<f64>,
    pub(crate) received: u64,
    pub(crate) lost: u64,
}

/// The sessions furthest behind, and the largest rooms and topics, at the last walk.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Tops {
    /// How long the walk took, in milliseconds. It is repeated less often the longer it takes.
    pub(crate) walk_ms: f64,
    pub(crate) age_seconds: f64,
    pub(crate) slowest: Vec<Session>,
    pub(crate) rooms: Vec<Room>,
    pub(crate) topics: Vec<Room>,
}

/// A session. Names and addresses come from peers: show them as text only.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) lane: usize,
    pub(crate) peer: Option<String>,
    pub(crate) transport: &'static str,
    pub(crate) outgoing: bool,
    pub(crate) age_seconds: f64,
    pub(crate) identity: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) memory_bytes: usize,
    pub(crate) queued_bytes: usize,
    pub(crate) unanswered: usize,
    pub(crate) paused: bool,
    pub(crate) rooms: usize,
    pub(crate) topics: usize,
    pub(crate) lag_messages: u64,
    pub(crate) lag_bytes: u64,
    /// The policy of the membership that is furthest behind.
    pub(crate) policy: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Room {
    pub(crate) name: String,
    pub(crate) members: usize,
    pub(crate) messages: u64,
    pub(crate) log_bytes: usize,
    pub(crate) lanes: usize,
    pub(crate) congested: bool,
}

/// A part of a list.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Page<T> {
    /// All entries.
    pub(crate) total: usize,
    /// Entries that the search found.
    pub(crate) found: usize,
    pub(crate) offset: usize,
    /// The limit in force, which may be lower than the requested limit.
    pub(crate) limit: usize,
    /// Whether more entries follow.
    pub(crate) is_cut: bool,
    pub(crate) entries: Vec<T>,
}

impl Node {
    pub(crate) fn of(figures: &NodeFigures, sum: &Metrics) -> Self {
        let peers = figures.peers.iter().map(|peer| Peer {
            id: peer.id.clone(),
            lag_ms: peer.lag.map(|lag| lag.as_secs_f64() * 1e3),
            received: peer.received,
            lost: peer.lost,
        });
        Self {
            id: figures.id.clone(),
            cut_off: figures.is_cut_off,
            reconnects: sum.backplane_reconnects,
            sent: sum.backplane_sent,
            unsent: sum.backplane_unsent,
            received: sum.backplane_received,
            lost: sum.backplane_lost,
            requests: sum.backplane_asked,
            requests_failed: sum.backplane_unserved
                + sum.backplane_orphaned
                + sum.backplane_unasked
                + sum.backplane_timed_out,
            served: sum.backplane_served,
            peers: peers.collect(),
        }
    }
}

impl Session {
    pub(crate) fn of(figures: &SessionFigures) -> Self {
        Self {
            id: figures.id.to_string(),
            lane: figures.lane,
            peer: figures.peer.as_ref().map(ToString::to_string),
            transport: transport(figures.transport),
            outgoing: figures.is_outgoing,
            age_seconds: (Moment::now() - figures.opened).as_secs_f64(),
            identity: figures.identity.as_ref().map(|it| it.name().to_owned()),
            name: figures.name.as_deref().map(str::to_owned),
            memory_bytes: figures.memory_bytes,
            queued_bytes: figures.queued_bytes,
            unanswered: figures.unanswered,
            paused: figures.is_paused,
            rooms: figures.rooms,
            topics: figures.topics,
            lag_messages: figures.lag.map_or(0, |lag| lag.messages),
            lag_bytes: figures.lag.map_or(0, |lag| lag.bytes),
            policy: figures.lag.map(|lag| lag.policy.to_string()),
        }
    }
}

impl Room {
    pub(crate) fn of(figures: &RoomFigures) -> Self {
        Self {
            name: figures.name.clone(),
            members: figures.members,
            messages: figures.messages,
            log_bytes: figures.log_bytes,
            lanes: figures.lanes,
            congested: figures.is_congested,
        }
    }
}

fn transport(kind: TransportKind) -> &'static str {
    match kind {
        TransportKind::Tcp => "tcp",
        TransportKind::Ipc => "ipc",
        TransportKind::Inproc => "inproc",
        TransportKind::Udp => "udp",
        _ => "other",
    }
}
