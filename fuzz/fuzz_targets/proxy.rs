//! Fuzzes the decoder of PROXY headers.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidewire_fuzz::decoders::proxy(bytes));
