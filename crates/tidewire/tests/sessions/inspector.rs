//! Figures of lanes, sessions and rooms for other threads.

use std::collections::HashSet;
use std::sync::mpsc;
use std::time::Duration;

use tidewire::{Client, Context, Message, Policy, PubSub, ServeError, Server};
use tidewire_testkit::fixtures::echo;
use tidewire_testkit::wait_until;

/// Long enough for a busy machine. A test that fails waits for it.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn every_session_is_visited_once_in_several_pieces() {
    let server = Server::builder()
        .listen("inproc://inspected")
        .unwrap()
        .lanes(2)
        .start(|_| echo)
        .unwrap();
    let clients: Vec<Client> = (0..600)
        .map(|_| Client::connect("inproc://inspected").wait().unwrap())
        .collect();
    for client in &clients {
        client.request(b"hello").wait().unwrap();
    }
    let mut seen = HashSet::new();
    let inspector = server.inspector();
    inspector
        .sessions(LONG, |session| {
            assert!(seen.insert(session.id), "{} came twice", session.id);
            assert_eq!((session.queued_bytes, session.lag), (0, None));
            assert!(session.memory_bytes > 0 && !session.is_outgoing);
        })
        .unwrap();
    assert_eq!(seen.len(), clients.len());
    let lanes = inspector.lanes(LONG);
    let figures: Vec<_> = lanes.into_iter().flatten().collect();
    assert_eq!(figures.len(), 2);
    assert_eq!(figures.iter().map(|lane| lane.sessions).sum::<usize>(), 600);
    assert!(
        figures
            .iter()
            .all(|lane| lane.session_bytes <= lane.memory_bytes)
    );
    assert!(figures.iter().all(|lane| lane.cpu > Duration::ZERO));
    drop(server);
    assert_eq!(inspector.lanes(LONG), [None, None]);
    let ended = inspector.sessions(LONG, |_| {}).unwrap_err();
    assert!(matches!(ended, ServeError::LaneEnded { lane: 0 }));
}

#[test]
fn rooms_and_the_lag_of_subscribers_are_shown() {
    let server = Server::builder()
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .slow_subscribers(Policy::DropOldest)
        .start(|_| PubSub::new())
        .unwrap();
    let client = Client::connect(&server.to_string()).wait().unwrap();
    let _topic = client.subscribe("a.b").wait().unwrap();
    let _pattern = client.subscribe("c.>").wait().unwrap();
    client.publish("a.b", b"news").unwrap();
    wait_until("the message is counted", || {
        let rooms = server.inspector().rooms(LONG).unwrap();
        let mut names: Vec<_> = rooms
            .iter()
            .map(|room| {
                (
                    room.name.as_str(),
                    room.members,
                    room.messages,
                    room.is_topic,
                )
            })
            .collect();
        names.sort_unstable();
        (names == [("a.b", 1, 1, true), ("c.>", 1, 0, true)]).then_some(())
    });
    let mut sessions = Vec::new();
    let visit = |session| sessions.push(session);
    server.inspector().sessions(LONG, visit).unwrap();
    let [session] = &sessions[..] else {
        panic!("{sessions:?}");
    };
    assert_eq!((session.topics, session.rooms), (2, 0));
}

/// A watchdog asks again and again. A lane that hangs must not collect the questions.
#[test]
fn a_lane_that_does_not_turn_is_asked_once_and_answers_when_it_turns_again() {
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let mut handler = Some((enter, left));
    let server = Server::builder()
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .start(|_| {
            let (enter, left) = handler.take().unwrap();
            move |cx: &mut Context<'_>, message: Message<'_>| {
                enter.send(()).unwrap();
                left.recv().unwrap();
                cx.reply(message.payload)
            }
        })
        .unwrap();
    let client = Client::connect(&server.to_string()).wait().unwrap();
    let request = client.request(b"wait").send();
    entered.recv().unwrap();
    let inspector = server.inspector();
    for _ in 0..1000 {
        assert_eq!(inspector.lanes(Duration::ZERO), [None]);
    }
    let late = inspector.sessions(Duration::ZERO, |_| {}).unwrap_err();
    assert!(matches!(late, ServeError::LaneLate { lane: 0 }));
    leave.send(()).unwrap();
    request.wait().unwrap();
    let answered = || inspector.lanes(LONG)[0];
    assert!(wait_until("the lane turns again", answered).sessions == 1);
}
