//! Two connections against each other in virtual time: latency, cuts anywhere, full transports, stalled owners, resets,
//! silence, drains, and both ends closing at once. One seed decides everything about a run.
//!
//! `TIDEWIRE_PAIR_SEEDS=100000 cargo test --release -p tidewire-proto --test connection_pair` tries more of them. A failure
//! prints its seed; `TIDEWIRE_PAIR_SEED=N` runs that one alone.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of a test fail loudly, and a failing seed must be printed"
)]

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use fastrand::Rng;
use tidewire_proto::codec::{AnyCodec, Codec, Decoded};
use tidewire_proto::connection::{
    CloseReason, Connection, Delivery, Handled, Identity, Inbound, Overdue, PauseReason, Phase,
    Rules, Written,
};
use tidewire_proto::message::{Kind, Message};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;

const RULES: Rules = Rules {
    has_handshake: true,
    frame_bytes_max: 4096,
    handshake_timeout_ns: 5 * SECOND,
    idle_timeout_ns: 60 * SECOND,
    heartbeat_ns: 20 * SECOND,
    unvalidated_timeout_ns: 10 * SECOND,
    frame_timeout_ns: 10 * SECOND,
    frame_bytes_per_second_min: 1024,
    control_frames_per_second_max: 100,
};

/// One direction of the link: what is on its way, and when it arrives.
#[derive(Default)]
struct Pipe {
    on_the_way: VecDeque<(u64, Vec<u8>)>,
    /// Arrived and not read.
    arrived: VecDeque<u8>,
    /// Datagrams that arrived, where frames keep their boundaries.
    datagrams: VecDeque<Vec<u8>>,
    /// The writer has ended; counts when all before it has arrived.
    is_ended: bool,
    is_silent: bool,
}

/// A fault of the link of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    Reset,
    /// Nothing arrives any more, in either direction.
    Silence,
    /// An owner does nothing for longer than the idle timeout.
    Stall,
}

/// The orderly end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    ClientCloses,
    ServerCloses,
    BothClose,
    ServerDrains,
    Nobody,
}

/// The owner of a connection, as a lane is: it reads, writes and keeps the timer.
struct Owner {
    connection: Connection,
    codec: AnyCodec,
    rules: Rules,
    output: Vec<u8>,
    timer_ns: Option<u64>,
    stalled_until_ns: u64,
    /// When a drain ends.
    drain_deadline_ns: Option<u64>,
    has_opened: bool,
    closed: Option<CloseReason>,
    /// The transport was told that nothing more is written.
    has_shut_down: bool,
    sent: u32,
    received: Vec<u32>,
    /// Messages that came after this side said that it would close.
    refused: u32,
    timeouts: u32,
}

impl Owner {
    fn new(connection: Connection, codec: &AnyCodec, rules: Rules) -> Self {
        Self {
            has_opened: connection.is_open(),
            connection,
            codec: codec.clone(),
            rules,
            output: Vec::new(),
            timer_ns: None,
            stalled_until_ns: 0,
            drain_deadline_ns: None,
            closed: None,
            has_shut_down: false,
            sent: 0,
            received: Vec::new(),
            refused: 0,
            timeouts: 0,
        }
    }

    fn arm(&mut self, now_ns: u64) {
        self.timer_ns = self.connection.poll_timeout(&self.rules, now_ns, false);
        let is_closed = self.connection.is_closed();
        assert_eq!(
            self.timer_ns.is_none(),
            is_closed,
            "a connection without a timer"
        );
        assert!(
            self.timer_ns.is_none_or(|at| at >= now_ns),
            "armed for the past"
        );
    }

    fn transmit(&mut self) {
        let identity = Identity {
            agent: "pair",
            session: 7,
        };
        let before = self.output.len();
        while let Some(sent) =
            self.connection
                .poll_transmit(&self.rules, &identity, &self.codec, &mut self.output)
        {
            // A codec without go-aways says so.
            assert!(sent.is_ok() || !self.rules.has_handshake);
        }
        assert!(!self.connection.has_transmit());
        assert!(self.output.len() - before < 1024, "control frames pile up");
    }

    /// Sends the next message of this side, if it may.
    fn send(&mut self, filler: usize) {
        if !self.connection.may_send() || self.connection.is_finishing() {
            return;
        }
        let mut payload = self.sent.to_le_bytes().to_vec();
        payload.resize(4 + filler, 0xA5);
        let message = Message::new(Kind::OneWay, 0, &payload);
        self.codec.encode(&message, &mut self.output).unwrap();
        self.sent += 1;
    }

