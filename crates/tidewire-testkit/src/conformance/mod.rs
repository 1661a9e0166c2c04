//! What every transport, poller and codec must do alike.
//!
//! A [`Setup`] names one cell of the cube transport × poller × codec; a [`Behaviour`] is a function that starts a
//! server in that cell, talks to it and checks the ledger at the end. The macro
//! [`conformance_suite!`](crate::conformance_suite) makes one test of each behaviour for one cell. What a cell
//! cannot do is said beside the behaviour, and [`matrix`] shows all of it.

mod echo;
mod flow;
mod lifecycle;
mod rooms;
mod sessions;
mod spans;

use std::fmt;

use tidewire::io::poller::{self, PollerChoice, PollerKind};
use tidewire::{ClientBuilder, Server, ServerBuilder, Service};
use tidewire_proto::codec::AnyCodec;

use crate::harness::TestServer;

/// How bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP over the loopback interface.
    Tcp,
    /// A Unix socket.
    Ipc,
    /// Byte rings within the process.
    Inproc,
}

/// How bytes become frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecKind {
    /// The native protocol.
    Tw1,
    /// Lines of text.
    Lines,
}

/// One cell of the cube.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// How bytes travel.
    pub transport: Transport,
    /// How the lanes learn what is ready.
    pub poller: PollerKind,
    /// How bytes become frames.
    pub codec: CodecKind,
}

/// One thing every cell must do, unless its codec cannot.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// The name of its tests.
    pub name: &'static str,
    /// Starts a server, talks to it, checks it.
    run: fn(&Setup),
    /// Why a cell with the lines codec does not run it, if so.
    not_over_lines: Option<&'static str>,
}

impl Setup {
    /// The codec of this cell.
    #[must_use]
    pub fn codec(&self) -> AnyCodec {
        let name = match self.codec {
            CodecKind::Tw1 => "tw1",
            CodecKind::Lines => "lines",
        };
        AnyCodec::by_name(name).expect("a built-in codec")
    }

    /// A server builder with this cell's poller.
    #[must_use]
    pub fn builder(&self) -> ServerBuilder {
        Server::builder().poller(PollerChoice::Only(self.poller))
    }

    /// A client builder with this cell's poller and codec.
    #[must_use]
    pub fn client(&self) -> ClientBuilder {
        tidewire::Client::builder()
            .poller(PollerChoice::Only(self.poller))
            .codec(self.codec())
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
        match self.transport {
            Transport::Tcp => TestServer::over_tcp(builder, &self.codec(), make),
            Transport::Ipc => TestServer::over_ipc(builder, &self.codec(), make),
            Transport::Inproc => TestServer::over_inproc(builder, &self.codec(), make),
        }
    }

    /// Why this machine cannot run this cell at all, if so.
    #[must_use]
    pub fn unavailable(&self) -> Option<String> {
        poller::open(PollerChoice::Only(self.poller))
            .err()
            .map(|error| error.to_string())
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Transport::Tcp => "tcp",
            Transport::Ipc => "ipc",
            Transport::Inproc => "inproc",
        };
        let codec = match self.codec {
            CodecKind::Tw1 => "tw1",
            CodecKind::Lines => "lines",
        };
        write!(formatter, "{transport} {} {codec}", self.poller)
    }
}

impl Behaviour {
    const fn everywhere(name: &'static str, run: fn(&Setup)) -> Self {
        Self {
            name,
            run,
            not_over_lines: None,
        }
    }

    const fn native_only(name: &'static str, run: fn(&Setup), reason: &'static str) -> Self {
        Self {
            name,
            run,
            not_over_lines: Some(reason),
        }
    }

    /// Why this cell does not run the behaviour, if so.
    #[must_use]
    pub fn skipped(&self, setup: &Setup) -> Option<String> {
        let by_codec = self
            .not_over_lines
            .filter(|_| setup.codec == CodecKind::Lines);
        by_codec.map(str::to_owned).or_else(|| setup.unavailable())
    }
}

/// Runs the behaviour of this name in this cell, unless the cell cannot.
///
/// # Panics
/// There is no such behaviour, or the cell does not behave.
pub fn run(setup: &Setup, name: &str) {
    let behaviour = BEHAVIOURS
        .iter()
        .find(|behaviour| behaviour.name == name)
        .expect("a behaviour of this name");
    if behaviour.skipped(setup).is_none() {
        (behaviour.run)(setup);
    }
}

/// Every cell of the cube.
pub fn cells() -> impl Iterator<Item = Setup> {
    [Transport::Tcp, Transport::Ipc, Transport::Inproc]
        .into_iter()
        .flat_map(|transport| {
            PollerKind::ALL.into_iter().flat_map(move |poller| {
                [CodecKind::Tw1, CodecKind::Lines].map(|codec| Setup {
                    transport,
                    poller,
                    codec,
                })
            })
        })
}

