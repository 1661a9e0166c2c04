//! The choice of the limit among several bare loops, and the programs that pass it.

use super::*;

fn limits(plan: &RowPlan, loops: &[(&str, Figures)]) -> LimitFigures {
    let mut limits = LimitFigures::default();
    for (name, figures) in loops {
        limits.add(plan, name, figures.clone());
    }
    limits
}

fn peers(figures: Figures) -> BTreeMap<String, PeerFigures> {
    let peer = PeerFigures {
        version: String::new(),
        ratio: None,
        ratio_ci95: None,
        drops: false,
        figures,
    };
    BTreeMap::from([("by hand".to_owned(), peer)])
}

#[test]
fn the_best_of_several_bare_loops_is_the_limit_and_its_name_is_told() {
    let plan = plan(Metric::MESSAGES);
    let ours = figures(&outcomes([900, 900, 900]));
    let loops = [
        ("slow", figures(&outcomes([500, 500, 500]))),
        ("fast", figures(&outcomes([1_000, 1_000, 1_000]))),
        ("broken", failed()),
        // Faster, but not all of it came.
        ("lossy", figures(&[outcome(2_000, 7, 0)])),
        ("behind", {
            let mut behind = figures(&outcomes([3_000, 3_000, 3_000]));
            behind.holds = Some(false);
            behind
        }),
    ];
    for from in 0..loops.len() {
        let mut order = loops.to_vec();
        order.rotate_left(from);
        let row = RowResult::of(&plan, ours.clone(), limits(&plan, &order), BTreeMap::new());
        assert_eq!(row.limit_loop.as_deref(), Some("fast"));
        assert_eq!(row.limit_ratio, Some(0.9));
        let others: Vec<&String> = row.other_limits.keys().collect();
        assert_eq!(others, ["behind", "broken", "lossy", "slow"]);
        let report = report(vec![row]);
        // The limit is sound, so the loops that failed fail nothing.
        assert_eq!(report.faults(), Vec::<String>::new());
        let markdown = report.to_markdown();
        assert!(
            markdown.contains("1,000 [1,000–1,000]: fast |"),
            "{markdown}"
        );
        assert!(
            markdown.contains("other bare loops: behind: "),
            "{markdown}"
        );
        let page = report.to_html();
        assert!(page.contains("limit (fast)") && page.contains("bare loop, slow"));
    }
}

#[test]
fn a_limit_of_times_is_the_loop_with_the_smallest() {
    let metric = Metric {
        lower_is_better: true,
        ..Metric::MESSAGES
    };
    let plan = plan(metric);
    let of = |rates| Figures::of(&plan, &outcomes(rates), None);
    let loops = [("slow", of([500; 3])), ("fast", of([400; 3]))];
    let limits = limits(&plan, &loops);
    assert_eq!(limits.name.as_deref(), Some("fast"));
}

#[test]
fn a_limit_that_somebody_passes_is_named_as_a_defect() {
    let plan = plan(Metric::MESSAGES);
    let row = |ours, peer, plan: &RowPlan| {
        let limit = figures(&outcomes([1_000, 1_000, 1_000]));
        let limit = limits(plan, &[("", limit)]);
        RowResult::of(plan, figures(&outcomes(ours)), limit, peers(peer))
    };
    let good = || figures(&outcomes([900, 900, 900]));
    for (ours, peer, passed) in [
        ([900; 3], good(), &[][..]),
        ([1_100; 3], good(), &["tidewire"]),
        // The difference of two runs of one program, and one that is within the noise.
        ([1_040; 3], good(), &[]),
        ([990, 1_200, 1_200], good(), &[]),
        ([900; 3], figures(&outcomes([1_500; 3])), &["by hand"]),
        (
            [1_100; 3],
            figures(&outcomes([1_500; 3])),
            &["tidewire", "by hand"],
        ),
        // Fast by losing.
        ([900; 3], figures(&[outcome(5_000, 1, 0)]), &[]),
    ] {
        let row = row(ours, peer, &plan);
        assert_eq!(row.limit_passed_by, passed);
        assert_eq!(row.marks().contains(&"limit passed"), !passed.is_empty());
        let is_told = report(vec![row])
            .to_markdown()
            .contains("the bare loop is no limit here, because it was slower than");
        assert_eq!(is_told, !passed.is_empty());
    }
    let beside = plan.beside(Work::default());
    assert!(row([1_100; 3], good(), &beside).limit_passed_by.is_empty());
}
