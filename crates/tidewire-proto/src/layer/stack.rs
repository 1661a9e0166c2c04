//! A stack of layers, with the bytes that wait between them.

use std::io::{self, IoSlice};
use std::net::IpAddr;

use super::buffer::Buffer;
use super::{CertificateNames, Encryption, Ending, Layer, LayerError};

/// The layers of a connection.
///
/// Pass bytes of the socket to [`Self::receive`], take plaintext by [`Self::read`], pass plaintext to [`Self::write`],
/// and write [`Self::unsent`] to the socket. Call [`Self::start`] first.
#[derive(Debug)]
pub struct Stack {
    /// At least one level. The first is next to the network.
    levels: Vec<Level>,
    plain: Buffer,
    /// Whether a layer stopped because enough plaintext waits to be read.
    has_backlog: bool,
    is_closed: bool,
}

/// A layer of a stack.
#[derive(Debug)]
struct Level {
    layer: Box<dyn Layer>,
    /// Bytes from beneath that the layer has not used.
    input: Buffer,
    /// Records that the layer beneath, or the socket, has not taken.
    output: Buffer,
}

impl From<Box<dyn Layer>> for Stack {
    fn from(layer: Box<dyn Layer>) -> Self {
        Self::of(vec![Level::new(layer)])
    }
}

impl Level {
    fn new(layer: Box<dyn Layer>) -> Self {
        Self {
            layer,
            input: Buffer::default(),
            output: Buffer::default(),
        }
    }
}

impl Stack {
    fn of(levels: Vec<Level>) -> Self {
        Self {
            levels,
            plain: Buffer::default(),
            has_backlog: false,
            is_closed: false,
        }
    }

    /// Chains these layers; the first is next to the network. Returns `None` if there are none.
    #[must_use]
    pub fn new(layers: Vec<Box<dyn Layer>>) -> Option<Self> {
        // Collected at once, they have no room for more levels, which never come.
        let levels: Vec<_> = layers.into_iter().map(Level::new).collect();
        (!levels.is_empty()).then(|| Self::of(levels))
    }

    /// Puts a layer above the others.
    #[must_use]
    pub fn under(mut self, layer: Box<dyn Layer>) -> Self {
        self.levels.push(Level::new(layer));
        self
    }

    /// Begins the handshakes: afterwards, [`Self::unsent`] may have bytes. Further calls do nothing.
    ///
    /// # Errors
    /// A layer failed.
    pub fn start(&mut self) -> Result<(), LayerError> {
        self.pass_down()
    }

