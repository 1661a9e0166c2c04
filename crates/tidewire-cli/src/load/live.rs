//! The live view of a step on a terminal: rates over time, percentiles, load of both sides, and a light that shows
//! whether the measurement is valid so far.
//!
//! It is drawn about once a second, when the coordinator reads the state of the step anyway, and never by a thread that
//! sends or receives. Rejected: a thread that draws more often, which would take processor time from the measurement.

use std::collections::VecDeque;
use std::io;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Gauge, Paragraph};
use tidewire_load::format::wrapped;
use tidewire_load::known_milliseconds;
use tidewire_load::run::{Phase, Progress};

use super::progress::nodes;
use crate::chart::{self, Curve};
use crate::screen::Screen;

/// The view of one step. Dropping it restores the terminal.
#[derive(Debug)]
pub(super) struct Live {
    screen: Screen,
    state: State,
}

impl Live {
    /// Takes the terminal over.
    pub(super) fn start(title: String) -> io::Result<Self> {
        let mut live = Self {
            screen: Screen::start()?,
            state: State::new(title),
        };
        live.draw()?;
        Ok(live)
    }

    pub(super) fn update(&mut self, progress: &Progress) {
        self.state.add(progress);
        // The loss of the terminal is no reason to stop measuring.
        let _ = self.draw();
    }

    fn draw(&mut self) -> io::Result<()> {
        let state = &self.state;
        self.screen.draw(|frame| state.render(frame))
    }
}

#[derive(Debug)]
struct State {
    title: String,
    last: Option<Progress>,
    history: VecDeque<Progress>,
}

impl State {
    fn new(title: String) -> Self {
        Self {
            title,
            last: None,
            history: VecDeque::new(),
        }
    }

    fn add(&mut self, progress: &Progress) {
        if progress.phase != Phase::Login {
            if self.history.len() == HISTORY_MAX {
                self.history.pop_front();
            }
            self.history.push_back(progress.clone());
        }
        self.last = Some(progress.clone());
    }

