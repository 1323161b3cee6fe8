//! MQ: as many queues as streams; chunks climb by their counts and fall when they expire.
//!
//! How: a chunk's queue is the logarithm of its count. A chunk expires when it was not written for
//! as many writes as lay between the last two of the hottest chunk; then it goes down a queue, and
//! its count is divided, or it would be back at its next write.
//! Invariant: each known chunk is in exactly one queue; the hottest is known.
//! Cost: an update of an ordered queue, and a look at each queue's head, per write.

use super::super::{Part, StreamCount, StreamNumber, StreamPolicy, Write, whole};
use super::{ByChunk, ChunkSectors, assert_in_bounds};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// MQ's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MqParameters {
    /// Sectors of a chunk.
    pub chunk_sectors: u32,
    /// Streams of the device.
    pub streams: u16,
    /// By which a count is divided when its chunk falls.
    pub adjustment: u32,
}

impl MqParameters {
    /// 128 KiB.
    pub const CHUNK_SECTORS_MIN: u32 = ChunkSectors::MIN;
    /// 4 MiB.
    pub const CHUNK_SECTORS_MAX: u32 = ChunkSectors::MAX;
    /// The paper's initial value: 1 MiB.
    pub const CHUNK_SECTORS_DEFAULT: u32 = 2048;
    /// Counts stay as they are.
    pub const ADJUSTMENT_MIN: u32 = 1;
    /// The largest that is tried.
    pub const ADJUSTMENT_MAX: u32 = 16;
    /// The paper's initial value.
    pub const ADJUSTMENT_DEFAULT: u32 = 2;
}

impl Default for MqParameters {
    fn default() -> Self {
        MqParameters {
            chunk_sectors: Self::CHUNK_SECTORS_DEFAULT,
            streams: StreamCount::DEFAULT,
            adjustment: Self::ADJUSTMENT_DEFAULT,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    count: u64,
    last: u64,
    expires: u64,
    /// From 0, as streams are.
    queue: u16,
    /// Its place in the queue.
    turn: u64,
}

/// See the file's header.
#[derive(Clone, Debug)]
pub struct Mq {
    parameters: MqParameters,
    chunks: ByChunk<Entry>,
    /// Chunks by turn, the one that came first at the head.
    queues: Vec<BTreeMap<u64, u64>>,
    /// Writes so far, and turns given out.
    clock: u64,
    turn: u64,
    hottest: Option<u64>,
    lifetime: u64,
}

impl Mq {
    /// Knows nothing yet.
    ///
    /// # Panics
    /// A parameter is out of its bounds.
    #[must_use]
    pub fn new(parameters: MqParameters) -> Self {
        assert_in_bounds(parameters.chunk_sectors, parameters.streams);
        let adjustment = MqParameters::ADJUSTMENT_MIN..=MqParameters::ADJUSTMENT_MAX;
        assert!(adjustment.contains(&parameters.adjustment), "adjustment in bounds");
        Mq {
            parameters,
            chunks: ByChunk::default(),
            queues: vec![BTreeMap::new(); parameters.streams.into()],
            clock: 0,
            turn: 0,
            hottest: None,
            lifetime: 0,
        }
    }
    fn learn(&mut self, chunk: u64) {
        self.clock += 1;
        let known = self.chunks.get(&chunk).copied();
        let mut entry = known.unwrap_or_default();
        entry.count += 1;
        let hottest = self.hottest.map(|hot| (hot, self.chunks[&hot].count));
        if hottest.is_none_or(|(hot, count)| entry.count >= count || hot == chunk) {
            if entry.last > 0 {
                self.lifetime = self.clock - entry.last;
            }
            self.hottest = Some(chunk);
        }
        entry.last = self.clock;
        entry.expires = self.clock + self.lifetime;
        if known.is_some() {
            self.queues[usize::from(entry.queue)].remove(&entry.turn);
        }
        let climbs_to = (entry.count.ilog2() as u16).min(self.parameters.streams - 1);
        entry.queue = entry.queue.max(climbs_to);
        self.append(chunk, entry);
        (1..self.parameters.streams).for_each(|queue| self.expire(queue));
    }
    /// To the tail of its queue.
    fn append(&mut self, chunk: u64, mut entry: Entry) {
        self.turn += 1;
        entry.turn = self.turn;
        self.queues[usize::from(entry.queue)].insert(entry.turn, chunk);
        self.chunks.insert(chunk, entry);
    }
    /// The head of a queue falls, if it expired.
    fn expire(&mut self, queue: u16) {
        let head = self.queues[usize::from(queue)].first_key_value();
        let Some((turn, chunk)) = head.map(|(turn, chunk)| (*turn, *chunk)) else { return };
        let mut entry = self.chunks[&chunk];
        if entry.expires >= self.clock {
            return;
        }
        self.queues[usize::from(queue)].remove(&turn);
        entry.queue = queue - 1;
        let divided = entry.count / u64::from(self.parameters.adjustment);
        entry.count = divided.min((1 << queue) - 1).max(1);
        entry.expires = self.clock + self.lifetime;
        self.append(chunk, entry);
        if self.hottest == Some(chunk) {
            self.hottest = self.hottest_in_queues();
        }
    }
    /// The one with the largest count in the highest queue that has any; the first of equals.
    fn hottest_in_queues(&self) -> Option<u64> {
        let highest = self.queues.iter().rev().find(|queue| !queue.is_empty())?;
        let mut best: Option<(u64, u64)> = None;
        for chunk in highest.values() {
            let count = self.chunks[chunk].count;
            if best.is_none_or(|(_, most)| count > most) {
                best = Some((*chunk, count));
            }
        }
        best.map(|(chunk, _)| chunk)
    }
    /// What is known of a chunk, and whether it is where it should be.
    #[cfg(test)]
    pub(crate) fn look(&self, chunk: u64) -> Look {
        let entry = self.chunks[&chunk];
        let holds = |queue: &&BTreeMap<u64, u64>| queue.values().any(|held| *held == chunk);
        Look {
            queue: entry.queue,
            count: entry.count,
            queues: self.queues.iter().filter(holds).count(),
            is_hottest: self.hottest == Some(chunk),
            lifetime: self.lifetime,
        }
    }
}

/// See [`Mq::look`].
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) queue: u16,
    pub(crate) count: u64,
    pub(crate) queues: usize,
    pub(crate) is_hottest: bool,
    pub(crate) lifetime: u64,
}

impl StreamPolicy for Mq {
    fn streams(&self) -> u16 {
        self.parameters.streams
    }
    fn tag(&mut self, write: &Write, parts: &mut Vec<Part>) {
        let chunk = write.first.0 / u64::from(self.parameters.chunk_sectors);
        let stream = self.chunks.get(&chunk).map_or(0, |entry| entry.queue);
        self.learn(chunk);
        whole(write, StreamNumber(stream), parts);
    }
}
