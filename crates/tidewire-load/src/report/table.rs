//! One step as a table for the terminal, what went wrong first.

use std::fmt::Write as _;

use tidewire_proto::text::visible;

use super::{Distribution, LaneCost, Report, StepDetail, StepReport};
use crate::format::{
    NONE_BELOW, NOT_KNOWN, counted, each_of, few, mebibytes, milliseconds, per_second, percent,
    processor_time, thousands, wrapped,
};
use crate::ledger::Losses;
use crate::page::machine_facts;
use crate::segment::Segment;

/// The table of one step for a terminal with so many columns: plain text without colours, ending with a line break.
/// Lines are broken between words. The table of times needs 76 columns; on a narrower terminal its columns follow in
/// groups.
pub fn step_table(step: &StepReport, columns: usize) -> String {
    let mut text = String::new();
    let verdict = step.verdict().name();
    let mut line = |line: String, indent| text.push_str(&wrapped(&line, columns, indent));
    line(
        format!("{}: {verdict}\n", visible(step.step_name.as_bytes())),
        2,
    );
    for problem in bad_news(step) {
        line(format!("  ! {}\n", visible(problem.as_bytes())), 4);
    }
    let facts = facts(step);
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in &facts {
        let value = visible(value.as_bytes());
        line(format!("  {name:<width$}  {value}\n"), width + 4);
    }
    line(format!("\n{}", times(step, columns)), 0);
    for note in remarks(step) {
        line(format!("  note: {}\n", visible(note.as_bytes())), 8);
    }
    text
}

/// The table of times, as many of its columns below each other as the terminal is wide.
fn times(step: &StepReport, columns: usize) -> String {
    let rows = time_rows(step);
    let fitting = columns.saturating_sub(TIME_NAME + 2) / TIME_CELL;
    let shown: Vec<usize> = (0..TIME_COLUMNS.len()).collect();
    let mut text = String::new();
    for group in shown.chunks(fitting.clamp(1, shown.len())) {
        let mut row = |name: &str, cells: &[String]| {
            let cells = group.iter().map(|column| &cells[*column]);
            let cells: String = cells.map(|cell| format!("{cell:>TIME_CELL$}")).collect();
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<TIME_NAME$}{cells}");
        };
        row("ms", &TIME_COLUMNS.map(str::to_owned));
        for (name, cells) in &rows {
            row(name, cells);
        }
    }
    text
}

/// The remarks on the step, those on its measurement first.
pub(super) fn remarks(step: &StepReport) -> Vec<String> {
    let disturbances = step.detail.verdict.disturbances.iter();
    let disturbances = disturbances.map(|disturbance| format!("disturbed: {disturbance}"));
    disturbances.chain(step.notes.iter().cloned()).collect()
}

/// The problems of the step, those of the measurement itself first.
pub(super) fn bad_news(step: &StepReport) -> Vec<String> {
    let reasons = step.detail.verdict.reasons.iter();
    let reasons = reasons.map(|reason| format!("INVALID: {reason}"));
    let violations = step.detail.slo.violations.iter();
    let violations = violations.map(|violation| format!("limit broken: {violation}"));
    let news = reasons.chain(violations);
    news.chain(step.problems.iter().cloned()).collect()
}

