//! The report in forms for other programs: CSV for tables, JUnit for build servers, HdrHistogram logs for its tools.

use std::fmt::Write as _;

use tidewire_proto::text::visible;

use super::table::{bad_news, remarks};
use super::{Percentile, Report, Status, StepDetail, StepReport};
use crate::format::markup;

impl Report {
    /// One line a step with the figures people compare, comma-separated, with a heading. What is not known is empty, an
    /// infinite percentile is `inf`. Costs are by the message; `offered`, `unsent` and `skipped` are messages of the
    /// whole step.
    pub fn to_csv(&self) -> String {
        let mut text = String::from(
            "step,pattern,codec,model,offered_tps,send_tps,receive_tps,expected,lost,unconfirmed,duplicated,reordered,corrupt,\
             p50_ms,p99_ms,p999_ms,service_p99_ms,send_lag_p99_ms,client_cpu_pct,server_cpu_pct,verdict,slo,\
             client_cpu_ns,client_system_calls,client_allocations,client_allocated_bytes,\
             server_cpu_ns,server_system_calls,server_allocations,server_allocated_bytes,\
             offered,unsent,skipped,attainment\n",
        );
        for step in &self.steps {
            text.push_str(&csv_line(step).join(","));
            text.push('\n');
        }
        text
    }

    /// One test case a step, failed with its reasons if it is invalid, breaks a limit or has a problem. The step in
    /// which a run was interrupted is an error, and those that were not begun are skipped.
    pub fn to_junit(&self) -> String {
        let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let (count, skipped) = (self.steps.len() + self.not_run.len(), self.not_run.len());
        let secs = self.total_duration_secs;
        let (mut failed, mut errors, mut cases) = (0, 0, String::new());
        for (index, step) in self.steps.iter().enumerate() {
            let is_cut = self.status == Status::Interrupted && index + 1 == self.steps.len();
            let texts = failures(step);
            let result = match is_cut {
                true => "error",
                false => "failure",
            };
            failed += u32::from(!texts.is_empty() && !is_cut);
            errors += u32::from(!texts.is_empty() && is_cut);
            let (name, secs) = (markup(&step.step_name), step.test_duration_secs);
            // Writing to a string cannot fail.
            let _ = write!(
                cases,
                "  <testcase classname=\"tidewire.load\" name=\"{name}\" time=\"{secs:.3}\">"
            );
            if let Some(first) = texts.first() {
                let (first, all) = (markup(first), markup(&texts.join("\n")));
                let _ = write!(cases, "<{result} message=\"{first}\">{all}</{result}>");
            }
            let mut doubts = match step.is_doubtful() && !step.is_refused() {
                true => bad_news(step),
                false => Vec::new(),
            };
            if step.is_disturbed() {
                doubts.extend(remarks(step));
            }
            if !doubts.is_empty() {
                let doubts = markup(&doubts.join("\n"));
                let _ = write!(cases, "<system-out>{doubts}</system-out>");
            }
            cases.push_str("</testcase>\n");
        }
        for name in &self.not_run {
            let name = markup(name);
            let _ = writeln!(
                cases,
                "  <testcase classname=\"tidewire.load\" name=\"{name}\"><skipped message=\"the run ended before this step\"/></testcase>"
            );
        }
        let _ = writeln!(
            text,
            "<testsuite name=\"tidewire load\" tests=\"{count}\" failures=\"{failed}\" errors=\"{errors}\" \
             skipped=\"{skipped}\" time=\"{secs:.3}\">"
        );
        text.push_str(&cases);
        text.push_str("</testsuite>\n");
        text
    }

    /// An HdrHistogram interval log. The times since messages were due, tagged `scheduled`, have a line for each
    /// second; every other distribution has one for each step, tagged with its name. Lines of one tag add up to the
    /// distribution of the report. Values are nanoseconds, the column of maxima is in milliseconds. Steps follow each
    /// other: each begins where the one before it ended, its login and its drain included, since tools add up what
    /// overlaps.
    pub fn to_histogram_log(&self) -> String {
        let mut text = format!(
            "#[Histogram log format version 1.3]\n#[StartTime: 0 (seconds since the first step began), {}]\n\
             \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n",
            self.start_time_utc
        );
        let mut began_secs = 0.0;
        for step in &self.steps {
            let step_began_secs = began_secs;
            began_secs += step.test_duration_secs;
            let detail = &step.detail;
            // A line break in a name would end the comment.
            let _ = writeln!(text, "#[Step: {}]", visible(step.step_name.as_bytes()));
            let (times, window) = (&detail.times, &detail.window);
            let from_secs = step_began_secs + window.warmup_secs;
            // The window of parts that did not begin together is longer than each of them.
            began_secs = began_secs.max(from_secs + window.steady_secs);
            let whole = (from_secs, window.steady_secs);
            for (name, distribution) in times.named().filter(|(name, _)| *name != "client lag") {
                let lines = match name {
                    "scheduled" => seconds(detail),
                    _ => None,
                };
                let lines = lines.unwrap_or_else(|| {
                    let encoded = &distribution.histogram.hdr_v2_base64;
                    vec![Interval {
                        from_secs: whole.0 - step_began_secs,
                        secs: whole.1,
                        max_ms: distribution.max_ms,
                        encoded,
                    }]
                });
                let name = name.replace(' ', "_");
                for Interval {
                    from_secs,
                    secs,
                    max_ms,
                    encoded,
                } in lines
                {
                    let from_secs = step_began_secs + from_secs;
                    began_secs = began_secs.max(from_secs + secs);
                    let _ = writeln!(
                        text,
                        "Tag={name},{from_secs:.3},{secs:.3},{max_ms:.3},{encoded}"
                    );
                }
            }
        }
        text
    }
}

