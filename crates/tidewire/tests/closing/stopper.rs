//! Ends a server from a thread or a handler, and waits for its end without blocking.

use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context as TaskContext, Wake, Waker};
use std::time::Duration;

use tidewire::{Client, Context, Message, ServeError, Server, Stopper};
use tidewire_testkit::DEADLINE;

/// Sends a message when its task is woken.
struct Woken(mpsc::Sender<()>);

impl Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.send(()).unwrap();
    }
}

#[test]
fn a_handler_ends_its_server_and_its_reply_is_the_last_one() {
    let (sender, stopper) = mpsc::channel::<Stopper>();
    let end = move |cx: &mut Context<'_>, message: Message<'_>| {
        stopper
            .recv_timeout(DEADLINE)?
            .shutdown(Duration::from_secs(10));
        cx.reply(message.payload)
    };
    let server = tidewire::serve("tcp://127.0.0.1:0", end).unwrap();
    sender.send(server.stopper()).unwrap();
    let client = Client::connect(&server.to_string()).wait().unwrap();
    assert_eq!(
        client.request(b"the end").wait().unwrap().payload(),
        b"the end"
    );
    let metrics = server.wait().unwrap();
    assert_eq!(metrics.sessions_opened, metrics.closed_by("shutdown"));
    assert_eq!(metrics.frames_in, 2, "a hello and the request");
}

#[test]
fn a_task_is_woken_when_the_last_lane_of_a_server_has_ended() {
    let server = Server::builder()
        .lanes(2)
        .listen("inproc://ends-for-a-task")
        .unwrap();
    let server = server
        .start(|_| |_: &mut Context<'_>, _: Message<'_>| Ok(()))
        .unwrap();
    let (sender, woken) = mpsc::channel();
    let waker = Waker::from(std::sync::Arc::new(Woken(sender)));
    let mut cx = TaskContext::from_waker(&waker);
    let mut stopped = pin!(server.stopped());
    assert!(stopped.as_mut().poll(&mut cx).is_pending());
    let stopper = server.stopper();
    std::thread::spawn(move || stopper.shutdown(Duration::ZERO));
    woken.recv_timeout(DEADLINE).unwrap();
    assert!(stopped.as_mut().poll(&mut cx).is_ready());
    // The name is free although the server was not dropped.
    let next = tidewire::serve("inproc://ends-for-a-task", |_, _| Ok(())).unwrap();
    server.wait().unwrap();
    // A handle outlives its server, and has nothing to end.
    next.stopper().shutdown(Duration::ZERO);
    next.wait().unwrap();
}

#[test]
fn one_service_is_refused_by_several_lanes() {
    let outcome = Server::builder()
        .lanes(2)
        .start_one(|_: &mut Context<'_>, _: Message<'_>| Ok(()));
    assert!(matches!(outcome, Err(ServeError::OneService { lanes: 2 })));
    let outcome = Server::builder()
        .lanes(0)
        .start_one(|_: &mut Context<'_>, _: Message<'_>| Ok(()));
    assert!(matches!(outcome, Err(ServeError::LaneCount(0))));
}
