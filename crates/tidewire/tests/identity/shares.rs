//! The memory account attacked by one user and by fifty, from the address of the victims: one victim connects before
//! the attack, another later.

use tidewire::auth::{AuthOutcome, AuthRequest};
use tidewire::{Kind, Limits, PubSub};
use tidewire_proto::body::{GoAwayBody, SubscribeBody};
use tidewire_testkit::{Peer, Wire};

use super::*;

/// Takes the credentials for the name of the user.
#[derive(Debug)]
struct ByName;

impl Authenticate for ByName {
    fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
        let name = std::str::from_utf8(request.token()).unwrap();
        AuthOutcome::admit(everything(name))
    }
}

/// Connects as a user. `None` if the server refuses, and then the peer knows why.
fn enter(server: &Server, user: &str) -> Option<Peer> {
    let codec = AnyCodec::by_name("tw1").unwrap();
    let mut peer = Peer::silent(Wire::Tcp(greet(server, user.as_bytes())), &codec);
    let answer = peer.receive().expect("an answer, not the end");
    if answer.kind == Kind::GoAway {
        let told = GoAwayBody::decode(&answer.payload).unwrap();
        assert_eq!(told.code, GoAwayCode::LimitReached, "{}", told.text);
        return None;
    }
    assert_eq!(answer.kind, Kind::Welcome);
    Some(peer)
}

/// Sends subscriptions to these topics. Returns the number that the server accepts; `None` if the session has ended.
fn subscribe(peer: &mut Peer, topics: &[String]) -> Option<usize> {
    let mut frames = 0;
    for topic in topics {
        let mut body = Vec::new();
        let (policy, pattern) = (None, &**topic);
        SubscribeBody {
            policy,
            pattern,
            group: None,
        }
        .encode(&mut body);
        frames += 1;
        peer.send(&Message::with_id(Kind::Subscribe, 0, frames, &body));
    }
    let (mut answers, mut agreed) = (0, 0);
    while answers < topics.len() {
        let answer = peer.receive()?;
        answers += usize::from(answer.id > 0);
        agreed += usize::from(answer.id > 0 && answer.kind == Kind::Reply);
    }
    Some(agreed)
}

/// Publishes to itself, and receives everything.
fn exchange(peer: &mut Peer, topic: &str) {
    for number in 0..20_u8 {
        peer.send(&Message::new(Kind::Publish, 0, &[number]).with_name(topic));
        let heard = std::iter::from_fn(|| peer.receive());
        let heard = heard.into_iter().find(|it| it.kind != Kind::Ping);
        assert_eq!(heard.expect("a message, not the end").payload, [number]);
    }
}

/// Regression: a user above its share was admitted while its address was within the address's share, and its sessions
/// were closed only when nothing could grow.
#[test]
fn a_user_that_holds_much_is_refused_before_other_users_of_its_address_notice_anything() {
    for attackers in [1, 50] {
        let mut limits = Limits::default();
        limits.memory.set_bytes_max(4 << 20);
        let builder = Server::builder().authenticate(ByName).limits(limits);
        let builder = builder.lanes(1).listen("tcp://127.0.0.1:0").unwrap();
        let server = builder.start(|_| PubSub::new()).unwrap();
        let victim = |name: &str| {
            let mut peer = enter(&server, name).expect("it has its share");
            let agreed = subscribe(&mut peer, &[name.to_owned()]);
            assert_eq!(agreed, Some(1));
            exchange(&mut peer, name);
            peer
        };
        let mut before = victim("before");
        let topics: Vec<_> = (0..256).map(|number| format!("s.{number}")).collect();
        let (mut held, mut refused) = (Vec::new(), 0);
        for round in 0.. {
            match enter(&server, &format!("a{}", round % attackers)) {
                Some(mut peer) => {
                    subscribe(&mut peer, &topics);
                    held.push(peer);
                }
                None => refused += 1,
            }
            if refused > 20 {
                break;
            }
        }
        exchange(&mut before, "before");
        let mut after = victim("after");
        let more: Vec<_> = (0..50).map(|number| format!("more.{number}")).collect();
        assert_eq!(subscribe(&mut after, &more), Some(50));
        exchange(&mut after, "after");
        // The oldest session of an attacker stays, and may not grow.
        let agreed = subscribe(&mut held[0], &[String::from("one.more")]);
        assert_eq!(agreed, Some(0));
        let metrics = server.metrics();
        assert!(metrics.memory_refused_sessions >= 20);
        assert_eq!(metrics.memory_refused_messages, 0);
        drop((held, before, after));
        let stopped = server.shutdown(tidewire_testkit::DEADLINE);
        tidewire_testkit::assert_conserved(&stopped);
    }
}