/// A line of an interval log, without its tag.
struct Interval<'a> {
    /// Its beginning, in seconds since that of its step.
    from_secs: f64,
    secs: f64,
    max_ms: f64,
    encoded: &'a str,
}

/// The distribution `scheduled` of a step, second by second. Nothing if its seconds do not add up to it, as in an older
/// report, or if those of several runs or parts overlap.
fn seconds(detail: &StepDetail) -> Option<Vec<Interval<'_>>> {
    let mut intervals = Vec::new();
    let mut count = 0;
    for second in &detail.series {
        let Some(scheduled) = &second.scheduled else {
            continue;
        };
        let histogram = scheduled.decode().ok()?;
        count += histogram.count();
        intervals.push(Interval {
            from_secs: (second.at_secs - second.secs).max(0.0),
            secs: second.secs,
            max_ms: histogram.summary()?.max_ms,
            encoded: &scheduled.hdr_v2_base64,
        });
    }
    let is_one_run = detail.series.iter().all(|second| second.run == 1);
    let is_whole = count > 0 && count == detail.times.scheduled.histogram.count;
    (is_one_run && is_whole).then_some(intervals)
}

fn csv_line(step: &StepReport) -> Vec<String> {
    let StepDetail {
        workload,
        times,
        cost,
        counts,
        ..
    } = &*step.detail;
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
    let count = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
    let percentile = |value: Option<Percentile>| match value {
        Some(Percentile::Known { ms }) => format!("{ms:.6}"),
        Some(Percentile::Infinite) => "inf".to_owned(),
        _ => String::new(),
    };
    let slo = match step.detail.slo.limits.is_empty() {
        true => "",
        false if step.keeps_slo() => "kept",
        false => "broken",
    };
    let mut fields = vec![
        quoted(&step.step_name),
        quoted(&workload.pattern),
        quoted(&workload.codec),
        quoted(&workload.model),
        number(workload.offered_tps),
        number(Some(step.steady.send_tps)),
        number(step.steady.receive_tps),
        step.expected_received.to_string(),
        step.lost.to_string(),
        step.unconfirmed.to_string(),
        count(step.duplicated),
        count(step.reordered),
        count(step.corrupt),
        percentile(Some(times.scheduled.p50)),
        percentile(Some(times.scheduled.p99)),
        percentile(Some(times.scheduled.p999)),
        percentile(times.service.as_ref().map(|service| service.p99)),
        percentile(Some(times.send_lag.p99)),
        number(cost.client_cpu_pct),
        number(cost.server_cpu_pct),
        step.detail.verdict.name().to_owned(),
        slo.to_owned(),
    ];
    let costs = [
        (cost.client_ns_per_message, cost.client_lanes),
        (cost.server_ns_per_message, cost.server_lanes),
    ];
    for (cpu_ns, lanes) in costs {
        fields.extend([
            number(cpu_ns),
            exact(lanes.map(|lanes| lanes.system_calls_per_message)),
            exact(lanes.and_then(|lanes| lanes.allocations_per_message)),
            exact(lanes.and_then(|lanes| lanes.allocated_bytes_per_message)),
        ]);
    }
    fields.extend([counts.offered, counts.unsent, counts.skipped].map(|it| it.to_string()));
    fields.push(number(Some(step.attainment)));
    fields
}

/// Formats a number with all its digits: a cost of one system call for thousands of messages is a small number.
fn exact(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn failures(step: &StepReport) -> Vec<String> {
    let mut texts = Vec::new();
    if step.is_refused() {
        let reasons = step.detail.verdict.reasons.iter();
        texts.extend(reasons.map(|reason| format!("INVALID: {reason}")));
    }
    texts.extend(
        step.detail
            .slo
            .violations
            .iter()
            .chain(&step.problems)
            .cloned(),
    );
    texts
}

/// A field of CSV (RFC 4180).
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
