//! Publish and subscribe, bare: the first connections are the subscribers, the others publish, and the server copies.
//! Frames are deliveries of TW1 with header and topic, and every subscriber looks at all of each. They are two bytes
//! longer than those of Tidewire, which say the topic by the number of the subscription, and four longer than its
//! publications.

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use tidewire::{Kind, Message};
use tidewire_io::clock::now_ns;
use tidewire_proto::codec::{Codec, Tw1};

use super::super::course::Part;
use super::super::frame_link::{self, Links, Server, Strategy, Way};
use super::flow::{Deliveries, Flow};
use super::{LOOK_EVERY_NS, PAYLOAD_BYTES, WINDOW};
use crate::contract::Work;
use crate::plan::RoleError;
use crate::stage::Stage;
use crate::subscriber::TOPIC;

type Frame = [u8; FRAME_BYTES];

/// The loops of the limit, with their names in the tables.
pub(super) fn loops(work: &Work) -> Vec<(String, Work)> {
    Strategy::loops(&[Strategy::WriteEach, Strategy::HalfWindow], work)
}

pub(super) fn serve(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let (subscribers, strategy) = (work.subscribers, Strategy::of(work));
    frame_link::serve(work, stage, move |server| {
        copy(server, strategy, subscribers)
    })
}

/// Starts the driver's thread, which says what becomes of it. Within a process the server starts here, too.
pub(super) fn start(address: &str, work: &Work, part: &Part<Deliveries>) -> Result<(), RoleError> {
    let (work, subscribers) = (work.clone(), work.subscribers);
    let strategy = Strategy::of(&work);
    let connections = subscribers + work.publishers;
    let way = frame_link::way(&work, address, connections, move |server| {
        copy(server, strategy, subscribers)
    })?;
    part.start(move |part| drive(&way, &work, part));
    Ok(())
}

/// Writes to every subscriber what publishers send. Frames of one turn are written together.
fn copy(server: Server, strategy: Strategy, subscribers: usize) -> io::Result<()> {
    let news = RefCell::new(Vec::new());
    server.serve(
        strategy,
        |frame: &Frame, _| news.borrow_mut().extend_from_slice(frame),
        |links| {
            let mut news = news.borrow_mut();
            for link in links.iter_mut().take(subscribers) {
                let Some(open) = link else { continue };
                open.output.extend_from_slice(&news);
                if open.flush().is_err() {
                    *link = None;
                }
            }
            news.clear();
        },
    )
}

fn drive(way: &Way, work: &Work, part: &Part<Deliveries>) -> io::Result<Deliveries> {
    let connections = work.subscribers + work.publishers;
    let mut links: Links<FRAME_BYTES> = Links::connect(way, work, connections)?;
    let strategy = Strategy::of(work);
    let room_min = match strategy {
        Strategy::HalfWindow => WINDOW / 2,
        _ => 1,
    };
    let head = head()?;
    part.connected();
    let mut flow = Flow::new(work);
    loop {
        let now_ns = now_ns();
        let is_complete = flow.expire(now_ns);
        if part.is_over(now_ns) {
            if is_complete {
                return Ok(flow.into_deliveries());
            }
        } else {
            for (publisher, link) in links.all.iter_mut().skip(work.subscribers).enumerate() {
                let room = flow.room(publisher);
                if room < room_min {
                    link.flush()?;
                    continue;
                }
                for _ in 0..room {
                    link.output.extend_from_slice(&head);
                    flow.append(publisher, now_ns, &mut link.output);
                }
                link.flush()?;
            }
        }
        let mut heard_ns = None;
        links.turn(LOOK_EVERY, strategy, |number, frame, _| {
            let heard_ns = *heard_ns.get_or_insert_with(tidewire_io::clock::now_ns);
            // A frame with another length, kind or topic is not what was published.
            let payload = frame.strip_prefix(&head[..]).unwrap_or_default();
            flow.take(number, payload, heard_ns, part);
        })?;
    }
}

/// The bytes before each payload: the header and the topic.
fn head() -> io::Result<Vec<u8>> {
    let mut frame = Vec::new();
    let message = Message::with_id(Kind::Deliver, 1, 0, &[0; PAYLOAD_BYTES]).with_name(TOPIC);
    Tw1.encode(&message, &mut frame).map_err(io::Error::other)?;
    frame.truncate(frame.len().saturating_sub(PAYLOAD_BYTES));
    Ok(frame)
}

/// A payload with its header and its topic of a letter.
const FRAME_BYTES: usize = PAYLOAD_BYTES + 14;

const LOOK_EVERY: Duration = Duration::from_nanos(LOOK_EVERY_NS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_two_bytes_longer_than_one_of_tidewire() {
        assert_eq!(head().unwrap().len() + PAYLOAD_BYTES, FRAME_BYTES);
        let mut delivered = Vec::new();
        let message = Message::with_id(Kind::Deliver, 1, 0, &[0; PAYLOAD_BYTES]);
        Tw1.encode(&message, &mut delivered).unwrap();
        assert_eq!(delivered.len() + 2, FRAME_BYTES);
    }
}
