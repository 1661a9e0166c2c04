//! Rivals: what is wrong with one is said, and touches nobody else.

use std::fs;

use tidewire_bench::plan::Side;
use tidewire_bench::program::{PeerChoice, Program};

use crate::{Bench, GOOD, Script, error_of};

#[test]
fn what_is_wrong_with_a_peer_is_said_and_touches_nobody_else() {
    let cases = [
        (
            "garbled",
            Script {
                serve: "echo ready",
                ..GOOD
            },
            "the contract does not know: \"ready",
        ),
        (
            "dies",
            Script {
                serve: "echo 'no license' >&2; exit 7",
                ..GOOD
            },
            "no license",
        ),
        (
            "dies",
            Script {
                drive: "echo '{\"started\":true}'; exit 3",
                ..GOOD
            },
            "exit status: 3",
        ),
        (
            "hasty",
            Script {
                drive: "echo '{\"measured\":{}}'; cat >/dev/null",
                ..GOOD
            },
            "said \"measured\" where started",
        ),
        (
            "mute",
            Script {
                serve: "echo '{\"ready\":\"x\"}'",
                ..GOOD
            },
            "ended too early",
        ),
        (
            "fails-late",
            Script {
                drive: "echo '{\"started\":true}'; echo '{\"measured\":{}}'; cat >/dev/null; exit 5",
                ..GOOD
            },
            "exit status: 5",
        ),
        (
            "silent",
            Script {
                serve: "cat",
                ..GOOD
            },
            "said nothing for",
        ),
    ];
    for (name, script, expected) in cases {
        let row = Bench::beside(name, script);
        let error = error_of(&row, name);
        assert!(error.contains(expected), "{name}: {error}");
        assert!(error.contains("to see it alone: "), "{name}: {error}");
        assert!(
            error.contains("/bin/") && error.contains("\"suite\":\"fake\""),
            "{error}"
        );
    }
}

#[test]
fn a_peer_that_loses_messages_is_marked_and_its_figures_stay() {
    let drive = r#"echo '{"started":true}'; echo '{"measured":{"messages":10,"seconds":1,"verified":true,"lost":3,"dropped":1}}'; cat >/dev/null"#;
    let row = Bench::beside("lossy", Script { drive, ..GOOD });
    let lossy = &row.peers["lossy"];
    assert_eq!((lossy.figures.lost, lossy.figures.dropped), (6, 2));
    assert!(!lossy.figures.verified && lossy.ratio == Some(200.0));
    assert!(!lossy.drops);
}

/// The bug: a peer that said to have moved 10^15 messages got a mark, and its figure stood in the table.
#[test]
fn a_peer_that_claims_the_impossible_has_no_figure() {
    for claim in [
        r#""messages":1000000000000000,"seconds":1"#,
        r#""messages":1000,"seconds":0"#,
        r#""messages":1000,"seconds":-1"#,
    ] {
        let drive = format!(
            "echo '{{\"started\":true}}'; echo '{{\"measured\":{{{claim},\"verified\":true}}}}'; cat >/dev/null"
        );
        let row = Bench::beside(
            "boaster",
            Script {
                drive: &drive,
                ..GOOD
            },
        );
        let error = error_of(&row, "boaster");
        assert!(error.contains("are impossible"), "{claim}: {error}");
    }
}

#[test]
fn a_mode_that_drops_in_silence_stands_apart() {
    let describe = r#"echo '{"name":"nn","version":"1","offers":[{"suite":"fake","transports":["tcp"]},{"suite":"fake","transports":["tcp"],"mode":"drops"},{"suite":"fake","transports":["udp"],"mode":"other"}]}'"#;
    let row = Bench::beside("nn", Script { describe, ..GOOD });
    assert!(row.peers["nn (drops)"].drops && !row.peers["nn"].drops);
    assert_eq!(row.peers.len(), 3, "{:?}", row.peers.keys());
}

#[test]
fn a_peer_that_does_not_end_is_ended_with_all_it_started() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("children");
    let drive = format!(
        "{}; sleep 1000 & echo $! >>{}; wait",
        GOOD.drive,
        file.display()
    );
    // The shell that drives ignores the end of its input and waits for its child.
    let drive = drive.replace("; cat >/dev/null", "");
    let row = Bench::beside(
        "stays",
        Script {
            drive: &drive,
            ..GOOD
        },
    );
    assert_eq!(row.peers["stays"].figures.runs.len(), 2);
    let children = fs::read_to_string(&file).unwrap();
    assert_eq!(children.lines().count(), 2);
    for child in children.lines() {
        // Killed, though whoever reaps orphans here may not have come by yet.
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    }
}

#[test]
fn peers_that_cannot_take_part_are_left_out_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    let (peers, errors) = Program::peers(&missing, &PeerChoice::All);
    assert!(peers.is_empty());
    assert!(
        errors[0].to_string().contains("peers/setup"),
        "{}",
        errors[0]
    );
    GOOD.write(directory.path(), "good");
    let garbled = Script {
        describe: "echo hello",
        ..GOOD
    };
    garbled.write(directory.path(), "garbled");
    fs::write(directory.path().join("not-executable"), "x").unwrap();
    let names = |choice| -> (Vec<String>, Vec<String>) {
        let (peers, errors) = Program::peers(directory.path(), &choice);
        (
            peers
                .into_iter()
                .map(|peer| peer.description.name)
                .collect(),
            errors.iter().map(ToString::to_string).collect(),
        )
    };
    let (peers, errors) = names(PeerChoice::All);
    assert_eq!(peers, ["good"]);
    assert_eq!(errors.len(), 2);
    assert!(errors[0].contains("`garbled`") && errors[1].contains("`not-executable`"));
    let named = vec!["good".to_owned(), "nobody".to_owned()];
    let (peers, errors) = names(PeerChoice::Named(named));
    assert_eq!(peers, ["good"]);
    assert!(errors[0].contains("`nobody`"), "{errors:?}");
}

#[test]
fn a_peer_may_be_driven_by_the_bare_client() {
    let describe = r#"echo '{"name":"served","version":"1","offers":[{"suite":"fake","transports":["tcp"],"driver":"redis"}]}'"#;
    let script = Script {
        describe,
        drive: "exit 9",
        ..GOOD
    };
    let mut bench = Bench::with_peers(&[("served", script)]);
    // Our driver is told whose protocol it is to speak.
    let drive = format!(
        "case \"$3\" in *'\"codec\":\"redis\"'*) n=3;; *) n=1;; esac; {}",
        GOOD.drive.replace("1000", "'$n'000")
    );
    let own = Script {
        drive: &drive,
        ..GOOD
    }
    .write(bench.directory.path(), "own-2");
    bench.options.bare = Program::own(&own, Side::Bare, "0");
    let report = bench.run();
    let row = &report.suites[0].rows[0];
    assert_eq!(
        row.peers["served"].figures.runs,
        [Some(6_000.0), Some(6_000.0)]
    );
    assert_eq!(
        row.limit.as_ref().unwrap().runs,
        [Some(2_000.0), Some(2_000.0)]
    );
}
