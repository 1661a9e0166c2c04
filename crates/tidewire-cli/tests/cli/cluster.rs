//! Load tests of several servers: processes that start, die, come back, and end with the run, however that ends.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tidewire_testkit::NatsServer;

use crate::admin;
use crate::process::{Process, command};

/// Writes a scenario of one step, and returns its path.
fn scenario(directory: &Path, lines: &str) -> String {
    let path = directory.join("cluster.toml");
    let head = "version = 2\ntarget = \"tcp://127.0.0.1:0\"\nnodes = 2\n[[steps]]\nname = \"tiny\"\n\
                concurrency = 4\nwarmup_secs = 0\nthink_time_ms = [2, 6]\n";
    let guard = "[guard]\non_violation = \"warn\"\n";
    std::fs::write(&path, format!("{head}{lines}{guard}")).unwrap();
    path.display().to_string()
}

/// Whether something listens at this address.
fn is_up(address: &str) -> bool {
    TcpStream::connect(address.trim_start_matches("tcp://")).is_ok()
}

/// Starts a run that would take an hour, and returns the addresses and process ids of its two servers.
fn start_long_run(directory: &Path, lines: &str) -> (Process, Vec<String>, Vec<u32>) {
    let file = scenario(directory, &format!("duration_secs = 3600\n{lines}"));
    let out = directory.join("report").display().to_string();
    let mut run = Process::start(&["load", &file, "--plain", "--out", &out]);
    let line = run.expect("load test of ");
    let (_, targets) = line.split_once("load test of ").unwrap();
    let (targets, _) = targets.split_once(": 1 step").unwrap();
    let addresses: Vec<String> = targets.split(", ").map(str::to_owned).collect();
    assert_eq!(addresses.len(), 2, "{line}");
    run.expect(" sent ");
    let pids = children_of(run.pid());
    assert_eq!(pids.len(), 2, "{pids:?}");
    (run, addresses, pids)
}

/// The process ids of the children of a process.
fn children_of(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut pids: Vec<u32> = Vec::new();
    for thread in threads {
        let file = thread.unwrap().path().join("children");
        // A thread may have ended.
        let text = std::fs::read_to_string(file).unwrap_or_default();
        pids.extend(
            text.split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
    }
    pids
}

fn wait_until(fact: impl Fn() -> bool) {
    while !fact() {
        std::thread::yield_now();
    }
}

fn state_of(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether all threads of a process are stopped. Only then does the kernel count the process as stopped.
fn is_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.map(Result::unwrap).all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    })
}

#[test]
fn nodes_are_processes_of_their_own_that_come_back_and_end_with_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let faults = "pattern = \"pubsub\"\nduration_secs = 2\ndrain_ms = 500\n\
                  faults = [{ at_secs = 0.3, kill = \"node 2\" }, { at_secs = 0.6, restart = \"node 2\" }, \
                  { at_secs = 0.9, stop = \"node 1\" }, { at_secs = 1.2, continue = \"node 1\" }]\n";
    let file = scenario(directory.path(), faults);
    let out = directory.path().join("report");
    let output = command(&["load", &file, "--plain", "--out"])
        .arg(&out)
        .output()
        .unwrap();
    // Without a broker each node has its own topics, so messages between nodes are lost, and no fault explains the
    // loss.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report = std::fs::read(out.join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    let (step, detail) = (&report["steps"][0], &report["steps"][0]["detail"]);
    let names = |key: &str, name: &str| -> Vec<String> {
        let rows = detail[key].as_array().unwrap().iter();
        rows.map(|row| row[name].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names("processes", "name"), ["node 1", "node 2"]);
    let faults = [
        "kill node 2",
        "restart node 2",
        "stop node 1",
        "continue node 1",
    ];
    assert_eq!(names("faults", "what"), faults);
    let problems = step["problems"].as_array().unwrap();
    assert_eq!(problems.len(), 1, "{problems:?}");
    let losses = detail["losses"].as_object().unwrap();
    let sum: u64 = losses.values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(Some(sum), step["lost"].as_u64(), "{losses:?}");
    assert!(losses["unexplained"].as_u64() > Some(0) && detail["times"]["across"].is_null());
    assert!(step["total_received"].as_u64() > Some(0), "{step}");
    assert!(text.contains("kill node 2, done after"), "{text}");
    for address in report["target_server"].as_str().unwrap().split(", ") {
        assert!(!is_up(address), "{address} still has a server");
    }
}

