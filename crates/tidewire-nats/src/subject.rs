//! Subjects of NATS for rooms, topics and nodes.
//!
//! ```text
//! PREFIX.nodes                all nodes
//! PREFIX.node.ID              one node
//! PREFIX.unserved.ID.NUMBER   NATS tells a node that no node has the service of its request
//! PREFIX.service.NAME         requests to a service, as one token; nodes that have it are a queue group
//! PREFIX.room.NAME            a room, as one token
//! PREFIX.stored.KIND.NAME     a room or topic that keeps a history: the messages that its stream stores;
//!                             KIND is room or topic, NAME is one token
//! PREFIX.followed.KIND.NAME   the same: what its stream publishes again
//! PREFIX.topic.A.B            a topic, a token for each segment; patterns have the wildcards * and >
//! ```
//!
//! A name is written byte by byte: letters, digits, hyphen and underscore of ASCII stay, every other byte becomes `=`
//! and two hexadecimal digits. So no name has a dot, a wildcard or a space, no name begins like another subject, and
//! two names never have the same subject.

use std::fmt::Write;

use sha2::{Digest, Sha256};
use tidewire::backplane::{RoomOrTopic, Subject};
use tidewire::text::hexadecimal;

use crate::error::{NatsError, PREFIX_BYTES_MAX};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prefix(String);

impl Prefix {
    pub(crate) fn new(text: &str) -> Result<Self, NatsError> {
        let is_part = |part: &str| !part.is_empty() && part.bytes().all(is_plain);
        let is_valid = text.len() <= PREFIX_BYTES_MAX && text.split('.').all(is_part);
        // Otherwise the subjects of one cluster could be within those of another cluster.
        let is_within = text.split('.').skip(1).any(|part| KINDS.contains(&part));
        match is_valid && !is_within {
            true => Ok(Self(text.to_owned())),
            false => Err(NatsError::Prefix(text.to_owned())),
        }
    }

    pub(crate) fn subject(&self, subject: Subject<'_>) -> String {
        let mut text = self.0.clone();
        match subject {
            Subject::Nodes => text.push_str(".nodes"),
            Subject::Node(id) => {
                text.push_str(".node.");
                push_token(id, &mut text);
            }
            Subject::Service(name) => {
                text.push_str(".service.");
                push_token(name, &mut text);
            }
            Subject::Room(name) => {
                text.push_str(".room.");
                push_token(name, &mut text);
            }
            Subject::Topic(topic) => {
                text.push_str(".topic");
                for segment in topic.split('.') {
                    text.push('.');
                    push_token(segment, &mut text);
                }
            }
            Subject::Pattern(pattern) => {
                text.push_str(".topic");
                for segment in pattern.split('.') {
                    text.push('.');
                    match segment {
                        "*" | ">" => text.push_str(segment),
                        _ => push_token(segment, &mut text),
                    }
                }
            }
        }
        text
    }

    /// Returns unused subjects of all kinds: to publish to, and to subscribe to.
    pub(crate) fn probes(&self, keeps_histories: bool) -> [Vec<String>; 2] {
        let kept = |kinds: &'static [&str]| if keeps_histories { kinds } else { &[] };
        let of = |kinds: &[&str], kept: &[&str]| {
            let kinds = kinds.iter().chain(kept);
            // An escape always has its digits, so no name has this token.
            kinds.map(|kind| format!("{}.{kind}.=", self.0)).collect()
        };
        [
            of(&PROBED, kept(&["stored.room", "stored.topic"])),
            of(&PROBED, kept(&["followed.room", "followed.topic"])),
        ]
    }

    /// Returns the subject on which NATS reports a request without a receiver to a node.
    pub(crate) fn unserved(&self, node: &str, request: u64) -> String {
        format!("{}.{request:x}", self.unserved_of(node))
    }

    /// Returns the subject on which NATS reports all requests without a receiver to a node.
    pub(crate) fn all_unserved(&self, node: &str) -> String {
        format!("{}.*", self.unserved_of(node))
    }

    fn unserved_of(&self, node: &str) -> String {
        let mut text = format!("{}.unserved.", self.0);
        push_token(node, &mut text);
        text
    }
}

