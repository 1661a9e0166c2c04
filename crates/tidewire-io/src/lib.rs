//! tidewire-io
