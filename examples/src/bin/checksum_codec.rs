//! A server and a client with a custom codec: `cargo run -p tidewire-examples --bin checksum_codec`
//!
//! The codec is `checksum.rs` beside the `bin` folder, with its tests. Everything else is the same as with any other
//! codec.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tidewire::{AnyCodec, Client, Context, HandlerResult, Message, Server};
use tidewire_examples::checksum::Checksum;

fn thermometer(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    match message.payload {
        b"temperature" => cx.reply(b"21.5"),
        _ => cx.reply(b"?"),
    }
}

fn main() -> std::process::ExitCode {
    tidewire_examples::report(run())
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let codec = AnyCodec::custom(Checksum);
    let server = Server::builder()
        .codec(codec.clone())
        .listen("tcp://127.0.0.1:0")?
        .start_one(thermometer)?;
    let address = server.to_string();
    let client = Client::builder().codec(codec).connect(&address).wait()?;
    let reply = client.request(b"temperature").wait()?;
    println!("temperature: {}", String::from_utf8_lossy(reply.payload()));

    // A frame with a flipped bit ends only its own connection, and is counted.
    let mut noisy = TcpStream::connect(address.trim_start_matches("tcp://"))?;
    noisy.write_all(&[0xAA, 1, 1, 0, 1, b'?', 0, 0])?;
    noisy.read_to_end(&mut Vec::new())?;
    client.close().wait();
    let stopped = server.shutdown(Duration::from_secs(5));
    let damaged = stopped.metrics.closed_by("decode");
    println!("connections ended by damaged frames: {damaged}");
    Ok(())
}
