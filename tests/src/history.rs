//! What was written to a volume, what was promised, and so what a crash may leave.
//!
//! How: every write of a block carries a version, and the block's bytes follow from seed, block and
//! version. For each block the history keeps the newest promised content and every later one; after
//! a crash the block must hold one of these, whole.
//! Invariant: a content is promised only by a FLUSH sent after its reply, by FUA, or by the class.
//! Cost: a few entries per block. Not for: writes that straddle blocks; see `clients`.

use crate::{Connection, Lost, Request};
use layby_types::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a block of the history.
pub const BLOCK_BYTES: u64 = 4096;
/// Requests in flight at once.
const BATCH_MAX: u64 = 32;
/// Bytes of the version at the front of a block.
const VERSION_BYTES: usize = 8;

/// The protocol's error number of a server that is about to end.
const SHUTDOWN: u32 = 108;

/// When a reply to a write is a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// With FLUSH or FUA only, as for classes `normal` and `bulk`.
    OnFlush,
    /// Always, as for class `critical`.
    OnReply,
}

/// A content that a block may hold: data of a version, or zeros since that version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    version: u64,
    zero: bool,
}

/// All that was asked of the first `blocks` blocks of a volume.
#[derive(Debug)]
pub struct History {
    rng: Rng,
    seed: u64,
    durability: Durability,
    version_next: u64,
    /// Per block, the newest promised content first, then every later one in order.
    possible: Vec<Vec<Content>>,
    /// Versions that were answered, but not promised yet.
    answered: BTreeSet<(u64, u64)>,
}

impl History {
    /// The history of a fresh volume, which reads as zeros.
    #[must_use]
    pub fn new(blocks: u64, durability: Durability, seed: u64) -> Self {
        let fresh = vec![Content { version: 0, zero: true }];
        let possible = (0..blocks).map(|_| fresh.clone()).collect();
        let (rng, answered) = (Rng::new(seed), BTreeSet::new());
        History { rng, seed, durability, version_next: 1, possible, answered }
    }

    /// Writes batch after batch until the server is gone; `on_batch` hears of each batch answered.
    pub fn write_until_lost(&mut self, connection: &mut Connection, mut on_batch: impl FnMut()) {
        while self.batch(connection).is_ok() {
            on_batch();
        }
        self.lost();
    }

    /// The server is gone: what was answered but never flushed stays possible, no more.
    pub fn lost(&mut self) {
        self.answered.clear();
    }

    /// Sends some writes and perhaps a flush among them, then takes every reply.
    ///
    /// # Errors
    /// [`Lost`] when the server goes away; what was sent stays possible.
    pub fn batch(&mut self, connection: &mut Connection) -> Result<(), Lost> {
        let mut in_flight = BTreeMap::new();
        let (count, flush_at) = (1 + self.rng.below(BATCH_MAX), self.rng.below(2 * BATCH_MAX));
        let mut flush = None;
        let mut blocks = BTreeSet::new();
        for index in 0..count {
            if index == flush_at {
                // It covers what was answered before it was sent: nothing of this batch.
                flush =
                    Some((connection.send(&Request::Flush)?, std::mem::take(&mut self.answered)));
            }
            let block = self.rng.below(self.possible.len() as u64);
            if blocks.insert(block) {
                let (request, content, fua) = self.change(block);
                in_flight.insert(connection.send(&request)?, (block, content.version, fua));
            }
        }
        let replies = in_flight.len() + usize::from(flush.is_some());
        for _ in 0..replies {
            let (cookie, result) = connection.receive()?;
            if result == Err(SHUTDOWN) {
                return Err(Lost);
            }
            assert!(result.is_ok(), "the server refused a change: {result:?}");
            match (in_flight.remove(&cookie), flush.take_if(|(own, _)| *own == cookie)) {
                (Some((block, version, fua)), _) => self.on_answered(block, version, fua),
                (None, Some((_, covered))) => self.promise_all(&covered),
                (None, None) => panic!("a reply to cookie {cookie}, which was never sent"),
            }
        }
        Ok(())
    }

    /// The next change of `block`, noted as possible before it is sent.
    fn change(&mut self, block: u64) -> (Request, Content, bool) {
        let (offset, length) = (block * BLOCK_BYTES, BLOCK_BYTES as u32);
        let roll = self.rng.below(16);
        let content = Content { version: self.version_next, zero: roll < 2 };
        self.version_next += 1;
        self.possible[block as usize].push(content);
        let fua = roll == 2;
        let request = match roll {
            0 => Request::Trim { offset, length },
            1 => Request::Zero { offset, length },
            _ => Request::Write { offset, data: self.bytes(block, content), fua },
        };
        (request, content, fua)
    }

