//! Whole turns of a shard: ranks that wait, and volumes beside one whose device hangs.
//!
//! How: a shard on a simulated machine with memory alone and a disk per volume; clients of a plain
//! protocol of the tests' own, whose requests and replies have one size beside their bytes.

mod reconnect;

use super::*;
use crate::control::{BackingPlan, ClientId, VolumePlan};
use crate::io::{IoChoice, SimHost, SimIo};
use layby_cache::{
    AdmissionKind, CacheSpec, ClassSpec, EvictionKind, LEVELS_MAX, LevelKind, LevelSpec,
    ReadAheadLimits, Share, VolumeSpec, Watermarks, WritebackLimits,
};
use layby_types::{
    BlockSize, Call, CallFlags, Cipher, ClassId, Extent, Operation, Parsed, Session, SessionError,
};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};

const MIB: u64 = 1 << 20;
const LENGTH: u64 = 64 * MIB;
/// Bytes of a request, and of a reply beside what was read.
const MESSAGE_BYTES: usize = 17;
/// The class of the first volume is the best one; the others' is below.
const BEST: VolumeId = VolumeId(1);
const ONE: VolumeId = VolumeId(2);
const OTHER: VolumeId = VolumeId(3);
const THIRD: VolumeId = VolumeId(4);
const FOURTH: VolumeId = VolumeId(5);
/// Turns that anything may take before it counts as hung.
const TURNS_MAX: u32 = 20_000;

/// First bytes of requests; others are refused.
const READ: u8 = 0;
const FLUSH: u8 = 1;
const TRIM: u8 = 2;
const WRITE: u8 = 3;
const INVALID: u8 = 4;
const GOODBYE: u8 = 5;
/// The cipher's end of the peer's bytes.
const CLOSE: u8 = 6;
/// Writes of ones: a byte, or a mebibyte.
const WRITE_ONE: u8 = 7;
const WRITE_LONG: u8 = 8;

static LONG_BYTES: [u8; MIB as usize] = [1; MIB as usize];

fn message(kind: u8, offset: u64, length: u64) -> Vec<u8> {
    [&[kind][..], &offset.to_le_bytes(), &length.to_le_bytes()].concat()
}

/// A read of `length` bytes from `offset`.
fn read(offset: u64, length: u64) -> Vec<u8> {
    message(READ, offset, length)
}

/// The protocol: an operation, an offset, a length; what is written is a zero, or ones.
struct Plain;

impl Session for Plain {
    fn parse<'bytes>(
        &mut self,
        bytes: &'bytes [u8],
        out: &mut Vec<u8>,
    ) -> Result<Parsed<'bytes>, SessionError> {
        let Some(message) = bytes.get(..MESSAGE_BYTES) else {
            return Ok(Parsed::Incomplete { wanted: MESSAGE_BYTES });
        };
        let number = |at: usize| {
            let bytes = message[at..at + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes)
        };
        let (offset, length, flags) = (number(1), number(9), CallFlags::default());
        let (operation, payload): (_, &[u8]) = match message[0] {
            READ => (Operation::Read, &[]),
            FLUSH => (Operation::Flush, &[]),
            TRIM => (Operation::Trim, &[]),
            WRITE => (Operation::Write, &[0]),
            WRITE_ONE => (Operation::Write, &[1]),
            WRITE_LONG => (Operation::Write, &LONG_BYTES),
            GOODBYE => return Ok(Parsed::Goodbye),
            _ => {
                out.extend([0; MESSAGE_BYTES]);
                return Ok(Parsed::Answered { consumed: MESSAGE_BYTES });
            }
        };
        let call = Call { cookie: 0, operation, offset, length, flags };
        Ok(Parsed::Call { consumed: MESSAGE_BYTES, call, payload })
    }

    fn reply_read_head(&mut self, _: &Call, out: &mut Vec<u8>) {
        out.extend([0; MESSAGE_BYTES]);
    }

    fn reply_done(&mut self, _: &Call, out: &mut Vec<u8>) {
        out.extend([0; MESSAGE_BYTES]);
    }

    fn reply_extents(&mut self, call: &Call, _: &[Extent], _: &mut Vec<u8>) {
        panic!("{call:?} asks for no extents");
    }

    fn reply_error(&mut self, call: &Call, kind: ErrorKind, out: &mut Vec<u8>) {
        assert_eq!(kind, ErrorKind::Closed, "{call:?} failed");
        out.extend([0; MESSAGE_BYTES]);
    }
}

/// No cipher but for the peer's last message, behind which nothing comes.
#[derive(Default)]
struct Open {
    part: Vec<u8>,
}

