//! The methods of `tidewire serve --app rpc`, which any peer with named requests can call.
//!
//! `sleep` is an example of a slow handler: it takes a token, passes it to a worker, and the lane goes on. It sleeps in
//! slices, so that a caller who gave up, or a server that stops, does not occupy a worker.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidewire::upstream::Upstream;
use tidewire::workers::{WhenPoolFull, WorkerPool};
use tidewire::{AnyCodec, Context, Deferred, HandlerError, HandlerResult, Message, Router};
use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::Codec;

/// The workers that sleep, shared by all lanes.
#[derive(Clone, Debug)]
pub(super) struct Methods {
    sleepers: Arc<WorkerPool<(Deferred, Duration)>>,
    /// The names of the methods that the server has; empty for all.
    chosen: Vec<String>,
    /// The other nodes, for the methods that it does not have. `None` without a backplane.
    nodes: Option<Upstream>,
}

impl Methods {
    /// The names of the methods, or of those that were chosen.
    pub(super) fn names(chosen: &[String]) -> impl Iterator<Item = &'static str> {
        described(chosen).map(|(name, _)| name)
    }

    pub(super) fn start(chosen: &[String], is_node: bool) -> io::Result<Self> {
        let pool = WorkerPool::new(
            SLEEPERS,
            SLEEPS_MAX,
            WhenPoolFull::Refuse,
            |(deferred, pause)| sleep(deferred, pause),
        )?;
        Ok(Self {
            sleepers: Arc::new(pool),
            chosen: chosen.to_vec(),
            nodes: is_node.then(|| Upstream::nodes().timeout(NODES_TIMEOUT)),
        })
    }

    pub(super) fn router(&self) -> Router {
        let mut router = Router::new();
        if let Some(nodes) = self.nodes.clone() {
            router = router.otherwise(move |cx, message| cx.forward(&nodes, &message));
        }
        Self::names(&self.chosen).fold(router, |router, name| self.add_method(router, name))
    }

    fn add_method(&self, router: Router, name: &'static str) -> Router {
        match name {
            "add" => router.on(name, |cx, message| match add(message.payload) {
                Ok(sum) => cx.reply(sum.to_string().as_bytes()),
                Err(error) => match add_binary(cx.codec(), message.payload) {
                    Some(sum) => cx.reply(&sum.to_le_bytes()),
                    None => Err(error),
                },
            }),
            "echo" => router.on(name, |cx, message| cx.reply(message.payload)),
            "sleep" => {
                let sleepers = Arc::clone(&self.sleepers);
                router.on(name, move |cx, message| defer_sleep(cx, message, &sleepers))
            }
            "time" => router.on(name, |cx, _| {
                cx.reply(unix_time_ms().to_string().as_bytes())
            }),
            _ => {
                let lines: Vec<&str> = described(&self.chosen).map(|(_, line)| line).collect();
                let list = lines.join("\n");
                router.on(name, move |cx, _| cx.reply(list.as_bytes()))
            }
        }
    }
}

/// The methods that were chosen, or all, each with its line of the list.
fn described(chosen: &[String]) -> impl Iterator<Item = (&'static str, &'static str)> {
    let named = METHODS.lines().map(|line| {
        let name = line.split(' ').next().unwrap_or_default();
        (name, line)
    });
    named.filter(|(name, _)| chosen.is_empty() || chosen.iter().any(|it| it == name))
}

#[expect(clippy::disallowed_methods, reason = "the date is what is asked for")]
fn unix_time_ms() -> u128 {
    // A clock before 1970 means a machine without a clock.
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis())
}

/// Returns the sum of the numbers in a text.
fn add(payload: &[u8]) -> Result<i64, HandlerError> {
    let malformed = || {
        HandlerError::new(
            ErrorCode::MalformedBody,
            "add takes whole numbers with spaces between them, such as 2 40",
        )
    };
    let text = str::from_utf8(payload).map_err(|_| malformed())?;
    let mut sum = 0_i64;
    for word in text.split_whitespace() {
        let number: i64 = word.parse().map_err(|_| malformed())?;
        sum = sum.checked_add(number).ok_or_else(|| {
            HandlerError::new(ErrorCode::MalformedBody, "the sum does not fit 64 bits")
        })?;
    }
    Ok(sum)
}

