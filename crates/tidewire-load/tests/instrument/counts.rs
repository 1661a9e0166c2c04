//! The fate of messages: the instrument's counts are the server's own.

use std::time::Duration;

use tidewire::{Context, HandlerResult, Kind, Message, PubSub, Service};
use tidewire_load::report::Conclusion;
use tidewire_load::scenario::Step;
use tidewire_testkit::fault_server::{Every, FaultPlan, Stall};

use crate::proof::{
    LONGER_THAN_A_SECOND, SEED, at_once, planned, prove, prove_with, scenario, step,
};
use crate::workloads;

#[test]
fn a_faultless_server_gets_exactly_full_marks() {
    at_once([1, 2], |lanes| {
        let whole = step(12, 1.0);
        let proof = prove_with(
            FaultPlan::default(),
            &scenario(std::slice::from_ref(&whole)),
            |options| options.lanes = lanes,
        );
        proof.assert_passed();
        proof.assert_offered_agrees();
        let step = proof.step();
        assert_eq!(step.total_sent, planned(&whole, SEED, 0));
        assert_eq!(step.total_received, step.expected_received);
        assert_eq!(step.total_received, proof.server.delivered);
        assert_eq!((step.success_rate, step.error_rate), (1.0, 0.0));
        assert_eq!(proof.amiss(), [0; 4]);
        assert_eq!((step.foreign, step.invented, step.late), (0, 0, Some(0)));
        assert_eq!((step.total_send_errors, step.total_login_failures), (0, 0));
        assert_eq!(step.receivers_tracked, 12);
        assert_eq!(step.receivers_unresolved, 0);
    });
}

#[test]
fn every_hundredth_delivery_dropped_is_found_lost_to_the_last_one() {
    let proof = prove(FaultPlan {
        drop: Some(Every::nth(100)),
        ..FaultPlan::default()
    });
    proof.assert_failed();
    proof.assert_offered_agrees();
    let (step, server) = (proof.step(), proof.server);
    assert!(server.dropped >= 50, "{server:?}");
    assert_eq!(proof.amiss(), [server.dropped, 0, 0, 0]);
    assert_eq!(step.total_received, server.delivered);
    let share = 1.0 - step.lost as f64 / step.expected_received as f64;
    assert!((step.success_rate - share).abs() < 1e-12 && step.success_rate < 1.0);
}

#[test]
fn a_single_lost_delivery_fails_the_run() {
    let proof = prove(FaultPlan {
        drop: Some(Every::nth(1_000).times_max(1)),
        ..FaultPlan::default()
    });
    proof.assert_failed();
    assert_eq!((proof.amiss(), proof.server.dropped), ([1, 0, 0, 0], 1));
    assert!(proof.step().success_rate < 1.0);
}

#[test]
fn duplicates_are_counted_and_never_as_received() {
    let proof = prove(FaultPlan {
        duplicate: Some(Every::nth(70)),
        ..FaultPlan::default()
    });
    proof.assert_failed();
    proof.assert_offered_agrees();
    let (step, server) = (proof.step(), proof.server);
    assert!(server.duplicated >= 70, "{server:?}");
    assert_eq!(proof.amiss(), [0, server.duplicated, 0, 0]);
    assert_eq!(step.total_received, step.expected_received);
    assert_eq!(
        step.total_received + step.duplicated.unwrap(),
        server.delivered
    );
}

#[test]
fn duplicates_do_not_shorten_the_wait_for_messages_in_flight() {
    // The surplus of duplicates exceeds the messages that the stall holds back, so a sum of arrivals looks complete.
    let whole = Step {
        drain_ms: LONGER_THAN_A_SECOND,
        ..step(12, 1.5)
    };
    let plan = FaultPlan {
        duplicate: Some(Every::nth(5)),
        stall: Some(Stall {
            at_message: planned(&whole, SEED, 0) - 20,
            duration: Duration::from_secs(1),
        }),
        ..FaultPlan::default()
    };
    let proof = prove_with(plan, &scenario(&[whole]), |_| {});
    proof.assert_failed();
    proof.assert_offered_agrees();
    assert_eq!(proof.server.undeliverable, 0, "the run left too early");
    assert_eq!(proof.amiss(), [0, proof.server.duplicated, 0, 0]);
}

