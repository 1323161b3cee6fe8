//! Cleaning beside a class that keeps the device busy.

use super::tests_both::for_each_seed;
use super::tests_clean::{Filled, key};
use super::tests_log::TAG;
use super::{
    AppendEntry, LogConfig, LogStore, Region, SeqSource, StoreEvent, StoreIdentity, Stream, Ticket,
};
use crate::io::{DiskId, Io, IoOperation, Scheduled, SimIo, Token};
use layby_cache::Cleaned;
use layby_cache::schedule::{Load, Rank, ScheduleLimits};
use layby_types::{BlockSize, Nanos, Rng, Seq, ShardIndex, Slot};

/// Turns in which any write ends.
const TURNS_MAX: u32 = 20_000;
/// Bytes of the log.
const LENGTH: u64 = 6 << 20;
/// The token of the other class's reads.
const READ: Token = Token(0x30 << 56);
/// Bytes of each of these, of which two are outstanding and two wait.
const READ_BYTES: usize = 64 << 10;

struct Bench {
    io: Scheduled<SimIo>,
    log: LogStore,
    disk: DiskId,
    filled: Filled,
}

impl Bench {
    /// Segments of twice the least budget.
    fn new(seed: u64) -> Bench {
        let mut sim = SimIo::new(seed);
        let disk = sim.add_disk("ssd", LENGTH + READ_BYTES as u64);
        let identity = StoreIdentity { node: [9; 16], shard: ShardIndex(0), shard_count: 1 };
        let region = Region { disk, base: 0, length: LENGTH, block_size: BlockSize::MIN };
        let mut config = LogConfig::new(region, identity, TAG);
        config.segments.bytes = 256 << 10;
        LogStore::format(&mut sim, &config, 1).expect("the region is large enough");
        let opened = LogStore::open(&mut sim, config, SeqSource::new(Seq(1)));
        let (log, _) = opened.expect("it was just formatted");
        let mut io = Scheduled::new(sim, ScheduleLimits::DEFAULT);
        io.begin_with(None, Load::default());
        io.set_stepwise(seed % 2 == 1);
        Bench { io, log, disk, filled: Filled(0) }
    }

    fn read(&mut self) {
        let (disk, buffer) = (self.disk, self.io.buffer(READ_BYTES));
        self.io.set_rank(Rank(1));
        self.io.submit(READ, IoOperation::Read { disk, offset: LENGTH, buffer });
        self.io.set_rank(Rank::FIRST);
    }

    fn write(&mut self, slot: Slot) {
        let entry = AppendEntry { slot, key: key(slot), dirty: true };
        let data = vec![7; BlockSize::MIN.len()];
        self.log.append(&mut self.io, Ticket(1), Stream::Write, &[entry], &data, true);
        self.filled.0 = self.filled.0.max(slot.0 + 1);
        let has_ended = (0..TURNS_MAX).any(|_| self.turn());
        assert!(has_ended, "a write never ends: {} segments are free", self.log.segments_free());
    }

    /// A turn as the shard has them; whether the write has ended.
    fn turn(&mut self) -> bool {
        let mut done = Vec::new();
        self.io.wait(Nanos(self.io.now().0 + 1_000_000), &mut done);
        for end in done {
            if end.token == READ {
                self.io.recycle(end.buffer.expect("a read's buffer"));
                self.read();
            } else {
                self.log.on_io(&mut self.io, end);
            }
        }
        self.log.go_on(&mut self.io);
        let now = self.io.now();
        self.log.on_tick(&mut self.io, now, &self.filled);
        let (mut events, mut has_ended) = (Vec::new(), false);
        self.log.take_events(&mut events);
        for event in events {
            match event {
                StoreEvent::NeedPeerSync { id, .. } => self.log.peer_synced(id),
                StoreEvent::Stored { result, .. } => {
                    assert_eq!(result, Ok(()));
                    has_ended = true;
                }
                StoreEvent::Cleaning { slots } => {
                    self.log.cleaned(&mut self.io, &vec![Cleaned::Copy; slots.len()]);
                }
                _ => {}
            }
        }
        has_ended
    }
}

/// Goal: writes of the best class to a full log end though a lower class keeps the device busy:
/// what makes room for them waits for that class, but not for ever. Method: a budget at its least,
/// two reads of the lower class outstanding and two more waiting all the time; all slots are
/// filled, then overwritten at random; each write ends in a number of turns.
#[test]
fn cleaning_goes_on_beside_a_busy_class() {
    for_each_seed(4, |seed| {
        let mut bench = Bench::new(seed);
        (0..4).for_each(|_| bench.read());
        let (mut rng, slots) = (Rng::new(seed), bench.log.slot_count());
        for step in 0..3 * slots {
            let slot = if step < slots { step } else { rng.below(slots.into()) as u32 };
            bench.write(Slot(slot));
        }
        assert!(bench.log.counters().segments_cleaned > 8, "seed {seed}: it was cleaned");
    });
}
