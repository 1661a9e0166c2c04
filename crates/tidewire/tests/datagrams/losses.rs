//! Datagrams that do not arrive: each is counted.

use std::sync::mpsc;

use tidewire::{Client, Context, Kind, Message, Server};
use tidewire_io::datagram::DatagramOptions;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_testkit::{DEADLINE, TestServer};

use crate::{codec, echo, frame, one_way, port_of, received, unknown_peer};

#[test]
fn a_burst_into_a_small_buffer_is_delivered_or_counted() {
    const OFFERED: u64 = 3_000;
    let codec = codec("length-field");
    let mut options = DatagramOptions::default();
    options.receive_buffer_bytes = Some(8 * 1024);
    let (started, is_started) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let goes_on = std::sync::Arc::new(std::sync::Mutex::new(goes_on));
    let builder = Server::builder().datagram_options(options);
    let server = TestServer::over_udp(builder, &codec, |_| {
        let (started, goes_on) = (started.clone(), std::sync::Arc::clone(&goes_on));
        move |_: &mut Context<'_>, message: Message<'_>| {
            if message.payload == b"stop" {
                // The lane is blocked while the burst comes.
                started.send(()).unwrap();
                goes_on.lock().unwrap().recv_timeout(DEADLINE).unwrap();
            }
            Ok(())
        }
    });
    let socket = unknown_peer(port_of(&server));
    socket.send(&one_way(&codec, b"stop")).unwrap();
    is_started.recv_timeout(DEADLINE).unwrap();
    for _ in 1..OFFERED {
        socket.send(&one_way(&codec, b"burst")).unwrap();
    }
    go_on.send(()).unwrap();
    let metrics = server.wait_for("all is accounted for", |metrics| {
        metrics.frames_in + metrics.kernel_drops == OFFERED
    });
    assert!(metrics.kernel_drops > 0, "the buffer held all");
    server.stop();
}

#[test]
fn missing_and_late_requests_are_seen_by_their_sequences() {
    let srmp = codec("srmp");
    let server = TestServer::over_udp(Server::builder(), &srmp, |_| echo);
    let socket = unknown_peer(port_of(&server));
    // Numbers 3 and 6 are lost, 5 overtakes 4, 7 comes twice.
    for sequence in [1, 2, 5, 4, 7, 7, 8] {
        let request = Message::with_id(Kind::Request, 0, sequence, b"?");
        socket.send(&frame(&srmp, &request)).unwrap();
        received(&socket);
    }
    let metrics = server.stop();
    assert_eq!((metrics.requests_missing, metrics.requests_late), (3, 1));
}

#[test]
fn nothing_is_missing_where_nothing_was_lost() {
    for name in ["tw1", "srmp"] {
        let codec = AnyCodec::by_name(name).unwrap();
        let server = TestServer::over_udp(Server::builder(), &codec, |_| echo);
        let client = Client::builder()
            .codec(codec)
            .connect(&server.url())
            .wait()
            .unwrap();
        for round in 0..600_u32 {
            let requests: Vec<_> = (0..4)
                .map(|number| client.request(&(round * 4 + number).to_le_bytes()).send())
                .collect();
            for (number, request) in (0_u32..).zip(requests) {
                let reply = request.wait().unwrap();
                assert_eq!(reply.payload(), (round * 4 + number).to_le_bytes());
            }
        }
        client.close().wait();
        let metrics = server.stop();
        assert_eq!(
            (metrics.requests_missing, metrics.requests_late),
            (0, 0),
            "{name}"
        );
        assert_eq!(metrics.kernel_drops, 0);
    }
    assert!(codec("tw1").format().has_ids());
}
