//! Allocations of the threaded client, per request.

use std::collections::VecDeque;

use tidewire::{Client, Request};
use tidewire_io::allocation::{mark_this_thread, marked_allocations};

use crate::{alone, echo, without_pings};

/// Measures both sides of a client, on a separate thread: the test runner allocates on the test's thread after the
/// test, perhaps while the next test counts.
#[test]
fn a_client_allocates_nothing_per_request() {
    let _alone = alone();
    std::thread::spawn(exchange_requests).join().unwrap();
}

/// Sends requests, many at a time and one at a time.
fn exchange_requests() {
    const WARM_UP: usize = 1_000;
    const REQUESTS: usize = 10_000;
    let server = tidewire::serve("tcp://127.0.0.1:0", echo).unwrap();
    let client = Client::builder()
        .limits(without_pings().connections)
        .connect(&server.to_string())
        .wait()
        .unwrap();
    let mut waiting: VecDeque<Request> = VecDeque::with_capacity(100);
    mark_this_thread();
    // Replies that fit the slots, and larger replies.
    for (in_flight, payload_bytes) in [(100, 32), (1, 32), (100, 500), (1, 500)] {
        let payload = &[7; 500][..payload_bytes];
        let mut exchange = |rounds: usize| {
            let mut replies = 0;
            for number in 0..rounds {
                let call = client.request(payload).method(["a", "b"][number % 2]);
                waiting.push_back(call.send());
                if waiting.len() == in_flight {
                    let reply = waiting.pop_front().unwrap().wait().unwrap();
                    assert_eq!(reply.payload(), payload);
                    replies += 1;
                }
            }
            for request in waiting.drain(..) {
                assert_eq!(request.wait().unwrap().payload(), payload);
                replies += 1;
            }
            assert_eq!(replies, rounds, "none lost, none left");
        };
        exchange(WARM_UP);
        let before = (marked_allocations(), client.metrics().allocations);
        exchange(REQUESTS);
        // The lists of requests and replies double until they hold a whole block. That is dozens of allocations at
        // most, and none per request.
        let application = marked_allocations() - before.0;
        let lane = client.metrics().allocations - before.1;
        assert!(
            application <= 20 && lane <= 20,
            "{application} and {lane} with {in_flight} of {payload_bytes} bytes in flight"
        );
    }
    // The hello is a frame too.
    assert_eq!(
        server.metrics().frames_in,
        1 + 4 * (WARM_UP + REQUESTS) as u64
    );
}