    /// Whether all handshakes are over, so that plaintext may be written.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.levels.iter().all(|level| level.layer.is_ready())
    }

    /// Whether the next bytes of the network may cost a layer much computation; see [`Layer::awaits_costly_bytes`].
    #[must_use]
    pub fn awaits_costly_bytes(&self) -> bool {
        let mut levels = self.levels.iter();
        levels.any(|level| level.layer.awaits_costly_bytes())
    }

    /// Frees the memory of the handshakes. Call it after the handshakes: an idle connection, and a layer that only adds
    /// a header, never needs these buffers again.
    pub fn shrink(&mut self) {
        for level in &mut self.levels {
            level.input.shrink();
            level.output.shrink();
        }
    }

    /// Takes bytes from the network. Call it when there is [no plaintext](Self::has_plain) left, so that the waiting
    /// bytes stay bounded.
    ///
    /// # Errors
    /// A layer failed. [`Self::unsent`] may have an alert for the peer.
    pub fn receive(&mut self, network: &[u8]) -> Result<(), LayerError> {
        let received = self.pass_up(network);
        // The records are passed down also after an error, so that the peer receives the alert.
        let sent = self.pass_down();
        received.and(sent)
    }

    /// Handles the end of the network.
    ///
    /// # Errors
    /// [`LayerError::Truncated`] if the layers have not ended before.
    pub fn handle_network_end(&mut self) -> Result<(), LayerError> {
        match self.has_ended() {
            true => Ok(()),
            false => Err(LayerError::Truncated),
        }
    }

    /// Whether there is plaintext to read, now or after another pass over the received bytes.
    #[must_use]
    pub fn has_plain(&self) -> bool {
        !self.plain.is_empty() || self.has_backlog
    }

    /// Moves plaintext into the buffer. Returns the number of bytes; 0 means that more must be received first.
    ///
    /// # Errors
    /// A layer failed.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, LayerError> {
        if self.plain.is_empty() && self.has_backlog {
            self.receive(&[])?;
        }
        let count = buffer.len().min(self.plain.len());
        buffer[..count].copy_from_slice(&self.plain.bytes()[..count]);
        self.plain.consume(count);
        Ok(count)
    }

    /// Whether the peer has ended in order: after the remaining plaintext, no more comes.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.top().is_some_and(|layer| layer.has_ended())
    }

    /// Whether the peer wanted a page, and all of it has been taken from [`Self::unsent`].
    #[must_use]
    pub fn has_served_page(&self) -> bool {
        self.held_output() == 0 && self.top().is_some_and(|layer| layer.has_served_page())
    }

    /// Accepts plaintext as far as there is room, and makes records of it. Returns the number of accepted bytes; 0
    /// before the layers are ready and after they were closed.
    ///
    /// # Errors
    /// A layer failed.
    pub fn write(&mut self, plain: &[IoSlice<'_>]) -> Result<usize, LayerError> {
        if self.is_closed || !self.is_ready() {
            return Ok(0);
        }
        let room = WRITE_BYTES_MAX.saturating_sub(self.held_output());
        let mut slices = Slices::default();
        // The first slice is for a header.
        slices.push(&[], room);
        slices.extend(plain, room);
        if slices.bytes == 0 {
            return Ok(0);
        }
        let accepted = self.seal(&mut slices)?;
        self.pass_down()?;
        Ok(accepted)
    }

    /// Writes plaintext from its place, if the stack is one layer that only adds a [header](Layer::header): `write`
    /// writes to the socket. The stack keeps the bytes that the socket does not take, so all plaintext is accepted, or
    /// none if the socket takes nothing. Returns `None` if the plaintext must go by [`Self::write`].
    ///
    /// # Errors
    /// Those of `write`. Nothing is accepted then.
    pub fn write_through(
        &mut self,
        plain: &[IoSlice<'_>],
        write: impl FnOnce(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        let [level] = &mut self.levels[..] else {
            return None;
        };
        if self.is_closed || !level.output.is_empty() {
            return None;
        }
        let bytes = plain.iter().take(SLICES_MAX).map(|slice| slice.len());
        let bytes = bytes.sum::<usize>().min(WRITE_BYTES_MAX);
        let header = level.layer.header(bytes).filter(|_| bytes > 0)?;
        let mut slices = Slices::default();
        slices.push(header.bytes(), WRITE_BYTES_MAX);
        slices.extend(plain, WRITE_BYTES_MAX + header.bytes().len());
        let written = match write(slices.as_slice()) {
            Ok(0) => return Some(Err(io::ErrorKind::WouldBlock.into())),
            Ok(written) => written,
            Err(error) => return Some(Err(error)),
        };
        if written < slices.bytes {
            slices.copy_after(written, level.output.end());
        }
        Some(Ok(bytes))
    }

    /// Passes plaintext to the top layer. If the top layer only adds a header, header and plaintext go to the layer
    /// beneath. The first slice is empty.
    fn seal<'a>(&mut self, slices: &mut Slices<'a>) -> Result<usize, LayerError> {
        let plain_bytes = slices.bytes;
        if let [.., beneath, top] = &mut self.levels[..]
            && top.output.is_empty()
            && let Some(header) = top.layer.header(plain_bytes)
        {
            let mut framed = Slices::default();
            framed.push(header.bytes(), usize::MAX);
            framed.extend(&slices.as_slice()[1..], usize::MAX);
            let accepted = beneath
                .layer
                .send(framed.as_slice(), beneath.output.end())?;
            // A layer that is ready accepts all. Anything else would tear the record.
            return match accepted == framed.bytes {
                true => Ok(plain_bytes),
                false => Err(LayerError::Malformed),
            };
        }
        match self.levels.last_mut() {
            Some(Level { layer, output, .. }) => layer.send(&slices.as_slice()[1..], output.end()),
            None => Ok(0),
        }
    }

    /// The bytes for the socket.
    #[must_use]
    pub fn unsent(&self) -> &[u8] {
        self.levels.first().map_or(&[], |it| it.output.bytes())
    }

    /// Removes the first `count` bytes of [`Self::unsent`], which the socket has taken.
    pub fn advance(&mut self, count: usize) {
        if let Some(first) = self.levels.first_mut() {
            first.output.consume(count);
        }
    }

    /// Whether a layer has pings, which the peer answers.
    #[must_use]
    pub fn has_pings(&self) -> bool {
        self.levels.iter().any(|level| level.layer.has_pings())
    }

    /// Lets the uppermost layer with pings ask the peer for an answer. After [`Self::close`] it does nothing.
    ///
    /// # Errors
    /// A layer failed.
    pub fn ping(&mut self) -> Result<(), LayerError> {
        if self.is_closed {
            return Ok(());
        }
        let mut levels = self.levels.iter_mut().rev();
        if let Some(Level { layer, output, .. }) = levels.find(|level| level.layer.has_pings()) {
            layer.ping(output.end());
        }
        self.pass_down()
    }

    /// Announces the end of the plaintext by the layers' own records. Further calls do nothing.
    ///
    /// # Errors
    /// A layer failed.
    pub fn close(&mut self, why: Ending) -> Result<(), LayerError> {
        if std::mem::replace(&mut self.is_closed, true) {
            return Ok(());
        }
        for index in (0..self.levels.len()).rev() {
            self.pass_down_to(index)?;
            let Level { layer, output, .. } = &mut self.levels[index];
            layer.close(why, output.end());
        }
        Ok(())
    }

    /// Whether [`Self::close`] was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// The names in the peer's certificate, if a layer has verified one.
    #[must_use]
    pub fn certificate(&self) -> Option<&CertificateNames> {
        let mut levels = self.levels.iter();
        levels.find_map(|level| level.layer.certificate())
    }

    /// The client that proxies named in the peer's handshake; see [`Layer::forwarded_client`].
    pub fn forwarded_client(&self, is_listed: &dyn Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let mut levels = self.levels.iter();
        levels.find_map(|level| level.layer.forwarded_client(is_listed))
    }

    /// The place of the codec that a client chose; see [`Layer::chosen_protocol`].
    #[must_use]
    pub fn chosen_protocol(&self) -> Option<usize> {
        let mut levels = self.levels.iter();
        levels.find_map(|level| level.layer.chosen_protocol())
    }

    /// How the bytes on the network are encrypted. `None` if they are not.
    #[must_use]
    pub fn encryption(&self) -> Option<Encryption> {
        let mut levels = self.levels.iter();
        levels.find_map(|level| level.layer.encryption())
    }

    /// Returns the part that a layer refused of the peer's handshake, for the log.
    #[must_use]
    pub fn refused_part(&self) -> Option<&str> {
        let mut levels = self.levels.iter();
        levels.find_map(|level| level.layer.refused_part())
    }

    /// The memory of the layers and of the bytes that wait between them.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let of_level = |level: &Level| {
            level.layer.memory_bytes() + level.input.memory_bytes() + level.output.memory_bytes()
        };
        self.levels.iter().map(of_level).sum::<usize>() + self.plain.memory_bytes()
    }

    fn top(&self) -> Option<&dyn Layer> {
        self.levels.last().map(|level| &*level.layer)
    }

    /// The number of bytes for the network that wait in any layer.
    fn held_output(&self) -> usize {
        self.levels.iter().map(|level| level.output.len()).sum()
    }

    /// Passes bytes up through all layers, until none moves any more or enough plaintext waits.
    fn pass_up(&mut self, network: &[u8]) -> Result<(), LayerError> {
        self.has_backlog = false;
        let mut network = network;
        loop {
            let mut is_full = false;
            for index in 0..self.levels.len() {
                let (lower, upper) = self.levels.split_at_mut(index + 1);
                let level = &mut lower[index];
                let above = match upper.first_mut() {
                    Some(next) => &mut next.input,
                    None => &mut self.plain,
                };
                let bytes = if index == 0 {
                    std::mem::take(&mut network)
                } else {
                    &[]
                };
                is_full |= level.receive(bytes, above)?;
            }
            if !is_full {
                break;
            }
            if self.plain.len() >= PLAIN_BYTES_MAX {
                self.has_backlog = true;
                return Ok(());
            }
        }
        let is_cut = self
            .levels
            .windows(2)
            .any(|pair| pair[0].layer.has_ended() && !pair[1].layer.has_ended());
        match is_cut {
            true => Err(LayerError::Truncated),
            false => Ok(()),
        }
    }

    /// Passes bytes down through all layers, with the layers' own records, and checks that the waiting bytes are
    /// bounded.
    fn pass_down(&mut self) -> Result<(), LayerError> {
        for index in (0..self.levels.len()).rev() {
            self.pass_down_to(index)?;
        }
        match self.held_output() > OUTPUT_BYTES_MAX {
            true => Err(LayerError::Flood),
            false => Ok(()),
        }
    }

    fn pass_down_to(&mut self, index: usize) -> Result<(), LayerError> {
        let (lower, upper) = self.levels.split_at_mut(index + 1);
        let Level { layer, output, .. } = &mut lower[index];
        if !self.is_closed {
            layer.transmit(output.end());
        }
        if let Some(above) = upper.first_mut()
            && !above.output.is_empty()
            && layer.is_ready()
        {
            let records = [IoSlice::new(above.output.bytes())];
            let accepted = layer.send(&records, output.end())?;
            above.output.consume(accepted);
        }
        Ok(())
    }
}

