//! The chat client and other views on a terminal: a pseudo-terminal with a test that types keys and reads the screen.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use tidewire_testkit::fault_server::{FaultPlan, FaultServer};
use tidewire_testkit::open_terminal;

use crate::admin;
use crate::process::{DEADLINE, Process, command};

/// A user at a terminal with `tidewire chat` on it.
struct Person {
    child: Child,
    keyboard: File,
    /// The program's side of the terminal, kept open to read its modes.
    tty: OwnedFd,
    screen: Receiver<Vec<u8>>,
    /// Everything shown so far, escape sequences included.
    seen: String,
    /// The position of the next search.
    searched: usize,
}

impl Person {
    fn start(command: &mut Command) -> Self {
        let (keyboard, tty) = open_terminal();
        let child = command
            .env("TERM", "xterm")
            .stdin(Stdio::from(tty.try_clone().unwrap()))
            .stdout(Stdio::from(tty.try_clone().unwrap()))
            .stderr(Stdio::from(tty.try_clone().unwrap()))
            .spawn()
            .unwrap();
        let mut display = keyboard.try_clone().unwrap();
        let (sender, screen) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = display.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            keyboard,
            tty,
            screen,
            seen: String::new(),
            searched: 0,
        }
    }

    /// Waits until `text` is shown after the end of the last match.
    fn expect(&mut self, text: &str) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(at) = self.seen[self.searched..].find(text) {
                self.searched += at + text.len();
                return;
            }
            match self.screen.recv_timeout(deadline - Instant::now()) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("{text:?} is not on the screen: {:?}", self.seen)
                }
            }
        }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Sends the signal of the terminal's Ctrl-C.
    fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Waits for the end, and returns the exit code and whether the terminal is usable again.
    fn end(mut self) -> (Option<i32>, bool) {
        let code = self.child.wait().unwrap().code();
        let modes = tcgetattr(&self.tty).unwrap().local_modes;
        (code, modes.contains(LocalModes::ICANON | LocalModes::ECHO))
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_person_types_while_others_talk() {
    let (_server, address) = Process::server(&[]);
    let mut bob = Process::chat(&address, "bob");
    let mut ann = Person::start(command(&["chat", &address, "--name", "ann"]).env("NO_COLOR", "1"));
    ann.expect("* you are in lobby as ann; here with you: bob");
    ann.expect("ann> ");
    bob.expect("* ann joined");
    ann.press("half a line");
    ann.expect("half a line");
    for number in 0..20 {
        bob.type_line(&format!("interruption {number}"));
    }
    ann.expect("[bob]: interruption 0");
    ann.expect("[bob]: interruption 19");
    // The line is drawn again below, and typing continues.
    ann.expect("ann> half a line");
    ann.press(" and the rest\r");
    bob.expect("[ann]: half a line and the rest");
    // The key for the previous line brings it back.
    ann.press("\u{1b}[A!\r");
    bob.expect("[ann]: half a line and the rest!");
    ann.press("/quit\r");
    bob.expect("* ann left");
    assert_eq!(ann.end(), (Some(0), true));
}

#[test]
fn control_keys_and_signals_end_it_and_leave_the_terminal_as_it_was() {
    let (_server, address) = Process::server(&[]);
    for how in ["\u{3}", "\u{4}", "TERM"] {
        let mut ann = Person::start(&mut command(&["chat", &address, "--name", "ann"]));
        ann.expect("you are in lobby as ann");
        ann.expect("ann> ");
        if how == "TERM" {
            ann.press("half a line");
            ann.expect("half a line");
            kill_process(Pid::from_child(&ann.child), Signal::TERM).unwrap();
        } else {
            ann.press(how);
        }
        assert_eq!(ann.end(), (Some(0), true), "{how:?}");
    }
}

#[test]
fn a_refused_name_is_asked_for_again() {
    let (_server, address) = Process::server(&[]);
    let mut bob = Process::chat(&address, "bob");
    let mut ann = Person::start(&mut command(&["chat", &address, "--name", "bob"]));
    ann.expect("the name \"bob\" is refused: the name is taken");
    ann.expect("your name: ");
    ann.press("\r");
    ann.expect("the name \"\" is refused: a name must not be empty");
    ann.expect("your name: ");
    ann.press("ann\r");
    ann.expect("you are in lobby as ann");
    bob.expect("* ann joined");
    ann.press("/quit\r");
    assert_eq!(ann.end(), (Some(0), true));

    let mut nobody = Person::start(&mut command(&["chat", &address]));
    nobody.expect("your name: ");
    nobody.press("\u{4}");
    assert_eq!(nobody.end(), (Some(0), true));
}

#[test]
fn a_load_test_takes_the_screen_and_gives_it_back() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("report").display().to_string();
    let mut plain = Person::start(&mut command(&["load", "--quick", "--plain", "--out", &out]));
    plain.expect("sent");
    assert!(!plain.seen.contains(TAKEN), "{:?}", plain.seen);
    // The built-in scenario ends early, and a stopped run still leaves its report.
    plain.interrupt();
    plain.expect("interrupted: ");
    assert_eq!(plain.end(), (Some(130), true));

    let mut live = Person::start(&mut command(&["load", "--quick", "--out", &out]));
    live.expect(TAKEN);
    live.expect("verdict");
    live.interrupt();
    live.expect(GIVEN_BACK);
    live.expect("interrupted: ");
    assert_eq!(live.end(), (Some(130), true));
}

