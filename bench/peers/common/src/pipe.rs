//! Connections of asynchronous clients. All run on one thread, each in a task of its own.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, LocalSet};

use crate::window::PATIENCE;
use crate::{Exchange, Flight, Measured, Meter, Window, Work, now_ns};

/// One connection of a client, on which replies come in the order of the requests.
#[expect(
    async_fn_in_trait,
    reason = "the tasks stay on one thread, so their futures need not be Send"
)]
pub trait Pipe {
    /// Passes a request to the library, which may keep it until [`Pipe::flush`].
    async fn send(&mut self, request: &[u8]) -> Result<()>;

    /// Sends all requests that the library has kept.
    async fn flush(&mut self) -> Result<()>;

    /// Waits for a reply and passes on all that are available.
    async fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<()>;
}

/// A client whose calls return one reply each.
#[expect(
    async_fn_in_trait,
    reason = "the tasks stay on one thread, so their futures need not be Send"
)]
pub trait Call: Clone {
    /// Makes call `number` and returns whether the reply was correct.
    async fn call(&mut self, number: u64) -> Result<bool>;
}

/// Creates a runtime on the calling thread, because the benchmark keeps a program on one core.
///
/// # Errors
/// The system provides no epoll set.
pub fn runtime() -> Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime of tokio")
}

/// Keeps [`Work::in_flight`] requests in flight on every pipe until the window ends, and waits for the last replies.
///
/// # Errors
/// A pipe fails.
pub async fn drive<P: Pipe + 'static>(pipes: Vec<P>, work: &Work) -> Result<Measured> {
    let exchange = Exchange::of(work)?;
    let in_flight = work.in_flight.max(1);
    let window = Window::begin(work);
    let meter = Rc::new(RefCell::new(Meter::new(window)));
    let local = LocalSet::new();
    local
        .run_until(async {
            let mut tasks = JoinSet::new();
            for pipe in pipes {
                let meter = Rc::clone(&meter);
                tasks.spawn_local(keep_in_flight(pipe, exchange, in_flight, meter));
            }
            while let Some(ended) = tasks.join_next().await {
                ended.context("a task of the driver")??;
            }
            Ok(meter.borrow().measured())
        })
        .await
}

/// Keeps [`Work::in_flight`] calls in flight on every client, each in a task of its own, as users of such libraries do.
///
/// # Errors
/// A call fails.
pub async fn drive_calls<C: Call + 'static>(clients: Vec<C>, work: &Work) -> Result<Measured> {
    let in_flight = work.in_flight.max(1);
    let window = Window::begin(work);
    let meter = Rc::new(RefCell::new(Meter::new(window)));
    let local = LocalSet::new();
    local
        .run_until(async {
            let mut tasks = JoinSet::new();
            for client in clients {
                for _ in 0..in_flight {
                    tasks.spawn_local(keep_calling(client.clone(), Rc::clone(&meter)));
                }
            }
            while let Some(ended) = tasks.join_next().await {
                ended.context("a task of the driver")??;
            }
            Ok(meter.borrow().measured())
        })
        .await
}

async fn keep_calling(mut client: impl Call, meter: Rc<RefCell<Meter>>) -> Result<()> {
    let window = meter.borrow().window().clone();
    let mut now = now_ns();
    let mut number = 0;
    while !window.is_over(now) {
        // Without a deadline, a call that never returns would block for ever.
        let until_end = Duration::from_nanos(window.until_ns().saturating_sub(now));
        let called = tokio::time::timeout(until_end + PATIENCE, client.call(number)).await;
        let sent_ns = std::mem::replace(&mut now, now_ns());
        if called.unwrap_or(Ok(false))? {
            meter.borrow_mut().count(sent_ns, now);
        } else {
            meter.borrow_mut().count_lost(1);
        }
        number += 1;
    }
    Ok(())
}

async fn keep_in_flight(
    mut pipe: impl Pipe,
    exchange: Exchange,
    in_flight: usize,
    meter: Rc<RefCell<Meter>>,
) -> Result<()> {
    let mut flight = Flight::new(exchange);
    let window = meter.borrow().window().clone();
    let until_end = Duration::from_nanos(window.until_ns().saturating_sub(now_ns()));
    // One deadline for all tasks: a client whose last reply never comes would block for ever.
    let finished = tokio::time::timeout(until_end + PATIENCE, async {
        loop {
            let now = now_ns();
            if window.is_over(now) {
                if flight.outstanding() == 0 {
                    return Ok(());
                }
            } else if flight.outstanding() < in_flight {
                while flight.outstanding() < in_flight {
                    pipe.send(flight.request(now)).await?;
                }
                pipe.flush().await?;
            }
            let mut came_ns = None;
            pipe.receive(&mut |reply| {
                let now = *came_ns.get_or_insert_with(now_ns);
                flight.reply(reply, now, &mut meter.borrow_mut());
            })
            .await?;
        }
    })
    .await;
    meter.borrow_mut().count_lost(flight.outstanding() as u64);
    // A late reply is no failure. It was counted as a loss.
    finished.unwrap_or(Ok(()))
}