/// Returns the request that a subject of [`Prefix::unserved`] is about.
pub(crate) fn unserved_request(subject: &str) -> Option<u64> {
    let (_, number) = subject.rsplit_once('.')?;
    hexadecimal(number)?.try_into().ok()
}

impl Prefix {
    /// The subject that a stream stores.
    pub(crate) fn stored(&self, name: &RoomOrTopic) -> String {
        self.of_stream("stored", name)
    }

    pub(crate) fn is_followed(&self, subject: &str) -> bool {
        let rest = subject.strip_prefix(&self.0);
        rest.is_some_and(|rest| rest.starts_with(".followed."))
    }

    /// The subject that a stream publishes its messages to.
    pub(crate) fn followed(&self, name: &RoomOrTopic) -> String {
        self.of_stream("followed", name)
    }

    /// The name of a stream, which has no dots. A name that is too long for JetStream has a hash of the whole name
    /// after `==` in place of its end. No other name has `==`.
    pub(crate) fn stream(&self, name: &RoomOrTopic) -> String {
        let mut text = self.streams(name);
        push_token(kind_and_name(name).1, &mut text);
        if text.len() > STREAM_NAME_BYTES_MAX {
            let hash = Sha256::digest(&text);
            text.truncate(STREAM_NAME_BYTES_MAX - "==".len() - 2 * hash.len());
            text.push_str("==");
            for byte in hash {
                // Writing to a string cannot fail.
                let _ = write!(text, "{byte:02x}");
            }
        }
        text
    }

    /// The beginning of the names of all streams of rooms, or of topics.
    pub(crate) fn streams(&self, name: &RoomOrTopic) -> String {
        format!("{}={}=", self.0.replace('.', "=2E"), kind_and_name(name).0)
    }

    fn of_stream(&self, what: &str, name: &RoomOrTopic) -> String {
        let (kind, name) = kind_and_name(name);
        let mut text = format!("{}.{what}.{kind}.", self.0);
        push_token(name, &mut text);
        text
    }
}

impl Default for Prefix {
    fn default() -> Self {
        Self("tidewire".to_owned())
    }
}

fn kind_and_name(name: &RoomOrTopic) -> (&'static str, &str) {
    match name {
        RoomOrTopic::Room(name) => ("room", name),
        RoomOrTopic::Topic(name) => ("topic", name),
    }
}

