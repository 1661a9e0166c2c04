//! The owner of a connection, like a lane: it reads, writes and keeps the timer, with layers over the link or without.

use std::io::IoSlice;

use fastrand::Rng;
use tidewire_proto::codec::{AnyCodec, Codec, ConnectionState, Decoded};
use tidewire_proto::connection::{
    CloseReason, Connection, Delivery, Handled, Inbound, Introduction, Overdue, PauseReason, Phase,
    Rules, Written,
};
use tidewire_proto::layer::{Ending, LayerError, OUTPUT_BYTES_MAX, Stack};
use tidewire_proto::message::{Kind, Message};

use crate::RULES;
use crate::link::{Link, Pipe};

/// The owner of a connection.
pub(crate) struct Owner {
    pub(crate) connection: Connection,
    codec: AnyCodec,
    rules: Rules,
    output: Vec<u8>,
    /// Layers over the link.
    stack: Option<Stack>,
    pub(crate) timer_ns: Option<u64>,
    pub(crate) stalled_until_ns: u64,
    /// The deadline of a drain.
    pub(crate) drain_deadline_ns: Option<u64>,
    pub(crate) has_opened: bool,
    pub(crate) closed: Option<CloseReason>,
    /// Whether the transport's writing side was shut down.
    has_shut_down: bool,
    /// Whether it closed before the link had taken all bytes of its layers, so that the peer sees a cut.
    pub(crate) has_cut: bool,
    pub(crate) sent: u32,
    pub(crate) received: Vec<u32>,
    /// Messages that came after this side announced its close.
    refused: u32,
    pub(crate) timeouts: u32,
}

impl Owner {
    pub(crate) fn new(
        mut connection: Connection,
        stack: Option<Stack>,
        codec: &AnyCodec,
        rules: Rules,
    ) -> Self {
        if stack.is_some() && !connection.handshake().is_outgoing() {
            connection.secure(0);
        }
        Self {
            has_opened: connection.is_open(),
            connection,
            codec: codec.clone(),
            rules,
            output: Vec::new(),
            stack,
            timer_ns: None,
            stalled_until_ns: 0,
            drain_deadline_ns: None,
            closed: None,
            has_shut_down: false,
            has_cut: false,
            sent: 0,
            received: Vec::new(),
            refused: 0,
            timeouts: 0,
        }
    }

    pub(crate) fn arm(&mut self, now_ns: u64) {
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
        let own = Introduction {
            agent: "pair",
            session: 7,
            credentials: &[],
            follows_moves: true,
            moved_to: "tcp://127.0.0.1:9",
            now_ns: 0,
        };
        let before = self.output.len();
        while let Some(sent) =
            self.connection
                .poll_transmit(&self.rules, &own, &self.codec, &mut self.output)
        {
            // A codec without go-aways returns an error.
            assert!(sent.is_ok() || !self.rules.format.has_go_away);
        }
        assert!(!self.connection.has_transmit());
        assert!(self.output.len() - before < 1024, "control frames pile up");
    }

    /// Sends the next message of this side, if it may.
    pub(crate) fn send(&mut self, filler: usize) {
        if !self.connection.may_send() || self.connection.output().is_finishing() {
            return;
        }
        let mut payload = self.sent.to_le_bytes().to_vec();
        payload.resize(4 + filler, 0xA5);
        let message = Message::new(Kind::OneWay, 0, &payload);
        self.codec.encode(&message, &mut self.output).unwrap();
        self.sent += 1;
    }