    /// Handles every whole frame of `input`; keeps the rest.
    fn handle(&mut self, input: &[u8], now_ns: u64, is_datagram: bool, random: &mut Rng) {
        let mut rest = input;
        let mut filter = self.connection.filter(&self.rules);
        while self.connection.may_read() && !rest.is_empty() {
            let decoded = self.codec.decode(rest, filter.frame_bytes_max);
            let Ok(decoded) = decoded else {
                let reason = filter.refuse(&self.codec, rest);
                return self.connection.close(reason);
            };
            let Decoded::Frame { message, consumed } = decoded else {
                break;
            };
            rest = &rest[consumed..];
            self.connection.partial.restart_clock();
            if filter.serves(message.kind) {
                let number = u32::from_le_bytes(message.payload[..4].try_into().unwrap());
                assert!(
                    message.payload[4..].iter().all(|&byte| byte == 0xA5),
                    "corrupted"
                );
                self.received.push(number);
                if random.u32(0..20) == 0 {
                    self.connection.pause(PauseReason::Room);
                }
            } else if !matches!(message.kind, Kind::Cancel) {
                match self.connection.handle_frame(&self.rules, &message, now_ns) {
                    Handled::Done | Handled::Early => {}
                    // It was about to end, and the sender is not told in this test.
                    Handled::Refused => self.refused += 1,
                    Handled::Opened => {
                        assert!(!self.has_opened, "opened twice");
                        self.has_opened = true;
                        filter = self.connection.filter(&self.rules);
                        self.arm(now_ns);
                    }
                    Handled::Closed(reason) => {
                        assert_eq!(self.connection.close_reason(), Some(reason));
                        return;
                    }
                }
                self.transmit();
            }
        }
        match self.connection.inbound() {
            Inbound::Ended => {}
            Inbound::Paused(_) => self.connection.partial.keep_frames(rest.to_vec()),
            Inbound::Reading if is_datagram => assert!(rest.is_empty(), "half a datagram"),
            Inbound::Reading => self.connection.partial.keep(rest.to_vec(), now_ns),
        }
    }

    /// Reads what has arrived, cut anywhere.
    fn read(&mut self, pipe: &mut Pipe, now_ns: u64, delivery: Delivery, random: &mut Rng) {
        if self.connection.partial.has_frames() && self.connection.may_read() {
            let (bytes, _) = self.connection.partial.take();
            self.handle(&bytes, now_ns, delivery == Delivery::Lossy, random);
            self.connection.handle_backlog_served();
        }
        while self.connection.wants().read {
            if delivery == Delivery::Lossy {
                let Some(datagram) = pipe.datagrams.pop_front() else {
                    return;
                };
                self.connection.note_input(now_ns);
                if datagram.is_empty() {
                    return self.connection.handle_input_end();
                }
                self.handle(&datagram, now_ns, true, random);
                continue;
            }
            if pipe.arrived.is_empty() {
                if pipe.is_ended && pipe.on_the_way.is_empty() {
                    self.connection.handle_input_end();
                }
                return;
            }
            let count = random.usize(1..=pipe.arrived.len());
            let (mut bytes, _) = self.connection.partial.take();
            bytes.extend(pipe.arrived.drain(..count));
            self.connection.note_input(now_ns);
            self.handle(&bytes, now_ns, false, random);
            assert!(self.connection.partial.bytes().len() <= 2 * RULES.frame_bytes_max + count);
        }
    }

    /// Writes what the transport takes.
    fn write(&mut self, pipe: &mut Pipe, link: &Link, now_ns: u64, random: &mut Rng) {
        if self.connection.phase() == Phase::Connecting || self.connection.is_closed() {
            return;
        }
        if !self.connection.reaches_peer() && self.connection.is_open() {
            return self.output.clear();
        }
        if self.connection.outbound().is_blocked() {
            if random.u32(0..3) > 0 {
                return;
            }
            self.connection.handle_writable(now_ns);
        }
        if !self.output.is_empty() {
            let takes_all = link.delivery == Delivery::Lossy || random.u32(0..4) > 0;
            let count = if takes_all {
                self.output.len()
            } else {
                random.usize(0..self.output.len())
            };
            pipe.send(self.output.drain(..count).collect(), link, now_ns, random);
            if !self.output.is_empty() {
                return self.connection.handle_blocked();
            }
        }
        match self
            .connection
            .handle_written(&self.rules, false, false, now_ns)
        {
            Written::GoOn | Written::Closed => {}
            Written::ShutdownWrite => {
                assert!(!self.has_shut_down, "ended twice");
                self.shut_down(pipe, link, now_ns, random);
            }
        }
    }

