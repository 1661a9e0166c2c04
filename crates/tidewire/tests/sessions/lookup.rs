//! Finding a session by its number, and its properties.

use std::collections::HashSet;

use tidewire::{
    Client, Context, HandlerResult, Message, SendError, Server, Service, SessionId, TransportKind,
};
use tidewire_testkit::{TestServer, wait_until};

use crate::{Scene, TRANSPORTS, news, patient, tw1};

#[test]
fn a_session_is_found_with_its_facts_until_it_ends() {
    for transport in TRANSPORTS {
        let scene = Scene::set(transport, 2, patient());
        let sessions = scene.server.server().sessions();
        let (mut ada, ada_id) = scene.peer();
        let (bob, bob_id) = scene.peer();
        ada.ask(&[77]);
        ada.answer();

        let found = sessions.find(ada_id).unwrap();
        assert!(found.is_open() && !found.is_outgoing());
        assert_eq!(found.id(), ada_id);
        assert_eq!(found.transport(), transport);
        assert_eq!(found.codec().name(), "tw1");
        assert_eq!(found.peer().is_some(), transport == TransportKind::Tcp);
        let credentials = found.peer_credentials();
        assert_eq!(credentials.is_some(), transport == TransportKind::Ipc);
        if let Some(credentials) = credentials {
            // Both ends are in this process.
            assert_eq!(credentials.process_id, std::process::id());
        }
        let other = sessions.find(bob_id).unwrap();
        assert_ne!(found.lane(), other.lane());
        assert!(found.opened_at() <= other.opened_at());

        let listed: HashSet<SessionId> = sessions.list().iter().map(|one| one.id()).collect();
        assert_eq!(listed, HashSet::from([ada_id, bob_id]));
        drop(ada);
        wait_until("the table forgets it", || {
            sessions.find(ada_id).is_none().then_some(())
        });
        assert!(!found.is_open());
        assert_eq!(found.send(news(b"late")), Err(SendError::NotOpen));
        assert_eq!(found.close(), Err(SendError::NotOpen));
        assert_eq!(
            sessions.send_to(ada_id, &news(b"late")),
            Err(SendError::NotOpen)
        );
        assert_eq!(sessions.close(ada_id), Err(SendError::NotOpen));
        assert_eq!(sessions.list().len(), 1);

        drop(bob);
        let metrics = scene.server.stop();
        assert_eq!((metrics.sends_taken, metrics.sends_undelivered), (0, 0));
        assert!(sessions.list().is_empty(), "the server is gone");
        assert_eq!(
            sessions.send_to(bob_id, &news(b"late")),
            Err(SendError::NotOpen)
        );
    }
}

/// Answers whether a session is open, on any lane, and which session sent the request.
struct Curious;

impl Service for Curious {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let known = match message.payload.first_chunk::<8>() {
            Some(number) => {
                let id = SessionId::from_number(u64::from_le_bytes(*number));
                cx.sessions().find(id).is_some_and(|found| found.is_open())
            }
            None => return cx.reply(&cx.id().number().to_le_bytes()),
        };
        assert_eq!(cx.session().transport(), Some(TransportKind::Ipc));
        let credentials = cx.session().peer_credentials().unwrap();
        assert_eq!(credentials.process_id, std::process::id());
        cx.reply(&[u8::from(known)])
    }
}

#[test]
fn a_handler_finds_sessions_of_other_lanes() {
    let server = TestServer::over_ipc(Server::builder().lanes(2), &tw1(), |_| Curious);
    let asking = Client::connect(&server.url()).wait().unwrap();
    let other = Client::connect(&server.url()).wait().unwrap();
    let number = other.request(b"").wait().unwrap().payload().to_vec();
    let answer = asking.request(&number).wait().unwrap();
    assert_eq!(answer.payload(), [1]);
    other.close().wait();
    server.wait_for("it ends", |metrics| metrics.sessions_closed() == 1);
    let answer = asking.request(&number).wait().unwrap();
    assert_eq!(answer.payload(), [0]);
    asking.close().wait();
    server.stop();
}
