//! The view of a server: figures as text, and charts where there is room.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use serde_json::Value;
use tidewire::text::visible;

use crate::chart::{self, Curve};

/// The figures of the last minutes, and how they are shown.
#[derive(Debug)]
pub(super) struct View {
    name: String,
    history: VecDeque<Value>,
    /// The error of the last look, if it failed.
    lost: Option<String>,
}

impl View {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            history: VecDeque::new(),
            lost: None,
        }
    }

    pub(super) fn add(&mut self, overview: Value) {
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(overview);
        self.lost = None;
    }

    /// The server did not answer.
    pub(super) fn lose(&mut self, error: String) {
        self.lost = Some(error);
    }

    pub(super) fn to_text(&self, overview: &Value) -> String {
        let lines = self.lines(overview).into_iter();
        lines.map(|line| format!("{line}\n")).collect()
    }

    /// The text has priority: with little space, charts are left out.
    pub(super) fn render(&self, frame: &mut Frame<'_>) {
        let Some(overview) = self.history.back() else {
            return;
        };
        let lines = self.lines(overview);
        let [text, charts] =
            Layout::vertical([Constraint::Length(lines.len() as u16), Constraint::Fill(1)])
                .areas(frame.area());
        frame.render_widget(Paragraph::new(lines), text);
        self.render_charts(charts, frame);
    }

    fn render_charts(&self, area: Rect, frame: &mut Frame<'_>) {
        if area.height < CHART_HEIGHT_MIN {
            return;
        }
        let rates = vec![
            self.curve("in", Color::Cyan, "/rates/frames_in"),
            self.curve("out", Color::Green, "/rates/delivered"),
        ];
        let answers = vec![self.curve("answer", Color::Magenta, "/turns/last_ms")];
        let mut charts = vec![("messages/s", rates), ("ms", answers)];
        if area.width < TWO_CHARTS_FROM {
            charts.truncate(1);
        }
        let parts = vec![Constraint::Fill(1); charts.len()];
        let layout = Layout::horizontal(parts).spacing(1);
        let seconds = self.history.len().saturating_sub(1).max(1) as f64;
        for ((unit, curves), part) in charts.iter().zip(layout.split(area).iter()) {
            chart::render(unit, curves, seconds, *part, frame);
        }
    }

    fn curve(&self, name: &'static str, colour: Color, pointer: &str) -> Curve {
        let seconds = (0_u32..).zip(&self.history);
        let points = seconds
            .filter_map(|(second, it)| Some((f64::from(second), it.pointer(pointer)?.as_f64()?)));
        Curve {
            name,
            colour,
            points: points.collect(),
        }
    }

    /// Lines of about fifty columns at most.
    fn lines(&self, it: &Value) -> Vec<Line<'static>> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let (word, colour) = match (&self.lost, it["ready"].as_bool()) {
            (Some(_), _) => ("lost", Color::Red),
            (None, Some(true)) => ("ready", Color::Green),
            (None, _) => ("not ready", Color::Yellow),
        };
        let title = format!(
            "{}  {word}  up {}",
            self.name,
            duration(number(it, "/uptime_seconds"))
        );
        let mut lines = vec![Line::styled(title, bold.fg(colour))];
        if let Some(error) = &self.lost {
            lines.push(Line::styled(
                visible(error.as_bytes()),
                Style::new().fg(Color::Red),
            ));
        }
        lines.extend(figures(it));
        lines.extend(certificate(it));
        lines.extend(cluster(&it["node"]));
        lines.push(Line::styled(LANE_HEAD, bold));
        lines.extend(list(&it["lanes"]).iter().map(lane));
        let slowest = list(&it["tops"]["slowest"]);
        if !slowest.is_empty() {
            lines.push(Line::styled(SLOWEST_HEAD, bold));
            lines.extend(slowest.iter().take(SLOWEST_SHOWN).map(subscriber));
        }
        lines
    }
}

fn figures(it: &Value) -> impl Iterator<Item = Line<'static>> {
    let of = |pointer: &str| number(it, pointer);
    let count = |pointer: &str| short(of(pointer));
    let fan_out = it.pointer("/rates/fan_out").and_then(Value::as_f64);
    let texts = [
        format!(
            "sessions {} open, {} opened, {} refused",
            count("/sessions/open"),
            count("/sessions/opened"),
            count("/sessions/refused")
        ),
        format!(
            "in       {}/s, {}/s",
            count("/rates/frames_in"),
            bytes(of("/rates/bytes_in"))
        ),
        format!(
            "out      {}/s, {}/s",
            count("/rates/delivered"),
            bytes(of("/rates/bytes_out"))
        ),
        format!(
            "fan-out  {}, {} in flight",
            fan_out.map_or_else(|| "none".to_owned(), short),
            count("/in_flight")
        ),
        format!(
            "dropped  {}/s {}",
            count("/rates/dropped"),
            reasons(&it["dropped"])
        ),
        format!(
            "answer   {}, longest {}",
            milliseconds(of("/turns/last_ms")),
            milliseconds(of("/turns/max_ms"))
        ),
        format!(
            "memory   {} of {}",
            bytes(of("/memory/bytes")),
            bytes(of("/memory/bytes_max"))
        ),
    ];
    texts
        .into_iter()
        .map(|text| Line::raw(text.trim_end().to_owned()))
}

