//! Tests of version 2: what its keys mean, where mistakes are found, and that the documentation says the same.

use super::*;

const SAMPLE: &str = r#"
version = 2
target  = "tcp://127.0.0.1:8080"

[defaults]
pattern = "chat"
codec = "tw1"
payload_bytes = 28
warmup_secs = 5
drain_ms = 2000
timeout_ms = 5000
repeat = 6
seed = 42

[[steps]]
name = "open 20k"
model = "open"
concurrency = 64
rate = 20000
arrival = "poisson"
on_late = "catch_up"
duration_secs = 30
[steps.slo]
p99_ms = 5.0
loss_pct = 0.01
delivery_ratio_min = 0.999
[guard]
max_client_cpu_pct = 80
on_violation = "invalid"
"#;

/// A whole scenario of one step with these lines.
fn with(step: &str) -> String {
    format!(
        "version = 2\ntarget = \"tcp://h:1\"\n[[steps]]\nname = \"a\"\nconcurrency = 4\nduration_secs = 8\n{step}"
    )
}

fn step_of(lines: &str) -> Step {
    let (scenario, warnings) = Scenario::parse(&with(lines), "f.toml").unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    scenario.steps[0].clone()
}

fn refused(text: &str) -> String {
    Scenario::parse(text, "f.toml").unwrap_err().to_string()
}

#[test]
fn the_sample_of_the_documentation_means_what_it_says() {
    let (scenario, warnings) = Scenario::parse(SAMPLE, "sample").unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(
        (scenario.version, scenario.repeat, scenario.seed),
        (2, 6, Some(42))
    );
    assert_eq!(scenario.guard, Guard::default());
    let step = &scenario.steps[0];
    assert_eq!((step.pattern, step.concurrency), (Pattern::Chat, 64));
    assert_eq!(step.offered_tps(), Some(20_000.0));
    assert_eq!(step.warmup_secs, Some(5.0));
    assert_eq!(
        (
            step.slo.p99_ms,
            step.slo.loss_pct,
            step.slo.delivery_ratio_min,
            step.slo.p50_ms
        ),
        (Some(5.0), Some(0.01), Some(0.999), None)
    );
    let stages = vec![Stage {
        from: 20_000.0,
        to: 20_000.0,
        secs: 30.0,
    }];
    let (arrival, on_late) = (Arrival::Poisson, OnLate::CatchUp);
    assert_eq!(
        step.load,
        Load::Open {
            stages,
            arrival,
            on_late
        }
    );
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let step = step_of("pattern = \"request\"\n");
    assert_eq!(
        step.load,
        Load::Closed {
            think_time_ms: ThinkTime::NONE
        }
    );
    assert_eq!((step.codec.as_str(), step.payload_bytes), ("tw1", 28));
    assert_eq!((step.drain_ms, step.timeout_ms), (2_000, 5_000));
    // 5 s, but at most a quarter of the eight.
    assert_eq!(step.warmup_secs, Some(2.0));
    assert!(step.slo.is_empty());
    let step = step_of("pattern = \"echo\"\nmodel = \"max\"\n");
    assert_eq!((step.load, step.max_in_flight), (Load::Max, 4_096));
    let (scenario, _) = Scenario::parse(&with("think_time_ms = [1, 2]\n"), "f").unwrap();
    assert_eq!((scenario.repeat, scenario.seed), (1, None));
    assert_eq!(scenario.steps[0].pattern, Pattern::Chat);
}

#[test]
fn a_step_overrides_the_defaults_key_by_key() {
    let text = r#"
version = 2
target = "tcp://h:1"
[defaults]
pattern = "echo"
model = "open"
rate = 100
concurrency = 2
duration_secs = 4
[defaults.slo]
p50_ms = 1
p99_ms = 9
[[steps]]
name = "a"
[[steps]]
name = "b"
model = "max"
[[steps]]
name = "c"
stages = [{ to = 200, secs = 2 }, { to = 200, secs = 4 }]
[steps.slo]
p99_ms = 3
"#;
    let (scenario, _) = Scenario::parse(text, "f").unwrap();
    let [a, b, c] = &scenario.steps[..] else {
        panic!("{scenario:?}")
    };
    assert_eq!(a.offered_tps(), Some(100.0));
    assert_eq!(
        b.load,
        Load::Max,
        "a rate of the defaults is for those that have one"
    );
    assert_eq!(c.duration_secs, 6.0);
    // From 100, the rate of the defaults, to 200 in two seconds, then four at 200.
    assert_eq!(c.offered_tps(), Some(1_100.0 / 6.0));
    assert_eq!((c.slo.p50_ms, c.slo.p99_ms), (Some(1.0), Some(3.0)));
    assert_eq!(a.slo.p99_ms, Some(9.0));
}

