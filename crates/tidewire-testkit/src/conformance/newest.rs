//! Subscribers that fall behind and receive the newest message of each topic.

use tidewire::{Kind, Message, Policy, PubSub};
use tidewire_proto::body::{GapBody, SubscribeBody};
use tidewire_proto::codec::Codec;

use super::Setup;
use crate::peer::Peer;

const SYMBOLS: usize = 10_000;
const ROUNDS: usize = 4;
const PUBLISHED: usize = SYMBOLS * ROUNDS;

fn publish_round(publisher: &mut Peer, codec: &impl Codec, round: usize) {
    // The first payloads exceed the kernel's buffers. Later payloads are small.
    let payload_bytes = if round < 2 { 400 } else { 4 };
    let mut payload = (round as u32).to_le_bytes().to_vec();
    payload.resize(payload_bytes, b'.');
    let mut frames = Vec::new();
    for step in 0..SYMBOLS {
        // Each round has its own order.
        let symbol = (step * (2 * round + 1) + round) % SYMBOLS;
        let topic = format!("md.s{symbol}");
        let message = Message::new(Kind::Publish, 0, &payload).with_name(&topic);
        codec.encode(&message, &mut frames).expect("a frame");
    }
    publisher.write(&frames);
    let fence = Message::with_id(Kind::Request, 0, 1, b"");
    publisher.send(&fence);
    let answer = publisher.receive().expect("an answer, not the end");
    assert_eq!((answer.kind, answer.id), (Kind::Reply, 1));
}

pub(super) fn stalled_subscribers_hear_the_newest_of_each_topic(setup: &Setup) {
    let server = setup.serve(|_| PubSub::new());
    let (mut publisher, mut stalled) = (server.peer(), server.narrow_peer());
    let mut body = Vec::new();
    let subscribe = SubscribeBody {
        policy: Some(Policy::ConflateByTopic),
        pattern: "md.>",
        group: None,
    };
    subscribe.encode(&mut body);
    stalled.send(&Message::with_id(Kind::Subscribe, 0, 1, &body));
    let alias = stalled.receive().expect("a reply, not the end").channel;
    for round in 0..ROUNDS {
        publish_round(&mut publisher, &setup.codec(), round);
    }
    let mut newest = vec![None; SYMBOLS];
    let (mut heard, mut lost) = (0, 0);
    while heard + lost < PUBLISHED {
        let message = stalled.receive().expect("it stays");
        assert_eq!(message.channel, alias);
        if message.kind == Kind::Gap {
            lost += GapBody::decode(&message.payload).expect("a number").lost as usize;
            continue;
        }
        heard += 1;
        let symbol = message.name.strip_prefix("md.s").map(str::parse::<usize>);
        let symbol = symbol.expect("a symbol").expect("a number");
        let round = message.payload.first().copied();
        assert!(round > newest[symbol], "{symbol} goes back");
        newest[symbol] = round;
    }
    assert_eq!(heard + lost, PUBLISHED, "exactly");
    assert!(lost > 0, "it was behind");
    let last = Some(ROUNDS as u8 - 1);
    assert!(newest.iter().all(|round| *round == last), "a symbol is old");
    drop((publisher, stalled));
    let metrics = server.stop();
    assert_eq!(metrics.room_offered, PUBLISHED as u64);
    assert_eq!(metrics.room_delivered, heard as u64);
    assert_eq!(metrics.room_dropped_by("replaced"), lost as u64);
    assert_eq!(metrics.room_in_flight(), 0);
}