fn push_token(name: &str, out: &mut String) {
    if name.is_empty() {
        // No name is empty; an empty token would be no subject.
        out.push('=');
    }
    for byte in name.bytes() {
        if is_plain(byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "={byte:02X}");
        }
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

/// Longest name of a stream: JetStream names a directory after it.
const STREAM_NAME_BYTES_MAX: usize = 255;

/// The tokens after the prefix.
const KINDS: [&str; 8] = [
    "nodes", "node", "unserved", "service", "room", "stored", "followed", "topic",
];

/// The kinds of which a node needs subjects that it does not use at its start.
const PROBED: [&str; 3] = ["room", "topic", "service"];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn subject(subject: Subject<'_>) -> String {
        Prefix::default().subject(subject)
    }

    #[test]
    fn subjects_have_the_form_that_the_module_describes() {
        let cases = [
            (Subject::Nodes, "tidewire.nodes"),
            (Subject::Node("a-1"), "tidewire.node.a-1"),
            (Subject::Service("a.b"), "tidewire.service.a=2Eb"),
            (Subject::Room("lobby"), "tidewire.room.lobby"),
            (Subject::Room("a.b >*"), "tidewire.room.a=2Eb=20=3E=2A"),
            (Subject::Room("über"), "tidewire.room.=C3=BCber"),
            (Subject::Topic("price.eur"), "tidewire.topic.price.eur"),
            (Subject::Topic("a b.c"), "tidewire.topic.a=20b.c"),
            (Subject::Pattern("price.*"), "tidewire.topic.price.*"),
            (Subject::Pattern("price.>"), "tidewire.topic.price.>"),
            (Subject::Pattern(">"), "tidewire.topic.>"),
            (Subject::Pattern("*"), "tidewire.topic.*"),
            (Subject::Pattern("*.a b.*.>"), "tidewire.topic.*.a=20b.*.>"),
            (Subject::Topic("a*"), "tidewire.topic.a=2A"),
            (Subject::Pattern("price.eur"), "tidewire.topic.price.eur"),
        ];
        for (of, text) in cases {
            assert_eq!(subject(of), text);
        }
    }

    #[test]
    fn unused_subjects_belong_to_no_name() {
        let prefix = Prefix::default();
        let [published, subscribed] = prefix.probes(false);
        assert_eq!(
            published,
            ["tidewire.room.=", "tidewire.topic.=", "tidewire.service.="]
        );
        assert_eq!(published, subscribed);
        let [published, subscribed] = prefix.probes(true);
        assert_eq!(
            published[3..],
            ["tidewire.stored.room.=", "tidewire.stored.topic.="]
        );
        assert_eq!(
            subscribed[3..],
            ["tidewire.followed.room.=", "tidewire.followed.topic.="]
        );
    }

    #[test]
    fn a_request_without_a_receiver_is_found_by_its_subject() {
        let prefix = Prefix::default();
        let subject = prefix.unserved("a-1", u64::MAX);
        assert_eq!(subject, "tidewire.unserved.a-1.ffffffffffffffff");
        assert_eq!(prefix.all_unserved("a-1"), "tidewire.unserved.a-1.*");
        assert_eq!(unserved_request(&subject), Some(u64::MAX));
        assert_eq!(unserved_request("tidewire.unserved.a-1.x"), None);
    }

    /// Regression: no stream began like the name of all streams, so that their number had no limit.
    #[test]
    fn the_streams_of_a_cluster_are_found_by_their_names() {
        let prefix = Prefix::new("prod.chat").unwrap();
        let (room, topic) = (
            RoomOrTopic::Room("a.b".into()),
            RoomOrTopic::Topic("a.b".into()),
        );
        assert_eq!(prefix.stream(&room), "prod=2Echat=room=a=2Eb");
        assert_eq!(prefix.stream(&topic), "prod=2Echat=topic=a=2Eb");
        for (name, other) in [(&room, &topic), (&topic, &room)] {
            let stream = prefix.stream(name);
            assert!(stream.starts_with(&prefix.streams(name)));
            assert!(!stream.starts_with(&prefix.streams(other)));
            let other = Prefix::new("prod").unwrap();
            assert!(!stream.starts_with(&other.streams(name)));
        }
        assert_eq!(prefix.stored(&room), "prod.chat.stored.room.a=2Eb");
        assert_eq!(prefix.followed(&topic), "prod.chat.followed.topic.a=2Eb");
        assert!(prefix.is_followed(&prefix.followed(&topic)));
        assert!(!prefix.is_followed(&prefix.stored(&room)));
        assert!(!prefix.is_followed("prod.followed.topic.a"));
    }

    #[test]
    fn a_prefix_is_one_or_several_tokens() {
        for (text, is_valid) in [
            ("tidewire", true),
            ("prod.chat-1", true),
            ("", false),
            ("a..b", false),
            ("a.*", false),
            ("a b", false),
            (">", false),
            // Regression: a cluster received all packets of another cluster when a client subscribed to `>`.
            ("tidewire.topic", false),
            ("tidewire.room", false),
            ("room", true),
        ] {
            assert_eq!(Prefix::new(text).is_ok(), is_valid, "{text}");
        }
        assert!(Prefix::new(&"p".repeat(65)).is_err());
        let refused = Prefix::new("a b").unwrap_err().to_string();
        assert!(
            refused.starts_with("not a prefix of subjects: \"a b\" (use 1 to 64 "),
            "{refused}"
        );
    }

    proptest! {
        #[test]
        fn no_name_breaks_out_of_its_token(name in ".*", other in ".*") {
            let text = subject(Subject::Room(&name));
            let token = text.strip_prefix("tidewire.room.").unwrap();
            prop_assert!(!token.is_empty());
            prop_assert!(token.bytes().all(|byte| is_plain(byte) || byte == b'='));
            prop_assert_eq!(name == other, text == subject(Subject::Room(&other)));
        }
    }
}
