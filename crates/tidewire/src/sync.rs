//! The locks and atomics of shared state, so that a model checker can replace them.
//!
//! `.ci/run models` compiles the library with `--cfg tidewire_model`. Then the types are those of
//! `loom`, and the tests in the files `model.rs` run the real mailbox, event queue, link to the backplane and memory
//! account in every interleaving. In all other builds the types are those of the standard library.

#[cfg(tidewire_model)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, atomic};
#[cfg(not(tidewire_model))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic};