/// Regression: the test killed the load test when the first thread of the server had stopped. On a busy machine the
/// kernel then saw no stopped process, and continued none.
#[test]
fn the_servers_end_when_the_load_test_is_killed_even_those_that_are_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let (run, addresses, pids) = start_long_run(directory.path(), "");
    assert!(addresses.iter().all(|address| is_up(address)));
    kill_process(Pid::from_raw(pids[1] as i32).unwrap(), Signal::STOP).unwrap();
    wait_until(|| is_stopped(pids[1]));
    run.kill();
    wait_until(|| {
        pids.iter()
            .all(|pid| matches!(state_of(*pid), None | Some('Z')))
    });
    assert!(!addresses.iter().any(|address| is_up(address)));
}

#[test]
fn an_interrupted_run_ends_its_servers_and_reports() {
    let directory = tempfile::tempdir().unwrap();
    let (run, addresses, pids) = start_long_run(directory.path(), "drain_ms = 100\n");
    run.signal(Signal::INT);
    let ended = run.wait();
    assert_eq!(ended.status.code(), Some(130), "{}", ended.text());
    assert!(directory.path().join("report/report.json").exists());
    assert!(!addresses.iter().any(|address| is_up(address)));
    assert!(pids.iter().all(|pid| state_of(*pid).is_none()));
}

#[test]
fn a_running_cluster_is_named_by_a_target_for_each_node() {
    let directory = tempfile::tempdir().unwrap();
    let lines = "duration_secs = 0.5\n";
    let file = scenario(directory.path(), lines);
    let out = directory.path().join("report");
    // One server with two addresses: messages between the addresses arrive.
    let mut server = Process::start(&[
        "serve",
        "--bind",
        "tcp://127.0.0.1:0",
        "--bind",
        "tcp://127.0.0.1:0",
    ]);
    let addresses = [(); 2].map(|()| {
        let line = server.expect("listening on ");
        line.trim_start_matches("listening on ").to_owned()
    });
    let [first, second] = &addresses;
    let targets = ["--target", first, "--target", second];
    let run = |more: &[&str]| {
        let mut command = command(&["load", &file, "--plain", "--out"]);
        command.arg(&out).args(targets).args(more).output().unwrap()
    };
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = std::fs::read(out.join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["target_server"], addresses.join(", "));
    let times = &report["steps"][0]["detail"]["times"];
    let count = |name: &str| times[name]["histogram"]["count"].as_u64().unwrap();
    assert_eq!(count("across") * 3, count("scheduled") * 2);
    let output = run(&["--target", "tls://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--server-name"));
    for (flags, told) in [
        (&["--nodes", "2"][..], "are for servers that are started"),
        (
            &["--serve", "--nodes", "3"],
            "3 servers cannot listen at 2 addresses",
        ),
    ] {
        let output = run(flags);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(told), "{text}");
    }
}

/// The `PATH` of this process, with nats-server in it; nothing if there is none.
fn path_with_nats() -> Option<OsString> {
    let program = NatsServer::program()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(program.parent().map(Path::to_owned));
    std::env::join_paths(directories).ok()
}

/// Runs a load test with these flags. Returns its output and its first step.
fn load(directory: &Path, path: &OsString, file: &str, flags: &[&str]) -> (Output, Value) {
    let out = directory.join("report");
    let mut command = command(&["load", file, "--plain", "--out"]);
    let command = command.arg(&out).args(flags).env("PATH", path);
    let output = command.output().unwrap();
    let report = std::fs::read(out.join("report.json"));
    let report = report.unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let report: Value = serde_json::from_slice(&report).unwrap();
    (output, report["steps"][0].clone())
}

/// Checks that nothing was lost between two nodes, and that these processes made the run.
fn assert_whole(output: &Output, step: &Value, processes: &[&str]) {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(step["total_received"], step["expected_received"]);
    let times = &step["detail"]["times"];
    let count = |name: &str| times[name]["histogram"]["count"].as_u64().unwrap();
    assert_eq!(count("across") * 3, count("scheduled") * 2);
    let rows = step["detail"]["processes"].as_array().unwrap().iter();
    let names: Vec<&Value> = rows.map(|process| &process["name"]).collect();
    assert_eq!(names, processes);
}

