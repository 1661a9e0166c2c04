//! Results against their committed schema, and on disk.

use serde_json::{Value, json};
use tidewire_load::compare::Kind;

use super::*;

const SCHEMA: &str = include_str!("../../../../../docs/bench.schema.json");

fn valid(report: &BenchReport) -> Result<(), String> {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let value = serde_json::to_value(report).unwrap();
    validator
        .validate(&value)
        .map_err(|error| error.to_string())
}

#[test]
fn results_follow_the_committed_schema_and_come_back_as_they_were() {
    let report = sample();
    valid(&report).unwrap();
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<BenchReport>(&json).unwrap(), report);
}

#[test]
fn the_schema_names_every_key_that_is_written_and_no_other() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let keys =
        |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    let value = serde_json::to_value(sample()).unwrap();
    let row = &value["suites"][0]["rows"][0];
    let peer = row["peers"].as_object().unwrap().values().next().unwrap();
    for (written, described) in [
        (&value, &schema["properties"]),
        (&value["env"], &schema["properties"]["env"]["properties"]),
        (row, &schema["$defs"]["row"]["properties"]),
        (&row["params"], &schema["$defs"]["work"]["properties"]),
        (&row["limit"], &schema["$defs"]["figures"]["properties"]),
        (peer, &schema["$defs"]["peer"]["properties"]),
        (&row["tries"][0], &schema["$defs"]["try"]["properties"]),
        (
            &value["suites"][0],
            &schema["properties"]["suites"]["items"]["properties"],
        ),
        (&row["latency"], &schema["$defs"]["times"]["properties"]),
    ] {
        assert_eq!(keys(written), keys(described));
    }
    let mut spoilt = value.clone();
    spoilt["suites"][0]["rows"][0]["median"] = json!("fast");
    let validator = jsonschema::validator_for(&schema).unwrap();
    assert!(!validator.is_valid(&spoilt));
}

#[test]
fn written_results_are_read_again_and_others_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let report = sample();
    let written = report
        .write_to(&directory.path().join("deep/down"))
        .unwrap();
    assert_eq!(BenchReport::read(&written.json).unwrap(), report);
    assert!(written.html.is_file() && written.markdown.is_file());
    let missing = BenchReport::read(&directory.path().join("none")).unwrap_err();
    assert!(matches!(missing, ReadBenchError::File(..)), "{missing}");
    assert_eq!(Kind::of_file(&written.json), Kind::Bench);
    assert_eq!(Kind::of_file(&written.markdown), Kind::Load);
    let other = BenchReport::read(&written.markdown).unwrap_err();
    assert!(matches!(other, ReadBenchError::Format(..)), "{other}");
    let mut value = serde_json::to_value(&report).unwrap();
    value["schema_version"] = json!(9);
    std::fs::write(&written.json, value.to_string()).unwrap();
    let newer = BenchReport::read(&written.json).unwrap_err();
    assert!(newer.to_string().contains("has version 9"), "{newer}");
    assert_eq!(Kind::of_file(&written.json), Kind::Bench);
    let whole = value.to_string();
    // Cut off in its middle it is still known for what it was; a report of a load test never is.
    std::fs::write(&written.json, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(Kind::of_file(&written.json), Kind::Bench);
    for other in [
        r#"{"schema_version":1,"target_server":"x","env":{"cpu"#,
        "[1",
        "",
    ] {
        std::fs::write(&written.json, other).unwrap();
        assert_eq!(Kind::of_file(&written.json), Kind::Load, "{other}");
    }
    // A file is where the directory should be.
    let blocked = report.write_to(&written.json).unwrap_err();
    assert!(
        blocked.to_string().contains("a file is in the way"),
        "{blocked}"
    );
}
