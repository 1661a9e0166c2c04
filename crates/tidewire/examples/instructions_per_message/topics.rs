//! Publications, beside subscriptions of others that they do not match.

use std::io::{Read, Write};
use std::net::TcpStream;

use tidewire::{Kind, Limits, Message, PubSub, Server};
use tidewire_proto::body::SubscribeBody;
use tidewire_proto::codec::{Codec, Decoded};

use super::{Failure, PAYLOAD, Plan};

/// The topics of the messages, and the patterns of the subscribers.
pub(super) struct Publications {
    /// The patterns of the subscriber that receives all. Each of them matches every topic, or each topic one of them.
    received: Vec<String>,
    /// How many of them match a topic.
    matches: u32,
    /// The patterns of other sessions. No topic matches.
    others: Vec<String>,
    /// The topic of a message by its number.
    topic: fn(usize) -> String,
}

impl Publications {
    /// One topic and its subscriber.
    pub(super) fn one() -> Self {
        let topic = |_| String::from("market.xyz");
        Self {
            received: vec![topic(0)],
            matches: 1,
            others: Vec::new(),
            topic,
        }
    }

    /// Four topics in turn, beside thousands of other ones.
    pub(super) fn exact() -> Self {
        let topic = |number| format!("market.{}", number % TURNS);
        Self {
            received: (0..TURNS).map(topic).collect(),
            matches: 1,
            others: (0..OTHERS).map(|other| format!("news.{other}")).collect(),
            topic,
        }
    }

    /// Four topics in turn, of which three wildcards get all, beside thousands of other wildcards.
    pub(super) fn wildcards() -> Self {
        Self {
            received: ["market.*", "market.>", ">"].map(String::from).to_vec(),
            matches: 3,
            others: (0..OTHERS).map(|other| format!("news.{other}.*")).collect(),
            ..Self::exact()
        }
    }

    /// Topics that never repeat, beside patterns of as many shapes as a server has by default. All patterns end in a
    /// segment that no topic has, so that a tree would have to follow each of them to its end.
    pub(super) fn hostile() -> Self {
        let pattern = |number: usize| {
            let shape = 1 + number % SHAPES;
            let segments = (0..SHAPE_BITS).map(|bit| match shape >> bit & 1 {
                1 => "*",
                _ => "s",
            });
            let segments: Vec<_> = segments.collect();
            format!("{}.none{number}", segments.join("."))
        };
        Self {
            received: vec![String::from(">")],
            matches: 1,
            others: (0..OTHERS).map(pattern).collect(),
            topic: |number| format!("{}.{number}", ["s"; SHAPE_BITS].join(".")),
        }
    }
}

impl Plan {
    pub(super) fn publish(&self, publications: &Publications) -> Result<(), Failure> {
        let mut limits = Limits::default();
        limits.topics.set_per_address_max(2 * OTHERS);
        // An address may not take the last quarter of the shapes.
        limits.topics.set_shapes_max(2 * SHAPES);
        limits.topics.set_shapes_per_address_max(SHAPES);
        limits.topics.set_shapes_per_session_max(SHAPES);
        let server = self.listen("tcp://127.0.0.1:0")?.limits(limits);
        let server = server.start(|_| PubSub::new())?;
        let mut subscriber = self.connect(&server)?;
        self.subscribe(&mut subscriber, &publications.received, None)?;
        let _others = self.subscribe_others(&server, &publications.others)?;
        let (mut publisher, mut rest) = (self.connect(&server)?, Vec::new());
        let mut topics = (0..).map(publications.topic);
        let mut messages = Vec::new();
        for _ in 0..self.rounds {
            messages.clear();
            for topic in topics.by_ref().take(self.batch as usize) {
                let message = Message::new(Kind::Publish, 0, &PAYLOAD).with_name(&topic);
                self.codec.encode(&message, &mut messages)?;
            }
            publisher.write_all(&messages)?;
            for _ in 0..publications.matches {
                self.receive(&mut subscriber, &mut rest)?;
            }
        }
        Ok(())
    }

    pub(super) fn publish_to_group(&self) -> Result<(), Failure> {
        let topic = String::from("market.xyz");
        let server = self.listen("tcp://127.0.0.1:0")?.start(|_| PubSub::new())?;
        let mut members = Vec::new();
        for _ in 0..MEMBERS {
            let mut peer = self.connect(&server)?;
            self.subscribe(&mut peer, std::slice::from_ref(&topic), Some("workers"))?;
            members.push((peer, Vec::new()));
        }
        let mut publisher = self.connect(&server)?;
        let mut messages = Vec::new();
        let message = Message::new(Kind::Publish, 0, &PAYLOAD).with_name(&topic);
        for _ in 0..self.batch {
            self.codec.encode(&message, &mut messages)?;
        }
        for _ in 0..self.rounds {
            publisher.write_all(&messages)?;
            for (peer, rest) in &mut members {
                self.receive_some(self.batch / MEMBERS, peer, rest)?;
            }
        }
        Ok(())
    }

    /// Subscribes sessions to patterns, as many each as a session may have.
    fn subscribe_others(
        &self,
        server: &Server,
        patterns: &[String],
    ) -> Result<Vec<TcpStream>, Failure> {
        let of_each = patterns.chunks(Limits::default().topics.per_session_max());
        let subscribed = of_each.map(|patterns| {
            let mut peer = self.connect(server)?;
            self.subscribe(&mut peer, patterns, None)?;
            Ok(peer)
        });
        subscribed.collect()
    }

    fn subscribe(
        &self,
        peer: &mut TcpStream,
        patterns: &[String],
        group: Option<&str>,
    ) -> Result<(), Failure> {
        let mut reply = Vec::new();
        self.codec
            .encode(&Message::with_id(Kind::Reply, 0, 1, &[]), &mut reply)?;
        for pattern in patterns {
            let (mut body, mut request) = (Vec::new(), Vec::new());
            let subscription = SubscribeBody {
                policy: None,
                pattern,
                group,
            };
            subscription.encode(&mut body);
            let subscribe = Message::with_id(Kind::Subscribe, 0, 1, &body);
            self.codec.encode(&subscribe, &mut request)?;
            peer.write_all(&request)?;
            peer.read_exact(&mut reply)?;
            let answer = self.codec.decode(&reply, usize::MAX)?;
            if !matches!(answer, Decoded::Frame { message, .. } if message.kind == Kind::Reply) {
                return Err(format!("the subscription to {pattern} was refused").into());
            }
        }
        Ok(())
    }
}

/// Topics that are published in turn.
const TURNS: usize = 4;

/// Members of a queue group.
const MEMBERS: u32 = 8;

/// Patterns of other sessions.
const OTHERS: usize = 10_000;

/// The shapes of hostile patterns, one less than all values of some bits.
const SHAPES: usize = (1 << SHAPE_BITS) - 1;
const SHAPE_BITS: usize = 8;
