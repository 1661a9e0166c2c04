//! Services with one state for all lanes, and one per lane.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tidewire::{
    CloseReason, Context, HandlerResult, Message, Moment, Server, ServerBuilder, Service, handler,
};
use tidewire_testkit::{DEADLINE, Peer, assert_conserved};

use crate::{TRANSPORTS, patient, serve};

/// Counts the messages of all lanes, and answers with the sum so far.
#[derive(Clone, Default)]
struct Counting(Arc<Counts>);

#[derive(Default)]
struct Counts {
    opened: AtomicU64,
    handled: AtomicU64,
    closed: AtomicU64,
    turns: AtomicU64,
    lanes: Mutex<HashSet<usize>>,
}

impl Service for Counting {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        self.0.opened.fetch_add(1, Ordering::SeqCst);
        self.0.lanes.lock().unwrap().insert(cx.lane());
    }

    fn on_message(&mut self, cx: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
        let count = self.0.handled.fetch_add(1, Ordering::SeqCst) + 1;
        cx.reply(&count.to_le_bytes())
    }

    fn on_close(&mut self, _: &mut Context<'_>, _: CloseReason) {
        self.0.closed.fetch_add(1, Ordering::SeqCst);
    }

    fn on_turn(&mut self, _: &mut Context<'_>) -> Option<Moment> {
        self.0.turns.fetch_add(1, Ordering::SeqCst);
        None
    }
}

fn three_lanes() -> ServerBuilder {
    Server::builder().lanes(3).limits(patient())
}

#[test]
fn the_services_of_all_lanes_share_one_state() {
    const REQUESTS: u64 = 100;
    for transport in TRANSPORTS {
        let service = Counting::default();
        let server = serve(transport, three_lanes(), |_| service.clone());
        let asking: Vec<_> = (0..6)
            .map(|_| server.peer())
            .map(|mut peer: Peer| {
                std::thread::spawn(move || {
                    let mut answers = Vec::new();
                    for _ in 0..REQUESTS {
                        peer.ask(b"count");
                        let count = peer.answer().payload;
                        answers.push(u64::from_le_bytes(count[..].try_into().unwrap()));
                    }
                    answers
                })
            })
            .collect();
        let mut seen = HashSet::new();
        for thread in asking {
            seen.extend(thread.join().unwrap());
        }
        // Every number was given once, on any lane.
        assert_eq!(seen, (1..=6 * REQUESTS).collect());
        server.stop();
        assert_eq!(service.0.lanes.lock().unwrap().len(), 3, "{transport}");
        assert_eq!(service.0.opened.load(Ordering::SeqCst), 6);
        assert_eq!(service.0.closed.load(Ordering::SeqCst), 6);
        assert!(service.0.turns.load(Ordering::SeqCst) >= 3);
    }
}

#[test]
fn closures_share_their_clones() {
    let count = Arc::new(AtomicU64::new(0));
    let server = three_lanes()
        .listen("inproc://sessions/shared-closure")
        .unwrap()
        .start(|_| {
            let count = Arc::clone(&count);
            handler(move |cx, _| {
                let count = count.fetch_add(1, Ordering::SeqCst);
                cx.reply(&count.to_le_bytes())
            })
        })
        .unwrap();
    for expected in 0..6_u64 {
        let client = tidewire::Client::connect(&server.to_string())
            .wait()
            .unwrap();
        let answer = client.request(b"").wait().unwrap();
        assert_eq!(answer.payload(), expected.to_le_bytes());
        client.close().wait();
    }
    assert_conserved(&server.shutdown(DEADLINE));
}

#[test]
fn a_service_per_lane_knows_its_lane_only() {
    for transport in TRANSPORTS {
        let server = serve(transport, three_lanes(), |lane| {
            let mut handled = 0_u8;
            move |cx: &mut Context<'_>, _: Message<'_>| {
                assert_eq!(cx.lane(), lane);
                handled += 1;
                cx.reply(&[lane as u8, handled])
            }
        });
        // A connection goes to the lane with the fewest sessions, so all stay open.
        let mut peers: Vec<_> = (0..6).map(|_| server.peer()).collect();
        let ask = |peer: &mut Peer| {
            peer.ask(b"");
            peer.answer().payload
        };
        let mut answers: Vec<Vec<u8>> = peers.iter_mut().map(ask).collect();
        answers.sort();
        let each_lane_twice = [[0, 1], [0, 2], [1, 1], [1, 2], [2, 1], [2, 2]];
        assert_eq!(answers, each_lane_twice);
        drop(peers);
        server.stop();
    }
}
