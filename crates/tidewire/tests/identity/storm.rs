//! Many peers that come at once to an authenticator that takes its time on the lane.

use std::io::Read as _;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use tidewire::auth::{AuthOutcome, AuthRequest};
use tidewire_testkit::wait_until;

use super::*;

/// Notes the tokens, and computes for some milliseconds before it admits a peer.
#[derive(Clone, Default)]
struct Costly(Arc<Mutex<Vec<Vec<u8>>>>);

impl Authenticate for Costly {
    fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
        self.0.lock().unwrap().push(request.token().to_vec());
        if request.token() != b"at-once" {
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(6) {}
        }
        AuthOutcome::admit(Identity::new("ali", Permissions::everything()))
    }
}

#[test]
fn a_herd_at_a_costly_authenticator_is_let_in_over_several_turns() {
    let costly = Costly::default();
    let server = serve_with(costly.clone(), |_| tell_name);
    let peers: Vec<TcpStream> = (0..50).map(|_| greet(&server, b"slow")).collect();
    for mut peer in peers {
        // The welcome.
        assert!(peer.read(&mut [0; 100]).unwrap() > 0);
    }
    let metrics = server.metrics();
    assert_eq!(metrics.authenticated, 50);
    assert_eq!(costly.0.lock().unwrap().len(), 50);
    assert!(metrics.handshakes_deferred > 0, "they shared several turns");
}

/// Regression: peers that had given up kept others waiting for the authenticator, until the others gave up, too.
#[test]
fn an_authenticator_is_asked_first_about_peers_that_are_still_there() {
    let costly = Costly::default();
    let (begin, begun) = channel();
    let (go_on, gate) = channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let builder = Server::builder().lanes(1).authenticate(costly.clone());
    let server = builder
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .start(|_| {
            let (begin, gate) = (begin.clone(), Arc::clone(&gate));
            move |cx: &mut Context<'_>, message: Message<'_>| -> HandlerResult {
                begin.send(()).unwrap();
                gate.lock().unwrap().recv().unwrap();
                cx.reply(message.payload)
            }
        })
        .unwrap();
    let client = connect(&server, Some(&Token::new("at-once").unwrap())).unwrap();
    let mut late = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.request(b"stand still").wait());
        begun.recv().unwrap();
        for _ in 0..30 {
            drop(greet(&server, b"gone"));
        }
        let late = greet(&server, b"there");
        go_on.send(()).unwrap();
        waiting.join().unwrap().unwrap();
        late
    });
    assert!(late.read(&mut [0; 100]).unwrap() > 0, "the welcome");
    let asked = wait_until("it was asked about all", || {
        let asked = costly.0.lock().unwrap();
        (asked.len() == 32).then(|| asked.clone())
    });
    assert_eq!(asked[..2], [b"at-once".to_vec(), b"there".to_vec()]);
    assert_eq!(asked[31], b"gone");
}
