//! Every key of a scenario of version 2, in one list: what the reader knows, what it suggests, and what
//! `docs/scenario.md` says are then the same.

/// A table of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// The file itself.
    Root,
    /// `[defaults]` and `[[steps]]`.
    Steps,
    /// `[defaults]` only.
    Defaults,
    /// `[steps.slo]` and `[defaults.slo]`.
    Slo,
    /// `[guard]`.
    Guard,
    /// An entry of `stages`.
    Stage,
}

/// A key of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Where it stands.
    pub table: Table,
    /// The key.
    pub name: &'static str,
    /// Its unit or what it may be.
    pub unit: &'static str,
    /// The value without the key.
    pub default: &'static str,
    /// The meaning of the key.
    pub meaning: &'static str,
}

/// The names of the keys that may stand in any of `tables`.
pub(super) fn names(tables: &[Table]) -> Vec<&'static str> {
    KEYS.iter()
        .filter(|key| tables.contains(&key.table))
        .map(|key| key.name)
        .collect()
}

/// Lists keys table by table: name, unit, default, meaning.
macro_rules! keys {
    ($($table:ident { $($name:literal: $unit:literal, $default:literal, $meaning:literal;)* })*) => {
        &[$($(Key {
            table: Table::$table,
            name: $name,
            unit: $unit,
            default: $default,
            meaning: $meaning,
        },)*)*]
    };
}

/// All keys of version 2, in the order of the documentation.
pub const KEYS: &[Key] = keys! {
    Root {
        "version": "2", "required", "the version of the format";
        "target": "address", "required",
            "the server: tcp://HOST:PORT, tls://HOST:PORT, ipc://PATH or udp://HOST:PORT; `--target` names another, `--serve` starts one";
        "ca": "path", "the system's", "certificates of the authorities to trust at a tls:// address; `--ca` overrides it, and so on";
        "cert": "path", "none", "certificate chain of the agents, for a server that asks for one";
        "key": "path", "none", "key of `cert`";
        "server_name": "host name", "the host of the target", "name that the server's certificate must have";
        "token_file": "path", "no tokens", "tokens of the agents, one in a line; agents take them in turn";
        "defaults": "table", "empty", "keys for all steps that do not have them";
        "steps": "1 to 255 tables", "required", "what is done, one after another";
        "guard": "table", "see below", "when a measurement is not to be believed";
    }
    Defaults {
        "repeat": "runs, 1 to 1000", "1",
            "how often the whole scenario is run, each time against a fresh server process if it is our own";
        "seed": "whole number", "42", "seed of every random choice; `--seed` overrides it";
    }
    Steps {
        "name": "text", "required", "name in reports; in `[[steps]]` only";
        "concurrency": "agents, 1 to 1000000", "required", "agents connected at the same time";
        "duration_secs": "seconds, up to 604800", "required, or the sum of `stages`",
            "how long the agents send, warm-up included";
        "pattern": "`ingest`, `echo`, `request`, `chat`, `pubsub`", "`chat`", "what is done with a message";
        "codec": "name with parameters", "`tw1`", "how messages look on the wire; the same in all steps";
        "model": "`closed`, `open`, `max`", "`closed`", "what decides when messages are sent";
        "think_time_ms": "[shortest, longest] milliseconds", "required for `chat`, `pubsub`, `ingest`; else [0, 0]",
            "closed: wait before each message";
        "rate": "messages a second, of all agents", "required, or `stages`",
            "open: the rate, or that at which the first stage begins";
        "stages": "[{ to, secs }, …]", "one of `rate`",
            "open: the rate goes evenly to `to` in `secs`, from that of the stage before";
        "arrival": "`constant`, `poisson`, `burst`", "`constant`", "open: how messages are spread over time";
        "on_late": "`catch_up`, `skip`", "`catch_up`", "open: what happens to a message that cannot be sent when it is due";
        "max_in_flight": "messages, at least one an agent", "4096, or one an agent",
            "open and max, with replies: most unanswered messages of all agents; each has an even share";
        "timeout_ms": "milliseconds, up to 3600000", "5000",
            "with replies: how long one is waited for before its place is free again";
        "payload_bytes": "bytes, 28 to 1000000", "28", "payload of each message, stamp included";
        "warmup_secs": "seconds, below `duration_secs`", "5, at most a quarter of the duration", "before the steady window";
        "drain_ms": "milliseconds, up to 3600000", "2000",
            "how long after the end late messages are still sent, and then how long nothing may arrive before the rest counts as lost";
        "slow_receivers": "agents, below `concurrency`", "0",
            "chat and pubsub: how many, the last ones, read slowly and send nothing; they are reported apart";
        "slow_pause_ms": "milliseconds, 1 to 60000", "100", "chat and pubsub: how long slow receivers pause between two reads";
        "slo": "table", "empty", "limits the step must keep; step by step over those of `[defaults.slo]`";
    }
    Stage {
        "to": "messages a second", "required", "the rate at the end of the stage";
        "secs": "seconds, up to 604800", "required", "length of the stage";
    }
    Slo {
        "p50_ms": "milliseconds", "not judged", "largest median";
        "p90_ms": "milliseconds", "not judged", "largest 90th percentile";
        "p99_ms": "milliseconds", "not judged", "largest 99th percentile";
        "p999_ms": "milliseconds", "not judged", "largest 99.9th percentile";
        "loss_pct": "percent, 0 to 100", "not judged", "largest share of the expected messages that may be lost";
        "delivery_ratio_min": "0 to 1", "not judged", "smallest share of the expected messages that must arrive";
    }
    Guard {
        "max_client_cpu_pct": "percent, above 0 to 100", "80", "most that the instrument may use of the cores of its lanes";
        "on_violation": "`invalid`, `warn`", "`invalid`",
            "whether an invalid measurement has exit code 90, or is only reported";
    }
};
