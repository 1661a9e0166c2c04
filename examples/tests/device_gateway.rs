//! Tests of the example `device_gateway`, with devices that use its framing over plain sockets.
#![allow(
    clippy::unwrap_used,
    reason = "a failure in a helper fails the test that called it"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use tidewire::ErrorCode;
use tidewire::codec::ErrorBody;
use tidewire::system::raise_descriptor_limit;

/// Each device has logged in, and one of its readings was stored.
#[test]
fn ten_thousand_devices_take_at_most_20_mb() {
    let limit = raise_descriptor_limit().unwrap();
    // Some descriptors are needed for other purposes: the libraries, the pipes, the backend.
    let room = usize::try_from(limit).unwrap_or(usize::MAX) - 100;
    let count = room.min(10_000);
    if count < 10_000 {
        println!("only {count} devices: the limit of descriptors allows no more");
    }
    let backend = path("ten_thousand");
    let stored = store(&backend);
    let gateway = Gateway::start(&backend, "60000");
    // The first device pays for the state that all devices share.
    let first = gateway.device(1_000_000);
    let base_bytes = gateway.resident_bytes();
    let mut devices = vec![first];
    for number in 0..count as u32 {
        let mut device = gateway.device(number);
        assert_eq!(device.ask(b"21.5"), Ok(b"stored".to_vec()));
        assert_eq!(stored.recv().unwrap(), (number, 1, b"21.5".to_vec()));
        devices.push(device);
    }
    let grown_bytes = gateway.resident_bytes().saturating_sub(base_bytes);
    let most_bytes = 20_000_000 * count as u64 / 10_000;
    println!("{count} devices take {grown_bytes} bytes");
    assert!(grown_bytes <= most_bytes, "{count}: {grown_bytes} bytes");
    // All devices are still connected.
    for device in devices.iter_mut().step_by(100) {
        assert_eq!(device.ask(b"22"), Ok(b"stored".to_vec()));
    }
    // The gateway is dropped before the devices, so that closed connections remain at its one port, and not at 10,000
    // ports that other tests may need.
    drop(gateway);
}

#[test]
fn a_device_without_a_login_is_closed() {
    let gateway = Gateway::start(&path("none"), "60000");
    let mut wrong = gateway.connect();
    wrong.send(REQUEST, 1, b"\0\0\0\x07key of 8");
    assert_eq!(wrong.closing_words(), Some(ErrorCode::NotFound));
    let mut reading_first = gateway.connect();
    reading_first.send(REQUEST, 1, b"21.5");
    assert_eq!(reading_first.closing_words(), Some(ErrorCode::NotFound));
    let mut sign_of_life_first = gateway.connect();
    sign_of_life_first.send(ONE_WAY, 0, b"");
    assert_eq!(sign_of_life_first.closing_words(), None);
    // The gateway still works.
    gateway.device(7);
}