    /// The text has priority: with little space, charts are left out.
    fn render(&self, frame: &mut Frame<'_>) {
        let Some(progress) = &self.last else {
            frame.render_widget(Paragraph::new(self.title.as_str()), frame.area());
            return;
        };
        let lines = self.lines(progress, usize::from(frame.area().width));
        let [text, bar, rest] = Layout::vertical([
            Constraint::Length(lines.len() as u16),
            Constraint::Length(1),
            Constraint::Fill(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(lines), text);
        let share = progress.elapsed.as_secs_f64() / progress.duration.as_secs_f64().max(1e-9);
        frame.render_widget(
            Gauge::default()
                .ratio(share.clamp(0.0, 1.0))
                .gauge_style(Style::new().fg(Color::Blue)),
            bar,
        );
        self.render_charts(progress, rest, frame);
    }

    /// As many charts as there is room for, beside each other where the terminal is wide.
    fn render_charts(&self, progress: &Progress, area: Rect, frame: &mut Frame<'_>) {
        let mut sending = vec![self.curve("sent", Color::Cyan, |one| Some(one.second.send_tps()))];
        if progress.second.offered_tps().is_some() {
            // Under the other one, with which it shares its scale, so that a gap between them is visible.
            sending.insert(
                0,
                self.curve("offered", Color::Gray, |one| one.second.offered_tps()),
            );
        }
        let received = self.curve("received", Color::Green, |one| one.second.receive_tps());
        let times = vec![
            self.curve("p50", Color::Blue, |one| one.second.p50_ms),
            self.curve("p99", Color::Magenta, |one| one.second.p99_ms),
        ];
        let mut charts = vec![
            ("messages/s", sending),
            ("messages/s", vec![received]),
            ("ms", times),
        ];
        charts.retain(|(_, curves)| curves.iter().any(|curve| !curve.points.is_empty()));
        let is_wide = area.width >= WIDE_FROM;
        let room = if is_wide {
            area.width / 40
        } else {
            area.height / CHART_HEIGHT_MIN
        };
        if area.height < CHART_HEIGHT_MIN {
            return;
        }
        charts.truncate(usize::from(room));
        let parts = vec![Constraint::Fill(1); charts.len()];
        let layout = if is_wide {
            Layout::horizontal(parts).spacing(1)
        } else {
            Layout::vertical(parts)
        };
        let seconds = self.history.len().saturating_sub(1).max(1) as f64;
        for ((unit, curves), part) in charts.iter().zip(layout.split(area).iter()) {
            chart::render(unit, curves, seconds, *part, frame);
        }
    }

    /// A figure of every second, from the oldest on.
    fn curve(
        &self,
        name: &'static str,
        colour: Color,
        figure: fn(&Progress) -> Option<f64>,
    ) -> Curve {
        let seconds = (0_u32..).zip(&self.history);
        let points = seconds.filter_map(|(second, one)| Some((f64::from(second), figure(one)?)));
        Curve {
            name,
            colour,
            points: points.collect(),
        }
    }

    /// Lines of about fifty columns at most, so that they fit half a screen.
    fn lines<'a>(&'a self, progress: &'a Progress, width: usize) -> Vec<Line<'a>> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let phase = super::progress::phase_name(progress.phase);
        let secs = progress.elapsed.min(progress.duration);
        let mut lines = vec![
            Line::styled(self.title.as_str(), bold),
            Line::raw(format!(
                "{phase:<9} {:.0} of {:.0} s, {} of {} agents",
                secs.as_secs_f64(),
                progress.duration.as_secs_f64(),
                progress.logins,
                progress.agents
            )),
        ];
        if let Some(nodes) = nodes(progress) {
            lines.push(Line::raw(format!("nodes     {nodes} agents")));
        }
        if progress.errors > 0 {
            let text = format!("ERRORS    {}", progress.errors);
            lines.push(Line::styled(text, bold.fg(Color::Red)));
        }
        lines.extend(light(progress, width));
        let second = &progress.second;
        let times = [second.p50_ms, second.p99_ms, second.p999_ms];
        let [p50, p99, p999] =
            times.map(|ms| known_milliseconds(ms).trim_end_matches(" ms").to_owned());
        lines.push(Line::raw(format!(
            "scheduled p50 {p50}, p99 {p99}, p99.9 {p999} ms"
        )));
        lines.push(missing(progress));
        lines.push(Line::raw(format!(
            "send lag  p99 {}",
            known_milliseconds(second.send_lag_p99_ms)
        )));
        lines.push(Line::raw(format!(
            "cores     instrument {}, server {}",
            percent(second.client_cpu_pct),
            percent(second.server_cpu_pct)
        )));
        lines
    }
}

/// Whether the measurement is valid so far, as a colour and a text, which goes on in further lines where it is long.
fn light(progress: &Progress, width: usize) -> Vec<Line<'static>> {
    let verdict = &progress.verdict;
    let doubt = verdict.reasons.iter().chain(&verdict.disturbances).next();
    let (colour, text) = match doubt {
        _ if progress.phase == Phase::Login => (Color::Gray, "not begun".to_owned()),
        None if progress.phase == Phase::WarmUp => {
            (Color::Gray, "not judged in the warm-up".to_owned())
        }
        None => (Color::Green, "valid so far".to_owned()),
        Some(doubt) => (Color::Yellow, format!("{} so far: {doubt}", verdict.name())),
    };
    let text = wrapped(&text, width.saturating_sub(VERDICT_INDENT), 0);
    let mut lines = Vec::new();
    for (index, piece) in text.lines().enumerate() {
        let (name, dot) = if index == 0 {
            ("verdict   ", "● ")
        } else {
            ("          ", "  ")
        };
        lines.push(Line::from(vec![
            Span::raw(name),
            Span::styled(dot, Style::new().fg(colour)),
            Span::raw(piece.to_owned()),
        ]));
    }
    lines
}

/// While messages are sent some are always in flight, so only in the drain a shortfall is likely to be a loss.
fn missing(progress: &Progress) -> Line<'static> {
    if progress.second.received.is_none() {
        return Line::raw("received  n/a: the server is asked at the end");
    }
    let missing = progress.expected.saturating_sub(progress.received);
    let share = missing as f64 / progress.expected.max(1) as f64 * 100.0;
    let word = match progress.phase {
        Phase::Drain => "loss     ",
        _ => "to come  ",
    };
    Line::raw(format!(
        "{word} {missing} of {} ({share:.3} %)",
        progress.expected
    ))
}

fn percent(used: Option<f64>) -> String {
    used.map_or_else(|| "not known".to_owned(), |used| format!("{used:.0} %"))
}

/// The number of seconds that are kept: a chart has fewer columns on any terminal.
const HISTORY_MAX: usize = 1_000;

/// From this width on charts stand beside each other.
const WIDE_FROM: u16 = 100;

/// A head, an axis with its labels, and three rows of a curve.
const CHART_HEIGHT_MIN: u16 = 6;

