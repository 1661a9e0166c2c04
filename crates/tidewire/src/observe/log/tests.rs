//! Every line is accounted for with slow targets, full queues, full disks and early ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread;

use tracing::Level;
use tracing::subscriber::with_default;

use super::*;
use crate::observe::LogBuffer;

/// A target that reports each line that it is given. It accepts the line once the gate is open, that is, dropped.
struct Gated {
    reached: SyncSender<()>,
    gate: Receiver<()>,
    kept: LogBuffer,
}

impl Gated {
    fn new() -> (Self, Receiver<()>, Sender<()>, LogBuffer) {
        let (reached, is_reached) = mpsc::sync_channel(1);
        let (opener, gate) = mpsc::channel();
        let kept = LogBuffer::default();
        let gated = Self {
            reached,
            gate,
            kept: kept.clone(),
        };
        (gated, is_reached, opener, kept)
    }
}

impl Write for Gated {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.reached.try_send(());
        // No value is ever sent: this returns when the gate is open.
        let _ = self.gate.recv();
        self.kept.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A target on a disk that is full for some writes. The first of them tears a line.
struct Full {
    failures: usize,
    torn: bool,
    kept: LogBuffer,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failures > 0 && !self.torn {
            self.torn = true;
            return self.kept.write(&bytes[..2]);
        }
        if self.failures > 0 {
            self.failures -= 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.kept.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn conserved(metrics: LogMetrics) -> LogMetrics {
    assert_eq!(
        metrics.offered,
        metrics.written + metrics.dropped + metrics.failed + metrics.in_flight(),
        "{metrics:?}"
    );
    metrics
}

#[test]
fn a_lossless_log_loses_nothing_to_a_slow_target() {
    const THREADS: usize = 4;
    const LINES: usize = 300;
    /// A target that gives each line to the test, which decides its speed.
    struct ByHand(SyncSender<String>);
    impl Write for ByHand {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0
                .send(String::from_utf8_lossy(bytes).into_owned())
                .unwrap();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (hand, lines) = mpsc::sync_channel(0);
    let (writer, log) = LogBuilder::new().queue_lines_max(2).open_to(ByHand(hand));
    let taking = thread::spawn(move || {
        let mut next: BTreeMap<usize, usize> = BTreeMap::new();
        for block in lines {
            for line in block.lines() {
                let (thread, line) = line.split_once(' ').unwrap();
                let expected = next.entry(thread.parse().unwrap()).or_default();
                assert_eq!(
                    line,
                    expected.to_string(),
                    "the lines of a thread keep their order"
                );
                *expected += 1;
            }
        }
        next
    });
    let logging: Vec<_> = (0..THREADS)
        .map(|thread| {
            let mut writer = writer.clone();
            thread::spawn(move || {
                for line in 0..LINES {
                    writer
                        .write_all(format!("{thread} {line}\n").as_bytes())
                        .unwrap();
                }
            })
        })
        .collect();
    for thread in logging {
        thread.join().unwrap();
    }
    // Some lines still wait in the queue: the end waits for them.
    let metrics = conserved(log.finish());
    let all = (THREADS * LINES) as u64;
    assert_eq!(
        (metrics.offered, metrics.written, metrics.in_flight()),
        (all, all, 0)
    );
    let taken = taking.join().unwrap();
    assert_eq!(taken.values().sum::<usize>(), THREADS * LINES);
}

#[test]
fn a_lossy_log_counts_its_drops_exactly_and_reports_them_when_there_is_room() {
    for is_json in [false, true] {
        let (gated, reached, gate, kept) = Gated::new();
        let (mut writer, log) = LogBuilder::new()
            .lossy(true)
            .json(is_json)
            .queue_lines_max(8)
            .open_to(gated);
        writer.write_all(b"first\n").unwrap();
        reached.recv().unwrap();
        // One line is being written, eight wait, and the others find no place.
        for number in 0..13 {
            writer.write_all(format!("{number}\n").as_bytes()).unwrap();
        }
        let metrics = conserved(log.metrics());
        assert_eq!(
            (metrics.offered, metrics.dropped, metrics.in_flight()),
            (14, 5, 9)
        );
        drop(gate);
        let metrics = conserved(log.finish());
        assert_eq!(
            (metrics.written, metrics.dropped, metrics.in_flight()),
            (9, 5, 0)
        );
        let text = kept.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..9],
            ["first", "0", "1", "2", "3", "4", "5", "6", "7"]
        );
        assert_eq!(lines.len(), 10, "{text}");
        match is_json {
            false => assert!(lines[9].ends_with("written lines=5 total=5"), "{text}"),
            true => {
                let notice: serde_json::Value = serde_json::from_str(lines[9]).unwrap();
                assert_eq!(notice["level"], "WARN");
                assert_eq!(
                    (&notice["fields"]["lines"], &notice["fields"]["total"]),
                    (&5.into(), &5.into())
                );
            }
        }
    }
}

#[test]
fn a_full_disk_is_counted_and_the_log_says_so_when_it_has_room_again() {
    let kept = LogBuffer::default();
    let out = Full {
        failures: 3,
        torn: false,
        kept: kept.clone(),
    };
    let (mut writer, log) = LogBuilder::new().open_to(out);
    for number in 0..5 {
        writer
            .write_all(format!("line {number}\n").as_bytes())
            .unwrap();
    }
    let metrics = conserved(log.finish());
    assert_eq!((metrics.written, metrics.failed), (2, 3));
    let text = kept.text();
    let lines: Vec<&str> = text.lines().collect();
    // The part of the cut line is a separate line.
    assert_eq!(lines[..3], ["li", "line 3", "line 4"]);
    assert!(lines[3].ends_with("lines=3 total=3"), "{text}");
}

#[test]
fn a_target_that_hangs_does_not_keep_the_program() {
    let (gated, reached, gate, _) = Gated::new();
    let (mut writer, log) = LogBuilder::new()
        .stall_timeout(Duration::from_millis(20))
        .open_to(gated);
    writer.write_all(b"one\n").unwrap();
    reached.recv().unwrap();
    writer.write_all(b"two\n").unwrap();
    let metrics = conserved(log.finish());
    assert_eq!(
        (metrics.offered, metrics.dropped, metrics.written),
        (2, 2, 0)
    );
    drop(gate);
}

#[test]
fn lines_after_the_end_of_the_log_are_dropped_and_counted() {
    let kept = LogBuffer::default();
    let (mut writer, log) = LogBuilder::new().open_to(kept.clone());
    let tally = Arc::clone(log.tally());
    writer.write_all(b"in time\n").unwrap();
    assert_eq!(conserved(log.finish()).written, 1);
    writer.write_all(b"too late\n").unwrap();
    let metrics = conserved(tally.metrics());
    assert_eq!((metrics.offered, metrics.dropped), (2, 1));
    assert_eq!(kept.text(), "in time\n");
}

#[test]
fn a_subscriber_writes_lines_of_its_format() {
    let kept = LogBuffer::default();
    let (writer, log) = LogBuilder::new().open_to(kept.clone());
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_writer(writer)
        .finish();
    with_default(subscriber, || tracing::info!(sessions = 3, "running"));
    assert_eq!(conserved(log.finish()).written, 1);
    let line: serde_json::Value = serde_json::from_str(&kept.text()).unwrap();
    assert_eq!(line["fields"]["sessions"], 3);
    // The log's own lines have the same layout.
    let own = render_json(&Notice::Dropped { lines: 1, total: 2 });
    for key in ["timestamp", "level", "fields"] {
        assert!(line.get(key).is_some() && own.get(key).is_some(), "{key}");
    }
}

fn render_json(notice: &Notice) -> serde_json::Value {
    serde_json::from_slice(&line::render(LogFormat::Json, notice)).unwrap()
}

#[test]
fn a_file_is_appended_to_and_says_where_a_run_begins() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    for run in 0..2 {
        let (mut writer, log) = LogBuilder::new().file(&path).open().unwrap();
        writeln!(writer, "run {run}").unwrap();
        drop(log);
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].ends_with(" INFO the log begins"), "{text}");
    assert_eq!((lines[1], lines[3]), ("run 0", "run 1"));
}