impl Cipher for Open {
    fn open(&mut self, wire: &[u8], clear: &mut Vec<u8>) -> Result<bool, SessionError> {
        for byte in wire {
            self.part.push(*byte);
            if self.part.len() == MESSAGE_BYTES {
                if self.part[0] == CLOSE {
                    return Ok(false);
                }
                clear.append(&mut self.part);
            }
        }
        Ok(true)
    }

    fn seal(&mut self, clear: &[u8], wire: &mut Vec<u8>) -> Result<(), SessionError> {
        wire.extend(clear);
        Ok(())
    }
}

fn spec() -> CacheSpec {
    let (eviction, watermarks) = (EvictionKind::Lru, Watermarks::DEFAULT);
    let class = |name: &str, rank| ClassSpec {
        name: name.into(),
        rank,
        levels: 0b1,
        durable_writes: false,
        borrow: true,
        keep_reads: true,
        latency_objective: None,
        admission: AdmissionKind::All,
        shares: [Share::OPEN; LEVELS_MAX],
    };
    CacheSpec {
        block_size: BlockSize::MIN,
        levels: vec![LevelSpec { kind: LevelKind::Memory, slots: 64, eviction, watermarks }],
        classes: vec![class("best", 0), class("lower", 1)],
        writeback: WritebackLimits::DEFAULT,
        read_ahead: ReadAheadLimits::DEFAULT,
    }
}

fn volume(id: VolumeId, backing: BackingPlan) -> VolumePlan {
    let class = ClassId(u8::from(id != BEST));
    let shares = [Share::OPEN; LEVELS_MAX];
    let spec = VolumeSpec { id, class, length: LENGTH, shares, write_through: false };
    VolumePlan { spec, backing, is_clean: false, is_read_only: false }
}

/// One memory level and these volumes.
pub(super) fn plan(volumes: Vec<VolumePlan>, schedule: ScheduleLimits) -> ShardPlan {
    let memory = LevelPart {
        name: "dram".into(),
        path: None,
        base: 0,
        length: 64 * 4096,
        level_length: 64 * 4096,
        is_absent: false,
        known: None,
        cipher: None,
        segments: Default::default(),
        wear: Default::default(),
        budget: None,
    };
    ShardPlan {
        index: 0,
        count: 1,
        cpu: None,
        nice: 0,
        io: IoChoice::Auto,
        node: [7; 16],
        spec: spec(),
        levels: vec![memory],
        volumes,
        is_new: true,
        is_strict: false,
        simulate_power_loss: false,
        home_delay: Nanos::ZERO,
        // What waits is not ended by this.
        io_timeout: Nanos::NEVER,
        schedule,
        client_memory: ClientMemory::DEFAULT,
        home_budget: None,
        lock: None,
    }
}

