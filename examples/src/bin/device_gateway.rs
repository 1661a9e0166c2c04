//! A gateway for devices: `cargo run -p tidewire-examples --bin device_gateway -- ADDRESS BACKEND SILENCE_MS`
//!
//! A device logs in with its first message and sends readings. The backend stores them. The device gets the backend's
//! answer, or a typed error if the backend is down. A line `7 restart` on standard input sends `restart` to device 7.
//! Devices and backend use this framing:
//!
//! ```text
//!   payload length, u16 | kind, u8 | id, u32 | payload            all numbers big-endian
//!   kinds    0 one-way: a sign of life, or a command    1 request    2 reply    3 error: a code, u16, and a text
//!   login    a request: number of the device, u32 | key
//!   reading  any later request; the backend gets: number of the device, u32 | how many came, u32 | reading
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidewire::codec::{Codec, DecodeError, Decoded, EncodeError, Format, RequestIds};
use tidewire::limits::{RateLimit, WhenExceeded};
use tidewire::upstream::Upstream;
use tidewire::{
    AnyCodec, CloseReason, Context, ErrorCode, HandlerError, HandlerResult, Kind, Limits, Message,
    SendError, Server, Service, SessionId, Sessions,
};

/// The framing above. It has no state: one instance serves all connections.
struct DeviceCodec;

impl Codec for DeviceCodec {
    fn format(&self) -> &'static Format {
        const FORMAT: Format = Format {
            ids: RequestIds::Bits32,
            ..Format::new("device")
        };
        &FORMAT
    }

    fn decode<'a>(&self, input: &'a [u8], limit: usize) -> Result<Decoded<'a>, DecodeError> {
        let Some(header) = input.first_chunk::<HEADER_BYTES>() else {
            return Ok(Decoded::Incomplete { frame_bytes: 0 });
        };
        let [high, low, kind, id @ ..] = *header;
        let frame_bytes = HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]));
        if frame_bytes > limit {
            let (bytes, limit) = (frame_bytes as u64, limit as u64);
            return Err(DecodeError::FrameTooLarge { bytes, limit });
        }
        let known = KINDS.get(usize::from(kind));
        let kind = *known.ok_or(DecodeError::UnknownKind(kind))?;
        let Some(payload) = input.get(HEADER_BYTES..frame_bytes) else {
            return Ok(Decoded::Incomplete { frame_bytes });
        };
        let message = Message::with_id(kind, 0, u32::from_be_bytes(id), payload);
        let consumed = frame_bytes;
        Ok(Decoded::Frame { message, consumed })
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let (codec, kind) = (self.format().name, message.kind);
        let number = KINDS.iter().position(|known| *known == kind);
        let number = number.ok_or(EncodeError::Unsupported { codec, kind })?;
        if !message.name.is_empty() && kind.has_name() {
            return Err(EncodeError::NameUnsupported { codec });
        }
        let (bytes, limit) = (message.payload.len() as u64, u64::from(u16::MAX));
        let too_large = EncodeError::PayloadTooLarge { bytes, limit };
        let length = u16::try_from(bytes).map_err(|_| too_large)?;
        out.extend_from_slice(&length.to_be_bytes());
        out.push(number as u8);
        out.extend_from_slice(&message.id.to_be_bytes());
        out.extend_from_slice(message.payload);
        Ok(())
    }
}

/// The state of a session with a logged-in device.
struct Device {
    number: u32,
    readings: u32,
}

#[derive(Clone)]
struct Gateway {
    backend: Upstream,
    /// The sessions of the devices that are logged in. Lanes lock it when a device comes or goes.
    devices: Arc<Mutex<HashMap<u32, SessionId>>>,
}

impl Gateway {
    fn log_in(&self, cx: &mut Context<'_>, login: &[u8]) -> HandlerResult {
        let Some(number) = check_login(login) else {
            cx.close();
            return Err(HandlerError::new(ErrorCode::NotFound, "wrong login"));
        };
        cx.await_login(false);
        let readings = 0;
        cx.set_state(Device { number, readings });
        // A device that lost its connection may return before its old session has timed out.
        let old = self.devices().insert(number, cx.id());
        if let Some(old) = old {
            let _ = cx.sessions().close(old);
        }
        cx.reply(b"welcome")
    }