#[test]
fn unknown_keys_are_errors_with_line_and_nearest_key() {
    let chat = "think_time_ms = [1, 2]\n";
    for (text, told) in [
        (
            with(&format!("{chat}concurency = 5\n")),
            "f.toml:8: unknown key `steps[0].concurency`; did you mean `concurrency`?",
        ),
        (
            with(&format!("{chat}repeat = 5\n")),
            "f.toml:8: unknown key `steps[0].repeat`; docs/scenario.md lists the keys",
        ),
        (
            with(&format!("{chat}[steps.slo]\np99ms = 5\n")),
            "f.toml:9: unknown key `steps[0].slo.p99ms`; did you mean `p99_ms`?",
        ),
        (
            with(&format!("{chat}[guard]\nmax_client_cpu = 5\n")),
            "f.toml:9: unknown key `guard.max_client_cpu`; did you mean `max_client_cpu_pct`?",
        ),
        (
            format!("{}[defaults]\nname = \"x\"\n", with(chat)),
            "f.toml:9: unknown key `defaults.name`",
        ),
        (
            with("model = \"open\"\nstages = [{ to = 1, sec = 1 }]\n"),
            "f.toml:8: unknown key `steps[0].stages[0].sec`; did you mean `secs`?",
        ),
        (
            format!("hots = 1\n{}", with(chat)),
            "f.toml:1: unknown key `hots`",
        ),
    ] {
        let shown = refused(&text);
        assert!(shown.starts_with(told), "{shown}\n{told}");
    }
}

#[test]
fn faults_are_read_in_the_order_of_their_times_and_shortened_with_their_step() {
    let lines = "think_time_ms = [1, 2]\nfaults = [{ at_secs = 6, restart = \"node 2\" }, { at_secs = 2.5, kill = \"node 2\" }, \
                 { at_secs = 4, stop = \"nats\" }]\n";
    let text = with(lines).replacen("[[steps]]", "nodes = 2\nbackplane = \"nats\"\n[[steps]]", 1);
    let (scenario, _) = Scenario::parse(&text, "f").unwrap();
    assert_eq!(
        (scenario.nodes, scenario.backplane.as_deref()),
        (2, Some("nats"))
    );
    let fault = |at_secs, action, process: &str| Fault {
        at_secs,
        action,
        process: process.to_owned(),
    };
    let faults = [
        fault(2.5, FaultAction::Kill, "node 2"),
        fault(4.0, FaultAction::Stop, "nats"),
        fault(6.0, FaultAction::Restart, "node 2"),
    ];
    assert_eq!(scenario.steps[0].faults, faults);
    assert_eq!(scenario.quick().steps[0].faults[1].at_secs, 1.5);
    assert_eq!(step_of("pattern = \"request\"\n").faults, []);
    let places = refused(&text.replace("nodes = 2", "nodes = 0"));
    assert!(
        places.starts_with("f.toml:3: `nodes` must be a whole number"),
        "{places}"
    );
    let places = refused(&text.replace("\"nats\"\n", "\"redis\"\n"));
    assert!(
        places.starts_with("f.toml:4: `backplane` must be \"nats\""),
        "{places}"
    );
}

