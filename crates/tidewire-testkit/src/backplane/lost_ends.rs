//! Streams that lose their newest messages, as by a power cut of their engine, and keep the time at which they were
//! made.

use tidewire::History;

use super::Engine;
use super::histories::{HistoryKind, Reader};
use crate::harness::TestServer;

/// The messages of a round.
pub const MESSAGES: usize = 20;

/// Two nodes with a stream of the messages "0 0" to "0 19", an author at the first and a reader at each.
#[derive(Debug)]
pub struct Cluster {
    kind: HistoryKind,
    servers: [TestServer; 2],
    author: Reader,
    readers: [Reader; 2],
}

impl Cluster {
    /// Starts it.
    pub fn start<E: Engine>(engine: &E, kind: HistoryKind) -> Self {
        let servers = ["one", "two"].map(|id| kind.serve(engine, id, History::last(100)));
        let author = kind.reader(&servers[0], "ann", None);
        let readers = [0, 1].map(|it| kind.reader(&servers[it], ["bob", "carl"][it], None));
        let mut cluster = Self {
            kind,
            servers,
            author,
            readers,
        };
        cluster.say(0, 0..MESSAGES);
        cluster.assert_heard(0);
        cluster
    }

    /// Says these messages of a round.
    pub fn say(&self, round: usize, numbers: std::ops::Range<usize>) {
        texts(round)[numbers]
            .iter()
            .for_each(|text| self.author.say(text));
    }

    /// Checks that both readers get the messages of a round, with the same offsets.
    pub fn assert_heard(&mut self, round: usize) -> Vec<(u64, String)> {
        let [one, two] = self.readers.each_mut().map(|reader| reader.take(MESSAGES));
        assert!(
            one.iter().map(|(_, text)| text).eq(&texts(round)),
            "{one:?}"
        );
        assert_eq!(one, two);
        one
    }

    /// Checks that both readers receive the messages of a round, and are told that an unknown number is missing before
    /// them. A reader that returns with a position of the former epoch is told the same.
    pub fn assert_told(&mut self, round: usize) {
        let before = self.readers[0].position;
        let taken = self.assert_heard(round);
        let after = self.readers[0].position;
        assert_ne!(before.map(|it| it.epoch), after.map(|it| it.epoch));
        for reader in &mut self.readers {
            assert_eq!((reader.recovered.take(), reader.lost), (Some(None), 0));
            assert_eq!(reader.position, after);
        }
        for server in &self.servers {
            let mut late = self.kind.reader(server, "late", before);
            assert_eq!(late.take(MESSAGES), taken);
            assert_eq!((late.recovered, late.lost), (Some(None), 0));
            late.leave();
        }
    }

    /// Ends the cluster.
    pub fn stop(self) {
        drop((self.author, self.readers));
        for server in self.servers {
            assert_eq!(server.stop().backplane_lost, 0);
        }
    }
}

/// The engine comes back with an older copy of its streams. All readers receive the later messages, and are told that
/// an unknown number is missing before them.
///
/// Regression: the stream gave sequences again that the nodes had seen. They took the new messages for late messages.
pub fn a_stream_that_lost_its_end_begins_again<E: Engine>(engine: &mut E, kind: HistoryKind) {
    let mut cluster = Cluster::start(engine, kind);
    for round in 1..3 {
        engine.cut();
        engine.save_streams();
        engine.mend();
        cluster.say(2 * round - 1, 0..MESSAGES);
        cluster.assert_heard(2 * round - 1);
        engine.cut();
        engine.restore_streams();
        cluster.say(2 * round, 0..MESSAGES);
        engine.mend();
        cluster.assert_told(2 * round);
    }
    cluster.stop();
}

fn texts(round: usize) -> Vec<String> {
    (0..MESSAGES).map(|it| format!("{round} {it}")).collect()
}
