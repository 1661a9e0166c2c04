//! A layer that only fails.

use std::io::IoSlice;

use super::{Ending, Layer, LayerError};

/// Stands in for a layer that could not be made, so that its connection fails and never becomes plaintext.
#[derive(Debug)]
pub struct FailedLayer(pub LayerError);

impl Layer for FailedLayer {
    fn receive(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<usize, LayerError> {
        Err(self.0)
    }

    fn send(&mut self, _: &[IoSlice<'_>], _: &mut Vec<u8>) -> Result<usize, LayerError> {
        Err(self.0)
    }

    fn transmit(&mut self, _: &mut Vec<u8>) {}

    fn is_ready(&self) -> bool {
        false
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn close(&mut self, _: Ending, _: &mut Vec<u8>) {}
}
