//! Answers requests by asking another server: `cargo run -p tidewire-examples --bin forwarding_gateway -- ADDRESS
//! BACKEND`
//!
//! The lane never waits for the backend, and connects to it with the first request. If the backend is down or slow, its
//! callers get a typed refusal and the gateway is not affected. When the backend is back, the next requests reach it.
//!
//! The methods are `echo` and `twice`. With the example `echo_server` as the backend, try: `tidewire call
//! 127.0.0.1:7001 twice hello`.

use std::time::Duration;

use tidewire::upstream::Upstream;
use tidewire::{Context, Message, Router, Server};

fn methods(upstream: &Upstream) -> Router {
    let (all, twice) = (upstream.clone(), upstream.clone());
    Router::new()
        // The reply or the refusal is returned unchanged.
        .on("echo", move |cx, message| cx.forward(&all, &message))
        // The reply is changed on its way back.
        .on(
            "twice",
            move |cx: &mut Context<'_>, message: Message<'_>| {
                let deferred = cx.defer();
                cx.request(&twice, "echo", message.payload, move |_, answer| {
                    // Without an answer the token is dropped, which refuses the request.
                    if let Ok(payload) = answer
                        && let Err(error) = deferred.reply(&payload.repeat(2))
                    {
                        println!("not answered: {error}");
                    }
                })?;
                Ok(())
            },
        )
}

fn main() -> std::process::ExitCode {
    tidewire_examples::report(run())
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next();
    let backend = arguments.next();
    let upstream = Upstream::new(backend.as_deref().unwrap_or("tcp://127.0.0.1:7000"))?
        .timeout(Duration::from_secs(2));
    let server = Server::builder()
        .listen(address.as_deref().unwrap_or("tcp://127.0.0.1:7001"))?
        .start_one(methods(&upstream))?;
    println!("listening on {server}");
    server.wait_for_signals(Duration::from_secs(5))?;
    Ok(())
}
