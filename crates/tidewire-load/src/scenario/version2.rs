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
use super::read::{
    Read, Shortest, check_names, check_receivers, concurrency, conflict, duration_secs, name,
    refuse_unknown, required, steps, tables, think_time,
};
use super::{
    Arrival, BACKPLANE_NAME, CODEC_DEFAULT, DRAIN_MS_DEFAULT, Fault, Guard, Load,
    MAX_IN_FLIGHT_DEFAULT, NODES_MAX, OnLate, OnViolation, PAYLOAD_BYTES_DEFAULT,
    PAYLOAD_BYTES_MAX, Pattern, RATE_MAX, REPEAT_MAX, SLOW_PAUSE_MS_DEFAULT, Scenario, Stage, Step,
    TIMEOUT_MS_DEFAULT, ThinkTime, Trust, WAIT_MS_MAX, WARMUP_SECS_DEFAULT,
};
use crate::format::describe;
use crate::slo::{Objective, Slo};
use crate::toml_file::{Mistake, TomlEntry, TomlTable};

pub(super) fn scenario(root: &TomlTable<'_>, warnings: &mut Vec<Mistake>) -> Read<Scenario> {
    refuse_unknown(root, keys::ROOT)?;
    let target = target(root)?;
    let expected = "a whole number of servers from 1 to 64";
    let nodes = root.read("nodes", |it| it.whole_in(1..=NODES_MAX.into(), expected))?;
    let defaults = root.read("defaults", |it| it.open_table("a table"))?;
    let (mut repeat, mut seed) = (None, None);
    if let Some(defaults) = &defaults {
        let mut known = [keys::STEPS, keys::DEFAULTS].concat();
        known.retain(|key| *key != "name");
        refuse_unknown(defaults, &known)?;
        let expected = "a whole number of runs from 1 to 1000";
        repeat = defaults.read("repeat", |it| it.whole_in(1..=REPEAT_MAX.into(), expected))?;
        let expected = "a whole number from 0 to 18446744073709551615";
        seed = defaults.read("seed", |it| it.whole_in(0..=u64::MAX, expected))?;
    }
    let tables = steps(root)?;
    let mut steps: Vec<Step> = Vec::with_capacity(tables.len());
    for own in &tables {
        refuse_unknown(own, keys::STEPS)?;
        let defaults = defaults.as_ref();
        let step = StepKeys { own, defaults }.step()?;
        if let Some(first) = steps.first().filter(|first| first.codec != step.codec) {
            let expected = "the codec of the first step, because all steps talk to one server";
            let found = format!("it is {:?} and that is {:?}", step.codec, first.codec);
            return Err(conflict(own, "codec", expected, &found));
        }
        if step.pattern == Pattern::Chat {
            check_receivers(own, step.concurrency, warnings);
        }
        steps.push(step);
    }
    check_names(&tables, &steps, warnings);
    Ok(Scenario {
        version: 2,
        target: Some(target),
        nodes: nodes.unwrap_or(1) as u32,
        backplane: backplane(root)?,
        history: history(root, &steps)?,
        trust: trust(root)?,
        steps,
        repeat: repeat.unwrap_or(1) as u32,
        seed,
        guard: guard(root)?,
    })
}

fn target(root: &TomlTable<'_>) -> Read<String> {
    let expected =
        "an address: tcp://, tls://, ws://, wss:// or udp:// with HOST:PORT, or ipc:// with a path";
    let entry = required(root, "target", expected)?;
    let text = entry.text_if(|text| !text.is_empty(), expected)?;
    if let Err(error) = text.parse::<Address>() {
        let found = format!("it is {text:?}: {}", describe(&error));
        return Err(conflict(root, "target", expected, &found));
    }
    Ok(text.to_owned())
}

fn backplane(root: &TomlTable<'_>) -> Read<Option<String>> {
    let expected =
        "\"nats\" to start a server of NATS, or its address such as \"nats://127.0.0.1:4222\"";
    let is_allowed = |text: &str| text == BACKPLANE_NAME || text.contains("://");
    root.read("backplane", |it| {
        Ok(it.text_if(is_allowed, expected)?.to_owned())
    })
}

