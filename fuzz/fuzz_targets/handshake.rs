//! Fuzzes the handshake with credentials, and their renewal.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidewire_fuzz::decoders::handshake(bytes));
