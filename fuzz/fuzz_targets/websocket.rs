//! Fuzzes the handshake and the frames of WebSocket.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidewire_fuzz::decoders::websocket(bytes));
