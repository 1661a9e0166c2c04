//! The settings of a server. All its lanes share them, and none changes them.

mod codecs;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidewire_io::datagram::DatagramOptions;
use tidewire_io::socket::SocketOptions;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{Kind, Message};
use tidewire_proto::room::Policy;

pub(crate) use codecs::{CODECS_MAX, CodecNumber, Codecs};

use crate::limits::{Limits, Rate, RoomDefaults, nanoseconds};

/// The settings of a server. See the module.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) codecs: Codecs,
    pub(crate) limits: Limits,
    /// Largest frame of a room or topic, in bytes. It leaves room for the header of a subscriber's frame. 0 while the
    /// server is cut off from other nodes and refuses such messages.
    pub(crate) shared_frame_bytes_max: AtomicUsize,
    /// The value of `shared_frame_bytes_max` while nothing is refused.
    pub(crate) shared_frame_bytes: AtomicUsize,
    pub(crate) rate: Option<Rate>,
    pub(crate) room_defaults: RoomDefaults,
    /// The server's name for itself in its welcome.
    pub(crate) agent: String,
    /// Unvalidated addresses over UDP may be sent more bytes than came from them.
    pub(crate) trusts_datagram_peers: bool,
    /// The maximum age of connections that the server accepts. `None` for any age.
    pub(crate) age: Option<ConnectionAge>,
    /// Whether the connections that lanes make ask for the address of another server when theirs drains.
    pub(crate) follows_moves: bool,
    /// The address of the next server for clients, once this server drains.
    pub(crate) successor: OnceLock<String>,
    pub(crate) socket_options: SocketOptions,
    /// Options of the server's UDP sockets, and of UDP sockets that lanes open.
    pub(crate) datagram_options: DatagramOptions,
}

/// The maximum age of connections, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionAge {
    max_ns: u64,
    /// The time for a peer to end its connection after it was asked to.
    grace_ns: u64,
}

impl ConnectionAge {
    pub(crate) fn new(max: Duration, grace: Duration) -> Self {
        Self {
            max_ns: nanoseconds(max).max(1),
            grace_ns: nanoseconds(grace),
        }
    }

    /// When a session that was asked to end at this time is closed.
    pub(crate) fn close_ns(self, end_ns: u64) -> u64 {
        end_ns.saturating_add(self.grace_ns)
    }

    /// When a session that opened at this time is asked to end: up to a tenth before the maximum age, by a hash of its
    /// number. Otherwise clients that connected together would all reconnect together.
    pub(crate) fn end_ns(self, opened_ns: u64, session: u64) -> u64 {
        let hash = session
            .wrapping_add(opened_ns)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(31)
            .wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let jitter_ns = hash % (self.max_ns / JITTER_PARTS).max(1);
        opened_ns.saturating_add(self.max_ns - jitter_ns)
    }
}

/// The part of the maximum age that the jitter may take.
const JITTER_PARTS: u64 = 10;

impl Config {
    /// Refuses all messages of rooms and topics, or accepts them again.
    pub(crate) fn refuse_shared(&self, refuses: bool) {
        let limit = match refuses {
            true => 0,
            false => self.shared_frame_bytes.load(Ordering::Relaxed),
        };
        self.shared_frame_bytes_max.store(limit, Ordering::Relaxed);
    }

    /// Refuses longer messages of rooms and topics from now on.
    pub(crate) fn shorten_shared(&self, bytes: usize) {
        self.shared_frame_bytes.fetch_min(bytes, Ordering::Relaxed);
        self.shared_frame_bytes_max
            .fetch_min(bytes, Ordering::Relaxed);
    }

    /// Checks that a payload with `overhead_bytes` around it fits a frame that all subscribers of a room or topic get.
    #[inline]
    pub(crate) fn check_shared_frame(
        &self,
        payload_bytes: usize,
        overhead_bytes: usize,
    ) -> Result<(), SharedFrameError> {
        let limit = self.shared_frame_bytes_max.load(Ordering::Relaxed);
        if payload_bytes + overhead_bytes <= limit {
            return Ok(());
        }
        if limit == 0 {
            return Err(SharedFrameError::CutOff);
        }
        Err(SharedFrameError::TooLarge(EncodeError::PayloadTooLarge {
            bytes: payload_bytes as u64,
            limit: limit.saturating_sub(overhead_bytes) as u64,
        }))
    }

    /// Whether a message of another node fits a frame. A server that is cut off takes messages that are on their way.
    pub(crate) fn fits_shared_frame(&self, payload_bytes: usize, overhead_bytes: usize) -> bool {
        let checked = self.check_shared_frame(payload_bytes, overhead_bytes);
        !matches!(checked, Err(SharedFrameError::TooLarge(_)))
    }
}

