//! The order within a session: a reply comes after earlier messages of its handler.

use tidewire::{Context, HandlerResult, Kind, Message, Policy, Server, Service};
use tidewire_testkit::fixtures::tw1;
use tidewire_testkit::{Peer, TestServer};

const MESSAGES: u32 = 100;

/// Subscribes and joins for each session by itself. On a request it publishes and says many numbers, and then replies.
struct Reporter {
    policy: Policy,
}

impl Service for Reporter {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        let _ = cx.topics().policy(self.policy).subscribe("progress");
        let name = format!("member-{}", cx.id());
        let _ = cx.rooms().policy(self.policy).join("room", &name);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let id = cx.id();
        for number in 0..MESSAGES {
            match message.payload {
                b"announce" => cx.rooms().announce("room", &number.to_le_bytes())?,
                _ => cx.topics().publish("progress", &number.to_le_bytes())?,
            }
        }
        match message.payload {
            b"later" => {
                let _ = cx.defer().reply(b"done");
                Ok(())
            }
            b"send" => Ok(cx.send(Message::new(Kind::OneWay, 0, b"done"))?),
            b"sender" => {
                let sent = cx.with_sender(id, |sender| {
                    sender.send(&Message::new(Kind::OneWay, 0, b"done"))
                })?;
                Ok(sent?)
            }
            b"twice" => {
                cx.reply(b"half")?;
                cx.topics().publish("progress", &MESSAGES.to_le_bytes())?;
                Ok(cx.send(Message::new(Kind::OneWay, 0, b"done"))?)
            }
            _ => cx.reply(b"done"),
        }
    }
}

/// Reads to the last frame of an answer. Returns the payloads until then, without presence.
fn heard(peer: &mut Peer) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    loop {
        let frame = peer.receive().expect("an answer, not the end");
        if frame.kind != Kind::Presence {
            payloads.push(frame.payload);
        }
        if payloads.last().is_some_and(|last| last == b"done") {
            return payloads;
        }
    }
}

/// Regression: a reply overtook an earlier publication of its handler to the same session.
#[test]
fn a_reply_comes_after_earlier_messages_of_its_handler() {
    let expected = |peer: &mut Peer, request: &[u8]| {
        let mut expected: Vec<Vec<u8>> =
            (0..MESSAGES).map(|it| it.to_le_bytes().to_vec()).collect();
        if request == b"twice" {
            expected.push(b"half".to_vec());
            expected.push(MESSAGES.to_le_bytes().to_vec());
        }
        expected.push(b"done".to_vec());
        peer.ask(request);
        assert_eq!(
            heard(peer),
            expected,
            "{}",
            String::from_utf8_lossy(request)
        );
    };
    for policy in [
        Policy::Disconnect,
        Policy::DropOldest,
        Policy::DropNewest,
        Policy::Conflate,
        Policy::ConflateByTopic,
        Policy::Block,
    ] {
        let reporter = move |_| Reporter { policy };
        for server in [
            TestServer::over_tcp(Server::builder(), &tw1(), reporter),
            TestServer::over_websocket(Server::builder(), &tw1(), reporter),
            TestServer::over_udp(Server::builder(), &tw1(), reporter),
            TestServer::over_inproc(Server::builder(), &tw1(), reporter),
        ] {
            let mut peer = server.peer();
            for request in [
                &b"publish"[..],
                b"announce",
                b"send",
                b"sender",
                b"twice",
                b"later",
            ] {
                for _ in 0..3 {
                    expected(&mut peer, request);
                }
            }
            drop(peer);
            let metrics = server.stop();
            assert_eq!(metrics.room_in_flight(), 0);
        }
    }
}
