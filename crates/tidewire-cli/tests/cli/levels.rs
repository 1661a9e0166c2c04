//! `tidewire search` and `tidewire sweep` from the shell.

use std::path::Path;

use serde_json::Value;
use tidewire_testkit::fault_server::{FaultPlan, FaultServer};

use crate::process::{Ended, Process};

/// Writes a scenario with one step of requests.
fn scenario(directory: &Path, lines: &str) -> String {
    let path = directory.join("scenario.toml");
    let text = format!(
        "version = 2\ntarget = \"tcp://127.0.0.1:1\"\n[[steps]]\nname = \"step\"\nconcurrency = 4\nwarmup_secs = 0\n\
         pattern = \"request\"\n{lines}[guard]\non_violation = \"warn\"\n"
    );
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn run(arguments: &[&str], file: &str, directory: &Path) -> Ended {
    let out = directory.join("out").display().to_string();
    let mut all = vec![arguments[0], file, "--out", &out];
    all.extend_from_slice(&arguments[1..]);
    Process::start(&all).wait()
}

fn json(directory: &Path, name: &str) -> Value {
    let text = std::fs::read(directory.join("out").join(name)).unwrap();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn a_search_finds_the_cap_of_a_server() {
    // No time decides, so a busy machine has the same result. A window of four places and 400 answers a second let at
    // most about 84 messages go in the 0.2 s of a step: of the 128 that 640/s offers, a third is not sent in time on
    // any machine. At 20/s a step is one message of each agent, and those are always in time.
    let cap = FaultPlan {
        deliveries_per_sec_max: Some(400),
        ..FaultPlan::default()
    };
    let server = FaultServer::start(cap).unwrap();
    let target = format!("tcp://{}", server.address());
    let directory = tempfile::tempdir().unwrap();
    let file = scenario(
        directory.path(),
        "model = \"open\"\nrate = 1\nduration_secs = 0.2\nmax_in_flight = 4\ntimeout_ms = 60000\ndrain_ms = 60000\n",
    );
    #[rustfmt::skip]
    let arguments = [
        "search", "--target", &target, "--slo", "loss<1%", "--min", "20", "--max", "4000", "--tolerance", "99",
        "--confirmations", "0",
    ];
    let ended = run(&arguments, &file, directory.path());
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    assert!(
        ended.text().contains("the highest rate that holds is "),
        "{}",
        ended.text()
    );
    let found = json(directory.path(), "search.json");
    assert_eq!(found["end"]["state"], "found", "{found}");
    let holds = found["end"]["holds"].as_f64().unwrap();
    let fails = found["end"]["fails"].as_f64().unwrap();
    assert!(holds >= 20.0 && holds < fails && fails <= 640.0, "{found}");
    let probes = found["probes"].as_array().unwrap();
    let held = |probe: &&Value| probe["held"] == true;
    assert!(probes.iter().any(|probe| held(&probe)) && !probes.iter().all(|probe| held(&probe)));
    // Every tried rate is a step of the report, from the lowest to the highest.
    let report = json(directory.path(), "report.json");
    let sent: u64 = report["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| {
            assert_eq!(step["total_sent"], step["total_received"], "{step}");
            step["total_sent"].as_u64().unwrap()
        })
        .sum();
    let ledger = server.finish();
    assert!(ledger.is_conserved(), "{ledger:?}");
    assert_eq!((sent, sent), (ledger.messages, ledger.delivered));
}

#[test]
fn searches_end_with_the_exit_code_of_their_result() {
    let directory = tempfile::tempdir().unwrap();
    let open = "model = \"open\"\nrate = 1\nduration_secs = 0.2\n";
    let file = scenario(directory.path(), open);
    #[rustfmt::skip]
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--serve", "--slo", "p50<1us", "--min", "200", "--max", "400"], 99, "even the lowest rate does not hold"),
        (&["--serve", "--slo", "p50<1m", "--min", "200", "--max", "400"], 2, "error"),
        (&["--serve", "--min", "200", "--max", "400"], 2, "no limits to keep"),
        (&["--serve", "--slo", "p50<1s", "--min", "400", "--max", "200"], 2, "lowest rate is above"),
        (&["--serve", "--slo", "p50<1s", "--min", "1", "--max", "1e10"], 2, "no machine sends"),
        (&["--serve", "--slo", "p50<1s", "--min", "1", "--max", "2", "--step", "x"], 2, "--step: step"),
    ];
    for (arguments, code, told) in cases {
        let arguments = [&["search"], arguments].concat();
        let ended = run(&arguments, &file, directory.path());
        assert_eq!(
            ended.status.code(),
            Some(code),
            "{arguments:?}: {}",
            ended.text()
        );
        assert!(ended.text().contains(told), "{}", ended.text());
    }
    let believed = scenario(
        directory.path(),
        "model = \"open\"\nrate = 1\nduration_secs = 0.01\nmax_in_flight = 10000000\n",
    );
    let text = std::fs::read_to_string(&believed).unwrap();
    std::fs::write(&believed, text.replace("warn", "invalid")).unwrap();
    #[rustfmt::skip]
    let arguments = ["search", "--serve", "--slo", "p50<100s", "--min", "20000000", "--max", "20000000"];
    let ended = run(&arguments, &believed, directory.path());
    assert_eq!(ended.status.code(), Some(90), "{}", ended.text());
    assert_eq!(
        json(directory.path(), "search.json")["limited_by_instrument"],
        true
    );
}

