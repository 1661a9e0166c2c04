//! A client in programs with errors.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake};
use std::thread;

use tidewire::{Client, Deferred, Message, RequestError, Server};
use tidewire_testkit::fixtures::tw1;
use tidewire_testkit::{TestServer, wait_until};

/// A task that owns the last client and drops it when it is woken, on the lane of that client.
struct LastOwner {
    client: Mutex<Option<Client>>,
    dropped_by: mpsc::Sender<String>,
}

impl Wake for LastOwner {
    fn wake(self: Arc<Self>) {
        drop(self.client.lock().unwrap().take());
        let thread = thread::current();
        let name = thread.name().unwrap_or_default().to_owned();
        let _ = self.dropped_by.send(name);
    }
}

/// Regression: the client's lane joined its own thread and never ended.
#[test]
fn a_client_dropped_inside_its_own_callback_ends() {
    let waiting: Arc<Mutex<Vec<Deferred>>> = Arc::default();
    let taken = Arc::clone(&waiting);
    let server = TestServer::over_tcp(Server::builder(), &tw1(), move |_| {
        let taken = Arc::clone(&taken);
        move |cx: &mut tidewire::Context<'_>, _: Message<'_>| {
            taken.lock().unwrap().push(cx.defer());
            Ok(())
        }
    });
    let client = Client::connect(&server.url()).wait().unwrap();
    let mut answered = pin!(client.request(b"answered").send());
    let unanswered = client.request(b"unanswered").send();
    let (dropped_by, drops) = mpsc::channel();
    let owner = LastOwner {
        client: Mutex::new(Some(client)),
        dropped_by,
    };
    let waker = Arc::new(owner).into();
    let polled = answered.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    let deferred = wait_until("both are there", || {
        let mut waiting = waiting.lock().unwrap();
        (waiting.len() == 2).then(|| std::mem::take(&mut *waiting))
    });
    let mut deferred = deferred.into_iter();
    deferred.next().unwrap().reply(b"now").unwrap();
    let thread = drops.recv().unwrap();
    assert!(thread.starts_with("tidewire-lane"), "{thread}");
    // Replies from before the end stay, and pending requests fail.
    let reply = answered.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(reply.is_ready());
    let ended = unanswered.wait().unwrap_err();
    let is_end = matches!(ended, RequestError::Closed(_) | RequestError::Shutdown);
    assert!(is_end, "{ended}");
    drop(deferred);
    server.stop();
}
