//! Streams of JetStream for rooms and topics that keep a history: one stream for each, so that its sequences have no
//! holes.
//!
//! A stream publishes each stored message again on a subject for nodes, with its sequence. So a node that follows a
//! stream has a subscription, without state in NATS. A node reads missed messages by a consumer, which is removed at
//! the end.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_nats::Message;
use async_nats::header::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::context::{
    CreateStreamErrorKind, DeleteStreamErrorKind, GetStreamErrorKind,
};
use async_nats::jetstream::stream::{Config, Info, RawMessageErrorKind, Republish, StorageType};
use async_nats::jetstream::{Context, ErrorCode};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use tidewire::History;
use tidewire::backplane::{HistoryState, RoomOrTopic};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};

use crate::subject::Prefix;

#[derive(Debug)]
pub(crate) struct News {
    pub(crate) name: RoomOrTopic,
    pub(crate) reader: u64,
    pub(crate) what: NewsContent,
}

#[derive(Debug)]
pub(crate) enum NewsContent {
    /// The packets that were read.
    Read(HistoryState, Vec<(u64, Bytes)>),
    Failed(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Reader {
    pub(crate) number: u64,
    pub(crate) context: Context,
    pub(crate) prefix: Prefix,
    /// How many servers of NATS keep a stream that is made.
    pub(crate) replicas: usize,
    pub(crate) name: RoomOrTopic,
    pub(crate) limits: History,
    pub(crate) from: u64,
    /// The epoch of a stream that has lost its end. It is removed.
    pub(crate) replaced: Option<u64>,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Reader {
    /// Makes the stream if it does not exist, reads it, and reports the packets.
    pub(crate) async fn run(self, readers: Arc<Semaphore>, news: mpsc::Sender<News>) {
        if self.replaced.is_some() {
            // Many nodes find it at the same time. One of them is the first, and the others then see that it has made
            // another stream.
            sleep(REPLACE_MAX.mul_f64(fastrand::f64())).await;
        }
        let turn = timeout(ANSWER_MAX, readers.acquire()).await;
        let read = match &turn {
            Ok(_) => self.read().await,
            Err(_) => Err(TOO_MANY.into()),
        };
        let what = match read {
            Ok((state, packets)) => NewsContent::Read(state, packets),
            Err(error) => NewsContent::Failed(format!("the history cannot be opened: {error}")),
        };
        let (name, reader) = (self.name, self.number);
        // The node may have ended.
        let _ = news.send(News { name, reader, what }).await;
        drop(turn);
    }

    async fn read(&self) -> Result<(HistoryState, Vec<(u64, Bytes)>), Failure> {
        let former = match self.replaced {
            Some(replaced) => self.remove(replaced).await?,
            None => None,
        };
        let info = self.open(former).await?;
        let last = info.state.last_sequence;
        let epoch = epoch_of(&info);
        let newest = (last + 1).saturating_sub(self.limits.messages_max as u64);
        // A stream that ends before this sequence is not the stream that the node knows.
        let is_other = self.from > last && self.from < u64::MAX;
        let from = if is_other { 0 } else { self.from };
        let from = from.max(newest).max(info.state.first_sequence);
        let packets = match info.state.messages > 0 {
            // The node usually has this packet. Three requests for a consumer would read it, too.
            true if from == last => self.read_packet(last).await?,
            true if from < last => {
                let bytes = info.state.bytes / info.state.messages;
                let count = BATCH_BYTES / bytes.clamp(1, BATCH_BYTES);
                let count = usize::try_from(count).unwrap_or(BATCH_MAX);
                self.read_packets(from, last, count.min(BATCH_MAX)).await?
            }
            _ => Vec::new(),
        };
        let last = packets.last().map_or(last, |(newest, _)| last.max(*newest));
        let from = self.from;
        Ok((HistoryState { epoch, from, last }, packets))
    }

    /// Removes a stream that has lost its end, unless another node has replaced it already. Returns its settings.
    async fn remove(&self, epoch: u64) -> Result<Option<Config>, Failure> {
        let name = self.prefix.stream(&self.name);
        match self.context.get_stream(&name).await {
            Ok(stream) if epoch_of(stream.cached_info()) == epoch => {
                self.delete(&name).await?;
                Ok(Some(stream.cached_info().config.clone()))
            }
            // If there is an error, opening the stream fails, too, and tells it.
            _ => Ok(None),
        }
    }

    /// Reads a single packet, if it is still there.
    async fn read_packet(&self, sequence: u64) -> Result<Vec<(u64, Bytes)>, Failure> {
        let stream = self.prefix.stream(&self.name);
        let stream = self.context.get_stream_no_info(&stream).await?;
        match stream.get_raw_message(sequence).await {
            Ok(packet) => Ok(vec![(sequence, packet.payload)]),
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the packets of these sequences, a number of them with each request. Newer packets may follow.
    ///
    /// A read may take long, but NATS must give each packet in time. A consumer gives 50,000 packets in a quarter of
    /// the processor time that direct requests take, 0.24 for 0.9 s on both sides.
    async fn read_packets(
        &self,
        from: u64,
        to: u64,
        count: usize,
    ) -> Result<Vec<(u64, Bytes)>, Failure> {
        let stream = self.prefix.stream(&self.name);
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartSequence {
                start_sequence: from,
            },
            ack_policy: AckPolicy::None,
            inactive_threshold: 2 * ANSWER_MAX,
            memory_storage: true,
            num_replicas: 1,
            ..pull::Config::default()
        };
        let context = &self.context;
        let consumer = context.create_consumer_on_stream(config, &stream).await?;
        let mut packets: Vec<(u64, Bytes)> = Vec::new();
        while packets.last().is_none_or(|(sequence, _)| *sequence < to) {
            let before = packets.len();
            let batch = consumer.fetch().max_messages(count).messages();
            let mut batch = timeout(ANSWER_MAX, batch).await.map_err(|_| SILENT)??;
            while let Some(packet) = timeout(ANSWER_MAX, batch.next())
                .await
                .map_err(|_| SILENT)?
            {
                let packet = packet?;
                let sequence = packet.info()?.stream_sequence;
                packets.push((sequence, packet.message.payload));
            }
            if packets.len() == before {
                let state = context
                    .get_stream(&stream)
                    .await?
                    .cached_info()
                    .state
                    .clone();
                let next = packets.last().map_or(from, |(sequence, _)| sequence + 1);
                if state.messages > 0 && state.first_sequence <= next {
                    return Err("NATS ended a batch too early".into());
                }
                // The rest was removed.
                break;
            }
        }
        let (context, name) = (context.clone(), consumer.cached_info().name.clone());
        // The join does not wait until the consumer is removed. If this fails, NATS removes the unused consumer.
        tokio::spawn(async move { context.delete_consumer_from_stream(&name, &stream).await });
        Ok(packets)
    }

    /// Returns the stream. Makes it if it does not exist, with the settings of a former stream.
    async fn open(&self, former: Option<Config>) -> Result<Info, Failure> {
        let name = self.prefix.stream(&self.name);
        let found = match self.context.get_stream(&name).await {
            Ok(stream) => stream.cached_info().clone(),
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(cause)
                    if cause.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    self.make(&name, former).await?
                }
                _ => return Err(error.into()),
            },
        };
        let config = self.config(&name, found.config.first_sequence);
        let limits_of = |it: &Config| (it.max_messages, it.max_bytes, it.max_age);
        if limits_of(&found.config) == limits_of(&config) {
            return Ok(found);
        }
        tracing::info!(
            stream = name,
            "the stream of a history gets the limits of this node; give all nodes the same limits"
        );
        let Config {
            max_messages,
            max_bytes,
            max_age,
            duplicate_window,
            ..
        } = config;
        // The rest stays as an operator may have changed it, such as the number of replicas.
        let changed = Config {
            max_messages,
            max_bytes,
            max_age,
            duplicate_window,
            ..found.config
        };
        Ok(self.context.update_stream(&changed).await?)
    }

    async fn make(&self, name: &str, former: Option<Config>) -> Result<Info, Failure> {
        let first_sequence = Some(first_sequence(self.make_room().await?));
        let config = match former {
            // An operator may have changed it, such as the number of replicas.
            Some(former) => Config {
                first_sequence,
                ..former
            },
            None => self.config(name, first_sequence),
        };
        match self.context.create_stream(config).await {
            Ok(stream) => Ok(stream.cached_info().clone()),
            Err(error) => match error.kind() {
                // Another node has made it at the same time, with another first sequence.
                CreateStreamErrorKind::JetStream(cause)
                    if cause.error_code() == ErrorCode::STREAM_NAME_EXIST =>
                {
                    let stream = self.context.get_stream(name).await?;
                    Ok(stream.cached_info().clone())
                }
                _ => Err(error.into()),
            },
        }
    }

    /// Removes a stream if there are too many: an empty stream, or else the stream with the longest silence. So no
    /// client can remove the messages of others by requesting streams that stay empty. Returns the highest sequence
    /// that is known to be in use.
    async fn make_room(&self) -> Result<u64, Failure> {
        let prefix = self.prefix.streams(&self.name);
        let streams = self.context.streams();
        let all: Vec<Info> = streams.try_collect().await?;
        let own = all.iter().filter(|it| it.config.name.starts_with(&prefix));
        // A removed stream made room for a stream that begins higher. So the newest stream is above all former streams.
        let used = own.clone().map(|it| it.state.last_sequence).max();
        let read = if self.from == u64::MAX { 0 } else { self.from };
        if own.clone().count() >= self.limits.names_max {
            let least = own.min_by_key(|it| {
                let last = it.state.last_timestamp.max(it.created);
                (it.state.messages > 0, last)
            });
            if let Some(least) = least {
                self.delete(&least.config.name).await?;
            }
        }
        Ok(used.unwrap_or(0).max(read))
    }

    /// Removes a stream. Another reader may have removed it at the same time.
    async fn delete(&self, name: &str) -> Result<(), Failure> {
        match self.context.delete_stream(name).await {
            Err(error) => match error.kind() {
                DeleteStreamErrorKind::JetStream(cause)
                    if cause.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    Ok(())
                }
                _ => Err(error.into()),
            },
            Ok(_) => Ok(()),
        }
    }

    fn config(&self, name: &str, first_sequence: Option<u64>) -> Config {
        let History {
            messages_max,
            bytes_max,
            age_max,
            ..
        } = self.limits;
        let messages_max = i64::try_from(messages_max.max(1)).unwrap_or(i64::MAX);
        let bytes_max = i64::try_from(bytes_max).unwrap_or(i64::MAX);
        let max_age = age_max.unwrap_or_default().min(AGE_MAX);
        let duplicate_window = match max_age.is_zero() {
            true => DUPLICATES,
            false => DUPLICATES.min(max_age),
        };
        Config {
            name: name.to_owned(),
            subjects: vec![self.prefix.stored(&self.name)],
            max_messages: messages_max,
            // The nodes keep to the exact limit. A packet is larger than its message.
            max_bytes: messages_max
                .saturating_mul(PACKET_BYTES)
                .saturating_add(bytes_max),
            max_age,
            duplicate_window,
            storage: StorageType::File,
            num_replicas: self.replicas,
            republish: Some(Republish {
                source: self.prefix.stored(&self.name),
                destination: self.prefix.followed(&self.name),
                headers_only: false,
            }),
            first_sequence,
            ..Config::default()
        }
    }
}

/// The first sequence of a stream that is made now. It is above the known used sequences, so the clocks of nodes need
/// not agree. If none is known, it is above all sequences of a lost stream that this clock made, unless that stream had
/// more than a million messages each second. A number of a browser has room for it.
fn first_sequence(used: u64) -> u64 {
    #[expect(clippy::disallowed_methods, reason = "no interval is measured")]
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since = since.unwrap_or_default().as_millis();
    ((since as u64) << 10).max(used.saturating_add(UNSEEN))
}

/// The epoch of a stream: when it was made. It fits 63 bits until the year 2262.
fn epoch_of(info: &Info) -> u64 {
    info.created.unix_timestamp_nanos() as u64
}

/// The sequence of a packet that JetStream publishes again.
pub(crate) fn offset_of(message: &Message) -> Option<u64> {
    let headers = message.headers.as_ref()?;
    headers.get("Nats-Sequence")?.as_str().parse().ok()
}

pub(crate) fn headers_of(id: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", id);
    headers
}

/// Bytes of one request, for packets of the mean size. NATS cuts off a client that has 64 MiB to take.
const BATCH_BYTES: u64 = 512 << 10;

/// Packets of one request. A subscription has room for all of them.
const BATCH_MAX: usize = SUBSCRIPTION_PACKETS_MAX;

/// Packets that wait in one subscription. The client of NATS drops and reports further packets.
pub(crate) const SUBSCRIPTION_PACKETS_MAX: usize = 4_096;

/// The longest time for a reader to get its turn, and for NATS to give the next packet.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The longest time for NATS to answer a request. Readers without an answer end before the next readers give up.
pub(crate) const REQUEST_MAX: Duration = Duration::from_secs(4);

/// The longest time before a node replaces a stream that has lost its end.
const REPLACE_MAX: Duration = Duration::from_millis(300);

const SILENT: &str = "NATS does not answer";

const TOO_MANY: &str = "the node reads too many histories now";

/// Messages that a stream may receive between its check and its end.
const UNSEEN: u64 = 1 << 20;

/// The time for which JetStream knows the ids of packets.
const DUPLICATES: Duration = Duration::from_secs(120);

/// The largest age that JetStream has a number for.
const AGE_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// Bytes of a packet in a stream beyond the bytes that a history counts: subject, headers, node and names.
const PACKET_BYTES: i64 = 1_024;