    fn on_answered(&mut self, block: u64, version: u64, fua: bool) {
        let zeroed = self.possible[block as usize].iter().any(|c| c.version == version && c.zero);
        if fua || (self.durability == Durability::OnReply && !zeroed) {
            self.promise(block, version);
        } else {
            self.answered.insert((block, version));
        }
    }

    fn promise_all(&mut self, covered: &BTreeSet<(u64, u64)>) {
        for (block, version) in covered {
            self.promise(*block, *version);
        }
    }

    /// From now on `block` holds `version` or a later one.
    fn promise(&mut self, block: u64, version: u64) {
        self.possible[block as usize].retain(|content| content.version >= version);
    }

    /// Reads every block and holds it against what is possible; then flushes, so that what was
    /// found is what the next crash must leave.
    ///
    /// # Panics
    /// When a block holds anything else, or the server goes away.
    pub fn verify(&mut self, connection: &mut Connection) {
        for block in 0..self.possible.len() as u64 {
            let read = Request::Read { offset: block * BLOCK_BYTES, length: BLOCK_BYTES as u32 };
            let data = connection.call(&read).expect("the node serves while it is verified");
            let data = data.unwrap_or_else(|error| panic!("block {block}: error {error}"));
            let found = self.recognise(block, &data);
            self.possible[block as usize] = vec![found];
        }
        // What was found counts, not what was answered before it.
        self.answered.clear();
        let flushed = connection.call(&Request::Flush).expect("the node serves");
        assert!(flushed.is_ok(), "the flush after verification failed: {flushed:?}");
    }

    /// Which of the possible contents `data` is.
    fn recognise(&self, block: u64, data: &[u8]) -> Content {
        let possible = &self.possible[block as usize];
        // Of several that look alike the oldest promises least.
        let found = possible.iter().find(|content| self.bytes(block, **content) == data);
        *found.unwrap_or_else(|| {
            let (head, _) = data.split_at(VERSION_BYTES);
            let version = u64::from_le_bytes(head.try_into().expect("eight bytes"));
            panic!(
                "block {block} holds version {version} or a mixture; possible: {possible:?}; \
                 replay with LAYBY_SEED={}",
                self.seed
            )
        })
    }

    /// The bytes of a content: its version, then draws that follow from seed, block and version.
    fn bytes(&self, block: u64, content: Content) -> Vec<u8> {
        let mut data = vec![0; BLOCK_BYTES as usize];
        if !content.zero {
            let (head, tail) = data.split_at_mut(VERSION_BYTES);
            head.copy_from_slice(&content.version.to_le_bytes());
            let mark = self.seed ^ block.rotate_left(32) ^ content.version.rotate_left(13);
            Rng::new(mark).fill(tail);
        }
        data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a promise is kept and a mere reply is not taken for one. Method: three versions of a
    /// block, the second promised.
    #[test]
    fn only_promised_and_later_contents_are_possible() {
        let mut history = History::new(1, Durability::OnFlush, 7);
        let contents = [1, 2, 3].map(|version| Content { version, zero: false });
        history.possible[0].extend(contents);
        history.on_answered(0, 1, false);
        assert_eq!(history.possible[0].len(), 4, "a reply without flush promises nothing");
        history.on_answered(0, 2, true);
        assert_eq!(history.possible[0], contents[1..], "FUA promises its version");
        let data = history.bytes(0, contents[2]);
        assert_eq!(history.recognise(0, &data), contents[2]);
    }

    /// Goal: lost and torn blocks are noticed. Method: an older version, and half of each of two.
    #[test]
    fn lost_and_torn_blocks_are_noticed() {
        let mut history = History::new(1, Durability::OnReply, 7);
        let (old, new) = (Content { version: 1, zero: false }, Content { version: 2, zero: false });
        history.possible[0].extend([old, new]);
        history.on_answered(0, 2, false);
        let mut torn = history.bytes(0, new);
        torn[2048..].copy_from_slice(&history.bytes(0, old)[2048..]);
        for data in [history.bytes(0, old), torn, vec![0; 4096]] {
            let history = &history;
            let checked = std::panic::catch_unwind(|| history.recognise(0, &data));
            assert!(checked.is_err(), "a wrong block was accepted");
        }
    }
}
