//! The programs in the documents, which `cargo test --doc -p tidewire-examples` compiles and runs.

#[doc = include_str!("../../docs/operating.md")]
mod operating {}
