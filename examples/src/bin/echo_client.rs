//! Sends a request and prints the reply: `cargo run -p tidewire-examples --bin echo_client`

use tidewire::Client;

fn main() -> std::process::ExitCode {
    tidewire_examples::report(run())
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1);
    let client = Client::connect(address.as_deref().unwrap_or("tcp://127.0.0.1:7000")).wait()?;
    let reply = client.request(b"hello").wait()?;
    println!("{}", String::from_utf8_lossy(reply.payload()));
    Ok(())
}
