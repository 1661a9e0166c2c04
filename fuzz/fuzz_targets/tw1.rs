//! Fuzzes the decoder of TW1 frames.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidewire_fuzz::decoders::tw1(bytes));