    fn shut_down(&mut self, pipe: &mut Pipe, link: &Link, now_ns: u64, random: &mut Rng) {
        self.has_shut_down = true;
        if link.delivery == Delivery::Lossy {
            pipe.send(Vec::new(), link, now_ns, random);
        } else {
            pipe.is_ended = true;
        }
    }

    /// One turn. Returns whether anything may have changed.
    fn turn(&mut self, pipes: (&mut Pipe, &mut Pipe), link: &Link, now_ns: u64, random: &mut Rng) {
        if self.closed.is_some() || now_ns < self.stalled_until_ns {
            return;
        }
        let (input, output) = pipes;
        if self.connection.phase() == Phase::Connecting {
            self.has_opened = self.connection.handle_connected(&self.rules, now_ns);
            self.arm(now_ns);
            self.transmit();
        }
        // An owner with much to read may look at its timers before it comes to this connection.
        if random.u32(0..2) == 0 {
            self.read(input, now_ns, link.delivery, random);
        }
        if self.timer_ns.is_some_and(|at| at <= now_ns) {
            self.timeouts += 1;
            match self.connection.handle_timeout(&self.rules, now_ns, false) {
                Overdue::Nothing => {}
                Overdue::Ping | Overdue::Hello => self.transmit(),
                Overdue::Closed(reason) => {
                    assert_eq!(self.connection.close_reason(), Some(reason));
                }
            }
            self.arm(now_ns);
        }
        self.read(input, now_ns, link.delivery, random);
        if random.u32(0..2) == 0 && self.connection.resume(PauseReason::Room) {
            self.read(input, now_ns, link.delivery, random);
        }
        self.transmit();
        self.write(output, link, now_ns, random);
        if let Some(reason) = self.connection.close_reason() {
            self.closed = Some(reason);
            if self.connection.tell_reason(&self.rules, reason, false) {
                self.transmit();
                output.send(std::mem::take(&mut self.output), link, now_ns, random);
            }
            if !self.has_shut_down {
                self.shut_down(output, link, now_ns, random);
            }
        }
    }
}

/// How the two ends are connected.
struct Link {
    delivery: Delivery,
    latency_ns: RangeInclusive<u64>,
    lost_percent: u32,
}

impl Pipe {
    fn send(&mut self, bytes: Vec<u8>, link: &Link, now_ns: u64, random: &mut Rng) {
        if self.is_silent || random.u32(0..100) < link.lost_percent {
            return;
        }
        let mut at_ns = now_ns + random.u64(link.latency_ns.clone());
        if link.delivery == Delivery::Reliable {
            // Bytes keep their order.
            at_ns = at_ns.max(self.on_the_way.back().map_or(0, |(at, _)| *at));
        }
        self.on_the_way.push_back((at_ns, bytes));
    }

    fn advance(&mut self, now_ns: u64, delivery: Delivery) {
        let mut rest = VecDeque::new();
        for (at_ns, bytes) in self.on_the_way.drain(..) {
            if at_ns > now_ns {
                rest.push_back((at_ns, bytes));
            } else if delivery == Delivery::Lossy {
                self.datagrams.push_back(bytes);
            } else {
                self.arrived.extend(bytes);
            }
        }
        self.on_the_way = rest;
    }

    fn silence(&mut self) {
        self.is_silent = true;
        self.on_the_way.clear();
    }
}

/// Everything that a seed decides.
struct Plan {
    link: Link,
    codec: AnyCodec,
    rules: Rules,
    fault: Fault,
    fault_at_ns: u64,
    ending: Ending,
    ending_at_ns: u64,
    messages: u32,
}