/// Lines of a step, and how the error that they must cause begins.
const IMPOSSIBLE: &[(&str, &str)] = &[
    (
        "think_time_ms = [1, 2]\nfaults = [{ at_secs = 8, kill = \"nats\" }]\n",
        "f.toml:8: `steps[0].faults[0].at_secs` must be a number of seconds from 0 to below the duration of 8",
    ),
    (
        "think_time_ms = [1, 2]\nfaults = [{ at_secs = 1 }]\n",
        "f.toml:8: `steps[0].faults[0].kill` must be the name of a process",
    ),
    (
        "think_time_ms = [1, 2]\nfaults = [{ at_secs = 1, kill = \"node 02\" }]\n",
        "f.toml:8: `steps[0].faults[0].kill` must be the name of a process",
    ),
    (
        "think_time_ms = [1, 2]\nfaults = [{ at_secs = 1, kill = \"nats\", stop = \"nats\" }]\n",
        "f.toml:8: `steps[0].faults[0].stop` must be left out here, but `kill` is there, too",
    ),
    (
        "pattern = \"echo\"\nfaults = []\n",
        "f.toml:8: `steps[0].faults` must be left out here",
    ),
    (
        "pattern = 5\n",
        "f.toml:7: `steps[0].pattern` must be one of ingest, echo, request, chat, pubsub, but it is the integer 5",
    ),
    (
        "pattern = \"talk\"\n",
        "f.toml:7: `steps[0].pattern` must be one of",
    ),
    ("", "f.toml:3: `steps[0].think_time_ms` must be two numbers"),
    (
        "model = \"open\"\n",
        "f.toml:3: `steps[0].rate` must be a number of messages",
    ),
    (
        "model = \"open\"\nrate = 0\n",
        "f.toml:8: `steps[0].rate` must be",
    ),
    (
        "model = \"open\"\nrate = 1\narrival = \"odd\"\n",
        "f.toml:9: `steps[0].arrival` must be one of constant, poisson, burst",
    ),
    (
        "model = \"open\"\nstages = []\n",
        "f.toml:8: `steps[0].stages` must be a list",
    ),
    (
        "model = \"max\"\n",
        "f.toml:7: `steps[0].model` must be closed or open",
    ),
    (
        "pattern = \"echo\"\nmodel = \"max\"\nmax_in_flight = 3\n",
        "f.toml:9: `steps[0].max_in_flight` must be a whole number from 4",
    ),
    (
        "pattern = \"echo\"\npayload_bytes = 27\n",
        "f.toml:8: `steps[0].payload_bytes` must be a whole number from 28",
    ),
    (
        "pattern = \"echo\"\nwarmup_secs = 8\n",
        "f.toml:8: `steps[0].warmup_secs` must be a number of seconds from 0 to below the duration of 8",
    ),
    (
        "pattern = \"echo\"\ncodec = \"xml\"\n",
        "f.toml:8: `steps[0].codec` must be a codec: tw1,",
    ),
    (
        "pattern = \"ingest\"\nmodel = \"max\"\ncodec = \"length-field\"\n",
        "f.toml:9: `steps[0].codec` must be tw1, json, srmp",
    ),
    (
        "pattern = \"echo\"\ncodec = \"lines\"\n",
        "f.toml:8: `steps[0].codec` must be a codec that keeps the bounds",
    ),
    (
        "think_time_ms = [1, 2]\nslow_receivers = 4\n",
        "f.toml:8: `steps[0].slow_receivers` must be a whole number from 0 to 3",
    ),
    (
        "think_time_ms = [1, 2]\nslo = 5\n",
        "f.toml:8: `steps[0].slo` must be a table",
    ),
    (
        "think_time_ms = [1, 2]\n[steps.slo]\nloss_pct = 101\n",
        "f.toml:9: `steps[0].slo.loss_pct` must be a number of percent",
    ),
    (
        "think_time_ms = [1, 2]\n[guard]\non_violation = \"no\"\n",
        "f.toml:9: `guard.on_violation` must be one of invalid, warn",
    ),
];

#[test]
fn wrong_types_and_impossible_values_are_errors_at_their_line() {
    for (lines, told) in IMPOSSIBLE {
        let shown = refused(&with(lines));
        assert!(shown.starts_with(told), "{shown}\n{told}");
    }
    let shown = refused("version = 2\ntarget = \"http://h\"\n");
    assert!(
        shown.starts_with("f.toml:2: `target` must be an address"),
        "{shown}"
    );
}

#[test]
fn a_key_that_means_nothing_in_its_step_is_an_error() {
    for (lines, told) in [
        (
            "think_time_ms = [1, 2]\nrate = 5\n",
            "only with the model open",
        ),
        (
            "pattern = \"echo\"\nmodel = \"max\"\nthink_time_ms = [1, 2]\n",
            "only with the model closed",
        ),
        (
            "think_time_ms = [1, 2]\ntimeout_ms = 5\n",
            "only with patterns with replies",
        ),
        (
            "pattern = \"echo\"\nmax_in_flight = 50\n",
            "only with patterns with replies and the models open and max",
        ),
        (
            "pattern = \"echo\"\nslow_receivers = 1\n",
            "only with the patterns chat and pubsub",
        ),
        (
            "pattern = \"echo\"\nmodel = \"open\"\nstages = [{ to = 1, secs = 1 }]\n",
            "only with steps without stages",
        ),
    ] {
        let shown = refused(&with(lines));
        assert!(
            shown.contains("must be left out here") && shown.contains(told),
            "{shown}"
        );
    }
}

#[test]
fn all_steps_have_one_codec() {
    let lines = "pattern = \"request\"\n[[steps]]\nname = \"b\"\npattern = \"request\"\ncodec = \"srmp\"\nconcurrency = 1\nduration_secs = 1\n";
    let shown = refused(&with(lines));
    assert!(
        shown.contains("`steps[1].codec` must be the codec of the first step"),
        "{shown}"
    );
}

