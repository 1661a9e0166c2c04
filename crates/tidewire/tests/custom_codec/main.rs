//! Custom codecs in a lane: the calls that they get, and that they get no more than needed.

mod deliveries;
mod questions;
mod state;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidewire::{AnyCodec, Kind, Message, Server};
use tidewire_proto::codec::{
    Codec, ConnectionState, Decoded, Delimited, Format, FrameLayout, RequestIds, contract,
};
use tidewire_proto::error::{DecodeError, EncodeError};
use tidewire_testkit::TestServer;
use tidewire_testkit::fixtures::echo;

/// Frames that end with a delimiter. The codec counts the bytes that it reads for the first time.
#[derive(Default)]
struct Counting {
    codec: Delimited,
    looked_at: Arc<AtomicUsize>,
}

impl Codec for Counting {
    fn format(&self) -> &'static Format {
        const FORMAT: Format = Format::new("counting");
        &FORMAT
    }

    fn decode<'a>(&self, input: &'a [u8], limit: usize) -> Result<Decoded<'a>, DecodeError> {
        self.decode_next(&mut ConnectionState::default(), input, 0, limit)
    }

    fn decode_next<'a>(
        &self,
        _: &mut ConnectionState,
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

/// Regression: a long frame in small pieces was searched from its start for every piece.
#[test]
fn an_unfinished_frame_is_searched_once_however_it_comes() {
    let looked_at = Arc::new(AtomicUsize::new(0));
    let codec = AnyCodec::custom(Counting {
        looked_at: Arc::clone(&looked_at),
        ..Counting::default()
    });
    let server = TestServer::over_tcp(Server::builder(), &codec, |_| echo);
    let mut peer = server.peer();
    // Short frames first, then a frame that outgrows the lane's buffer and moves into the session's buffer.
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
        // The next piece follows after this piece was read, so that the lane reads them one by one.
        server.wait_for("the piece is read", |metrics| metrics.bytes_in == written);
    }
    server.wait_for("all are handled", |metrics| {
        metrics.frames_in == payloads.len() as u64
    });
    // Checked before the peer decodes the answers with the same codec.
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

/// Accepts every frame. An unfinished frame that grows is an error, but only the first time.
#[derive(Default)]
struct Fickle(Delimited);

impl Codec for Fickle {
    fn format(&self) -> &'static Format {
        const FORMAT: Format = Format::new("fickle");
        &FORMAT
    }

    fn decode<'a>(&self, input: &'a [u8], limit: usize) -> Result<Decoded<'a>, DecodeError> {
        self.0.decode(input, limit)
    }

    fn decode_next<'a>(
        &self,
        _: &mut ConnectionState,
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

/// Regression: the lane called the codec again for the error, found none, and kept all input as long as more came.
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

/// Returns the layout of a frame.
type Layout = fn(&[u8]) -> Option<FrameLayout>;

/// A codec with a header of eight bytes in front of the payload: length, kind, a zero byte, and id.
struct Numbered {
    /// Number of calls of `decode` and `encode`.
    calls: Arc<AtomicUsize>,
    /// The layout that it reports for its frames.
    layout: Layout,
}

impl Numbered {
    const KINDS: [Kind; 3] = [Kind::OneWay, Kind::Request, Kind::Reply];

    fn new(layout: Layout) -> Self {
        let calls = Arc::default();
        Self { calls, layout }
    }

    fn honest(frame: &[u8]) -> Option<FrameLayout> {
        Some(FrameLayout::new(8..frame.len()).with_id(4))
    }
}

impl Codec for Numbered {
    fn format(&self) -> &'static Format {
        const FORMAT: Format = Format {
            ids: RequestIds::Bits32,
            repeats_names: false,
            ..Format::new("numbered")
        };
        &FORMAT
    }

    fn decode<'a>(&self, input: &'a [u8], limit: usize) -> Result<Decoded<'a>, DecodeError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let Some(([l0, l1, kind, _, id @ ..], rest)) = input.split_first_chunk::<8>() else {
            return Ok(Decoded::Incomplete { frame_bytes: 0 });
        };
        let payload_bytes = usize::from(u16::from_le_bytes([*l0, *l1]));
        let consumed = 8 + payload_bytes;
        if consumed > limit {
            let (bytes, limit) = (consumed as u64, limit as u64);
            return Err(DecodeError::FrameTooLarge { bytes, limit });
        }
        let kind = Self::KINDS.get(usize::from(*kind));
        let kind = *kind.ok_or(DecodeError::MalformedFrame)?;
        Ok(match rest.get(..payload_bytes) {
            Some(payload) => Decoded::Frame {
                message: Message::with_id(kind, 0, u32::from_le_bytes(*id), payload),
                consumed,
            },
            None => Decoded::Incomplete {
                frame_bytes: consumed,
            },
        })
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let kind = Self::KINDS.iter().position(|kind| *kind == message.kind);
        let kind = kind.ok_or(EncodeError::Unsupported {
            codec: "numbered",
            kind: message.kind,
        })?;
        let bytes = message.payload.len();
        let length = u16::try_from(bytes).map_err(|_| EncodeError::PayloadTooLarge {
            bytes: bytes as u64,
            limit: u64::from(u16::MAX),
        })?;
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&[kind as u8, 0]);
        out.extend_from_slice(&message.id.to_le_bytes());
        out.extend_from_slice(message.payload);
        Ok(())
    }

    fn layout(&self, frame: &[u8], _: &Message<'_>) -> Option<FrameLayout> {
        (self.layout)(frame)
    }
}

