//! Fuzzes the heads of WebSocket handshakes: nothing that another reader would see is passed over.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidewire_fuzz::decoders::websocket_head(bytes));
