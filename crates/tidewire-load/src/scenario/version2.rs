//! Scenarios of version 2: every pattern and model, defaults, and unknown keys are errors.
//!
//! A key that means nothing in its step, such as a rate in a closed loop, is an error where the step itself has it,
//! because whoever wrote it expects it to do something. In `[defaults]` it is for those steps that it means something
//! to.

use std::ops::RangeInclusive;

use tidewire::AnyCodec;
use tidewire::address::Address;

use super::cluster::{faults, history};
use super::keys;
use super::read::{Read, TableContext, check_names};
use super::version1::{Shortest, concurrency, duration_secs, think_time};
use super::{
    Arrival, BACKPLANE_NAME, CODEC_DEFAULT, DRAIN_MS_DEFAULT, Fault, Guard, Load,
    MAX_IN_FLIGHT_DEFAULT, NODES_MAX, OnLate, OnViolation, PAYLOAD_BYTES_DEFAULT,
    PAYLOAD_BYTES_MAX, Pattern, RATE_MAX, REPEAT_MAX, SLOW_PAUSE_MS_DEFAULT, Scenario, Stage, Step,
    TIMEOUT_MS_DEFAULT, ThinkTime, Trust, WAIT_MS_MAX, WARMUP_SECS_DEFAULT,
};
use crate::format::describe;
use crate::slo::{Objective, Slo};

pub(super) fn scenario(root: &TableContext<'_, '_>) -> Read<Scenario> {
    root.refuse_unknown(keys::ROOT)?;
    let target = target(root)?;
    let mut nodes = 1;
    if root.has("nodes") {
        let expected = "a whole number of servers from 1 to 64";
        nodes = root.integer("nodes", 1..=u64::from(NODES_MAX), expected)? as u32;
    }
    let defaults = root.table("defaults")?;
    let (mut repeat, mut seed) = (1, None);
    if let Some(defaults) = &defaults {
        let mut known = [keys::STEPS, keys::DEFAULTS].concat();
        known.retain(|key| *key != "name");
        defaults.refuse_unknown(&known)?;
        if defaults.has("repeat") {
            let expected = "a whole number of runs from 1 to 1000";
            repeat = defaults.integer("repeat", 1..=u64::from(REPEAT_MAX), expected)? as u32;
        }
        if defaults.has("seed") {
            let expected = "a whole number from 0 to 18446744073709551615";
            seed = Some(defaults.integer("seed", 0..=u64::MAX, expected)?);
        }
    }
    let contexts = root.steps()?;
    let mut steps: Vec<Step> = Vec::with_capacity(contexts.len());
    for own in &contexts {
        own.refuse_unknown(keys::STEPS)?;
        let defaults = defaults.as_ref();
        let step = StepKeys { own, defaults }.step()?;
        if let Some(first) = steps.first().filter(|first| first.codec != step.codec) {
            let expected = "the codec of the first step, because all steps talk to one server";
            let found = format!("it is {:?} and that is {:?}", step.codec, first.codec);
            return Err(own.conflict("codec", expected, found));
        }
        if step.pattern == Pattern::Chat {
            own.check_receivers(step.concurrency);
        }
        steps.push(step);
    }
    let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
    check_names(&contexts, &names);
    Ok(Scenario {
        version: 2,
        target: Some(target),
        nodes,
        backplane: backplane(root)?,
        history: history(root, &steps)?,
        trust: trust(root)?,
        steps,
        repeat,
        seed,
        guard: guard(root)?,
    })
}

fn target(root: &TableContext<'_, '_>) -> Read<String> {
    let expected =
        "an address: tcp://, tls://, ws://, wss:// or udp:// with HOST:PORT, or ipc:// with a path";
    let (text, value) = root.text("target", expected)?;
    if text.is_empty() {
        return Err(root.invalid("target", value, expected));
    }
    if let Err(error) = text.parse::<Address>() {
        let found = format!("it is {text:?}: {}", describe(&error));
        return Err(root.conflict("target", expected, found));
    }
    Ok(text.to_owned())
}

fn backplane(root: &TableContext<'_, '_>) -> Read<Option<String>> {
    if !root.has("backplane") {
        return Ok(None);
    }
    let expected =
        "\"nats\" to start a server of NATS, or its address such as \"nats://127.0.0.1:4222\"";
    let (text, value) = root.text("backplane", expected)?;
    if text != BACKPLANE_NAME && !text.contains("://") {
        return Err(root.invalid("backplane", value, expected));
    }
    Ok(Some(text.to_owned()))
}

