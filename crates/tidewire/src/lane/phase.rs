//! What the handshake, and at last a go-away, decide about the frames of a session.
//!
//! It is put into two numbers once per read, so that a message of an open session costs one look at them.

use tidewire_proto::codec::Codec;
use tidewire_proto::error::DecodeError;
use tidewire_proto::handshake::classify_garbage;
use tidewire_proto::limits::HELLO_BYTES_MAX;
use tidewire_proto::message::Kind;

use crate::context::Context;
use crate::session::CloseReason;

/// What the next frame may be.
#[derive(Clone, Copy)]
pub(super) struct Phase {
    pub(super) frame_bytes_max: usize,
    /// A bit for the number of every kind that goes to the service; the lane handles the others itself.
    served_kinds: u32,
}

impl Phase {
    #[inline(always)]
    pub(super) fn new(cx: &Context<'_>, is_open: bool) -> Self {
        if is_open {
            let refuses = cx
                .core
                .sessions
                .get(cx.id.slot())
                .is_some_and(|session| session.refuses_new_work());
            Self {
                frame_bytes_max: cx.core.shared.limits.frame_bytes_max,
                served_kinds: if refuses {
                    SERVED_KINDS & !NEW_WORK_KINDS
                } else {
                    SERVED_KINDS
                },
            }
        } else {
            Self {
                frame_bytes_max: HELLO_BYTES_MAX,
                served_kinds: 0,
            }
        }
    }

    #[inline(always)]
    pub(super) fn serves(self, kind: Kind) -> bool {
        self.served_kinds >> kind as u8 & 1 != 0
    }

    #[inline(always)]
    pub(super) fn is_open(self) -> bool {
        self.served_kinds != 0
    }

    /// Why a session ends for which decoding `rest` gives an error. Before the handshake, bytes that are no frame most
    /// likely come from the wrong program.
    pub(super) fn refuse<C: Codec + ?Sized>(self, codec: &C, rest: &[u8]) -> CloseReason {
        let error = match codec.decode(rest, self.frame_bytes_max) {
            Err(error) => error,
            // A codec of the user's own that changes its mind: what it refused once would otherwise be kept for ever.
            Ok(_) => DecodeError::MalformedFrame,
        };
        if self.is_open() {
            CloseReason::Decode(error)
        } else {
            CloseReason::Handshake(classify_garbage(rest))
        }
    }
}

/// Whether a frame asks for something to be done, in contrast to one that ends or answers what was begun before.
pub(super) const fn is_new_work(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Request | Kind::OneWay | Kind::Subscribe | Kind::Publish | Kind::Join | Kind::Say
    )
}

/// What is refused in a session that ends.
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

/// Every kind but those that the lane itself answers; services never see these.
const SERVED_KINDS: u32 = {
    let mut served = 0;
    let mut index = 0;
    while index < Kind::ALL.len() {
        let kind = Kind::ALL[index];
        let is_of_the_lane = matches!(
            kind,
            Kind::Hello | Kind::Welcome | Kind::Ping | Kind::Pong | Kind::Cancel | Kind::GoAway
        );
        served |= (!is_of_the_lane as u32) << kind as u8;
        index += 1;
    }
    served
};
