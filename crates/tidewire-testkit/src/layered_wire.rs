//! A blocking connection with test layers over it, for raw peers.
//!
//! Two threads may read and write at once. The stack is locked while bytes pass through it and never while a thread
//! waits for the socket. A lock of their own keeps the records of writers in order.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewire_proto::layer::{Ending, Layer, LayerError, Stack, WebSocketFault};

use crate::xor_layer::{XorLayer, layers_of};

/// One end of a connection with layers over a blocking socket.
#[derive(Debug)]
pub struct LayeredWire<W> {
    socket: W,
    stack: Arc<Mutex<Stack>>,
    writer: Arc<Mutex<()>>,
}

impl<W: Read + Write> LayeredWire<W> {
    /// Puts test layers over a connection, as the side that connects, and blocks until they are ready.
    pub(crate) fn connect(socket: W, layers: u8) -> io::Result<Self> {
        Self::begin(socket, layers_of(layers, XorLayer::connecting))
    }

    /// Puts these layers over a connection, and blocks until they are ready.
    pub(crate) fn begin(socket: W, layers: Vec<Box<dyn Layer>>) -> io::Result<Self> {
        let mut stack = Stack::new(layers).ok_or(ErrorKind::InvalidInput)?;
        stack.start().map_err(io::Error::other)?;
        let mut wire = Self {
            socket,
            stack: Arc::new(Mutex::new(stack)),
            writer: Arc::default(),
        };
        while !wire.lock().is_ready() {
            wire.send_pending()?;
            wire.receive(&mut [0; 1_000])?;
        }
        wire.send_pending()?;
        Ok(wire)
    }

    pub(crate) fn socket(&self) -> &W {
        &self.socket
    }

    pub(crate) fn into_socket(self) -> W {
        self.socket
    }

    /// Makes another handle to the same connection, for a second handle to its socket.
    pub(crate) fn handle(&self, socket: W) -> Self {
        Self {
            socket,
            stack: Arc::clone(&self.stack),
            writer: Arc::clone(&self.writer),
        }
    }

    /// Announces that no more is written.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        self.lock()
            .close(Ending::InOrder)
            .map_err(io::Error::other)?;
        self.send_pending()
    }

    fn lock(&self) -> MutexGuard<'_, Stack> {
        self.stack.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the socket once. A cut connection is a separate error, so that no test mistakes it for an end.
    fn receive(&mut self, scratch: &mut [u8]) -> io::Result<()> {
        let received = match self.socket.read(scratch) {
            Ok(0) => self.lock().handle_network_end(),
            Ok(count) => self.lock().receive(&scratch[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) => return Err(error),
        };
        received.map_err(io_error)
    }

    /// Sends the answers of the layers to read bytes, such as pongs, unless another thread writes. That thread sends
    /// them, too.
    fn answer(&mut self) {
        let writer = Arc::clone(&self.writer);
        if let Ok(_in_order) = writer.try_lock()
            && !self.lock().unsent().is_empty()
        {
            // A vanished peer takes no answer. The next read reports it.
            let _ = self.send_unsent();
        }
    }

    fn send_pending(&mut self) -> io::Result<()> {
        let writer = Arc::clone(&self.writer);
        let _in_order = writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.send_unsent()
    }

    /// Sends the waiting bytes. Only the holder of the writers' lock calls it.
    fn send_unsent(&mut self) -> io::Result<()> {
        let bytes = {
            let mut stack = self.lock();
            let bytes = stack.unsent().to_vec();
            stack.advance(bytes.len());
            bytes
        };
        self.socket.write_all(&bytes)
    }
}

/// A WebSocket that its peer closed with a code was not cut: the peer announced the end, and why.
fn io_error(error: LayerError) -> io::Error {
    let kind = match error {
        LayerError::WebSocket(WebSocketFault::Closed(_)) => ErrorKind::ConnectionReset,
        _ => ErrorKind::InvalidData,
    };
    io::Error::new(kind, error)
}

impl<W: Read + Write> Read for LayeredWire<W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            {
                let mut stack = self.lock();
                let count = stack.read(buffer).map_err(io_error)?;
                if count > 0 || stack.has_ended() {
                    return Ok(count);
                }
            }
            // Reads at most the reader's length, so that a reader of small pieces takes small pieces here, too.
            self.receive(buffer)?;
            self.answer();
        }
    }
}

impl<W: Read + Write> Write for LayeredWire<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let accepted = self.lock().write(&[IoSlice::new(bytes)]);
        let accepted = accepted.map_err(io::Error::other)?;
        self.send_pending()?;
        match accepted {
            0 if !bytes.is_empty() => Err(ErrorKind::BrokenPipe.into()),
            accepted => Ok(accepted),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