/// Everything about a step that is not a latency, as names and values in the order a reader needs them.
pub(super) fn facts(step: &StepReport) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if step.is_doubtful() {
        facts.push((
            "believe",
            "the counts of messages; not the rates and times".to_owned(),
        ));
    }
    if step.is_disturbed() {
        facts.push(("believe", BELIEVE_DISTURBED.to_owned()));
    }
    facts.extend(fates(step));
    facts.extend(rates(step));
    facts.push(("server", server(step)));
    facts.push((
        "client",
        processor_time(step.client.cpu_secs, step.test_duration_secs),
    ));
    let detail = &step.detail;
    facts.push(("model", model(detail)));
    facts.extend(cluster_facts(detail, step.test_duration_secs));
    let sides = &detail.cost;
    let client = cost(sides.client_ns_per_message, sides.client_lanes);
    let server = cost(sides.server_ns_per_message, sides.server_lanes);
    facts.extend([("client cost", client), ("server cost", server)]);
    if let Some(slow) = &detail.slow_receivers {
        let [lost, unconfirmed, expected] =
            [slow.lost, slow.unconfirmed, slow.expected].map(thousands);
        let (count, gone) = (slow.receivers, slow.disconnected);
        let row = format!(
            "{count} slow receivers missed {lost} of {expected}, {unconfirmed} unconfirmed, {gone} disconnected"
        );
        facts.push(("slow", row));
    }
    if let Some(worst) = detail.worst_receivers.first() {
        let (receiver, lost, late) = (worst.receiver, worst.lost, worst.late);
        let unconfirmed = match worst.unconfirmed {
            0 => String::new(),
            count => format!(", {count} unconfirmed"),
        };
        let row = format!("receiver {receiver}: {lost} lost{unconfirmed}, {late} late");
        facts.push(("worst", row));
    }
    facts
}

/// Rows about the cluster of a step that took so many seconds; none where there is one server.
fn cluster_facts(detail: &StepDetail, secs: f64) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if let Some(across) = &detail.times.across {
        let (p50, p99, p999) = (across.p50, across.p99, across.p999);
        let row = format!("from one node to another p50 {p50}, p99 {p99}, p99.9 {p999} ms");
        facts.push(("across", row));
    }
    for process in &detail.processes {
        let used = process.cpu_secs.map(|used| processor_time(used, secs));
        let used = used.unwrap_or_else(|| "not observed".to_owned());
        let memory = process.rss_bytes_max.map(mebibytes);
        let memory = memory.map_or(String::new(), |memory| format!(", {memory} at most"));
        facts.push(("process", format!("{}: {used}{memory}", process.name)));
    }
    for fault in &detail.faults {
        let (what, at, took) = (&fault.what, fault.at_secs, fault.took_secs);
        let row = format!("{at:.1} s: {what}, done after {took:.2} s");
        facts.push(("fault", row));
    }
    if let Some(limits) = &detail.workload.history {
        let row = format!("{limits}; agents that came back had to get all that was kept meanwhile");
        facts.push(("history", row));
    }
    facts.extend(detail.losses.map(|losses| ("causes", causes(&losses))));
    facts
}

fn causes(losses: &Losses) -> String {
    let causes = counted(&[
        (losses.unexplained, "without a known cause"),
        (losses.told, "announced by the server as a gap"),
        (losses.sender_cut, "at the end of their sender's connection"),
        (
            losses.receiver_cut,
            "on their way when the receiver's connection ended",
        ),
        (losses.away, "while the receiver had no connection"),
    ]);
    causes.join(", ")
}

/// The run, the machine and the build.
pub(super) fn run_facts(report: &Report) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        ("target", report.target_server.clone()),
        ("started", report.start_time_utc.clone()),
        ("ended", report.end_time_utc.clone()),
        ("duration", format!("{:.2} s", report.total_duration_secs)),
        ("model", report.model.clone()),
        ("seed", report.seed.to_string()),
        ("scenario", format!("version {}", report.scenario_version)),
    ];
    let encryption = report
        .steps
        .iter()
        .find_map(|it| it.server.encryption.clone());
    facts.extend(encryption.map(|encryption| ("encryption", encryption)));
    facts.extend(machine_facts(&report.env));
    let part = |segment: Segment| format!("part {} of {}", segment.part, segment.parts);
    facts.extend(report.segment.map(|segment| ("share", part(segment))));
    facts
}

