//! The contract: the lines that the benchmark and the programs that it measures exchange.
//!
//! Problem: bare loops, Tidewire and rivals in other languages must do the same work and be measured by the same ruler.
//! Approach: each of them is a program with the same three commands, which speaks JSON lines on its standard streams.
//! The runner starts them, pins them, reads what the kernel says of their processor time and memory, and asks nothing
//! of them that a script of twenty lines could not do. Rejected: linking rivals into one binary (their runtimes,
//! allocators and threads would disturb each other, and their dependencies enter ours).
//!
//! ```text
//! PROGRAM describe            prints one Description and ends
//! PROGRAM serve WORK          prints {"ready":"ADDRESS"}, then one Account for each line it reads; ends at the end of input
//! PROGRAM drive ADDRESS WORK  warms up, prints {"started":true}, works, prints {"stopped":true} (or leaves that out) and,
//!                             behind what is still under way, {"measured":{…}}; ends at the end of input
//! ```
//!
//! `WORK` is a [`Work`] as JSON. Work within one process has no server: its driver gets the address `-`. What goes
//! wrong is one line on standard error and an exit code that is not 0.
//!
//! # Publications
//!
//! In the suites `fanout` and `cluster` one subscriber reads all publishers, so they agree on the payload of
//! [`Work::message_bytes`]: bytes 0 to 7 are the number of the message, counted from 0, bytes 8 to 15 the time it was
//! due, in nanoseconds of `CLOCK_MONOTONIC`, both little-endian; the rest are bytes `5a` (`Publication`). A server that
//! publishes by itself begins when [`Work::subscribers`] have subscribed, and sends what is due by
//! [`Work::rate_per_sec`] every millisecond. Message `n` is due `(n + 1) / rate_per_sec` seconds after the beginning,
//! whenever it is sent: a publisher that is held up is late for all that it then sends. It goes on until it is ended,
//! so that what comes behind the window tells that nothing more of the window comes. A broker publishes nothing; it
//! gets messages for the topic `t`. A ZMTP publisher sends messages of one part. In `cluster` the address is those of
//! all nodes with commas between them.

use serde::{Deserialize, Serialize};
use tidewire_load::statistics::LatencyHistogram;

/// The work of a program. Each suite documents which of these it uses; the others are absent and 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Work {
    /// Name of the suite: `ingest`, `echo`, `rpc`, `pubsub`, `fanout` and so on.
    pub suite: String,
    /// `tcp`, `tls`, `ws`, `wss`, `udp`, `ipc` or `inproc`.
    pub transport: String,
    /// Name of a codec where the work asks for the bytes of one; a rival with a format of its own ignores it.
    pub codec: String,
    /// The mode that tells this way of doing the work from others of the same program, such as `drops` or `client`;
    /// often empty.
    pub mode: String,
    /// Number of connections, or of clients.
    pub connections: usize,
    /// Messages sent and not yet answered, for each connection.
    pub in_flight: usize,
    /// Bytes of a message with its framing where `codec` is named, of its payload where not: a rival with a format and
    /// a driver of its own gets the payload of our messages and no codec. In the suite `fanout` always of the payload.
    pub message_bytes: usize,
    /// Bytes of one write of a sender; 0: it sends every message by itself.
    pub write_bytes: usize,
    /// Number of publishers.
    pub publishers: usize,
    /// Number of subscribers, or of receivers of a fan-out.
    pub subscribers: usize,
    /// Messages a second that all publishers together offer; 0: as many as they can.
    pub rate_per_sec: f64,
    /// Number of threads that do the work. In the suite `rpc`, each thread of our driver has [`Work::connections`]
    /// clients. A rival gets the sum of these clients as its `connections`, and 1 here.
    pub threads: usize,
    /// Number of tasks, lines, rooms or whatever else the suite counts.
    pub count: u64,
    /// Cores for the threads of work within one process, a thread each; empty: they are placed by the system. Programs
    /// that cannot pin threads ignore it.
    pub cores: Vec<usize>,
    /// Time before it is measured, in milliseconds.
    pub warm_up_ms: u64,
    /// How long it is measured, in milliseconds.
    pub measure_ms: u64,
}

/// The capabilities of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Name, as the tables show it.
    pub name: String,
    /// Version of what is measured, not of the program around it.
    pub version: String,
    /// The suites that it takes part in.
    pub offers: Vec<Offer>,
}

/// One kind of work that a program can do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Name of the suite.
    pub suite: String,
    /// Transports over which it can.
    pub transports: Vec<String>,
    /// [`Work::mode`]; a mode that drops messages in silence is called `drops`.
    #[serde(default)]
    pub mode: String,
    /// The driver that its server is used with.
    #[serde(default)]
    pub driver: Driver,
}