#[test]
fn files_that_cannot_be_opened_or_written_are_errors_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let open = |path: &Path| LogBuilder::new().file(path).open().map(drop).unwrap_err();
    let error = open(&directory.path().join("no/such/log"));
    assert!(matches!(error, LogError::Open { .. }));
    assert!(error.to_string().contains("create it first"), "{error}");
    let error = open(directory.path());
    assert!(error.to_string().contains("name a file in it"), "{error}");
    let error = open(Path::new("/dev/full"));
    assert!(matches!(error, LogError::Write { .. }));
    assert!(error.to_string().contains("the disk is full"), "{error}");
    let error = LogBuilder::new().filter("a=b=c").unwrap_err();
    assert!(error.to_string().contains("use off, error"), "{error}");
}

#[test]
fn a_filter_takes_levels_and_targets_and_skips_empty_items() {
    let enabled = |filter: &str| {
        let targets = LogBuilder::new().filter(filter).unwrap().filter;
        let is_enabled = |target, level| u8::from(targets.would_enable(target, &level));
        [
            is_enabled("tidewire::engine", Level::DEBUG),
            is_enabled("tidewire::room", Level::DEBUG),
            is_enabled("tidewire::room", Level::INFO),
            is_enabled("other", Level::ERROR),
        ]
    };
    assert_eq!(enabled("info,tidewire::engine=debug"), [1, 0, 1, 1]);
    assert_eq!(enabled(" INFO, ,"), [0, 0, 1, 1]);
    assert_eq!(enabled("tidewire=trace"), [1, 1, 1, 0]);
    assert_eq!(enabled("off"), [0, 0, 0, 0]);
    assert_eq!(enabled(""), [0, 0, 0, 1]);
}

