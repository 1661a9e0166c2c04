//! tidewire-testkit
pub mod fault_server;
