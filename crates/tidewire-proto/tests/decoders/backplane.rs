//! Packets of other nodes.

use tidewire_proto::backplane::sequence::{EntryCounts, ReceivedSequences};
use tidewire_proto::backplane::{
    Content, Packet, encode_alive, encode_answered, encode_asked, encode_directed, encode_given_up,
    encode_sequence, encode_whisper, encode_working,
};

/// Packets of nodes. A packet that decodes has one spelling, and its place never makes a receiver panic.
pub fn backplane(bytes: &[u8]) {
    let Ok(packet) = Packet::decode(bytes) else {
        return;
    };
    let me = packet.from;
    let mut again = Vec::new();
    match packet.content {
        Content::Alive { flags, beat } => encode_alive(me, flags, beat, &mut again),
        Content::Whisper {
            room,
            target,
            message,
        } => {
            encode_whisper(me, room, target, &message, &mut again);
        }
        Content::Directed(directed) => encode_directed(me, &directed, &mut again),
        Content::Asked(asked) => encode_asked(me, &asked, &mut again),
        Content::Answered(answered) => encode_answered(me, &answered, &mut again),
        Content::Working(working) => {
            encode_working(me, working.epoch, working.requests(), &mut again);
        }
        Content::GivenUp { request } => encode_given_up(me, request, &mut again),
        Content::Sequence(sequence) => {
            encode_sequence(
                me,
                (sequence.kind, sequence.name),
                sequence.point,
                &mut again,
            );
            let mut counts = EntryCounts::default();
            for entry in sequence.entries {
                let Some(entry) = entry else {
                    // The rest is malformed, and the earlier entries are unchanged.
                    assert!(bytes.starts_with(&again));
                    return;
                };
                counts.add(&entry);
                entry.encode(&mut again);
            }
            let mut received = ReceivedSequences::default();
            let first = received.arrive(sequence.kind, sequence.name, sequence.point, counts);
            assert_eq!((first.lost, first.known), (0, 0));
            let second = received.arrive(sequence.kind, sequence.name, sequence.point, counts);
            assert_eq!(second.lost, 0, "it came twice");
        }
    }
    assert_eq!(again, bytes, "a packet has one spelling");
}
