//! A log beside another rank: cleaning, and durable writes.

use super::log_streams::RESERVED_FOR;
use super::tests_both::for_each_seed;
use super::tests_clean::{Filled, key};
use super::tests_log::TAG;
use super::{
    AppendEntry, LogConfig, LogStore, Region, SeqSource, StoreEvent, StoreIdentity, Stream, Ticket,
};
use crate::io::{DiskId, Io, IoOperation, Scheduled, SimIo, Token};
use layby_cache::Cleaned;
use layby_cache::schedule::{Load, Rank, ScheduleLimits};
use layby_types::{BlockIndex, BlockSize, Nanos, Rng, Seq, ShardIndex, Slot, VolumeId};

/// Turns in which any write ends.
const TURNS_MAX: u32 = 20_000;
/// Bytes of the log.
const LENGTH: u64 = 6 << 20;
/// The token of the other class's reads.
const READ: Token = Token(0x30 << 56);
/// Bytes of each of these, of which two are outstanding and two wait.
const READ_BYTES: usize = 64 << 10;

/// Tickets of calls of a worse rank are odd.
fn is_worse(ticket: Ticket) -> bool {
    ticket.0 % 2 == 1
}

struct Bench {
    io: Scheduled<SimIo>,
    log: LogStore,
    disk: DiskId,
    filled: Filled,
}

impl Bench {
    /// Segments of twice the least budget.
    fn new(seed: u64, has_all_streams: Option<bool>) -> Bench {
        let mut sim = SimIo::new(seed);
        let disk = sim.add_disk("ssd", LENGTH + READ_BYTES as u64);
        let identity = StoreIdentity { node: [9; 16], shard: ShardIndex(0), shard_count: 1 };
        let region = Region { disk, base: 0, length: LENGTH, block_size: BlockSize::MIN };
        let mut config = LogConfig::new(region, identity, TAG);
        config.segments.bytes = 256 << 10;
        config.segments.has_all_streams = has_all_streams;
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

    /// A call of that rank; how many blocks of worse ranks end before it.
    fn append(&mut self, ticket: Ticket, rank: Rank, slots: &[Slot], durable: bool) -> usize {
        let entry = |slot: &Slot| AppendEntry { slot: *slot, key: key(*slot), dirty: true };
        let entries: Vec<AppendEntry> = slots.iter().map(entry).collect();
        let data = vec![7; slots.len() * BlockSize::MIN.len()];
        self.io.set_rank(rank);
        self.log.append(&mut self.io, ticket, Stream::Write, &entries, &data, durable);
        self.io.set_rank(Rank::FIRST);
        self.filled.0 = slots.iter().fold(self.filled.0, |filled, slot| filled.max(slot.0 + 1));
        self.before(ticket)
    }

    /// A durable trim of a block by the best rank; how many blocks of worse ranks end before it.
    fn trim(&mut self, ticket: Ticket, block: u64) -> usize {
        let (volume, first) = (VolumeId(1), BlockIndex(block));
        self.log.tombstone(&mut self.io, ticket, volume, first, 1, false, true);
        self.before(ticket)
    }

    /// How many blocks of worse ranks end before a call.
    fn before(&self, ticket: Ticket) -> usize {
        let before = self.log.streams.iter().map(|stream| {
            let flight = stream.flight.iter().flat_map(|flight| &flight.records);
            let tickets = flight.chain(&stream.queue).map(|queued| queued.ticket);
            let tickets: Vec<Option<Ticket>> = tickets.collect();
            let at = tickets.iter().position(|it| *it == Some(ticket)).unwrap_or_default();
            tickets[..at].iter().filter(|it| it.is_some_and(is_worse)).count()
        });
        before.sum()
    }

    /// Turns until all calls have ended.
    fn rest(&mut self) {
        let has_ended = (0..TURNS_MAX).any(|_| {
            self.turn();
            self.log.tickets.is_empty()
        });
        assert!(has_ended, "a call never ends");
    }

    /// Whether the worse class has what it overwrites soon among what is short-lived.
    fn overwrites_short(&mut self) -> bool {
        let mut is_short = false;
        for _ in 0..2 {
            self.append(Ticket(1), Rank(2), &[Slot(1), Slot(2)], false);
            let short = &self.log.streams[Stream::WriteShort as usize];
            is_short = !short.queue.is_empty() || short.flight.is_some();
            self.rest();
        }
        is_short
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
        let mut bench = Bench::new(seed, None);
        (0..4).for_each(|_| bench.read());
        let (mut rng, slots) = (Rng::new(seed), bench.log.slot_count());
        for step in 0..3 * slots {
            let slot = if step < slots { step } else { rng.below(slots.into()) as u32 };
            bench.write(Slot(slot));
        }
        assert!(bench.log.counters().segments_cleaned > 8, "seed {seed}: it was cleaned");
    });
}

