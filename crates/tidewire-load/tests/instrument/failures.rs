//! Logins that fail, receivers that vanish, servers that die: the run ends with a report that says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidewire_load::plan::{PlanError, RunOptions};
use tidewire_load::report::Conclusion;
use tidewire_load::run::{Observer, Progress, Silent};
use tidewire_testkit::fault_server::{Disconnect, Every, FaultPlan, FaultServer};

use crate::proof::run;
use crate::proof::{SEED, planned, prove, prove_watched, prove_with, scenario, step};

#[test]
fn refused_logins_are_counted_and_fail_the_run() {
    let proof = prove(FaultPlan {
        refuse_joins: Some(Every::nth(4)),
        ..FaultPlan::default()
    });
    proof.assert_failed();
    proof.assert_offered_agrees();
    let (step, server) = (proof.step(), proof.server);
    assert_eq!((server.joins, server.joins_refused), (9, 3));
    assert_eq!(step.total_login_failures, 3);
    assert_eq!(proof.amiss(), [0; 4]);
    // Each of the three would have received everything.
    let attempted = step.expected_received + 3 * step.total_sent;
    assert_eq!(
        step.success_rate,
        step.total_received as f64 / attempted as f64
    );
    assert!(
        step.problems
            .iter()
            .any(|problem| problem.contains("log in"))
    );
}

#[test]
fn a_run_without_a_login_has_no_success() {
    let proof = prove(FaultPlan {
        refuse_joins: Some(Every::nth(1)),
        ..FaultPlan::default()
    });
    proof.assert_failed();
    let step = proof.step();
    assert_eq!((step.total_login_failures, step.total_sent), (12, 0));
    assert_eq!((step.success_rate, step.expected_received), (0.0, 0));
}

#[test]
fn an_agent_that_was_refused_fails_once_even_if_its_connection_dies_later() {
    let proof = prove(FaultPlan {
        refuse_joins: Some(Every::nth(4)),
        die_after_messages: Some(100),
        ..FaultPlan::default()
    });
    proof.assert_failed();
    assert_eq!(proof.server.joins_refused, 3);
    assert_eq!(proof.step().total_login_failures, 3);
}

#[test]
fn a_receiver_that_is_cut_off_loses_exactly_its_remaining_deliveries() {
    let whole = step(12, 1.5);
    let plan = FaultPlan {
        disconnect: Some(Disconnect {
            receiver: 3,
            after_deliveries: 300,
        }),
        ..FaultPlan::default()
    };
    let proof = prove_with(plan, &scenario(std::slice::from_ref(&whole)), |_| {});
    proof.assert_failed();
    proof.assert_offered_agrees();
    let (step, server) = (proof.step(), proof.server);
    assert_eq!((server.disconnected, server.dropped), (1, 0));
    assert!(server.undeliverable > 0);
    assert_eq!(proof.amiss(), [server.undeliverable, 0, 0, 0]);
    assert_eq!(step.total_received, server.delivered);
    let worst = &step.detail.worst_receivers;
    let [cut] = &worst[..] else {
        panic!("one receiver was cut off: {worst:?}");
    };
    assert_eq!((cut.lost, cut.delivered), (server.undeliverable, 300));
    // The cut receiver was also a sender. Its unsent messages are errors, not a gap in the plan.
    assert!(step.total_send_errors > 0);
    assert_eq!(
        step.total_sent + step.total_send_errors,
        planned(&whole, SEED, 0)
    );
    let told = |problem: &String| problem.contains("lost their connection");
    assert!(step.problems.iter().any(told), "{:?}", step.problems);
}

#[test]
fn a_server_killed_in_the_middle_ends_the_run_with_its_losses_counted() {
    let whole = step(12, 2.0);
    // With a delay there are deliveries under way at every moment, so the death loses some for certain.
    let plan = FaultPlan {
        die_after_messages: Some(300),
        delay: Duration::from_millis(50),
        ..FaultPlan::default()
    };
    let proof = prove_with(plan, &scenario(std::slice::from_ref(&whole)), |_| {});
    proof.assert_failed();
    let (step, server) = (proof.step(), proof.server);
    assert_eq!(server.messages, 300);
    assert!(step.total_sent >= 300);
    assert!(step.total_received <= server.delivered + server.undeliverable);
    assert!(step.lost >= 11 && step.total_send_errors > 0, "{step:?}");
    assert_eq!(step.expected_received, step.total_sent * 11);
    assert!(step.total_sent + step.total_send_errors <= planned(&whole, SEED, 0));
    assert_eq!(proof.amiss()[1..], [0, 0, 0]);
    assert!(step.success_rate < 1.0);
    for told in ["lost their connection", "no connection was left"] {
        let tells = |problem: &String| problem.contains(told);
        assert!(step.problems.iter().any(tells), "{:?}", step.problems);
    }
}

#[test]
fn a_step_after_the_death_of_the_server_fails_too() {
    let plan = FaultPlan {
        die_after_messages: Some(50),
        ..FaultPlan::default()
    };
    let steps = [step(4, 1.0), step(4, 1.0)];
    let proof = prove_with(plan, &scenario(&steps), |_| {});
    assert_eq!(proof.report.conclusion(), Conclusion::Failed);
    assert_eq!(proof.report.steps.len(), 2);
    let second = &proof.report.steps[1];
    assert_eq!((second.total_login_failures, second.total_sent), (4, 0));
    assert_eq!(second.success_rate, 0.0);
}

#[test]
fn a_server_that_is_not_there_is_an_error_of_the_run() {
    let server = FaultServer::start(FaultPlan::default()).unwrap();
    let address = server.address();
    assert_eq!(server.finish().messages, 0);
    let options = RunOptions::new(vec![address.into()]);
    let error = run(&scenario(&[step(2, 1.0)]), options, &mut Silent).unwrap_err();
    assert!(matches!(error, PlanError::Target { .. }), "{error:?}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

/// Regression: of a name with several addresses, the run used the first, which had no server. A client found the
/// second.
#[test]
fn a_run_uses_the_address_of_a_name_that_answers() {
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    let nobody = std::net::SocketAddr::from(([127, 0, 0, 99], port));
    let proof = prove_with(
        FaultPlan::default(),
        &scenario(&[step(2, 1.0)]),
        |options| {
            options.names = vec![options.targets[0].clone().into()];
            options.targets = vec![nobody.into()];
        },
    );
    assert_eq!(proof.step().total_login_failures, 0);
    proof.assert_offered_agrees();
}

#[test]
fn a_run_stopped_from_outside_reports_its_results_so_far() {
    struct Impatient(Arc<AtomicBool>);

    impl Observer for Impatient {
        fn progress(&mut self, progress: &Progress) {
            if progress.sent > 0 {
                self.0.store(true, Ordering::Relaxed);
            }
        }
    }

    let stop = Arc::new(AtomicBool::new(false));
    let whole = step(8, 60.0);
    let proof = prove_watched(
        FaultPlan::default(),
        &scenario(std::slice::from_ref(&whole)),
        &mut Impatient(Arc::clone(&stop)),
        |options| options.stop = stop,
    );
    assert_eq!(proof.report.conclusion(), Conclusion::Interrupted);
    proof.assert_offered_agrees();
    let step = proof.step();
    // A build server does not see it as passed.
    assert!(
        step.problems[0].starts_with("the run was interrupted "),
        "{step:?}"
    );
    assert!(proof.report.to_junit().contains("errors=\"1\""));
    assert!(step.total_sent > 0 && step.total_sent < planned(&whole, SEED, 0));
    assert_eq!(proof.amiss(), [0; 4]);
}
