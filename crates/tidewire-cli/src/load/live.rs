//! The live view of a step on a terminal: rates over time, percentiles, load of both sides, and a light that shows
//! whether the measurement is valid so far.
//!
//! It is drawn about once a second, when the coordinator reads the state of the step anyway, and never by a thread that
//! sends or receives. It uses the alternate screen of standard error, so that standard output and the scrollback stay
//! unchanged. The terminal stays in its usual mode: Ctrl-C is a signal as usual, and there are no keys. Rejected: a
//! thread that draws more often, which would take processor time from the measurement.
//!
//! Every path that ends the program calls [`restore`], including a panic on any thread and a signal's thread.

use std::io::{self, IsTerminal, Stderr};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Gauge, Paragraph, Sparkline};
use ratatui::{Frame, Terminal};
use tidewire_load::known_milliseconds;
use tidewire_load::run::{Phase, Progress};

/// The view of one step. Dropping it restores the terminal.
#[derive(Debug)]
pub(super) struct Live {
    terminal: Terminal<CrosstermBackend<Stderr>>,
    state: State,
}

impl Live {
    /// Whether standard error is a terminal that can show it.
    pub(super) fn is_possible() -> bool {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        io::stderr().is_terminal() && !is_dumb
    }

    /// Takes the terminal over.
    ///
    /// # Errors
    /// It cannot be written to, or has no size.
    pub(super) fn start(title: String) -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                before(panic);
            }));
        });
        let terminal = Terminal::new(CrosstermBackend::new(io::stderr()))?;
        IS_SHOWN.store(true, Ordering::SeqCst);
        let mut live = Self {
            terminal,
            state: State::new(title),
        };
        execute!(io::stderr(), EnterAlternateScreen)?;
        live.draw()?;
        Ok(live)
    }

    /// Shows a new state of the step.
    pub(super) fn update(&mut self, progress: &Progress) {
        self.state.add(progress);
        // The loss of the terminal is no reason to stop measuring.
        let _ = self.draw();
    }

    fn draw(&mut self) -> io::Result<()> {
        // After a panic on another thread the screen belongs to its message.
        if !IS_SHOWN.load(Ordering::SeqCst) {
            return Ok(());
        }
        let state = &self.state;
        self.terminal.draw(|frame| state.render(frame))?;
        Ok(())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back, if it was taken.
pub(super) fn restore() {
    if IS_SHOWN.swap(false, Ordering::SeqCst) {
        // A terminal that is gone cannot show an error.
        let _ = execute!(io::stderr(), LeaveAlternateScreen, Show);
    }
}

/// The shown figures.
#[derive(Debug)]
struct State {
    title: String,
    last: Option<Progress>,
    offered: Vec<u64>,
    sent: Vec<u64>,
    received: Vec<u64>,
}

impl State {
    fn new(title: String) -> Self {
        Self {
            title,
            last: None,
            offered: Vec::new(),
            sent: Vec::new(),
            received: Vec::new(),
        }
    }

    fn add(&mut self, progress: &Progress) {
        if progress.phase != Phase::Login {
            for (history, rate) in [
                (&mut self.offered, progress.offered_tps.unwrap_or(0.0)),
                (&mut self.sent, progress.send_tps),
                (&mut self.received, progress.receive_tps),
            ] {
                if history.len() == HISTORY_MAX {
                    history.remove(0);
                }
                history.push(rate.round() as u64);
            }
        }
        self.last = Some(progress.clone());
    }

    /// The text has priority: with little space, the curves are left out.
    fn render(&self, frame: &mut Frame<'_>) {
        let Some(progress) = &self.last else {
            frame.render_widget(Paragraph::new(self.title.as_str()), frame.area());
            return;
        };
        let lines = self.lines(progress);
        let [text, bar, curves] = Layout::vertical([
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
        let curve_areas: [Rect; 3] = Layout::vertical([Constraint::Fill(1); 3]).areas(curves);
        let offered = progress.offered_tps.map_or_else(
            || "offered  as the agents come to it".to_owned(),
            |rate| format!("offered  {rate:.0}/s"),
        );
        let sent = format!("sent     {:.0}/s", progress.send_tps);
        let received = format!("received {:.0}/s", progress.receive_tps);
        // Offered and sent rates have one scale, so that a gap between them is visible.
        let most = self.offered.iter().chain(&self.sent).max().copied();
        for (area, label, history, most) in [
            (curve_areas[0], offered, &self.offered, most),
            (curve_areas[1], sent, &self.sent, most),
            (
                curve_areas[2],
                received,
                &self.received,
                self.received.iter().max().copied(),
            ),
        ] {
            curve(frame, area, &label, history, most.unwrap_or(0));
        }
    }

    fn lines<'a>(&'a self, progress: &'a Progress) -> Vec<Line<'a>> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let (phase, secs) = (
            super::progress::phase_name(progress.phase),
            progress.elapsed.min(progress.duration),
        );
        let mut lines = vec![
            Line::styled(self.title.as_str(), bold),
            Line::raw(format!(
                "{phase:<8} {:.0} of {:.0} s, {} of {} agents",
                secs.as_secs_f64(),
                progress.duration.as_secs_f64(),
                progress.logins,
                progress.agents
            )),
            light(progress),
            Line::raw(format!(
                "latency  p50 {}  p99 {}  p99.9 {} (last second)",
                known_milliseconds(progress.p50_ms),
                known_milliseconds(progress.p99_ms),
                known_milliseconds(progress.p999_ms)
            )),
            missing(progress),
            Line::raw(format!(
                "send lag p99 {}   processor: instrument {}, server {}",
                known_milliseconds(progress.send_lag_p99_ms),
                percent(progress.client_cpu_pct),
                percent(progress.server_cpu_pct)
            )),
        ];
        if progress.errors > 0 {
            let text = format!("ERRORS   {}", progress.errors);
            lines.insert(2, Line::styled(text, bold.fg(Color::Red)));
        }
        lines
    }
}

/// Whether the measurement is valid so far, as a colour and a text.
fn light(progress: &Progress) -> Line<'_> {
    let (colour, text) = match progress.doubts.first() {
        _ if progress.phase == Phase::Login => (Color::Gray, "not begun"),
        None => (Color::Green, "valid so far"),
        Some(doubt) => (Color::Yellow, doubt.as_str()),
    };
    Line::from(vec![
        Span::raw("verdict  "),
        Span::styled("● ", Style::new().fg(colour)),
        Span::raw(text),
    ])
}

/// While messages are sent some are always in flight, so only in the drain a shortfall is likely to be a loss.
fn missing(progress: &Progress) -> Line<'static> {
    let missing = progress.expected.saturating_sub(progress.received);
    let share = missing as f64 / progress.expected.max(1) as f64 * 100.0;
    let word = match progress.phase {
        Phase::Drain => "loss    ",
        _ => "to come ",
    };
    Line::raw(format!(
        "{word} {missing} of {} ({share:.3} %)",
        progress.expected
    ))
}

