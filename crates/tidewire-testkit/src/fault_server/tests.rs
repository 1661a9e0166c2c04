//! The fault server against a plain blocking client: it must be correct before it may judge others.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tidewire_proto::body::{ErrorBody, ErrorCode, GapBody, JoinBody, JoinedBody, RoomCall, Roster};
use tidewire_proto::codec::{Codec, Decoded, Tw1};
use tidewire_proto::handshake::{Hello, PROTOCOL_VERSION, Welcome};
use tidewire_proto::limits::FRAME_BYTES_MAX;
use tidewire_proto::message::{Kind, Message};

use super::*;

/// A client with blocking calls only.
struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    room: u16,
}

/// A frame that owns its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Frame {
    kind: Kind,
    channel: u16,
    id: u32,
    payload: Vec<u8>,
}

impl Client {
    fn open(server: &FaultServer) -> Self {
        let mut client = Self {
            stream: TcpStream::connect(server.address()).unwrap(),
            input: Vec::new(),
            room: 0,
        };
        let hello = Hello {
            version: PROTOCOL_VERSION,
            features: 0,
            frame_bytes_max: FRAME_BYTES_MAX as u32,
            credentials: b"",
            agent: "test",
        };
        let mut out = Vec::new();
        hello.encode_frame(&mut out).unwrap();
        client.stream.write_all(&out).unwrap();
        let welcome = client.read().unwrap();
        assert_eq!(welcome.kind, Kind::Welcome);
        assert_eq!(Welcome::decode(&welcome.payload).unwrap().heartbeat_ms, 0);
        client
    }

    /// Joins the room `lobby`, and reads the notices about the other members.
    fn member(server: &FaultServer, name: &str) -> Self {
        let mut client = Self::open(server);
        let reply = client.join(name);
        assert_eq!(reply.kind, Kind::Reply, "{reply:?}");
        client.room = reply.channel;
        let others = JoinedBody::decode(&reply.payload).unwrap().members - 1;
        for _ in 0..others {
            assert_eq!(client.read().unwrap().kind, Kind::Presence);
        }
        client
    }

    fn join(&mut self, name: &str) -> Frame {
        let mut payload = Vec::new();
        let room = "lobby";
        JoinBody { room, name }.encode(&mut payload).unwrap();
        self.send(&Message::with_id(Kind::Join, 0, 7, &payload));
        self.read().unwrap()
    }

    fn send(&mut self, message: &Message<'_>) {
        let mut out = Vec::new();
        Tw1.encode(message, &mut out).unwrap();
        self.stream.write_all(&out).unwrap();
    }

    fn say(&mut self, numbers: impl IntoIterator<Item = u32>) {
        for number in numbers {
            let room = self.room;
            self.send(&Message::new(Kind::Say, room, &number.to_le_bytes()));
        }
    }