fn trust(root: &TomlTable<'_>) -> Read<Trust> {
    let optional = |key: &str, expected: &str| {
        root.read(key, |it| {
            let text = it.text_if(|text| !text.is_empty(), expected)?;
            Ok(text.to_owned())
        })
    };
    let pem = "the path of a file in PEM";
    let trust = Trust {
        ca: optional("ca", pem)?,
        cert: optional("cert", pem)?,
        key: optional("key", pem)?,
        server_name: optional("server_name", "a host name or an IP address")?,
        token_file: optional("token_file", "the path of a file with tokens")?,
    };
    for (key, other) in [("cert", "key"), ("key", "cert")] {
        if root.get(key).is_some() {
            let expected = format!("the path of a file in PEM, beside `{key}`");
            required(root, other, &expected)?;
        }
    }
    Ok(trust)
}

fn guard(root: &TomlTable<'_>) -> Read<Guard> {
    let mut guard = Guard::default();
    let Some(entry) = root.get("guard") else {
        return Ok(guard);
    };
    let table = entry.open_table("a table")?;
    refuse_unknown(&table, keys::GUARD)?;
    if let Some(share) = table.get("max_client_cpu_pct") {
        let is_allowed = |share| share > 0.0 && share <= 100.0;
        let expected = "a number of percent above 0 and at most 100";
        guard.max_client_cpu_pct = share.number_if(is_allowed, expected)?;
    }
    if let Some(entry) = table.get("on_violation") {
        let words = [
            ("invalid", OnViolation::Invalid),
            ("warn", OnViolation::Warn),
        ];
        guard.on_violation = word(&entry, &words)?;
    }
    Ok(guard)
}

/// The keys of one step, of which each may also stand in the defaults.
struct StepKeys<'r, 'f> {
    own: &'r TomlTable<'f>,
    defaults: Option<&'r TomlTable<'f>>,
}

