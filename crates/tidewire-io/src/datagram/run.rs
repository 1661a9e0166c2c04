//! Cuts bytes into segment runs, and learns which runs the kernel does not take.
//!
//! No query says with certainty whether offload is supported. The kernel takes the option, and the send may still fail:
//! with `EIO` if the card computes no checksums or a tunnel is in the way, or with `EINVAL` or `EMSGSIZE` if the
//! datagrams are larger than the path's packets. No part of the run was sent, so its first datagram is then sent alone.
//! If this send works, the kernel refused the run as a run, and datagrams of this size are sent one by one from then
//! on. If it fails, the cause is another, and the limits stay.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

/// The known limits of runs. They are atomic so that all sessions of a lane can share the socket. A late value costs
/// one more refusal.
#[derive(Debug)]
pub(super) struct Runs {
    /// The maximum number of datagrams in one run; 1 without offload.
    datagrams_max: AtomicUsize,
    /// The smallest datagram size of a refused run. Runs of this size and above are not tried again.
    refused_bytes: AtomicUsize,
}

impl Runs {
    pub(super) fn new(datagrams_max: usize) -> Self {
        Self {
            datagrams_max: AtomicUsize::new(datagrams_max),
            refused_bytes: AtomicUsize::new(usize::MAX),
        }
    }

    /// The number of bytes to pass to the kernel in one piece.
    #[inline]
    pub(super) fn run_bytes(&self, segment_bytes: usize) -> usize {
        if segment_bytes >= self.refused_bytes.load(Ordering::Relaxed) {
            return segment_bytes;
        }
        let datagrams_max = self.datagrams_max.load(Ordering::Relaxed);
        let datagrams = (RUN_BYTES_MAX / segment_bytes.max(1)).min(datagrams_max);
        segment_bytes * datagrams.max(1)
    }

    /// Passes `bytes` to `transmit` run by run, and returns the number of datagrams that it took. Fails only when it
    /// took none.
    #[inline]
    pub(super) fn send(
        &self,
        segment_bytes: usize,
        bytes: &[u8],
        mut transmit: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<usize> {
        if bytes.is_empty() {
            return transmit(bytes).map(|()| 1);
        }
        if segment_bytes == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "segments of no bytes",
            ));
        }
        let mut sent = 0;
        let mut rest = bytes;
        while !rest.is_empty() {
            let run = &rest[..self.run_bytes(segment_bytes).min(rest.len())];
            let outcome = match transmit(run) {
                Ok(()) => Ok(run.len()),
                Err(cause) if run.len() > segment_bytes && is_refusal(&cause) => {
                    transmit(&run[..segment_bytes]).map(|()| {
                        self.give_up(&cause, segment_bytes);
                        segment_bytes
                    })
                }
                Err(cause) => Err(cause),
            };
            match outcome {
                Ok(taken) => {
                    sent += taken.div_ceil(segment_bytes);
                    rest = &rest[taken..];
                }
                // If the error lasts, the next send meets it again.
                Err(_) if sent > 0 => break,
                Err(cause) => return Err(cause),
            }
        }
        Ok(sent)
    }

    /// Remembers that a run was refused while a single datagram was not.
    #[cold]
    fn give_up(&self, cause: &io::Error, segment_bytes: usize) {
        if Errno::from_io_error(cause) == Some(Errno::IO) {
            // The card does not support offload, and never will.
            self.datagrams_max.store(1, Ordering::Relaxed);
        } else {
            // Runs of smaller datagrams may still fit the path's packets.
            self.refused_bytes
                .fetch_min(segment_bytes, Ordering::Relaxed);
        }
        tracing::debug!(
            segment_bytes,
            cause = %cause,
            "segmentation offload refused; such datagrams are sent one by one from now on"
        );
    }
}

/// Whether the kernel may have refused a run because it is a run.
fn is_refusal(cause: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(cause),
        Some(Errno::IO | Errno::INVAL | Errno::MSGSIZE)
    )
}