/// Sends all `payloads` in one write, and checks the answers. Returns the number of calls of the codec.
fn asked_at_once(layout: Layout, payloads: &[Vec<u8>]) -> usize {
    let numbered = Numbered::new(layout);
    let calls = Arc::clone(&numbered.calls);
    let codec = AnyCodec::custom(numbered);
    let server = TestServer::over_tcp(Server::builder(), &codec, |_| echo);
    let mut peer = server.peer();
    let requests: Vec<u8> = payloads
        .iter()
        .flat_map(|payload| peer.request_frame(payload))
        .collect();
    let before = calls.load(Ordering::Relaxed);
    peer.write(&requests);
    server.wait_for("all are answered", |metrics| {
        metrics.bytes_out == requests.len() as u64
    });
    let of_the_lane = calls.load(Ordering::Relaxed) - before;
    for (number, payload) in payloads.iter().enumerate() {
        let answer = peer.answer();
        assert_eq!((answer.id, &answer.payload), (number as u32 + 1, payload));
    }
    peer.finish_writing();
    assert_eq!(peer.receive(), None);
    drop(peer);
    let metrics = server.stop();
    assert_eq!(metrics.frames_in, payloads.len() as u64);
    assert_eq!(metrics.bytes_in, metrics.bytes_out);
    of_the_lane
}

#[test]
fn a_codec_that_tells_its_layout_is_asked_for_the_first_frames_only() {
    let codec = Numbered::new(Numbered::honest);
    let payloads = [&b"0123456789abcdef"[..], b"", b"x", &[0xFF; 300]];
    let messages = payloads.map(|payload| Message::with_id(Kind::Request, 0, 7, payload));
    assert_eq!(contract::check_every_cut(&codec, &messages), Ok(()));

    let alike = vec![b"0123456789abcdef".to_vec(); 1_000];
    assert!(asked_at_once(|_| None, &alike) >= 2_000);
    // A read that ends within a frame costs one call for that frame, and two for the next two.
    let calls = asked_at_once(Numbered::honest, &alike);
    assert!(calls < 200, "{calls} calls");

    let mixed: Vec<Vec<u8>> = (0..1_000)
        .map(|n| vec![n as u8; n / 100 * (n % 3)])
        .collect();
    asked_at_once(Numbered::honest, &mixed);
}

/// Regression: the template of such answers put the message's id into each.
#[test]
fn an_answer_to_a_message_that_asked_nothing_has_no_id() {
    let codec = AnyCodec::custom(Numbered::new(Numbered::honest));
    let server = TestServer::over_tcp(Server::builder(), &codec, |_| echo);
    let mut peer = server.peer();
    for id in 1..=10 {
        peer.send(&Message::with_id(Kind::OneWay, 0, id, b"0123456789abcdef"));
    }
    for _ in 1..=10 {
        let answer = peer.receive().expect("an answer");
        assert_eq!((answer.kind, answer.id), (Kind::OneWay, 0));
    }
    drop(peer);
    let metrics = server.stop();
    assert_eq!(
        (metrics.frames_in, metrics.bytes_in),
        (10, metrics.bytes_out)
    );
}

/// Wrong layouts. Most of them cannot belong to any frame.
#[expect(clippy::reversed_empty_ranges, reason = "a codec may report it")]
const LIES: [Layout; 10] = [
    |frame| Some(FrameLayout::new(0..frame.len() - 8)),
    |frame| Some(FrameLayout::new(8..frame.len()).with_id(1)),
    |frame| Some(FrameLayout::new(8..frame.len()).with_id_byte(0, 3)),
    |frame| Some(FrameLayout::new(8..frame.len()).with_ignored(0..8)),
    |frame| Some(FrameLayout::new(8..frame.len()).with_id(6)),
    |frame| Some(FrameLayout::new(9..frame.len() + 1).with_id(4)),
    |frame| Some(FrameLayout::new(8..frame.len()).with_id(usize::MAX - 1)),
    |frame| Some(FrameLayout::new(usize::MAX - frame.len()..usize::MAX)),
    |frame| Some(FrameLayout::new(8..frame.len() * 2)),
    |frame| Some(FrameLayout::new(8..frame.len()).with_ignored(usize::MAX..0)),
];

/// With a wrong layout a lane reads and writes wrong messages, but no byte outside their frames.
#[test]
fn a_codec_that_lies_about_its_layout_harms_nothing_but_its_own_frames() {
    for (number, layout) in LIES.into_iter().enumerate() {
        let codec = AnyCodec::custom(Numbered::new(layout));
        let server = TestServer::over_tcp(Server::builder(), &codec, |_| echo);
        for round in 0..4_u8 {
            let mut peer = server.peer();
            let sizes = [16, 16, 16, 16, 40, 40, 40, 3, 3, 3, 16, 16];
            let requests: Vec<u8> = sizes
                .iter()
                .flat_map(|size| peer.request_frame(&vec![round; *size]))
                .collect();
            peer.write(&requests);
            peer.finish_writing();
            // The session ends after any answers.
            let mut wire = peer.into_wire();
            let mut answers = Vec::new();
            wire.read_to_end(&mut answers).expect("an end");
        }
        let metrics = server.stop();
        assert_eq!(metrics.closed_by("lane_failed"), 0, "lie {number}");
        assert_eq!(metrics.sessions_opened, 4, "lie {number}");
    }
}

#[test]
fn a_codec_that_lies_about_its_layout_is_found_by_the_contract() {
    let message = Message::with_id(Kind::Request, 0, 7, b"0123456789abcdef");
    for (number, layout) in LIES.into_iter().enumerate() {
        let found = contract::check_every_cut(&Numbered::new(layout), &[message, message]);
        // A layout that no frame can have is rejected at once.
        let is_believed = number < 4;
        assert_eq!(found.is_err(), is_believed, "lie {number}: {found:?}");
    }
}
