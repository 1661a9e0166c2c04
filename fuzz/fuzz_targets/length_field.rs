//! Fuzzes the decoder of frames with a length in front.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidewire_fuzz::decoders::length_field(bytes));