/// The model of the step. A closed loop is named, because its latencies leave out the messages that wait unseen while a
/// reply is late.
fn model(detail: &StepDetail) -> String {
    let workload = &detail.workload;
    let (pattern, codec, model) = (&workload.pattern, &workload.codec, &workload.model);
    let window = &detail.window;
    let runs = match detail.runs.len() {
        0 => String::new(),
        count => format!(", {count} runs or parts"),
    };
    format!(
        "{pattern} over {codec}, {model} loop; warm-up {:.1} s, steady {:.1} s{runs}",
        window.warmup_secs, window.steady_secs
    )
}

/// The cost of one side for a message. Unknown figures are shown as unknown and not left out.
fn cost(cpu_ns: Option<f64>, lanes: Option<LaneCost>) -> String {
    let cpu =
        cpu_ns.map(|cpu_ns| format!("{} ns of processor time", thousands(cpu_ns.round() as u64)));
    let Some(lanes) = lanes else {
        return match cpu {
            Some(cpu) => format!("{cpu} a message; system calls and allocations not known"),
            None => "not known".to_owned(),
        };
    };
    let cpu = cpu.unwrap_or_else(|| "processor time not known".to_owned());
    let calls = each_of(lanes.system_calls_per_message, "system calls");
    let allocations = lanes
        .allocations_per_message
        .zip(lanes.allocated_bytes_per_message)
        .map(|(count, bytes)| {
            let allocations = each_of(count, "allocations");
            if count < NONE_BELOW {
                allocations
            } else {
                format!("{allocations} of {} bytes", few(bytes))
            }
        });
    let allocations = allocations.unwrap_or_else(|| "allocations not known".to_owned());
    format!("{cpu}, {calls}, {allocations} a message")
}

/// The fates of the messages. The rarer kinds of trouble have a line only when there was any.
fn fates(step: &StepReport) -> Vec<(&'static str, String)> {
    let [lost, expected] = [step.lost, step.expected_received].map(thousands);
    let success = percent(step.success_rate);
    let at_least = if step.unconfirmed > 0 {
        "at least "
    } else {
        ""
    };
    let row = format!("{lost} of {expected} expected (success {at_least}{success})");
    let mut fates = vec![("lost", row)];
    if step.unconfirmed > 0 {
        // Next to what was lost, so that neither is taken for the other.
        let row = format!("{} of {expected} expected", thousands(step.unconfirmed));
        fates.push(("unconfirmed", row));
    }
    fates.push(("irregular", irregular(step)));
    let counts = &step.detail.counts;
    if counts.unsent + counts.skipped > 0 {
        let [offered, unsent, skipped] =
            [counts.offered, counts.unsent, counts.skipped].map(thousands);
        let row = format!("{unsent} of {offered} due and never sent, {skipped} left out as late");
        fates.push(("not sent", row));
    }
    if step.foreign + step.invented > 0 {
        let [foreign, invented] = [step.foreign, step.invented].map(thousands);
        fates.push(("strange", format!("{foreign} foreign, {invented} invented")));
    }
    if step.total_login_failures + step.total_send_errors > 0 {
        let [logins, sends] = [step.total_login_failures, step.total_send_errors].map(thousands);
        fates.push(("failures", format!("{logins} logins, {sends} sends")));
    }
    fates
}

/// The irregular arrivals, or a remark that arrivals were not observed.
fn irregular(step: &StepReport) -> String {
    let kinds = [
        ("duplicated", step.duplicated),
        ("reordered", step.reordered),
        ("corrupt", step.corrupt),
        ("late", step.late),
    ];
    let known = kinds
        .iter()
        .filter_map(|(name, count)| Some(format!("{} {name}", thousands((*count)?))));
    let known: Vec<String> = known.collect();
    if known.is_empty() {
        "not checked: the server says only how many messages it has".to_owned()
    } else {
        known.join(", ")
    }
}