#[test]
fn a_second_interrupt_ends_a_load_test_that_still_waits_and_gives_the_screen_back() {
    // The server delays everything, so after the first message the test waits for answers that do not come.
    let plan = FaultPlan {
        delay: Duration::from_secs(3_600),
        ..FaultPlan::default()
    };
    let server = FaultServer::start(plan).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scenario.toml");
    let text = "version = 2\ntarget = \"tcp://127.0.0.1:1\"\n[[steps]]\nname = \"deaf\"\npattern = \"request\"\n\
                concurrency = 2\nduration_secs = 3600\ntimeout_ms = 3600000\ndrain_ms = 3600000\n";
    std::fs::write(&file, text).unwrap();
    let out = directory.path().join("report");
    let target = format!("tcp://{}", server.address());
    let mut live = Person::start(
        command(&["load", "--target", &target])
            .arg(&file)
            .arg("--out")
            .arg(&out),
    );
    live.expect(TAKEN);
    live.expect("warm-up");
    live.interrupt();
    live.expect("drain");
    assert!(!live.seen.contains(GIVEN_BACK), "{:?}", live.seen);
    live.interrupt();
    live.expect(GIVEN_BACK);
    assert_eq!(live.end(), (Some(130), true));
    assert!(!out.join("report.json").exists(), "it was not waited for");
    let ledger = server.finish();
    assert!(ledger.is_conserved(), "{ledger:?}");
    assert_eq!((ledger.messages, ledger.delivered), (2, 0));
}

#[test]
fn the_view_of_a_server_outlives_the_server_and_gives_the_screen_back() {
    let (server, _, admin) = admin::start(&[]);
    let mut top = Person::start(&mut command(&["top", &admin]));
    top.expect(TAKEN);
    top.expect("ready");
    top.expect("sessions");
    server.kill();
    top.expect("lost");
    top.expect("cannot");
    assert!(!top.seen.contains(GIVEN_BACK), "{:?}", top.seen);
    top.interrupt();
    top.expect(GIVEN_BACK);
    assert_eq!(top.end(), (Some(0), true));
}

/// Regression: `q` did nothing, and typed keys were echoed into the picture.
#[test]
fn q_ends_the_view_of_a_server_and_other_keys_are_not_shown() {
    let (_server, _, admin) = admin::start(&[]);
    let mut top = Person::start(&mut command(&["top", &admin]));
    top.expect(TAKEN);
    top.expect("sessions");
    top.press("zzzq");
    top.expect(GIVEN_BACK);
    assert!(!top.seen.contains("zzz"), "{:?}", top.seen);
    assert_eq!(top.end(), (Some(0), true));
}

/// The sequences that switch to the alternate screen and back.
const TAKEN: &str = "\x1b[?1049h";
const GIVEN_BACK: &str = "\x1b[?1049l";

/// Runs a command on a terminal of this width, and returns the lines that it has written there.
fn lines_on_terminal(command: &mut Command, columns: u16) -> Vec<String> {
    let (mut screen, tty) = open_terminal();
    let size = Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&tty, size).unwrap();
    let mut child = command.stdout(Stdio::from(tty)).spawn().unwrap();
    // The program's copy of the terminal closes with the builder.
    command.stdout(Stdio::null());
    let mut shown = Vec::new();
    let mut buffer = [0; 4096];
    // A terminal that no program has open any more fails instead of ending.
    while let Ok(count @ 1..) = screen.read(&mut buffer) {
        shown.extend_from_slice(&buffer[..count]);
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let shown = String::from_utf8(shown).unwrap();
    shown.lines().map(str::to_owned).collect()
}

/// Regression: the final report was wider than the terminal, which cut its words and its table anywhere.
#[test]
fn the_report_of_a_load_test_fits_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../bench-results/2026-11-22-epyc-2core/8m-1.json"
    );
    let mut report = command(&["report", file, "--out", "again"]);
    report.current_dir(&directory);
    let whole = String::from_utf8(report.output().unwrap().stdout).unwrap();
    assert!(
        whole.lines().any(|line| line.chars().count() > 80),
        "{whole}"
    );
    let words =
        |text: &str| -> BTreeSet<String> { text.split_whitespace().map(str::to_owned).collect() };
    for columns in [50, 80] {
        let lines = lines_on_terminal(&mut report, columns);
        let is_fitting = |line: &String| line.chars().count() <= usize::from(columns);
        assert!(lines.iter().all(is_fitting), "{}", lines.join("\n"));
        assert_eq!(words(&lines.join("\n")), words(&whole));
    }
}