/// The slices of one write, without an allocation.
struct Slices<'a> {
    slices: [IoSlice<'a>; SLICES_MAX + 1],
    count: usize,
    bytes: usize,
}

impl Default for Slices<'_> {
    fn default() -> Self {
        Self {
            slices: [IoSlice::new(&[]); SLICES_MAX + 1],
            count: 0,
            bytes: 0,
        }
    }
}

impl<'a> Slices<'a> {
    /// Adds a slice, as far as all together are not longer than `room`.
    fn push(&mut self, slice: &'a [u8], room: usize) {
        if let Some(free) = self.slices.get_mut(self.count) {
            let part = &slice[..slice.len().min(room - self.bytes)];
            *free = IoSlice::new(part);
            self.bytes += part.len();
            self.count += 1;
        }
    }

    fn extend(&mut self, slices: &'a [IoSlice<'a>], room: usize) {
        for slice in slices {
            self.push(slice, room);
        }
    }

    fn as_slice(&self) -> &[IoSlice<'a>] {
        &self.slices[..self.count]
    }

    /// Copies all but the first `skipped` bytes.
    fn copy_after(&self, mut skipped: usize, out: &mut Vec<u8>) {
        for slice in self.as_slice() {
            let part = slice.get(skipped..).unwrap_or_default();
            skipped = skipped.saturating_sub(slice.len());
            out.extend_from_slice(part);
        }
    }
}

