//! Calls the typed service: `cargo run -p tidewire-examples --bin typed_client`

use std::time::Duration;

use tidewire::Client;
use tidewire::typed::CallError;
use tidewire_examples::{ShopClient, ShopError};

fn main() -> std::process::ExitCode {
    tidewire_examples::report(run())
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1);
    let client = Client::connect(address.as_deref().unwrap_or("tcp://127.0.0.1:7000")).wait()?;
    let shop = ShopClient::new(client);

    shop.restock("apple".into(), 3)?;
    // The request has no effect, so the client may repeat it after a reconnect.
    let cents = shop.price("apple".into()).idempotent().wait()?;
    println!("an apple costs {cents} cents");

    let order = shop
        .order("apple".into(), 2)
        .timeout(Duration::from_secs(60));
    let parcel = order.wait()?;
    println!("{} apples cost {} cents", parcel.count, parcel.cents);

    match shop.order("apple".into(), 2).wait() {
        Err(CallError::Failed(ShopError::SoldOut { left })) => println!("only {left} left"),
        other => println!("unexpected: {other:?}"),
    }
    Ok(())
}
