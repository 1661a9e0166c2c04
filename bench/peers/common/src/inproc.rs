//! Work within one process: two threads, with a library between them.
//!
//! `echo`: the near thread keeps requests in flight, and the far thread sends messages back. `ingest`: the near thread
//! sends as fast as it can, and the far thread counts. A library only implements how one end sends and receives. An end
//! may pass several messages at once if that is the library's fast way.

use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    Exchange, Flight, Intake, Measured, Meter, Source, Window, Work, not_offered, now_ns, pin,
};

/// A message of the benchmark's size, as channels carry them by value.
pub type Item = [u8; ITEM_BYTES];

/// One end of a connection, owned by one thread.
pub trait End {
    /// Sends one message, and waits for room if necessary. The library may keep it until [`End::flush`].
    ///
    /// # Errors
    /// The other end is gone.
    fn send(&mut self, message: Item) -> Result<()>;

    /// Sends all messages that the library has kept.
    ///
    /// # Errors
    /// The other end is gone.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// Waits for a message and appends all that are available, or as many as the library takes at once.
    ///
    /// # Errors
    /// The other end is gone.
    fn receive(&mut self, messages: &mut Vec<Item>) -> Result<()>;
}

/// An end that the thread that will own it must open, for libraries whose ends cannot move between threads. Other
/// libraries return an open end.
pub trait Opening: Send + 'static {
    /// The open end.
    type End: End;

    /// Opens it. The near end is opened first.
    ///
    /// # Errors
    /// The error of the library.
    fn open(self) -> Result<Self::End>;
}

impl<E: End + Send + 'static> Opening for E {
    type End = E;

    fn open(self) -> Result<E> {
        Ok(self)
    }
}

/// Does `work` between the two ends that `connect` makes.
///
/// # Errors
/// An end fails, or the work is not of one connection and of messages of [`ITEM_BYTES`].
pub fn drive<E: Opening>(
    work: &Work,
    connect: impl FnOnce() -> Result<(E, E)>,
) -> Result<Measured> {
    ensure!(
        work.message_bytes == ITEM_BYTES && work.connections <= 1,
        "within one process only one connection with messages of {ITEM_BYTES} bytes is offered"
    );
    let (near, far) = connect()?;
    match work.suite.as_str() {
        "echo" => echo(work, near, far),
        "ingest" => ingest(work, near, far),
        _ => Err(not_offered(work)),
    }
}

/// Opens the near end on this thread and the far end on a thread of its own, which then runs `task` with it.
fn open<E: Opening, T: Send + 'static>(
    work: &Work,
    near: E,
    far: E,
    task: impl FnOnce(E::End) -> Result<T> + Send + 'static,
) -> Result<(E::End, JoinHandle<Result<T>>)> {
    pin(work, 1)?;
    let near = near.open()?;
    let (opened, is_open) = channel();
    let work = work.clone();
    let thread = thread::spawn(move || {
        let far = pin(&work, 0).and_then(|()| far.open())?;
        opened.send(()).context("the driver is gone")?;
        task(far)
    });
    if is_open.recv().is_err() {
        let Ok(Err(error)) = thread.join() else {
            bail!("the thread of the far end panicked");
        };
        return Err(error).context("the far end");
    }
    Ok((near, thread))
}

fn echo<E: Opening>(work: &Work, near: E, far: E) -> Result<Measured> {
    // The far end ends with the process. If it fails, the near end notices.
    let (mut near, _) = open(work, near, far, |mut far| -> Result<()> {
        let mut messages = Vec::with_capacity(BATCH_MESSAGES);
        loop {
            far.receive(&mut messages)?;
            for message in messages.drain(..) {
                far.send(message)?;
            }
            far.flush()?;
        }
    })?;
    let in_flight = work.in_flight.max(1);
    let mut flight = Flight::new(Exchange::of(work)?);
    let mut meter = Meter::new(Window::begin(work));
    let mut replies = Vec::with_capacity(BATCH_MESSAGES);
    loop {
        let now = now_ns();
        for reply in replies.drain(..) {
            let reply: Item = reply;
            flight.reply(&reply, now, &mut meter);
        }
        if !meter.window().is_over(now) {
            while flight.outstanding() < in_flight {
                near.send(item(flight.request(now)))?;
            }
            near.flush()?;
        } else if flight.outstanding() == 0 {
            return Ok(meter.measured());
        }
        near.receive(&mut replies)?;
    }
}