/// The maximum payload of one IPv4 datagram: 65,535 bytes less the headers of IP and UDP. IPv6 carries 20 more.
const RUN_BYTES_MAX: usize = 65_507;

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends to a fake kernel that gives these answers in turn and then takes everything. Returns the lengths of the
    /// runs that it took, and the outcome.
    fn send(
        runs: &Runs,
        segment_bytes: usize,
        bytes: &[u8],
        answers: &[Result<(), Errno>],
    ) -> (Vec<usize>, Result<usize, Option<Errno>>) {
        let mut answers = answers.iter();
        let mut taken = Vec::new();
        let mut content = Vec::new();
        let outcome = runs.send(segment_bytes, bytes, |run| {
            if let Some(Err(cause)) = answers.next() {
                return Err((*cause).into());
            }
            taken.push(run.len());
            content.extend_from_slice(run);
            Ok(())
        });
        assert!(bytes.starts_with(&content), "in order, and none twice");
        if let Ok(count) = outcome {
            let datagrams = content.len().div_ceil(segment_bytes.max(1)).max(1);
            assert_eq!(count, datagrams, "the count tells where to go on");
        }
        let outcome = outcome.map_err(|cause| Errno::from_io_error(&cause));
        (taken, outcome)
    }

    #[test]
    fn runs_fit_the_limits_of_the_kernel() {
        let runs = Runs::new(64);
        assert_eq!(runs.run_bytes(32), 64 * 32);
        assert_eq!(runs.run_bytes(1_400), 46 * 1_400);
        assert_eq!(runs.run_bytes(40_000), 40_000);
        assert_eq!(runs.run_bytes(100_000), 100_000);
        assert_eq!(Runs::new(1).run_bytes(32), 32);
        let bytes: Vec<u8> = (0..70_u8).collect();
        let whole = (vec![64, 6], Ok(70));
        assert_eq!(send(&Runs::new(64), 1, &bytes, &[]), whole);
        assert_eq!(send(&Runs::new(64), 9, &[], &[]), (vec![0], Ok(1)));
    }

    #[test]
    fn a_full_buffer_reports_the_datagrams_taken_before() {
        let bytes: Vec<u8> = (0..200_u8).collect();
        let runs = Runs::new(4);
        let full = Err(Errno::AGAIN);
        assert_eq!(
            send(&runs, 10, &bytes, &[Ok(()), Ok(()), full]),
            (vec![40, 40], Ok(8))
        );
        assert_eq!(
            send(&runs, 10, &bytes[80..], &[full]),
            (vec![], Err(Some(Errno::AGAIN)))
        );
        assert_eq!(
            send(&runs, 10, &bytes[80..], &[]),
            (vec![40, 40, 40], Ok(12))
        );
    }

    #[test]
    fn a_card_that_cannot_is_not_asked_again() {
        let runs = Runs::new(64);
        let bytes = [1; 50];
        assert_eq!(
            send(&runs, 10, &bytes, &[Err(Errno::IO)]),
            (vec![10; 5], Ok(5))
        );
        assert_eq!(runs.run_bytes(1), 1);
    }

    #[test]
    fn datagrams_larger_than_the_path_are_sent_one_by_one_and_smaller_ones_in_runs() {
        for cause in [Errno::INVAL, Errno::MSGSIZE] {
            let runs = Runs::new(64);
            assert_eq!(
                send(&runs, 10, &[1; 25], &[Err(cause)]),
                (vec![10, 10, 5], Ok(3))
            );
            assert_eq!(send(&runs, 11, &[1; 33], &[]), (vec![11; 3], Ok(3)));
            assert_eq!(send(&runs, 9, &[1; 27], &[]), (vec![27], Ok(3)));
        }
    }

    #[test]
    fn a_full_buffer_right_after_a_refusal_teaches_nothing_yet() {
        let runs = Runs::new(64);
        assert_eq!(
            send(&runs, 10, &[1; 20], &[Err(Errno::IO), Err(Errno::AGAIN)]),
            (vec![], Err(Some(Errno::AGAIN)))
        );
        assert_eq!(runs.run_bytes(10), 640);
    }

    #[test]
    fn segments_of_no_bytes_are_refused() {
        let refused = Runs::new(64).send(0, b"x", |_| Ok(())).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
}
