//! A ring under good guests, bad guests, and guests that come back.

use super::*;
use layby_types::{BlockSize, Call, ErrorKind, GuestRing, Operation, Rng, Taken};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const RAM_BYTES: u64 = 1 << 20;
const ENTRIES: u16 = 16;
const DESCRIPTORS: u64 = 0x1000;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;
/// Indirect tables and data lie behind this.
const DATA: u64 = 0x10000;
const MONITOR: u64 = 0x7f00_0000_0000;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

type Breakage = fn(&mut Driver);

/// A guest's memory, written as its driver would.
struct Driver {
    file: std::fs::File,
    region: std::fs::File,
    available: u16,
    used_seen: u16,
    disk: GuestDisk,
}

impl Driver {
    fn new() -> Driver {
        let file = tempfile::tempfile().unwrap();
        file.set_len(RAM_BYTES).unwrap();
        let region = tempfile::tempfile().unwrap();
        region.set_len(Inflight::bytes(1, ENTRIES) as u64).unwrap();
        let disk = GuestDisk {
            name: "maps".to_owned(),
            length: 1 << 20,
            block_size: BlockSize::DEFAULT,
            read_only: false,
        };
        Driver { file, region, available: 0, used_seen: 0, disk }
    }

    fn ring(&self) -> BlockRing {
        self.try_ring(&self.inflight()).unwrap()
    }

    fn inflight(&self) -> Inflight {
        Inflight::map(self.region.try_clone().unwrap(), 0, 1, ENTRIES).unwrap()
    }

