//! The conformance suite of the test kit in every cell: transport × poller × codec.

use tidewire_testkit::conformance::{BEHAVIOURS, cells, matrix};
use tidewire_testkit::conformance_suite;

conformance_suite! {
    tcp_epoll_tw1: Tcp, Epoll, Tw1;
    tcp_epoll_lines: Tcp, Epoll, Lines;
    tcp_poll_tw1: Tcp, Poll, Tw1;
    tcp_poll_lines: Tcp, Poll, Lines;
    tcp_select_tw1: Tcp, Select, Tw1;
    tcp_select_lines: Tcp, Select, Lines;
    tcp_uring_tw1: Tcp, Uring, Tw1;
    tcp_uring_lines: Tcp, Uring, Lines;
    ipc_epoll_tw1: Ipc, Epoll, Tw1;
    ipc_epoll_lines: Ipc, Epoll, Lines;
    ipc_poll_tw1: Ipc, Poll, Tw1;
    ipc_poll_lines: Ipc, Poll, Lines;
    ipc_select_tw1: Ipc, Select, Tw1;
    ipc_select_lines: Ipc, Select, Lines;
    ipc_uring_tw1: Ipc, Uring, Tw1;
    ipc_uring_lines: Ipc, Uring, Lines;
    inproc_epoll_tw1: Inproc, Epoll, Tw1;
    inproc_epoll_lines: Inproc, Epoll, Lines;
    inproc_poll_tw1: Inproc, Poll, Tw1;
    inproc_poll_lines: Inproc, Poll, Lines;
    inproc_select_tw1: Inproc, Select, Tw1;
    inproc_select_lines: Inproc, Select, Lines;
    inproc_uring_tw1: Inproc, Uring, Tw1;
    inproc_uring_lines: Inproc, Uring, Lines;
}

#[test]
fn the_matrix_is_complete_and_says_why_a_cell_is_empty() {
    let text = matrix();
    let names: Vec<&str> = BEHAVIOURS.iter().map(|behaviour| behaviour.name).collect();
    assert_eq!(tcp_epoll_tw1::NAMES, names, "every behaviour is a test");
    for setup in cells().filter(|setup| setup.unavailable().is_none()) {
        let skipped: Vec<&str> = BEHAVIOURS
            .iter()
            .filter(|behaviour| behaviour.skipped(&setup).is_some())
            .map(|behaviour| behaviour.name)
            .collect();
        let expected: &[&str] = match setup.codec {
            tidewire_testkit::conformance::CodecKind::Tw1 => &[],
            tidewire_testkit::conformance::CodecKind::Lines => &[
                "members_are_listed",
                "whispers_reach_one_member",
                "leaving_ends_delivery",
                "whispers_cross_lanes",
            ],
        };
        assert_eq!(skipped, expected, "{setup}\n{text}");
    }
}
