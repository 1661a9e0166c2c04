//! The rate limit of a session.
//!
//! There is a token bucket for messages and one for bytes. Each is kept as one time: the moment at which the bucket is
//! full again. A message moves that moment forward by its cost. It may come while that moment is at most the burst
//! ahead of now. So no timer fills a bucket, and a session that sends nothing costs nothing. A message may take more
//! bytes than the bucket has, and the next message waits for them. Otherwise a frame that is larger than the burst
//! could never come.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidewire_proto::setting::SettingError;

use super::nanoseconds;

/// The messages and bytes that a session may send in a second, and the policy for a session that sends more. For
/// [`ServerBuilder::rate_limit`](crate::ServerBuilder::rate_limit).
///
/// It holds for each session that a peer opened. In [`IdentityLimits`](crate::auth::IdentityLimits) it holds for all
/// sessions of an identity together, and outlives them. It counts the frames that go to the service, each with all its
/// bytes. Pings and other control frames have a limit of their own,
/// [`ConnectionLimits::control_frames_per_second_max`](crate::limits::ConnectionLimits::control_frames_per_second_max).
/// A peer that connects again starts with a full burst;
/// [`SessionLimits::per_address_max`](crate::limits::SessionLimits::per_address_max) bounds its sessions.
///
/// ```
/// use std::time::Duration;
/// use tidewire::{Client, Context, Message, RequestError, Server};
/// use tidewire::limits::{RateLimit, WhenExceeded};
///
/// let server = Server::builder()
///     .rate_limit(
///         RateLimit::new(WhenExceeded::Refuse)
///             .messages_per_second(2)
///             .bytes_per_second(1 << 20)
///             .burst(Duration::from_secs(2)),
///     )
///     .listen("tcp://127.0.0.1:0")?
///     .start_one(|cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload))?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// let refused = (0..10).filter(|_| {
///     let result = client.request(b"hello").wait();
///     matches!(result, Err(RequestError::Refused { .. }))
/// });
/// assert!(refused.count() > 0);
/// assert!(server.metrics().rate_refused > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    messages_per_second: Option<u64>,
    bytes_per_second: Option<u64>,
    burst: Duration,
    when_exceeded: WhenExceeded,
}

/// The policy for a session that sends more than its [`RateLimit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenExceeded {
    /// The session is not read until it may send again; [`Metrics::rate_paused`](crate::metrics::Metrics::rate_paused)
    /// counts that. A stream loses nothing, because the transport slows its peer down. UDP cannot do that: datagrams
    /// that come during the pause are dropped, and counted as `paused`; see
    /// [`Metrics::datagrams_dropped_by`](crate::metrics::Metrics::datagrams_dropped_by).
    Pause,
    /// Each message above the limit is refused: a request is answered with
    /// [`ErrorCode::LimitReached`](crate::ErrorCode::LimitReached), other messages are dropped.
    /// [`Metrics::rate_refused`](crate::metrics::Metrics::rate_refused) counts them.
    Refuse,
    /// The session is closed with [`CloseReason::RateLimit`](crate::CloseReason::RateLimit) after its output has been
    /// written.
    Close,
}

impl RateLimit {
    /// A limit without rates. Set one rate or both.
    #[must_use]
    pub fn new(when_exceeded: WhenExceeded) -> Self {
        Self {
            messages_per_second: None,
            bytes_per_second: None,
            burst: Duration::from_secs(1),
            when_exceeded,
        }
    }

    /// Messages a second. 0 is refused when the server starts.
    #[must_use]
    pub fn messages_per_second(mut self, messages: u64) -> Self {
        self.messages_per_second = Some(messages);
        self
    }

    /// Bytes of whole frames a second. 0 is refused when the server starts. A frame is accepted if any byte of the rate
    /// is left. The next frame waits until the rate has made up for the bytes that were too many.
    #[must_use]
    pub fn bytes_per_second(mut self, bytes: u64) -> Self {
        self.bytes_per_second = Some(bytes);
        self
    }

    /// A session that was silent may send at once what the rates allow in this time, and at least one message. Default
    /// 1 s. Less than 20 ms counts as 20 ms, because a paused session is checked every 10 ms.
    #[must_use]
    pub fn burst(mut self, burst: Duration) -> Self {
        self.burst = burst;
        self
    }

