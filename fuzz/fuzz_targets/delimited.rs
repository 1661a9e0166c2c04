//! Fuzzes the decoder of frames that end with a delimiter.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidewire_fuzz::decoders::delimited(bytes));