    fn try_ring(&self, inflight: &Inflight) -> Result<BlockRing, InflightError> {
        let region = RamRegion {
            guest: 0,
            monitor: MONITOR,
            length: RAM_BYTES,
            offset: 0,
            file: self.file.try_clone().unwrap(),
        };
        let ram = Arc::new(GuestRam::map(vec![region]).unwrap());
        assert_eq!(ram.guest_address(MONITOR + USED, 8), Some(USED));
        let plan = RingPlan {
            index: 0,
            entries: ENTRIES,
            descriptors: DESCRIPTORS,
            available: AVAILABLE,
            used: USED,
            base: 0,
            event_index: true,
            guest_flushes: true,
        };
        BlockRing::new(ram, Arc::new(self.disk.clone()), &plan, Some(inflight))
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).unwrap();
    }

    fn get(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.file.read_exact_at(&mut read, at).unwrap();
        read
    }

    fn get_u16(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.get(at, 2).try_into().unwrap())
    }

    fn descriptor(&self, table: u64, index: u16, at: u64, length: u32, flags: u16, next: u16) {
        let mut bytes = Vec::new();
        bytes.extend(at.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.put(table + 16 * u64::from(index), &bytes);
    }

    fn offer(&mut self, head: u16) {
        self.put(AVAILABLE + 4 + 2 * u64::from(self.available % ENTRIES), &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.put(AVAILABLE + 2, &self.available.to_le_bytes());
    }

    /// Where the request at `head` has its head, data and status.
    fn places(head: u16) -> (u64, u64, u64) {
        let base = DATA + 0x4000 * u64::from(head);
        (base, base + 0x1000, base + 0x3ff0)
    }

    /// A request of three descriptors beginning at `head`.
    fn request(&mut self, head: u16, kind: u32, sector: u64, length: u32, out: bool) {
        let (first, data, status) = Driver::places(head);
        self.head_at(first, kind, sector);
        self.put(status, &[0xff]);
        self.descriptor(DESCRIPTORS, head, first, 16, NEXT, head + 1);
        let flags = if out { NEXT } else { NEXT | WRITE };
        self.descriptor(DESCRIPTORS, head + 1, data, length, flags, head + 2);
        self.descriptor(DESCRIPTORS, head + 2, status, 1, WRITE, 0);
        self.offer(head);
    }

    fn head_at(&self, at: u64, kind: u32, sector: u64) {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(sector.to_le_bytes());
        self.put(at, &bytes);
    }

    /// Heads and lengths in the used ring since the last look.
    fn used(&mut self) -> Vec<(u32, u32)> {
        let mut answers = Vec::new();
        while self.used_seen != self.get_u16(USED + 2) {
            let at = USED + 4 + 8 * u64::from(self.used_seen % ENTRIES);
            let word = |at| u32::from_le_bytes(self.get(at, 4).try_into().unwrap());
            answers.push((word(at), word(at + 4)));
            self.used_seen = self.used_seen.wrapping_add(1);
        }
        answers
    }

    fn status(&self, head: u16) -> u8 {
        self.get(Driver::places(head).2, 1)[0]
    }
}

fn take(ring: &mut BlockRing, payload: &mut Vec<u8>) -> Call {
    match ring.take(payload) {
        Ok(Taken::Call(call)) => call,
        other => panic!("no call: {other:?}"),
    }
}

/// Goal: reads and writes move the right bytes, and are answered in the used ring with status and
/// length. Method: one of each; the driver's memory before and after.
#[test]
fn reads_and_writes_move_bytes() {
    let mut driver = Driver::new();
    let mut ring = driver.ring();
    let mut payload = Vec::new();
    driver.request(0, 1, 8, 4096, true);
    driver.put(Driver::places(0).1, &[7; 4096]);
    let write = take(&mut ring, &mut payload);
    assert_eq!((write.operation, write.offset, write.length), (Operation::Write, 4096, 4096));
    assert!(payload == [7; 4096] && !write.flags.fua);
    driver.request(3, 0, 16, 1024, false);
    let read = take(&mut ring, &mut payload);
    assert_eq!((read.operation, read.offset, read.length), (Operation::Read, 8192, 1024));
    assert_eq!(ring.take(&mut payload), Ok(Taken::Nothing));
    assert_eq!(ring.listen(), Ok(false));
    ring.put(&read, 0, &[1; 512]);
    ring.put(&read, 512, &[2; 512]);
    ring.finish(&read, Ok(())).unwrap();
    ring.finish(&write, Err(ErrorKind::Full)).unwrap();
    assert!(ring.take_signal() && !ring.take_signal());
    assert_eq!(driver.used(), [(3, 1025), (0, 1)]);
    assert_eq!((driver.status(3), driver.status(0)), (0, 1));
    let data = driver.get(Driver::places(3).1, 1024);
    assert!(data[..512] == [1; 512] && data[512..] == [2; 512]);
    assert_eq!(ring.base(), 2);
}

/// Goal: the other requests become calls or are answered at once. Method: each kind; a range that
/// is refused beside one that is not.
#[test]
fn other_requests_are_understood() {
    let mut driver = Driver::new();
    let mut ring = driver.ring();
    let mut payload = Vec::new();
    let range = |sector: u64, sectors: u32, flags: u32| {
        let mut bytes = sector.to_le_bytes().to_vec();
        bytes.extend(sectors.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes
    };
    driver.put(Driver::places(0).1, &range(8, 16, 0));
    driver.request(0, 11, 0, 16, true);
    let trim = take(&mut ring, &mut payload);
    assert_eq!((trim.operation, trim.offset, trim.length), (Operation::Trim, 4096, 8192));
    ring.finish(&trim, Ok(())).unwrap();
    for (flags, no_hole) in [(0, true), (1, false)] {
        driver.put(Driver::places(0).1, &range(0, 8, flags));
        driver.request(0, 13, 0, 16, true);
        let zero = take(&mut ring, &mut payload);
        assert_eq!((zero.operation, zero.flags.no_hole), (Operation::WriteZeroes, no_hole));
        ring.finish(&zero, Ok(())).unwrap();
    }
    driver.request(0, 4, 0, 0, true);
    let flush = take(&mut ring, &mut payload);
    assert_eq!((flush.operation, flush.length), (Operation::Flush, 0));
    ring.finish(&flush, Ok(())).unwrap();
    driver.request(0, 8, 0, 20, false);
    assert_eq!(ring.take(&mut payload), Ok(Taken::Answered));
    assert_eq!(&driver.get(Driver::places(0).1, 5), b"maps\0");
    // Unknown kind; discard with a flag; behind the end; half a sector; more than one range.
    let cases: [(u32, u64, u32, Vec<u8>, u8); 5] = [
        (99, 0, 512, Vec::new(), 2),
        (11, 0, 16, range(0, 8, 1), 2),
        (11, 0, 16, range(1 << 62, 8, 0), 1),
        (1, 0, 100, Vec::new(), 1),
        (13, 0, 32, Vec::new(), 1),
    ];
    for (kind, sector, length, data, status) in cases {
        driver.put(Driver::places(0).1, &data);
        driver.request(0, kind, sector, length, true);
        assert_eq!(ring.take(&mut payload), Ok(Taken::Answered), "kind {kind}");
        assert_eq!(driver.status(0), status, "kind {kind}");
    }
    for sector in [2048, u64::MAX, u64::MAX / 512] {
        driver.request(0, 0, sector, 512, false);
        assert_eq!(ring.take(&mut payload), Ok(Taken::Answered));
        assert_eq!(driver.status(0), 1, "sector {sector}");
    }
}

/// Goal: a read-only disk changes nothing, and says what it is. Method: a write, a discard.
#[test]
fn read_only_disks_refuse_changes() {
    let mut driver = Driver::new();
    driver.disk.read_only = true;
    let mut ring = driver.ring();
    for kind in [1, 11, 13] {
        driver.request(0, kind, 0, 512, true);
        assert_eq!(ring.take(&mut Vec::new()), Ok(Taken::Answered));
        assert_eq!(driver.status(0), 1);
    }
    assert_eq!(driver.disk.features() & (1 << 5 | 1 << 13 | 1 << 14), 1 << 5);
    let config = driver.disk.config();
    assert_eq!(config[..8], 2048u64.to_le_bytes());
    let long = GuestDisk { name: "a-name-of-many-characters".into(), ..driver.disk.clone() };
    assert!(long.serial().starts_with(b"a-name-of-m-"), "{:?}", long.serial());
}

/// Goal: what a broken guest offers breaks its queue, and nothing else. Method: loops, numbers and
/// addresses out of range, tables within tables, missing parts, too many requests.
#[test]
fn broken_guests_break_their_queue() {
    let breakages: [(&str, Breakage); 9] = [
        ("outside of its table", |d| d.offer(ENTRIES)),
        ("loop", |d| {
            d.descriptor(DESCRIPTORS, 0, DATA, 16, NEXT, 1);
            d.descriptor(DESCRIPTORS, 1, DATA, 16, NEXT, 0);
            d.offer(0);
        }),
        ("number lies outside", |d| {
            d.descriptor(DESCRIPTORS, 0, DATA, 16, NEXT, 900);
            d.offer(0);
        }),
        ("wrong size", |d| {
            d.descriptor(DESCRIPTORS, 0, DATA, 17, INDIRECT, 0);
            d.offer(0);
        }),
        ("within another", |d| {
            d.descriptor(DESCRIPTORS, 0, DATA, 16, INDIRECT, 0);
            d.descriptor(DATA, 0, DATA, 16, INDIRECT, 0);
            d.offer(0);
        }),
        ("outside of the guest's memory", |d| {
            d.descriptor(DESCRIPTORS, 0, u64::MAX - 15, 16, INDIRECT, 0);
            d.offer(0);
        }),
        ("no room for its status", |d| {
            d.descriptor(DESCRIPTORS, 0, DATA, 16, 0, 0);
            d.offer(0);
        }),
        ("no head", |d| {
            d.descriptor(DESCRIPTORS, 0, RAM_BYTES, 16, NEXT, 1);
            d.descriptor(DESCRIPTORS, 1, DATA, 1, WRITE, 0);
            d.offer(0);
        }),
        ("more requests than it has", |d| {
            d.put(AVAILABLE + 2, &(ENTRIES + 1).to_le_bytes());
        }),
    ];
    for (word, breakage) in breakages {
        let mut driver = Driver::new();
        let mut ring = driver.ring();
        breakage(&mut driver);
        let error = ring.take(&mut Vec::new()).expect_err(word);
        let words = ["outside of its table", "table does not have"];
        let found = error.reason.contains(word) || words.iter().any(|w| error.reason.contains(w));
        assert!(found, "{word}: {}", error.reason);
    }
    let mut driver = Driver::new();
    let mut ring = driver.ring();
    driver.request(0, 0, 0, 512, false);
    take(&mut ring, &mut Vec::new());
    driver.offer(0);
    let error = ring.take(&mut Vec::new()).expect_err("it is not answered yet");
    assert!(error.reason.contains("not answered"), "{}", error.reason);
}

/// Goal: a ring whose in-flight region is lost takes and answers nothing more, and none begins with
/// such a region. Method: the flag is raised between a request that was taken and its answer.
#[test]
fn a_lost_region_breaks_its_rings() {
    let mut driver = Driver::new();
    let inflight = driver.inflight();
    let mut ring = driver.try_ring(&inflight).unwrap();
    driver.request(0, 0, 0, 512, false);
    let call = take(&mut ring, &mut Vec::new());
    driver.request(3, 0, 0, 512, false);
    inflight.cut().store(true, Ordering::SeqCst);
    let error = ring.take(&mut Vec::new()).expect_err("its mark would be lost");
    assert!(error.reason.contains("in-flight region"), "{}", error.reason);
    ring.finish(&call, Ok(())).expect_err("its mark is lost");
    let refused = driver.try_ring(&inflight).map(drop).expect_err("what it owed is not known");
    assert!(refused.cause.contains("in-flight region"), "{refused}");
}

/// Goal: data outside of the guest's memory, and too much of it, is an error of the request alone.
/// Method: one of each, then a good request.
#[test]
fn wrong_data_fails_its_request() {
    let mut driver = Driver::new();
    let mut ring = driver.ring();
    let mut payload = Vec::new();
    for (kind, address, length) in [
        (0, RAM_BYTES - 511, 512),
        (1, RAM_BYTES - 511, 512),
        (0, u64::MAX - 511, 512),
        (1, u64::MAX - 511, 512),
        (1, DATA, 64 << 20),
        (0, DATA, 64 << 20),
    ] {
        let (first, _, status) = Driver::places(0);
        driver.head_at(first, kind, 0);
        driver.put(status, &[0xff]);
        driver.descriptor(DESCRIPTORS, 0, first, 16, NEXT, 1);
        let flags = if kind == 1 { NEXT } else { NEXT | WRITE };
        driver.descriptor(DESCRIPTORS, 1, address, length, flags, 2);
        driver.descriptor(DESCRIPTORS, 2, status, 1, WRITE, 0);
        driver.offer(0);
        assert_eq!(ring.take(&mut payload), Ok(Taken::Answered), "{address:#x} {length}");
        assert_eq!((driver.status(0), driver.used()), (1, vec![(0, 1)]));
    }
    driver.request(0, 0, 0, 512, false);
    take(&mut ring, &mut payload);
}

/// Goal: heads, data and status may be cut anywhere and lie in a table of their own. Method: a
/// write in many small pieces; a read whose status shares a piece with its data.
#[test]
fn pieces_may_be_cut_anywhere() {
    let mut driver = Driver::new();
    let mut ring = driver.ring();
    let mut payload = Vec::new();
    let table = DATA + 0x8000;
    driver.head_at(DATA, 1, 2);
    let bytes: Vec<u8> = (0..1024u32).map(|n| n as u8).collect();
    driver.put(DATA + 16, &bytes);
    // 5 bytes, then 11 and 13 in one, then the rest, then the status.
    driver.descriptor(table, 0, DATA, 5, NEXT, 3);
    driver.descriptor(table, 3, DATA + 5, 24, NEXT, 1);
    driver.descriptor(table, 1, DATA + 29, 1011, NEXT, 2);
    driver.descriptor(table, 2, DATA + 0x7000, 1, WRITE, 0);
    driver.descriptor(DESCRIPTORS, 4, table, 64, INDIRECT, 0);
    driver.offer(4);
    let write = take(&mut ring, &mut payload);
    assert_eq!((write.offset, write.length), (1024, 1024));
    assert_eq!(payload, bytes);
    ring.finish(&write, Ok(())).unwrap();
    driver.head_at(DATA, 0, 0);
    driver.descriptor(DESCRIPTORS, 0, DATA, 16, NEXT, 1);
    driver.descriptor(DESCRIPTORS, 1, DATA + 0x1000, 513, WRITE, 0);
    driver.put(DATA + 0x1200, &[0xff]);
    driver.offer(0);
    let read = take(&mut ring, &mut payload);
    assert_eq!(read.length, 512);
    ring.put(&read, 0, &[9; 512]);
    ring.finish(&read, Ok(())).unwrap();
    assert_eq!((driver.get(DATA + 0x11ff, 1), driver.get(DATA + 0x1200, 1)), (vec![9], vec![0]));
}

/// Goal: whenever the node is killed, its next life repeats exactly what was taken and not
/// answered, oldest first, and goes on behind it. Method: seeded takes and answers in any order, a
/// new ring over the same memory in between; a model of what the guest waits for.
#[test]
fn lives_repeat_what_is_owed() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut driver = Driver::new();
        let mut ring = driver.ring();
        let mut payload = Vec::new();
        let (mut free, mut offered): (Vec<u16>, Vec<u16>) =
            ((0..5).map(|n| n * 3).collect(), vec![]);
        let mut held: Vec<Call> = Vec::new();
        for _ in 0..60 {
            match rng.below(10) {
                0..=3 if !free.is_empty() => {
                    let head = free.swap_remove(rng.below(free.len() as u64) as usize);
                    driver.request(head, 1, u64::from(head), 512, true);
                    offered.push(head);
                }
                4..=5 if !offered.is_empty() => {
                    let call = take(&mut ring, &mut payload);
                    assert_eq!(call.offset, u64::from(offered.remove(0)) * 512, "seed {seed}");
                    held.push(call);
                }
                6..=7 if !held.is_empty() => {
                    let call = held.remove(rng.below(held.len() as u64) as usize);
                    ring.finish(&call, Ok(())).unwrap();
                    let answers = driver.used();
                    assert_eq!(answers, [(call.cookie as u32, 1)], "seed {seed}");
                    free.push(call.cookie as u16);
                }
                8 => {
                    ring = driver.ring();
                    let again: Vec<Call> =
                        held.iter().map(|_| take(&mut ring, &mut payload)).collect();
                    assert_eq!(again, held, "seed {seed}");
                }
                _ => {}
            }
        }
    }
}

