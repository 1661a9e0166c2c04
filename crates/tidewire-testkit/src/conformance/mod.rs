//! The behaviours that every transport, poller and codec must share.
//!
//! A [`Setup`] names one cell of the cube transport × poller × codec. A [`Behaviour`] is a function that starts a
//! server in a cell, or uses the server that the cell's behaviours share, talks to it and checks the ledger at the end.
//! The macro [`conformance_suite!`](crate::conformance_suite) makes the tests of whole transports. A behaviour declares
//! its [`Need`]s, a codec declares the needs that it does not meet, with the reasons, and [`matrix`] shows them.
//!
//! To add a transport, add a variant of [`Transport`] with a way to start a server, and a line in the call of the
//! macro.

mod behaviours;
mod closing;
mod codec;
mod delivery;
mod disorder;
mod echo;
mod flow;
mod handlers;
mod lifecycle;
mod newest;
mod requests;
mod rooms;
mod sessions;
mod shared;
mod spans;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tidewire::{ClientBuilder, Server, ServerBuilder, Service};
use tidewire_io::poller::{self, PollerChoice, PollerKind};
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::limits::FRAME_BYTES_MAX;

pub use behaviours::BEHAVIOURS;
pub use codec::{CodecKind, Need};
pub use shared::run_shared;

use crate::certificates;
use crate::harness::TestServer;
use crate::xor_layer::{XorLayer, layers_of};
use shared::Cell;

/// The transport axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP over the loopback interface.
    Tcp,
    /// TLS over TCP.
    Tls,
    /// WebSocket over TCP.
    Ws,
    /// WebSocket over TLS.
    Wss,
    /// A Unix socket.
    Ipc,
    /// Byte rings within the process.
    Inproc,
    /// UDP over the loopback interface.
    Udp,
}

/// One cell of the cube.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The transport.
    pub transport: Transport,
    /// The poller of the lanes.
    pub poller: PollerKind,
    /// The codec.
    pub codec: CodecKind,
    /// The number of test layers over each connection.
    pub layers: u8,
}

/// One behaviour of every cell, unless its codec does not meet its requirements.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// The name of its tests.
    pub name: &'static str,
    run: Run,
    needs: &'static [Need],
}

#[derive(Clone, Copy)]
enum Run {
    /// The behaviour starts its own server, talks to it, and checks it.
    Alone(fn(&Setup)),
    /// The behaviour uses the server that behaviours of this kind share.
    Shared(fn(&Cell<'_>)),
}

impl Setup {
    /// The codec of this cell.
    #[must_use]
    pub fn codec(&self) -> AnyCodec {
        self.codec.codec()
    }

    /// A server builder with this cell's poller.
    #[must_use]
    pub fn builder(&self) -> ServerBuilder {
        let mut builder = Server::builder().poller(PollerChoice::Only(self.poller));
        if self.transport.is_tls() {
            builder = builder.tls(certificates::usual().1.server());
        }
        if let layers @ 1.. = self.layers {
            builder = builder.layers(move |_| layers_of(layers, XorLayer::accepting));
        }
        // The other codecs cannot validate an address, and the server may send more bytes than it received.
        builder.trust_datagram_peers(self.codec != CodecKind::Tw1)
    }

    /// A client builder with this cell's poller and codec.
    #[must_use]
    pub fn client(&self) -> ClientBuilder {
        let builder = tidewire::Client::builder()
            .poller(PollerChoice::Only(self.poller))
            .codec(self.codec());
        let builder = match self.transport.is_tls() {
            true => builder.tls(certificates::usual().0.client()),
            false => builder,
        };
        match self.layers {
            0 => builder,
            layers => builder.layers(move |_| layers_of(layers, XorLayer::connecting)),
        }
    }

    /// A server with the default limits.
    pub fn serve<S: Service>(&self, make: impl FnMut(usize) -> S) -> TestServer {
        self.serve_with(self.builder(), make)
    }

    /// A server from a builder that was made with [`Setup::builder`].
    pub fn serve_with<S: Service>(
        &self,
        builder: ServerBuilder,
        make: impl FnMut(usize) -> S,
    ) -> TestServer {
        let server = match self.transport {
            Transport::Tcp => TestServer::over_tcp(builder, &self.codec(), make),
            Transport::Tls => TestServer::over_tls(builder, &self.codec(), make),
            Transport::Ws => TestServer::over_websocket(builder, &self.codec(), make),
            Transport::Wss => TestServer::over_secure_websocket(builder, &self.codec(), make),
            Transport::Ipc => TestServer::over_ipc(builder, &self.codec(), make),
            Transport::Inproc => TestServer::over_inproc(builder, &self.codec(), make),
            Transport::Udp => TestServer::over_udp(builder, &self.codec(), make),
        };
        server.with_layers(self.layers)
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        let lacks = self.codec.lacks(need);
        lacks.or(self.transport.lacks(self.codec, need))
    }

    fn payload_sizes(&self) -> Vec<usize> {
        match self.transport {
            Transport::Udp => {
                let codec = self.codec().for_datagrams();
                self.codec.payload_sizes(&codec, DATAGRAM_BYTES_MAX)
            }
            _ => self.codec.payload_sizes(&self.codec(), FRAME_BYTES_MAX),
        }
    }

    /// Returns why this machine cannot run this cell, if it cannot.
    #[must_use]
    pub fn unavailable(&self) -> Option<String> {
        poller::open(PollerChoice::Only(self.poller))
            .err()
            .map(|error| error.to_string())
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (transport, codec) = (self.transport.name(), self.codec.name());
        let layers = ["", "+layer", "+2 layers"][usize::from(self.layers.min(2))];
        write!(formatter, "{transport}{layers} {} {codec}", self.poller)
    }
}

impl Transport {
    /// All transports.
    pub const ALL: [Self; 7] = [
        Self::Tcp,
        Self::Tls,
        Self::Ws,
        Self::Wss,
        Self::Ipc,
        Self::Inproc,
        Self::Udp,
    ];

    /// Whether connections are encrypted, so that a server needs a certificate.
    #[must_use]
    pub const fn is_tls(self) -> bool {
        matches!(self, Self::Tls | Self::Wss)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Ws => "ws",
            Self::Wss => "wss",
            Self::Ipc => "ipc",
            Self::Inproc => "inproc",
            Self::Udp => "udp",
        }
    }

    /// Returns why this codec does not meet a requirement over this transport, although it does over others.
    fn lacks(self, codec: CodecKind, need: Need) -> Option<&'static str> {
        match (self, need) {
            (Self::Udp, Need::Frames | Need::LateReplies) if !codec.codec().format().has_ids() => {
                Some("replies without ids cannot be matched over UDP: requests are refused")
            }
            (Self::Udp, Need::Together) if matches!(codec, CodecKind::Uvrpc) => {
                Some("its datagrams are one frame each, and the test's peer writes many at once")
            }
            (Self::Udp, Need::Pieces) => {
                Some("a datagram holds whole frames; the rest of one never joins the next")
            }
            (Self::Udp, Need::Copies) if !codec.codec().format().has_ids() => {
                Some("replies without ids cannot be matched over UDP: requests are refused")
            }
            (Self::Udp, Need::Copies) => None,
            (_, Need::Copies) => Some("a stream brings each byte once and in order"),
            (Self::Udp, Need::Waiting) => Some(
                "no sender waits for a peer over UDP: messages that it does not take in time are lost",
            ),
            (Self::Udp, Need::Stream) => Some("a datagram without frames is a message"),
            _ => None,
        }
    }
}

