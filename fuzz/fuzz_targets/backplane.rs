//! Fuzzes the decoder of packets between nodes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidewire_fuzz::decoders::backplane(bytes));
