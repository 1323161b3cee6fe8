//! What comes along with a read: offered, served without a request, never old.
//!
//! How: eight blocks in one chunk of one segment, or in several, and requests counted.

use super::lives::BLOCK;
use super::waits::{Bench, WITHIN};
use layby_types::{ErrorKind, Nanos};

impl Bench {
    pub(super) fn requests(&self) -> u64 {
        self.volume.status().counters.requests
    }

    /// Blocks that are offered now.
    fn offered(&mut self) -> Vec<u64> {
        let offers = std::iter::from_fn(|| self.volume.poll_at_hand());
        offers.flat_map(|bytes| bytes.start / BLOCK..bytes.end / BLOCK).collect()
    }

    pub(super) fn reads(&mut self, block: u64, value: u8) {
        let token = self.read(block);
        assert_eq!(self.wait(token).1, Ok(()));
        self.holds(token, value);
    }

    fn takes(&mut self, block: u64, value: u8) {
        let token = self.read_at_hand(block);
        assert_eq!(self.result(token), Some(Ok(())), "block {block}");
        self.holds(token, value);
    }

    fn holds(&self, token: u64, value: u8) {
        let bytes = self.ended[&token].1.as_deref();
        assert_eq!(bytes, Some(&vec![value; BLOCK as usize][..]));
    }

    /// Writes single blocks, so that each is a chunk of its own, and uploads them together.
    pub(super) fn upload_singly(&mut self, blocks: &[u64], value: u8) {
        let tokens: Vec<u64> = blocks.iter().map(|block| self.write(*block, 1, value)).collect();
        self.volume.set_draining(true);
        self.until(|bench| tokens.iter().all(|token| bench.ended.contains_key(token)));
        self.until(|bench| bench.volume.is_drained());
        self.volume.set_draining(false);
        self.volume.forget_all_uploaded();
    }
}

impl Bench {
    /// The same, and the key of the object that has them.
    pub(super) fn upload_singly_to(&mut self, blocks: &[u64], value: u8) -> String {
        let before: Vec<String> = self.world.store.objects.keys().cloned().collect();
        self.upload_singly(blocks, value);
        let is_new = |key: &&String| key.starts_with("segments/") && !before.contains(key);
        self.world.store.objects.keys().find(is_new).expect("it was uploaded").clone()
    }
}

/// Goal: the rest of a chunk, and what lies around it in its segment, is offered once, and reading
/// it asks the store for nothing. Method: one block read of a chunk of eight, then the others; then
/// one of eight single blocks with gaps.
#[test]
fn what_came_along_costs_no_request() {
    let mut bench = Bench::new(21);
    for (first, step) in [(0, 1), (16, 3)] {
        let blocks: Vec<u64> = (0..8).map(|index| first + index * step).collect();
        if step > 1 {
            bench.upload_singly(&blocks, 1);
        }
        let before = bench.requests();
        bench.reads(blocks[2], 1);
        assert_eq!(bench.requests(), before + 1);
        let others: Vec<u64> = blocks.iter().copied().filter(|b| *b != blocks[2]).collect();
        assert_eq!(bench.offered(), others);
        others.iter().for_each(|block| bench.takes(*block, 1));
        assert_eq!((bench.requests(), bench.offered()), (before + 1, vec![]));
        bench.reads(blocks[2], 1);
        assert_eq!(bench.requests(), before + 2, "it is held for a moment only");
        bench.offered();
    }
}

/// Goal: reads of what is on its way wait for that. Method: eight reads at once of one chunk, and
/// of eight single blocks around one.
#[test]
fn reads_of_what_is_on_its_way_share_its_request() {
    let mut bench = Bench::new(22);
    bench.upload_singly(&[16, 19, 22, 25], 1);
    for blocks in [vec![0, 1, 2, 3, 4, 5, 6, 7], vec![25, 16, 19, 22]] {
        let before = bench.requests();
        let tokens: Vec<u64> = blocks.iter().map(|block| bench.read(*block)).collect();
        tokens.iter().for_each(|token| assert_eq!(bench.wait(*token).1, Ok(())));
        tokens.iter().for_each(|token| bench.holds(*token, 1));
        assert_eq!(bench.requests(), before + 1, "{blocks:?}");
        bench.offered();
    }
}

/// Goal: who waits for another's request is served although the other one's time is over. Method: a
/// cut link, a second read half a time later, and a link that is back before its time is over.
#[test]
fn who_waits_outlives_who_asked() {
    let mut bench = Bench::new(23);
    bench.world.faults.is_cut = true;
    let first = bench.read(0);
    let half = Nanos(WITHIN.0 / 2);
    bench.until(|bench| bench.now >= half);
    let second = bench.read(1);
    bench.until(|bench| bench.result(first).is_some());
    assert_eq!(bench.result(first), Some(Err(ErrorKind::Retry)));
    assert_eq!(bench.result(second), None);
    bench.world.faults.is_cut = false;
    assert_eq!(bench.wait(second).1, Ok(()));
    bench.holds(second, 1);
}

