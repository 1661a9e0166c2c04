//! The benchmark: bare loops, Tidewire and its rivals side by side, in one run.

pub mod contract;
