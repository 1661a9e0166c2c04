//! The keys of a scenario, those of version 2 table by table, in the order of `docs/scenario.md`. A test compares the
//! two; the page says what each key means.

/// The file itself.
pub(super) const ROOT: &[&str] = &[
    "version",
    "target",
    "nodes",
    "backplane",
    "history",
    "ca",
    "cert",
    "key",
    "server_name",
    "token_file",
    "defaults",
    "steps",
    "guard",
];

/// `[history]`.
pub(super) const HISTORY: &[&str] = &["messages", "bytes", "age"];

/// `[defaults]` only.
pub(super) const DEFAULTS: &[&str] = &["repeat", "seed"];

/// `[[steps]]`, and `[defaults]` for all but the name.
pub(super) const STEPS: &[&str] = &[
    "name",
    "concurrency",
    "duration_secs",
    "pattern",
    "codec",
    "model",
    "think_time_ms",
    "rate",
    "stages",
    "arrival",
    "on_late",
    "max_in_flight",
    "timeout_ms",
    "payload_bytes",
    "warmup_secs",
    "drain_ms",
    "slow_receivers",
    "slow_pause_ms",
    "faults",
    "slo",
];

/// An entry of `stages`.
pub(super) const STAGE: &[&str] = &["to", "secs"];

/// An entry of `faults`.
pub(super) const FAULT: &[&str] = &["at_secs", "kill", "stop", "continue", "restart"];

/// `[steps.slo]` and `[defaults.slo]`.
pub(super) const SLO: &[&str] = &[
    "p50_ms",
    "p90_ms",
    "p99_ms",
    "p999_ms",
    "loss_pct",
    "delivery_ratio_min",
];

/// `[guard]`.
pub(super) const GUARD: &[&str] = &["max_client_cpu_pct", "on_violation"];

/// All tables.
pub(super) const ALL: [&[&str]; 8] = [ROOT, HISTORY, DEFAULTS, STEPS, STAGE, FAULT, SLO, GUARD];

/// The file itself, in version 1.
pub(super) const VERSION1_ROOT: &[&str] = &["version", "host", "port", "steps"];

/// `[[steps]]`, in version 1.
pub(super) const VERSION1_STEP: &[&str] =
    &["name", "concurrency", "duration_secs", "think_time_ms"];

/// Whether a key means something in some table of either version.
pub(super) fn is_known(key: &str) -> bool {
    let version1 = [VERSION1_ROOT, VERSION1_STEP];
    ALL.iter()
        .chain(&version1)
        .any(|table| table.contains(&key))
}