#[test]
fn a_quick_run_shortens_stages_and_warm_up_in_proportion() {
    let text = "version = 2\ntarget = \"tcp://h:1\"\n[[steps]]\nname = \"a\"\npattern = \"echo\"\nmodel = \"open\"\n\
                concurrency = 1\nwarmup_secs = 6\nstages = [{ to = 10, secs = 20 }, { to = 10, secs = 10 }]\n";
    let (scenario, _) = Scenario::parse(text, "f").unwrap();
    let step = &scenario.quick().steps[0];
    assert_eq!(
        (step.duration_secs, step.warmup_secs),
        (3.0, Some(6.0 * 0.1))
    );
    assert_eq!(step.offered_tps(), scenario.steps[0].offered_tps());
}

#[test]
fn the_shipped_scenario_of_version_2_is_one() {
    let text = include_str!("../../../../scenarios/request-open.toml");
    let (scenario, warnings) = Scenario::parse(text, "shipped").unwrap();
    assert_eq!((warnings, scenario.steps.len()), (vec![], 2));
    assert_eq!(scenario.steps[0].offered_tps(), Some(20_000.0));
}

#[test]
fn a_scenario_says_whom_its_agents_trust_and_what_they_show() {
    let parse = |lines: &str| {
        let steps =
            "[[steps]]\nname = \"a\"\nconcurrency = 2\nduration_secs = 1\nthink_time_ms = [0, 1]\n";
        let text = format!("version = 2\ntarget = \"tls://h:1\"\n{lines}{steps}");
        Scenario::parse(&text, "test").map(|(scenario, _)| scenario.trust)
    };
    assert_eq!(parse("").unwrap(), Trust::default());
    let all = "ca = \"a\"\ncert = \"b\"\nkey = \"c\"\nserver_name = \"d\"\ntoken_file = \"e\"\n";
    let trust = parse(all).unwrap();
    let texts = [
        trust.ca,
        trust.cert,
        trust.key,
        trust.server_name,
        trust.token_file,
    ];
    assert_eq!(texts.map(Option::unwrap), ["a", "b", "c", "d", "e"]);
    for (lines, told) in [
        ("ca = 7\n", "ca"),
        ("token_file = \"\"\n", "token_file"),
        ("cert = \"a\"\n", "`key`"),
        ("key = \"a\"\n", "`cert`"),
        ("tokenfile = \"a\"\n", "token_file"),
    ] {
        let error = parse(lines).unwrap_err().to_string();
        assert!(error.contains(told), "{lines}: {error}");
    }
}

#[test]
fn a_history_has_the_limits_of_a_server_and_needs_agents_that_recover() {
    let parse = |history: &str, pattern: &str| {
        let step =
            "[[steps]]\nname = \"a\"\nconcurrency = 2\nduration_secs = 1\nthink_time_ms = [1, 2]\n";
        let text = format!(
            "version = 2\ntarget = \"tcp://h:0\"\nhistory = {history}\n{step}pattern = \"{pattern}\"\n"
        );
        Scenario::parse(&text, "f.toml").map(|(scenario, _)| scenario.history.unwrap())
    };
    assert_eq!(parse("{}", "chat").unwrap(), History::default());
    let limits = parse("{ messages = 7, bytes = 900, age = 60 }", "chat").unwrap();
    assert_eq!(history_limits(&limits), "messages=7,bytes=900,age=60");
    assert_eq!(history_limits(&History::last(7)), "messages=7,bytes=65536");
    for (history, pattern, told) in [
        (
            "{ messages = 0 }",
            "chat",
            "f.toml:3: `history.messages` must be",
        ),
        ("{ bytes = 2000000000 }", "chat", "from 1 to 1073741824"),
        (
            "{ age = -1 }",
            "chat",
            "`history.age` must be a whole number of seconds",
        ),
        (
            "{ mesages = 5 }",
            "chat",
            "unknown key `history.mesages`; did you mean `messages`?",
        ),
        ("\">\"", "chat", "`history` must be a table"),
        (
            "{}",
            "pubsub",
            "step \"a\" is a pubsub, and only agents of a chat recover",
        ),
    ] {
        let error = parse(history, pattern).unwrap_err().to_string();
        assert!(error.contains(told), "{history}: {error}");
    }
}

#[test]
fn the_documentation_lists_exactly_the_known_keys() {
    const PAGE: &str = include_str!("../../../../docs/scenario.md");
    let rows = PAGE.lines().filter(|line| line.starts_with("| `"));
    let listed = rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert!(
            cells.len() == 4 && cells.iter().all(|cell| !cell.is_empty()),
            "not key, unit, default and meaning: {row}"
        );
        cells[0].trim_matches('`')
    });
    let listed: Vec<&str> = listed.collect();
    assert_eq!(
        listed,
        keys::ALL.concat(),
        "docs/scenario.md has other rows, or another order"
    );
}