#[test]
fn a_cluster_of_the_flags_alone_loses_nothing_with_a_nats_of_its_own_or_another() {
    let (Some(path), Some(nats)) = (path_with_nats(), NatsServer::start("")) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let file = scenario(directory.path(), "duration_secs = 1\n");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("nodes = 2\n", "")).unwrap();
    let run = |backplane: &str| {
        let flags = ["--serve", "--nodes", "2", "--backplane", backplane];
        load(directory.path(), &path, &file, &flags)
    };
    let (output, step) = run("nats");
    assert_whole(&output, &step, &["node 1", "node 2", "nats"]);
    // Nothing is known of the process of another machine.
    let (output, step) = run(&nats.address());
    assert_whole(&output, &step, &["node 1", "node 2"]);
}

#[test]
fn a_cluster_with_faults_loses_nothing_without_a_cause() {
    let Some(path) = path_with_nats() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    // NATS and node 2 are stopped for longer than the silence after which a node is dead.
    let file = scenario(
        directory.path(),
        "duration_secs = 22\ndrain_ms = 3000\nfaults = [{ at_secs = 0.5, kill = \"node 2\" }, \
         { at_secs = 1, restart = \"node 2\" }, { at_secs = 2, kill = \"nats\" }, \
         { at_secs = 2.5, restart = \"nats\" }, { at_secs = 3.5, stop = \"nats\" }, \
         { at_secs = 9, continue = \"nats\" }, { at_secs = 10.5, stop = \"node 2\" }, \
         { at_secs = 20.5, continue = \"node 2\" }]\n",
    );
    let (output, step) = load(directory.path(), &path, &file, &["--backplane", "nats"]);
    let losses = &step["detail"]["losses"];
    let causes = losses.as_object().unwrap().values();
    let sum: u64 = causes.map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(Some(sum), step["lost"].as_u64(), "{step}");
    assert_eq!(losses["unexplained"], 0, "{step}");
    assert!(losses["told"].as_u64() > Some(0), "{step}");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_cluster_with_a_history_misses_nothing_over_deaths_of_a_node_and_of_nats() {
    let Some(path) = path_with_nats() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let (out, temporary) = (
        directory.path().join("report"),
        directory.path().join("run"),
    );
    std::fs::create_dir(&temporary).unwrap();
    let file = directory.path().join("history.toml");
    let text = "version = 2\ntarget = \"tcp://127.0.0.1:0\"\nnodes = 2\nbackplane = \"nats\"\n\
         history = { messages = 20000, bytes = 10000000 }\n[[steps]]\nname = \"kept\"\nconcurrency = 10\n\
         warmup_secs = 0\nthink_time_ms = [20, 60]\nduration_secs = 8\ndrain_ms = 3000\n\
         faults = [{ at_secs = 1, kill = \"node 2\" }, { at_secs = 2, restart = \"node 2\" }, \
         { at_secs = 4, kill = \"nats\" }, { at_secs = 5, restart = \"nats\" }]\n\
         [guard]\non_violation = \"warn\"\n";
    std::fs::write(&file, text).unwrap();
    let run = |more: &[&str]| {
        let mut command = command(&["load", "--plain", "--out"]);
        command.arg(&out).arg(&file).args(more);
        command.env("PATH", &path).env("TMPDIR", &temporary);
        command.output().unwrap()
    };
    let output = run(&[]);
    let report = std::fs::read(out.join("report.json"));
    let report = report.unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let report: Value = serde_json::from_slice(&report).unwrap();
    let step = &report["steps"][0];
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let losses = &step["detail"]["losses"];
    let unsaid = losses["sender_cut"].as_u64().unwrap_or(0);
    assert_eq!(Some(unsaid), step["lost"].as_u64(), "{step}");
    assert_eq!(
        (&step["duplicated"], &step["foreign"]),
        (&0.into(), &0.into())
    );
    assert_eq!(step["detail"]["faults"].as_array().unwrap().len(), 4);
    let kept = "messages=20000,bytes=10000000";
    assert_eq!(step["detail"]["workload"]["history"], kept);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains(kept), "{text}");
    let left = std::fs::read_dir(&temporary).unwrap().count();
    assert_eq!(left, 0, "the streams are removed");

    let output = run(&["--target", "tcp://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("leave `history` out, or let it start them with --serve"),
        "{text}"
    );
}

/// `examples/cluster/run` with this program, at these ports.
fn example(path: &OsString, ports: [u16; 3]) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_tidewire")).parent().unwrap();
    let directories = [program.to_owned()].into_iter();
    let path = std::env::join_paths(directories.chain(std::env::split_paths(path))).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cluster/run");
    let mut command = Command::new(file);
    let names = ["NATS_PORT", "LEFT_PORT", "RIGHT_PORT"];
    let ports = names.into_iter().zip(ports.map(|port| port.to_string()));
    command.env("PATH", path).envs(ports);
    command
}