/// A shard, its machine and its clients.
struct Bench {
    host: SimHost,
    shard: Shard<Plain, SimHost>,
    clients: u64,
    _commands: Sender<Command<Plain>>,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        Bench::with(seed, ScheduleLimits::DEFAULT)
    }

    fn with(seed: u64, schedule: ScheduleLimits) -> Bench {
        let notices = Box::new(|notice| panic!("{notice:?}"));
        Bench::with_memory(seed, (schedule, ClientMemory::DEFAULT), notices)
    }

    fn with_memory(
        seed: u64,
        (schedule, client_memory): (ScheduleLimits, ClientMemory),
        notices: NoticeSink,
    ) -> Bench {
        let ids = [BEST, ONE, OTHER, THIRD, FOURTH];
        let volumes = ids.map(|id| {
            let path = PathBuf::from(id.0.to_string());
            volume(id, BackingPlan::File { path, create: false })
        });
        let mut io = SimIo::new(seed);
        for id in ids {
            io.add_disk(&id.0.to_string(), LENGTH);
        }
        let (host, (commands, receiver)) = (SimHost::new(io), channel());
        let plan = ShardPlan { client_memory, ..plan(volumes.into(), schedule) };
        let started = Shard::start(host.clone(), &plan, seed, receiver, notices);
        let (shard, _) = started.expect("sound disks");
        Bench { host, shard, clients: 0, _commands: commands }
    }

    fn enter(&mut self, volume: VolumeId) -> SocketId {
        self.enter_by(volume, None)
    }

    fn enter_by(&mut self, volume: VolumeId, cipher: Option<Box<dyn Cipher>>) -> SocketId {
        let socket = self.host.machine().add_socket();
        self.clients += 1;
        let connection = Connection {
            client: ClientId(self.clients),
            socket: None,
            cipher,
            session: Plain,
            volume,
            received: Vec::new(),
            pending: Vec::new(),
            peer: "test".into(),
        };
        self.shard.serve(socket, connection);
        socket
    }

    /// Keeps a volume's backing store from ending anything, or ends that.
    fn set_stuck(&mut self, volume: VolumeId, is_stuck: bool) {
        let mut machine = self.host.machine();
        let disk = machine.attach_disk(&volume.0.to_string()).expect("it has one");
        machine.set_stuck(disk, is_stuck);
    }

    /// Turns until that time.
    fn turn_until(&mut self, time: Nanos) {
        while self.host.now() < time {
            assert!(self.shard.turn(), "nothing stops it");
        }
    }

    fn put(&mut self, client: SocketId, bytes: &[u8]) {
        self.host.machine().put(client, bytes);
    }

    /// Turns until each of these clients has received so many bytes.
    fn receive_all(&mut self, wanted: &mut [(SocketId, u64)]) {
        for _ in 0..TURNS_MAX {
            for (client, left) in &mut *wanted {
                *left -= self.host.machine().take(*client, *left as usize).len() as u64;
            }
            if wanted.iter().all(|(_, left)| *left == 0) {
                return;
            }
            assert!(self.shard.turn(), "nothing stops it");
        }
        panic!("what is left of {wanted:?} never comes");
    }

    /// Turns until the client has received so many bytes; answers with how long that took.
    fn receive(&mut self, client: SocketId, count: u64) -> Nanos {
        let (mut left, begun) = (count, self.host.now());
        for _ in 0..TURNS_MAX {
            left -= self.host.machine().take(client, left as usize).len() as u64;
            if left == 0 {
                return self.host.now().since(begun);
            }
            assert!(self.shard.turn(), "nothing stops it");
        }
        panic!("{left} bytes of {count} never come");
    }
}

/// Bytes of the reply to a read.
fn reply(length: u64) -> u64 {
    MESSAGE_BYTES as u64 + length
}

/// Goal: of backing stores that are locked, those of a process that is gone are waited for once,
/// and one that a living process has costs none of the others its wait. Method: starts with each
/// order of three stores, locked by one kind of process or the other; what each attempt would wait
/// for.
#[test]
fn a_lock_of_the_living_ends_no_wait_for_the_gone() {
    for (locks, waits) in [
        ([Some(false), Some(true), Some(true)], [true, true, false]),
        ([None, Some(false), Some(true)], [true, true, true]),
        ([Some(true), Some(true), None], [true, false, false]),
    ] {
        let mut io = SimIo::new(1);
        let volumes = [BEST, ONE, OTHER].map(|id| {
            io.add_disk(&id.0.to_string(), LENGTH);
            let path = PathBuf::from(id.0.to_string());
            volume(id, BackingPlan::File { path, create: false })
        });
        let (host, (_commands, receiver)) = (SimHost::new(io), channel::<Command<Plain>>());
        for (id, lock) in [BEST, ONE, OTHER].iter().zip(locks) {
            host.set_lock(&id.0.to_string(), lock);
        }
        let plan = plan(volumes.into(), ScheduleLimits::DEFAULT);
        let plan = ShardPlan { is_new: false, ..plan };
        let started = Shard::start(host.clone(), &plan, 1, receiver, Box::new(|_| ()));
        let (_, report) = started.expect("it serves without them");
        assert_eq!(report.absent.len(), locks.iter().flatten().count(), "{locks:?}");
        let attempts = host.take_attempts();
        let waited: Vec<bool> = attempts.iter().map(|(_, waits)| *waits).collect();
        assert_eq!(waited, waits, "{locks:?}: {attempts:?}");
    }
}