    /// The limit as lanes use it.
    pub(crate) fn rate(&self) -> Result<Rate, SettingError> {
        let Self {
            messages_per_second: messages,
            bytes_per_second: bytes,
            ..
        } = *self;
        match (messages, bytes) {
            (Some(0), _) => Err(zero("messages")),
            (_, Some(0)) => Err(zero("bytes")),
            (None, None) => Err(SettingError::new(
                "rate limit",
                "",
                "a rate limit without a rate limits nothing; give messages_per_second or bytes_per_second",
            )),
            _ => Ok(Rate {
                messages,
                bytes,
                burst_ns: nanoseconds(self.burst).max(BURST_NS_MIN),
                when_exceeded: self.when_exceeded,
            }),
        }
    }
}

fn zero(rate: &str) -> SettingError {
    let text = format!(
        "a limit of 0 {rate} a second lets nothing through; use 1 or more, or leave it out"
    );
    SettingError::new("rate limit", "0", text)
}

/// A checked [`RateLimit`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    messages: Option<u64>,
    bytes: Option<u64>,
    burst_ns: u64,
    when_exceeded: WhenExceeded,
}

/// The part of its rate that a session has used, as the times at which its buckets are full again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    messages_full_ns: u64,
    bytes_full_ns: u64,
}

impl Bucket {
    /// Whether nothing of the rate is used up, so that the bucket need not be remembered.
    pub(crate) fn is_full(self, now_ns: u64) -> bool {
        self.messages_full_ns.max(self.bytes_full_ns) <= now_ns
    }
}

/// A bucket that the sessions of several lanes use.
#[derive(Debug, Default)]
pub(crate) struct SharedBucket {
    messages_full_ns: AtomicU64,
    bytes_full_ns: AtomicU64,
}

impl SharedBucket {
    /// The part of the rate that is used up now.
    pub(crate) fn load(&self) -> Bucket {
        Bucket {
            messages_full_ns: self.messages_full_ns.load(Ordering::Relaxed),
            bytes_full_ns: self.bytes_full_ns.load(Ordering::Relaxed),
        }
    }

    /// Counts a message of this many bytes. Returns false, and counts nothing, if the rate is exceeded and `may_exceed`
    /// is not set. The count of messages is exact. Of the bytes, lanes that ask at the same moment may each take a
    /// frame.
    pub(crate) fn take(&self, rate: &Rate, bytes: usize, now_ns: u64, may_exceed: bool) -> bool {
        let mut former = self.load();
        loop {
            if !may_exceed && rate.free_ns(former) > now_ns {
                return false;
            }
            let mut next = former;
            rate.take(&mut next, bytes, now_ns);
            let messages = self.messages_full_ns.compare_exchange_weak(
                former.messages_full_ns,
                next.messages_full_ns,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if messages.is_ok() {
                break;
            }
            former = self.load();
        }
        let bytes_ns = cost_ns(bytes as u64, rate.bytes);
        let add = |full_ns: u64| Some(full_ns.max(now_ns).saturating_add(bytes_ns));
        // The closure always gives a value.
        let _ = self
            .bytes_full_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        true
    }
}

impl Rate {
    /// Whether a session that exceeds the rate is paused. Otherwise its messages are refused, or the session ends.
    #[inline]
    pub(crate) fn pauses(&self) -> bool {
        self.when_exceeded == WhenExceeded::Pause
    }

    /// Whether messages above the rate are refused.
    pub(crate) fn refuses(&self) -> bool {
        self.when_exceeded == WhenExceeded::Refuse
    }

    /// The time from which another message may come. It is in the past if one may come now.
    pub(crate) fn free_ns(&self, bucket: Bucket) -> u64 {
        let message_ns = cost_ns(1, self.messages);
        // One message must fit even a tiny burst.
        let ahead_ns = self.burst_ns.max(message_ns) - message_ns;
        let message_free_ns = bucket.messages_full_ns.saturating_sub(ahead_ns);
        let byte_free_ns = bucket
            .bytes_full_ns
            .saturating_add(1)
            .saturating_sub(self.burst_ns);
        message_free_ns.max(byte_free_ns)
    }

    /// Counts a message of this many bytes.
    pub(crate) fn take(&self, bucket: &mut Bucket, bytes: usize, now_ns: u64) {
        let message_ns = cost_ns(1, self.messages);
        let bytes_ns = cost_ns(bytes as u64, self.bytes);
        let full_ns = bucket.messages_full_ns.max(now_ns);
        bucket.messages_full_ns = full_ns.saturating_add(message_ns);
        bucket.bytes_full_ns = bucket.bytes_full_ns.max(now_ns).saturating_add(bytes_ns);
    }
}

/// The time in which the rate allows this amount.
fn cost_ns(amount: u64, rate: Option<u64>) -> u64 {
    rate.map_or(0, |rate| {
        amount.saturating_mul(1_000_000_000).div_ceil(rate)
    })
}

/// Two ticks of the lane's timers. With less, a paused session could not use its whole rate.
const BURST_NS_MIN: u64 = 20_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn limit() -> RateLimit {
        RateLimit::new(WhenExceeded::Pause)
    }