fn ingest<E: Opening>(work: &Work, near: E, far: E) -> Result<Measured> {
    let mut source = Source::new(work, 0)?;
    let window = Window::begin(work);
    let (meter, intake) = (Meter::new(window.clone()), Intake::new(work));
    let (mut near, far) = open(work, near, far, |far| take(far, meter, intake))?;
    loop {
        for _ in 0..BATCH_MESSAGES {
            near.send(item(source.message()))?;
        }
        near.flush()?;
        if window.is_over(now_ns()) {
            break;
        }
    }
    near.send(LAST)?;
    near.flush()?;
    let Ok(taken) = far.join() else {
        bail!("the receiving thread panicked");
    };
    let (mut meter, intake) = taken?;
    // The last message counts as wrong.
    let wrong = intake.wrong() - 1;
    meter.count_lost(source.sent().saturating_sub(intake.right()).max(wrong));
    Ok(meter.measured())
}

/// The far end of `ingest`: takes messages until the last one.
fn take(mut far: impl End, mut meter: Meter, mut intake: Intake) -> Result<(Meter, Intake)> {
    let mut messages = Vec::with_capacity(BATCH_MESSAGES);
    while messages.last() != Some(&LAST) {
        messages.clear();
        far.receive(&mut messages)?;
        let before = intake.right();
        for message in &messages {
            intake.take(message);
        }
        meter.count_untimed(intake.right() - before, now_ns());
    }
    Ok((meter, intake))
}

/// For ends that cannot sleep: spins a little, then yields, because the two threads may share a core.
pub fn pause(spins: &mut u32) {
    *spins += 1;
    if *spins < SPINS_MAX {
        std::hint::spin_loop();
    } else {
        thread::yield_now();
    }
}

fn item(message: &[u8]) -> Item {
    let mut item = [0; ITEM_BYTES];
    item.copy_from_slice(message);
    item
}

/// Size of a message in bytes.
pub const ITEM_BYTES: usize = 24;

/// Messages between two readings of the clock, and the most that an end takes at once.
pub const BATCH_MESSAGES: usize = 256;

/// The number of attempts of an end before it yields.
const SPINS_MAX: u32 = 200;

/// The connection number that marks the last message. No connection has it.
const LAST: Item = [0xff; ITEM_BYTES];

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender};

    use super::*;

    /// A channel that loses the message with this number.
    struct Leaky {
        to: Sender<Item>,
        from: Receiver<Item>,
        loses: Option<u64>,
    }

    impl End for Leaky {
        fn send(&mut self, message: Item) -> Result<()> {
            let number = message
                .first_chunk()
                .map(|first| u64::from_le_bytes(*first));
            if self.loses.is_none() || number != self.loses {
                self.to.send(message)?;
            }
            Ok(())
        }

        fn receive(&mut self, messages: &mut Vec<Item>) -> Result<()> {
            messages.push(self.from.recv()?);
            messages.extend(self.from.try_iter());
            Ok(())
        }
    }

    fn one_way(loses: Option<u64>) -> u64 {
        let work = Work {
            suite: "ingest".to_owned(),
            message_bytes: ITEM_BYTES,
            measure_ms: 1,
            ..Work::default()
        };
        let (to_far, from_near) = channel();
        let (to_near, from_far) = channel();
        let ends = (
            Leaky {
                to: to_far,
                from: from_far,
                loses,
            },
            Leaky {
                to: to_near,
                from: from_near,
                loses: None,
            },
        );
        drive(&work, || Ok(ends)).unwrap().lost
    }

    /// An end that cannot be opened on the far side.
    struct Refused {
        is_far: bool,
    }

    impl Opening for Refused {
        type End = Leaky;

        fn open(self) -> Result<Leaky> {
            ensure!(!self.is_far, "refused");
            let (to, from) = channel();
            let loses = None;
            Ok(Leaky { to, from, loses })
        }
    }

    #[test]
    fn an_end_that_cannot_be_opened_ends_the_work() {
        for suite in ["echo", "ingest"] {
            let work = Work {
                suite: suite.to_owned(),
                message_bytes: ITEM_BYTES,
                ..Work::default()
            };
            let ends = [false, true].map(|is_far| Refused { is_far });
            let error = drive(&work, || Ok(ends.into())).unwrap_err();
            assert_eq!(format!("{error:#}"), "the far end: refused");
        }
    }

    #[test]
    fn a_lost_message_is_missed() {
        assert_eq!(one_way(None), 0);
        assert_eq!(one_way(Some(0)), 1);
    }
}