/// Returns the sum of two i32, little-endian, as UVRPC's own programs send them. It wraps as theirs does, because an
/// error frame ends their clients. Text is tried first: eight bytes of digits and spaces are numbers above 150 million,
/// which none of them sends.
fn add_binary(codec: &AnyCodec, payload: &[u8]) -> Option<i32> {
    let [first, second] = payload.as_chunks::<4>().0 else {
        return None;
    };
    let is_theirs = codec.format().has_binary_arguments && payload.len() == 8;
    is_theirs.then(|| i32::from_le_bytes(*first).wrapping_add(i32::from_le_bytes(*second)))
}

fn defer_sleep(
    cx: &mut Context<'_>,
    message: Message<'_>,
    sleepers: &WorkerPool<(Deferred, Duration)>,
) -> HandlerResult {
    let milliseconds = str::from_utf8(message.payload)
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok())
        .filter(|milliseconds| *milliseconds <= SLEEP_MS_MAX)
        .ok_or_else(|| {
            HandlerError::new(
                ErrorCode::MalformedBody,
                "sleep takes milliseconds, a whole number from 0 to 60000",
            )
        })?;
    let task = (cx.defer(), Duration::from_millis(milliseconds));
    if let Err((deferred, _)) = sleepers.submit(task) {
        deferred.refuse(ErrorCode::LimitReached, "all workers are asleep");
    }
    Ok(())
}

fn sleep(deferred: Deferred, pause: Duration) {
    let end = Instant::now() + pause;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        if deferred.is_cancelled() {
            return;
        }
        std::thread::sleep(left.min(SLEEP_SLICE));
    }
    if let Err(error) = deferred.reply(b"awake") {
        tracing::debug!(%error, "a sleeper's answer was not sent");
    }
}

/// The answer of `methods`: a line for each.
const METHODS: &str = "\
add NUMBER…   the sum of whole numbers; over uvrpc also of two binary i32, little-endian
echo ANYTHING the same back
methods       this list
sleep MS      awake, after that many milliseconds on a worker
time          milliseconds since 1970";

/// The longest time for the answer of another node: longer than the longest sleep.
const NODES_TIMEOUT: Duration = Duration::from_secs(90);

/// The number of workers: enough that one sleeper does not keep the next one waiting.
const SLEEPERS: usize = 4;

/// Maximum number of sleeps that wait for a worker; more are refused.
const SLEEPS_MAX: usize = 1_024;

/// The maximum of a sleep: a minute.
const SLEEP_MS_MAX: u64 = 60_000;

/// The interval at which a sleeper checks whether its caller still waits.
const SLEEP_SLICE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_of_whole_numbers_within_64_bits() {
        assert_eq!(add(b"2 40").unwrap(), 42);
        assert_eq!(add(b"").unwrap(), 0);
        assert_eq!(add(b" -1\n1 ").unwrap(), 0);
        for text in [&b"one"[..], b"1.5", b"\xff", b"9223372036854775807 1"] {
            assert_eq!(add(text).unwrap_err().code(), ErrorCode::MalformedBody);
        }
    }

    /// The bug: UVRPC's own client and benchmark got the error that they send no numbers, and ended.
    #[test]
    fn two_binary_numbers_of_a_uvrpc_peer_are_added() {
        let [uvrpc, tw1] = ["uvrpc", "tw1"].map(|name| AnyCodec::by_name(name).unwrap());
        let payload = |first: i32, second: i32| [first.to_le_bytes(), second.to_le_bytes()];
        let sum = |first, second| add_binary(&uvrpc, payload(first, second).as_flattened());
        assert_eq!(sum(10, 20), Some(30));
        assert_eq!(sum(-7, 3), Some(-4));
        assert_eq!(sum(i32::MAX, 1), Some(i32::MIN));
        assert!(add(payload(10, 20).as_flattened()).is_err());
        assert_eq!(add_binary(&tw1, payload(10, 20).as_flattened()), None);
        assert_eq!(add_binary(&uvrpc, &[0; 9]), None);
        assert_eq!(add_binary(&uvrpc, &[0; 12]), None);
    }

    #[test]
    fn the_list_names_every_method() {
        let router = Methods::start(&[], false).unwrap().router();
        let listed: Vec<&str> = METHODS
            .lines()
            .filter_map(|line| line.split(' ').next())
            .collect();
        assert_eq!(
            format!("{router:?}"),
            format!("Router {{ methods: {listed:?}, .. }}")
        );
    }
}