impl Plan {
    fn new(random: &mut Rng) -> Self {
        let delivery = if random.u32(0..4) == 0 {
            Delivery::Lossy
        } else {
            Delivery::Reliable
        };
        let name = if random.u32(0..4) == 0 {
            "length-field"
        } else {
            "tw1"
        };
        let codec = AnyCodec::by_name(name).unwrap();
        let latency_max_ns = [1, 50, 400][random.usize(..3)] * MILLISECOND;
        let fault = match random.u32(0..10) {
            0 => Fault::Reset,
            1 => Fault::Silence,
            2 => Fault::Stall,
            _ => Fault::None,
        };
        let ending = match random.u32(0..5) {
            0 => Ending::ClientCloses,
            1 => Ending::ServerCloses,
            2 => Ending::BothClose,
            3 => Ending::ServerDrains,
            _ => Ending::Nobody,
        };
        Self {
            link: Link {
                delivery,
                latency_ns: 0..=latency_max_ns,
                lost_percent: if delivery == Delivery::Lossy { 5 } else { 0 },
            },
            rules: if codec.has_handshake() {
                RULES
            } else {
                // There are no pings, so a person may think for longer.
                Rules {
                    has_handshake: false,
                    idle_timeout_ns: 200 * SECOND,
                    ..RULES
                }
            },
            codec,
            fault,
            fault_at_ns: random.u64(0..40 * SECOND),
            ending,
            ending_at_ns: random.u64(0..90 * SECOND),
            messages: random.u32(0..40),
        }
    }
}

/// One run, from the first byte to the end of both sides.
fn run(seed: u64) {
    let mut random = Rng::with_seed(seed);
    let plan = Plan::new(&mut random);
    let Plan {
        link, codec, rules, ..
    } = &plan;
    let client = Connection::connecting(rules, link.delivery, 0);
    let server = Connection::accepted(rules, link.delivery, 0);
    let [mut client, mut server] =
        [client, server].map(|connection| Owner::new(connection, codec, *rules));
    client.arm(0);
    server.arm(0);
    let (mut to_server, mut to_client) = (Pipe::default(), Pipe::default());
    let (mut now_ns, mut has_faulted, mut has_ended) = (0, false, false);
    let mut traffic_left = [plan.messages; 2];
    while client.closed.is_none() || server.closed.is_none() {
        assert!(
            now_ns < 600 * SECOND,
            "it never ends: {:?}, {:?}",
            client.connection,
            server.connection
        );
        now_ns += step_ns(
            now_ns,
            &client,
            &server,
            &[&to_server, &to_client],
            &mut random,
        );
        if now_ns >= plan.fault_at_ns && !std::mem::replace(&mut has_faulted, true) {
            fault(
                &plan,
                [&mut client, &mut server],
                [&mut to_server, &mut to_client],
                now_ns,
                &mut random,
            );
        }
        if server.drain_deadline_ns.is_some_and(|at| at <= now_ns) {
            server.connection.close(CloseReason::Shutdown);
        }
        let both_open = client.has_opened && server.has_opened;
        if now_ns >= plan.ending_at_ns && both_open && !std::mem::replace(&mut has_ended, true) {
            end(&plan, &mut client, &mut server, now_ns);
        }
        for (owner, left) in [&mut client, &mut server]
            .into_iter()
            .zip(&mut traffic_left)
        {
            if *left > 0 && random.u32(0..3) == 0 {
                *left -= 1;
                owner.send(random.usize(0..600));
            }
        }
        to_server.advance(now_ns, link.delivery);
        to_client.advance(now_ns, link.delivery);
        client.turn((&mut to_client, &mut to_server), link, now_ns, &mut random);
        server.turn((&mut to_server, &mut to_client), link, now_ns, &mut random);
    }
    check(&plan, &client, &server, now_ns);
}

/// The time to the next thing that happens: something arrives, a timer fires, or an owner does something of its own.
fn step_ns(now_ns: u64, client: &Owner, server: &Owner, pipes: &[&Pipe], random: &mut Rng) -> u64 {
    let own_ns = now_ns + random.u64(1..=300 * MILLISECOND);
    let arrivals = pipes
        .iter()
        .flat_map(|pipe| pipe.on_the_way.iter().map(|(at, _)| *at));
    let timers = [client, server]
        .into_iter()
        .filter(|owner| owner.closed.is_none());
    let timers = timers.filter_map(|owner| owner.timer_ns.map(|at| at.max(owner.stalled_until_ns)));
    let next_ns = arrivals
        .chain(timers)
        .chain([own_ns])
        .filter(|at| *at > now_ns)
        .min();
    next_ns.unwrap_or(own_ns) - now_ns
}