fn certificate(it: &Value) -> Option<Line<'static>> {
    let days = it.pointer("/certificate/days_left")?.as_f64()?;
    let style = match days < DAYS_LEFT_WARN {
        true => Style::new().fg(Color::Red),
        false => Style::new(),
    };
    Some(Line::styled(format!("cert     {days:.0} days left"), style))
}

/// The server as a node, and the other nodes.
fn cluster(node: &Value) -> Vec<Line<'static>> {
    let Some(id) = node["id"].as_str() else {
        return Vec::new();
    };
    let is_cut_off = node["cut_off"] == true;
    let (state, style) = match is_cut_off {
        true => ("cut off, ", Style::new().fg(Color::Red)),
        false => ("", Style::new()),
    };
    let of = |key: &str| short(node[key].as_f64().unwrap_or_default());
    let text = format!(
        "node     {}, {state}{} sent, {} lost, {} reconnects",
        visible(id.as_bytes()),
        of("sent"),
        of("lost"),
        of("reconnects"),
    );
    let mut lines = vec![Line::styled(text, style)];
    let peers = list(&node["peers"]);
    lines.extend(peers.iter().take(NODES_SHOWN).map(|peer| {
        let lag = peer["lag_ms"].as_f64();
        let text = format!(
            "         {}: lag {}, {} lost",
            visible(peer["id"].as_str().unwrap_or_default().as_bytes()),
            lag.map_or_else(|| "–".to_owned(), milliseconds),
            short(number(peer, "/lost")),
        );
        Line::raw(text)
    }));
    if let Some(more) = peers.len().checked_sub(NODES_SHOWN).filter(|it| *it > 0) {
        lines.push(Line::raw(format!("         and {more} more")));
    }
    lines
}

fn lane(it: &Value) -> Line<'static> {
    let number_of = |key: &str| it[key].as_f64().unwrap_or_default();
    let index = number_of("lane");
    if it["turns"] != true {
        let style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
        return Line::styled(format!("{index:<5} does not turn"), style);
    }
    let load = it["load"].as_f64();
    let load = load.map_or_else(|| "–".to_owned(), |load| format!("{:.0} %", load * 100.0));
    Line::raw(format!(
        "{index:<5} {load:<5} {:>9} {:>9} {:>8} {:>8}",
        milliseconds(number_of("answer_ms")),
        short(number_of("sessions")),
        short(number_of("frames_in_rate")),
        short(number_of("delivered_rate")),
    ))
}

/// A session. Its name comes from its peer and must not reach the terminal as it is.
fn subscriber(it: &Value) -> Line<'static> {
    let behind = number(it, "/lag_bytes") + number(it, "/queued_bytes");
    let names = ["name", "identity", "peer", "id"].into_iter();
    let name = names
        .filter_map(|key| it[key].as_str())
        .next()
        .unwrap_or_default();
    // A session without a policy subscribes to nothing: replies wait for it.
    let why = match it["policy"].as_str() {
        Some(policy) => format!("{:<10}{policy}", short(number(it, "/lag_messages"))),
        None => "replies".to_owned(),
    };
    // The name comes early, because narrow terminals cut the end.
    let name = visible(name.as_bytes());
    Line::raw(format!("{:<10}{name:<24}{why}", bytes(behind)))
}

/// The reasons with counts, such as `policy 12; no loss: left 3`. Messages that were on their way to a subscriber that
/// left, or whose session ended, are no loss of those that stayed: a load test that lost nothing ends with many of
/// them.
fn reasons(counts: &Value) -> String {
    let counts = counts.as_object().into_iter().flatten();
    let some = counts.filter(|(_, count)| count.as_u64() > Some(0));
    let (mut losses, mut others) = (Vec::new(), Vec::new());
    for (reason, count) in some {
        let count = short(count.as_f64().unwrap_or_default());
        match reason.as_str() {
            "left" => others.push(format!("left {count}")),
            "closed" => others.push(format!("ended {count}")),
            reason => losses.push(format!("{reason} {count}")),
        }
    }
    let others = others.join(", ");
    let others = (!others.is_empty()).then(|| format!("no loss: {others}"));
    let parts = [losses.join(", "), others.unwrap_or_default()];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("; ")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value, pointer: &str) -> f64 {
    value
        .pointer(pointer)
        .and_then(Value::as_f64)
        .unwrap_or_default()
}