impl Behaviour {
    /// Whether it runs on the server that a cell's behaviours share.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self.run, Run::Shared(_))
    }

    /// Returns why this cell does not run the behaviour, if it does not.
    #[must_use]
    pub fn skipped(&self, setup: &Setup) -> Option<String> {
        let lacks = self.needs.iter().find_map(|need| setup.lacks(*need));
        let needless = !self.is_shared()
            && setup.poller != PollerKind::Epoll
            && !setup.codec.is_run_over_every_poller();
        lacks
            .or(needless.then_some(ONE_POLLER_IS_ENOUGH))
            .map(str::to_owned)
            .or_else(|| setup.unavailable())
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Alone(_) => "Alone",
            Self::Shared(_) => "Shared",
        })
    }
}

/// Runs the behaviour of this name in this cell, on its own server, unless the cell skips it.
pub fn run(setup: &Setup, name: &str) {
    let behaviour = BEHAVIOURS
        .iter()
        .find(|behaviour| behaviour.name == name)
        .expect("a behaviour of this name");
    let Run::Alone(run) = behaviour.run else {
        panic!("{name} shares a server");
    };
    if behaviour.skipped(setup).is_none() {
        run(setup);
    }
}

/// Every cell of the cube.
pub fn cells() -> impl Iterator<Item = Setup> {
    let plain = Transport::ALL.map(|transport| (transport, 0));
    let all = plain.into_iter().chain(LAYERED);
    all.flat_map(|(transport, layers)| {
        PollerKind::ALL.into_iter().flat_map(move |poller| {
            CodecKind::ALL.map(|codec| Setup {
                transport,
                poller,
                codec,
                layers,
            })
        })
    })
}

/// Returns the behaviours of each cell as text: one line per cell, then the reasons for skipped cells.
#[must_use]
pub fn matrix() -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let mut reasons: BTreeMap<(&str, String), BTreeSet<&str>> = BTreeMap::new();
    for setup in cells() {
        let mut ran = 0;
        for behaviour in BEHAVIOURS {
            match behaviour.skipped(&setup) {
                None => ran += 1,
                Some(reason) => {
                    let codecs = reasons.entry((behaviour.name, reason)).or_default();
                    codecs.insert(setup.codec.name());
                }
            }
        }
        let all = BEHAVIOURS.len();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:<32} {ran} of {all}", setup.to_string());
    }
    for ((name, reason), codecs) in reasons {
        let codecs: Vec<&str> = codecs.into_iter().collect();
        let _ = writeln!(text, "skipped: {name} over {}: {reason}", codecs.join(", "));
    }
    text
}

