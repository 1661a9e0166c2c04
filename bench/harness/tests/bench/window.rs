//! Whether the counts and the cost of a run are of one window.

use std::fs;

use crate::{Bench, GOOD, Script};

/// Work that a shell needs a good part of a second of a core for.
const BURN: &str = "n=0; while [ $n -lt 300000 ]; do n=$((n + 1)); done";

#[test]
fn what_is_done_behind_the_window_is_no_cost_of_its_messages() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("asked").display().to_string();
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    // The server is asked the second time when what the driver has cost is read; only then the driver goes on.
    let serve = format!(
        "echo '{{\"ready\":\"127.0.0.1:1\"}}'; n=0; while read -r line; do n=$((n + 1)); \
         if [ $n = 2 ]; then echo x >{pipe}; fi; echo '{{}}'; done"
    );
    let measured = "echo '{\"measured\":{\"messages\":1000,\"seconds\":0.5,\"verified\":true}}'";
    let drains = format!(
        "echo '{{\"started\":true}}'; echo '{{\"stopped\":true}}'; cat {pipe} >/dev/null; {BURN}; \
         {measured}; cat >/dev/null"
    );
    let works = format!("echo '{{\"started\":true}}'; {BURN}; {measured}; cat >/dev/null");
    let cost = |serve: &str, drive: &str| {
        let row = Bench::beside(
            "rival",
            Script {
                serve,
                drive,
                ..GOOD
            },
        );
        let figures = &row.peers["rival"].figures;
        assert_eq!(figures.error, None);
        assert_eq!(figures.runs, [Some(2_000.0), Some(2_000.0)]);
        figures.client_cpu_ns_per_msg.unwrap()
    };
    let within = cost(GOOD.serve, &works);
    let behind = cost(&serve, &drains);
    assert!(behind < within / 2.0, "{behind} ns and {within} ns");
    fs::remove_file(pipe).unwrap();
}
