//! Scenarios of version 2: every pattern and model, defaults, and unknown keys are errors.
//!
//! A key that means nothing in its step, such as a rate in a closed loop, is an error where the step itself has it,
//! because whoever wrote it expects it to do something. In `[defaults]` it is for those steps that it means something
//! to.

use tidewire::{Address, AnyCodec};
use tidewire_proto::codec::Codec;

use super::keys::{self, Table};
use super::read::{Place, Reader, Value};
use super::version1::{Shortest, concurrency, duration_secs, think_time};
use super::{
    Arrival, CODEC_DEFAULT, DRAIN_MS_DEFAULT, DURATION_SECS_MAX, Guard, Load,
    MAX_IN_FLIGHT_DEFAULT, OnLate, OnViolation, PAYLOAD_BYTES_DEFAULT, PAYLOAD_BYTES_MAX, Pattern,
    RATE_MAX, REPEAT_MAX, SLOW_PAUSE_MS_DEFAULT, Scenario, ScenarioError, Stage, Step,
    TIMEOUT_MS_DEFAULT, ThinkTime, WAIT_MS_MAX, WARMUP_SECS_DEFAULT,
};
use crate::slo::Slo;

pub(super) fn scenario(
    reader: &mut Reader<'_>,
    root: &Place<'_, '_>,
) -> Result<Scenario, ScenarioError> {
    reader.refuse_unknown(root, &keys::names(&[Table::Root]))?;
    let target = target(reader, root)?;
    let defaults = reader.table(root, "defaults")?;
    if let Some(defaults) = &defaults {
        let mut known = keys::names(&[Table::Steps, Table::Defaults]);
        known.retain(|key| *key != "name");
        reader.refuse_unknown(defaults, &known)?;
    }
    let (repeat, seed) = run_wide(reader, defaults.as_ref())?;
    let places = reader.steps(root)?;
    let mut steps: Vec<Step> = Vec::with_capacity(places.len());
    for place in &places {
        reader.refuse_unknown(place, &keys::names(&[Table::Steps]))?;
        let step = StepReader {
            reader,
            own: place,
            defaults: defaults.as_ref(),
        }
        .step()?;
        if let Some(first) = steps.first().filter(|first| first.codec != step.codec) {
            let expected = "the codec of the first step, because all steps talk to one server";
            let found = format!("it is {:?} and that is {:?}", step.codec, first.codec);
            return Err(reader.conflict(place, "codec", expected, found));
        }
        if step.pattern == Pattern::Chat {
            reader.check_receivers(place, step.concurrency);
        }
        steps.push(step);
    }
    let names: Vec<String> = steps.iter().map(|step| step.name.clone()).collect();
    reader.check_names(&places, &names);
    Ok(Scenario {
        version: 2,
        target: Some(target),
        steps,
        repeat,
        seed,
        guard: guard(reader, root)?,
    })
}

fn target(reader: &Reader<'_>, root: &Place<'_, '_>) -> Result<String, ScenarioError> {
    let expected = "an address such as \"tcp://127.0.0.1:8080\" or \"ipc:///tmp/tidewire.sock\"";
    let value = reader.value(root, "target", expected)?;
    let text = value.get_ref().as_str().unwrap_or_default();
    if text.parse::<Address>().is_err() {
        return Err(reader.invalid(root, "target", value, expected));
    }
    Ok(text.to_owned())
}

fn run_wide(
    reader: &Reader<'_>,
    defaults: Option<&Place<'_, '_>>,
) -> Result<(u32, Option<u64>), ScenarioError> {
    let Some(place) = defaults else {
        return Ok((1, None));
    };
    let mut repeat = 1;
    if place.has("repeat") {
        let expected = "a whole number of runs from 1 to 1000";
        repeat = reader.integer(place, "repeat", 1, u64::from(REPEAT_MAX), expected)? as u32;
    }
    let mut seed = None;
    if place.has("seed") {
        let expected = "a whole number from 0 to 18446744073709551615";
        seed = Some(reader.integer(place, "seed", 0, u64::MAX, expected)?);
    }
    Ok((repeat, seed))
}

fn guard(reader: &Reader<'_>, root: &Place<'_, '_>) -> Result<Guard, ScenarioError> {
    let mut guard = Guard::default();
    let Some(place) = reader.table(root, "guard")? else {
        return Ok(guard);
    };
    reader.refuse_unknown(&place, &keys::names(&[Table::Guard]))?;
    let key = "max_client_cpu_pct";
    if place.has(key) {
        let is_allowed = |share| share > 0.0 && share <= 100.0;
        let expected = "a number of percent above 0 and at most 100";
        guard.max_client_cpu_pct = reader.number_in(&place, key, is_allowed, expected)?;
    }
    if place.has("on_violation") {
        let words = [
            ("invalid", OnViolation::Invalid),
            ("warn", OnViolation::Warn),
        ];
        guard.on_violation = word(reader, &place, "on_violation", &words)?;
    }
    Ok(guard)
}

