//! The allowed frames, as two numbers that a loop over frames keeps in registers.

use super::{CloseReason, Connection, NewWork, Rules};
use crate::codec::{Codec, ConnectionState, Decoded};
use crate::error::DecodeError;
use crate::handshake::{FirstBytes, HandshakeError, classify_garbage};
use crate::message::Kind;

/// Limits of the next frame: its kinds and its size.
#[derive(Clone, Copy, Debug)]
pub struct FrameFilter {
    /// Largest whole frame, in bytes.
    frame_bytes_max: usize,
    /// One bit for each kind that goes to the service. No kind has the number 0: that bit means that the owner checks
    /// every frame first.
    service_kinds: u32,
}

impl FrameFilter {
    /// Largest whole frame, in bytes.
    #[inline(always)]
    #[must_use]
    pub const fn frame_bytes_max(self) -> usize {
        self.frame_bytes_max
    }

    /// Whether frames of this kind go to the service. Every other kind is for [`Connection::handle_frame`].
    #[inline(always)]
    #[must_use]
    pub const fn serves(self, kind: Kind) -> bool {
        self.service_kinds >> kind as u8 & 1 != 0
    }

    /// Returns this filter for an owner that checks every frame before it serves it, for example to limit the rate of a
    /// session. Before the end of the handshake it is the filter itself.
    #[must_use]
    pub const fn asking(self) -> Self {
        let service_kinds = if self.is_open() { ASKING } else { 0 };
        Self {
            service_kinds,
            ..self
        }
    }

    /// Whether the owner checks every frame before it goes to the service. [`Connection::serves`] says which frames may
    /// go.
    #[inline(always)]
    #[must_use]
    pub const fn is_asking(self) -> bool {
        self.service_kinds == ASKING
    }

    /// Whether the handshake is over.
    #[inline(always)]
    #[must_use]
    pub const fn is_open(self) -> bool {
        self.service_kinds != 0
    }

    /// Returns why a connection ends when `rest` does not decode. `is_first` says that no frame came before. Before the
    /// end of the handshake, or first on a connection without a handshake, such bytes probably come from a program with
    /// another protocol.
    #[must_use]
    pub fn refuse<C: Codec + ?Sized>(
        self,
        codec: &C,
        state: &mut ConnectionState,
        rest: &[u8],
        is_first: bool,
    ) -> CloseReason {
        let error = match codec.decode_next(state, rest, 0, self.frame_bytes_max) {
            Err(error) => error,
            Ok(Decoded::Frame { message, .. }) if codec.format().translates() => {
                let mut scratch = Vec::new();
                let translated = codec.translate(message, &mut scratch);
                translated.err().unwrap_or(DecodeError::MalformedFrame)
            }
            // The codec contradicts itself. Without this error the refused bytes would be kept for ever.
            Ok(_) => DecodeError::MalformedFrame,
        };
        let looks_like = FirstBytes::of(rest);
        match (self.is_open(), codec.format().begins_with_hello()) {
            (true, true) => CloseReason::Decode(error),
            (false, true) if !codec.format().hello_is_optional() => {
                CloseReason::Handshake(classify_garbage(rest))
            }
            _ if is_first && looks_like.is_foreign() => {
                CloseReason::Handshake(HandshakeError::OtherProtocol { looks_like })
            }
            // The first bytes may be any message of the codec, which knows the mistake.
            _ => CloseReason::Decode(error),
        }
    }
}

impl Connection {
    /// The limits of the next frame. They change when [`Connection::handle_frame`] opens the connection, and otherwise
    /// not while the frames of one read are handled.
    #[inline(always)]
    #[must_use]
    pub const fn filter(&self, rules: &Rules) -> FrameFilter {
        if self.is_open() {
            FrameFilter {
                frame_bytes_max: rules.frame_bytes_max,
                service_kinds: service_kinds(self.output.new_work()),
            }
        } else {
            FrameFilter {
                frame_bytes_max: self.handshake.hello_bytes_max(),
                service_kinds: 0,
            }
        }
    }

    /// Whether frames of this kind go to the service now.
    #[must_use]
    pub const fn serves(&self, kind: Kind) -> bool {
        self.is_open() && service_kinds(self.output.new_work()) >> kind as u8 & 1 != 0
    }
}

#[inline(always)]
const fn service_kinds(new_work: NewWork) -> u32 {
    if new_work.is_refused() {
        SERVICE_KINDS & !NEW_WORK_KINDS
    } else {
        SERVICE_KINDS
    }
}

/// Whether a frame requests new work. Other frames end or answer earlier work.
pub(super) const fn is_new_work(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Request | Kind::OneWay | Kind::Subscribe | Kind::Publish | Kind::Join | Kind::Say
    )
}

/// The bit of the number 0, which no kind has.
const ASKING: u32 = 1;

/// The kinds that are refused when this side is about to close.
const NEW_WORK_KINDS: u32 = {
    let mut kinds = 0;
    let mut index = 0;
    while index < Kind::ALL.len() {
        let kind = Kind::ALL[index];
        kinds |= (is_new_work(kind) as u32) << kind as u8;
        index += 1;
    }
    kinds
};

/// Every kind except those that the connection handles itself. It includes cancels, which are for the owner of the
/// requests.
const SERVICE_KINDS: u32 = {
    let mut kinds = 0;
    let mut index = 0;
    while index < Kind::ALL.len() {
        let kind = Kind::ALL[index];
        let is_for_connection = matches!(
            kind,
            Kind::Hello | Kind::Welcome | Kind::Ping | Kind::Pong | Kind::Cancel | Kind::GoAway
        );
        kinds |= (!is_for_connection as u32) << kind as u8;
        index += 1;
    }
    kinds
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Format, Tw1};
    use crate::connection::Delivery;

    const BARE: Format = Format::new("bare");

    fn rules(format: &'static Format) -> Rules {
        Rules {
            format,
            authenticates: false,
            frame_bytes_max: 1 << 20,
            handshake_timeout_ns: 1,
            first_frame_timeout_ns: 1,
            idle_timeout_ns: 1,
            idle_timeout_without_pings_ns: 1,
            ping_timeout_ns: 1,
            receive_timeout_ns: 0,
            heartbeat_ns: 0,
            unvalidated_timeout_ns: 1,
            frame_timeout_ns: 1,
            frame_bytes_per_second_min: 1,
            control_frames_per_second_max: 1,
        }
    }

    #[test]
    fn a_filter_that_asks_serves_nothing_and_stays_open() {
        let rules = rules(&BARE);
        let connection = Connection::accepted(&rules, Delivery::Reliable, 0);
        let filter = connection.filter(&rules);
        let asking = filter.asking();
        assert!(!filter.is_asking() && asking.is_asking() && asking.is_open());
        assert_eq!(asking.frame_bytes_max, filter.frame_bytes_max);
        for kind in Kind::ALL {
            assert!(!asking.serves(kind));
            assert_eq!(connection.serves(kind), filter.serves(kind), "{kind:?}");
        }
    }

    #[test]
    fn the_owner_is_not_asked_before_the_handshake() {
        let rules = rules(Tw1.format());
        let connection = Connection::accepted(&rules, Delivery::Reliable, 0);
        let asking = connection.filter(&rules).asking();
        assert!(!asking.is_asking() && !asking.is_open());
        assert!(!connection.serves(Kind::Request));
    }
}