#[test]
fn as_many_duplicates_as_losses_do_not_cancel() {
    let proof = prove(FaultPlan {
        drop: Some(Every::nth(90).times_max(40)),
        duplicate: Some(Every::nth(90).times_max(40)),
        ..FaultPlan::default()
    });
    proof.assert_failed();
    let (step, server) = (proof.step(), proof.server);
    assert_eq!((server.dropped, server.duplicated), (40, 40));
    assert_eq!(server.delivered, step.expected_received);
    assert_eq!(proof.amiss(), [40, 40, 0, 0]);
    assert!(step.success_rate < 1.0);
}

#[test]
fn a_duplicate_in_the_place_of_a_lost_message_hides_nothing() {
    // Every pair of sender and receiver sees the right number of messages; only their identity is wrong.
    let proof = prove(FaultPlan {
        substitute: Some(Every::nth(60)),
        ..FaultPlan::default()
    });
    proof.assert_failed();
    proof.assert_offered_agrees();
    let server = proof.server;
    assert!(server.substituted >= 70, "{server:?}");
    assert_eq!(
        proof.amiss(),
        [server.substituted, server.substituted, 0, 0]
    );
    assert_eq!(server.delivered, server.offered);
}

#[test]
fn swapped_neighbours_are_reordered_and_none_is_lost() {
    let proof = prove(FaultPlan {
        swap: Some(Every::nth(40)),
        ..FaultPlan::default()
    });
    proof.assert_failed();
    proof.assert_offered_agrees();
    let (step, server) = (proof.step(), proof.server);
    assert!(server.swapped >= 70, "{server:?}");
    assert_eq!(proof.amiss(), [0, 0, server.swapped, 0]);
    assert_eq!(step.total_received, step.expected_received);
    assert_eq!(step.success_rate, 1.0);
}

#[test]
fn one_flipped_bit_is_corrupt_and_its_message_lost() {
    let proof = prove(FaultPlan {
        corrupt: Some(Every::nth(80)),
        ..FaultPlan::default()
    });
    proof.assert_failed();
    proof.assert_offered_agrees();
    let server = proof.server;
    assert!(server.corrupted >= 70, "{server:?}");
    assert_eq!(proof.amiss(), [server.corrupted, 0, 0, server.corrupted]);
    assert_eq!(
        (proof.step().foreign, proof.step().invented),
        (0, 0),
        "a broken stamp is believed in no part"
    );
}

#[test]
fn an_echo_to_the_sender_is_foreign_and_hides_no_loss() {
    let proof = prove(FaultPlan {
        echo: Some(Every::nth(20).times_max(30)),
        drop: Some(Every::nth(200).times_max(30)),
        ..FaultPlan::default()
    });
    proof.assert_failed();
    proof.assert_offered_agrees();
    assert_eq!((proof.server.echoed, proof.server.dropped), (30, 30));
    assert_eq!(proof.step().foreign, 30);
    assert_eq!(proof.amiss(), [30, 0, 0, 0]);
}

#[test]
fn losses_the_server_admits_are_noted_and_still_lost() {
    let proof = prove(FaultPlan {
        drop: Some(Every::nth(100).times_max(25)),
        announces_drops: true,
        ..FaultPlan::default()
    });
    proof.assert_failed();
    assert_eq!(proof.amiss(), [25, 0, 0, 0]);
    let notes = &proof.step().notes;
    let admits = |note: &String| note.contains("announced 25 dropped");
    assert!(notes.iter().any(admits), "{notes:?}");
}

#[test]
fn all_faults_at_once_are_distinguished() {
    at_once(0..3, |seed| {
        let proof = prove(FaultPlan {
            seed,
            drop: Some(Every::nth(50)),
            duplicate: Some(Every::nth(60)),
            corrupt: Some(Every::nth(70)),
            swap: Some(Every::nth(40)),
            ..FaultPlan::default()
        });
        proof.assert_failed();
        proof.assert_offered_agrees();
        let server = proof.server;
        let expected = [
            server.dropped + server.corrupted,
            server.duplicated,
            server.swapped,
            server.corrupted,
        ];
        assert!(expected.iter().all(|count| *count >= 50), "{server:?}");
        assert_eq!(proof.amiss(), expected, "seed {seed}");
        assert_eq!(
            proof.step().total_received,
            server.offered - server.dropped - server.corrupted
        );
    });
}

