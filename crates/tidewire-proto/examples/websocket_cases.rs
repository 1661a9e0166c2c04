//! Echoes WebSocket messages as they came, for suites that test an implementation: `.ci/websocket-cases` runs it.
//!
//! A server of Tidewire echoes frames of a codec, and a message is a part of their stream. So this program uses the
//! reader and the handshake of the library without its codecs.
//!
//! ```text
//!   websocket_cases server 127.0.0.1:9001     echoes messages of clients
//!   websocket_cases client 127.0.0.1:9001     asks a suite for its cases, and echoes what each of them sends
//! ```

#![expect(clippy::print_stdout, reason = "the script waits for the line")]

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use tidewire_proto::websocket::{
    Answer, ClientTerms, Frames, HeadLimits, Masks, MessageKind, ServerTerms, Side, close_frame,
    frame_header,
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// One connection after its handshake.
struct Echo {
    stream: TcpStream,
    frames: Frames,
    masks: Option<Masks>,
    /// Bytes that came behind the handshake.
    input: Vec<u8>,
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [mode, address] if mode == "server" => serve(address),
        [mode, address] if mode == "client" => run_cases(address),
        _ => Err("give `server ADDR` or `client ADDR`".into()),
    }
}

fn serve(address: &str) -> Outcome<()> {
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    for stream in listener.incoming() {
        let stream = stream?;
        // A case may end in the middle of anything; the suite has the verdict.
        thread::spawn(move || accept(stream).and_then(|mut echo| echo.run(|_| true)));
    }
    Ok(())
}

fn accept(mut stream: TcpStream) -> Outcome<Echo> {
    let (head, input) = read_head(&mut stream)?;
    match ServerTerms::new("/", "echo", MessageKind::Binary).answer(&head)? {
        Answer::Accepted { head, .. } => stream.write_all(&head)?,
        _ => return Err("a page was asked for, and there is none".into()),
    }
    Ok(Echo::new(stream, Side::Server, None, input))
}

fn run_cases(address: &str) -> Outcome<()> {
    let mut count = String::new();
    connect(address, "/getCaseCount")?.run(|message| {
        count = String::from_utf8_lossy(message).into_owned();
        false
    })?;
    for case in 1..=count.trim().parse::<u32>()? {
        let path = format!("/runCase?case={case}&agent=tidewire");
        // The suite cuts some connections on purpose.
        let _ = connect(address, &path)?.run(|_| true);
    }
    connect(address, "/updateReports?agent=tidewire")?.run(|_| false)
}

fn connect(address: &str, path: &str) -> Outcome<Echo> {
    let terms = ClientTerms::new(address, path, "echo", MessageKind::Binary);
    let terms = terms.ok_or("the address is not valid")?;
    // The masks of a test need no secret.
    let mut masks = Masks::new([1, 2]);
    let (request, key) = terms.request(&mut masks);
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(&request)?;
    let (head, input) = read_head(&mut stream)?;
    terms.check(&head, &key)?;
    Ok(Echo::new(stream, Side::Client, Some(masks), input))
}

/// Reads to the empty line after the headers. Returns the headers and the bytes after them.
fn read_head(stream: &mut TcpStream) -> Outcome<(Vec<u8>, Vec<u8>)> {
    let (mut head, mut buffer) = (Vec::new(), [0; 1 << 10]);
    loop {
        if let Some(end) = head.windows(4).position(|it| it == b"\r\n\r\n") {
            let rest = head.split_off(end + 4);
            return Ok((head, rest));
        }
        if head.len() > HeadLimits::default().bytes_max {
            return Err("the headers are too long".into());
        }
        match stream.read(&mut buffer)? {
            0 => return Err("the peer ended in the handshake".into()),
            count => head.extend_from_slice(&buffer[..count]),
        }
    }
}

impl Echo {
    fn new(stream: TcpStream, side: Side, masks: Option<Masks>, input: Vec<u8>) -> Self {
        Self {
            stream,
            frames: Frames::new(side, MESSAGE_BYTES_MAX),
            masks,
            input,
        }
    }

    /// Handles messages until the peer closes. Each is echoed for which `handle` returns true.
    fn run(&mut self, mut handle: impl FnMut(&[u8]) -> bool) -> Outcome<()> {
        let (mut payload, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            let received = match self.frames.receive(&self.input, &mut payload) {
                Ok(received) => received,
                Err(fault) => return self.close(fault.close_code()),
            };
            self.input.drain(..received.used);
            let mut out = Vec::new();
            let Self { frames, masks, .. } = self;
            frames.append_pongs(|| masks.as_mut().map(Masks::next_mask), &mut out);
            self.stream.write_all(&out)?;
            if let Some(kind) = received.message {
                let message = std::mem::take(&mut payload);
                if handle(&message) {
                    self.send(kind, message)?;
                }
                continue;
            }
            if let Some(code) = self.frames.close_code() {
                return self.close(code);
            }
            match self.stream.read(&mut buffer)? {
                0 => return Ok(()),
                count => self.input.extend_from_slice(&buffer[..count]),
            }
        }
    }

    fn send(&mut self, kind: MessageKind, mut message: Vec<u8>) -> Outcome<()> {
        let mask = self.masks.as_mut().map(Masks::next_mask);
        let header = frame_header(kind, message.len(), mask);
        if let Some(mut mask) = mask {
            mask.apply(&mut message);
        }
        Ok(self
            .stream
            .write_all(&[header.bytes(), &message].concat())?)
    }

    fn close(&mut self, code: u16) -> Outcome<()> {
        let mask = self.masks.as_mut().map(Masks::next_mask);
        let mut frame = Vec::new();
        close_frame(Some(code), mask, &mut frame);
        self.stream.write_all(&frame)?;
        // The server closes first. A client waits for that, and what still comes is not for it.
        if self.masks.is_none() {
            self.stream.shutdown(std::net::Shutdown::Write)?;
        }
        // The peer may also reset the connection after it has its answer.
        while self
            .stream
            .read(&mut [0; 1 << 10])
            .is_ok_and(|count| count > 0)
        {}
        Ok(())
    }
}

/// The suites send messages of up to 16 MiB.
const MESSAGE_BYTES_MAX: u64 = 64 << 20;