/// Goal: a fetch that rests after an outage keeps nobody waiting but its own read. Method: a cut
/// link until its rest is long; then reads of the same chunk, at once and later, each soon.
#[test]
fn what_rests_after_an_outage_keeps_nobody() {
    let mut bench = Bench::new(28);
    bench.volume.set_wait(Default::default());
    bench.world.faults.is_cut = true;
    let first = bench.read(0);
    bench.until(|bench| bench.now >= Nanos::from_secs(40));
    bench.world.faults.is_cut = false;
    let soon = Nanos::from_millis(100);
    let others = [1, 2].map(|block| bench.read(block));
    others.iter().for_each(|token| assert!(bench.wait(*token).0 <= soon));
    let later = bench.now.saturating_add(Nanos::from_millis(1500));
    bench.until(|bench| bench.now >= later);
    let third = bench.read(3);
    assert!(bench.wait(third).0 <= soon);
    assert_eq!(bench.result(first), None, "it still rests, or this shows nothing");
    assert_eq!(bench.wait(first).1, Ok(()));
}

/// Goal: what came along is not served once it is written anew, in the journal or in the store.
/// Method: a block that was offered, written, read, uploaded, read.
#[test]
fn what_came_along_is_never_old() {
    let mut bench = Bench::new(24);
    bench.reads(0, 1);
    assert_eq!(bench.offered().len(), 7);
    let written = bench.write(1, 1, 9);
    assert_eq!(bench.wait(written).1, Ok(()));
    bench.reads(1, 9);
    bench.upload_singly(&[2], 8);
    bench.reads(1, 9);
    bench.reads(2, 8);
    bench.reads(3, 1);
}

/// Goal: what came along damaged is offered to nobody, so that nothing but reads that clients make
/// asks the store for it; and once it is whole it is read. Method: a segment of single blocks, one
/// of which is damaged in the store while its neighbour is read; then a damaged chunk of eight.
#[test]
fn what_came_along_damaged_is_offered_to_nobody() {
    let mut bench = Bench::new(25);
    let key = bench.upload_singly_to(&[16, 19, 22, 25], 1);
    let chunk = bench.upload_singly_to(&[40], 1);
    let run = bench.write(48, 8, 1);
    assert_eq!(bench.wait(run).1, Ok(()));
    let long = bench.upload_singly_to(&[], 1);
    let (sound, damaged) = (Ok(()), Err(ErrorKind::Corrupt));
    let cases =
        [(key, 16, sound, vec![19, 22]), (chunk, 40, damaged, vec![]), (long, 48, damaged, vec![])];
    for (key, first, result, offered) in cases {
        let whole = bench.world.store.objects[&key].clone();
        let mut bytes = whole.0.to_vec();
        *bytes.last_mut().expect("it has bytes") ^= 1;
        bench.world.store.objects.insert(key.clone(), (bytes.into(), whole.1));
        let read = bench.read(first);
        assert_eq!((bench.wait(read).1, bench.offered()), (result, offered));
        bench.world.store.objects.insert(key, whole);
        bench.reads(if first == 16 { 25 } else { first }, 1);
        bench.offered();
    }
}

/// Goal: what is held goes with time, with newer bytes and with a write, and a read of what is at
/// hand asks the store for nothing then, either: it fails. Method: offers that are taken late.
#[test]
fn what_is_at_hand_goes() {
    let mut bench = Bench::new(27);
    let gone = |bench: &mut Bench, block: u64| {
        let before = bench.requests();
        let token = bench.read_at_hand(block);
        assert_eq!(bench.result(token), Some(Err(ErrorKind::Retry)));
        assert_eq!(bench.requests(), before);
    };
    gone(&mut bench, 1);
    bench.reads(0, 1);
    let written = bench.write(1, 1, 2);
    assert_eq!(bench.wait(written).1, Ok(()));
    assert!(bench.offered().is_empty(), "a part of what is offered together is in the journal");
    gone(&mut bench, 1);
    bench.takes(2, 1);
    let late = bench.now.saturating_add(Nanos::from_millis(1500));
    bench.until(|bench| bench.now >= late);
    gone(&mut bench, 3);
}

/// Goal: an object that has become shorter fails the reads of what it lacks and no others, also of
/// those who waited for another's request. Method: a segment of single blocks cut in its middle.
#[test]
fn what_came_short_is_not_held() {
    let mut bench = Bench::new(26);
    let key = bench.upload_singly_to(&[16, 19, 22, 25], 1);
    let (bytes, version) = bench.world.store.objects[&key].clone();
    let cut = bytes.slice(..bytes.len() - 1);
    bench.world.store.objects.insert(key, (cut, version));
    let tokens = [16, 19, 25].map(|block| bench.read(block));
    let ends = tokens.map(|token| bench.wait(token).1);
    assert_eq!(ends, [Ok(()), Ok(()), Err(ErrorKind::Corrupt)]);
    assert_eq!((bench.offered(), bench.volume.status().counters.damaged), (vec![], 1));
}
