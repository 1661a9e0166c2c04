//! Tests of the scenario reader: every mistake is found where it stands.

use super::*;

const GOOD: &str = "host = \"h\"\nport = 1\n[[steps]]\nname = \"a\"\nconcurrency = 2\nduration_secs = 1\nthink_time_ms = [0, 1]\n";

/// A text of [`GOOD`], its replacement, and the line and key that the error must name.
const IMPOSSIBLE: &[(&str, &str, usize, &str)] = &[
    ("host = \"h\"", "host = \"\"", 1, "host"),
    ("host = \"h\"", "host = \"a b\"", 1, "host"),
    ("host = \"h\"", "host = 5", 1, "host"),
    ("port = 1", "port = 0", 2, "port"),
    ("port = 1", "port = 65536", 2, "port"),
    ("port = 1", "port = -1", 2, "port"),
    ("port = 1", "port = 1.0", 2, "port"),
    ("port = 1", "port = 99999999999999999999999999", 2, "port"),
    ("port = 1", "port = 1\nversion = 3", 3, "version"),
    ("port = 1", "port = 1\nversion = \"1\"", 3, "version"),
    ("name = \"a\"", "name = \" \"", 4, "steps[0].name"),
    ("name = \"a\"", "name = true", 4, "steps[0].name"),
    (
        "concurrency = 2",
        "concurrency = 0",
        5,
        "steps[0].concurrency",
    ),
    (
        "concurrency = 2",
        "concurrency = -3",
        5,
        "steps[0].concurrency",
    ),
    (
        "concurrency = 2",
        "concurrency = 1.5",
        5,
        "steps[0].concurrency",
    ),
    (
        "concurrency = 2",
        "concurrency = 1000001",
        5,
        "steps[0].concurrency",
    ),
    (
        "concurrency = 2",
        "concurrency = \"many\"",
        5,
        "steps[0].concurrency",
    ),
    (
        "duration_secs = 1",
        "duration_secs = 0",
        6,
        "steps[0].duration_secs",
    ),
    (
        "duration_secs = 1",
        "duration_secs = -1.5",
        6,
        "steps[0].duration_secs",
    ),
    (
        "duration_secs = 1",
        "duration_secs = nan",
        6,
        "steps[0].duration_secs",
    ),
    (
        "duration_secs = 1",
        "duration_secs = inf",
        6,
        "steps[0].duration_secs",
    ),
    (
        "duration_secs = 1",
        "duration_secs = 604801",
        6,
        "steps[0].duration_secs",
    ),
    ("[0, 1]", "[2, 1]", 7, "steps[0].think_time_ms"),
    ("[0, 1]", "[0, 0]", 7, "steps[0].think_time_ms"),
    ("[0, 1]", "[0.0, 1e-9]", 7, "steps[0].think_time_ms"),
    ("[0, 1]", "[-1, 1]", 7, "steps[0].think_time_ms"),
    ("[0, 1]", "[nan, 1]", 7, "steps[0].think_time_ms"),
    ("[0, 1]", "[1, nan]", 7, "steps[0].think_time_ms"),
    ("[0, 1]", "[1, inf]", 7, "steps[0].think_time_ms"),
    ("[0, 1]", "[1, 86400001]", 7, "steps[0].think_time_ms"),
    ("[0, 1]", "[1]", 7, "steps[0].think_time_ms"),
    ("[0, 1]", "[1, 2, 3]", 7, "steps[0].think_time_ms"),
    ("[0, 1]", "[\"1\", 2]", 7, "steps[0].think_time_ms"),
    ("[0, 1]", "5", 7, "steps[0].think_time_ms"),
];

fn think_time(step: &Step) -> ThinkTime {
    match step.load {
        Load::Closed { think_time_ms } => think_time_ms,
        _ => panic!("{step:?}"),
    }
}

