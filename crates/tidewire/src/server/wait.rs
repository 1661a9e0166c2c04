//! Waits for the end of a server, by itself or by a signal.

use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{ServeError, Server, Stopped};
use crate::lane::LaneThread;
use crate::mailbox::LaneMessage;
use crate::observe::Metrics;

impl Server {
    /// Blocks until all lanes have ended. A lane ends because its poller failed, its service panicked and could not
    /// [go on](crate::Service#panics), or its service called [`Context::stop_lane`](crate::Context::stop_lane). The
    /// other lanes continue, and this call waits for them. Do not call it on a lane of this server.
    ///
    /// ```
    /// use tidewire::Client;
    ///
    /// let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| {
    ///     cx.stop_lane();
    ///     cx.reply(message.payload)
    /// })?;
    /// let client = Client::connect(&server.to_string()).wait()?;
    /// assert_eq!(client.request(b"the end").wait()?.payload(), b"the end");
    /// let metrics = server.wait()?;
    /// assert_eq!(metrics.sessions_opened, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ServeError::LaneFailed`] if a lane failed. The server has then stopped, too.
    pub fn wait(mut self) -> Result<Metrics, ServeError> {
        let failures = self.threads.drain(..).filter_map(LaneThread::join);
        let failures = failures.collect();
        let metrics = self.metrics.read();
        ServeError::check(Stopped { metrics, failures })
    }

    /// Blocks until SIGINT (Ctrl-C) or SIGTERM arrives, and then shuts the server down as [`Server::shutdown`] does,
    /// with `deadline` for its peers. A second signal ends it at once. The call also returns when all lanes have
    /// ended by themselves, as [`Server::wait`] does. Do not call it on a lane of this server.
    ///
    /// From this call on, these two signals do not end the process by themselves, even after the call has returned.
    /// This library touches no other signals.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// let server = tidewire::serve("tcp://127.0.0.1:8080", |cx, message| {
    ///     cx.reply(message.payload)
    /// })?;
    /// let metrics = server.wait_for_signals(Duration::from_secs(10))?;
    /// println!("{} sessions were served", metrics.sessions_opened);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ServeError::LaneFailed`] if a lane failed, and [`ServeError::Signals`] if the system refused the signal
    /// handlers or the thread that waits for them. The server has stopped in both cases.
    pub fn wait_for_signals(self, deadline: Duration) -> Result<Metrics, ServeError> {
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(ServeError::Signals)?;
        let handle = signals.handle();
        let stopper = self.stopper();
        let listener = thread::Builder::new().name("tidewire-signals".to_owned());
        let listen = move || {
            for (index, _) in signals.forever().enumerate() {
                match index {
                    0 => stopper.shutdown(deadline),
                    _ => stopper.tell(&|| LaneMessage::Stop),
                }
            }
        };
        let listener = listener.spawn(listen).map_err(ServeError::Signals)?;
        let outcome = self.wait();
        handle.close();
        // The thread ends with its signals, and has no result.
        let _ = listener.join();
        outcome
    }
}