impl Level {
    /// Passes the unused bytes and `bytes` to the layer. Returns whether it stopped because enough plaintext waits
    /// above.
    fn receive(&mut self, bytes: &[u8], above: &mut Buffer) -> Result<bool, LayerError> {
        let Self { layer, input, .. } = self;
        if input.is_empty() {
            // In the usual case there are no unused bytes, so only the beginning of a record is copied.
            let (used, outcome) = receive_all(&mut **layer, bytes, above);
            input.end().extend_from_slice(&bytes[used..]);
            return outcome;
        }
        input.end().extend_from_slice(bytes);
        let (used, outcome) = receive_all(&mut **layer, input.bytes(), above);
        input.consume(used);
        outcome
    }
}

/// Passes bytes to a layer until it uses none. Returns the number of used bytes, and whether it stopped because enough
/// plaintext waits.
fn receive_all(
    layer: &mut dyn Layer,
    bytes: &[u8],
    above: &mut Buffer,
) -> (usize, Result<bool, LayerError>) {
    let mut used = 0;
    let outcome = loop {
        let offered = &bytes[used..];
        if layer.has_ended() {
            // Bytes after the end of the layer are ignored.
            return (bytes.len(), Ok(false));
        }
        if offered.is_empty() {
            break Ok(false);
        }
        if above.len() >= PLAIN_BYTES_MAX {
            break Ok(true);
        }
        match layer.receive(offered, above.end()) {
            Ok(0) if offered.len() > RECORD_BYTES_MAX => break Err(LayerError::RecordTooLong),
            Ok(0) => break Ok(false),
            Ok(count) => used += count,
            Err(error) => break Err(error),
        }
    };
    (used, outcome)
}

/// Maximum plaintext that waits to be read before a layer stops, in bytes.
pub const PLAIN_BYTES_MAX: usize = 64 << 10;

/// Longest record that a layer may leave unused because its end has not come, in bytes: more than the 18 KiB of TLS.
pub const RECORD_BYTES_MAX: usize = 32 << 10;

/// Maximum bytes of a connection's records that wait for the socket: as much as one write of the lane.
pub const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// Maximum plaintext that becomes records at once. The rest of [`OUTPUT_BYTES_MAX`] is for the overhead of records, and
/// for the layers' own records.
const WRITE_BYTES_MAX: usize = 40 << 10;

/// Maximum number of slices that become records at once.
const SLICES_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::FailedLayer;

    /// Regression: a connection of `wss://` kept memory for two more levels.
    #[test]
    fn a_stack_has_no_memory_for_levels_that_never_come() {
        let layer = || Box::new(FailedLayer(LayerError::Refused)) as Box<dyn Layer>;
        for count in 1..4 {
            let layers = (0..count).map(|_| layer()).collect();
            let stack = Stack::new(layers).expect("layers");
            assert_eq!(stack.levels.capacity(), count);
        }
    }
}
