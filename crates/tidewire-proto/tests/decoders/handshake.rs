//! The accepting side of a connection that authenticates its peer.

use tidewire_proto::codec::{Codec, Decoded, Format, Opening, Tw1};
use tidewire_proto::connection::{
    AuthFailure, CloseReason, Connection, Delivery, Handled, Introduction, PauseReason, Rules,
};
use tidewire_proto::handshake::Hello;
use tidewire_proto::limits::CREDENTIALS_BYTES_MAX;

/// Hellos with credentials, renewals, and any bytes between them. The first byte says how many of the next ones are
/// answers of the owner; the peer sends the rest.
///
/// No message may be served before the owner has admitted the peer, no frame may be handled while the owner is asked
/// the first time, and every connection ends.
pub fn handshake(bytes: &[u8]) {
    let Some((count, rest)) = bytes.split_first() else {
        return;
    };
    let (answers, stream) = rest.split_at(usize::from(*count).min(rest.len()));
    let mut owner = Owner {
        connection: Connection::accepted(&RULES, Delivery::Reliable, 0),
        answers,
        is_admitted: false,
        now_ns: 0,
    };
    let mut rest = stream;
    while !rest.is_empty() && owner.connection.may_read() {
        let filter = owner.connection.filter(&RULES);
        let (message, consumed) = match Tw1.decode(rest, filter.frame_bytes_max()) {
            Ok(Decoded::Frame { message, consumed }) => (message, consumed),
            Ok(_) => break,
            Err(_) => {
                owner.connection.close(CloseReason::PeerReset);
                break;
            }
        };
        rest = &rest[consumed..];
        if filter.serves(message.kind) {
            assert!(owner.is_admitted, "{:?} is served before", message.kind);
            continue;
        }
        let was_open = owner.connection.is_open();
        let handled = owner
            .connection
            .handle_frame(&RULES, &message, owner.now_ns);
        assert!(handled != Handled::Opened, "nobody was asked");
        if handled == Handled::Authenticate {
            let hello = Hello::decode(message.payload).expect("a hello that was accepted");
            assert!(hello.credentials.len() <= CREDENTIALS_BYTES_MAX);
            assert!(was_open || !owner.connection.may_read());
            owner.answer();
        }
        assert!(owner.is_admitted || !owner.connection.is_open());
        owner.transmit();
    }
    owner.wait_for_the_end();
}

struct Owner<'a> {
    connection: Connection,
    answers: &'a [u8],
    is_admitted: bool,
    now_ns: u64,
}

impl Owner<'_> {
    /// Answers as the next byte says, or not at all.
    fn answer(&mut self) {
        let Some((answer, rest)) = self.answers.split_first() else {
            return;
        };
        self.answers = rest;
        let later_ns = self.now_ns + u64::from(answer >> 3) * SECOND;
        let expires_ns = (answer & 4 != 0).then_some(later_ns);
        assert!(self.connection.handshake().awaits_owner());
        match answer & 3 {
            0 => {}
            1 => assert!(
                self.connection
                    .handshake_mut()
                    .refuse(AuthFailure::Wrong, later_ns)
            ),
            2 => self.admit(expires_ns),
            _ => {
                self.admit(None);
                self.connection.handshake_mut().change_expiry(expires_ns);
            }
        }
        // An answer counts once.
        if answer & 3 > 0 {
            assert!(!self.connection.handshake_mut().admit(None));
            assert!(
                !self
                    .connection
                    .handshake_mut()
                    .refuse(AuthFailure::Wrong, 0)
            );
        }
    }

    fn admit(&mut self, expires_ns: Option<u64>) {
        assert!(self.connection.handshake_mut().admit(expires_ns));
        self.connection
            .input_mut()
            .resume(PauseReason::Authentication);
        self.is_admitted = true;
    }

    /// Takes the frames that the connection sends. They are few and short.
    fn transmit(&mut self) {
        let own = Introduction {
            agent: "fuzz",
            session: 7,
            credentials: &[],
            follows_moves: true,
            moved_to: "tcp://127.0.0.1:9",
            now_ns: self.now_ns,
        };
        let mut output = Vec::new();
        while let Some(sent) = self
            .connection
            .poll_transmit(&RULES, &own, &Tw1, &mut output)
        {
            sent.expect("this codec has all frames");
        }
        assert!(output.len() < 1_024);
    }

    /// A peer that sends nothing more is closed in time.
    fn wait_for_the_end(&mut self) {
        for _ in 0..16 {
            let Some(at_ns) = self.connection.poll_timeout(&RULES, self.now_ns, false) else {
                break;
            };
            self.now_ns = at_ns.max(self.now_ns);
            let _ = self.connection.handle_timeout(&RULES, self.now_ns, false);
            self.transmit();
        }
        assert!(self.connection.is_closed());
        assert!(!self.connection.handshake().awaits_owner());
    }
}

/// The native format, as far as a connection depends on it.
const NATIVE: Format = Format {
    opening: Opening::Hello,
    has_pings: true,
    has_go_away: true,
    ..Format::new("native")
};

const RULES: Rules = Rules {
    format: &NATIVE,
    authenticates: true,
    frame_bytes_max: 4_096,
    handshake_timeout_ns: 5 * SECOND,
    first_frame_timeout_ns: 5 * SECOND,
    idle_timeout_ns: 60 * SECOND,
    idle_timeout_without_pings_ns: 60 * SECOND,
    ping_timeout_ns: 10 * SECOND,
    receive_timeout_ns: 0,
    heartbeat_ns: 20 * SECOND,
    unvalidated_timeout_ns: 10 * SECOND,
    frame_timeout_ns: 10 * SECOND,
    frame_bytes_per_second_min: 1_024,
    control_frames_per_second_max: 100,
};

const SECOND: u64 = 1_000_000_000;