/// A number in few letters: 950, 12.3k, 4.56M.
fn short(value: f64) -> String {
    match value.abs() {
        it if it >= 1e9 => format!("{:.2}G", value / 1e9),
        it if it >= 1e6 => format!("{:.2}M", value / 1e6),
        it if it >= 1e4 => format!("{:.1}k", value / 1e3),
        it if it >= 10.0 || it.fract() == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

fn bytes(value: f64) -> String {
    let mut value = value;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            let digits = usize::from(unit != "B" && value < 100.0);
            return format!("{value:.digits$} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

fn milliseconds(value: f64) -> String {
    match value {
        value if value < 1.0 => format!("{:.0} µs", value * 1e3),
        value => format!("{value:.1} ms"),
    }
}

fn duration(seconds: f64) -> String {
    let seconds = seconds as u64;
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

const LANE_HEAD: &str = "lane  load     answer  sessions     in/s    out/s";
const SLOWEST_HEAD: &str = "behind    slowest subscriber      messages  policy";

/// Seconds that are kept: a chart has fewer columns on most terminals.
const HISTORY_MAX: usize = 600;

/// A head, an axis with its labels, and three rows of a curve.
const CHART_HEIGHT_MIN: u16 = 6;

/// From this width on two charts stand beside each other.
const TWO_CHARTS_FROM: u16 = 90;

/// Sessions shown of the slowest.
const SLOWEST_SHOWN: usize = 5;

const NODES_SHOWN: usize = 5;

const DAYS_LEFT_WARN: f64 = 14.0;

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn overview() -> Value {
        json!({
            "uptime_seconds": 90_061.0, "ready": true,
            "rates": {"frames_in": 200.0, "bytes_in": 7168.0, "delivered": 19_815.3, "bytes_out": 789_504.0, "dropped": 2.5, "fan_out": 99.0},
            "sessions": {"open": 100_000, "opened": 123_456_789, "refused": 0},
            "in_flight": 12, "dropped": {"policy": 12, "left": 0},
            "turns": {"last_ms": 0.733, "max_ms": 6.7},
            "memory": {"bytes": 456_704, "bytes_max": 6_319_125_504_u64},
            "certificate": {"days_left": 3.2},
            "node": {"id": "eu-1", "cut_off": false, "reconnects": 2, "sent": 12_345, "lost": 3, "peers": [
                {"id": "eu-2", "lag_ms": 0.4, "lost": 3}, {"id": "n", "lag_ms": null, "lost": 0}, {}, {}, {}, {}
            ]},
            "lanes": [
                {"lane": 0, "turns": true, "load": 0.05, "answer_ms": 0.7, "sessions": 50_000, "frames_in_rate": 100.0, "delivered_rate": 9_863.0},
                {"lane": 1, "turns": false, "load": null, "answer_ms": null, "sessions": null, "frames_in_rate": 0.0, "delivered_rate": 0.0}
            ],
            "tops": {"slowest": [{"id": "1f", "name": "ann\u{1b}[2J", "peer": "tcp://127.0.0.1:1", "lag_bytes": 2_000_000, "queued_bytes": 0, "lag_messages": 400, "policy": "drop_oldest"}]}
        })
    }

    fn shown(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.render(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn fifty_columns_are_enough_for_every_figure() {
        let mut view = View::new("127.0.0.1:9090");
        view.add(overview());
        let text = shown(&view, 50, 24);
        for part in [
            "node     eu-1, 12.3k sent, 3 lost, 2 reconnects",
            "eu-2: lag 400 µs, 3 lost",
            "n: lag –, 0 lost",
            "and 1 more",
            "127.0.0.1:9090  ready  up 1 d 1 h",
            "100.0k open, 123.46M opened, 0 refused",
            "19.8k/s, 771 KiB/s",
            "99, 12 in flight",
            "2.5/s policy 12",
            "733 µs, longest 6.7 ms",
            "446 KiB of 5.9 GiB",
            "3 days left",
            "0     5 %      700 µs     50.0k      100     9863",
            "1     does not turn",
            "1.9 MiB   ann",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        assert!(!text.contains('\u{1b}'));
    }

    /// Regression: after a load test that lost nothing, `closed 31,495` among the dropped messages looked like a loss.
    #[test]
    fn messages_to_subscribers_that_are_gone_are_no_loss() {
        let mut view = View::new("h:1");
        let mut overview = overview();
        overview["dropped"] = json!({"policy": 0, "left": 3, "closed": 31_495});
        view.add(overview.clone());
        let text = shown(&view, 50, 24);
        assert!(
            text.contains("2.5/s no loss: ended 31.5k, left 3 "),
            "{text}"
        );
        overview["dropped"]["policy"] = json!(12);
        view.add(overview);
        let text = shown(&view, 80, 24);
        assert!(
            text.contains("2.5/s policy 12; no loss: ended 31.5k"),
            "{text}"
        );
    }

    #[test]
    fn any_size_and_any_answer_can_be_shown() {
        let mut view = View::new("h:1");
        assert_eq!(shown(&view, 3, 1).lines().count(), 1);
        for answer in [
            overview(),
            json!({"node": {"id": "\u{1b}[2J", "cut_off": true, "peers": [7]}}),
            json!({}),
            json!(null),
            json!({"lanes": [1, null], "tops": {"slowest": [7]}}),
        ] {
            view.add(answer);
            for (width, height) in [(1, 1), (1, 50), (300, 1), (2_000, 60)] {
                assert!(!shown(&view, width, height).is_empty());
            }
        }
        view.lose("it is gone\u{1b}[2J".to_owned());
        let text = shown(&view, 80, 24);
        assert!(text.contains("lost") && text.contains("it is gone") && !text.contains('\u{1b}'));
    }
}
