//! One step: its target, its rate, and the limits that it has to keep.

use std::time::Duration;

use tidewire::History;

use super::Fault;
use crate::slo::Slo;

/// One stage of a load test.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Name shown in reports.
    pub name: String,
    /// Agents connected at the same time.
    pub concurrency: u32,
    /// How long the agents send, in seconds.
    pub duration_secs: f64,
    /// The pattern of each message.
    pub pattern: Pattern,
    /// The codec with its parameters, as `--codec` takes it.
    pub codec: String,
    /// When messages are sent.
    pub load: Load,
    /// Bytes of each message's payload, of which the first 28 are the stamp.
    pub payload_bytes: u32,
    /// Seconds before the steady window; `None` derives them from think time and duration, as version 1 does.
    pub warmup_secs: Option<f64>,
    /// How long nothing may arrive after the last message was sent, before the rest counts as lost, in milliseconds.
    pub drain_ms: u64,
    /// How long a reply is waited for before its place in the window is free again, in milliseconds.
    pub timeout_ms: u64,
    /// Most unanswered messages of all agents together; each agent has an even share.
    pub max_in_flight: u32,
    /// Receivers that read slowly: the last ones of a fan-out, which send nothing.
    pub slow_receivers: u32,
    /// How long each of them pauses between two reads, in milliseconds.
    pub slow_pause_ms: u64,
    /// Faults that are inflicted on the processes of the run, in the order of their times. Agents whose connection ends
    /// then come back.
    pub faults: Vec<Fault>,
    /// Limits the step must keep.
    pub slo: Slo,
}

impl Step {
    /// A chat step of version 1, with everything else as its files mean it.
    pub fn chat(
        name: impl Into<String>,
        concurrency: u32,
        duration_secs: f64,
        think_time_ms: ThinkTime,
    ) -> Self {
        Self {
            name: name.into(),
            concurrency,
            duration_secs,
            pattern: Pattern::Chat,
            codec: CODEC_DEFAULT.to_owned(),
            load: Load::Closed { think_time_ms },
            payload_bytes: PAYLOAD_BYTES_DEFAULT,
            warmup_secs: None,
            drain_ms: DRAIN_MS_DEFAULT,
            timeout_ms: TIMEOUT_MS_DEFAULT,
            max_in_flight: MAX_IN_FLIGHT_DEFAULT,
            slow_receivers: 0,
            slow_pause_ms: SLOW_PAUSE_MS_DEFAULT,
            faults: Vec::new(),
            slo: Slo::default(),
        }
    }

    /// Messages a second that are offered over the whole step if nothing delays the agents. Nothing for steps whose
    /// rate is what they are to find out: `max`, and closed loops that wait for replies.
    pub fn offered_tps(&self) -> Option<f64> {
        match &self.load {
            Load::Closed { .. } if self.pattern.has_replies() => None,
            Load::Closed { think_time_ms } => {
                Some(f64::from(self.senders()) * 1000.0 / think_time_ms.mean_ms())
            }
            Load::Open { stages, .. } => {
                let (mut messages, mut secs, mut from) = (0.0, 0.0, None);
                for stage in stages {
                    messages += f64::midpoint(from.unwrap_or(stage.from), stage.to) * stage.secs;
                    secs += stage.secs;
                    from = Some(stage.to);
                }
                Some(messages / secs)
            }
            Load::Max => None,
        }
    }

    /// The same step at one constant rate, in messages a second; nothing for one that is not open, because no rate can
    /// be given to it.
    pub fn at_rate(&self, rate: f64) -> Option<Self> {
        let Load::Open {
            arrival, on_late, ..
        } = self.load
        else {
            return None;
        };
        Some(Self {
            name: format!("{} at {rate:.0}/s", self.name),
            load: Load::Open {
                stages: vec![Stage::even(rate, self.duration_secs)],
                arrival,
                on_late,
            },
            ..self.clone()
        })
    }

    /// The same step with so many agents.
    pub fn at_concurrency(&self, concurrency: u32) -> Self {
        Self {
            name: format!("{} at {concurrency}", self.name),
            concurrency,
            ..self.clone()
        }
    }

    /// Makes the step no longer than `secs_max`, with all its stages and its warm-up in proportion.
    pub(super) fn shorten(&mut self, secs_max: f64) {
        if self.duration_secs <= secs_max {
            return;
        }
        let share = secs_max / self.duration_secs;
        self.duration_secs = secs_max;
        self.warmup_secs = self.warmup_secs.map(|secs| secs * share);
        for fault in &mut self.faults {
            fault.at_secs *= share;
        }
        if let Load::Open { stages, .. } = &mut self.load {
            for stage in stages {
                stage.secs *= share;
            }
        }
    }

