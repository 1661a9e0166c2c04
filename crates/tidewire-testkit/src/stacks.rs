//! Two stacks of layers against each other, without sockets.

use std::io::IoSlice;

use tidewire_proto::layer::{Layer, LayerError, Stack};

/// Chains layers, and begins their handshakes.
#[must_use]
pub fn stack_of(layers: Vec<Box<dyn Layer>>) -> Stack {
    let mut stack = Stack::new(layers).expect("layers");
    stack.start().expect("they begin");
    stack
}

/// Moves all output of one side to the other, in pieces of at most `piece_bytes` bytes. Returns whether there was any.
///
/// # Errors
/// The other side refuses it.
pub fn carry(from: &mut Stack, to: &mut Stack, piece_bytes: usize) -> Result<bool, LayerError> {
    let bytes = from.unsent().to_vec();
    from.advance(bytes.len());
    for piece in bytes.chunks(piece_bytes) {
        to.receive(piece)?;
    }
    Ok(!bytes.is_empty())
}

/// Exchanges bytes until neither side has output.
pub fn exchange_all(one: &mut Stack, other: &mut Stack, piece_bytes: usize) {
    let mut step = || {
        let there = carry(one, other, piece_bytes).expect("accepted");
        let back = carry(other, one, piece_bytes).expect("accepted");
        there || back
    };
    while step() {}
}

/// Passes plaintext to a stack. Returns the number of bytes that it took.
pub fn write(stack: &mut Stack, plain: &[u8]) -> usize {
    stack
        .write(&[IoSlice::new(plain)])
        .expect("the layers go on")
}

/// Reads all plaintext that waits.
#[must_use]
pub fn read_all(stack: &mut Stack) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), [0; 1_000]);
    loop {
        match stack.read(&mut buffer).expect("the layers go on") {
            0 => return all,
            count => all.extend_from_slice(&buffer[..count]),
        }
    }
}
