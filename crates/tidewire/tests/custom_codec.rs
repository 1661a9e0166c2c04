//! A codec of the user's own in a lane: what it is asked, and that it is asked no more than needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidewire::proto::codec::{Codec, Decoded, Delimited, LastFrame};
use tidewire::proto::error::{DecodeError, EncodeError};
use tidewire::{AnyCodec, Context, HandlerResult, Kind, Message, Server};
use tidewire_testkit::TestServer;

/// Frames that end with a delimiter, and a count of the bytes that were looked at for the first time.
#[derive(Default)]
struct Counting {
    codec: Delimited,
    looked_at: Arc<AtomicUsize>,
}

impl Codec for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn has_handshake(&self) -> bool {
        false
    }

    fn decode<'a>(&self, input: &'a [u8], limit: usize) -> Result<Decoded<'a>, DecodeError> {
        self.decode_grown(input, 0, limit)
    }

    fn decode_grown<'a>(
        &self,
        input: &'a [u8],
        searched: usize,
        limit: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        let decoded = self.codec.decode(input, limit)?;
        let end = match decoded {
            Decoded::Frame { consumed, .. } => consumed,
            Decoded::Incomplete { .. } => input.len(),
        };
        assert!(
            end >= searched,
            "a frame ends where there was said to be none"
        );
        self.looked_at.fetch_add(end - searched, Ordering::Relaxed);
        Ok(decoded)
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.codec.encode(message, out)
    }
}

fn echo(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    cx.reply(message.payload)
}

/// A long frame in small pieces used to be searched from its start whenever a piece came.
#[test]
fn an_unfinished_frame_is_searched_once_however_it_comes() {
    let looked_at = Arc::new(AtomicUsize::new(0));
    let codec = AnyCodec::custom(Counting {
        looked_at: Arc::clone(&looked_at),
        ..Counting::default()
    });
    let server = TestServer::over_tcp(Server::builder(), &codec, |_| echo);
    let mut peer = server.peer();
    // Short ones first, then one that outgrows the lane's buffer and moves into the session's own.
    let payloads = [
        vec![b'a'; 10],
        vec![b'b'; 40],
        vec![b'c'; 60_000],
        vec![b'd'; 5],
    ];
    let stream: Vec<u8> = payloads
        .iter()
        .flat_map(|payload| peer.request_frame(payload))
        .collect();
    let mut written = 0;
    for piece in stream.chunks(1_777) {
        peer.write(piece);
        written += piece.len() as u64;
        // The next piece follows only when this one was read, so that the lane really meets them one by one.
        server.wait_for("the piece is read", |metrics| metrics.bytes_in == written);
    }
    server.wait_for("all are handled", |metrics| {
        metrics.frames_in == payloads.len() as u64
    });
    // Before the peer looks at the answers with the same codec.
    assert_eq!(looked_at.load(Ordering::Relaxed), stream.len());
    for payload in &payloads {
        assert!(peer.answer().payload == *payload);
    }
    peer.finish_writing();
    assert_eq!(peer.receive(), None);
    drop(peer);
    let metrics = server.stop();
    assert_eq!(metrics.frames_in, payloads.len() as u64);
    assert_eq!(metrics.bytes_in, metrics.bytes_out);
}

/// Takes every frame, except that what grows is an error the first time it is looked at.
#[derive(Default)]
struct Fickle(Delimited);

impl Codec for Fickle {
    fn name(&self) -> &'static str {
        "fickle"
    }

    fn has_handshake(&self) -> bool {
        false
    }

    fn decode<'a>(&self, input: &'a [u8], limit: usize) -> Result<Decoded<'a>, DecodeError> {
        self.0.decode(input, limit)
    }

    fn decode_grown<'a>(
        &self,
        _: &'a [u8],
        _: usize,
        _: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        Err(DecodeError::MalformedFrame)
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.0.encode(message, out)
    }
}

/// The lane asked again for the error, found none, and kept what came for as long as more came.
#[test]
fn a_codec_that_takes_back_an_error_costs_its_session() {
    let codec = AnyCodec::custom(Fickle::default());
    let server = TestServer::over_tcp(Server::builder(), &codec, |_| echo);
    let mut peer = server.peer();
    let frame = peer.request_frame(b"refused at first");
    peer.write(&frame);
    peer.finish_writing();
    assert_eq!(peer.receive(), None);
    drop(peer);
    let metrics = server.stop();
    assert_eq!((metrics.closed_by("decode"), metrics.frames_in), (1, 0));
}

/// Uses what is not its to use, and calls everything a hello.
#[derive(Default)]
struct Trespassing(Delimited);

impl Codec for Trespassing {
    fn name(&self) -> &'static str {
        "trespassing"
    }

    fn has_handshake(&self) -> bool {
        false
    }

    fn decode<'a>(&self, input: &'a [u8], limit: usize) -> Result<Decoded<'a>, DecodeError> {
        self.0.decode(input, limit)
    }

    fn repeats_headers(&self) -> bool {
        true
    }

    fn decode_alike<'a>(
        &self,
        input: &'a [u8],
        _: &LastFrame<'a>,
    ) -> Option<(Message<'a>, &'a [u8])> {
        (!input.is_empty()).then_some((Message::new(Kind::Hello, 0, input), &[]))
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.0.encode(message, out)
    }
}

/// Frames that are known by their header go to the service without another look. A codec of a user's own could bring it
/// kinds that are the lane's alone, unnoticed.
#[test]
#[cfg_attr(
    not(debug_assertions),
    ignore = "the lane asserts in debug builds only"
)]
fn a_frame_known_by_its_header_is_one_for_the_service() {
    let codec = AnyCodec::custom(Trespassing::default());
    let server = TestServer::over_tcp(Server::builder(), &codec, |_| echo);
    let mut peer = server.peer();
    let frame = peer.request_frame(b"a hello, it says");
    peer.write(&frame);
    assert_eq!(peer.receive(), None);
    drop(peer);
    let stopped = server.stop_unchecked();
    let failure = &stopped.failures[0];
    assert!(failure.contains("filter.serves"), "{failure}");
    assert_eq!(stopped.metrics.closed_by("lane_failed"), 1);
}
