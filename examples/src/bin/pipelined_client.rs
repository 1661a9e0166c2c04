//! Sends many requests over one connection without waiting for each reply: `cargo run -p tidewire-examples --bin
//! pipelined_client`
//!
//! Replies arrive in blocks. So wait for the oldest request, and then take all replies that arrived with its reply: one
//! wait, and one wake of this thread, for each block.

use std::collections::VecDeque;

use tidewire::{Client, Reply, Request};

fn main() -> std::process::ExitCode {
    tidewire_examples::report(run())
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1);
    let client = Client::connect(address.as_deref().unwrap_or("tcp://127.0.0.1:7000")).wait()?;
    let mut waiting: VecDeque<(u32, Request)> = VecDeque::with_capacity(WINDOW);
    let mut answered = 0;
    for number in 0..QUESTIONS {
        if waiting.len() == WINDOW
            && let Some((asked, oldest)) = waiting.pop_front()
        {
            check(asked, &oldest.wait()?)?;
            answered += 1;
            while let Some((asked, next)) = waiting.front_mut()
                && let Some(reply) = next.try_wait()
            {
                check(*asked, &reply?)?;
                answered += 1;
                waiting.pop_front();
            }
        }
        waiting.push_back((number, client.request(&number.to_le_bytes()).send()));
    }
    for (asked, request) in waiting {
        check(asked, &request.wait()?)?;
        answered += 1;
    }
    println!("{answered} of {QUESTIONS} answered");
    Ok(())
}

fn check(asked: u32, reply: &Reply) -> Result<(), String> {
    if reply.payload() == asked.to_le_bytes() {
        Ok(())
    } else {
        Err(format!("{asked} got the answer to something else"))
    }
}

const QUESTIONS: u32 = 100_000;

/// Most requests in flight; a client allows 4,096.
const WINDOW: usize = 128;
