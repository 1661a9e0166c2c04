//! Both ends of a connection: dropped, spread over lanes, stalled, and within one lane.

use std::sync::mpsc::channel;

use tidewire::{
    Chat, Client, CloseReason, ConnectError, Context, Event, HandlerResult, Kind, Limits, Message,
    Moment, Policy, Server, Service, serve,
};
use tidewire_proto::body::GoAwayCode;
use tidewire_proto::codec::Codec;
use tidewire_testkit::{DEADLINE, Peer, RoomEvent, TestServer, Wire};

use crate::caller::{Caller, CallerEvent, alone, next};
use crate::{codec, echo, endpoint, stop};

#[test]
fn a_dropped_peer_is_a_close() {
    let server = TestServer::over_inproc(Server::builder(), &codec("tw1"), |_| Chat::new());
    let mut ada = server.peer();
    ada.join("lobby", "ada").unwrap();
    let mut bob = server.peer();
    bob.join("lobby", "bob").unwrap();
    ada.hear_of("bob");
    // Half a frame, then the end: the half is no message, and the end is orderly.
    let frame = bob.say_frame(b"never finished");
    bob.write(&frame[..frame.len() - 1]);
    drop(bob);
    let left = tidewire_proto::message::PresenceEvent::Left;
    assert_eq!(
        ada.hear(),
        Some(RoomEvent::Presence(left, "bob".to_owned()))
    );
    // The same before the handshake.
    drop(server.wire());
    server.wait_for("both are counted", |metrics| {
        metrics.closed_by("peer_closed") == 2
    });
    drop(ada);
    server.stop();
}

#[test]
fn a_dropped_server_is_a_close() {
    let server = serve("inproc://leaving", echo).unwrap();
    let client = Client::connect("inproc://leaving").wait().unwrap();
    assert!(matches!(client.next_event().wait(), Event::Opened { .. }));
    drop(server);
    let reason = CloseReason::GoAway(GoAwayCode::Shutdown);
    assert_eq!(
        client.next_event().wait_for(DEADLINE),
        Some(Event::Closed {
            reason,
            text: "the server shut down".into()
        })
    );
    assert_eq!(client.next_event().wait_for(DEADLINE), Some(Event::Ended));
}

#[test]
fn connections_arriving_at_a_lane_that_never_ran_are_closed() {
    let (told, heard) = channel();
    let outcome = Server::builder()
        .listen("inproc://stillborn")
        .unwrap()
        .lanes(2)
        .start(move |lane| {
            if lane == 0 {
                let wire = Wire::connect(&endpoint("inproc://stillborn")).unwrap();
                told.send(wire).unwrap();
            }
            echo
        });
    drop(outcome.unwrap());
    let mut peer = Peer::silent(heard.recv().unwrap(), &codec("tw1"));
    let last = peer.drain().pop();
    assert!(last.is_none_or(|message| message.kind == Kind::GoAway));
}

#[test]
fn first_answers_arrive_while_later_messages_are_handled() {
    let (goes_on, may_go_on) = channel();
    let mut handler = Some(may_go_on);
    let builder = Server::builder();
    let server = TestServer::over_inproc(builder, &codec("length-field"), move |_| {
        let may_go_on = handler.take();
        move |cx: &mut Context<'_>, message: Message<'_>| {
            if message.payload == [HELD_AT; 32]
                && let Some(may_go_on) = &may_go_on
                && may_go_on.recv_timeout(DEADLINE).is_err()
            {
                return cx.reply(b"the first answer was held back");
            }
            cx.reply(message.payload)
        }
    });
    let mut peer = server.peer();
    let mut frames = Vec::new();
    for number in 0..MESSAGES {
        let payload = [number; 32];
        let message = Message::new(Kind::OneWay, 0, &payload);
        codec("length-field").encode(&message, &mut frames).unwrap();
    }
    peer.write(&frames);
    for number in 0..MESSAGES {
        assert_eq!(peer.receive().unwrap().payload, [number; 32]);
        if number == 0 {
            goes_on.send(()).unwrap();
        }
    }
    drop(peer);
    assert_eq!(server.stop().frames_in, u64::from(MESSAGES));
}

/// Sends every new session the number of its lane.
#[derive(Clone)]
struct Greeter;

impl Service for Greeter {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        let lane = cx.lane().to_string();
        cx.send(Message::new(Kind::OneWay, 0, lane.as_bytes()))
            .unwrap();
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        cx.reply(message.payload)
    }
}

#[test]
fn connections_are_spread_over_the_lanes() {
    let builder = Server::builder().lanes(3);
    let server = TestServer::over_inproc(builder, &codec("tw1"), |_| Greeter);
    let mut sessions = [0; 3];
    let mut peers: Vec<Peer> = (0..9).map(|_| server.peer()).collect();
    for peer in &mut peers {
        let lane = String::from_utf8(peer.receive().unwrap().payload).unwrap();
        sessions[lane.parse::<usize>().unwrap()] += 1;
    }
    assert_eq!(sessions, [3, 3, 3]);
    drop(peers);
    server.stop();
}