/// The example while it runs. Its servers end with it, also when the test fails.
struct Example(Option<Process>);

impl Drop for Example {
    fn drop(&mut self) {
        let Some(run) = &self.0 else { return };
        run.signal(Signal::TERM);
        wait_until(|| state_of(run.pid()) == Some('Z'));
    }
}

#[test]
fn the_example_serves_a_chat_on_two_nodes_and_ends_them() {
    let Some(path) = path_with_nats() else {
        return;
    };
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let listeners = [listen(), listen(), listen()];
    let ports = listeners.map(|listener| listener.local_addr().unwrap().port());
    let mut example = Example(Some(Process::spawn(&mut example(&path, ports))));
    let run = example.0.as_mut().unwrap();
    run.expect("open both pages");
    let nodes = [("left", ports[1]), ("right", ports[2])];
    let expected = nodes.map(|(name, port)| format!("node {name}: http://127.0.0.1:{port}"));
    // Nodes may write warnings to stderr.
    let told: Vec<&String> = run
        .transcript()
        .iter()
        .filter(|line| line.starts_with("node "))
        .collect();
    assert_eq!(told, expected.iter().collect::<Vec<_>>());
    let is_up = |port: &u16| TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_ok();
    assert!(ports.iter().all(is_up), "{ports:?}");
    for (_, port) in nodes {
        let page = admin::ask(&format!("127.0.0.1:{port}"), "GET /", "");
        assert!(page.contains("<title>Tidewire chat</title>"), "{page}");
    }
    let chat =
        |(_, port): (&str, u16), name| Process::chat(&format!("ws://127.0.0.1:{port}"), name);
    let [mut ann, mut bob] = [chat(nodes[0], "ann"), chat(nodes[1], "bob")];
    ann.expect("* bob joined");
    ann.type_line("hello over there");
    bob.expect("[ann]: hello over there");
    bob.type_line("and back");
    ann.expect("[bob]: and back");
    // Not the interrupt: a shell cannot handle it where it was ignored at the start, as it is for background jobs of
    // scripts.
    run.signal(Signal::TERM);
    let ended = example.0.take().unwrap().wait();
    assert_eq!(ended.status.code(), Some(130), "{}", ended.text());
    assert!(!ports.iter().any(is_up), "{ports:?}");
}

/// Regression: nats-server ran for ever if a node had ended before, or ended with an error.
#[test]
fn the_example_ends_its_broker_also_when_a_node_has_failed() {
    let Some(path) = path_with_nats() else {
        return;
    };
    let listeners = [(); 3].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let ports = listeners.map(|listener| listener.local_addr().unwrap().port());
    let mut example = Example(Some(Process::spawn(&mut example(&path, ports))));
    let run = example.0.as_mut().unwrap();
    run.expect("open both pages");
    let mut children = children_of(run.pid());
    children.sort_unstable();
    let [broker, left, right] = children[..] else {
        panic!("{children:?}");
    };
    kill_process(Pid::from_raw(left as i32).unwrap(), Signal::KILL).unwrap();
    wait_until(|| matches!(state_of(left), None | Some('Z')));
    run.signal(Signal::TERM);
    let ended = example.0.take().unwrap().wait();
    assert_eq!(ended.status.code(), Some(130), "{}", ended.text());
    assert!([broker, right].iter().all(|pid| state_of(*pid).is_none()));
}

#[test]
fn the_example_takes_no_server_of_others_for_its_own() {
    let Some(path) = path_with_nats() else {
        return;
    };
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = other.local_addr().unwrap().port();
    let output = example(&path, [port, 1, 1]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = format!("error: port {port} is in use; choose another one with NATS_PORT\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), told);
}