impl<'r, 'f> StepKeys<'r, 'f> {
    fn step(&self) -> Read<Step> {
        let patterns = Pattern::ALL.map(|pattern| (pattern.name(), pattern));
        let pattern = self.word_or("pattern", &patterns, Pattern::Chat)?;
        let load = self.load(pattern)?;
        let concurrency = concurrency(self.table_of("concurrency"))?;
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
            name: name(self.own)?,
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
                    think_time(self.table_of(key), Shortest::AboveZero)?
                } else if self.has(key) {
                    think_time(self.table_of(key), Shortest::Zero)?
                } else {
                    ThinkTime::NONE
                };
                Ok(Load::Closed { think_time_ms })
            }
            1 => self.open(),
            _ if pattern.is_fan_out() => {
                let expected = "closed or open with the patterns chat and pubsub";
                let found = "max has no window there: nothing tells a sender that it is too fast";
                Err(conflict(self.table_of("model"), "model", expected, found))
            }
            _ => Ok(Load::Max),
        }
    }

    /// Whether the rate goes through stages. A rate and a duration of the step itself replace the stages of the
    /// defaults.
    fn is_staged(&self) -> bool {
        let has = |key| self.own.get(key).is_some();
        let is_even = has("rate") && has("duration_secs");
        has("stages") || (self.has("stages") && !is_even)
    }

    fn open(&self) -> Read<Load> {
        let arrivals = Arrival::ALL.map(|kind| (kind.name(), kind));
        let lates = OnLate::ALL.map(|kind| (kind.name(), kind));
        let arrival = self.word_or("arrival", &arrivals, Arrival::Constant)?;
        let on_late = self.word_or("on_late", &lates, OnLate::CatchUp)?;
        let expected = "a number of messages a second above 0 and at most 1000000000";
        let rate = || {
            let rate = required(self.table_of("rate"), "rate", expected)?;
            rate.number_if(|rate| rate > 0.0 && rate <= RATE_MAX, expected)
        };
        let stages = if !self.is_staged() {
            let (from, key) = (rate()?, "duration_secs");
            vec![Stage::even(from, duration_secs(self.table_of(key), key)?)]
        } else if self.has("rate") {
            self.stages(rate()?)?
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
        let list = required(self.table_of("stages"), "stages", expected)?;
        let mut stages = Vec::new();
        for stage in tables(&list, usize::MAX, [expected, entry])? {
            refuse_unknown(&stage, keys::STAGE)?;
            let is_rate = |rate| (0.0..=RATE_MAX).contains(&rate);
            let to_expected = "a number of messages a second from 0 to 1000000000";
            let to = required(&stage, "to", to_expected)?.number_if(is_rate, to_expected)?;
            let secs = duration_secs(&stage, "secs")?;
            stages.push(Stage { from, to, secs });
            from = to;
        }
        // No stage at all is refused here, too.
        if stages.iter().all(|stage| stage.from + stage.to <= 0.0) {
            return Err(list.wrong(expected));
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
            _ => duration_secs(self.table_of(key), key),
        }
    }

    fn codec(&self, pattern: Pattern) -> Read<String> {
        let table = self.table_of("codec");
        let Some(entry) = table.get("codec") else {
            return Ok(CODEC_DEFAULT.to_owned());
        };
        let expected = format!("a codec: {}", AnyCodec::NAMES.join(", "));
        let text = entry.text_if(|_| true, &expected)?;
        let codec = AnyCodec::by_name(text).map_err(|error| {
            let found = format!("it is {text:?}: {error}");
            conflict(table, "codec", &expected, &found)
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
        let found = format!("it is {text:?}");
        Err(conflict(table, "codec", expected, &found))
    }

    fn faults(&self, pattern: Pattern, duration_secs: f64) -> Read<Vec<Fault>> {
        let list = self.get("faults").filter(|_| pattern.is_fan_out());
        list.map_or(Ok(Vec::new()), |list| faults(&list, duration_secs))
    }

    fn warmup_secs(&self, duration_secs: f64) -> Read<f64> {
        let Some(entry) = self.get("warmup_secs") else {
            return Ok(WARMUP_SECS_DEFAULT.min(duration_secs / 4.0));
        };
        let is_allowed = |secs| (0.0..duration_secs).contains(&secs);
        let expected =
            format!("a number of seconds from 0 to below the duration of {duration_secs}");
        entry.number_if(is_allowed, &expected)
    }

    fn slo(&self) -> Read<Slo> {
        let mut slo = Slo::default();
        for table in self.defaults.into_iter().chain([self.own]) {
            let Some(entry) = table.get("slo") else {
                continue;
            };
            let table = entry.open_table("a table")?;
            refuse_unknown(&table, keys::SLO)?;
            for objective in Objective::ALL {
                if let Some(limit) = table.get(objective.key()) {
                    let is_allowed = |limit| objective.allows(limit);
                    let limit = limit.number_if(is_allowed, objective.expected())?;
                    *slo.field(objective) = Some(limit);
                }
            }
        }
        Ok(slo)
    }

    fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The key of the step, else that of the defaults.
    fn get(&self, key: &str) -> Option<TomlEntry<'f>> {
        self.table_of(key).get(key)
    }

    /// The table that has a key: the step, else the defaults. A missing key is missed in the step.
    fn table_of(&self, key: &str) -> &'r TomlTable<'f> {
        match self.defaults {
            Some(defaults) if self.own.get(key).is_none() && defaults.get(key).is_some() => {
                defaults
            }
            _ => self.own,
        }
    }

    /// Refuses a key of the step itself that means nothing there.
    fn applies(&self, key: &str, applies: bool, to: &str) -> Read<()> {
        if applies || self.own.get(key).is_none() {
            return Ok(());
        }
        let found = format!("it means something only with {to}");
        Err(conflict(self.own, key, "left out here", &found))
    }

    fn word_or<T: Copy>(&self, key: &str, words: &[(&str, T)], default: T) -> Read<T> {
        self.get(key)
            .map_or(Ok(default), |entry| word(&entry, words))
    }

    fn whole_or(&self, key: &str, range: RangeInclusive<u64>, default: u64) -> Read<u64> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        self.get(key)
            .map_or(Ok(default), |entry| entry.whole_in(range, &expected))
    }
}

fn word<T: Copy>(entry: &TomlEntry<'_>, words: &[(&str, T)]) -> Read<T> {
    let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
    let expected = format!("one of {}", names.join(", "));
    let found = entry.text_if(|_| true, &expected)?;
    let meaning = words.iter().find(|(name, _)| *name == found);
    let meaning = meaning.map(|(_, meaning)| *meaning);
    meaning.ok_or_else(|| entry.wrong(&expected))
}