/// Goal: a life that ends between the used ring and the flags repeats nothing that was answered,
/// and order survives. Method: puts the flag of an answered request back, as a kill just before its
/// store would leave it.
#[test]
fn answered_requests_are_not_repeated() {
    let mut driver = Driver::new();
    let mut ring = driver.ring();
    let mut payload = Vec::new();
    for head in [6, 0, 3] {
        driver.request(head, 1, u64::from(head), 512, true);
    }
    let calls: Vec<Call> = (0..3).map(|_| take(&mut ring, &mut payload)).collect();
    ring.finish(&calls[1], Ok(())).unwrap();
    // Head 0's flag, and the used index before its answer.
    driver.region.write_all_at(&[1], 16).unwrap();
    driver.region.write_all_at(&0u16.to_le_bytes(), 14).unwrap();
    let mut next = driver.ring();
    let again: Vec<u64> = (0..2).map(|_| take(&mut next, &mut payload).offset).collect();
    assert_eq!(again, [6 * 512, 3 * 512]);
    assert_eq!(next.take(&mut payload), Ok(Taken::Nothing));
}

/// Goal: whatever is in a guest's memory, a ring neither panics nor goes on for ever. Method:
/// seeded noise over rings, tables and requests, with enough sense in it to get somewhere.
#[test]
fn noise_does_no_harm() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let mut driver = Driver::new();
        let mut ring = driver.ring();
        for index in 0..ENTRIES {
            let at = [DATA, DATA + 0x100, DESCRIPTORS, USED, RAM_BYTES - 8, rng.next_u64()];
            let at = at[rng.below(6) as usize];
            let length = [0, 1, 16, 17, 512, 4096, u32::MAX][rng.below(7) as usize];
            let (flags, next) = (rng.below(8) as u16, rng.below(18) as u16);
            driver.descriptor(DESCRIPTORS, index, at, length, flags, next);
        }
        driver.head_at(DATA, rng.below(15) as u32, rng.below(3000));
        let mut payload = Vec::new();
        for _ in 0..ENTRIES {
            driver.offer(rng.below(17) as u16);
        }
        for _ in 0..64 {
            match ring.take(&mut payload) {
                Ok(Taken::Call(call)) => {
                    assert!(call.offset + call.length <= driver.disk.length, "seed {seed}");
                    let bytes = if call.operation == Operation::Read { call.length } else { 0 };
                    ring.put(&call, 0, &vec![0xee; bytes as usize]);
                    ring.finish(&call, Ok(())).unwrap();
                }
                Ok(Taken::Answered) => {}
                Ok(Taken::Nothing) | Err(_) => break,
            }
        }
    }
}
