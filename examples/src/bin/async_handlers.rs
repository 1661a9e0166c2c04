//! Handlers that await, on tokio: `cargo run -p tidewire-examples --bin async_handlers`
//!
//! The lane passes each request to tokio as a task and continues at once. The task may await anything that tokio
//! offers; its return value is the answer. The library needs no runtime: for another executor, pass another `spawn`.

use std::time::Duration;

use tidewire::{AsyncRequest, AsyncService, ErrorCode, HandlerError, Server};

async fn handle(request: AsyncRequest) -> Result<Vec<u8>, HandlerError> {
    // An error that `?` returns below is logged here. The caller gets no details.
    match &request.name[..] {
        "shout" => {
            let text = String::from_utf8(request.payload)?;
            // Stands for a database or another service.
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(text.to_uppercase().into_bytes())
        }
        "read" => {
            // The payload selects a file from a list. It is not a path, because any client may send it.
            let path = match &request.payload[..] {
                b"manifest" => concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
                b"missing" => "/no/such/file",
                _ => {
                    return Err(HandlerError::new(
                        ErrorCode::NotFound,
                        "there is no such file",
                    ));
                }
            };
            let file = tokio::task::spawn_blocking(move || std::fs::read(path));
            Ok(file.await??)
        }
        name => {
            let text = format!("there is no method {name:?}");
            Err(HandlerError::new(ErrorCode::NotFound, text))
        }
    }
}

fn main() -> std::process::ExitCode {
    tidewire_examples::report(run())
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_time()
        .build()?;
    let handle_of_runtime = runtime.handle().clone();
    let spawn = move |task| drop(handle_of_runtime.spawn(task));
    // More than 1,000 requests at once are refused.
    let service = AsyncService::new(spawn, handle).in_flight_max(1_000);
    let server = Server::builder()
        .listen(address.as_deref().unwrap_or("tcp://127.0.0.1:7000"))?
        .start_one(service.clone())?;
    println!("listening on {server}");
    server.wait_for_signals(Duration::from_secs(5))?;
    Ok(())
}
