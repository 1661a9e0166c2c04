//! Fuzzes what TLS takes from the network, at every stage of a connection.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidewire_fuzz::intake::intake(bytes));
