//! tidewire