    /// Handles every whole frame of `input` and keeps the rest.
    fn handle(&mut self, input: &[u8], now_ns: u64, is_datagram: bool, random: &mut Rng) {
        let mut rest = input;
        let mut filter = self.connection.filter(&self.rules);
        while self.connection.may_read() && !rest.is_empty() {
            let decoded = self.codec.decode(rest, filter.frame_bytes_max());
            let Ok(decoded) = decoded else {
                let is_first = !self.connection.input().has_ended();
                let mut state = ConnectionState::default();
                let reason = filter.refuse(&self.codec, &mut state, rest, is_first);
                return self.connection.close(reason);
            };
            let Decoded::Frame { message, consumed } = decoded else {
                break;
            };
            rest = &rest[consumed..];
            self.connection.input_mut().note_end();
            if filter.serves(message.kind) {
                let number = u32::from_le_bytes(message.payload[..4].try_into().unwrap());
                assert!(
                    message.payload[4..].iter().all(|&byte| byte == 0xA5),
                    "corrupted"
                );
                self.received.push(number);
                if random.u32(0..20) == 0 {
                    self.connection.input_mut().pause(PauseReason::Room);
                }
            } else if !matches!(message.kind, Kind::Cancel) {
                match self.connection.handle_frame(&self.rules, &message, now_ns) {
                    Handled::Done | Handled::Early => {}
                    // The connection was about to end. In this test the sender gets no answer.
                    Handled::Refused => self.refused += 1,
                    Handled::Authenticate => {}
                    Handled::Opened => {
                        assert!(!self.has_opened, "opened twice");
                        self.has_opened = true;
                        filter = self.connection.filter(&self.rules);
                        self.arm(now_ns);
                    }
                    Handled::Closed(reason) => {
                        assert_eq!(self.connection.phase().close_reason(), Some(reason));
                        return;
                    }
                }
                self.transmit();
            }
        }
        match self.connection.input().state() {
            Inbound::Ended => {}
            Inbound::Paused(_) => self.connection.input_mut().keep_frames(rest.to_vec()),
            Inbound::Reading if is_datagram => assert!(rest.is_empty(), "half a datagram"),
            Inbound::Reading => self.connection.input_mut().keep(rest.to_vec(), now_ns),
        }
    }

    /// Reads the bytes that have arrived, cut anywhere.
    fn read(&mut self, pipe: &mut Pipe, now_ns: u64, delivery: Delivery, random: &mut Rng) {
        if self.connection.input().has_frames() && self.connection.may_read() {
            let (bytes, _) = self.connection.input_mut().take();
            self.handle(&bytes, now_ns, delivery == Delivery::Lossy, random);
            self.connection.handle_backlog_served();
        }
        while self.connection.wants().read && self.connection.phase() != Phase::Securing {
            if delivery == Delivery::Lossy {
                let Some(datagram) = pipe.datagrams.pop_front() else {
                    return;
                };
                self.connection.timing_mut().note_input(now_ns);
                if datagram.is_empty() {
                    return self.connection.handle_input_end(&self.rules);
                }
                self.handle(&datagram, now_ns, true, random);
                continue;
            }
            let Some(bytes) = self.take_input(pipe, random) else {
                return;
            };
            let count = bytes.len();
            let (mut input, _) = self.connection.input_mut().take();
            input.extend(bytes);
            self.connection.timing_mut().note_input(now_ns);
            self.handle(&input, now_ns, false, random);
            assert!(self.connection.input().bytes().len() <= 2 * RULES.frame_bytes_max + count);
        }
    }

    /// Takes some of the bytes that arrived, as plaintext. Returns `None` if there are none now, or the input has
    /// ended.
    fn take_input(&mut self, pipe: &mut Pipe, random: &mut Rng) -> Option<Vec<u8>> {
        loop {
            if let Some(stack) = &mut self.stack {
                let mut buffer = vec![0; random.usize(1..5_000)];
                let count = stack.read(&mut buffer).unwrap();
                buffer.truncate(count);
                if count > 0 {
                    return Some(buffer);
                }
                if stack.has_ended() {
                    self.connection.handle_input_end(&self.rules);
                    return None;
                }
            }
            if pipe.arrived.is_empty() {
                if pipe.is_ended && pipe.on_the_way.is_empty() {
                    match self.stack {
                        // The layers have not ended.
                        Some(_) => self.connection.close(CloseReason::PeerReset),
                        None => self.connection.handle_input_end(&self.rules),
                    }
                }
                return None;
            }
            let count = random.usize(1..=pipe.arrived.len());
            let bytes: Vec<u8> = pipe.arrived.drain(..count).collect();
            let Some(stack) = &mut self.stack else {
                return Some(bytes);
            };
            if let Err(error) = stack.receive(&bytes) {
                self.cut_off(error);
                return None;
            }
        }
    }

