//! Cleaning under the least favourable writes: a full level, one block per batch.

use super::tests_both::for_each_seed;
use super::tests_log::TAG;
use super::{
    AppendEntry, LogConfig, LogStore, Region, SeqSource, SlotInfo, SlotView, StoreEvent,
    StoreIdentity, Stream, Ticket,
};
use crate::io::{Io, SimIo};
use layby_types::{BlockIndex, BlockKey, BlockSize, Nanos, Rng, Seq, ShardIndex, Slot, VolumeId};

/// Turns in which any write ends: a checkpoint and a few segments cleaned take hundreds.
const TURNS_MAX: u32 = 20_000;

/// Slots below the number hold a block of the same number.
struct Filled(u32);

impl SlotView for Filled {
    fn slot(&self, slot: Slot) -> Option<SlotInfo> {
        (slot.0 < self.0).then(|| SlotInfo { key: key(slot), dirty: true })
    }
}

fn key(slot: Slot) -> BlockKey {
    BlockKey::new(VolumeId(1), BlockIndex(slot.0.into()))
}

/// A full log whose slots are overwritten, each write alone in its batch.
struct Churn {
    io: SimIo,
    log: LogStore,
    filled: Filled,
    data: Vec<u8>,
}

impl Churn {
    fn new(seed: u64, length: u64, block_size: BlockSize) -> Churn {
        let mut io = SimIo::new(seed);
        let disk = io.add_disk("ssd", length);
        let identity = StoreIdentity { node: [9; 16], shard: ShardIndex(0), shard_count: 1 };
        let region = Region { disk, base: 0, length, block_size };
        let config = LogConfig::new(region, identity, TAG);
        LogStore::format(&mut io, &config, 1).expect("the region is large enough");
        let opened = LogStore::open(&mut io, config, SeqSource::new(Seq(1)));
        let (log, _) = opened.expect("it was just formatted");
        Churn { io, log, filled: Filled(0), data: vec![7; block_size.len()] }
    }

    /// Writes one block and waits for its end.
    fn write(&mut self, slot: Slot, stream: Stream) {
        let entry = AppendEntry { slot, key: key(slot), dirty: true };
        self.log.append(&mut self.io, Ticket(1), stream, &[entry], &self.data, true);
        self.filled.0 = self.filled.0.max(slot.0 + 1);
        let ended = (0..TURNS_MAX).any(|_| self.turn());
        assert!(ended, "a write never ends: {} segments are free", self.log.segments_free());
    }

    /// Lets an operation end; whether a write has.
    fn turn(&mut self) -> bool {
        let mut done = Vec::new();
        self.io.wait(Nanos(self.io.now().0 + 1_000_000), &mut done);
        done.into_iter().for_each(|done| self.log.on_io(&mut self.io, done));
        let now = self.io.now();
        self.log.on_tick(&mut self.io, now, &self.filled);
        let (mut events, mut ended) = (Vec::new(), false);
        self.log.take_events(&mut events);
        for event in events {
            match event {
                StoreEvent::NeedPeerSync { id, .. } => self.log.peer_synced(id),
                StoreEvent::Stored { result, .. } => {
                    assert_eq!(result, Ok(()));
                    ended = true;
                }
                _ => {}
            }
        }
        ended
    }
}

/// Goal: a level that is full of live blocks takes writes for ever, however small its batches and
/// its segments are. Method: fill every slot by single writes, then overwrite at random; the part
/// of each of four shards of the least SSD level, a level whose segments are as short, the least
/// level with the largest blocks, and segments of twice that length.
#[test]
fn a_full_log_takes_single_writes_for_ever() {
    let (small, large) = (BlockSize::MIN, BlockSize::MAX);
    for (length, block_size) in
        [(2 << 20, small), (3_698_688, small), (8 << 20, large), (4 << 20, small)]
    {
        for_each_seed(2, |seed| {
            let mut rng = Rng::new(seed);
            let mut churn = Churn::new(seed, length, block_size);
            let slots = churn.log.slot_count();
            for step in 0..6 * slots {
                let slot = if step < slots { step } else { rng.below(slots.into()) as u32 };
                let stream = if rng.chance(1, 4) { Stream::Promote } else { Stream::Write };
                churn.write(Slot(slot), stream);
            }
        });
    }
}
