//! The instrument's own clients on every transport and codec: legal combinations lose nothing, and others are refused
//! at once, with the reason.

use tidewire::{AnyCodec, Chat, PubSub, Server, ServerBuilder};
use tidewire_load::plan::{PlanError, RunOptions};
use tidewire_load::report::Report;
use tidewire_load::run::Silent;
use tidewire_load::scenario::Scenario;
use tidewire_proto::codec::Codec;
use tidewire_testkit::TestServer;
use tidewire_testkit::certificates::usual;
use tidewire_testkit::conformance::Transport;
use tidewire_testkit::fixtures::echo;

use crate::proof::run;
use crate::proof::{SEED, assert_sound, at_once};
use crate::workloads::{Sink, only};

/// Why a pair is refused, in a part of the error.
enum Refused {
    /// When the scenario is read: no transport makes it right.
    Read(&'static str),
    /// When the run begins.
    Run(&'static str),
}

const PATTERNS: [&str; 5] = ["chat", "pubsub", "ingest", "echo", "request"];

/// The refusals that README and docs/scenario.md list for each combination.
fn refused(pattern: &str, codec: &str, transport: Transport) -> Option<Refused> {
    let has_ids = matches!(codec, "tw1" | "json" | "srmp" | "srmp-rpc" | "uvrpc");
    let legal = match pattern {
        "chat" | "pubsub" => matches!(codec, "tw1" | "json"),
        "ingest" => matches!(codec, "tw1" | "json" | "srmp" | "srmp-rpc"),
        "echo" => matches!(codec, "tw1" | "json" | "length-field"),
        _ => has_ids || codec == "length-field",
    };
    if !legal {
        return Some(Refused::Read("codec"));
    }
    let by_order = pattern == "request" && !has_ids;
    (by_order && transport == Transport::Udp).then_some(Refused::Run("matched by their order"))
}

fn scenario(pattern: &str, codec: &str, payload_bytes: u32) -> Result<Scenario, String> {
    let text = format!(
        "version = 2\ntarget = \"tcp://h:1\"\n[[steps]]\nname = \"step\"\nwarmup_secs = 0\n\
         pattern = \"{pattern}\"\ncodec = \"{codec}\"\nmodel = \"open\"\nrate = 400\nconcurrency = 3\n\
         duration_secs = 0.2\npayload_bytes = {payload_bytes}\n"
    );
    let read = Scenario::parse(&text, "test");
    read.map(|(scenario, _)| scenario)
        .map_err(|error| error.to_string())
}

fn serve(pattern: &str, codec: &str, transport: Transport) -> TestServer {
    // As in a closed network: the answers to clients without a handshake may be as long as they have to.
    let builder: ServerBuilder = Server::builder()
        .trust_datagram_peers(true)
        .tls(usual().1.server());
    let codec = AnyCodec::by_name(codec).unwrap();
    match pattern {
        "chat" => start(builder, &codec, transport, {
            let chat = Chat::new();
            move |_| chat.clone()
        }),
        "pubsub" => start(builder, &codec, transport, |_| PubSub::new()),
        // Over UDP only a count says that messages arrived.
        "ingest" => start(builder, &codec, transport, |_| Sink::default()),
        _ => start(builder, &codec, transport, |_| echo),
    }
}

fn start<S: tidewire::Service>(
    builder: ServerBuilder,
    codec: &AnyCodec,
    transport: Transport,
    make: impl FnMut(usize) -> S,
) -> TestServer {
    match transport {
        Transport::Tcp => TestServer::over_tcp(builder, codec, make),
        Transport::Tls => TestServer::over_tls(builder, codec, make),
        Transport::Ws => TestServer::over_websocket(builder, codec, make),
        Transport::Wss => TestServer::over_secure_websocket(builder, codec, make),
        Transport::Ipc => TestServer::over_ipc(builder, codec, make),
        Transport::Inproc => TestServer::over_inproc(builder, codec, make),
        Transport::Udp => TestServer::over_udp(builder, codec, make),
    }
}

fn try_run(scenario: &Scenario, server: &TestServer) -> Result<Report, PlanError> {
    let mut options = RunOptions::new(vec![server.address().clone()]);
    options.seed = SEED;
    options.late_ms = u64::MAX;
    options.tls = usual().0.client();
    run(scenario, options, &mut Silent)
}

fn assert_as_documented(pattern: &str, codec: &str, transport: Transport) {
    let what = format!("{pattern} with {codec} over {transport:?}");
    let (scenario, refused) = (
        scenario(pattern, codec, 100),
        refused(pattern, codec, transport),
    );
    let scenario = match (scenario, &refused) {
        (Err(error), Some(Refused::Read(part))) => {
            assert!(error.contains(part), "{what}: {error}");
            return;
        }
        (scenario, Some(Refused::Read(_))) => panic!("{what} is read: {scenario:?}"),
        (scenario, _) => scenario.unwrap_or_else(|error| panic!("{what}: {error}")),
    };
    let server = serve(pattern, codec, transport);
    match (try_run(&scenario, &server), refused) {
        (Err(error), Some(Refused::Run(part))) => {
            assert!(error.to_string().contains(part), "{what}: {error}");
        }
        (Ok(report), None) => {
            assert_sound(&report);
            let (step, _) = only(&report);
            assert!(step.total_sent > 0, "{what}");
            assert_eq!(step.problems, Vec::<String>::new(), "{what}");
            let is_sealed = step.server.encryption.as_deref();
            let is_sealed = is_sealed.is_some_and(|it| it.starts_with("TLSv1.3 TLS13_"));
            assert_eq!(is_sealed, transport == Transport::Tls, "{what}");
            assert_eq!(
                (step.total_received, step.lost),
                (step.expected_received, 0),
                "{what}"
            );
        }
        (Ok(report), Some(_)) => panic!("{what} was run: {report:?}"),
        (Err(error), _) => panic!("{what}: {error}"),
    }
}

/// Makes a test for each transport, because one test for all transports takes longer than the rest of the program.
macro_rules! clients_work_over {
    ($($transport:ident: $name:ident;)*) => {
        $(#[test]
        fn $name() {
            // One pattern after another, so that no more than a handful of servers run at the same time.
            for pattern in PATTERNS {
                at_once(AnyCodec::NAMES.iter(), |codec| {
                    assert_as_documented(pattern, codec, Transport::$transport);
                });
            }
        })*

        /// The compiler names a transport that has no test.
        const _: fn(Transport) = |transport| match transport {
            $(Transport::$transport => {})*
            Transport::Ws | Transport::Wss => {}
        };
    };
}

clients_work_over! {
    Tcp: the_instrument_s_clients_work_over_tcp_with_every_legal_codec_and_are_refused_with_the_others;
    Tls: the_instrument_s_clients_work_over_tls_with_every_legal_codec_and_are_refused_with_the_others;
    Ipc: the_instrument_s_clients_work_over_ipc_with_every_legal_codec_and_are_refused_with_the_others;
    Inproc: the_instrument_s_clients_work_over_inproc_with_every_legal_codec_and_are_refused_with_the_others;
    Udp: the_instrument_s_clients_work_over_udp_with_every_legal_codec_and_are_refused_with_the_others;
}

#[test]
fn messages_that_no_datagram_holds_are_refused_before_the_run() {
    for (pattern, codec) in [("request", "uvrpc"), ("chat", "tw1")] {
        let server = serve(pattern, codec, Transport::Udp);
        let large = scenario(pattern, codec, 65_500).unwrap();
        let error = try_run(&large, &server).unwrap_err();
        assert!(
            matches!(error, PlanError::TooLarge { bytes, .. } if bytes > 65_507),
            "{error}"
        );
    }
}

#[test]
fn payloads_that_a_codec_cannot_carry_are_refused_before_the_run() {
    for (pattern, codec, bytes) in [
        ("request", "length-field", 70_000),
        ("echo", "length-field:size=1", 300),
        ("chat", "json", 1_000_000),
    ] {
        let server = serve(pattern, codec, Transport::Tcp);
        let error = try_run(&scenario(pattern, codec, bytes).unwrap(), &server).unwrap_err();
        assert!(
            matches!(error, PlanError::Unencodable { .. }),
            "{codec}: {error}"
        );
        assert!(error.to_string().contains("lower payload_bytes"), "{error}");
    }
}

#[test]
fn an_unframed_datagram_of_uvrpc_is_all_that_its_client_sends_over_udp() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let mut options = RunOptions::new(vec![tidewire::Endpoint::Udp(address)]);
    options.answer_timeout = std::time::Duration::from_millis(100);
    let scenario = scenario("request", "uvrpc", 40).unwrap();
    let running = std::thread::spawn(move || run(&scenario, options, &mut Silent));
    let mut datagram = [0; 2_048];
    let mut count = 0;
    // A client first checks, without a frame, whether there is a socket.
    while count == 0 {
        (count, _) = socket.recv_from(&mut datagram).unwrap();
    }
    let codec = AnyCodec::by_name("uvrpc").unwrap();
    let decoded = codec.for_datagrams().decode(&datagram[..count], 2_048);
    assert!(decoded.is_ok(), "{decoded:?}");
    // The first bytes belong to the frame and are not its length.
    let length = u32::from_be_bytes(datagram[..4].try_into().unwrap());
    assert_ne!(length as usize, count - 4);
    // No server answers, and the report tells so.
    running.join().unwrap().unwrap();
}
