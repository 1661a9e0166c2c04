//! Where the rate of an open step comes from, and the help for some mistakes.

use super::*;

/// The stages of a scenario of one step.
fn stages(defaults: &str, step: &str) -> Vec<(f64, f64, f64)> {
    let text = format!(
        "version = 2\ntarget = \"tcp://h:1\"\n[defaults]\nmodel = \"open\"\npattern = \"echo\"\nconcurrency = 4\n{defaults}\
         [[steps]]\nname = \"a\"\n{step}"
    );
    let (scenario, _) = Scenario::parse(&text, "f").unwrap();
    let Load::Open { stages, .. } = &scenario.steps[0].load else {
        panic!("{scenario:?}");
    };
    let length: f64 = stages.iter().map(|stage| stage.secs).sum();
    assert_eq!(scenario.steps[0].duration_secs, length);
    stages
        .iter()
        .map(|stage| (stage.from, stage.to, stage.secs))
        .collect()
}

#[test]
fn a_rate_begins_the_first_stage_wherever_each_of_them_stands() {
    let (rate, ramp) = (
        "rate = 100\n",
        "stages = [{ to = 500, secs = 3 }, { to = 500, secs = 1 }]\n",
    );
    let both = format!("{rate}{ramp}");
    let whole = [(100.0, 500.0, 3.0), (500.0, 500.0, 1.0)];
    for (defaults, step) in [("", both.as_str()), (&both, ""), (rate, ramp), (ramp, rate)] {
        assert_eq!(stages(defaults, step), whole, "{defaults:?}, {step:?}");
    }
    // A duration of the defaults is for the steps without stages.
    assert_eq!(stages(&format!("{rate}duration_secs = 9\n"), ramp), whole);
    assert_eq!(stages(ramp, ""), [(0.0, 500.0, 3.0), (500.0, 500.0, 1.0)]);
    // A step that says all of an even rate itself has no stages of others.
    assert_eq!(
        stages(&both, "rate = 7\nduration_secs = 2\n"),
        [(7.0, 7.0, 2.0)]
    );
}

#[test]
fn a_limit_without_its_unit_and_a_target_without_its_scheme_are_named_with_what_is_meant() {
    let told = |target: &str, slo: &str| {
        let text = format!(
            "version = 2\ntarget = {target:?}\n[[steps]]\nname = \"a\"\nconcurrency = 4\nduration_secs = 8\n\
             pattern = \"echo\"\n[steps.slo]\n{slo}\n"
        );
        Scenario::parse(&text, "f").unwrap_err().to_string()
    };
    assert!(told("tcp://h:1", "p99 = 5").contains("did you mean `p99_ms`?"));
    for target in [":70000", "http://h:1", "h:99999"] {
        let error = told(target, "p99_ms = 5");
        for scheme in ["tcp://", "tls://", "ws://", "udp://", "ipc://"] {
            assert!(error.contains(scheme), "{error}");
        }
        assert!(error.contains(target), "{error}");
    }
}
