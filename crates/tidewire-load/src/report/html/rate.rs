//! The rate of messages over time.

use super::course::Course;
use crate::format::per_second;
use crate::page::figure::{Cell, Chart, NO_VALUE, Table};
use crate::page::scale::Axis;
use crate::report::{LATENCY_KIND_NONE, StepReport};

/// Draws offered, sent and received messages of each second, with shaded phases.
pub(super) fn over_time(step: &StepReport) -> Result<Chart, String> {
    let course = Course::of(&step.detail)?;
    let receivers = receivers_each(step);
    let rates = course.spans.iter().flat_map(|span| {
        let offered = span.offered.unwrap_or(0.0);
        [offered, span.sent, span.received.unwrap_or(0.0) / receivers]
    });
    let y = Axis::from_zero("messages a second", rates.fold(0.0, f64::max));
    let mut plot = course.plot("Rate over time", y);
    let received = if receivers > 1.0 {
        format!("received ÷ {receivers:.0}")
    } else {
        "received".to_owned()
    };
    // Of messages that go one way the arrival of each is not known. Reports of older builds have counts of 0 there.
    let comes_back = step.latency_kind != LATENCY_KIND_NONE;
    let mut add = |name: &str, class, pieces: Vec<_>| {
        if !pieces.is_empty() {
            plot.line(name, class, pieces);
        }
    };
    add("offered", "s0 dashed", course.sending(|span| span.offered));
    add("sent", "s1", course.sending(|span| Some(span.sent)));
    if comes_back {
        let share = course.sending(|span| Some(span.received? / receivers));
        add(&received, "s2 dotted", share);
    }
    let mut table =
        Table::new("time, phase, offered/s, sent/s, received/s".split(", ")).with_words(1);
    for span in &course.spans {
        let time = span.time(course.runs);
        let offered = span.offered.map_or_else(|| NO_VALUE.to_owned(), per_second);
        let sent = per_second(span.sent);
        let received = span
            .received
            .map_or_else(|| NO_VALUE.to_owned(), per_second);
        let told = format!("offered {offered}\nsent {sent}\nreceived {received}");
        let tip = format!("{time}, {}\n{told}", span.phase);
        plot.column(span.from, span.to, tip);
        table.row(vec![
            Cell::from(time),
            span.phase.to_owned().into(),
            span.offered.into(),
            span.sent.into(),
            span.received.into(),
        ]);
    }
    Ok(plot.drawn(about(&course, receivers), table))
}

fn about(course: &Course, receivers: f64) -> String {
    let mut about =
        "Rates do not count the shaded phases. The lines end when the sending ends; the drain is in the table only."
            .to_owned();
    about.push_str(course.about_rest());
    if receivers > 1.0 {
        about.push_str(&format!(
            " A message has {receivers:.0} receivers, and received is drawn divided by them."
        ));
    }
    if course.seconds_each > 1 {
        about.push_str(&format!(" Each point is {} seconds.", course.seconds_each));
    }
    about
}

/// Returns the number of receivers of each message.
fn receivers_each(step: &StepReport) -> f64 {
    if step.total_sent == 0 {
        return 1.0;
    }
    // Slow receivers are not in the counts of the step, but they are in those of its seconds.
    let slow = step.detail.slow_receivers;
    let slow = slow.map_or(0.0, |slow| slow.expected as f64);
    let each = (step.expected_received as f64 + slow) / step.total_sent as f64;
    if each >= 1.5 { each.round() } else { 1.0 }
}