/// Line, key and whole text of the error that `text` must cause.
fn invalid(text: &str) -> (usize, String, String) {
    let shown = Scenario::parse(text, "f.toml").unwrap_err().to_string();
    let told = shown
        .strip_prefix("f.toml:")
        .and_then(|it| it.split_once(": `"));
    let (line, told) = told.unwrap_or_else(|| panic!("{shown}"));
    let (key, _) = told.split_once("` must be ").unwrap();
    (line.parse().unwrap(), key.to_owned(), shown.clone())
}

#[test]
fn the_built_in_scenario_is_the_two_known_steps() {
    // Byte for byte the file the project started from: figures are compared with its old results.
    assert_eq!(crc32c::crc32c(BUILT_IN_TEXT.as_bytes()), 0x4DA1_25D6);
    let (scenario, warnings) = Scenario::parse(BUILT_IN_TEXT, "seed").unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(scenario.target.as_deref(), Some("tcp://127.0.0.1:8080"));
    let against_our_own = Scenario {
        target: None,
        trust: Trust::default(),
        ..scenario.clone()
    };
    assert_eq!(against_our_own, Scenario::built_in());
    assert_eq!(
        (scenario.version, scenario.repeat, scenario.seed),
        (1, 1, None)
    );
    let [low, high] = &scenario.steps[..] else {
        panic!("two steps")
    };
    assert_eq!(low.name, "Step 1: Low Concurrency Baseline");
    assert_eq!((low.concurrency, low.duration_secs), (50, 20.0));
    assert_eq!(
        think_time(low),
        ThinkTime {
            min_ms: 500.0,
            max_ms: 1000.0
        }
    );
    assert_eq!(high.name, "Step 2: High Throughput Test");
    assert_eq!((high.concurrency, high.duration_secs), (500, 30.0));
    assert_eq!(
        think_time(high),
        ThinkTime {
            min_ms: 50.0,
            max_ms: 200.0
        }
    );
    assert!((low.offered_tps().unwrap() - 66.666_666).abs() < 1e-5);
    assert!((high.offered_tps().unwrap() - 4_000.0).abs() < 1e-9);
}

#[test]
fn the_shipped_scenarios_offer_what_their_names_say() {
    let shipped = [
        (include_str!("../../../../scenarios/chat-8m.toml"), 8.0e6),
        (include_str!("../../../../scenarios/chat-16m.toml"), 16.0e6),
        (include_str!("../../../../scenarios/chat-24m.toml"), 24.0e6),
        (include_str!("../../../../scenarios/cluster-8m.toml"), 8.0e6),
        (
            include_str!("../../../../scenarios/cluster-16m.toml"),
            16.0e6,
        ),
    ];
    for (text, deliveries_per_sec) in shipped {
        let (scenario, warnings) = Scenario::parse(text, "shipped").unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        let [step] = &scenario.steps[..] else {
            panic!("one step")
        };
        assert_eq!((step.concurrency, step.duration_secs), (500, 20.0));
        let offered = step.offered_tps().unwrap() * 499.0;
        let off = (offered / deliveries_per_sec - 1.0).abs();
        assert!(off < 0.005, "{}: {offered}", step.name);
    }
    let faults = include_str!("../../../../scenarios/cluster-faults.toml");
    let (scenario, _) = Scenario::parse(faults, "shipped").unwrap();
    let step = &scenario.steps[0];
    let kept = include_str!("../../../../scenarios/cluster-faults-history.toml");
    let (with_history, _) = Scenario::parse(kept, "shipped").unwrap();
    assert_eq!(with_history.steps[0].faults, step.faults);
    assert_eq!(with_history.steps[0].load, step.load);
    assert!(with_history.history.is_some() && scenario.history.is_none());
    assert_eq!(step.offered_tps().unwrap() * 199.0, 995_000.0);
    for (process, action) in [
        ("node 2", FaultAction::Kill),
        ("nats", FaultAction::Restart),
    ] {
        let mut faults = step.faults.iter();
        let same = |fault: &&Fault| fault.process == process && fault.action == action;
        assert_eq!(faults.by_ref().filter(same).count(), 10);
    }
}

