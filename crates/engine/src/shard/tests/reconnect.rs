//! What a connection that has ended left undone, beside the next connection of its volume.
//!
//! How: a disk that hangs for a moment, so that a client has more requests in flight than another
//! one may begin beside them; what lies on the disk in the end tells which write came last.

use super::*;

/// The block that both connections write; the ones behind it are the older one's alone.
const SHARED: u64 = 0;
const OWN: u64 = 4096;
/// Reads that fill a connection: no more of its requests begin.
const READS: u64 = 1024;

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Without a word.
    Break,
    /// With a goodbye.
    Goodbye,
    /// With the cipher's end.
    Sealed,
}

impl End {
    const ALL: [End; 3] = [End::Break, End::Goodbye, End::Sealed];

    fn cipher(self) -> Option<Box<dyn Cipher>> {
        (self == End::Sealed).then(|| Box::<Open>::default() as Box<dyn Cipher>)
    }

    fn message(self) -> Vec<u8> {
        match self {
            End::Break => Vec::new(),
            End::Goodbye => message(GOODBYE, 0, 0),
            End::Sealed => message(CLOSE, 0, 0),
        }
    }
}

/// A volume whose disk hangs, and a full connection to it, whose writes of ones have arrived and
/// not begun; behind them comes its end.
fn full(seed: u64, volume: VolumeId, end: End) -> (Bench, SocketId) {
    let mut bench = Bench::new(seed);
    bench.enter(BEST);
    let old = bench.enter_by(volume, end.cipher());
    bench.set_stuck(volume, true);
    for number in 0..READS {
        bench.put(old, &read((16 + number) * 4096, 512));
    }
    for offset in [SHARED, OWN] {
        bench.put(old, &message(WRITE_ONE, offset, 1));
    }
    bench.put(old, &end.message());
    bench.turn_while_busy();
    (bench, old)
}

impl Bench {
    /// Until nothing happens by itself; a deadline may be left.
    fn turn_while_busy(&mut self) {
        for _ in 0..TURNS_MAX {
            let may_end = self.host.machine().can_end();
            if !may_end && !self.shard.ready.has_work() {
                return;
            }
            assert!(self.shard.turn(), "nothing stops it");
        }
        panic!("it is never idle");
    }

    /// The peer closes its socket; after a regular end it still takes its answers.
    fn leave(&mut self, client: SocketId, end: End) {
        match end {
            End::Break => self.host.machine().leave(client),
            End::Goodbye | End::Sealed => self.host.machine().end_sending(client),
        }
    }

    /// A byte of a volume's disk.
    fn byte(&mut self, volume: VolumeId, offset: u64) -> u8 {
        let mut machine = self.host.machine();
        let disk = machine.attach_disk(&volume.0.to_string()).expect("it has one");
        machine.peek(disk)[offset as usize]
    }

    /// Until the connection is closed; its answers are taken.
    fn settle(&mut self, client: SocketId) {
        for _ in 0..TURNS_MAX {
            self.host.machine().take(client, usize::MAX);
            if self.host.machine().is_closed(client) {
                return;
            }
            assert!(self.shard.turn(), "nothing stops it");
        }
        panic!("a connection that has ended is never closed");
    }
}

/// Goal: what a connection asked for and had not begun when it ended does not come after what the
/// next connection asks for, of the best rank and of a lower one; before a regular end it is done.
/// Method: a full connection that ends, the next one writes the same block, then the disk goes on.
#[test]
fn an_older_write_comes_before_the_next_connections() {
    for (seed, end) in End::ALL.into_iter().cycle().take(12).enumerate() {
        for volume in [BEST, ONE] {
            let (mut bench, old) = full(seed as u64, volume, end);
            bench.leave(old, end);
            let new = bench.enter(volume);
            bench.put(new, &message(WRITE, SHARED, 1));
            bench.turn_while_busy();
            bench.set_stuck(volume, false);
            bench.settle(old);
            bench.receive(new, reply(0));
            let case = format!("{end:?}, {volume:?}; replay with SEED={seed}");
            assert_eq!(bench.byte(volume, SHARED), 0, "an older write came last: {case}");
            let is_regular = end != End::Break;
            assert!(!is_regular || bench.byte(volume, OWN) == 1, "it was to be done: {case}");
        }
    }
}

/// Goal: where the end of a connection is seen only after the next one has begun, its writes that
/// have not begun never do. Method: as above; the next connection writes before the first ends.
#[test]
fn a_write_that_waits_dies_with_its_connection() {
    for seed in 0..8 {
        let volume = if seed % 2 == 0 { BEST } else { ONE };
        let (mut bench, old) = full(seed, volume, End::Break);
        let new = bench.enter(volume);
        bench.put(new, &message(WRITE, SHARED, 1));
        bench.turn_while_busy();
        bench.leave(old, End::Break);
        bench.set_stuck(volume, false);
        bench.receive(new, reply(0));
        bench.settle(old);
        let found = [SHARED, OWN].map(|offset| bench.byte(volume, offset));
        assert_eq!(found, [0, 0], "an older write came last; replay with SEED={seed}");
    }
}

/// Goal: a backing store that hangs keeps the next connection waiting for some seconds at most, and
/// what had not begun by then never does. Method: as above, with a block in memory that the next
/// connection reads while the disk hangs.
#[test]
fn the_next_connection_does_not_wait_for_a_hang() {
    for (seed, end) in End::ALL.into_iter().cycle().take(6).enumerate() {
        let (mut bench, old) = full(seed as u64, ONE, end);
        bench.leave(old, end);
        let new = bench.enter(ONE);
        bench.put(new, &message(INVALID, 0, 0));
        let took = bench.receive(new, reply(0));
        assert!(took <= Nanos::from_secs(11), "it waited for {took}");
        bench.put(new, &message(WRITE, SHARED, 1));
        bench.turn_while_busy();
        bench.set_stuck(ONE, false);
        bench.receive(new, reply(0));
        bench.settle(old);
        let found = [SHARED, OWN].map(|offset| bench.byte(ONE, offset));
        assert_eq!(found, [0, 0], "an older write came last; replay with SEED={seed}");
    }
}

/// Goal: nor do pieces of a long write that began before its connection ended come after the next
/// connection's writes. Method: a write of 64 pieces below the best rank; the connection ends after
/// some turns, and another one writes the last block.
#[test]
fn pieces_of_an_older_write_come_before_the_next_connections() {
    let mut begun = 0;
    for seed in 0..20 {
        let mut bench = Bench::new(seed);
        bench.enter(BEST);
        let old = bench.enter(ONE);
        bench.put(old, &message(WRITE_LONG, 0, MIB));
        for _ in 0..3 + seed {
            assert!(bench.shard.turn(), "nothing stops it");
        }
        bench.leave(old, End::Break);
        let new = bench.enter(ONE);
        bench.put(new, &message(WRITE, MIB - 1, 1));
        bench.receive(new, reply(0));
        bench.settle(old);
        assert_eq!(bench.byte(ONE, MIB - 1), 0, "a piece came last; replay with SEED={seed}");
        begun += u32::from(bench.byte(ONE, 0));
    }
    assert!(begun > 10, "{begun} of 20 had begun");
}