    /// Agents that send.
    pub fn senders(&self) -> u32 {
        self.concurrency - self.slow_receivers.min(self.concurrency)
    }

    /// Unanswered messages that one agent may have.
    pub fn window(&self) -> u32 {
        match self.load {
            Load::Closed { .. } => 1,
            _ => (self.max_in_flight / self.concurrency.max(1)).max(1),
        }
    }

    /// Longest drain after the last message sent, however much still arrives.
    pub fn drain_max(&self) -> Duration {
        DRAIN_MAX.max(Duration::from_millis(self.drain_ms))
    }

    /// How long the agents send, in nanoseconds.
    pub fn duration_ns(&self) -> u64 {
        (self.duration_secs * 1e9).round() as u64
    }
}

worded! {
    /// The use that an agent makes of a message.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Pattern {
        /// Sends it one way; at the end the server is asked how many it has.
        Ingest = "ingest",
        /// Sends it one way and expects it back.
        Echo = "echo",
        /// Sends it as a request and expects it back as the reply.
        Request = "request",
        /// Says it in a room that all agents are in.
        Chat = "chat",
        /// Publishes it to a topic that all agents are subscribed to.
        PubSub = "pubsub",
    }
}

impl Pattern {
    /// Receivers of each message, of so many agents.
    pub fn receivers(self, agents: u64) -> u64 {
        match self {
            Self::Chat => agents.saturating_sub(1),
            Self::PubSub => agents,
            Self::Ingest | Self::Echo | Self::Request => 1,
        }
    }

    /// The name that `tidewire serve --app` has for the server of this pattern.
    pub const fn app(self) -> &'static str {
        match self {
            Self::Ingest => "sink",
            Self::Echo | Self::Request => "echo",
            Self::Chat => "chat",
            Self::PubSub => "pubsub",
        }
    }

    /// Whether each message comes back to its sender.
    pub const fn has_replies(self) -> bool {
        matches!(self, Self::Echo | Self::Request)
    }

    /// Whether each message goes to many receivers.
    pub const fn is_fan_out(self) -> bool {
        matches!(self, Self::Chat | Self::PubSub)
    }
}

/// When messages are sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// Each agent waits before each message: for its think time, and where there are replies first for the last one.
    Closed {
        /// The range of think times.
        think_time_ms: ThinkTime,
    },
    /// At times that are laid down in advance, whatever the server does.
    Open {
        /// How the rate changes; one stage after another.
        stages: Vec<Stage>,
        /// How the messages are spread over time.
        arrival: Arrival,
        /// The policy for messages that cannot be sent when they are due.
        on_late: OnLate,
    },
    /// As fast as the window, or the socket, allows.
    Max,
}

impl Load {
    /// The word in scenarios and reports.
    pub const fn model(&self) -> &'static str {
        match self {
            Self::Closed { .. } => "closed",
            Self::Open { .. } => "open",
            Self::Max => "max",
        }
    }
}

/// A part of an open step in which the rate changes evenly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// Rate at the beginning, in messages a second of all agents together.
    pub from: f64,
    /// Rate at the end.
    pub to: f64,
    /// Length in seconds.
    pub secs: f64,
}

impl Stage {
    pub(super) fn even(rate: f64, secs: f64) -> Self {
        let (from, to) = (rate, rate);
        Self { from, to, secs }
    }
}

worded! {
    /// How the messages of an open step are spread over time.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Arrival {
        /// At even intervals, the agents taking turns.
        Constant = "constant",
        /// At random, as from many independent users.
        Poisson = "poisson",
        /// All agents at the same moment.
        Burst = "burst",
    }
}

worded! {
    /// The policy of an open step for a message that cannot be sent when it is due: its agent's window is full, or the
    /// lane is late.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum OnLate {
        /// It is sent as soon as possible, and its lateness counts from when it was due.
        CatchUp = "catch_up",
        /// It waits until the next message of its agent is due, and is then left out and counted.
        Skip = "skip",
    }
}

/// A uniform range of think times in milliseconds, both ends included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThinkTime {
    /// Shortest, in milliseconds.
    pub min_ms: f64,
    /// Longest, in milliseconds.
    pub max_ms: f64,
}

impl ThinkTime {
    /// No think time at all, for agents that wait for replies.
    pub const NONE: Self = Self {
        min_ms: 0.0,
        max_ms: 0.0,
    };

    /// The middle of the range in milliseconds, which is the mean of a uniform distribution.
    pub fn mean_ms(self) -> f64 {
        f64::midpoint(self.min_ms, self.max_ms)
    }

