//! Several servers: how agents are spread over them, and the fate of messages when connections to one of them break.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use tidewire::{Chat, History, PubSub, Server};
use tidewire_load::lane_account::LaneAccount;
use tidewire_load::plan::{PlanError, RunOptions, ServerProcess};
use tidewire_load::process::ProcessSample;
use tidewire_load::report::{Losses, Report, StepDetail, StepReport};
use tidewire_load::run::Silent;
use tidewire_load::scenario::FaultAction;
use tidewire_testkit::fault_server::{Every, FaultPlan};

use crate::proof::run;
use crate::proof::{Proof, SEED, assert_sound, prove_with};
use crate::workloads::{only, scenario};

/// A way to a server that can be cut off: the second address of it, as it were another node.
#[derive(Debug)]
struct Node {
    address: SocketAddr,
    is_up: Arc<AtomicBool>,
    /// The server does not come back.
    is_broken: bool,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Node {
    fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let node = Self {
            address: listener.local_addr().unwrap(),
            is_up: Arc::new(AtomicBool::new(true)),
            is_broken: false,
            streams: Arc::default(),
        };
        let (is_up, streams) = (Arc::clone(&node.is_up), Arc::clone(&node.streams));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if !is_up.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(server) else {
                    break;
                };
                let ends = [&client, &server].map(|stream| stream.try_clone().unwrap());
                streams.lock().unwrap().extend(ends);
                let other = [&client, &server].map(|stream| stream.try_clone().unwrap());
                thread::spawn(move || pump(client, server));
                let [client, server] = other;
                thread::spawn(move || pump(server, client));
            }
        });
        node
    }

    /// Ends all connections.
    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Passes bytes on until one side ends.
fn pump(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 4_096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

impl ServerProcess for Node {
    fn name(&self) -> &'static str {
        "node 2"
    }

    fn usage(&self) -> Option<ProcessSample> {
        None
    }

    fn lanes(&self) -> Option<LaneAccount> {
        None
    }

    fn ended_by_itself(&self) -> bool {
        self.is_broken
    }

    fn inflict(&self, action: FaultAction) -> Result<(), String> {
        match action {
            FaultAction::Kill => {
                self.is_up.store(false, Ordering::SeqCst);
                self.cut();
            }
            FaultAction::Restart => self.is_up.store(!self.is_broken, Ordering::SeqCst),
            // Nothing is to happen to connections then.
            FaultAction::Continue => self.cut(),
            FaultAction::Stop => return Err("it cannot".to_owned()),
        }
        Ok(())
    }
}

/// A chat of eight agents, half of them at a node that is gone for a while.
const WITH_FAULTS: &str = "concurrency = 8\nduration_secs = 2\nthink_time_ms = [2, 6]\ndrain_ms = 700\n\
    faults = [{ at_secs = 0.4, kill = \"node 2\" }, { at_secs = 0.8, restart = \"node 2\" }]\n\
    [guard]\non_violation = \"warn\"\n";

fn prove_with_faults(plan: FaultPlan, lines: &str) -> Proof {
    prove_with_node(plan, lines, false)
}

fn prove_with_node(plan: FaultPlan, lines: &str, is_broken: bool) -> Proof {
    prove_with(plan, &scenario(lines), |options| {
        let first = options.targets[0].socket_address().unwrap();
        let node = Node {
            is_broken,
            ..Node::before(first)
        };
        options.targets.push(node.address.into());
        options.processes.push(Arc::new(node));
    })
}

fn losses(proof: &Proof) -> (&StepReport, &StepDetail, Losses) {
    let (step, detail) = only(&proof.report);
    (step, detail, detail.losses.unwrap_or_default())
}