fn percent(used: Option<f64>) -> String {
    used.map_or_else(
        || "not ours to see".to_owned(),
        |used| format!("{used:.0} % of a core"),
    )
}

fn curve(frame: &mut Frame<'_>, area: Rect, label: &str, history: &[u64], most: u64) {
    let [head, body] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Paragraph::new(label), head);
    let shown = &history[history.len().saturating_sub(usize::from(body.width))..];
    let line = Sparkline::default()
        .data(shown)
        .max(most.max(1))
        .style(Style::new().fg(Color::Cyan));
    frame.render_widget(line, body);
}

/// Whether the terminal shows the view; only one view at a time can.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// The number of seconds that are kept: more than any terminal has columns.
const HISTORY_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::Command;

    use super::*;
    use crate::load::progress::tests::progress;
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
            "steady   3 of 20 s, 49 of 50 agents",
            "● valid so far",
            "p50 0.4000 ms  p99 1.20 ms  p99.9 2.50 ms",
            "to come  800 of 9800",
            "send lag p99 0.1000 ms   processor: instrument 40 % of a core, server not ours to see",
            "offered  70/s",
            "sent     67/s",
            "received 3266/s",
            "█",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        assert!(!text.contains("ERRORS"));
    }

    #[test]
    fn errors_losses_and_doubts_are_told() {
        let bad = state(1, |progress| {
            progress.phase = Phase::Drain;
            progress.errors = 3;
            progress.doubts = vec!["the instrument sent late".to_owned()];
        });
        let text = shown(&bad, 90, 24);
        for part in [
            "ERRORS   3",
            "loss     800 of 9800",
            "● the instrument sent late",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
    }

    #[test]
    fn any_size_of_terminal_will_do() {
        let state = state(1_200, |_| {});
        assert_eq!(state.sent.len(), HISTORY_MAX);
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
        assert!(Live::is_possible());
        let mut live = Live::start("[1/1] before".to_owned()).unwrap();
        let lane = std::thread::spawn(|| panic!("this lane has had enough"));
        assert!(lane.join().is_err());
        live.state.title = "[1/1] after".to_owned();
        live.update(&progress(Phase::Steady));
    }

    const ON_A_TERMINAL: &str = "TIDEWIRE_TEST_ON_A_TERMINAL";
}
