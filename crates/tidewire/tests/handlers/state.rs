//! State that a service attaches to sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidewire::{
    Client, CloseReason, Context, HandlerResult, Kind, Message, Moment, Server, Service,
};
use tidewire_testkit::TestServer;
use tidewire_testkit::fixtures::tw1;

/// Counts the live instances.
struct Account {
    name: String,
    alive: Arc<AtomicUsize>,
}

impl Account {
    fn new(name: &str, alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::SeqCst);
        Self {
            name: name.to_owned(),
            alive: Arc::clone(alive),
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Messages(u32);

/// A request names the session's account. The answer has the former name and the number of messages.
struct Bank {
    alive: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
}

impl Service for Bank {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        assert!(cx.set_state(Messages(0)).is_none());
        assert!(
            cx.state::<Account>().is_none(),
            "a state of another type is not found"
        );
    }

    fn on_request(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let name = std::str::from_utf8(message.payload)
            .unwrap_or("")
            .to_owned();
        let messages = cx.state_mut::<Messages>().unwrap();
        messages.0 += 1;
        let count = messages.0;
        let former = match name.as_str() {
            "" => cx.take_state::<Account>(),
            name => cx.set_state(Account::new(name, &self.alive)),
        };
        let former = former.as_ref().map_or("none", |account| &account.name);
        cx.reply(format!("{former} {count}").as_bytes())
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        // A type that is not counted, since the test may check at any time.
        assert!(cx.set_state(Messages(0)).is_none());
        assert!(cx.state::<Messages>().is_none());
        assert!(cx.take_state::<Messages>().is_none());
        None
    }

    fn on_close(&mut self, cx: &mut Context<'_>, _: CloseReason) {
        if let Some(account) = cx.state::<Account>() {
            assert_eq!(account.name, "ada");
            self.closed.fetch_add(1, Ordering::SeqCst);
        }
        // The session has ended, so the state is not kept.
        assert!(cx.set_state(Account::new("late", &self.alive)).is_none());
        let kept = cx.state::<Account>();
        assert!(kept.is_none_or(|account| account.name == "ada"));
    }
}

#[test]
fn a_session_has_one_state_of_each_type_until_it_ends() {
    let (alive, closed) = (Arc::default(), Arc::default());
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| Bank {
        alive: Arc::clone(&alive),
        closed: Arc::clone(&closed),
    });
    let (one, other) = (
        Client::connect(&server.url()).wait().unwrap(),
        Client::connect(&server.url()).wait().unwrap(),
    );
    let ask = |client: &Client, name: &str| {
        let reply = client.request(name.as_bytes()).wait().unwrap();
        String::from_utf8(reply.payload().to_vec()).unwrap()
    };
    assert_eq!(ask(&one, "bob"), "none 1");
    assert_eq!(ask(&one, "eve"), "bob 2");
    assert_eq!(ask(&one, ""), "eve 3");
    assert_eq!(ask(&one, "ada"), "none 4");
    assert_eq!(ask(&other, "ada"), "none 1");
    assert_eq!(alive.load(Ordering::SeqCst), 2);
    one.close().wait();
    server.wait_for("the session ended", |metrics| {
        metrics.sessions_closed() == 1
    });
    let at_server = [closed.load(Ordering::SeqCst), alive.load(Ordering::SeqCst)];
    assert_eq!(at_server, [1, 1], "seen by on_close, and dropped");
    // The state of a session that the server ends is dropped, too.
    server.stop();
    assert_eq!(closed.load(Ordering::SeqCst), 2);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

/// Predicates run on the lanes, where the state is.
#[test]
fn a_broadcast_chooses_by_state() {
    let (alive, closed) = (Arc::default(), Arc::default());
    let server = TestServer::over_tcp(Server::builder().lanes(2), &tw1(), |_| Bank {
        alive: Arc::clone(&alive),
        closed: Arc::clone(&closed),
    });
    let mut peers = Vec::new();
    for name in ["ada", "bob", "ada"] {
        let mut peer = server.peer();
        peer.ask(name.as_bytes());
        peer.answer();
        peers.push(peer);
    }
    let news = Message::new(Kind::OneWay, 0, b"news");
    let is_ada = |session: &tidewire::SessionView<'_>| {
        assert!(session.state::<u8>().is_none());
        let account = session.state::<Account>();
        account.is_some_and(|account| account.name == "ada")
    };
    let broadcast = server.server().sessions().broadcast_where(is_ada, news);
    let report = broadcast.unwrap().wait();
    assert_eq!((report.matched, report.queued), (2, 2));
    for peer in [0, 2] {
        assert_eq!(peers[peer].receive().unwrap().payload, b"news");
    }
    // `on_close` would report a session whose account is not ada's.
    peers[1].ask(b"ada");
    peers[1].answer();
    drop(peers);
    server.stop();
}