/// Makes the tests of these transports, with this many test layers over each connection, over every poller and codec:
/// one for each behaviour with its own server, and one for all behaviours that share a server.
#[macro_export]
macro_rules! conformance_suite {
    ($($name:ident: $transport:ident, $layers:literal;)*) => {
        $(mod $name {
            $crate::conformance_suite!(@poller epoll, $transport $layers, Epoll, every);
            $crate::conformance_suite!(@poller poll, $transport $layers, Poll, some);
            $crate::conformance_suite!(@poller select, $transport $layers, Select, some);
            $crate::conformance_suite!(@poller uring, $transport $layers, Uring, some);
        })*
    };
    (@poller $name:ident, $transport:ident $layers:literal, $poller:ident, $which:ident) => {
        pub(super) mod $name {
            $crate::conformance_suite!(@alone tw1, $transport $layers, $poller, Tw1);
            $crate::conformance_suite!(@alone lines, $transport $layers, $poller, Lines);
            $crate::conformance_suite!(@$which json, $transport $layers, $poller, Json);
            $crate::conformance_suite!(@$which srmp, $transport $layers, $poller, Srmp);
            $crate::conformance_suite!(@$which srmp_rpc, $transport $layers, $poller, SrmpRpc);
            $crate::conformance_suite!(@$which length_field, $transport $layers, $poller, LengthField);
            $crate::conformance_suite!(@$which delimited, $transport $layers, $poller, Delimited);
            $crate::conformance_suite!(@$which uvrpc, $transport $layers, $poller, Uvrpc);
            $crate::conformance_suite!(@$which raw, $transport $layers, $poller, Raw);
            $crate::conformance_suite!(@$which custom, $transport $layers, $poller, Custom);
        }
    };
    (@every $name:ident, $transport:ident $layers:literal, $poller:ident, $codec:ident) => {
        $crate::conformance_suite!(@alone $name, $transport $layers, $poller, $codec);
    };
    (@some $name:ident, $transport:ident $layers:literal, $poller:ident, $codec:ident) => {
        $crate::conformance_suite!(@tests $name, $transport $layers, $poller, $codec,);
    };
    (@alone $name:ident, $transport:ident $layers:literal, $poller:ident, $codec:ident) => {
        $crate::conformance_suite!(@tests $name, $transport $layers, $poller, $codec,
            echo_of_many_sizes
            pipelined_requests_get_their_own_replies
            many_sessions_at_once
            half_closed_clients_get_their_answers
            streams_come_back_whole
            one_byte_at_a_time
            frames_split_anywhere
            messages_of_one_turn_share_a_write
            peers_that_read_nothing_are_paused
            dribbling_readers_get_everything
            stalled_subscribers_hear_the_newest_of_each_topic
            draining_answers_accepted_requests
            closes_follow_earlier_messages
            copies_of_datagrams_change_nothing
            silent_peers_are_closed_although_they_are_sent_messages
            clients_reconnect_after_a_restart
            lazy_clients_connect_at_their_first_use
            subscriptions_are_made_again_after_a_restart
            everyone_but_the_sender_hears
            names_are_unique_and_may_be_retried
            presence_tells_who_comes_and_goes
            members_are_listed
            whispers_reach_one_member
            leaving_ends_delivery
            members_that_close_have_left
            rooms_span_two_lanes
            rooms_span_three_lanes
            whispers_cross_lanes
            messages_of_threads_arrive
            broadcasts_reach_the_chosen_sessions
            state_and_timers_belong_to_a_session
            a_paused_session_goes_on_where_it_stopped
            a_session_above_its_rate_waits
            messages_above_the_rate_are_refused
        );
    };
    (@tests $module:ident, $transport:ident $layers:literal, $poller:ident, $codec:ident, $($name:ident)*) => {
        pub(crate) mod $module {
            use $crate::conformance::{CodecKind, Setup, Transport, run_shared};

            const SETUP: Setup = Setup {
                transport: Transport::$transport,
                poller: tidewire_io::poller::PollerKind::$poller,
                codec: CodecKind::$codec,
                layers: $layers,
            };

            /// The tests of this cell, so that none can be missing.
            pub(crate) const TESTS: (Setup, &[&str]) = (SETUP, &[$(stringify!($name)),*]);

            #[test]
            fn behaviours_that_share_a_server() { run_shared(&SETUP); }

            $(#[test] fn $name() { $crate::conformance::run(&SETUP, stringify!($name)); })*
        }
    };
}

/// The transports that are also tested with layers over them, with the number of layers.
pub const LAYERED: [(Transport, u8); 3] = [
    (Transport::Tcp, 1),
    (Transport::Ipc, 1),
    (Transport::Tcp, 2),
];

/// The largest payload of a datagram over IPv4.
const DATAGRAM_BYTES_MAX: usize = 65_507;

const ONE_POLLER_IS_ENOUGH: &str =
    "a poller sees no codec: run over epoll, and what shares a server over every poller";