    /// Counts how many messages of this size the rate allows at this moment.
    fn taken(rate: Rate, bucket: &mut Bucket, bytes: usize, now_ns: u64) -> usize {
        let mut count = 0;
        while rate.free_ns(*bucket) <= now_ns {
            rate.take(bucket, bytes, now_ns);
            count += 1;
        }
        count
    }

    #[test]
    fn a_rate_of_zero_and_a_limit_of_nothing_are_refused() {
        let zero = |limit: RateLimit| limit.rate().unwrap_err();
        let said = zero(limit().messages_per_second(0)).to_string();
        assert!(said.starts_with("a limit of 0 messages"), "{said}");
        let limit_bytes = limit().messages_per_second(5).bytes_per_second(0);
        let said = zero(limit_bytes).to_string();
        assert!(said.starts_with("a limit of 0 bytes"), "{said}");
        let said = zero(limit()).to_string();
        assert!(said.contains("limits nothing"), "{said}");
    }

    #[test]
    fn messages_come_at_once_up_to_the_burst_and_then_at_the_rate() {
        let rate = limit().messages_per_second(100).rate().unwrap();
        let (mut bucket, mut now_ns) = (Bucket::default(), 77 * SECOND_NS);
        assert_eq!(taken(rate, &mut bucket, 1_000_000, now_ns), 100);
        now_ns += SECOND_NS / 4;
        assert_eq!(taken(rate, &mut bucket, 0, now_ns), 25);
        // A long silence does not lengthen the burst.
        now_ns += 1_000 * SECOND_NS;
        assert_eq!(taken(rate, &mut bucket, 0, now_ns), 100);
        let free_ns = rate.free_ns(bucket);
        assert_eq!(
            free_ns - now_ns,
            SECOND_NS / 100,
            "one more comes in after 10 ms"
        );
        assert_eq!(taken(rate, &mut bucket, 0, free_ns), 1);
    }

    #[test]
    fn a_frame_may_take_more_bytes_than_are_left_and_the_next_one_waits() {
        let rate = limit().bytes_per_second(1_000).rate().unwrap();
        let (mut bucket, now_ns) = (Bucket::default(), 77 * SECOND_NS);
        assert_eq!(taken(rate, &mut bucket, 600, now_ns), 2);
        let waits_ns = rate.free_ns(bucket) - now_ns;
        assert_eq!(waits_ns / 1_000_000, 200);
        let mut bucket = Bucket::default();
        assert_eq!(taken(rate, &mut bucket, 10_000, now_ns), 1);
        assert_eq!((rate.free_ns(bucket) - now_ns) / SECOND_NS, 9);
    }

    #[test]
    fn any_rate_lets_single_messages_through_and_nothing_overflows() {
        let burst = Duration::ZERO;
        let slow = limit().messages_per_second(1).burst(burst).rate().unwrap();
        let mut bucket = Bucket::default();
        assert_eq!(taken(slow, &mut bucket, 0, 77 * SECOND_NS), 1);
        let fast = limit()
            .messages_per_second(u64::MAX)
            .bytes_per_second(u64::MAX)
            .burst(Duration::MAX);
        let mut bucket = Bucket::default();
        fast.rate()
            .unwrap()
            .take(&mut bucket, usize::MAX, u64::MAX - 1);
        assert!(fast.rate().unwrap().free_ns(bucket) < u64::MAX);
    }

    #[test]
    fn sessions_of_several_threads_take_no_more_than_the_rate_together() {
        let rate = limit().messages_per_second(1_000).rate().unwrap();
        let bucket = SharedBucket::default();
        let now_ns = 77 * SECOND_NS;
        let take_all = || {
            (0..5_000)
                .filter(|_| bucket.take(&rate, 1, now_ns, false))
                .count()
        };
        let taken: usize = std::thread::scope(|scope| {
            let takers = [(); 4].map(|()| scope.spawn(take_all));
            takers.into_iter().map(|it| it.join().unwrap()).sum()
        });
        assert_eq!(taken, 1_000);
        assert!(
            bucket.take(&rate, 1, now_ns, true),
            "a pause comes after it"
        );
        assert_eq!(rate.free_ns(bucket.load()) - now_ns, 2 * SECOND_NS / 1_000);
    }
}