#[test]
fn agents_are_spread_over_all_targets_and_deliveries_between_them_have_a_row() {
    for pattern in ["chat", "pubsub"] {
        let builder = Server::builder()
            .listen("tcp://127.0.0.1:0")
            .and_then(|builder| builder.listen("tcp://127.0.0.1:0"))
            .unwrap();
        let server = match pattern {
            "chat" => builder.start(|_| Chat::new()).unwrap(),
            _ => builder.start(|_| PubSub::new()).unwrap(),
        };
        let lines = format!(
            "pattern = \"{pattern}\"\nconcurrency = 6\nduration_secs = 0.5\nthink_time_ms = [2, 6]\n"
        );
        let mut options = RunOptions::new(server.addresses().to_vec());
        options.seed = SEED;
        options.late_ms = u64::MAX;
        let report = run(&scenario(&lines), options.clone(), &mut Silent).unwrap();
        assert_sound(&report);
        let (step, detail) = only(&report);
        assert_eq!(step.problems, Vec::<String>::new());
        assert_eq!(step.expected_received, step.total_received);
        assert_eq!(report.target_server, options.addresses());
        // Three of five receivers are elsewhere, or of six where senders hear themselves.
        let receivers = if pattern == "chat" { 5 } else { 6 };
        let across = detail.times.across.as_ref().unwrap().histogram.count;
        assert_eq!(
            across * receivers,
            detail.times.scheduled.histogram.count * 3
        );
        let last = detail.series.last().unwrap();
        assert_eq!(last.connected, [3, 3]);
    }
}

#[test]
fn every_loss_has_its_cause_when_the_connections_of_a_node_break() {
    let proof = prove_with_faults(FaultPlan::default(), WITH_FAULTS);
    let (step, detail, losses) = losses(&proof);
    assert_eq!(step.problems, Vec::<String>::new());
    let faults: Vec<&str> = detail
        .faults
        .iter()
        .map(|fault| fault.what.as_str())
        .collect();
    assert_eq!(faults, ["kill node 2", "restart node 2"]);
    assert!(step.lost > 0 && losses.away > 0, "{losses:?}");
    assert_eq!((losses.told, losses.unexplained), (0, 0), "{losses:?}");
    assert_eq!(step.expected_received, step.total_sent * 7);
    let told = |note: &String| note.contains("4 agents lost their connection");
    assert!(step.notes.iter().any(told), "{:?}", step.notes);
    assert!(
        step.total_send_errors > 0,
        "those who were away could not send"
    );
}

#[test]
fn a_connection_that_ends_without_a_fault_of_its_node_is_a_problem_though_its_losses_have_causes() {
    let lines = WITH_FAULTS
        .replace("kill", "continue")
        .replace(", { at_secs = 0.8, restart = \"node 2\" }", "");
    let proof = prove_with_faults(FaultPlan::default(), &lines);
    proof.assert_failed();
    let (step, _, losses) = losses(&proof);
    assert_eq!(losses.unexplained, 0, "{losses:?}");
    let told = "4 connections ended that no fault of their node explains";
    assert_eq!(step.problems, [told]);
}

#[test]
fn a_node_that_does_not_come_back_is_a_problem_though_all_it_misses_has_a_cause() {
    let proof = prove_with_node(FaultPlan::default(), WITH_FAULTS, true);
    proof.assert_failed();
    let (step, _, losses) = losses(&proof);
    assert!(losses.away > 0 && losses.unexplained == 0, "{losses:?}");
    let told = [
        "4 agents did not get their connection back, though no fault holds up their node",
        "node 2 ended by itself",
    ];
    assert_eq!(step.problems, told);
}

#[test]
fn gaps_that_the_server_announces_explain_losses_and_silent_ones_fail_the_step() {
    let dropping = |announces_drops| FaultPlan {
        drop: Some(Every::nth(50)),
        announces_drops,
        ..FaultPlan::default()
    };
    let proof = prove_with_faults(dropping(true), WITH_FAULTS);
    let (step, _, found) = losses(&proof);
    assert_eq!(step.problems, Vec::<String>::new());
    assert!(
        found.told > 0 && found.told <= proof.server.dropped,
        "{found:?}"
    );
    assert_eq!(found.unexplained, 0, "{found:?}");

    let proof = prove_with_faults(dropping(false), WITH_FAULTS);
    let (step, _, found) = losses(&proof);
    proof.assert_failed();
    assert!(
        found.unexplained > 0 && found.unexplained <= proof.server.dropped,
        "{found:?}"
    );
    assert_eq!(found.told, 0);
    let told = |problem: &String| problem.contains("that no fault explains");
    assert!(step.problems.iter().any(told), "{:?}", step.problems);
}