/// Goal: a durable write of the best class waits for no batch of a worse one, and shares none with
/// it, for as long as such writes come; later the worse class has all streams again. Method: random
/// calls of two ranks, long ones of the worse; what is before each durable write is counted when it
/// is asked for. Then time passes, and the worse class overwrites what it has just written.
#[test]
fn durable_writes_wait_for_no_worse_rank() {
    for_each_seed(40, |seed| {
        let mut bench = Bench::new(seed, Some(true));
        bench.io.set_stepwise(true);
        let (mut rng, slots) = (Rng::new(seed), u64::from(bench.log.slot_count()) / 2);
        let mut asked = bench.io.now();
        assert_eq!(bench.append(Ticket(0), Rank::FIRST, &[Slot(0)], true), 0);
        for number in 1..400 {
            let first = rng.below(slots - 32) as u32;
            let most = if rng.chance(1, 3) { 1 } else { 32 };
            let count = 1 + rng.below(most) as u32;
            let called: Vec<Slot> = (first..first + count).map(Slot).collect();
            if count == 1 {
                asked = bench.io.now();
                let before = bench.append(Ticket(2 * number), Rank::FIRST, &called, true);
                assert_eq!(before, 0, "seed {seed}: call {number} waits for others' blocks");
            } else {
                bench.append(Ticket(2 * number + 1), Rank(2), &called, false);
            }
            for _ in 0..rng.below(4) {
                bench.turn();
            }
        }
        bench.rest();
        assert!(!bench.overwrites_short(), "seed {seed}: the worse class shares the stream");
        let until = asked + RESERVED_FOR;
        for _ in 0..TURNS_MAX {
            if bench.io.now() < until {
                bench.turn();
            }
        }
        assert!(bench.io.now() >= until, "seed {seed}: time passes");
        assert!(bench.overwrites_short(), "seed {seed}: the stream stays reserved");
    });
}

/// Goal: the first durable write, or trim, of the best class waits for no worse one where a stream
/// has no work of that. Method: the worse class has blocks in flight and in the queue of one
/// stream, of short-lived writes or of others; then the best class asks.
#[test]
fn the_first_durable_call_waits_for_no_worse_rank() {
    for_each_seed(8, |seed| {
        for (is_short, is_trim) in [(true, false), (false, false), (true, true), (false, true)] {
            let mut bench = Bench::new(seed, Some(true));
            bench.io.set_stepwise(true);
            let slots = [Slot(1), Slot(2)];
            bench.append(Ticket(1), Rank(2), &slots, false);
            bench.rest();
            let later = if is_short { slots } else { [Slot(3), Slot(4)] };
            for ticket in [3, 5] {
                bench.append(Ticket(ticket), Rank(2), &later, false);
            }
            let stream = if is_short { Stream::WriteShort } else { Stream::Write };
            let state = &bench.log.streams[stream as usize];
            assert!(state.flight.is_some() && !state.queue.is_empty(), "seed {seed}: it is busy");
            let before = match is_trim {
                true => bench.trim(Ticket(2), 9),
                false => bench.append(Ticket(2), Rank::FIRST, &[Slot(0)], true),
            };
            assert_eq!(before, 0, "seed {seed}: short {is_short}, trim {is_trim}");
        }
    });
}

/// Goal: a trim goes to the device by its own rank, whatever waits in its stream. Method: a log of
/// few streams, in which the worse class has a batch in flight and one that waits.
#[test]
fn a_trim_has_its_own_rank() {
    for_each_seed(4, |seed| {
        let mut bench = Bench::new(seed, Some(false));
        bench.io.set_stepwise(true);
        for ticket in [1, 3] {
            bench.append(Ticket(ticket), Rank(2), &[Slot(1), Slot(2)], false);
        }
        let rank = |bench: &Bench| bench.log.streams[Stream::Write as usize].rank;
        assert_eq!(rank(&bench), Rank(2), "seed {seed}");
        bench.trim(Ticket(2), 9);
        assert_eq!(rank(&bench), Rank::FIRST, "seed {seed}");
    });
}
