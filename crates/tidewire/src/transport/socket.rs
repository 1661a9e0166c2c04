//! TCP and Unix sockets. They differ in their addresses only: bytes move in the same way.

use std::io::{self, IoSlice};

use tidewire_io::socket::{SocketError, Stream};

use super::Transport;

impl Transport for Stream {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Self::read(self, buffer)
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::write(self, bytes)
    }

    #[inline]
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        Self::write_vectored(self, pieces)
    }

    fn shutdown_write(&mut self) -> io::Result<()> {
        Self::shutdown_write(self)
    }

    fn finish_connect(&self) -> Result<bool, SocketError> {
        match Self::finish_connect(self) {
            Ok(()) => Ok(true),
            Err(SocketError::InProgress { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
