//! tidewire-load
