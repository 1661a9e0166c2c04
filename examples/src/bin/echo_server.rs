//! Answers every request with its own payload: `cargo run -p tidewire-examples --bin echo_server`

use std::time::Duration;

use tidewire::{Context, HandlerResult, Message};

fn echo(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    cx.reply(message.payload)
}

fn main() -> std::process::ExitCode {
    tidewire_examples::report(run())
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1);
    let server = tidewire::serve(address.as_deref().unwrap_or("tcp://127.0.0.1:7000"), echo)?;
    println!("echoing on {server}");
    server.wait_for_signals(Duration::from_secs(5))?;
    Ok(())
}