    /// Handles a line with the number of a device and a command for it. It may run on any thread.
    fn command(&self, line: &str, sessions: &Sessions) -> Result<(), Box<dyn Error>> {
        let (number, command) = line.split_once(' ').ok_or("write: NUMBER COMMAND")?;
        let session = self.devices().get(&number.parse()?).copied();
        let command = Message::new(Kind::OneWay, 0, command.as_bytes());
        Ok(sessions.send_to(session.ok_or(SendError::NotOpen)?, &command)?)
    }

    fn devices(&self) -> MutexGuard<'_, HashMap<u32, SessionId>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service for Gateway {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        cx.await_login(true);
    }

    fn on_request(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let Some(Device { number, readings }) = cx.state_mut() else {
            return self.log_in(cx, message.payload);
        };
        *readings = readings.wrapping_add(1);
        let (number, readings) = (number.to_be_bytes(), readings.to_be_bytes());
        let payload = &[&number, &readings, message.payload].concat();
        cx.forward(&self.backend, &Message { payload, ..message })
    }

    /// Handles a heartbeat.
    fn on_one_way(&mut self, cx: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
        if cx.state::<Device>().is_none() {
            cx.close();
        }
        Ok(())
    }

    fn on_close(&mut self, cx: &mut Context<'_>, _: CloseReason) {
        if let Some(Device { number, .. }) = cx.state() {
            let mut devices = self.devices();
            // Another session may have replaced this session.
            if devices.get(number) == Some(&cx.id()) {
                devices.remove(number);
            }
        }
    }
}

/// Returns the number of the device, if its login is valid. A real program would look the key up in a database.
fn check_login(login: &[u8]) -> Option<u32> {
    let (number, key) = login.split_first_chunk()?;
    let number = u32::from_be_bytes(*number);
    (key == format!("key of {number}").as_bytes()).then_some(number)
}

fn main() -> std::process::ExitCode {
    tidewire_examples::report(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize, default| arguments.get(index).map_or(default, String::as_str);
    let gateway = Gateway {
        backend: Upstream::new(argument(1, "tcp://127.0.0.1:7000"))?,
        devices: Arc::default(),
    };
    let mut limits = Limits::default();
    limits.handshakes.set_login_timeout(Duration::from_secs(10));
    // The longest silence of a device. Messages to the device do not count.
    limits
        .connections
        .set_receive_timeout(Duration::from_millis(argument(2, "60000").parse()?));
    let server = Server::builder()
        .codec(AnyCodec::custom(DeviceCodec))
        .limits(limits)
        .rate_limit(RateLimit::new(WhenExceeded::Refuse).messages_per_second(100))
        .listen(argument(0, "tcp://127.0.0.1:7001"))?
        .start_one(gateway.clone())?;
    println!("listening on {server}");
    let sessions = server.sessions();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if let Err(error) = gateway.command(&line, &sessions) {
                println!("not sent: {error}");
            }
        }
    });
    server.wait_for_signals(Duration::from_secs(5))?;
    Ok(())
}

const HEADER_BYTES: usize = 7;
/// The kinds of frames; the position is the number on the wire.
const KINDS: [Kind; 4] = [Kind::OneWay, Kind::Request, Kind::Reply, Kind::Error];

#[cfg(test)]
mod tests {
    use tidewire::codec::contract;

    use super::*;

    #[test]
    fn frames_survive_every_cut() {
        let messages = [
            Message::with_id(Kind::Request, 0, 1, b"21.5"),
            Message::with_id(Kind::Reply, 0, u32::MAX, b""),
            Message::new(Kind::OneWay, 0, &[7; 300]),
            Message::with_id(Kind::Error, 0, 7, b"no"),
        ];
        assert_eq!(contract::check_every_cut(&DeviceCodec, &messages), Ok(()));
    }

    #[test]
    fn only_the_right_key_lets_a_device_in() {
        assert_eq!(check_login(b"\0\0\0\x07key of 7"), Some(7));
        for wrong in [&b""[..], b"\0\0\0\x07", b"\0\0\0\x07key of 8"] {
            assert_eq!(check_login(wrong), None, "{wrong:?}");
        }
    }
}
