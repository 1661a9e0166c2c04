//! Echoes over TCP in lock step, to be run under a program that counts the instructions of each thread.
//!
//! Problem: what a change costs per message drowns in the noise of clocks on a shared machine, while the number of
//! instructions a lane executes hardly moves. Approach: one lane and one plain socket that take turns, so that every
//! run does the same work. The socket sends BATCH requests of 32 bytes in one write and waits for all replies, ROUNDS
//! times; two runs with different ROUNDS leave the start out. `.ci/count-instructions` does it and compares commits.
//!
//! `instructions_per_echo BATCH ROUNDS [CODEC] [SUBSCRIBER]`: any codec but `raw`; `tw1` is the default, and `custom` a
//! codec of one's own with the format of `length-field`. With the feature `trace` a SUBSCRIBER may be `registry`, which keeps spans, or `fmt`, which also writes a line for
//! every span that ends, to nowhere.

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use tidewire::io::poller::{PollerChoice, PollerKind};
use tidewire::proto::codec::{Codec, Decoded};
use tidewire::proto::error::{DecodeError, EncodeError};
use tidewire::proto::handshake::{Hello, PROTOCOL_VERSION};
use tidewire::{AnyCodec, Context, HandlerResult, Kind, Message, Server};

fn echo(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    cx.reply(message.payload)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |place: usize| arguments.get(place).map_or("", String::as_str);
    let (batch, rounds): (u32, u32) = (argument(0).parse()?, argument(1).parse()?);
    let name = arguments.get(2).map_or("tw1", String::as_str);
    install(argument(3))?;
    let codec = match name {
        "custom" => AnyCodec::Custom(Arc::new(Own)),
        name => AnyCodec::by_name(name)?,
    };
    let server = Server::builder()
        .poller(PollerChoice::Only(PollerKind::Poll))
        .listen("tcp://127.0.0.1:0")?
        .codec(codec.clone())
        .start(|_| echo)?;
    let mut peer = TcpStream::connect(server.to_string().trim_start_matches("tcp://"))?;
    if codec.has_handshake() {
        greet(&mut peer)?;
    }
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    for id in 1..=batch {
        let (request, reply) = if codec.has_ids() {
            (Kind::Request, Kind::Reply)
        } else {
            (Kind::OneWay, Kind::OneWay)
        };
        codec.encode(
            &Message::with_id(request, 0, id, &[b'x'; 32]),
            &mut requests,
        )?;
        codec.encode(&Message::with_id(reply, 0, id, &[b'x'; 32]), &mut replies)?;
    }
    let mut received = vec![0; replies.len()];
    for _ in 0..rounds {
        peer.write_all(&requests)?;
        peer.read_exact(&mut received)?;
        if received != replies {
            return Err("the replies are not those to the requests".into());
        }
    }
    Ok(())
}

/// A length of two bytes before the payload. Not one of the library's codecs: those would be compiled otherwise if
/// they were reached through a pointer, too.
struct Own;

impl Codec for Own {
    fn name(&self) -> &'static str {
        "own"
    }

    fn has_handshake(&self) -> bool {
        false
    }

    fn decode<'a>(&self, input: &'a [u8], limit: usize) -> Result<Decoded<'a>, DecodeError> {
        let Some((length, rest)) = input.split_first_chunk() else {
            return Ok(Decoded::Incomplete { frame_bytes: 0 });
        };
        let payload_bytes = usize::from(u16::from_le_bytes(*length));
        let frame_bytes = payload_bytes + 2;
        if frame_bytes > limit {
            return Err(DecodeError::FrameTooLarge {
                bytes: frame_bytes as u64,
                limit: limit as u64,
            });
        }
        Ok(match rest.get(..payload_bytes) {
            Some(payload) => Decoded::Frame {
                message: Message::new(Kind::OneWay, 0, payload),
                consumed: frame_bytes,
            },
            None => Decoded::Incomplete { frame_bytes },
        })
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let bytes = message.payload.len();
        let length = u16::try_from(bytes).map_err(|_| EncodeError::PayloadTooLarge {
            bytes: bytes as u64,
            limit: u64::from(u16::MAX),
        })?;
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(message.payload);
        Ok(())
    }
}

/// Says hello and reads the welcome, whose length its header begins with.
fn greet(peer: &mut TcpStream) -> Result<(), Box<dyn Error>> {
    let mut hello = Vec::new();
    Hello {
        version: PROTOCOL_VERSION,
        features: 0,
        frame_bytes_max: 1 << 20,
        credentials: &[],
        agent: "",
    }
    .encode_frame(&mut hello)?;
    peer.write_all(&hello)?;
    let mut length = [0; 4];
    peer.read_exact(&mut length)?;
    let mut welcome = vec![0; u32::from_le_bytes(length) as usize];
    Ok(peer.read_exact(&mut welcome)?)
}

#[cfg(not(feature = "trace"))]
fn install(subscriber: &str) -> Result<(), Box<dyn Error>> {
    if subscriber.is_empty() {
        return Ok(());
    }
    Err("a subscriber needs the feature `trace`".into())
}

#[cfg(feature = "trace")]
fn install(subscriber: &str) -> Result<(), Box<dyn Error>> {
    use tracing_subscriber::filter::LevelFilter;
    use tracing_subscriber::fmt::format::FmtSpan;
    use tracing_subscriber::prelude::*;
    let registry = tracing_subscriber::registry();
    match subscriber {
        "" => {}
        "registry" => registry.with(LevelFilter::TRACE).init(),
        "fmt" => {
            let lines = tracing_subscriber::fmt::layer()
                .with_ansi(false)
                .with_span_events(FmtSpan::CLOSE)
                .with_writer(std::io::sink);
            registry.with(lines).with(LevelFilter::TRACE).init();
        }
        other => return Err(format!("no subscriber is called {other:?}").into()),
    }
    Ok(())
}