/// Regression: the log's thread hung in the write for ever, and every thread that waited for room in the queue.
#[test]
fn a_pipe_without_a_reader_delays_no_thread_at_the_end() {
    let (reader, writer) = io::pipe().unwrap();
    let pipe = std::os::fd::OwnedFd::from(writer);
    let builder = LogBuilder::new()
        .queue_lines_max(1)
        .stall_timeout(Duration::from_millis(20));
    let (mut writer, log) = builder.spawn_to(pipe.into());
    let control = log.control();
    let (full, is_full) = mpsc::channel();
    let logging = thread::spawn(move || {
        for number in 0..100 {
            writer.write_all(&[b'x'; 8 << 10]).unwrap();
            // The pipe is full long before the last line.
            full.send(number).unwrap();
        }
    });
    // The pipe holds 64 KiB, the log's thread holds a block of 32 KiB, and the queue holds a line.
    while is_full.recv().unwrap() < 7 {}
    control.hurry();
    logging.join().unwrap();
    let metrics = conserved(log.finish());
    assert_eq!((metrics.offered, metrics.in_flight()), (100, 0));
    assert!(metrics.failed > 0, "{metrics:?}");
    drop(reader);
}

#[test]
fn a_log_that_was_moved_away_goes_on_in_a_new_file() {
    let directory = tempfile::tempdir().unwrap();
    let [path, moved] = ["log", "log.1"].map(|name| directory.path().join(name));
    let (mut writer, log) = LogBuilder::new().file(&path).open().unwrap();
    let control = log.control();
    writer.write_all(b"before\n").unwrap();
    while log.metrics().written < 1 {
        thread::yield_now();
    }
    std::fs::rename(&path, &moved).unwrap();
    assert!(control.reopen().unwrap());
    writer.write_all(b"after\n").unwrap();
    let metrics = conserved(log.finish());
    assert_eq!((metrics.offered, metrics.written), (2, 2));
    let [new, old] = [&path, &moved].map(|path| std::fs::read_to_string(path).unwrap());
    assert!(
        old.contains("the log begins") && old.ends_with("before\n"),
        "{old}"
    );
    assert!(
        new.contains("the log begins") && new.ends_with("after\n"),
        "{new}"
    );

    // If the file cannot be opened, the log continues in the old file.
    let (mut writer, log) = LogBuilder::new().file(&path).open().unwrap();
    std::fs::remove_dir_all(directory.path()).unwrap();
    assert!(matches!(log.control().reopen(), Err(LogError::Open { .. })));
    writer.write_all(b"still there\n").unwrap();
    assert_eq!(conserved(log.finish()).written, 1);
    let (_, log) = LogBuilder::new().open_to(LogBuffer::default());
    assert!(!log.control().reopen().unwrap(), "there is no file");
}