fn trust(root: &TableContext<'_, '_>) -> Read<Trust> {
    let optional = |key: &'static str, expected: &str| {
        if !root.has(key) {
            return Ok(None);
        }
        match root.text(key, expected)? {
            ("", value) => Err(root.invalid(key, value, expected)),
            (text, _) => Ok(Some(text.to_owned())),
        }
    };
    let pem = "the path of a file in PEM";
    let trust = Trust {
        ca: optional("ca", pem)?,
        cert: optional("cert", pem)?,
        key: optional("key", pem)?,
        server_name: optional("server_name", "a host name or an IP address")?,
        token_file: optional("token_file", "the path of a file with tokens")?,
    };
    for (key, other, has) in [
        ("cert", "key", trust.cert.is_some()),
        ("key", "cert", trust.key.is_some()),
    ] {
        if has && !root.has(other) {
            let expected = format!("the path of a file in PEM, beside `{key}`");
            root.value(other, &expected)?;
        }
    }
    Ok(trust)
}

fn guard(root: &TableContext<'_, '_>) -> Read<Guard> {
    let mut guard = Guard::default();
    let Some(context) = root.table("guard")? else {
        return Ok(guard);
    };
    context.refuse_unknown(keys::GUARD)?;
    let key = "max_client_cpu_pct";
    if context.has(key) {
        let is_allowed = |share| share > 0.0 && share <= 100.0;
        let expected = "a number of percent above 0 and at most 100";
        guard.max_client_cpu_pct = context.number(key, is_allowed, expected)?;
    }
    if context.has("on_violation") {
        let words = [
            ("invalid", OnViolation::Invalid),
            ("warn", OnViolation::Warn),
        ];
        guard.on_violation = word(&context, "on_violation", &words)?;
    }
    Ok(guard)
}

/// The keys of one step, of which each may also stand in the defaults.
struct StepKeys<'r, 'p, 'i> {
    own: &'r TableContext<'p, 'i>,
    defaults: Option<&'r TableContext<'p, 'i>>,
}

impl<'r, 'p, 'i> StepKeys<'r, 'p, 'i> {
    fn step(&self) -> Read<Step> {
        let patterns = Pattern::ALL.map(|pattern| (pattern.name(), pattern));
        let pattern = self.word_or("pattern", &patterns, Pattern::Chat)?;
        let load = self.load(pattern)?;
        let concurrency = concurrency(self.context_of("concurrency"))?;
        let duration_secs = self.duration_secs(&load)?;
        let has_window = pattern.has_replies() && !matches!(load, Load::Closed { .. });
        self.applies(
            "max_in_flight",
            has_window,
            "patterns with replies and the models open and max",
        )?;
        self.applies("timeout_ms", pattern.has_replies(), "patterns with replies")?;
        for key in ["slow_receivers", "slow_pause_ms", "faults"] {
            self.applies(key, pattern.is_fan_out(), "the patterns chat and pubsub")?;
        }
        let least = PAYLOAD_BYTES_DEFAULT.into();
        let payload_bytes = self.whole_or("payload_bytes", least..=PAYLOAD_BYTES_MAX, least)?;
        let mut max_in_flight = u64::from(MAX_IN_FLIGHT_DEFAULT.max(concurrency));
        if has_window {
            let range = concurrency.into()..=u32::MAX.into();
            max_in_flight = self.whole_or("max_in_flight", range, max_in_flight)?;
        }
        let mut slow_receivers = 0;
        if pattern.is_fan_out() {
            slow_receivers = self.whole_or("slow_receivers", 0..=u64::from(concurrency) - 1, 0)?;
        }
        Ok(Step {
            name: self.own.name()?,
            concurrency,
            duration_secs,
            pattern,
            codec: self.codec(pattern)?,
            load,
            payload_bytes: payload_bytes as u32,
            warmup_secs: Some(self.warmup_secs(duration_secs)?),
            drain_ms: self.whole_or("drain_ms", 1..=WAIT_MS_MAX, DRAIN_MS_DEFAULT)?,
            timeout_ms: self.whole_or("timeout_ms", 1..=WAIT_MS_MAX, TIMEOUT_MS_DEFAULT)?,
            max_in_flight: max_in_flight as u32,
            slow_receivers: slow_receivers as u32,
            slow_pause_ms: self.whole_or("slow_pause_ms", 1..=60_000, SLOW_PAUSE_MS_DEFAULT)?,
            faults: self.faults(pattern, duration_secs)?,
            slo: self.slo()?,
        })
    }

