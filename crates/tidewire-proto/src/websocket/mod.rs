//! WebSocket (RFC 6455) as a [layer](crate::layer), for servers and clients.
//!
//! Problem: browsers open no TCP connections, and a room's log must still hold one encoding for all its members.
//! Approach: each write becomes one message: a header, then the unchanged bytes. So messages carry the codec's byte
//! stream, and their boundaries have no meaning for binary codecs. Text codecs, with lines as frames, send text
//! messages of whole lines.
//!
//! ```text
//!   write     header │ output │ room log ...        one binary message
//!   text      header │ line LF line LF ...          one text message; a cut line continues in a fragment
//! ```
//!
//! - [`WebSocketLayer`] is the layer: the handshake, then frames.
//! - [`Frames`] reads and checks the frames of a peer, and [`Masks`] and [`frame_header`] write them. A program that
//!   needs messages as they came, such as an echo server of a test suite, uses these directly.
//! - [`ServerTerms`] and [`ClientTerms`] say what a side expects of a handshake.
//!
//! Compression (permessage-deflate) is not offered and not accepted. Each receiver would need its own compressed form,
//! so receivers could not share a room's log. A connection would hold a window of 32 KiB. The length of compressed data
//! reveals a secret that is beside bytes of an attacker.
//!
//! Rejected: a message for each frame of the codec, because a write of a thousand frames would have a thousand headers
//! between the pieces of a shared log.

mod accept;
mod connect;
mod frame;
mod http;
mod layer;
mod mask;
mod origin;
mod page;
mod reader;
mod text;

pub use accept::{Answer, ServerTerms};
pub use connect::ClientTerms;
pub use frame::{MessageKind, close_frame, frame_header};
pub use layer::WebSocketLayer;
pub use mask::{Mask, Masks};
pub use origin::Origins;
pub use page::{PAGE_BYTES_MAX, WebPage};
pub use reader::{Frames, Received, Side};

/// The limits of the head of a handshake, which is the request or the answer with its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// The head's bytes, with the empty line. At most [`RECORD_BYTES_MAX`](crate::layer::RECORD_BYTES_MAX) count.
    pub bytes_max: usize,
    /// The number of headers in a head.
    pub headers_max: usize,
}

impl Default for HeadLimits {
    /// 16 KiB, as Node has: browsers send cookies of 4 KiB each, and tokens. 128 headers: proxies add some.
    fn default() -> Self {
        Self {
            bytes_max: 16 << 10,
            headers_max: 128,
        }
    }
}

/// The default of the longest message, in bytes. Bytes are passed on before the message is complete, so a long message
/// costs no memory. The limit ends senders that never end a message.
pub const MESSAGE_BYTES_MAX: u64 = 64 << 20;
