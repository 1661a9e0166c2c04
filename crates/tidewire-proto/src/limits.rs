//! Every limit of the protocol and of a server, each with its name, its default and its reason.
//!
//! Exceeding a limit is a typed, counted close or refusal: never a panic and never unbounded memory.

/// Largest whole frame accepted or sent, in bytes. 1 MiB is far above the small messages that Tidewire is for, and too
/// little for one peer to exhaust memory. The memory limit of a server bounds the sum over its sessions.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

/// Smallest frame limit that a peer may announce. The largest control frame (a presence: header 8, event 1, member 4,
/// length 1, name 255) has 269 bytes; a peer with a smaller limit could not receive it.
pub const FRAME_BYTES_MIN: u32 = 512;

/// Longest line of the lines codec, including its terminator. People type lines; 8 KiB is two screens full, and a line
/// without an end costs no more than this.
pub const LINE_BYTES_MAX: usize = 8 << 10;

/// Largest first frame. A hello has 25 fixed bytes, an agent text, and credentials of at most 1 KiB. Until it is
/// accepted, an untrusted peer can make this side hold this much and no more.
pub const HELLO_BYTES_MAX: usize = 2048;

/// Largest first frame over an encrypted connection. The handshake of TLS has cost both sides more than these bytes.
pub const LONG_HELLO_BYTES_MAX: usize = 9_216;

/// Largest credentials inside a hello.
pub const CREDENTIALS_BYTES_MAX: usize = 1024;

/// Largest credentials inside a hello over an encrypted connection, with the feature
/// [`FEATURE_LONG_CREDENTIALS`](crate::handshake::FEATURE_LONG_CREDENTIALS). Tokens of login servers list roles and
/// groups of their users; web servers take 8 KiB in a header.
pub const LONG_CREDENTIALS_BYTES_MAX: usize = 8_192;

/// Longest name of a member or room in UTF-8 bytes; its length field is one byte, and 64 fit a screen line.
pub const NAME_BYTES_MAX: usize = 64;

/// Longest topic or pattern in UTF-8 bytes: its length field in a named frame is one byte.
pub const TOPIC_BYTES_MAX: usize = 255;

/// Maximum number of segments of a topic or pattern. Each segment costs a lookup per message when wildcards are in use;
/// 16 is twice the depth of the deepest naming schemes in use.
pub const TOPIC_SEGMENTS_MAX: usize = 16;

/// Longest address of another server in a go-away. With the longest text the frame has 506 bytes, which fit the
/// smallest frame limit that a peer may announce.
pub const MOVED_ADDRESS_BYTES_MAX: usize = 240;

/// Longest human-readable reason in error, go-away and agent fields.
pub const TEXT_BYTES_MAX: usize = 255;