    fn load(&self, pattern: Pattern) -> Read<Load> {
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
                    think_time(self.context_of(key), Shortest::AboveZero)?
                } else if self.has(key) {
                    think_time(self.context_of(key), Shortest::Zero)?
                } else {
                    ThinkTime::NONE
                };
                Ok(Load::Closed { think_time_ms })
            }
            1 => self.open(),
            _ if pattern.is_fan_out() => {
                let expected = "closed or open with the patterns chat and pubsub";
                let found = "max has no window there: nothing tells a sender that it is too fast";
                let context = self.context_of("model");
                Err(context.conflict("model", expected, found.to_owned()))
            }
            _ => Ok(Load::Max),
        }
    }

    /// Whether the rate goes through stages. A rate and a duration of the step itself replace the stages of the
    /// defaults.
    fn is_staged(&self) -> bool {
        let is_even = self.own.has("rate") && self.own.has("duration_secs");
        self.own.has("stages") || (self.has("stages") && !is_even)
    }

    fn open(&self) -> Read<Load> {
        let arrivals = Arrival::ALL.map(|kind| (kind.name(), kind));
        let lates = OnLate::ALL.map(|kind| (kind.name(), kind));
        let arrival = self.word_or("arrival", &arrivals, Arrival::Constant)?;
        let on_late = self.word_or("on_late", &lates, OnLate::CatchUp)?;
        let rate = |context: &TableContext<'_, '_>| {
            let expected = "a number of messages a second above 0 and at most 1000000000";
            context.number("rate", |rate| rate > 0.0 && rate <= RATE_MAX, expected)
        };
        let stages = if !self.is_staged() {
            let from = rate(self.context_of("rate"))?;
            let secs = duration_secs(self.context_of("duration_secs"), "duration_secs")?;
            vec![Stage::even(from, secs)]
        } else if self.has("rate") {
            self.stages(rate(self.context_of("rate"))?)?
        } else {
            self.stages(0.0)?
        };
        Ok(Load::Open {
            stages,
            arrival,
            on_late,
        })
    }

    fn stages(&self, mut from: f64) -> Read<Vec<Stage>> {
        let expected =
            "a list of stages such as [{ to = 50000, secs = 30 }], of which one has a rate above 0";
        let entry = "a table such as { to = 50000, secs = 30 }";
        let context = self.context_of("stages");
        let mut stages = Vec::new();
        for stage in context.tables("stages", 1..=usize::MAX, [expected, entry])? {
            stage.refuse_unknown(keys::STAGE)?;
            let is_rate = |rate| (0.0..=RATE_MAX).contains(&rate);
            let to_expected = "a number of messages a second from 0 to 1000000000";
            let to = stage.number("to", is_rate, to_expected)?;
            let secs = duration_secs(&stage, "secs")?;
            stages.push(Stage { from, to, secs });
            from = to;
        }
        if stages.iter().all(|stage| stage.from + stage.to <= 0.0) {
            let value = context.value("stages", expected)?;
            return Err(context.invalid("stages", value, expected));
        }
        Ok(stages)
    }

    fn duration_secs(&self, load: &Load) -> Read<f64> {
        let key = "duration_secs";
        match load {
            Load::Open { stages, .. } if self.is_staged() => {
                let to = "steps without stages, whose lengths add up to it";
                self.applies(key, false, to)?;
                Ok(stages.iter().map(|stage| stage.secs).sum())
            }
            _ => duration_secs(self.context_of(key), key),
        }
    }

    fn codec(&self, pattern: Pattern) -> Read<String> {
        if !self.has("codec") {
            return Ok(CODEC_DEFAULT.to_owned());
        }
        let context = self.context_of("codec");
        let expected = format!("a codec: {}", AnyCodec::NAMES.join(", "));
        let value = context.value("codec", &expected)?;
        let Some(text) = value.get_ref().as_str() else {
            return Err(context.invalid("codec", value, &expected));
        };
        let codec = AnyCodec::by_name(text).map_err(|error| {
            let found = format!("it is {text:?}: {error}");
            context.conflict("codec", &expected, found)
        })?;
        let name = codec.name();
        let (fits, expected) = match pattern {
            Pattern::Chat | Pattern::PubSub => (
                matches!(name, "tw1" | "json"),
                "tw1 or json with the patterns chat and pubsub, which other codecs cannot express",
            ),
            Pattern::Ingest => (
                matches!(name, "tw1" | "json" | "srmp" | "srmp-rpc"),
                "tw1, json, srmp or srmp-rpc with the pattern ingest: others have no one-way messages, or no ids by which \
                 the server could be asked for its count",
            ),
            Pattern::Echo => (
                matches!(name, "tw1" | "json" | "length-field"),
                "a codec that keeps the bounds of binary one-way messages: tw1, json or length-field",
            ),
            Pattern::Request => (
                !matches!(name, "lines" | "raw" | "delimited"),
                "a codec that keeps the bounds of binary messages: tw1, json, srmp, srmp-rpc, length-field or uvrpc",
            ),
        };
        if fits {
            return Ok(text.to_owned());
        }
        Err(context.conflict("codec", expected, format!("it is {text:?}")))
    }

    fn faults(&self, pattern: Pattern, duration_secs: f64) -> Read<Vec<Fault>> {
        if pattern.is_fan_out() && self.has("faults") {
            return faults(self.context_of("faults"), duration_secs);
        }
        Ok(Vec::new())
    }

    fn warmup_secs(&self, duration_secs: f64) -> Read<f64> {
        let key = "warmup_secs";
        if !self.has(key) {
            return Ok(WARMUP_SECS_DEFAULT.min(duration_secs / 4.0));
        }
        let is_allowed = |secs| (0.0..duration_secs).contains(&secs);
        let expected =
            format!("a number of seconds from 0 to below the duration of {duration_secs}");
        self.context_of(key).number(key, is_allowed, &expected)
    }

    fn slo(&self) -> Read<Slo> {
        let mut slo = Slo::default();
        let defaults = self.defaults.map(|defaults| defaults.table("slo"));
        let own = self.own.table("slo")?;
        for context in [defaults.transpose()?.flatten(), own].into_iter().flatten() {
            context.refuse_unknown(keys::SLO)?;
            for objective in Objective::ALL {
                let key = objective.key();
                if context.has(key) {
                    let is_allowed = |limit| objective.allows(limit);
                    let limit = context.number(key, is_allowed, objective.expected())?;
                    *slo.field(objective) = Some(limit);
                }
            }
        }
        Ok(slo)
    }

    fn has(&self, key: &str) -> bool {
        self.own.has(key) || self.defaults.is_some_and(|defaults| defaults.has(key))
    }

    /// Where a key stands: in the step, else in the defaults; a missing one is missed in the step.
    fn context_of(&self, key: &str) -> &'r TableContext<'p, 'i> {
        match self.defaults {
            Some(defaults) if !self.own.has(key) && defaults.has(key) => defaults,
            _ => self.own,
        }
    }

    /// Refuses a key of the step itself that means nothing there.
    fn applies(&self, key: &str, applies: bool, to: &str) -> Read<()> {
        if applies || !self.own.has(key) {
            return Ok(());
        }
        let found = format!("it means something only with {to}");
        Err(self.own.conflict(key, "left out here", found))
    }

    fn word_or<T: Copy>(&self, key: &str, words: &[(&str, T)], default: T) -> Read<T> {
        if !self.has(key) {
            return Ok(default);
        }
        word(self.context_of(key), key, words)
    }

    fn whole_or(&self, key: &str, range: RangeInclusive<u64>, default: u64) -> Read<u64> {
        if !self.has(key) {
            return Ok(default);
        }
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        self.context_of(key).integer(key, range, &expected)
    }
}

fn word<T: Copy>(context: &TableContext<'_, '_>, key: &str, words: &[(&str, T)]) -> Read<T> {
    let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
    let expected = format!("one of {}", names.join(", "));
    let (found, value) = context.text(key, &expected)?;
    let meaning = words.iter().find(|(name, _)| *name == found);
    meaning
        .map(|(_, meaning)| *meaning)
        .ok_or_else(|| context.invalid(key, value, &expected))
}