    /// Shortest, in nanoseconds.
    pub fn min_ns(self) -> u64 {
        (self.min_ms * 1e6).round() as u64
    }

    /// Longest, in nanoseconds.
    pub fn max_ns(self) -> u64 {
        (self.max_ms * 1e6).round() as u64
    }
}

/// When a measurement is not to be believed, and what follows from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guard {
    /// Largest share of its lanes' cores that the instrument may use, in percent.
    pub max_client_cpu_pct: f64,
    /// The consequence of an invalid measurement.
    pub on_violation: OnViolation,
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            max_client_cpu_pct: 80.0,
            on_violation: OnViolation::Invalid,
        }
    }
}

/// The consequence of an invalid measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnViolation {
    /// The run ends with an exit code of its own.
    Invalid,
    /// The verdict says so and the exit code does not.
    Warn,
}

/// The codec unless a scenario names one.
pub const CODEC_DEFAULT: &str = "tw1";

/// Payload unless a scenario says otherwise: the stamp alone, which makes frames of 32 bytes with a header of four.
pub const PAYLOAD_BYTES_DEFAULT: u32 = 28;

/// Warm-up of version 2 unless a scenario says otherwise, in seconds.
pub const WARMUP_SECS_DEFAULT: f64 = 5.0;

/// Drain unless a scenario says otherwise, in milliseconds.
pub const DRAIN_MS_DEFAULT: u64 = 2_000;

/// Longest drain while messages still arrive, unless the step allows more silence.
const DRAIN_MAX: Duration = Duration::from_secs(60);

/// How long a reply is waited for unless a scenario says otherwise, in milliseconds.
pub const TIMEOUT_MS_DEFAULT: u64 = 5_000;

/// Unanswered messages of a step unless a scenario says otherwise.
pub const MAX_IN_FLIGHT_DEFAULT: u32 = 4_096;

/// Pause of a slow receiver unless a scenario says otherwise, in milliseconds.
pub const SLOW_PAUSE_MS_DEFAULT: u64 = 100;

/// Seed of a run unless a scenario or a flag says otherwise.
pub const SEED_DEFAULT: u64 = 42;

/// The limits of a history in the words of `tidewire serve --history`.
pub fn history_limits(history: &History) -> String {
    let mut text = format!(
        "messages={},bytes={}",
        history.messages_max, history.bytes_max
    );
    if let Some(age) = history.age_max {
        text += &format!(",age={}", age.as_secs());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(stages: &[Stage]) -> Step {
        Step {
            load: Load::Open {
                stages: stages.to_vec(),
                arrival: Arrival::Constant,
                on_late: OnLate::CatchUp,
            },
            ..Step::chat("open", 64, 10.0, ThinkTime::NONE)
        }
    }

    #[test]
    fn the_offered_rate_is_the_mean_over_the_stages() {
        let stage = |from, to, secs| Stage { from, to, secs };
        assert_eq!(
            open(&[stage(100.0, 100.0, 10.0)]).offered_tps(),
            Some(100.0)
        );
        let ramp = open(&[stage(0.0, 100.0, 4.0), stage(100.0, 100.0, 6.0)]);
        assert_eq!(ramp.offered_tps(), Some(80.0));
    }

    #[test]
    fn a_step_is_moved_to_another_rate_or_concurrency_and_stays_the_same_otherwise() {
        let stage = |from, to, secs| Stage { from, to, secs };
        let ramp = open(&[stage(0.0, 100.0, 4.0), stage(100.0, 100.0, 6.0)]);
        let moved = ramp.at_rate(250.0).unwrap();
        assert_eq!(moved.offered_tps(), Some(250.0));
        assert_eq!(
            (moved.duration_secs, moved.name.as_str()),
            (10.0, "open at 250/s")
        );
        assert_eq!(ramp.at_concurrency(9).concurrency, 9);
        assert_eq!(ramp.at_concurrency(9).load, ramp.load);
        assert_eq!(Step::chat("c", 2, 1.0, ThinkTime::NONE).at_rate(1.0), None);
    }

    #[test]
    fn a_loop_that_waits_for_replies_offers_what_it_finds() {
        let chat = Step::chat(
            "c",
            4,
            1.0,
            ThinkTime {
                min_ms: 5.0,
                max_ms: 15.0,
            },
        );
        assert_eq!(chat.offered_tps(), Some(400.0));
        let request = Step {
            pattern: Pattern::Request,
            ..chat
        };
        assert_eq!(request.offered_tps(), None);
        assert_eq!(request.window(), 1);
        let open = open(&[Stage {
            from: 1.0,
            to: 1.0,
            secs: 1.0,
        }]);
        assert_eq!(open.window(), 64);
    }
}
