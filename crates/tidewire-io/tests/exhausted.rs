//! Behaviour without free descriptors. It is a file of its own, and thus a process of its own, because the limit that
//! it lowers belongs to the whole process. It is one test, because it must have the process to itself.
#![allow(
    clippy::unwrap_used,
    reason = "a failure in a helper fails the test that called it"
)]

use std::fs::File;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidewire_io::datagram::{DatagramOptions, DatagramSocket};
use tidewire_io::descriptors::raise_descriptor_limit;
use tidewire_io::poller::{Interest, PollerChoice, PollerKind, Token, open};
use tidewire_io::ring::RingStream;
use tidewire_io::socket::{
    AcceptError, Listener, SocketAddress, SocketError, SocketOptions, Stream,
};

#[test]
fn every_operation_reports_the_limit_and_recovers_when_it_is_raised() {
    let options = SocketOptions::default();
    let any_port = SocketAddress::Tcp("127.0.0.1:0".parse().unwrap());
    let listener = Listener::bind(&any_port, &options).unwrap();
    let _client = Stream::connect(listener.local_address()).unwrap();

    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(SOFT),
            ..getrlimit(Resource::Nofile)
        },
    )
    .unwrap();
    // The loop takes all descriptors that are left.
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }

    for _ in 0..2 {
        // The listener accepts twice: the failure does not lose the waiting connection.
        let refused = listener.accept().unwrap_err();
        assert!(matches!(
            refused,
            AcceptError::DescriptorsExhausted { soft: SOFT, .. }
        ));
    }
    let refused = Stream::connect(listener.local_address()).unwrap_err();
    assert!(matches!(
        refused,
        SocketError::DescriptorsExhausted { soft: SOFT, .. }
    ));
    let refused = Listener::bind(&any_port, &options).unwrap_err();
    assert!(matches!(
        refused,
        SocketError::DescriptorsExhausted { soft: SOFT, .. }
    ));
    assert!(refused.to_string().contains("ulimit -n"));
    let any_udp_port = "127.0.0.1:0".parse().unwrap();
    let refused = DatagramSocket::bind(&any_udp_port, &DatagramOptions::default()).unwrap_err();
    assert!(matches!(
        refused,
        SocketError::DescriptorsExhausted { soft: SOFT, .. }
    ));
    let refused = RingStream::pair(65_536).unwrap_err();
    assert_eq!(Errno::from_io_error(&refused), Some(Errno::MFILE));
    for kind in [PollerKind::Epoll, PollerKind::Uring] {
        let refused = open(PollerChoice::Only(kind)).unwrap_err().to_string();
        assert!(refused.contains(&kind.to_string()), "{refused}");
        assert!(refused.contains("ulimit -n"), "{refused}");
    }

    // The automatic choice falls back to the backend that needs no descriptor.
    let mut poller = open(PollerChoice::Auto).unwrap();
    assert_eq!(poller.kind(), PollerKind::Poll);
    poller
        .add(listener.as_fd(), Token(0), Interest::READ)
        .unwrap();

    raise_descriptor_limit().unwrap();
    listener.accept().unwrap();
    assert_eq!(
        open(PollerChoice::Auto).unwrap().kind(),
        PollerKind::Epoll,
        "the first choice where it works"
    );
}

/// More descriptors than a test process has open, and few enough to use up.
const SOFT: u64 = 64;