/// Goal: requests that wait for a backing store that hangs, as many as one rank may have in flight,
/// delay those of another volume of the rank for a moment, and no more; also finished replies are
/// sent. Method: reads of a stuck disk beside an idle client of the best rank, reads of another
/// volume before and behind them; virtual time, and then the disk goes on.
#[test]
fn a_hanging_volume_holds_no_other() {
    for seed in 0..20 {
        let mut bench = Bench::new(seed);
        let [_idle, one, other] = [BEST, ONE, OTHER].map(|volume| bench.enter(volume));
        bench.put(other, &read(0, 4096));
        bench.receive(other, reply(4096));
        bench.set_stuck(ONE, true);
        for number in 0..20 {
            bench.put(one, &read(number * MIB, MIB));
        }
        for _ in 0..500 {
            assert!(bench.shard.turn(), "nothing stops it");
        }
        let held = bench.shard.rank_stats().iter().map(|stats| stats.bytes_inflight).max();
        let most = ScheduleLimits::INFLIGHT_BYTES_DEFAULT;
        assert!(held >= Some(most), "{held:?} bytes hang; replay with SEED={seed}");
        for number in 0..50 {
            bench.put(other, &read(number % 4 * MIB, MIB));
            bench.put(other, &read(0, 4096));
            let took = bench.receive(other, reply(MIB) + reply(4096));
            let most = if number == 0 { Nanos::from_secs(3) } else { Nanos::from_secs(1) };
            assert!(took < most, "read {number} took {took}; replay with SEED={seed}");
        }
        bench.set_stuck(ONE, false);
        bench.receive(one, 20 * reply(MIB));
    }
}

/// Goal: a request that waits for room which only the end of a hang could free keeps no request of
/// another volume of its rank waiting that fits. Method: two volumes hang with most of what the
/// rank may hold; a read of a third one that does not fit beside that, and shorter ones of a
/// fourth; virtual time, and then the disks go on and all is answered.
#[test]
fn what_waits_for_a_hang_keeps_no_other_small() {
    const LONG: u64 = 32 * MIB;
    // Fits into a socket, so that no time passes until the client takes it.
    const SHORT: u64 = 60 << 10;
    for seed in 0..5 {
        let mut bench = Bench::new(seed);
        let volumes = [BEST, ONE, ONE, THIRD, OTHER, FOURTH];
        let [_idle, one, two, third, other, large] = volumes.map(|volume| bench.enter(volume));
        [ONE, THIRD].into_iter().for_each(|volume| bench.set_stuck(volume, true));
        for client in [one, two] {
            (0..32).for_each(|number| bench.put(client, &read(number * MIB, MIB)));
        }
        bench.turn_until(Nanos::from_secs(5));
        bench.put(third, &read(0, LONG));
        bench.turn_until(Nanos::from_secs(10));
        let held = bench.shard.memory.stats().bytes_held;
        let most = ClientMemory::DEFAULT.volume_bytes_max();
        assert!(held < most && held + LONG > most, "{held} bytes hang");
        bench.put(large, &read(0, LONG));
        for number in 0..20 {
            bench.put(other, &read(number * MIB, SHORT));
            let took = bench.receive(other, reply(SHORT));
            // By chance a wait lasts until the shard looks at its memory again, each second.
            assert!(
                took < Nanos::from_secs(10),
                "read {number} took {took}; replay with SEED={seed}"
            );
        }
        [ONE, THIRD].into_iter().for_each(|volume| bench.set_stuck(volume, false));
        let long = [one, two].map(|client| (client, 32 * reply(MIB)));
        bench.receive_all(&mut [long, [third, large].map(|client| (client, reply(LONG)))].concat());
    }
}

/// Goal: a rank that was held goes on with the end of what held it. Method: reads beyond the least
/// that a rank may have in flight, so that all which is ends in one turn now and then, and nothing
/// else could wake the shard; it never sleeps without a deadline while a reply is missing.
#[test]
fn a_held_rank_goes_on_when_its_bytes_have_ended() {
    for seed in 0..30 {
        let inflight_bytes_max = ScheduleLimits::INFLIGHT_BYTES_MIN;
        let schedule = ScheduleLimits { inflight_bytes_max, ..ScheduleLimits::DEFAULT };
        let mut bench = Bench::with(seed, schedule);
        let [_idle, one, other] = [BEST, ONE, OTHER].map(|volume| bench.enter(volume));
        for number in 0..8 {
            bench.put(one, &read(number * MIB, MIB));
        }
        bench.put(other, &read(0, MIB));
        let (mut left, mut is_asleep) = (9 * reply(MIB), false);
        for _ in 0..TURNS_MAX {
            let taken = [one, other].map(|client| bench.host.machine().take(client, MIB as usize));
            let taken: u64 = taken.iter().map(|bytes| bytes.len() as u64).sum();
            left -= taken;
            // A send may have waited for this taking, and for nothing else.
            assert!(taken > 0 || !is_asleep, "{left} bytes are left; replay with SEED={seed}");
            if left == 0 {
                break;
            }
            let before = bench.host.machine().waits_in_vain();
            assert!(bench.shard.turn(), "nothing stops it");
            is_asleep = bench.host.machine().waits_in_vain() > before;
        }
        assert_eq!(left, 0, "replay with SEED={seed}");
    }
}

