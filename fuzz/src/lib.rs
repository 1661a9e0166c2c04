//! The functions that the fuzz targets call, one for each decoder.
//!
//! The files belong to the tests of `tidewire-proto` and `tidewire`, which replay `corpus/` with the same functions in the
//! ordinary test run. Run a target with `cargo +nightly fuzz run tw1`; add what it finds to `corpus/tw1`.

#[path = "../../crates/tidewire-proto/tests/decoders/mod.rs"]
pub mod decoders;

#[path = "../../crates/tidewire/tests/tls/intake.rs"]
pub mod intake;