#[test]
fn without_faults_announced_losses_are_told_apart_and_still_fail_the_step() {
    let plan = FaultPlan {
        drop: Some(Every::nth(50)),
        announces_drops: true,
        ..FaultPlan::default()
    };
    let lines = "concurrency = 8\nduration_secs = 0.5\nthink_time_ms = [2, 6]\ndrain_ms = 700\n";
    let proof = prove_with(plan, &scenario(lines), |_| {});
    proof.assert_failed();
    let (step, _, found) = losses(&proof);
    assert_eq!((found.told, found.unexplained), (proof.server.dropped, 0));
    assert_eq!(step.lost, proof.server.dropped);
}

/// Runs the chat with faults against a server that keeps this history.
fn run_with_history(history: History) -> Report {
    let server = Server::builder().listen("tcp://127.0.0.1:0").unwrap();
    let server = server.start(|_| Chat::new().history(history)).unwrap();
    let mut options = RunOptions::new(server.addresses().to_vec());
    options.seed = SEED;
    let node = Node::before(options.targets[0].socket_address().unwrap());
    options.targets.push(node.address.into());
    options.processes.push(Arc::new(node));
    let mut steps = scenario(WITH_FAULTS);
    steps.history = Some(history);
    let report = run(&steps, options, &mut Silent).unwrap();
    assert_sound(&report);
    report
}

#[test]
fn agents_recover_by_position_so_only_unsent_messages_are_missing() {
    let report = run_with_history(History {
        messages_max: 100_000,
        bytes_max: 1 << 26,
        ..History::default()
    });
    let (step, detail) = only(&report);
    assert_eq!(step.problems, Vec::<String>::new());
    let losses = detail.losses.unwrap_or_default();
    assert_eq!(losses.sender_cut, step.lost, "{losses:?}");
    assert_eq!((step.duplicated, step.foreign), (Some(0), 0));
    assert_eq!(step.expected_received, step.total_sent * 7);
    assert!(step.notes.iter().any(|note| note.contains("4 agents lost")));
    let kept = "messages=100000,bytes=67108864";
    assert_eq!(detail.workload.history.as_deref(), Some(kept));
}

#[test]
fn a_history_that_is_too_short_for_the_absence_fails_the_step() {
    let report = run_with_history(History::last(20));
    let (step, detail) = only(&report);
    let losses = detail.losses.unwrap_or_default();
    assert!(losses.away > 0, "{losses:?}");
    assert_eq!(losses.unexplained, 0, "{losses:?}");
    let told = "that the history should have brought";
    assert!(step.problems[0].contains(told), "{:?}", step.problems);
    let told = "the server itself announced";
    assert!(step.notes.iter().any(|note| note.contains(told)));
    assert_eq!(step.duplicated, Some(0));
}

#[test]
fn a_history_needs_servers_that_the_run_starts() {
    let server = Server::builder().listen("tcp://127.0.0.1:0").unwrap();
    let server = server.start(|_| Chat::new()).unwrap();
    let mut steps = scenario("concurrency = 2\nduration_secs = 1\nthink_time_ms = [2, 6]\n");
    steps.history = Some(History::default());
    let options = RunOptions::new(server.addresses().to_vec());
    let error = run(&steps, options, &mut Silent).unwrap_err();
    assert!(matches!(error, PlanError::NoHistory), "{error:?}");
}

#[test]
fn a_fault_needs_its_process_and_one_that_fails_is_a_problem() {
    let steps = scenario(WITH_FAULTS);
    let server = Server::builder().listen("tcp://127.0.0.1:0").unwrap();
    let server = server.start(|_| Chat::new()).unwrap();
    let mut options = RunOptions::new(server.addresses().to_vec());
    let error = run(&steps, options.clone(), &mut Silent).unwrap_err();
    assert!(matches!(error, PlanError::NoProcess(..)), "{error:?}");
    assert!(error.to_string().contains("\"node 2\""), "{error}");

    let first = options.targets[0].socket_address().unwrap();
    options.processes.push(Arc::new(Node::before(first)));
    let lines = WITH_FAULTS
        .replace("kill", "stop")
        .replace("duration_secs = 2", "duration_secs = 1");
    let report = run(&scenario(&lines), options, &mut Silent).unwrap();
    assert_sound(&report);
    let problems = &only(&report).0.problems;
    let told = |problem: &String| problem.contains("\"stop node 2\" failed: it cannot");
    assert!(problems.iter().any(told), "{problems:?}");
}
