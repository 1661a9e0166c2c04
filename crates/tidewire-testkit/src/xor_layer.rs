//! A layer that represents TLS and WebSocket in tests: records with a type, a length and an XORed payload.
//!
//! ```text
//!   record   type u8 · length u16, big-endian · payload, each byte XOR key
//!   hello    one each way before anything else; the accepting side answers
//!   data     plaintext
//!   close    no more data follows
//! ```

use std::io::IoSlice;

use tidewire_proto::layer::{Ending, Layer, LayerError};

/// One side of the layer.
#[derive(Debug)]
pub struct XorLayer {
    key: u8,
    /// Whether its hello is not sent yet. The accepting side sends its hello only after the peer's.
    must_send_hello: bool,
    is_connecting: bool,
    is_greeted: bool,
    has_ended: bool,
    is_closed: bool,
}

/// Makes this many layers, each with its own key.
pub fn layers_of(layers: u8, make: fn(u8) -> XorLayer) -> Vec<Box<dyn Layer>> {
    let keys = (0..layers).map(|number| 0x5A + number);
    keys.map(|key| Box::new(make(key)) as Box<dyn Layer>)
        .collect()
}

impl XorLayer {
    /// Creates the side that connects and sends its hello first.
    #[must_use]
    pub fn connecting(key: u8) -> Self {
        Self::new(key, true)
    }

    /// Creates the side that accepts.
    #[must_use]
    pub fn accepting(key: u8) -> Self {
        Self::new(key, false)
    }

    fn new(key: u8, is_connecting: bool) -> Self {
        Self {
            key,
            must_send_hello: is_connecting,
            is_connecting,
            is_greeted: false,
            has_ended: false,
            is_closed: false,
        }
    }

    fn record(&self, kind: u8, payload: &[u8], network: &mut Vec<u8>) {
        // Records are at most `RECORD_BYTES_MAX` long.
        let length = u16::try_from(payload.len()).unwrap_or(u16::MAX);
        network.push(kind);
        network.extend_from_slice(&length.to_be_bytes());
        self.cipher(payload, network);
    }

    /// Appends `bytes`, each XOR the key. It takes sixteen at once, because tests run without optimisation.
    fn cipher(&self, bytes: &[u8], output: &mut Vec<u8>) {
        let start = output.len();
        output.extend_from_slice(bytes);
        let (blocks, rest) = output[start..].as_chunks_mut();
        let key = u128::from_ne_bytes([self.key; 16]);
        for block in blocks {
            *block = (u128::from_ne_bytes(*block) ^ key).to_ne_bytes();
        }
        for byte in rest {
            *byte ^= self.key;
        }
    }

    fn handle(&mut self, kind: u8, payload: &[u8], plain: &mut Vec<u8>) -> Result<(), LayerError> {
        match (kind, self.is_greeted) {
            (HELLO, false) if payload.iter().map(|byte| byte ^ self.key).eq(*GREETING) => {
                self.is_greeted = true;
                self.must_send_hello = !self.is_connecting;
            }
            (HELLO, false) => return Err(LayerError::Refused),
            (DATA, true) => self.cipher(payload, plain),
            (CLOSE, true) if payload.is_empty() => self.has_ended = true,
            _ => return Err(LayerError::Malformed),
        }
        Ok(())
    }
}

impl Layer for XorLayer {
    fn receive(&mut self, network: &[u8], plain: &mut Vec<u8>) -> Result<usize, LayerError> {
        let Some((&[kind, high, low], rest)) = network.split_first_chunk() else {
            return Ok(0);
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length > RECORD_BYTES_MAX {
            return Err(LayerError::RecordTooLong);
        }
        let Some(payload) = rest.get(..length) else {
            return Ok(0);
        };
        self.handle(kind, payload, plain)?;
        Ok(HEADER_BYTES + length)
    }

    fn send(&mut self, plain: &[IoSlice<'_>], network: &mut Vec<u8>) -> Result<usize, LayerError> {
        if !self.is_ready() || self.is_closed {
            return Ok(0);
        }
        let mut left: usize = plain.iter().map(|slice| slice.len()).sum();
        let accepted = left;
        network.reserve(left + HEADER_BYTES * left.div_ceil(RECORD_BYTES_MAX));
        // Records are filled to their maximum, wherever the slices end.
        let mut record_left = 0;
        for slice in plain {
            let mut slice: &[u8] = slice;
            while !slice.is_empty() {
                if record_left == 0 {
                    record_left = left.min(RECORD_BYTES_MAX);
                    let length = u16::try_from(record_left).unwrap_or(u16::MAX);
                    network.push(DATA);
                    network.extend_from_slice(&length.to_be_bytes());
                }
                let (part, rest) = slice.split_at(slice.len().min(record_left));
                self.cipher(part, network);
                (slice, left, record_left) = (rest, left - part.len(), record_left - part.len());
            }
        }
        Ok(accepted)
    }

    fn transmit(&mut self, network: &mut Vec<u8>) {
        if std::mem::take(&mut self.must_send_hello) {
            self.record(HELLO, GREETING, network);
        }
    }

    fn is_ready(&self) -> bool {
        self.is_greeted && !self.must_send_hello
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn close(&mut self, _: Ending, network: &mut Vec<u8>) {
        self.is_closed = true;
        if self.is_ready() {
            self.record(CLOSE, &[], network);
        }
    }
}

const HELLO: u8 = 1;
const DATA: u8 = 2;
const CLOSE: u8 = 3;

const HEADER_BYTES: usize = 3;

/// Longest payload of a record, as in TLS.
const RECORD_BYTES_MAX: usize = 16 << 10;

const GREETING: &[u8; 5] = b"hello";