    /// Continues the handshakes of the layers. The connection begins when they are over.
    fn secure(&mut self, pipe: &mut Pipe, now_ns: u64, random: &mut Rng) {
        let Some(stack) = &mut self.stack else {
            return self.begin(now_ns);
        };
        stack.start().unwrap();
        while !stack.is_ready() && !pipe.arrived.is_empty() {
            let count = random.usize(1..=pipe.arrived.len());
            let bytes: Vec<u8> = pipe.arrived.drain(..count).collect();
            if let Err(error) = stack.receive(&bytes) {
                return self.cut_off(error);
            }
        }
        if stack.is_ready() {
            self.begin(now_ns);
        } else if pipe.is_ended && pipe.arrived.is_empty() && pipe.on_the_way.is_empty() {
            self.connection.close(CloseReason::PeerReset);
        }
    }

    /// The peer closed before the handshake of its upper layer was over, so that layer sent no end.
    fn cut_off(&mut self, error: LayerError) {
        assert_eq!(error, LayerError::Truncated);
        self.connection.close(CloseReason::PeerReset);
    }

    fn begin(&mut self, now_ns: u64) {
        self.has_opened = self.connection.handle_connected(&self.rules, now_ns);
        self.arm(now_ns);
        self.transmit();
    }

    /// Identifies the peer, some time after the question.
    fn authenticate(&mut self, now_ns: u64, random: &mut Rng) {
        let expires_ns = (random.u32(0..4) == 0).then_some(now_ns + 1_000_000_000_000);
        if random.u32(0..4) > 0 && self.connection.handshake_mut().admit(expires_ns) {
            self.has_opened = true;
            self.connection
                .input_mut()
                .resume(PauseReason::Authentication);
            self.transmit();
            self.arm(now_ns);
        }
    }

    /// Writes as many bytes as the transport takes.
    fn write(&mut self, pipe: &mut Pipe, link: &Link, now_ns: u64, random: &mut Rng) {
        if self.connection.phase() == Phase::Connecting || self.connection.is_closed() {
            return;
        }
        if self.connection.is_open() && !self.connection.output().is_writing() {
            self.output.clear();
        }
        let is_full = self.connection.output().state().is_blocked() || self.holds_records();
        if is_full {
            if random.u32(0..3) > 0 {
                return;
            }
            self.connection.handle_writable(now_ns);
        }
        if !self.offer(pipe, link, now_ns, random) {
            return self.connection.output_mut().handle_blocked();
        }
        if self.has_shut_down {
            pipe.is_ended = true;
            return self.connection.handle_ended();
        }
        if self.connection.phase() == Phase::Securing {
            return;
        }
        let has_layers = self.stack.is_some();
        let written = self
            .connection
            .handle_written(&self.rules, false, has_layers, now_ns);
        match written {
            Written::GoOn | Written::Closed => {}
            Written::Transmit => self.transmit(),
            Written::ShutdownWrite => {
                assert!(!self.has_shut_down, "ended twice");
                self.shut_down(pipe, link, now_ns, random);
            }
        }
    }

    /// Whether the peer announced that it sends no more, as far as layers can detect it.
    pub(crate) fn has_peer_ended(&self) -> bool {
        self.stack.as_ref().is_none_or(Stack::has_ended)
    }

    fn holds_records(&self) -> bool {
        let unsent = self.stack.as_ref().map(Stack::unsent);
        unsent.is_some_and(|unsent| !unsent.is_empty())
    }

