//! tidewire-testkit
