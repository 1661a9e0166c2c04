//! A service with its own room: every session joins it, and every one-way message goes to all other sessions.
//!
//! Run `cargo run -p tidewire-examples --bin room_server`, and send from a program with `client.send(b"hello")`.

use std::time::Duration;

use tidewire::{Context, HandlerResult, Message, RoomError, RoomId, Server, Service};

/// One instance per lane. Only the lane's thread uses it.
struct Newsroom;

impl Service for Newsroom {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        let name = format!("guest-{}", cx.id());
        match cx.rooms().join("news", &name) {
            Ok(joined) => drop(cx.set_state(joined.room)),
            Err(_) => cx.close(),
        }
    }

    fn on_one_way(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let room: RoomId = *cx.state().ok_or(RoomError::NotJoined)?;
        Ok(cx.rooms().say(room, message.payload)?)
    }
}

fn main() -> std::process::ExitCode {
    tidewire_examples::report(run())
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1);
    let server = Server::builder()
        .listen(address.as_deref().unwrap_or("tcp://127.0.0.1:7001"))?
        .start_one(Newsroom)?;
    println!("newsroom on {server}");
    server.wait_for_signals(Duration::from_secs(5))?;
    Ok(())
}
