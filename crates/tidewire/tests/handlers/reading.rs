//! Services that pause the reading of a session.

use std::sync::mpsc::{Sender, channel};

use tidewire::{
    Client, Context, HandlerResult, Kind, Message, SendError, Server, Service, SessionHandle,
    SessionId,
};
use tidewire_testkit::fixtures::{echo, tw1};
use tidewire_testkit::{DEADLINE, TestServer};

/// Pauses a session on its request, and resumes a session when another session sends its number.
struct Valve {
    paused: Sender<SessionId>,
}

impl Service for Valve {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        match message.payload.split_first() {
            Some((b'p', _)) => {
                cx.pause_reading();
                // One call is enough to pause, and one to resume.
                cx.pause_reading();
                self.paused.send(cx.id()).unwrap();
            }
            Some((b'r', number)) => {
                let number = std::str::from_utf8(number).unwrap().parse().unwrap();
                cx.resume_reading(SessionId::from_number(number));
            }
            _ => {}
        }
        cx.reply(message.payload)
    }
}

fn valve() -> (
    impl FnMut(usize) -> Valve,
    std::sync::mpsc::Receiver<SessionId>,
) {
    let (sender, paused) = channel();
    let make = move |_| Valve {
        paused: sender.clone(),
    };
    (make, paused)
}

#[test]
fn a_paused_session_is_served_in_order_when_another_one_lets_it_go_on() {
    for transport in [
        TestServer::over_tcp,
        TestServer::over_ipc,
        TestServer::over_inproc,
    ] {
        let (make, paused) = valve();
        let server = transport(Server::builder(), &tw1(), make);
        let mut peer = server.peer();
        // Messages in the same write are read with the message that pauses. Later ones are not.
        let mut frames = Vec::new();
        for payload in ["pause", "one", "two"] {
            frames.extend(peer.request_frame(payload.as_bytes()));
        }
        peer.write(&frames);
        assert_eq!(peer.answer().payload, b"pause");
        let id = paused.recv_timeout(DEADLINE).unwrap();
        peer.ask(b"three");
        let other = Client::connect(&server.url()).wait().unwrap();
        for _ in 0..20 {
            // The lane still handles other sessions.
            other.request(b"hello").wait().unwrap();
        }
        assert_eq!(server.metrics().frames_in, 1 + 1 + 1 + 20, "two hellos");
        let resume = format!("r{}", id.number());
        other.request(resume.as_bytes()).wait().unwrap();
        for payload in ["one", "two", "three"] {
            assert_eq!(peer.answer().payload, payload.as_bytes());
        }
        // Resuming a session that is not paused, or does not exist, has no effect.
        for number in [id.number(), SessionId::NONE.number(), 12_345] {
            let resume = format!("r{number}");
            other.request(resume.as_bytes()).wait().unwrap();
        }
        drop(peer);
        other.close().wait();
        server.stop();
    }
}

#[test]
fn a_handle_pauses_and_resumes_from_another_thread() {
    let server = TestServer::over_tcp(Server::builder().lanes(2), &tw1(), |_| echo);
    let mut peers: Vec<_> = (0..2).map(|_| server.peer()).collect();
    let sessions = server.server().sessions();
    let handles: Vec<SessionHandle> = sessions.list();
    assert_eq!(handles.len(), peers.len());
    for handle in &handles {
        handle.pause_reading().unwrap();
    }
    // The broadcast is after the pause in the lane's mailbox.
    let news = Message::new(Kind::OneWay, 0, b"paused");
    let report = sessions.broadcast_where(|_| true, news).unwrap().wait();
    assert_eq!(report.queued, 2);
    for peer in &mut peers {
        peer.ask(b"hello");
        assert_eq!(peer.receive().unwrap().payload, b"paused");
    }
    let metrics = server.metrics();
    assert_eq!(metrics.frames_in, 2, "the hellos: {metrics:#?}");
    // The lane may see any of these calls. The last call counts.
    for _ in 0..1_000 {
        for handle in &handles {
            handle.resume_reading().unwrap();
            handle.pause_reading().unwrap();
        }
    }
    for handle in &handles {
        handle.resume_reading().unwrap();
    }
    for peer in &mut peers {
        assert_eq!(peer.answer().payload, b"hello");
    }
    drop(peers);
    server.wait_for("the sessions ended", |metrics| {
        metrics.sessions_closed() == 2
    });
    assert_eq!(handles[0].pause_reading(), Err(SendError::NotOpen));
    assert_eq!(handles[0].resume_reading(), Err(SendError::NotOpen));
    server.stop();
}