#[test]
fn quick_shortens_long_steps_only() {
    let mut scenario = Scenario::built_in();
    scenario.steps[0].duration_secs = 1.5;
    let quick = scenario.quick();
    assert_eq!(quick.steps[0].duration_secs, 1.5);
    assert_eq!(quick.steps[1].duration_secs, QUICK_STEP_SECS_MAX);
    assert_eq!(quick.steps[1].concurrency, 500);
}

#[test]
fn fractions_other_bases_and_the_version_are_accepted() {
    let text = GOOD
        .replace("port = 1", "version = 1\nport = 0x1F_90")
        .replace("= 1\nthink", "= 0.5\nthink")
        .replace("[0, 1]", "[20.0, 4_2.5]");
    let (scenario, warnings) = Scenario::parse(&text, "f").unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(scenario.target.as_deref(), Some("tcp://h:8080"));
    let step = &scenario.steps[0];
    assert_eq!(step.duration_ns(), 500_000_000);
    assert_eq!(
        (think_time(step).min_ns(), think_time(step).max_ns()),
        (20_000_000, 42_500_000)
    );
    assert_eq!(step.offered_tps(), Some(64.0));
}

#[test]
fn unknown_keys_warn_with_line_and_nearest_key() {
    let text = format!("hots = 1\n{GOOD}concurency = 5\nzzz = 1\n");
    let (scenario, warnings) = Scenario::parse(&text, "f.toml").unwrap();
    assert_eq!(scenario.steps[0].concurrency, 2);
    let shown: Vec<String> = warnings.iter().map(Mistake::to_string).collect();
    assert_eq!(
        shown,
        [
            "f.toml:1: unknown key `hots` is ignored; did you mean `host`?",
            "f.toml:9: unknown key `steps[0].concurency` is ignored; did you mean `concurrency`?",
            "f.toml:10: unknown key `steps[0].zzz` is ignored",
        ]
    );
}

#[test]
fn lonely_agents_and_repeated_names_warn() {
    let second =
        "[[steps]]\nname = \"a\"\nconcurrency = 1\nduration_secs = 1\nthink_time_ms = [1, 1]\n";
    let (_, warnings) = Scenario::parse(&format!("{GOOD}{second}"), "f").unwrap();
    let shown: Vec<String> = warnings.iter().map(Mistake::to_string).collect();
    assert_eq!(
        shown,
        [
            "f:9: `steps[1].name` repeats the name of line 4: the two cannot be told apart in a report",
            "f:10: `steps[1].concurrency` of 1 leaves nobody to deliver to: 0 deliveries are expected",
        ]
    );
}

#[test]
fn every_impossible_value_is_an_error_at_its_line() {
    for (good, bad, line, key) in IMPOSSIBLE {
        let text = GOOD.replacen(good, bad, 1);
        assert_ne!(text, GOOD, "{good} occurs");
        let (found_line, found_key, shown) = invalid(&text);
        assert_eq!((found_line, found_key.as_str()), (*line, *key), "{bad}");
        assert!(shown.contains(", but it is the "), "{shown}");
    }
}

#[test]
fn every_missing_key_is_an_error_at_its_table() {
    let keys = [
        ("host = \"h\"\n", 1, "host"),
        ("port = 1\n", 1, "port"),
        ("name = \"a\"\n", 3, "steps[0].name"),
        ("concurrency = 2\n", 3, "steps[0].concurrency"),
        ("duration_secs = 1\n", 3, "steps[0].duration_secs"),
        ("think_time_ms = [0, 1]\n", 3, "steps[0].think_time_ms"),
    ];
    for (removed, line, key) in keys {
        let (found_line, found_key, shown) = invalid(&GOOD.replacen(removed, "", 1));
        assert_eq!((found_line, found_key.as_str()), (line, key));
        assert!(shown.contains("but the key is missing"), "{shown}");
    }
}