/// Goal: replies for which no room was asked hold no more than each client has free, whatever it
/// asks for without ever receiving, and come in full once it receives. Method: thousands of
/// requests of each kind in one go, of the best rank and of a lower one; what is charged, turn by
/// turn, then the bytes of all replies.
#[test]
fn replies_without_room_are_bounded() {
    const REQUESTS: u64 = 10_000;
    for (seed, kind) in [FLUSH, TRIM, WRITE, INVALID].into_iter().enumerate() {
        for volume in [BEST, ONE] {
            let mut bench = Bench::new(seed as u64);
            let [_idle, deaf] = [BEST, volume].map(|volume| bench.enter(volume));
            let length = if kind == TRIM { 4096 } else { 1 };
            for number in 0..REQUESTS {
                bench.put(deaf, &message(kind, number % 1000 * 4096, length));
            }
            for _ in 0..3000 {
                assert!(bench.shard.turn(), "nothing stops it");
                let held = bench.shard.memory.stats().bytes_held;
                assert_eq!(held, 0, "of kind {kind} by {volume:?}");
            }
            bench.receive(deaf, REQUESTS * reply(0));
        }
    }
}

/// Goal: what was received whole before a sealed connection's end is done and answered, with a
/// goodbye before the end and without, then the connection is closed. Method: more reads than may
/// be in flight, or than a turn of a lower rank takes, and the end behind them.
#[test]
fn what_came_before_a_sealed_end_is_done() {
    const REQUESTS: u64 = 1500;
    for seed in 0..8 {
        let volume = if seed % 2 == 0 { BEST } else { ONE };
        let mut bench = Bench::new(seed);
        bench.enter(BEST);
        let client = bench.enter_by(volume, Some(Box::<Open>::default()));
        for number in 0..REQUESTS {
            bench.put(client, &read(number * 512, 512));
        }
        if seed < 4 {
            bench.put(client, &message(GOODBYE, 0, 0));
        }
        bench.put(client, &message(CLOSE, 0, 0));
        bench.receive(client, REQUESTS * reply(512));
        for _ in 0..TURNS_MAX {
            if bench.host.machine().is_closed(client) {
                break;
            }
            assert!(bench.shard.turn(), "nothing stops it");
        }
        assert!(bench.host.machine().is_closed(client), "replay with SEED={seed}");
        assert_eq!(bench.shard.inflight(), 0);
    }
}

/// Goal: a client on a slow link keeps its connection while others wait for the memory that it
/// holds, however long one send of its reply takes, and gets all of it; one that takes nothing is
/// cut off after half a minute. Method: a reply of four sends, taken at 20 KiB a second, or not at
/// all, beside a client that waits; virtual time.
#[test]
fn a_slow_link_is_no_stalled_one() {
    const PER_SECOND: usize = 20 << 10;
    for (seed, is_slow) in (0..6).flat_map(|seed| [(seed, true), (seed, false)]) {
        let memory = ClientMemory { bytes_max: 4 * MIB, ..ClientMemory::DEFAULT };
        let limits = (ScheduleLimits::DEFAULT, memory);
        let mut bench = Bench::with_memory(seed, limits, Box::new(|_| ()));
        let [slow, other] = [ONE, OTHER].map(|volume| bench.enter(volume));
        bench.put(slow, &read(0, 4 * MIB));
        for _ in 0..200 {
            assert!(bench.shard.turn(), "nothing stops it");
        }
        bench.put(other, &read(0, MIB));
        let (begun, mut left) = (bench.host.now(), reply(4 * MIB));
        let mut last = begun;
        while left > MIB && bench.host.now().since(begun) < Nanos::from_secs(300) {
            assert!(bench.shard.turn(), "nothing stops it");
            let now = bench.host.now();
            let seconds = now.since(last).as_secs_f64();
            if is_slow && seconds >= 1.0 {
                let most = (PER_SECOND as f64 * seconds) as usize;
                left -= bench.host.machine().take(slow, most).len() as u64;
                last = now;
            }
            if bench.host.machine().is_closed(slow) {
                break;
            }
        }
        let seconds = bench.host.now().since(begun).as_secs_f64();
        let is_closed = bench.host.machine().is_closed(slow);
        assert_eq!(is_closed, !is_slow, "after {seconds} s; replay with SEED={seed}");
        match is_slow {
            true => drop(bench.receive(slow, left)),
            // The clock has just begun, and is looked at from its thirtieth second on.
            false => assert!((30.0..62.0).contains(&seconds), "{seconds} s; SEED={seed}"),
        }
        bench.receive(other, reply(MIB));
    }
}