#[test]
fn each_step_answers_for_its_own_losses() {
    let steps = [step(6, 0.8), step(10, 0.8)];
    let plan = FaultPlan {
        drop: Some(Every::nth(40)),
        ..FaultPlan::default()
    };
    let proof = prove_with(plan, &scenario(&steps), |_| {});
    assert_eq!(proof.report.conclusion(), Conclusion::Failed);
    let [first, second] = &proof.report.steps[..] else {
        panic!("{:?}", proof.report);
    };
    for (number, (report, planned_step)) in [first, second].into_iter().zip(&steps).enumerate() {
        assert_eq!(report.total_sent, planned(planned_step, SEED, number as u8));
        let receivers = u64::from(planned_step.concurrency) - 1;
        assert_eq!(report.expected_received, report.total_sent * receivers);
        // Every 40th delivery over the whole run: a step has its share, plus or minus one.
        let share = report.expected_received / 40;
        assert!(report.lost.abs_diff(share) <= 1, "{}", report.lost);
    }
    assert_eq!(first.lost + second.lost, proof.server.dropped);
    assert_eq!(
        first.expected_received + second.expected_received,
        proof.server.offered
    );
}

#[test]
fn every_byte_of_a_longer_body_is_checked_in_chat_and_in_echoes() {
    let patterns = [
        "pattern = \"chat\"\n",
        "pattern = \"request\"\n",
        "pattern = \"echo\"\n",
    ];
    let faults = [
        FaultPlan {
            corrupt: Some(Every::nth(40)),
            ..FaultPlan::default()
        },
        FaultPlan {
            cut: Some(Every::nth(40)),
            ..FaultPlan::default()
        },
    ];
    // The stamp alone, one byte more, and a message that is nearly all body.
    let cases = patterns
        .iter()
        .flat_map(|pattern| [28, 29, 700].map(|bytes| (pattern, bytes)));
    let cases =
        cases.flat_map(|(pattern, bytes)| faults.each_ref().map(|plan| (pattern, bytes, plan)));
    at_once(cases, |(pattern, bytes, plan)| {
        let lines = format!(
            "{pattern}model = \"open\"\nrate = 400\nconcurrency = 4\nduration_secs = 0.5\n\
             payload_bytes = {bytes}\ndrain_ms = 700\n"
        );
        let proof = prove_with(plan.clone(), &workloads::scenario(&lines), |_| {});
        let server = proof.server;
        let spoilt = server.corrupted + server.cut;
        assert!(spoilt > 0, "{lines}{server:?}");
        // A spoilt message is no delivery, so it is lost.
        assert_eq!(proof.amiss(), [spoilt, 0, 0, spoilt], "{lines}{server:?}");
        proof.assert_failed();
    });
}

/// Passes publications on, every tenth of them with its last byte changed, cut or doubled.
struct Spoiling {
    topics: PubSub,
    seen: u64,
}

impl Service for Spoiling {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if message.kind != Kind::Publish {
            return self.topics.on_message(cx, message);
        }
        self.seen += 1;
        let mut payload = message.payload.to_vec();
        let last = payload.pop().unwrap_or_default();
        match self.seen % 30 {
            0 => payload.push(last ^ 1),
            10 => {}
            20 => payload.extend([last, last]),
            _ => payload.push(last),
        }
        let payload = &payload;
        self.topics.on_message(cx, Message { payload, ..message })
    }
}

#[test]
fn every_byte_of_a_longer_body_is_checked_in_pubsub() {
    for bytes in [29, 400] {
        let lines = format!(
            "pattern = \"pubsub\"\nmodel = \"open\"\nrate = 600\nconcurrency = 3\nduration_secs = 0.5\n\
             payload_bytes = {bytes}\n"
        );
        let topics = PubSub::new();
        let spoiling = |_| Spoiling {
            topics: topics.clone(),
            seen: 0,
        };
        let report = workloads::run_against("tw1", spoiling, &lines, |_| {});
        let (step, _) = workloads::only(&report);
        assert_eq!(step.total_sent, 300, "{bytes}");
        assert_eq!((step.corrupt, step.lost), (Some(90), 90), "{bytes}");
        assert_eq!(step.total_received, 810, "{bytes}");
        assert!(!step.problems.is_empty(), "{step:?}");
    }
}