    /// Reads the next frame; `None` at the end of the stream.
    fn read(&mut self) -> Option<Frame> {
        let mut chunk = [0; 4096];
        loop {
            let decoded = Tw1.decode(&self.input, FRAME_BYTES_MAX).unwrap();
            if let Decoded::Frame { message, consumed } = decoded {
                let frame = Frame {
                    kind: message.kind,
                    channel: message.channel,
                    id: message.id,
                    payload: message.payload.to_vec(),
                };
                self.input.drain(..consumed);
                return Some(frame);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn read_deliveries(&mut self, count: usize) -> Vec<u32> {
        let mut numbers = Vec::new();
        while numbers.len() < count {
            let frame = self.read().expect("more deliveries");
            if frame.kind == Kind::Deliver {
                numbers.push(number(&frame));
            }
        }
        numbers
    }

    /// Reads all deliveries that were on their way to this client when the ping reached the server.
    fn read_all_deliveries(&mut self) -> Vec<u32> {
        self.send(&Message::new(Kind::Ping, 0, b"last"));
        let mut numbers = Vec::new();
        loop {
            let frame = self.read().expect("a pong");
            match frame.kind {
                Kind::Deliver => numbers.push(number(&frame)),
                Kind::Pong if frame.payload == b"last" => return numbers,
                _ => {}
            }
        }
    }

    /// Returns when the server has handled all messages of this client.
    fn wait_until_handled(&mut self) {
        self.read_all_deliveries();
    }
}

fn number(frame: &Frame) -> u32 {
    u32::from_le_bytes(frame.payload.as_slice().try_into().unwrap())
}

fn pair(plan: FaultPlan) -> (FaultServer, Client, Client) {
    let server = FaultServer::start(plan).unwrap();
    let ada = Client::member(&server, "ada");
    let bob = Client::member(&server, "bob");
    (server, ada, bob)
}

/// Lets `ada` send the numbers from 1 to `count`. Returns the numbers that `bob` received, and the server's ledger.
fn sent_and_received(plan: FaultPlan, count: u32) -> (Vec<u32>, FaultLedger) {
    let (server, mut ada, mut bob) = pair(plan);
    ada.say(1..=count);
    ada.wait_until_handled();
    let heard = bob.read_all_deliveries();
    let ledger = server.finish();
    assert!(ledger.is_conserved() && ledger.queued == 0, "{ledger:?}");
    assert_eq!(
        (ledger.messages, ledger.offered),
        (count.into(), count.into())
    );
    (heard, ledger)
}

#[test]
fn without_a_plan_everyone_but_the_sender_hears_everything_in_order() {
    let server = FaultServer::start(FaultPlan::default()).unwrap();
    let mut clients: Vec<Client> = ["ada", "bob", "eve"]
        .iter()
        .map(|name| Client::member(&server, name))
        .collect();
    clients[0].say(1..=100);
    clients[0].wait_until_handled();
    clients[1].say(101..=110);
    clients[1].wait_until_handled();
    assert_eq!(
        clients[0].read_all_deliveries(),
        (101..=110).collect::<Vec<_>>()
    );
    assert_eq!(
        clients[2].read_all_deliveries(),
        (1..=110).collect::<Vec<_>>()
    );
    let ledger = server.finish();
    let expected = FaultLedger {
        joins: 3,
        messages: 110,
        offered: 220,
        delivered: 220,
        ..FaultLedger::default()
    };
    assert_eq!(ledger, expected);
}

#[test]
fn rooms_refuse_list_and_let_go_as_the_protocol_says() {
    let (server, mut ada, mut bob) = pair(FaultPlan::default());
    let mut unknown = Client::open(&server);
    for (name, code) in [("ada", ErrorCode::NameTaken), (" ", ErrorCode::NameEmpty)] {
        let refusal = unknown.join(name);
        assert_eq!((refusal.kind, refusal.id), (Kind::Error, 7));
        assert_eq!(ErrorBody::decode(&refusal.payload).unwrap().code, code);
    }
    unknown.send(&Message::new(Kind::Say, bob.room, b"let me in"));
    let refusal = unknown.read().unwrap();
    assert_eq!((refusal.kind, refusal.id), (Kind::Error, 0));

    let mut list = Vec::new();
    RoomCall::List.encode(&mut list).unwrap();
    bob.send(&Message::with_id(Kind::Request, bob.room, 9, &list));
    let reply = bob.read().unwrap();
    assert_eq!((reply.kind, reply.id), (Kind::Reply, 9));
    let roster = Roster::decode(&reply.payload).unwrap();
    let names: Vec<&str> = roster.entries().map(|(_, name)| name).collect();
    assert_eq!(names, ["ada", "bob"]);

    bob.send(&Message::with_id(Kind::Leave, bob.room, 10, b""));
    assert_eq!(bob.read().unwrap().kind, Kind::Reply);
    ada.say(1..=5);
    ada.wait_until_handled();
    assert!(bob.read_all_deliveries().is_empty());
    let ledger = server.finish();
    assert_eq!((ledger.messages, ledger.offered), (5, 0));
}

#[test]
fn garbage_and_a_missing_hello_end_with_a_go_away() {
    let server = FaultServer::start(FaultPlan::default()).unwrap();
    for bytes in [
        &[4, 0, 0, 0, 0, 0, 0, 0][..],
        &[4, 0, 0, 0, 17, 0, 0, 0][..],
    ] {
        let mut client = Client {
            stream: TcpStream::connect(server.address()).unwrap(),
            input: Vec::new(),
            room: 0,
        };
        client.stream.write_all(bytes).unwrap();
        assert_eq!(client.read().unwrap().kind, Kind::GoAway);
        assert_eq!(client.read(), None);
    }
    assert_eq!(server.finish(), FaultLedger::default());
}

#[test]
fn drops_are_counted_and_nothing_else_is_missing() {
    for seed in 0..3 {
        let plan = FaultPlan {
            seed,
            drop: Some(Every::nth(100)),
            ..FaultPlan::default()
        };
        let (heard, ledger) = sent_and_received(plan, 1_000);
        assert_eq!((heard.len(), ledger.dropped), (990, 10), "seed {seed}");
        assert!(heard.is_sorted());
    }
}

#[test]
fn a_dropped_delivery_is_announced_on_request() {
    let (server, mut ada, mut bob) = pair(FaultPlan {
        drop: Some(Every::nth(3).times_max(1)),
        announces_drops: true,
        ..FaultPlan::default()
    });
    ada.say(1..=3);
    let mut heard = Vec::new();
    while heard.len() < 3 {
        heard.push(bob.read().unwrap());
    }
    let gaps: Vec<&Frame> = heard
        .iter()
        .filter(|frame| frame.kind == Kind::Gap)
        .collect();
    assert_eq!(gaps.len(), 1);
    assert_eq!(GapBody::decode(&gaps[0].payload).unwrap().lost, 1);
    assert_eq!(server.finish().dropped, 1);
}

#[test]
fn an_echo_reaches_the_sender_and_is_offered_to_no_member() {
    let (server, mut ada, mut bob) = pair(FaultPlan {
        echo: Some(Every::nth(5)),
        ..FaultPlan::default()
    });
    ada.say(1..=50);
    assert_eq!(ada.read_all_deliveries().len(), 10);
    assert_eq!(bob.read_all_deliveries(), (1..=50).collect::<Vec<_>>());
    let ledger = server.finish();
    assert!(ledger.is_conserved(), "{ledger:?}");
    assert_eq!(
        (ledger.offered, ledger.echoed, ledger.delivered),
        (50, 10, 60)
    );
}

#[test]
fn duplicates_come_right_after_the_first_copy() {
    let plan = FaultPlan {
        duplicate: Some(Every::nth(10)),
        ..FaultPlan::default()
    };
    let (heard, ledger) = sent_and_received(plan, 200);
    assert_eq!((heard.len(), ledger.duplicated), (220, 20));
    assert_eq!(
        heard.windows(2).filter(|pair| pair[0] == pair[1]).count(),
        20
    );
    assert!(heard.is_sorted());
}

#[test]
fn a_substitution_keeps_the_number_of_arrivals() {
    let plan = FaultPlan {
        substitute: Some(Every::nth(10)),
        ..FaultPlan::default()
    };
    let (heard, ledger) = sent_and_received(plan, 200);
    assert_eq!(heard.len(), 200);
    let mut distinct = heard;
    distinct.dedup();
    assert_eq!(distinct.len() as u64, 200 - ledger.substituted);
    assert_eq!(ledger.substituted, 20);
    assert_eq!((ledger.dropped, ledger.duplicated), (20, 20));
}

#[test]
fn a_corruption_spares_the_frame_and_hurts_the_payload() {
    let plan = FaultPlan {
        corrupt: Some(Every::nth(20)),
        ..FaultPlan::default()
    };
    let (heard, ledger) = sent_and_received(plan, 400);
    assert_eq!((heard.len(), ledger.corrupted), (400, 20));
    let wrong = (1..=400).zip(&heard).filter(|(said, heard)| said != *heard);
    assert_eq!(wrong.count(), 20);
}

#[test]
fn a_swap_moves_a_message_after_the_next_of_its_sender() {
    let plan = FaultPlan {
        swap: Some(Every::nth(50)),
        ..FaultPlan::default()
    };
    let (server, mut ada, mut bob) = pair(plan);
    ada.say(1..=1_000);
    // The last message may wait for a next message, so the test waits for the count and not for a pong.
    let heard = bob.read_deliveries(1_000);
    let ledger = server.finish();
    let back = heard.windows(2).filter(|pair| pair[0] > pair[1]).count() as u64;
    assert!(back >= 19 && back == ledger.swapped, "{back}, {ledger:?}");
    let mut sorted = heard;
    sorted.sort_unstable();
    assert_eq!(sorted, (1..=1_000).collect::<Vec<_>>());
}

#[test]
fn a_message_without_a_next_message_is_delivered_in_order() {
    let plan = FaultPlan {
        swap: Some(Every::nth(1).times_max(1)),
        ..FaultPlan::default()
    };
    let (server, mut ada, mut bob) = pair(plan);
    ada.say([1]);
    assert_eq!(bob.read_deliveries(1), [1]);
    let ledger = server.finish();
    assert_eq!((ledger.swapped, ledger.delivered), (0, 1));
}

#[test]
fn delays_and_stalls_last_at_least_as_long_as_planned() {
    let delay = Duration::from_millis(30);
    let stall = Stall {
        at_message: 3,
        duration: Duration::from_millis(200),
    };
    let (server, mut ada, mut bob) = pair(FaultPlan {
        delay,
        stall: Some(stall),
        ..FaultPlan::default()
    });
    for (number, least) in [(1, delay), (2, delay), (3, stall.duration), (4, delay)] {
        let start = Instant::now();
        ada.say([number]);
        assert_eq!(bob.read_deliveries(1), [number]);
        assert!(start.elapsed() >= least, "message {number}");
    }
    assert_eq!(server.finish().stalls, 1);
}

#[test]
fn refused_joins_are_counted_and_may_be_repeated() {
    let server = FaultServer::start(FaultPlan {
        refuse_joins: Some(Every::nth(1).times_max(2)),
        ..FaultPlan::default()
    })
    .unwrap();
    let mut client = Client::open(&server);
    for expected in [Kind::Error, Kind::Error, Kind::Reply] {
        assert_eq!(client.join("ada").kind, expected);
    }
    let ledger = server.finish();
    assert_eq!((ledger.joins, ledger.joins_refused), (1, 2));
}

#[test]
fn a_receiver_that_is_cut_off_gets_exactly_its_share_and_is_still_offered_the_rest() {
    let (server, mut ada, mut bob) = pair(FaultPlan {
        disconnect: Some(Disconnect {
            receiver: 1,
            after_deliveries: 37,
        }),
        ..FaultPlan::default()
    });
    ada.say(1..=100);
    assert_eq!(bob.read_deliveries(37), (1..=37).collect::<Vec<_>>());
    while let Some(frame) = bob.read() {
        assert_ne!(frame.kind, Kind::Deliver);
    }
    drop(bob);
    ada.wait_until_handled();
    ada.say(101..=110);
    ada.wait_until_handled();
    let ledger = server.finish();
    assert!(ledger.is_conserved(), "{ledger:?}");
    assert_eq!((ledger.offered, ledger.delivered), (110, 37));
    assert_eq!((ledger.undeliverable, ledger.disconnected), (73, 1));
}

#[test]
fn death_closes_every_connection_and_the_listener() {
    let (server, mut ada, mut bob) = pair(FaultPlan {
        die_after_messages: Some(10),
        ..FaultPlan::default()
    });
    ada.say(1..=10);
    while ada.read().is_some() {}
    while bob.read().is_some() {}
    let address = server.address();
    let ledger = server.finish();
    assert!(ledger.is_conserved() && ledger.queued == 0, "{ledger:?}");
    assert_eq!((ledger.messages, ledger.offered), (10, 10));
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_cap_spaces_deliveries_out() {
    let (server, mut ada, mut bob) = pair(FaultPlan {
        deliveries_per_sec_max: Some(500),
        ..FaultPlan::default()
    });
    let start = Instant::now();
    ada.say(1..=101);
    assert_eq!(bob.read_deliveries(101).len(), 101);
    assert!(start.elapsed() >= Duration::from_millis(200));
    assert_eq!(server.finish().delivered, 101);
}

#[test]
fn a_plan_that_cannot_be_counted_is_refused() {
    let refused = FaultServer::start(FaultPlan {
        swap: Some(Every::nth(2)),
        substitute: Some(Every::nth(2)),
        ..FaultPlan::default()
    });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
}
