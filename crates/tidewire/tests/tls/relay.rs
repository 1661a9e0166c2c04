//! A relay between a client and a server that cuts the stream: into single bytes, or off.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tidewire::{Client, CloseReason, Event};
use tidewire_testkit::TestServer;
use tidewire_testkit::certificates::usual;

use crate::{ask, serve};

/// Carries one connection, with a settable number of bytes at once.
struct Relay {
    address: String,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
    thread: JoinHandle<()>,
}

impl Relay {
    fn start(server: &TestServer, piece_bytes: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tls://{}", listener.local_addr().unwrap());
        let to: SocketAddr = server.url().replace("tls://", "").parse().unwrap();
        let sockets = Arc::new(Mutex::new(Vec::new()));
        let both = Arc::clone(&sockets);
        let thread = std::thread::spawn(move || {
            let (near, _) = listener.accept().unwrap();
            let far = TcpStream::connect(to).unwrap();
            for socket in [&near, &far] {
                socket.set_nodelay(true).unwrap();
                both.lock().unwrap().push(socket.try_clone().unwrap());
            }
            let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let back = std::thread::spawn(move || carry(far_too, near_too, piece_bytes));
            carry(near, far, piece_bytes);
            back.join().unwrap();
        });
        Self {
            address,
            sockets,
            thread,
        }
    }

    /// Ends both connections, without the records of TLS.
    fn cut(self) {
        for socket in self.sockets.lock().unwrap().iter() {
            // The call fails if the other side has ended.
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.thread.join().unwrap();
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, piece_bytes: usize) {
    let mut buffer = vec![0; piece_bytes];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) if to.write_all(&buffer[..count]).is_ok() => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    // The call fails if the socket has ended.
    let _ = to.shutdown(Shutdown::Write);
}

fn connect(relay: &Relay) -> Client {
    let builder = Client::builder().tls(usual().0.client());
    builder.connect(&relay.address).wait().unwrap()
}

#[test]
fn a_handshake_and_messages_pass_byte_by_byte() {
    let server = serve(usual().1.server());
    let relay = Relay::start(&server, 1);
    let client = connect(&relay);
    for bytes in [0, 1, 100, 5_000] {
        ask(&client, &vec![7; bytes]);
    }
    client.close().wait();
    relay.thread.join().unwrap();
    let metrics = server.stop();
    assert_eq!(
        metrics.closed_by("peer_reset") + metrics.closed_by("layer"),
        0
    );
}

#[test]
fn a_cut_between_the_sides_is_a_reset_on_both() {
    let server = serve(usual().1.server());
    let relay = Relay::start(&server, 4_096);
    let client = connect(&relay);
    ask(&client, b"hello");
    relay.cut();
    let metrics = server.wait_for("the server knows", |metrics| metrics.sessions_closed() == 1);
    assert_eq!(metrics.closed_by("peer_reset"), 1, "{metrics:?}");
    let reason = loop {
        match client.next_event().wait() {
            Event::Closed { reason, .. } => break reason,
            Event::Opened { .. } => {}
            other => panic!("another event: {other:?}"),
        }
    };
    assert_eq!(reason, CloseReason::PeerReset);
    assert!(client.request(b"too late").wait().is_err());
    server.stop();
}
