//! Methods by name, one of them slow: `cargo run -p tidewire-examples --bin worker_server`
//!
//! The lane never waits: `shout` goes to a worker, which answers when it is done. A full pool refuses the request at
//! once.

use std::sync::Arc;
use std::time::Duration;

use tidewire::workers::{WhenPoolFull, WorkerPool};
use tidewire::{Context, Deferred, ErrorCode, Message, Router, Server};

type Pool = WorkerPool<(Deferred, Vec<u8>)>;

fn shout((deferred, text): (Deferred, Vec<u8>)) {
    // This thread may block, for example on a database, a model or a file.
    if deferred.is_cancelled() {
        return;
    }
    if let Err(error) = deferred.reply(&text.to_ascii_uppercase()) {
        println!("not answered: {error}");
    }
}

fn methods(pool: Arc<Pool>) -> Router {
    Router::new()
        .on("echo", |cx, message| cx.reply(message.payload))
        .on(
            "shout",
            move |cx: &mut Context<'_>, message: Message<'_>| {
                let task = (cx.defer(), message.payload.to_vec());
                if let Err((deferred, _)) = pool.submit(task) {
                    deferred.refuse(ErrorCode::LimitReached, "all workers are busy");
                }
                Ok(())
            },
        )
}

fn main() -> std::process::ExitCode {
    tidewire_examples::report(run())
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1);
    let pool = Arc::new(WorkerPool::new(4, 1024, WhenPoolFull::Refuse, shout)?);
    let server = Server::builder()
        .listen(address.as_deref().unwrap_or("tcp://127.0.0.1:7000"))?
        .start_one(methods(Arc::clone(&pool)))?;
    println!("listening on {server}");
    server.wait_for_signals(Duration::from_secs(5))?;
    Ok(())
}