/// Reads one step, of which each key may also stand in the defaults.
struct StepReader<'r, 't, 'p, 'i> {
    reader: &'r Reader<'t>,
    own: &'r Place<'p, 'i>,
    defaults: Option<&'r Place<'p, 'i>>,
}

impl<'r, 'p, 'i> StepReader<'r, '_, 'p, 'i> {
    fn step(&self) -> Result<Step, ScenarioError> {
        let reader = self.reader;
        let patterns = Pattern::ALL.map(|pattern| (pattern.name(), pattern));
        let pattern = self.word_or("pattern", &patterns, Pattern::Chat)?;
        let load = self.load(pattern)?;
        let concurrency = concurrency(reader, self.place("concurrency"))?;
        let duration_secs = self.duration_secs(&load)?;
        let closed = matches!(load, Load::Closed { .. });
        self.applies(
            "max_in_flight",
            pattern.has_replies() && !closed,
            "patterns with replies and the models open and max",
        )?;
        self.applies("timeout_ms", pattern.has_replies(), "patterns with replies")?;
        for key in ["slow_receivers", "slow_pause_ms"] {
            self.applies(key, pattern.is_fan_out(), "the patterns chat and pubsub")?;
        }
        let least = PAYLOAD_BYTES_DEFAULT.into();
        let payload_bytes = self.whole_or("payload_bytes", least, PAYLOAD_BYTES_MAX, least)?;
        let window_default = u64::from(MAX_IN_FLIGHT_DEFAULT.max(concurrency));
        let most = u64::from(u32::MAX);
        let max_in_flight = if pattern.has_replies() && !closed {
            self.whole_or("max_in_flight", concurrency.into(), most, window_default)?
        } else {
            window_default
        };
        let slow_receivers = if pattern.is_fan_out() {
            self.whole_or("slow_receivers", 0, u64::from(concurrency) - 1, 0)?
        } else {
            0
        };
        Ok(Step {
            name: reader.name(self.own)?,
            concurrency,
            duration_secs,
            pattern,
            codec: self.codec(pattern)?,
            load,
            payload_bytes: payload_bytes as u32,
            warmup_secs: Some(self.warmup_secs(duration_secs)?),
            drain_ms: self.whole_or("drain_ms", 1, WAIT_MS_MAX, DRAIN_MS_DEFAULT)?,
            timeout_ms: self.whole_or("timeout_ms", 1, WAIT_MS_MAX, TIMEOUT_MS_DEFAULT)?,
            max_in_flight: max_in_flight as u32,
            slow_receivers: slow_receivers as u32,
            slow_pause_ms: self.whole_or("slow_pause_ms", 1, 60_000, SLOW_PAUSE_MS_DEFAULT)?,
            slo: self.slo()?,
        })
    }

    fn load(&self, pattern: Pattern) -> Result<Load, ScenarioError> {
        let models = [("closed", 0), ("open", 1), ("max", 2)];
        let model = self.word_or("model", &models, 0)?;
        self.applies("think_time_ms", model == 0, "the model closed")?;
        for key in ["rate", "stages", "arrival", "on_late"] {
            self.applies(key, model == 1, "the model open")?;
        }
        match model {
            0 => {
                let key = "think_time_ms";
                let think_time_ms = if !pattern.has_replies() {
                    think_time(self.reader, self.place(key), Shortest::AboveZero)?
                } else if self.has(key) {
                    think_time(self.reader, self.place(key), Shortest::Zero)?
                } else {
                    ThinkTime::NONE
                };
                Ok(Load::Closed { think_time_ms })
            }
            1 => self.open(),
            _ if pattern.is_fan_out() => {
                let expected = "closed or open with the patterns chat and pubsub";
                let found = "max has no window there: nothing tells a sender that it is too fast";
                let place = self.place("model");
                Err(self
                    .reader
                    .conflict(place, "model", expected, found.to_owned()))
            }
            _ => Ok(Load::Max),
        }
    }

    fn open(&self) -> Result<Load, ScenarioError> {
        let arrivals =
            [Arrival::Constant, Arrival::Poisson, Arrival::Burst].map(|kind| (kind.name(), kind));
        let lates = [OnLate::CatchUp, OnLate::Skip].map(|kind| (kind.name(), kind));
        let arrival = self.word_or("arrival", &arrivals, Arrival::Constant)?;
        let on_late = self.word_or("on_late", &lates, OnLate::CatchUp)?;
        let expected = "a number of messages a second above 0 and at most 1000000000";
        let is_rate = |rate| rate > 0.0 && rate <= RATE_MAX;
        // A step's own stages replace a rate of the defaults, and the other way round.
        let staged = self.own.has("stages") || (self.has("stages") && !self.own.has("rate"));
        if !staged {
            let place = self.place("rate");
            let rate = self.reader.number_in(place, "rate", is_rate, expected)?;
            let secs = duration_secs(self.reader, self.place("duration_secs"))?;
            let stages = vec![Stage {
                from: rate,
                to: rate,
                secs,
            }];
            return Ok(Load::Open {
                stages,
                arrival,
                on_late,
            });
        }
        let mut from = 0.0;
        if self.own.has("rate") {
            from = self.reader.number_in(self.own, "rate", is_rate, expected)?;
        }
        let stages = self.stages(from)?;
        Ok(Load::Open {
            stages,
            arrival,
            on_late,
        })
    }

    fn stages(&self, mut from: f64) -> Result<Vec<Stage>, ScenarioError> {
        let expected =
            "a list of stages such as [{ to = 50000, secs = 30 }], of which one has a rate above 0";
        let place = self.place("stages");
        let value = self.reader.value(place, "stages", expected)?;
        let entries = value.get_ref().as_array();
        let entries = entries.filter(|entries| !entries.is_empty());
        let Some(entries) = entries else {
            return Err(self.reader.invalid(place, "stages", value, expected));
        };
        let mut stages = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let stage = self.stage(place, index, entry, from)?;
            from = stage.to;
            stages.push(stage);
        }
        if stages.iter().all(|stage| stage.from + stage.to <= 0.0) {
            return Err(self.reader.invalid(place, "stages", value, expected));
        }
        Ok(stages)
    }

    fn stage(
        &self,
        place: &Place<'_, '_>,
        index: usize,
        entry: &Value<'_>,
        from: f64,
    ) -> Result<Stage, ScenarioError> {
        let Some(table) = entry.get_ref().as_table() else {
            let key = format!("stages[{index}]");
            let expected = "a table such as { to = 50000, secs = 30 }";
            return Err(self.reader.invalid(place, &key, entry, expected));
        };
        let place = Place {
            table,
            prefix: format!("{}stages[{index}].", place.prefix),
            offset: entry.span().start,
        };
        self.reader
            .refuse_unknown(&place, &keys::names(&[Table::Stage]))?;
        let expected = "a number of messages a second from 0 to 1000000000";
        let is_rate = |rate| (0.0..=RATE_MAX).contains(&rate);
        let to = self.reader.number_in(&place, "to", is_rate, expected)?;
        let expected = "a number of seconds above 0 and at most 604800 (a week)";
        let is_length = |secs| secs > 0.0 && secs <= DURATION_SECS_MAX;
        let secs = self.reader.number_in(&place, "secs", is_length, expected)?;
        Ok(Stage { from, to, secs })
    }

    fn duration_secs(&self, load: &Load) -> Result<f64, ScenarioError> {
        let staged = self.own.has("stages") || (self.has("stages") && !self.own.has("rate"));
        if let Load::Open { stages, .. } = load
            && staged
        {
            self.applies(
                "duration_secs",
                false,
                "steps without stages, whose lengths add up to it",
            )?;
            return Ok(stages.iter().map(|stage| stage.secs).sum());
        }
        duration_secs(self.reader, self.place("duration_secs"))
    }

    fn codec(&self, pattern: Pattern) -> Result<String, ScenarioError> {
        if !self.has("codec") {
            return Ok(CODEC_DEFAULT.to_owned());
        }
        let place = self.place("codec");
        let expected = format!("a codec: {}", AnyCodec::NAMES.join(", "));
        let value = self.reader.value(place, "codec", &expected)?;
        let Some(text) = value.get_ref().as_str() else {
            return Err(self.reader.invalid(place, "codec", value, &expected));
        };
        let codec = AnyCodec::by_name(text).map_err(|error| {
            let found = format!("it is {text:?}: {error}");
            self.reader.conflict(place, "codec", &expected, found)
        })?;
        let name = codec.name();
        let (fits, expected) = match pattern {
            Pattern::Chat | Pattern::PubSub => (
                name == "tw1",
                "tw1 with the patterns chat and pubsub, which other codecs cannot express",
            ),
            Pattern::Ingest => (
                matches!(name, "tw1" | "srmp" | "srmp-rpc"),
                "tw1, srmp or srmp-rpc with the pattern ingest: others have no one-way messages, or no ids by which \
                 the server could be asked for its count",
            ),
            Pattern::Echo => (
                matches!(name, "tw1" | "length-field"),
                "a codec that keeps the bounds of binary one-way messages: tw1 or length-field",
            ),
            Pattern::Request => (
                !matches!(name, "lines" | "raw" | "delimited"),
                "a codec that keeps the bounds of binary messages: tw1, srmp, srmp-rpc, length-field or uvrpc",
            ),
        };
        if fits {
            return Ok(text.to_owned());
        }
        let found = format!("it is {text:?}");
        Err(self.reader.conflict(place, "codec", expected, found))
    }

    fn warmup_secs(&self, duration_secs: f64) -> Result<f64, ScenarioError> {
        let key = "warmup_secs";
        if !self.has(key) {
            return Ok(WARMUP_SECS_DEFAULT.min(duration_secs / 4.0));
        }
        let is_allowed = |secs| (0.0..duration_secs).contains(&secs);
        let expected =
            format!("a number of seconds from 0 to below the duration of {duration_secs}");
        self.reader
            .number_in(self.place(key), key, is_allowed, &expected)
    }

    fn slo(&self) -> Result<Slo, ScenarioError> {
        let mut slo = Slo::default();
        let own = self.reader.table(self.own, "slo")?;
        let defaults = match self.defaults {
            Some(defaults) => self.reader.table(defaults, "slo")?,
            None => None,
        };
        for place in [defaults, own].into_iter().flatten() {
            self.reader
                .refuse_unknown(&place, &keys::names(&[Table::Slo]))?;
            let positive = "a number of milliseconds above 0";
            let fields: [(&str, &mut Option<f64>, f64, &str); 6] = [
                ("p50_ms", &mut slo.p50_ms, f64::MAX, positive),
                ("p90_ms", &mut slo.p90_ms, f64::MAX, positive),
                ("p99_ms", &mut slo.p99_ms, f64::MAX, positive),
                ("p999_ms", &mut slo.p999_ms, f64::MAX, positive),
                (
                    "loss_pct",
                    &mut slo.loss_pct,
                    100.0,
                    "a number of percent from 0 to 100",
                ),
                (
                    "delivery_ratio_min",
                    &mut slo.delivery_ratio_min,
                    1.0,
                    "a number from 0 to 1",
                ),
            ];
            for (key, field, most, expected) in fields {
                if place.has(key) {
                    let from_zero = most <= 100.0;
                    let is_allowed =
                        |limit| limit <= most && (limit > 0.0 || (from_zero && limit == 0.0));
                    *field = Some(self.reader.number_in(&place, key, is_allowed, expected)?);
                }
            }
        }
        Ok(slo)
    }

    fn has(&self, key: &str) -> bool {
        self.own.has(key) || self.defaults.is_some_and(|defaults| defaults.has(key))
    }

    /// Where a key stands: in the step, else in the defaults; a missing one is missed in the step.
    fn place(&self, key: &str) -> &'r Place<'p, 'i> {
        match self.defaults {
            Some(defaults) if !self.own.has(key) && defaults.has(key) => defaults,
            _ => self.own,
        }
    }

    /// Refuses a key of the step itself that means nothing there.
    fn applies(&self, key: &str, applies: bool, to: &str) -> Result<(), ScenarioError> {
        if applies || !self.own.has(key) {
            return Ok(());
        }
        let expected = "left out here";
        let found = format!("it means something only with {to}");
        Err(self.reader.conflict(self.own, key, expected, found))
    }

    fn word_or<T: Copy>(
        &self,
        key: &str,
        words: &[(&str, T)],
        default: T,
    ) -> Result<T, ScenarioError> {
        if !self.has(key) {
            return Ok(default);
        }
        word(self.reader, self.place(key), key, words)
    }

    fn whole_or(
        &self,
        key: &str,
        least: u64,
        most: u64,
        default: u64,
    ) -> Result<u64, ScenarioError> {
        if !self.has(key) {
            return Ok(default);
        }
        let expected = format!("a whole number from {least} to {most}");
        self.reader
            .integer(self.place(key), key, least, most, &expected)
    }
}

fn word<T: Copy>(
    reader: &Reader<'_>,
    place: &Place<'_, '_>,
    key: &str,
    words: &[(&str, T)],
) -> Result<T, ScenarioError> {
    let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
    let expected = format!("one of {}", names.join(", "));
    let value = reader.value(place, key, &expected)?;
    let found = value.get_ref().as_str().unwrap_or_default();
    words
        .iter()
        .find(|(name, _)| *name == found)
        .map(|(_, meaning)| *meaning)
        .ok_or_else(|| reader.invalid(place, key, value, &expected))
}
