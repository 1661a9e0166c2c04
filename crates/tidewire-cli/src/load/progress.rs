//! A look at a running step as a line.

use tidewire_load::known_milliseconds;
use tidewire_load::run::{Phase, Progress};

/// The figures since the last look, and the sums so far.
pub(super) fn describe(progress: &Progress) -> String {
    if progress.phase == Phase::Login {
        let (logins, agents) = (progress.logins, progress.agents);
        return format!("logging in: {logins} of {agents} agents");
    }
    let phase = phase_name(progress.phase);
    // While messages are sent some are always in flight, so a shortfall is no loss yet.
    let behind = progress.expected as i128 - i128::from(progress.received);
    let errors = match progress.errors {
        0 => String::new(),
        errors => format!(", ERRORS {errors}"),
    };
    let nodes = nodes(progress).map_or(String::new(), |nodes| format!(", nodes {nodes}"));
    let received = match progress.second.receive_tps() {
        Some(rate) => format!("received {rate:.0}/s, {} to come", behind.max(0)),
        // The server is asked for its count at the end.
        None => "received n/a".to_owned(),
    };
    let doubt = match progress.verdict.name() {
        "VALID" => String::new(),
        doubt => format!(", {doubt} so far"),
    };
    format!(
        "{:>3.0}/{:.0} s {phase:<7} sent {:.0}/s, {received}, p50 {}, p99 {}{nodes}{errors}{doubt}",
        progress.elapsed.min(progress.duration).as_secs_f64(),
        progress.duration.as_secs_f64(),
        progress.second.send_tps(),
        known_milliseconds(progress.second.p50_ms),
        known_milliseconds(progress.second.p99_ms),
    )
}

/// The agents with a connection at each node, where there are several.
pub(super) fn nodes(progress: &Progress) -> Option<String> {
    let counts = &progress.second.connected;
    let counts: Vec<String> = counts.iter().map(ToString::to_string).collect();
    (!counts.is_empty()).then(|| counts.join(" + "))
}

pub(super) fn phase_name(phase: Phase) -> String {
    phase.name().replace('_', "-")
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use tidewire_load::report::{Second, Verdict};

    use super::*;

    pub(in crate::load) fn progress(phase: Phase) -> Progress {
        Progress {
            phase,
            elapsed: Duration::from_secs(3),
            duration: Duration::from_secs(20),
            logins: 49,
            agents: 50,
            sent: 200,
            received: 9000,
            expected: 9800,
            second: Second {
                secs: 3.0,
                offered: Some(210.0),
                sent: 200,
                received: Some(9_798),
                p50_ms: Some(0.4),
                p99_ms: Some(1.2),
                p999_ms: Some(2.5),
                send_lag_p99_ms: Some(0.1),
                client_cpu_pct: Some(40.0),
                ..Second::default()
            },
            errors: 0,
            verdict: Verdict::default(),
        }
    }

    #[test]
    fn a_line_tells_rates_shortfall_and_percentiles() {
        let line = describe(&progress(Phase::Steady));
        for part in [
            "3/20 s",
            "sent 67/s",
            "received 3266/s",
            "800 to come",
            "p99 1.20 ms",
        ] {
            assert!(line.contains(part), "{part:?} in {line:?}");
        }
        assert!(!line.contains("ERRORS") && !line.contains("nodes"));
        let mut of_cluster = progress(Phase::Steady);
        of_cluster.second.connected = vec![250, 249];
        assert!(describe(&of_cluster).contains("nodes 250 + 249"));
        let mut one_way = progress(Phase::Steady);
        one_way.second.received = None;
        assert!(describe(&one_way).contains("received n/a, p50"));
    }

    #[test]
    fn a_measurement_that_is_invalid_or_disturbed_so_far_is_told_so_at_once() {
        let late = || vec!["the instrument sent late".to_owned()];
        let line = |verdict| {
            describe(&Progress {
                verdict,
                ..progress(Phase::Steady)
            })
        };
        let invalid = line(Verdict {
            reasons: late(),
            ..Verdict::default()
        });
        assert!(invalid.ends_with(", INVALID so far"), "{invalid}");
        let disturbed = line(Verdict {
            disturbances: late(),
            ..Verdict::default()
        });
        assert!(disturbed.ends_with(", DISTURBED so far"), "{disturbed}");
    }

    #[test]
    fn errors_are_told_only_when_there_are_some() {
        let line = describe(&Progress {
            errors: 3,
            ..progress(Phase::Drain)
        });
        assert!(line.ends_with("ERRORS 3"), "{line}");
    }

    #[test]
    fn logging_in_counts_agents() {
        assert_eq!(
            describe(&progress(Phase::Login)),
            "logging in: 49 of 50 agents"
        );
    }
}