/// Columns before the text of the verdict.
const VERDICT_INDENT: usize = 12;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::Command;

    use super::*;
    use crate::load::progress::tests::progress;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use tidewire_testkit::open_terminal;

    fn shown(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| state.render(frame)).unwrap();
        terminal.backend().to_string()
    }

    fn state(seconds: usize, change: impl Fn(&mut Progress)) -> State {
        let mut state = State::new("[1/2] open 20k".to_owned());
        for _ in 0..seconds {
            let mut progress = progress(Phase::Steady);
            change(&mut progress);
            state.add(&progress);
        }
        state
    }

    #[test]
    fn it_shows_rates_percentiles_loads_and_the_verdict() {
        let text = shown(&state(40, |_| {}), 90, 24);
        for part in [
            "[1/2] open 20k",
            "steady    3 of 20 s, 49 of 50 agents",
            "● valid so far",
            "scheduled p50 0.400, p99 1.20, p99.9 2.50 ms",
            "to come   800 of 9800",
            "send lag  p99 0.100 ms",
            "cores     instrument 40 %, server not known",
            "offered 70  sent 67  messages/s",
            "received 3266  messages/s",
            "█",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        assert!(!text.contains("ERRORS"));
    }

    #[test]
    fn errors_losses_doubts_and_nodes_are_told() {
        let bad = state(1, |progress| {
            progress.second.connected = vec![250, 0];
            progress.phase = Phase::Drain;
            progress.errors = 3;
            progress.verdict.reasons = vec!["the instrument sent late".to_owned()];
        });
        let text = shown(&bad, 90, 24);
        for part in [
            "nodes     250 + 0 agents",
            "ERRORS    3",
            "loss      800 of 9800",
            "● INVALID so far: the instrument sent late",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
    }

    #[test]
    fn charts_have_scales_and_use_the_whole_screen() {
        let text = shown(&state(40, |_| {}), 90, 40);
        for part in ["39 s ago", "now", "p50 0.40  p99 1.20  ms", "4k", "1.5"] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        // Without a rate that is laid down there is no chart of it, and no empty part.
        let closed = shown(
            &state(40, |progress| progress.second.offered = None),
            90,
            40,
        );
        assert!(!closed.contains("offered"), "{closed}");
        for text in [text, closed] {
            let rows: Vec<&str> = text.lines().collect();
            let empty = |row: &&str| row.trim_matches(['"', ' ', '│']).is_empty();
            let longest = rows.split(|row| !empty(row)).map(<[_]>::len).max();
            assert!(longest < Some(9), "{text}");
        }
    }

    #[test]
    fn fifty_columns_are_enough_for_every_figure() {
        let doubt = "the instrument sent late (p99 65.7 ms, allowed are 7.4 ms): it was overdriven or its machine busy";
        let state = state(40, |progress| {
            progress.verdict.reasons = vec![doubt.to_owned()];
            progress.second.server_cpu_pct = Some(100.0);
        });
        let text = shown(&state, 50, 30);
        for part in [
            "p99.9 2.50 ms",
            "instrument 40 %, server 100 %",
            "overdriven",
            "it was overdriven or its machine",
            "received 3266  messages/s",
            "now",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
    }

    #[test]
    fn any_size_of_terminal_will_do() {
        let state = state(1_200, |_| {});
        assert_eq!(state.history.len(), HISTORY_MAX);
        for (width, height) in [(1, 1), (1, 50), (300, 1), (20, 6), (2_000, 60)] {
            let text = shown(&state, width, height);
            assert!(text.contains('['), "{width}×{height}: {text}");
        }
        assert!(shown(&State::new("login".to_owned()), 10, 2).contains("login"));
    }

    /// A panic would end the test runner too, so the test runs itself once more, on a terminal of its own.
    #[test]
    fn a_panic_on_any_thread_gives_the_terminal_back_before_it_speaks() {
        if std::env::var_os(ON_A_TERMINAL).is_some() {
            return panic_while_shown();
        }
        let (mut person, program) = open_terminal();
        let test =
            "load::live::tests::a_panic_on_any_thread_gives_the_terminal_back_before_it_speaks";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(ON_A_TERMINAL, "1")
            .env("TERM", "xterm")
            .stderr(program)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut screen = Vec::new();
        // A terminal whose program has ended reports an error instead of an end.
        let _ = person.read_to_end(&mut screen);
        assert!(child.wait().unwrap().success());
        let screen = String::from_utf8_lossy(&screen);
        let place = |text: &str| {
            let place = screen.find(text);
            place.unwrap_or_else(|| panic!("{text:?} is not on the screen: {screen:?}"))
        };
        let (taken, given_back) = (place("\x1b[?1049h"), place("\x1b[?1049l"));
        let spoken = place("this lane has had enough");
        assert!(taken < given_back && given_back < spoken, "{screen:?}");
        assert!(place("\x1b[?25h") < spoken, "the cursor is shown again");
        // Later output of the view is not drawn.
        assert!(!screen[spoken..].contains("[1/1] after"), "{screen:?}");
        assert_eq!(screen.matches("\x1b[?1049l").count(), 1, "{screen:?}");
    }

    fn panic_while_shown() {
        assert!(Screen::is_possible());
        let mut live = Live::start("[1/1] before".to_owned()).unwrap();
        let lane = std::thread::spawn(|| panic!("this lane has had enough"));
        assert!(lane.join().is_err());
        live.state.title = "[1/1] after".to_owned();
        live.update(&progress(Phase::Steady));
    }

    const ON_A_TERMINAL: &str = "TIDEWIRE_TEST_ON_A_TERMINAL";
}