    /// Offers output to the link, through the layers. Returns whether the link took all of it.
    fn offer(&mut self, pipe: &mut Pipe, link: &Link, now_ns: u64, random: &mut Rng) -> bool {
        let Some(stack) = &mut self.stack else {
            let count = link.room(self.output.len(), random);
            pipe.send(self.output.drain(..count).collect(), link, now_ns, random);
            return self.output.is_empty();
        };
        loop {
            let count = link.room(stack.unsent().len(), random);
            pipe.send(stack.unsent()[..count].to_vec(), link, now_ns, random);
            stack.advance(count);
            if !stack.unsent().is_empty() {
                return false;
            }
            if self.output.is_empty() || self.connection.phase() == Phase::Securing {
                return true;
            }
            let accepted = stack.write(&[IoSlice::new(&self.output)]).unwrap();
            assert!(accepted > 0, "ready layers accept something");
            assert!(stack.unsent().len() <= OUTPUT_BYTES_MAX);
            self.output.drain(..accepted);
        }
    }

    /// Sends the last bytes of a connection that closes: one attempt, which succeeds unless the link is full.
    fn say_last(&mut self, pipe: &mut Pipe, link: &Link, now_ns: u64, random: &mut Rng) {
        let is_told = self
            .closed
            .is_some_and(|reason| self.connection.tell_reason(&self.rules, reason, false));
        if is_told {
            self.transmit();
        }
        match &mut self.stack {
            None if is_told => pipe.send(std::mem::take(&mut self.output), link, now_ns, random),
            None => {}
            Some(stack) => {
                let is_full = !stack.unsent().is_empty();
                if is_told && !is_full {
                    stack.write(&[IoSlice::new(&self.output)]).unwrap();
                }
                stack.close(Ending::InOrder).unwrap();
                match is_full {
                    true => self.has_cut = true,
                    false => pipe.send(stack.unsent().to_vec(), link, now_ns, random),
                }
            }
        }
        if !self.has_shut_down || self.stack.is_some() {
            self.has_shut_down = true;
            link.end(pipe, now_ns, random);
        }
    }

    fn shut_down(&mut self, pipe: &mut Pipe, link: &Link, now_ns: u64, random: &mut Rng) {
        self.has_shut_down = true;
        if let Some(stack) = &mut self.stack {
            stack.close(Ending::InOrder).unwrap();
            if !self.offer(pipe, link, now_ns, random) {
                return;
            }
        }
        link.end(pipe, now_ns, random);
        self.connection.handle_ended();
    }

    /// Runs one turn. Returns whether anything may have changed.
    pub(crate) fn turn(
        &mut self,
        pipes: (&mut Pipe, &mut Pipe),
        link: &Link,
        now_ns: u64,
        random: &mut Rng,
    ) {
        if self.closed.is_some() || now_ns < self.stalled_until_ns {
            return;
        }
        let (input, output) = pipes;
        match self.connection.phase() {
            Phase::Connecting if self.stack.is_some() => {
                self.connection.secure(now_ns);
                self.arm(now_ns);
            }
            Phase::Connecting => self.begin(now_ns),
            _ => {}
        }
        if self.connection.phase() == Phase::Securing {
            self.secure(input, now_ns, random);
        }
        // An owner with much input may check its timers before it handles this connection.
        if random.u32(0..2) == 0 {
            self.read(input, now_ns, link.delivery, random);
        }
        if self.timer_ns.is_some_and(|at| at <= now_ns) {
            self.timeouts += 1;
            match self.connection.handle_timeout(&self.rules, now_ns, false) {
                Overdue::Nothing => {}
                // No layer of these tests has pings.
                Overdue::LayerPing => unreachable!("a ping of a layer"),
                Overdue::Ping | Overdue::Hello => self.transmit(),
                Overdue::Closed(reason) => {
                    assert_eq!(self.connection.phase().close_reason(), Some(reason));
                }
            }
            self.arm(now_ns);
        }
        self.read(input, now_ns, link.delivery, random);
        if random.u32(0..2) == 0 && self.connection.input_mut().resume(PauseReason::Room) {
            self.read(input, now_ns, link.delivery, random);
        }
        self.authenticate(now_ns, random);
        self.transmit();
        self.write(output, link, now_ns, random);
        if let Some(reason) = self.connection.phase().close_reason() {
            self.closed = Some(reason);
            self.say_last(output, link, now_ns, random);
        }
    }
}