fn fault(
    plan: &Plan,
    owners: [&mut Owner; 2],
    pipes: [&mut Pipe; 2],
    now_ns: u64,
    random: &mut Rng,
) {
    match plan.fault {
        Fault::None => {}
        Fault::Reset => {
            for owner in owners {
                owner.connection.handle_write_failed();
                owner.connection.close(CloseReason::PeerReset);
            }
        }
        Fault::Silence => pipes.into_iter().for_each(Pipe::silence),
        Fault::Stall => {
            let stalled = random.usize(..2);
            let [client, server] = owners;
            let owner = if stalled == 0 { client } else { server };
            owner.stalled_until_ns = now_ns + random.u64(SECOND..100 * SECOND);
        }
    }
}

fn end(plan: &Plan, client: &mut Owner, server: &mut Owner, now_ns: u64) {
    if matches!(plan.ending, Ending::ClientCloses | Ending::BothClose) {
        client.connection.finish(CloseReason::Service);
    }
    if matches!(plan.ending, Ending::ServerCloses | Ending::BothClose) {
        server.connection.finish(CloseReason::Service);
    }
    if plan.ending == Ending::ServerDrains {
        server.connection.drain(&plan.rules);
        server.drain_deadline_ns = Some(now_ns + 30 * SECOND);
    }
    if plan.ending == Ending::Nobody {
        // Both fall silent for good: without it, a run with heartbeats has no end.
        client.connection.half_close();
    }
}

fn check(plan: &Plan, client: &Owner, server: &Owner, now_ns: u64) {
    for (receiver, sender) in [(client, server), (server, client)] {
        let numbers = &receiver.received;
        match plan.link.delivery {
            Delivery::Reliable => {
                let in_order = numbers.iter().copied().eq(0..numbers.len() as u32);
                assert!(in_order, "lost, repeated or out of order: {numbers:?}");
            }
            Delivery::Lossy => {
                let mut seen = numbers.clone();
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len(), numbers.len(), "repeated");
            }
        }
        assert!(
            numbers.iter().all(|number| *number < sender.sent),
            "never sent"
        );
    }
    let reasons = [client, server].map(|owner| owner.closed.unwrap());
    let is_quiet = plan.fault == Fault::None && plan.link.delivery == Delivery::Reliable;
    if is_quiet {
        // Nothing was wrong with the link, and both owners did their work: no timeout may end it.
        let is_in_order = |reason: &CloseReason| {
            matches!(
                reason,
                CloseReason::Service
                    | CloseReason::PeerClosed
                    | CloseReason::Shutdown
                    | CloseReason::GoAway(_)
            )
        };
        assert!(reasons.iter().all(is_in_order), "{reasons:?}");
    }
    for owner in [client, server] {
        // Input that a stalled owner did not read must not be held against its peer.
        // A transport that stays full by chance has its own say.
        let is_own_fault = owner.stalled_until_ns > 0
            && plan.link.delivery == Delivery::Reliable
            && !owner.connection.outbound().is_blocked();
        let is_timeout = matches!(
            owner.closed,
            Some(
                CloseReason::IdleTimeout
                    | CloseReason::FrameTimeout
                    | CloseReason::HandshakeTimeout
            )
        );
        assert!(
            !(is_own_fault && is_timeout),
            "a stalled owner closed a live peer"
        );
    }
    if is_quiet && plan.ending == Ending::Nobody {
        // The client ended its side after all it had, and the server after all that it had then.
        assert_eq!(
            server.received.len() as u32,
            client.sent,
            "a clean end lost messages"
        );
    }
    for owner in [client, server] {
        let checks_max = 40 + now_ns / SECOND;
        assert!(
            u64::from(owner.timeouts) <= checks_max,
            "{} timeouts in {now_ns} ns",
            owner.timeouts
        );
    }
}

#[test]
fn two_connections_agree_under_every_seed() {
    if let Ok(seed) = std::env::var("TIDEWIRE_PAIR_SEED") {
        return run(seed.parse().unwrap());
    }
    let seeds = std::env::var("TIDEWIRE_PAIR_SEEDS").map_or(2_000, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        let outcome = std::panic::catch_unwind(|| run(seed));
        if let Err(panic) = outcome {
            eprintln!("TIDEWIRE_PAIR_SEED={seed} fails");
            std::panic::resume_unwind(panic);
        }
    }
}
