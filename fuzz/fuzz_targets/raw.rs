//! Fuzzes the decoder of bytes without frames.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidewire_fuzz::decoders::raw(bytes));