#[test]
fn a_sweep_measures_every_level_and_fits_them() {
    let directory = tempfile::tempdir().unwrap();
    let file = scenario(
        directory.path(),
        "model = \"closed\"\nthink_time_ms = [2, 2]\nduration_secs = 0.3\n",
    );
    let arguments = ["sweep", "--serve", "--concurrency", "8,1,2,4,16,32"];
    let ended = run(&arguments, &file, directory.path());
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    assert!(
        ended.text().contains("knee") || ended.text().contains("no fit: "),
        "{}",
        ended.text()
    );
    let sweep = json(directory.path(), "sweep.json");
    let levels = sweep["levels"].as_array().unwrap();
    let agents: Vec<u64> = levels
        .iter()
        .map(|level| level["concurrency"].as_u64().unwrap())
        .collect();
    assert_eq!(agents, [1, 2, 4, 8, 16, 32]);
    // A machine that stops for a whole level leaves nothing to fit there, and the sweep reports it.
    match sweep["no_fit"].as_str() {
        None => assert_eq!(sweep["fit"]["levels"], 6, "{sweep}"),
        Some(why) => assert!(sweep["fit"].is_null() && !why.is_empty(), "{sweep}"),
    }
    let report = json(directory.path(), "report.json");
    for (step, level) in report["steps"].as_array().unwrap().iter().zip(levels) {
        assert_eq!(step["concurrency"], level["concurrency"]);
        assert_eq!(step["total_sent"], step["total_received"]);
        assert_eq!(step["steady"]["receive_tps"], level["throughput"]);
    }
}

#[test]
fn a_sweep_that_cannot_be_fitted_does_not_begin() {
    let directory = tempfile::tempdir().unwrap();
    let closed = scenario(directory.path(), "duration_secs = 1\n");
    let few = ["sweep", "--serve", "--concurrency", "1,2,4,8,16,16"];
    let ended = run(&few, &closed, directory.path());
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(ended.text().contains("5 levels of concurrency are too few"));
    let open = scenario(
        directory.path(),
        "model = \"open\"\nrate = 10\nduration_secs = 1\n",
    );
    let enough = ["sweep", "--serve", "--concurrency", "1,2,4,8,16,32"];
    let ended = run(&enough, &open, directory.path());
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(ended.text().contains("tidewire search"), "{}", ended.text());
    assert!(!directory.path().join("out").exists());
}