#[test]
fn devices_get_errors_while_the_backend_is_down_and_answers_when_it_is_back() {
    let backend = path("down");
    let gateway = Gateway::start(&backend, "60000");
    let mut device = gateway.device(7);
    for _ in 0..10 {
        assert_eq!(device.ask(b"21.5"), Err(ErrorCode::Internal));
    }
    let stored = store(&backend);
    let mut count = 11;
    while let Err(code) = device.ask(b"22") {
        count += u32::from(code == ErrorCode::Internal);
        // The gateway pauses between attempts, and refuses more than 100 messages a second.
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(stored.recv().unwrap(), (7, count, b"22".to_vec()));
}

#[test]
fn a_command_reaches_the_device_that_logged_in_last() {
    let mut gateway = Gateway::start(&path("none"), "60000");
    let (mut old, mut other) = (gateway.device(7), gateway.device(8));
    let mut new = gateway.device(7);
    assert_eq!(old.closing_words(), None);
    gateway.say("7 restart now");
    gateway.say("8 stop");
    assert_eq!(new.receive(), Some((ONE_WAY, 0, b"restart now".to_vec())));
    assert_eq!(other.receive(), Some((ONE_WAY, 0, b"stop".to_vec())));
    drop(other);
    for (line, answer) in [
        ("9 stop", "not sent: the session is not open\n"),
        ("stop", "not sent: write: NUMBER COMMAND\n"),
    ] {
        gateway.say(line);
        assert_eq!(gateway.hear(), answer);
    }
}

#[test]
fn more_than_100_messages_a_second_are_refused() {
    let backend = path("rate");
    let stored = store(&backend);
    let gateway = Gateway::start(&backend, "60000");
    let (mut loud, mut quiet) = (gateway.device(7), gateway.device(8));
    let start = Instant::now();
    for id in 0..READINGS {
        loud.send(REQUEST, id, b"21.5");
    }
    let mut taken = 0;
    for _ in 0..READINGS {
        let (kind, _, payload) = loud.receive().unwrap();
        match kind {
            REPLY => taken += 1,
            _ => assert_eq!(code_of(&payload), ErrorCode::LimitReached),
        }
    }
    // The login was one of the first hundred messages.
    let allowed = 100.0 + 100.0 * start.elapsed().as_secs_f64();
    assert!((99.0..=allowed).contains(&f64::from(taken)), "{taken}");
    assert_eq!(quiet.ask(b"22"), Ok(b"stored".to_vec()));
    assert_eq!(
        stored.into_iter().take(taken as usize + 1).count(),
        taken as usize + 1
    );
}

#[test]
fn silence_ends_a_device_although_it_is_sent_messages() {
    const SILENCE: Duration = Duration::from_millis(500);
    let mut gateway = Gateway::start(&path("none"), "500");
    let mut device = gateway.device(7);
    let start = Instant::now();
    // Messages to the device are not a sign of life.
    let (mut said, mut heard) = (0, 0);
    loop {
        assert!(start.elapsed() < GIVEN_UP, "the silent device stays");
        gateway.say("7 are you there?");
        said += 1;
        match device.receive() {
            Some((ONE_WAY, ..)) => heard += 1,
            Some(other) => panic!("{other:?}"),
            None => break,
        }
    }
    assert!(heard > 0 && heard < said);
    // The lane reads its clock before it reads the socket.
    assert!(start.elapsed() + Duration::from_millis(50) > SILENCE);
}

/// A running gateway. Dropping it kills it.
struct Gateway {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Gateway {
    fn start(backend: &Path, silence_ms: &str) -> Self {
        // The gateway inherits this limit.
        raise_descriptor_limit().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_device_gateway"))
            .args([
                "tcp://127.0.0.1:0",
                &format!("ipc://{}", backend.display()),
                silence_ms,
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on tcp://").unwrap();
        let address = address.parse().unwrap();
        Self {
            child,
            stdout,
            address,
        }
    }

    fn connect(&self) -> Device {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        Peer(stream)
    }

    /// A device that has logged in.
    fn device(&self, number: u32) -> Device {
        let mut device = self.connect();
        let login = format!("key of {number}");
        let login = [&number.to_be_bytes(), login.as_bytes()].concat();
        assert_eq!(device.ask(&login), Ok(b"welcome".to_vec()));
        device
    }

    fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.expect("it runs").trim().trim_end_matches(" kB");
        kibibytes.parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One end of a connection in the framing of the devices.
struct Peer<S>(S);

type Device = Peer<TcpStream>;

impl<S: Read + Write> Peer<S> {
    fn send(&mut self, kind: u8, id: u32, payload: &[u8]) {
        let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
        let frame = [&length[..], &[kind], &id.to_be_bytes(), payload].concat();
        self.0.write_all(&frame).unwrap();
    }

    /// Returns the next frame: kind, id and payload. `None` at the end of the connection.
    fn receive(&mut self) -> Option<(u8, u32, Vec<u8>)> {
        let mut header = [0; 7];
        self.0.read_exact(&mut header).ok()?;
        let [high, low, kind, id @ ..] = header;
        let mut payload = vec![0; usize::from(u16::from_be_bytes([high, low]))];
        self.0.read_exact(&mut payload).unwrap();
        Some((kind, u32::from_be_bytes(id), payload))
    }

    fn ask(&mut self, payload: &[u8]) -> Result<Vec<u8>, ErrorCode> {
        self.send(REQUEST, 99, payload);
        match self.receive() {
            Some((REPLY, 99, payload)) => Ok(payload),
            Some((ERROR, 99, payload)) => Err(code_of(&payload)),
            other => panic!("no answer: {other:?}"),
        }
    }

    /// Waits for the end of the connection. Returns the code of the error before it, if any.
    fn closing_words(&mut self) -> Option<ErrorCode> {
        let code = match self.receive()? {
            (ERROR, _, payload) => code_of(&payload),
            other => panic!("no error: {other:?}"),
        };
        assert_eq!(self.receive(), None);
        Some(code)
    }
}

fn code_of(payload: &[u8]) -> ErrorCode {
    ErrorBody::decode(payload).unwrap().code
}

/// Starts a backend that stores all readings. The receiver gets each stored reading: the number of the device, how
/// many readings came from it, and the reading.
fn store(path: &Path) -> Receiver<(u32, u32, Vec<u8>)> {
    let listener = UnixListener::bind(path).unwrap();
    let (report, stored) = channel();
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let (mut gateway, report) = (Peer(stream), report.clone());
            thread::spawn(move || {
                while let Some((REQUEST, id, payload)) = gateway.receive() {
                    let (number, rest) = payload.split_first_chunk().unwrap();
                    let (count, reading) = rest.split_first_chunk().unwrap();
                    let [number, count] = [number, count].map(|it| u32::from_be_bytes(*it));
                    // The test may have dropped its end.
                    let _ = report.send((number, count, reading.to_vec()));
                    gateway.send(REPLY, id, b"stored");
                }
            });
        }
    });
    stored
}

/// Returns the address of a backend. It is a path, because a free port may be taken before the backend uses it.
fn path(test: &str) -> PathBuf {
    let name = format!("{test}-{}.sock", std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // The file may be left from an earlier run with the same process id.
    let _ = std::fs::remove_file(&path);
    path
}

const ONE_WAY: u8 = 0;
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const ERROR: u8 = 3;

/// The number of readings that the loud device sends at once.
const READINGS: u32 = 500;

/// The time after which a test gives up.
const GIVEN_UP: Duration = Duration::from_secs(60);
