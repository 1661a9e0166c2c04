//! A typed service with a slow method: `cargo run -p tidewire-examples --bin typed_server`
//!
//! The lane answers requests for prices itself. Orders go to a worker, together with the token of the answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tidewire::typed::DeferredReply;
use tidewire::workers::{WhenPoolFull, WorkerPool};
use tidewire::{ErrorCode, Router, Server};
use tidewire_examples::{Parcel, Shop, ShopError, ShopServer};

type Order = (Parcel, DeferredReply<Result<Parcel, ShopError>>);

struct Article {
    cents: u32,
    left: u32,
}

/// The shop of one lane. This server has one lane; several lanes would share the store behind a lock.
struct CornerShop {
    store: HashMap<String, Article>,
    packers: Arc<WorkerPool<Order>>,
}

impl Shop for CornerShop {
    fn price(&self, article: String) -> Result<u32, ShopError> {
        match self.store.get(&article) {
            Some(found) => Ok(found.cents),
            None => Err(ShopError::Unknown { article }),
        }
    }

    fn order(
        &mut self,
        article: String,
        count: u32,
        reply: DeferredReply<Result<Parcel, ShopError>>,
    ) {
        match self.take(article, count) {
            Ok(parcel) => {
                if let Err((_, reply)) = self.packers.submit((parcel, reply)) {
                    reply.refuse(ErrorCode::LimitReached, "all packers are busy");
                }
            }
            Err(error) => answer(reply, Err(error)),
        }
    }

    fn restock(&mut self, article: String, count: u32) {
        let entry = self.store.entry(article).or_insert(Article {
            cents: 100,
            left: 0,
        });
        entry.left = entry.left.saturating_add(count);
    }
}

impl CornerShop {
    fn take(&mut self, article: String, count: u32) -> Result<Parcel, ShopError> {
        let Some(found) = self.store.get_mut(&article) else {
            return Err(ShopError::Unknown { article });
        };
        let Some(left) = found.left.checked_sub(count) else {
            return Err(ShopError::SoldOut { left: found.left });
        };
        found.left = left;
        Ok(Parcel {
            article,
            count,
            cents: u64::from(found.cents) * u64::from(count),
        })
    }
}

/// A worker may block, for example on a database, a model or a file.
fn pack((parcel, reply): Order) {
    answer(reply, Ok(parcel));
}

fn answer(reply: DeferredReply<Result<Parcel, ShopError>>, answer: Result<Parcel, ShopError>) {
    if let Err(error) = reply.reply(answer) {
        println!("not answered: {error}");
    }
}

fn main() -> std::process::ExitCode {
    tidewire_examples::report(run())
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1);
    let packers = Arc::new(WorkerPool::new(2, 1024, WhenPoolFull::Refuse, pack)?);
    let server = Server::builder()
        .listen(address.as_deref().unwrap_or("tcp://127.0.0.1:7000"))?
        .start_one(Router::new().mount(ShopServer::new(CornerShop {
            store: HashMap::new(),
            packers: Arc::clone(&packers),
        })))?;
    println!("listening on {server}");
    server.wait_for_signals(Duration::from_secs(5))?;
    Ok(())
}