#[test]
fn the_limit_of_sessions_holds() {
    let mut limits = Limits::default();
    limits.sessions.set_max(1);
    let builder = Server::builder().limits(limits);
    let server = TestServer::over_inproc(builder, &codec("tw1"), |_| echo);
    let first = server.peer();
    let outcome = Client::connect(&server.url()).wait();
    let reason = CloseReason::GoAway(GoAwayCode::LimitReached);
    let Err(ConnectError::Refused {
        reason: found,
        text,
    }) = outcome
    else {
        panic!("{outcome:?}");
    };
    assert_eq!(found, reason);
    assert_eq!(text, "a limit on the number of sessions is reached");
    drop(first);
    assert_eq!(server.stop().sessions_refused, 1);
}

#[test]
fn a_lane_talks_to_itself() {
    let _alone = alone();
    let (told, heard) = channel();
    let server = Server::builder()
        .listen("inproc://myself")
        .unwrap()
        .start(|_| Mirror {
            caller: Caller {
                target: endpoint("inproc://myself"),
                calls: 1,
                told: told.clone(),
            },
        })
        .unwrap();
    assert_eq!(next(&heard), CallerEvent::Called);
    // The same service opens both ends. Only the calling end received its own request.
    let told: Vec<CallerEvent> = (0..3).map(|_| next(&heard)).collect();
    let echoed = CallerEvent::Heard(b"hello".to_vec());
    assert!(told.contains(&echoed), "{told:?}");
    assert_eq!(stop(server).sessions_opened, 2);
}

/// Makes calls, and answers calls.
struct Mirror {
    caller: Caller,
}

impl Service for Mirror {
    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        self.caller.on_turn(cx)
    }

    fn on_open(&mut self, cx: &mut Context<'_>) {
        match cx.session().peer_agent() {
            Some(_) => self.caller.on_open(cx),
            None => self.caller.tell(CallerEvent::Opened(0)),
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        match message.kind {
            Kind::Request => cx.reply(message.payload),
            _ => self.caller.on_message(cx, message),
        }
    }
}

#[test]
fn a_stalled_subscriber_is_dropped_or_closed_without_harm_to_others() {
    const MESSAGES: usize = 2000;
    for (policy, reason) in [
        (Policy::Disconnect, "slow_subscriber"),
        (Policy::DropOldest, "peer_closed"),
    ] {
        let mut limits = Limits::default();
        limits.rooms.set_lag_messages_max(100);
        limits.rooms.set_presence_members_max(0);
        let builder = Server::builder().limits(limits).lanes(2);
        let server =
            TestServer::over_inproc(builder, &codec("tw1"), |_| Chat::new().policy(policy));
        let mut members: Vec<Peer> = ["publisher", "reader", "stalled"]
            .into_iter()
            .map(|name| {
                let mut peer = server.peer();
                peer.join("lobby", name).unwrap();
                peer
            })
            .collect();
        let mut stalled = members.pop().unwrap();
        let payload = [b'x'; 400];
        for _ in 0..MESSAGES {
            members[0].say(&payload);
            assert_eq!(members[1].next_message().1, payload);
        }
        if policy == Policy::Disconnect {
            server.wait_for("the policy fires", |metrics| metrics.closed_by(reason) == 1);
        } else {
            let (mut heard, mut lost) = (0, 0);
            while heard + lost < MESSAGES {
                match stalled.hear() {
                    Some(RoomEvent::Message { .. }) => heard += 1,
                    Some(RoomEvent::Gap(count)) => lost += count as usize,
                    other => panic!("{other:?}"),
                }
            }
            assert!(lost > 0 && heard > 100, "{heard} heard, {lost} lost");
        }
        drop((members, stalled));
        let metrics = server.stop();
        assert!(metrics.room_dropped_total() > 0, "{metrics:#?}");
    }
}

#[test]
fn one_server_serves_sockets_and_names_alike() {
    let server = Server::builder()
        .listen("tcp://127.0.0.1:0")
        .and_then(|builder| builder.listen("inproc://mixed"))
        .unwrap()
        .lanes(2)
        .start(|_| Chat::new())
        .unwrap();
    let peers: Vec<Peer> = server
        .addresses()
        .iter()
        .zip(["tina", "ina"])
        .map(|(address, name)| {
            let mut peer = Peer::greet(Wire::connect(address).unwrap(), &codec("tw1"));
            peer.join("lobby", name).unwrap();
            peer
        })
        .collect();
    let [mut tina, mut ina] = <[Peer; 2]>::try_from(peers).unwrap();
    tina.hear_of("ina");
    ina.hear_of("tina");
    ina.say(b"from within");
    assert_eq!(
        tina.next_message(),
        ("ina".to_owned(), b"from within".to_vec())
    );
    tina.say(b"from afar");
    assert_eq!(
        ina.next_message(),
        ("tina".to_owned(), b"from afar".to_vec())
    );
    drop((tina, ina));
    stop(server);
}

/// More than a lane reads from a ring at once, and the message at which the reader pauses first.
const MESSAGES: u8 = 200;
const HELD_AT: u8 = 190;