fn rates(step: &StepReport) -> [(&'static str, String); 3] {
    let [sent, received] = [step.total_sent, step.total_received].map(thousands);
    let offered = per_second(step.theoretical_tps);
    let steady_sent = per_second(step.steady.send_tps);
    let steady_received = step
        .steady
        .receive_tps
        .map_or_else(|| NOT_KNOWN.to_owned(), per_second);
    let whole = [step.send_tps, step.receive_tps].map(per_second);
    let (secs, attainment) = (step.test_duration_secs, step.attainment);
    let agents = thousands(u64::from(step.concurrency));
    let sent =
        format!("{sent}, steady {steady_sent} of {offered} offered (attainment {attainment:.3})");
    let received = format!("{received}, steady {steady_received}");
    let [send, receive] = whole;
    let whole = format!("{secs:.2} s with {agents} agents: sent {send}, received {receive}");
    [
        ("sent", sent),
        ("received", received),
        ("whole step", whole),
    ]
}

/// The times of a step by name, in the columns of [`TIME_COLUMNS`]: percentiles that count what never arrived, where
/// the report has them, and the largest and the mean of what did arrive. There is one row for each time, so that a name
/// has one meaning.
///
/// A disturbed time, which may be longer than it was without the disturbance, is marked by a star.
pub(super) fn time_rows(step: &StepReport) -> Vec<(String, [String; TIME_COLUMNS.len()])> {
    let named = step.detail.times.named();
    let shown = named.filter(|(name, _)| *name != "client lag");
    let row = |(name, times): (&str, &Distribution)| (marked(step, name), time_cells(times));
    shown.map(row).collect()
}

/// The name of a time of a step. A star marks a disturbed time: one that ends at the receiver. The others are the
/// instrument's own.
pub(super) fn marked(step: &StepReport, name: &str) -> String {
    let is_end_to_end = matches!(name, "scheduled" | "across" | "service");
    match step.is_disturbed() && is_end_to_end {
        true => format!("{name}*"),
        false => name.to_owned(),
    }
}

fn time_cells(times: &Distribution) -> [String; TIME_COLUMNS.len()] {
    let of_arrived = |ms: f64| match times.histogram.count {
        0 => NOT_KNOWN.to_owned(),
        _ => milliseconds(ms),
    };
    let [p50, p90, p95, p99, p999] =
        [times.p50, times.p90, times.p95, times.p99, times.p999].map(|known| known.to_string());
    let [max, mean] = [times.max_ms, times.mean_ms].map(of_arrived);
    [p50, p90, p95, p99, p999, max, mean]
}

fn server(step: &StepReport) -> String {
    let mut parts = Vec::new();
    if let Some(cpu_secs) = step.server.cpu_secs {
        parts.push(processor_time(cpu_secs, step.test_duration_secs));
    }
    if let Some(bytes) = step.server.rss_bytes_max {
        parts.push(format!("{} at most", mebibytes(bytes)));
    }
    if let Some(lanes) = step.server.lanes {
        let word = if lanes == 1 { "lane" } else { "lanes" };
        parts.push(format!("{lanes} {word}"));
    }
    if let Some(poller) = &step.server.poller {
        parts.push(poller.clone());
    }
    parts.extend(step.server.encryption.iter().map(|it| format!("over {it}")));
    if parts.is_empty() {
        "not observed".to_owned()
    } else {
        parts.join(", ")
    }
}

/// The part of a disturbed step that may be believed.
pub(super) const BELIEVE_DISTURBED: &str =
    "the counts and rates of messages; the times marked * include delays of this machine";

/// Percentiles first: they are what a reader looks for.
pub(super) const TIME_COLUMNS: [&str; 7] = ["p50", "p90", "p95", "p99", "p99.9", "max", "mean"];

const TIME_NAME: usize = 11;

const TIME_CELL: usize = 9;

/// The meaning of the columns.
pub(super) const ABOUT_TIMES: &str = "Percentiles count messages that never arrived as slower than all others; max and mean are of those that arrived.";