/// A message of a room or topic is refused.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SharedFrameError {
    TooLarge(EncodeError),
    /// The server is cut off from other nodes, and was told to refuse messages then.
    CutOff,
}

/// A feature that a policy for slow subscribers needs, and that the codec lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingFeature {
    /// The policy drops messages, and the codec has no frame that tells a subscriber their number.
    Gaps { policy: Policy, codec: &'static str },
    /// The deliveries of the codec do not show their topics.
    Topics { codec: &'static str },
}

/// The features of a codec that policies need. The codec shows them once, by encoding test messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policies {
    codec: &'static str,
    announces_gaps: bool,
    shows_topics: bool,
}

impl Policies {
    pub(crate) fn of(codec: &AnyCodec) -> Self {
        const TOPIC: &str = "t";
        let mut frame = Vec::new();
        let announces_gaps = codec.encode_gap(1, 1, &mut frame).is_ok();
        frame.clear();
        let delivery = Message::new(Kind::Deliver, 1, b"").with_name(TOPIC);
        let shows_topics =
            codec.encode(&delivery, &mut frame).is_ok() && codec.delivery_topic(&frame) == TOPIC;
        Self {
            codec: codec.name(),
            announces_gaps,
            shows_topics,
        }
    }

    /// Whether a subscriber, or a handler for it, may choose the policy.
    pub(crate) fn check(&self, policy: Policy) -> Result<(), MissingFeature> {
        let codec = self.codec;
        if policy.drops() && !self.announces_gaps {
            return Err(MissingFeature::Gaps { policy, codec });
        }
        self.check_default(policy)
    }

    /// Whether the policy may be the server's default. A policy that drops messages may be the default for any codec:
    /// losses that the codec cannot announce are counted, and the operator has chosen that.
    pub(crate) fn check_default(&self, policy: Policy) -> Result<(), MissingFeature> {
        let codec = self.codec;
        match policy {
            Policy::ConflateByTopic if !self.shows_topics => Err(MissingFeature::Topics { codec }),
            _ => Ok(()),
        }
    }

    /// Whether the policy drops messages that the codec cannot announce.
    pub(crate) fn is_silent(&self, policy: Policy) -> bool {
        policy.drops() && !self.announces_gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_end_within_the_last_tenth_and_not_together() {
        let age = ConnectionAge {
            max_ns: 1_000_000,
            grace_ns: 0,
        };
        let mut ends: Vec<u64> = (0..1_000).map(|session| age.end_ns(5, session)).collect();
        assert!(ends.iter().all(|end| (900_005..=1_000_005).contains(end)));
        ends.sort_unstable();
        for part in ends.chunks(100) {
            let span = part[part.len() - 1] - part[0];
            assert!(span < 30_000, "a tenth of them takes {span} of 100,000");
        }
        let never = ConnectionAge {
            max_ns: u64::MAX,
            grace_ns: 0,
        };
        assert_eq!(never.end_ns(u64::MAX, 1), u64::MAX);
        let shortest = ConnectionAge {
            max_ns: 1,
            grace_ns: 0,
        };
        assert_eq!(shortest.end_ns(7, 1), 8);
    }

    #[test]
    fn a_policy_needs_a_codec_that_can_announce_drops() {
        let named = AnyCodec::NAMES.map(|name| AnyCodec::by_name(name).unwrap());
        let over_udp = AnyCodec::by_name("uvrpc").unwrap().for_datagrams();
        for codec in named.iter().chain([&over_udp]) {
            let policies = Policies::of(codec);
            for policy in Policy::ALL {
                let name = codec.name();
                let can_announce = matches!(name, "tw1" | "lines" | "json") || !policy.drops();
                let has_topics =
                    matches!(name, "tw1" | "json") || codec.format().registers_subscribers;
                let can_tell_apart = policy != Policy::ConflateByTopic || has_topics;
                let checked = policies.check(policy);
                assert_eq!(
                    checked.is_ok(),
                    can_announce && can_tell_apart,
                    "{name}: {policy}"
                );
                assert_eq!(
                    policies.check_default(policy).is_ok(),
                    can_tell_apart,
                    "{name}"
                );
                assert_eq!(policies.is_silent(policy), !can_announce, "{name}");
                if let Err(MissingFeature::Gaps { codec, .. } | MissingFeature::Topics { codec }) =
                    checked
                {
                    assert_eq!(codec, name);
                }
            }
        }
    }
}