/// The driver of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Driver {
    /// The program's own command `drive`.
    #[default]
    Own,
    /// The benchmark's bare client with the bytes of [`Work::codec`]: the server sends back, or counts, what it gets.
    Bare,
    /// The benchmark's bare subscriber, which speaks WebSocket.
    Websocket,
    /// The same, which speaks the protocol of Centrifuge over WebSocket.
    Centrifuge,
    /// The same, which speaks the text protocol of NATS.
    Nats,
    /// The same, which speaks the protocol of Redis.
    Redis,
    /// The same, which speaks ZMTP 3.
    Zmtp,
    /// The same, which speaks the scalability protocols of nng.
    Sp,
    /// The same, which reads frames with a length of four bytes, big-endian, before them.
    Length,
}

/// A line that a program prints once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The server takes connections at this address.
    Ready(String),
    /// The driver is warm and starts to count.
    Started(bool),
    /// The driver counts no more, and waits for messages that are under way. The cost of both programs is read now, so
    /// that it covers the counted messages only. A driver may leave this out; its cost is read at [`Line::Measured`].
    Stopped(bool),
    /// The counts of the driver.
    Measured(Measured),
}

/// The account of a server up to now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Account {
    /// Messages it took, where it counts them.
    pub messages: Option<u64>,
    /// Bytes it has asked its allocator for, where it counts them.
    pub allocated_bytes: Option<u64>,
    /// Messages it is known to have dropped.
    pub dropped: Option<u64>,
}

/// The counts of a driver between `started` and the end of its window, at which it prints `stopped`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// Messages that came as they should: replies, deliveries, tasks, lines.
    pub messages: u64,
    /// Messages sent since the driver connected, warm-up included, where only the server knows what became of them. The
    /// benchmark then waits until the server's [`Account::messages`] reaches it, calls the difference lost, and takes
    /// the rate from the server's accounts at `started` and `stopped`, or `measured`. `messages`, `seconds` and `lost`
    /// are ignored.
    pub sent: Option<u64>,
    /// How long that took, in seconds.
    pub seconds: f64,
    /// Whether every one of them was checked for being the expected one.
    pub verified: bool,
    /// Whether only their number was checked, because they are all the same.
    pub counted: bool,
    /// Messages offered that never came, or came twice, changed or out of order.
    pub lost: u64,
    /// Of `lost`, those that somebody counted as dropped. Few rows allow it; in all others they are losses as well.
    pub dropped: u64,
    /// Bytes the driver asked its allocator for within its window, where it counts them.
    pub allocated_bytes: Option<u64>,
    /// Times as the suite defines them, where it has any.
    pub latency: Option<Times>,
    /// Figures that only this suite has, by name with the unit last (`bytes_per_session`).
    pub figures: std::collections::BTreeMap<String, f64>,
}

/// Times of single messages, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Number of times that were taken.
    pub samples: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Largest.
    pub max_us: f64,
}

impl Work {
    /// Whether the work has a server in a process of its own.
    pub(crate) fn has_server(&self) -> bool {
        self.transport != "inproc" && !self.transport.is_empty()
    }
}

impl Measured {
    /// So many messages, each of which was checked.
    pub(crate) fn verified(messages: u64, seconds: f64, lost: u64) -> Self {
        Self {
            messages,
            seconds,
            lost,
            verified: true,
            ..Self::default()
        }
    }

    /// The same with the times of messages.
    pub(crate) fn with_times(self, histogram: &LatencyHistogram) -> Self {
        Self {
            latency: Some(Times::of(histogram)),
            ..self
        }
    }

    /// The same with a figure that only its suite has.
    pub(crate) fn with_figure(mut self, name: &str, value: f64) -> Self {
        self.figures.insert(name.to_owned(), value);
        self
    }

    /// Messages a second; nothing where no time went by.
    pub(crate) fn rate(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.messages as f64 / self.seconds)
    }
}

impl Times {
    fn of(histogram: &LatencyHistogram) -> Self {
        let at = |quantile| histogram.quantile_ns(quantile) as f64 / 1e3;
        let summary = histogram.summary().unwrap_or_default();
        Self {
            samples: histogram.count(),
            mean_us: summary.mean_ms * 1e3,
            p50_us: at(0.5),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: at(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_may_leave_out_what_it_does_not_know() {
        let line: Line =
            serde_json::from_str(r#"{"measured":{"messages":3,"seconds":1.5,"verified":true}}"#)
                .unwrap();
        let Line::Measured(measured) = line else {
            panic!("{line:?}");
        };
        assert_eq!((measured.messages, measured.lost), (3, 0));
        assert_eq!(measured.allocated_bytes, None);
        let ready: Line = serde_json::from_str(r#"{"ready":"127.0.0.1:1"}"#).unwrap();
        assert_eq!(ready, Line::Ready("127.0.0.1:1".to_owned()));
        assert_eq!(
            serde_json::from_str::<Account>("{}").unwrap(),
            Account::default()
        );
    }

    #[test]
    fn work_survives_its_way_through_an_argument() {
        let work = Work {
            suite: "fanout".to_owned(),
            subscribers: 500,
            rate_per_sec: 4_000.0,
            ..Work::default()
        };
        let argument = serde_json::to_string(&work).unwrap();
        assert_eq!(serde_json::from_str::<Work>(&argument).unwrap(), work);
    }
}
