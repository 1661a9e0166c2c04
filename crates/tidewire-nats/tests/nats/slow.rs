//! A node that takes nothing from NATS, which cuts it off, and does not slow the others.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

use tidewire::{Chat, Server};
use tidewire_nats::Nats;
use tidewire_testkit::TestServer;
use tidewire_testkit::backplane::suite::{chat, member, settings};
use tidewire_testkit::fixtures::tw1;

use crate::{NatsEngine, announced, count_to};

/// A way to NATS on which its bytes can be held up.
struct Strait {
    address: SocketAddr,
    valve: Arc<Valve>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Valve {
    /// Whether nothing passes, and whether no more connections are taken.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Valve {
    fn set(&self, is_shut: bool, has_ended: bool) {
        *self.state.lock().expect("no panic") = (is_shut, has_ended);
        self.changed.notify_all();
    }

    /// Waits while it is shut. Returns whether to continue.
    fn pass(&self) -> bool {
        let state = self.state.lock().expect("no panic");
        let is_shut = |(is_shut, has_ended): &mut (bool, bool)| *is_shut && !*has_ended;
        let state = self.changed.wait_while(state, is_shut).expect("no panic");
        !state.1
    }
}

impl Strait {
    fn open(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let valve = Arc::new(Valve::default());
        let of_thread = Arc::clone(&valve);
        let accepting = thread::spawn(move || {
            let mut copying = Vec::new();
            for node in listener.incoming().map_while(Result::ok) {
                if of_thread.state.lock().expect("no panic").1 {
                    break;
                }
                let nats = TcpStream::connect(("127.0.0.1", port)).expect("NATS");
                let [from, to] = [&node, &nats].map(|it| it.try_clone().expect("a descriptor"));
                copying.push(thread::spawn(move || copy(from, to, || true)));
                let valve = Arc::clone(&of_thread);
                copying.push(thread::spawn(move || copy(nats, node, || valve.pass())));
            }
            copying
                .into_iter()
                .for_each(|thread| thread.join().expect("no panic"));
        });
        let accepting = Some(accepting);
        Self {
            address,
            valve,
            accepting,
        }
    }
}

impl Drop for Strait {
    fn drop(&mut self) {
        self.valve.set(false, true);
        // The thread accepts this connection, and sees the end.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
    }
}

/// Copies until one side ends, and then ends the other.
fn copy(mut from: TcpStream, mut to: TcpStream, goes_on: impl Fn() -> bool) {
    let mut buffer = vec![0; 64 << 10];
    while goes_on()
        && let Ok(count @ 1..) = from.read(&mut buffer)
        && to.write_all(&buffer[..count]).is_ok()
    {}
    for side in [from, to] {
        // The socket may be closed already.
        let _ = side.shutdown(Shutdown::Both);
    }
}

/// Members of the node are told the exact number of messages that NATS drops, and the members of the third node receive
/// everything.
#[test]
fn a_node_that_takes_nothing_is_cut_off_and_slows_no_other() {
    const BYTES: usize = 16 << 10;
    /// The third node may have no more to take than NATS keeps for it.
    const AT_ONCE: u64 = 16;
    const MESSAGES: u64 = 3_200;
    let Some(engine) = NatsEngine::start("max_pending: 1MB, write_deadline: \"2s\"") else {
        return;
    };
    let strait = Strait::open(engine.server.port());
    let [one, three] = ["one", "three"].map(|id| chat(&engine, id));
    let nats = Nats::new(&format!("nats://{}", strait.address)).expect("a valid address");
    let builder = Server::builder().backplane(nats, settings("slow"));
    let slow = TestServer::over_tcp(builder, &tw1(), |_| Chat::new());
    let (mut ann, mut carl) = (member(&one, "ann"), member(&three, "carl"));
    let mut bob = member(&slow, "bob");
    ann.hear_of("carl");
    ann.hear_of("bob");
    let mut payload = vec![b'x'; BYTES];
    let mut say = |number: u64| {
        payload[..8].copy_from_slice(&number.to_le_bytes());
        ann.say(&payload);
    };
    say(0);
    for peer in [&mut bob, &mut carl] {
        assert_eq!(count_to(peer, 0), (1, 0));
    }
    strait.valve.set(true, false);
    for first in (1..MESSAGES).step_by(AT_ONCE as usize) {
        let last = (first + AT_ONCE).min(MESSAGES) - 1;
        (first..=last).for_each(&mut say);
        assert_eq!(count_to(&mut carl, last), (last - first + 1, 0));
    }
    strait.valve.set(false, false);
    slow.wait_for("it is back", |metrics| metrics.backplane_reconnects > 0);
    // NATS has the node's subscriptions when it passes on the node's next message. One that comes before them is lost,
    // and a gap.
    bob.say(b"back");
    announced(&mut carl, "back");
    say(MESSAGES);
    let (got, lost) = count_to(&mut bob, MESSAGES);
    drop((ann, bob, carl));
    assert_eq!(one.stop().backplane_sent, MESSAGES + 1);
    let metrics = slow.stop();
    assert_eq!(
        metrics.backplane_received + metrics.backplane_lost,
        MESSAGES + 1
    );
    assert!(metrics.backplane_lost > 0);
    // A slow lane drops announcements and presence, too, which are no messages.
    let dropped = metrics.backplane_dropped;
    assert_eq!(metrics.backplane_lost + dropped, lost);
    assert!((0..=dropped).contains(&(got + lost - MESSAGES)));
    let metrics = three.stop();
    assert_eq!(
        (metrics.backplane_received, metrics.backplane_lost),
        (MESSAGES + 2, 0)
    );
}
