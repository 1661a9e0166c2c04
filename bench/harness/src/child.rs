//! A child process of the benchmark: it is started on given cores, its output is read line by line, and it is ended
//! with all its descendants.
//! Every wait has a time limit, because a silent rival must not stop the others. To end a program, the runner closes
//! its input and gives it a moment to clean up. The end of its standard error is kept, because the last message of a
//! program tells why it died.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::de::DeserializeOwned;
use thiserror::Error;
use tidewire_proto::text::visible;

/// A running program. When it is dropped, its input is closed; after its grace it is killed with all its descendants.
#[derive(Debug)]
pub(super) struct Child {
    process: std::process::Child,
    input: Option<ChildStdin>,
    /// The time that it may take to end when it is dropped.
    grace: Duration,
    lines: Receiver<io::Result<String>>,
    /// The end of its standard error, and the thread that reads it.
    complaint: Arc<Mutex<Vec<u8>>>,
    listener: Option<JoinHandle<()>>,
}

/// A failure of the conversation between the runner and a program.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChildError {
    /// The program could not be started.
    #[error("cannot start it; is it executable?")]
    Start(#[source] io::Error),
    /// It wrote no line within so many seconds.
    #[error("it said nothing for {0} s")]
    Silent(u64),
    /// It wrote a line that is not of the contract: this one, or one that begins so.
    #[error("it said what the contract does not know: {0:?}")]
    Garbled(String, #[source] serde_json::Error),
    /// It wrote a line of this kind, and another one was expected.
    #[error("it said {0:?} where {1} was due")]
    OutOfTurn(&'static str, String),
    /// It ended too early, with this exit status, and this at the end of its standard error.
    #[error("it ended too early ({}){}", .0, complaint(.1))]
    Ended(String, String),
    /// The user stopped the benchmark.
    #[error("it was stopped")]
    Stopped,
}

impl Child {
    /// Starts it on these cores, or on any core if the list is empty.
    pub(super) fn start(
        mut command: Command,
        cores: &[usize],
        grace: Duration,
    ) -> Result<Self, ChildError> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // In a process group of its own, the program does not get Ctrl-C, and its descendants can be ended with
            // it.
            .process_group(0);
        let cores = cores.to_vec();
        // A process inherits the cores of the thread that starts it.
        let spawned = thread::spawn(move || {
            if !cores.is_empty() {
                let mut set = CpuSet::new();
                cores.iter().for_each(|core| set.set(*core));
                sched_setaffinity(None, &set)?;
            }
            command.spawn()
        });
        let mut process = spawned
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that starts it panicked")))
            .map_err(ChildError::Start)?;
        let (sender, lines) = channel();
        if let Some(output) = process.stdout.take() {
            thread::spawn(move || {
                let mut output = BufReader::new(output);
                while let Some(line) = next_line(&mut output) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
                // Further output must not block the program.
                let _ = io::copy(&mut output, &mut io::sink());
            });
        }
        let complaint = Arc::new(Mutex::new(Vec::new()));
        let listener = process.stderr.take().map(|mut errors| {
            let complaint = Arc::clone(&complaint);
            thread::spawn(move || keep_last(&mut errors, &complaint))
        });
        Ok(Self {
            input: process.stdin.take(),
            process,
            grace,
            lines,
            complaint,
            listener,
        })
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Writes a line to its input.
    pub(super) fn ask(&mut self) -> Result<(), ChildError> {
        let input = self.input.as_mut();
        let is_asked = input.is_some_and(|input| input.write_all(b"account\n").is_ok());
        is_asked.then_some(()).ok_or_else(|| self.ended())
    }

    pub(super) fn hear<T: DeserializeOwned>(
        &mut self,
        timeout: Duration,
        stop: &AtomicBool,
    ) -> Result<T, ChildError> {
        let line = self.hear_line(timeout, stop)?;
        serde_json::from_str(&line).map_err(|error| {
            let line = visible(line.as_bytes());
            ChildError::Garbled(line.chars().take(LINE_SHOWN).collect(), error)
        })
    }

    fn hear_line(&mut self, timeout: Duration, stop: &AtomicBool) -> Result<String, ChildError> {
        let until = Instant::now() + timeout;
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(ChildError::Stopped);
            }
            match self.lines.recv_timeout(LOOK_EVERY) {
                Ok(Ok(line)) => return Ok(line),
                Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= until => {
                    return Err(ChildError::Silent(timeout.as_secs()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Closes its input and waits for its end. After its grace the program and its descendants are killed.
    pub(super) fn finish(&mut self, timeout: Duration) -> Result<(), ChildError> {
        drop(self.input.take());
        match self.wait(timeout) {
            Some(status) if !status.success() => Err(self.ended()),
            // It has done its work, so it does no harm that it must be killed.
            _ => Ok(()),
        }
    }

    fn wait(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + timeout;
        loop {
            if let Ok(Some(status)) = self.process.try_wait() {
                return Some(status);
            }
            if Instant::now() >= until {
                return None;
            }
            thread::sleep(END_LOOK_EVERY);
        }
    }

    fn ended(&mut self) -> ChildError {
        let how = match self.wait(DYING_MAX) {
            Some(status) => status.to_string(),
            None => "it closed its output".to_owned(),
        };
        // Its last messages may still arrive. A descendant may keep the stream open for long.
        let until = Instant::now() + DYING_MAX;
        let is_listening = |listener: &JoinHandle<()>| !listener.is_finished();
        while self.listener.as_ref().is_some_and(is_listening) && Instant::now() < until {
            thread::sleep(END_LOOK_EVERY);
        }
        let said = self
            .complaint
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        ChildError::Ended(how, said)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.input.take().is_some() {
            self.wait(self.grace);
        }
        // The group exists while a descendant of the program runs, and until then no other group can have its number.
        // If the group is empty, the call finds none; that the number was reused within this moment is extremely
        // unlikely.
        let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
        let _ = self.process.wait();
    }
}

/// Reads the next line; `None` at the end of the stream. A line that is longer than any of the contract is an error.
fn next_line(output: &mut impl BufRead) -> Option<io::Result<String>> {
    let mut line = Vec::new();
    match output.take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
        Ok(0) => None,
        Ok(_) => Some(Ok(String::from_utf8_lossy(&line).into_owned())),
        Err(error) => Some(Err(error)),
    }
}

fn keep_last(errors: &mut impl Read, kept: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 1024];
    while let Ok(count) = errors.read(&mut buffer) {
        if count == 0 {
            return;
        }
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&buffer[..count]);
        let surplus = kept.len().saturating_sub(COMPLAINT_BYTES_MAX);
        kept.drain(..surplus);
    }
}

fn complaint(said: &str) -> String {
    let mut last: Vec<String> = said
        .lines()
        .rev()
        .take(COMPLAINT_LINES)
        .map(|line| visible(line.as_bytes()))
        .collect();
    last.reverse();
    match &last[..] {
        [] => String::new(),
        last => format!("; it said last: {}", last.join(" / ")),
    }
}

/// The interval in which a stop is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The interval in which an end is noticed.
const END_LOOK_EVERY: Duration = Duration::from_millis(2);

/// The longest wait for the exit code, and then for the last messages, of a program that has closed its output.
const DYING_MAX: Duration = Duration::from_secs(3);

/// The longest line of a program. The longest of the contract has some hundred bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// The number of shown letters of a wrong line.
const LINE_SHOWN: usize = 200;

/// The number of bytes of standard error that are kept, the last ones.
const COMPLAINT_BYTES_MAX: usize = 4_096;

/// The number of shown lines of standard error.
const COMPLAINT_LINES: usize = 3;