/// Which cell runs what, as text: one line per cell, then the reasons for what is skipped.
#[must_use]
pub fn matrix() -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let mut reasons: Vec<(&str, String)> = Vec::new();
    for setup in cells() {
        let mut ran = 0;
        for behaviour in BEHAVIOURS {
            match behaviour.skipped(&setup) {
                None => ran += 1,
                Some(reason) => {
                    if !reasons.contains(&(behaviour.name, reason.clone())) {
                        reasons.push((behaviour.name, reason));
                    }
                }
            }
        }
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<16} {ran} of {}",
            setup.to_string(),
            BEHAVIOURS.len()
        );
    }
    for (name, reason) in reasons {
        let _ = writeln!(text, "skipped: {name}: {reason}");
    }
    text
}

/// Makes a module of tests, one for each behaviour, for one cell.
#[macro_export]
macro_rules! conformance_suite {
    ($($module:ident: $transport:ident, $poller:ident, $codec:ident;)*) => {
        $($crate::conformance_suite!(@cell $module, $transport, $poller, $codec,
            echo_of_many_sizes
            pipelined_requests_get_their_own_replies
            many_sessions_at_once
            half_closed_clients_get_their_answers
            one_byte_at_a_time
            frames_split_anywhere
            peers_that_read_nothing_are_paused
            dribbling_readers_get_everything
            draining_answers_what_was_accepted
            clients_reconnect_after_a_restart
            everyone_but_the_sender_hears
            names_are_unique_and_may_be_retried
            presence_tells_who_comes_and_goes
            members_are_listed
            whispers_reach_one_member
            leaving_ends_delivery
            members_who_close_have_left
            rooms_span_two_lanes
            rooms_span_three_lanes
            whispers_cross_lanes
            what_threads_send_arrives
            broadcasts_reach_whom_they_choose
        );)*
    };
    (@cell $module:ident, $transport:ident, $poller:ident, $codec:ident, $($name:ident)*) => {
        mod $module {
            use $crate::conformance::{CodecKind, Setup, Transport, run};

            const SETUP: Setup = Setup {
                transport: Transport::$transport,
                poller: tidewire::io::poller::PollerKind::$poller,
                codec: CodecKind::$codec,
            };

            /// The tests of this cell, so that none can be forgotten.
            pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];

            $(#[test] fn $name() { run(&SETUP, stringify!($name)); })*
        }
    };
}

const NO_LIST: &str = "lines have no room calls; who is here is told at joining";
const NO_WHISPER: &str = "lines have no private messages to send";
const NO_LEAVE: &str = "lines leave a room by closing";

/// Everything a cell must do.
pub const BEHAVIOURS: &[Behaviour] = &[
    Behaviour::everywhere("echo_of_many_sizes", echo::of_many_sizes),
    Behaviour::everywhere(
        "pipelined_requests_get_their_own_replies",
        echo::pipelined_requests_get_their_own_replies,
    ),
    Behaviour::everywhere("many_sessions_at_once", echo::many_sessions_at_once),
    Behaviour::everywhere(
        "half_closed_clients_get_their_answers",
        echo::half_closed_clients_get_their_answers,
    ),
    Behaviour::everywhere("one_byte_at_a_time", flow::one_byte_at_a_time),
    Behaviour::everywhere("frames_split_anywhere", flow::frames_split_anywhere),
    Behaviour::everywhere(
        "peers_that_read_nothing_are_paused",
        flow::peers_that_read_nothing_are_paused,
    ),
    Behaviour::everywhere(
        "dribbling_readers_get_everything",
        flow::dribbling_readers_get_everything,
    ),
    Behaviour::everywhere(
        "draining_answers_what_was_accepted",
        lifecycle::draining_answers_what_was_accepted,
    ),
    Behaviour::everywhere(
        "clients_reconnect_after_a_restart",
        lifecycle::clients_reconnect_after_a_restart,
    ),
    Behaviour::everywhere(
        "everyone_but_the_sender_hears",
        rooms::everyone_but_the_sender_hears,
    ),
    Behaviour::everywhere(
        "names_are_unique_and_may_be_retried",
        rooms::names_are_unique_and_may_be_retried,
    ),
    Behaviour::everywhere(
        "presence_tells_who_comes_and_goes",
        rooms::presence_tells_who_comes_and_goes,
    ),
    Behaviour::native_only("members_are_listed", rooms::members_are_listed, NO_LIST),
    Behaviour::native_only(
        "whispers_reach_one_member",
        rooms::whispers_reach_one_member,
        NO_WHISPER,
    ),
    Behaviour::native_only(
        "leaving_ends_delivery",
        rooms::leaving_ends_delivery,
        NO_LEAVE,
    ),
    Behaviour::everywhere(
        "members_who_close_have_left",
        rooms::members_who_close_have_left,
    ),
    Behaviour::everywhere("rooms_span_two_lanes", spans::rooms_span_two_lanes),
    Behaviour::everywhere("rooms_span_three_lanes", spans::rooms_span_three_lanes),
    Behaviour::native_only(
        "whispers_cross_lanes",
        spans::whispers_cross_lanes,
        NO_WHISPER,
    ),
    Behaviour::everywhere(
        "what_threads_send_arrives",
        sessions::what_threads_send_arrives,
    ),
    Behaviour::everywhere(
        "broadcasts_reach_whom_they_choose",
        sessions::broadcasts_reach_whom_they_choose,
    ),
];