#[test]
fn steps_must_be_tables_one_to_255_of_them() {
    let head = "host = \"h\"\nport = 1\n";
    assert_eq!(invalid(head).1, "steps");
    assert_eq!(invalid(&format!("{head}steps = []\n")).1, "steps");
    assert_eq!(invalid(&format!("{head}steps = 3\n")).1, "steps");
    assert_eq!(invalid(&format!("{head}\nsteps = [1]\n")).1, "steps[0]");
    let many: String = GOOD.lines().skip(2).flat_map(|line| [line, "\n"]).collect();
    assert_eq!(
        invalid(&format!("{head}{}", many.repeat(STEPS_MAX + 1))).1,
        "steps"
    );
}

#[test]
fn broken_toml_and_a_key_given_twice_name_the_line() {
    for text in ["host = \"h\"\nport = = 1\n", "host = \"h\"\nhost = \"i\"\n"] {
        let error = Scenario::parse(text, "f.toml").unwrap_err().to_string();
        assert!(error.starts_with("f.toml:2: not valid TOML: "), "{error}");
    }
}

#[test]
fn arbitrary_text_never_panics() {
    let mut random = fastrand::Rng::with_seed(5);
    for round in 0..2_000 {
        let mut bytes = GOOD.as_bytes().to_vec();
        for _ in 0..random.usize(1..6) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(b' '..=b'~');
        }
        let text = String::from_utf8(bytes).unwrap();
        if let Ok((scenario, _)) = Scenario::parse(&text, "f") {
            assert!(!scenario.steps.is_empty(), "round {round}: {text}");
            assert!(
                scenario.steps[0].offered_tps().unwrap().is_finite(),
                "round {round}: {text}"
            );
        }
    }
}

#[test]
fn a_file_that_cannot_be_read_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let missing = Scenario::load(&directory.path().join("none.toml")).unwrap_err();
    let said = tidewire::describe(&missing);
    assert!(said.ends_with("(os error 2); check the path"), "{said}");
    assert!(std::error::Error::source(&missing).is_some());
    let binary = directory.path().join("binary.toml");
    fs::write(&binary, [0xFF, 0xFE]).unwrap();
    let error = Scenario::load(&binary).unwrap_err();
    assert!(error.to_string().contains("save it as UTF-8"), "{error}");
    fs::write(&binary, GOOD).unwrap();
    assert_eq!(
        Scenario::load(&binary).unwrap().0.target.unwrap(),
        "tcp://h:1"
    );
}

#[test]
fn steps_alone_are_a_scenario_against_a_server_of_our_own() {
    let steps = GOOD.replace("host = \"h\"\nport = 1\n", "");
    let (scenario, warnings) = Scenario::parse(&steps, "f.toml").unwrap();
    assert_eq!((scenario.target, warnings), (None, Vec::new()));
    // Somebody who has misspelt both keys means a server all the same.
    let text = GOOD
        .replace("host = ", "hots = ")
        .replace("port = ", "prot = ");
    let error = Scenario::parse(&text, "f.toml").unwrap_err().to_string();
    assert!(
        error.contains("did you mean it by `hots` in line 1?"),
        "{error}"
    );
}

#[test]
fn a_missing_key_is_found_under_a_misspelt_name() {
    for (right, wrong, told) in [
        (
            "concurrency = 2",
            "concurency = 2",
            "the key is missing; did you mean it by `concurency` in line 5?",
        ),
        (
            "host = ",
            "hots = ",
            "the key is missing; did you mean it by `hots` in line 1?",
        ),
        // A key that means something else is no misspelling, however near it is.
        ("name = \"a\"\n", "", "the key is missing"),
    ] {
        let error = Scenario::parse(&GOOD.replace(right, wrong), "f").unwrap_err();
        assert!(error.to_string().ends_with(told), "{error}");
    }
}
