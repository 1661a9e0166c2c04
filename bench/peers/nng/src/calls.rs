//! Requests and replies: contexts whose callbacks receive, answer and receive again.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nng::{Aio, AioResult, Context, Message, Protocol};
use peer_common::{Console, Exchange, Flight, Measured, Meter, Window, Work, now_ns};

use crate::socket;

/// Answers as many requests at the same time as are in flight.
pub(crate) fn serve(
    address: &str,
    exchange: Exchange,
    work: &Work,
    console: &Console,
) -> Result<()> {
    let socket = socket(Protocol::Rep0)?;
    let count = (work.in_flight * work.connections).clamp(1, SERVER_CONTEXTS_MAX);
    let mut contexts = Vec::with_capacity(count);
    for _ in 0..count {
        let context = Context::new(&socket)?;
        let own = context.clone();
        // A context fails when its socket is closed, at the end of the program.
        let aio = Aio::new(move |aio, result| drop(step(&own, &aio, result, exchange)))?;
        contexts.push((context, aio));
    }
    socket.listen(address).context("listening")?;
    for (context, aio) in &contexts {
        context.recv(aio)?;
    }
    console.ready(address)?;
    loop {
        std::thread::park();
    }
}

fn step(context: &Context, aio: &Aio, result: AioResult, exchange: Exchange) -> Result<()> {
    match result {
        AioResult::Recv(Ok(mut message)) => {
            if exchange == Exchange::Add {
                let mut body = message.as_slice().to_vec();
                exchange.answer(&mut body);
                message = Message::from(body.as_slice());
            }
            context.send(aio, message).map_err(|(_, error)| error)?;
        }
        AioResult::Send(Err((_, error))) | AioResult::Recv(Err(error)) => return Err(error.into()),
        _ => context.recv(aio)?,
    }
    Ok(())
}

/// Keeps requests in flight: a context for each of them.
pub(crate) fn drive(address: &str, work: &Work) -> Result<Measured> {
    let exchange = Exchange::of(work)?;
    let sockets = (0..work.connections)
        .map(|_| {
            let socket = socket(Protocol::Req0)?;
            socket
                .dial(address)
                .with_context(|| format!("connecting to {address}"))?;
            Ok(socket)
        })
        .collect::<Result<Vec<_>>>()?;
    let window = Window::begin(work);
    let meter = Arc::new(Mutex::new(Meter::new(window.clone())));
    let (ended, endings) = channel();
    let mut callers = Vec::new();
    for socket in &sockets {
        for _ in 0..work.in_flight.max(1) {
            let caller = Arc::new(Caller {
                context: Context::new(socket)?,
                flight: Mutex::new(Flight::new(exchange)),
                window: window.clone(),
                meter: Arc::clone(&meter),
                ended: ended.clone(),
            });
            let own = Arc::clone(&caller);
            let aio = Aio::new(move |aio, result| own.step(&aio, result))?;
            caller.ask(&aio, now_ns());
            callers.push((caller, aio));
        }
    }
    let give_up_ns = window.until_ns() + PATIENCE_NS;
    let mut lost = 0;
    for _ in &callers {
        let left = Duration::from_nanos(give_up_ns.saturating_sub(now_ns()));
        match endings.recv_timeout(left) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => bail!("a request: {error}"),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => lost += 1,
        }
    }
    // Closing a socket over `ipc` may never return in this version, so sockets stay open until the program ends.
    std::mem::forget((callers, sockets));
    let mut meter = meter.lock().unwrap_or_else(PoisonError::into_inner);
    meter.count_lost(lost);
    Ok(meter.measured())
}

/// A loop with one request in flight.
struct Caller {
    context: Context,
    flight: Mutex<Flight>,
    window: Window,
    meter: Arc<Mutex<Meter>>,
    ended: Sender<Result<(), nng::Error>>,
}

impl Caller {
    fn ask(&self, aio: &Aio, now_ns: u64) {
        let mut flight = self.flight.lock().unwrap_or_else(PoisonError::into_inner);
        let request = Message::from(flight.request(now_ns));
        if let Err((_, error)) = self.context.send(aio, request) {
            self.end(Err(error));
        }
    }

    fn step(&self, aio: &Aio, result: AioResult) {
        match result {
            AioResult::Recv(Ok(reply)) => {
                let now = now_ns();
                {
                    let mut flight = self.flight.lock().unwrap_or_else(PoisonError::into_inner);
                    let mut meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
                    flight.reply(&reply, now, &mut meter);
                }
                if self.window.is_over(now) {
                    self.end(Ok(()));
                } else {
                    self.ask(aio, now);
                }
            }
            AioResult::Send(Err((_, error))) | AioResult::Recv(Err(error)) => self.end(Err(error)),
            _ => {
                if let Err(error) = self.context.recv(aio) {
                    self.end(Err(error));
                }
            }
        }
    }

    fn end(&self, result: Result<(), nng::Error>) {
        // The driver may have stopped waiting.
        let _ = self.ended.send(result);
    }
}

/// The number of contexts that answer.
const SERVER_CONTEXTS_MAX: usize = 256;

/// The longest wait for the last replies, in nanoseconds.
const PATIENCE_NS: u64 = 3_000_000_000;
