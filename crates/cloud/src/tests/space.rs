//! Space in the store while a volume is overwritten over a link that carries so much and no more.
//!
//! How: a store behind a link with a rate each way and a round trip, in virtual time; single blocks
//! overwritten by chance, without end or at a part of the link's rate.

use super::lives::{BLOCK, NODE, plan};
use crate::action::{Action, ActionId, End, Fault, FaultKind, Request};
use crate::segment::Compression;
use crate::simulated::SimStore;
use crate::volume::{Limits, Plan, Volume, create};
use layby_types::{BackingOperation, Nanos, Rng};
use std::collections::{BTreeMap, BTreeSet};

/// 32 MiB of blocks, in segments of 256 KiB, over 400 kB/s: as 1 GiB over 100 Mbit/s.
const BLOCKS: u64 = 8192;
const SEGMENT_BYTES: u64 = 256 << 10;
const LINK_BYTES_PER_SECOND: u64 = 400_000;
const ROUND_TRIP: Nanos = Nanos::from_millis(20);
const JOURNAL: u64 = 2 << 20;
/// When a host gives a request up that is not answered.
const GIVEN_UP_AFTER: Nanos = Nanos::from_millis(20_000);
/// Writes that a client has under way.
const WRITES_MAX: u64 = 16;

/// What performs a volume's actions, each at its time.
struct Link {
    store: SimStore,
    journal: Vec<u8>,
    now: Nanos,
    up_until: Nanos,
    down_until: Nanos,
    /// How often slower the link is down than up.
    down_divisor: u64,
    /// Objects whose gets are not answered; the host gives them up.
    silent: BTreeSet<String>,
    /// Until then the store refuses each get of a segment at once.
    refuses_until: Nanos,
    ends: BTreeMap<(Nanos, ActionId), End>,
}

fn carried(bytes: u64) -> Nanos {
    Nanos(bytes * 1_000_000_000 / LINK_BYTES_PER_SECOND)
}

impl Link {
    fn take(&mut self, actions: Vec<(ActionId, Action)>) {
        for (id, action) in actions {
            let (at, end) = match action {
                Action::Upload { request, .. }
                | Action::Object(request)
                | Action::Fetch(request) => self.ask(&request),
                Action::JournalWrite { at, bytes } => {
                    self.journal[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
                    (self.now, End::Done)
                }
                Action::JournalRead { at, length } => {
                    let bytes = self.journal[at as usize..(at + length) as usize].to_vec();
                    (self.now, End::Bytes(bytes.into(), None))
                }
                Action::CacheWrite { .. } | Action::CacheRead { .. } => {
                    unreachable!("these volumes have no read cache")
                }
                Action::EncodeMap(image) => (self.now, End::Bytes(image.encode().into(), None)),
                Action::JournalSync | Action::MapAppend(_) | Action::MapReplace(_) => {
                    (self.now, End::Done)
                }
            };
            self.ends.insert((at, id), end);
        }
    }

    fn ask(&mut self, request: &Request) -> (Nanos, End) {
        if let Request::Get { key, .. } = request
            && self.silent.contains(key)
        {
            let fault = Fault { kind: FaultKind::Retry, cause: "no answer".to_owned() };
            return (self.now.saturating_add(GIVEN_UP_AFTER), End::Failed(fault));
        }
        if let Request::Get { key, .. } = request
            && key.starts_with("segments/")
            && self.now < self.refuses_until
        {
            let fault = Fault { kind: FaultKind::Retry, cause: "503".to_owned() };
            return (self.now, End::Failed(fault));
        }
        let end = self.store.perform(request);
        let way = match (request, &end) {
            (Request::Put { bytes, .. }, _) => {
                let free = self.up_until.max(self.now);
                self.up_until = free.saturating_add(carried(bytes.len() as u64));
                self.up_until
            }
            (_, End::Bytes(bytes, _)) => {
                let free = self.down_until.max(self.now);
                self.down_until =
                    free.saturating_add(carried(bytes.len() as u64 * self.down_divisor));
                self.down_until
            }
            _ => self.now,
        };
        (way.saturating_add(ROUND_TRIP), end)
    }
}

/// A volume, its client and its link.
struct Run {
    link: Link,
    volume: Volume<Vec<u8>>,
    rng: Rng,
    token: u64,
    under_way: u64,
    /// The most that was stored since it was last asked, in percent of what lives.
    most_percent: u64,
}

impl Run {
    /// A volume all of whose blocks are in the store.
    fn filled() -> Self {
        let limits =
            Limits { segment_bytes: SEGMENT_BYTES, read_cache_bytes: 0, ..Limits::DEFAULT };
        let (size_bytes, compression) = (BLOCKS * BLOCK, Compression::None);
        let plan = Plan { size_bytes, compression, limits, ..plan(NODE) };
        let (map_file, first_page) = create(&plan, JOURNAL, 1);
        let mut journal = vec![0; JOURNAL as usize];
        journal[..first_page.len()].copy_from_slice(&first_page);
        let mut read =
            |at: u64, length: u64| Ok(journal[at as usize..][..length as usize].to_vec());
        let opened = Volume::open(plan, &map_file, Nanos::ZERO, 1, &mut read);
        let volume = opened.expect("what was just made opens").volume;
        let link = Link {
            store: SimStore::default(),
            journal,
            now: Nanos::ZERO,
            up_until: Nanos::ZERO,
            down_until: Nanos::ZERO,
            down_divisor: 1,
            silent: BTreeSet::new(),
            refuses_until: Nanos::ZERO,
            ends: BTreeMap::new(),
        };
        let (rng, token, under_way, most_percent) = (Rng::new(1), 0, 0, 0);
        let mut run = Run { link, volume, rng, token, under_way, most_percent };
        for block in 0..BLOCKS {
            while run.under_way == WRITES_MAX {
                run.go_on(Nanos::NEVER);
            }
            run.write(block);
        }
        run.settle();
        run
    }

    fn write(&mut self, block: u64) {
        self.token += 1;
        let mut buffer = vec![0; BLOCK as usize];
        buffer[..8].copy_from_slice(&self.token.to_le_bytes());
        let offset = block * BLOCK;
        self.volume.submit(self.token, BackingOperation::Write { offset, buffer, durable: false });
        self.under_way += 1;
    }

    /// Lets the next thing happen, or time pass until then.
    fn go_on(&mut self, until: Nanos) {
        self.link.take(self.volume.take_actions());
        let next = self.link.ends.first_key_value().map_or(Nanos::NEVER, |((at, _), _)| *at);
        self.link.now = next.min(self.volume.next_deadline()).min(until).max(self.link.now);
        assert!(
            self.link.now < Nanos::NEVER,
            "nothing happens any more: {:?}",
            self.volume.status()
        );
        self.volume.on_tick(self.link.now);
        if next <= self.link.now {
            let ((_, id), end) = self.link.ends.pop_first().expect("it was looked at");
            self.volume.on_end(id, end);
        }
        while let Some(done) = self.volume.poll() {
            assert_eq!(done.result, Ok(()));
            self.under_way -= 1;
        }
        self.most_percent = self.most_percent.max(self.percent());
    }

    /// Until all is in the store, and nothing is on its way.
    fn settle(&mut self) {
        self.volume.set_draining(true);
        loop {
            let next = self.volume.next_deadline();
            let is_idle = self.link.ends.is_empty() && next == Nanos::NEVER;
            let actions = self.volume.take_actions();
            if is_idle && actions.is_empty() && self.volume.is_drained() {
                break;
            }
            self.link.take(actions);
            self.go_on(Nanos::NEVER);
        }
        self.volume.set_draining(false);
    }

    /// Blocks in the store, in percent of what lives.
    fn percent(&self) -> u64 {
        let status = self.volume.status();
        status.segment_blocks_bytes * 100 / status.live_bytes.max(1)
    }

    /// Lets so much time pass.
    fn idle(&mut self, time: Nanos) {
        let until = self.link.now.saturating_add(time);
        while self.link.now < until {
            self.go_on(until);
        }
    }

    /// Overwrites so much of the volume, with a rest after each write; the time that it took.
    fn overwrite(&mut self, blocks: u64, rest: Nanos) -> Nanos {
        let start = self.link.now;
        let mut next = start;
        for _ in 0..blocks {
            next = next.saturating_add(rest);
            while self.under_way == WRITES_MAX || self.link.now < next {
                self.go_on(if self.under_way == WRITES_MAX { Nanos::NEVER } else { next });
            }
            let block = self.rng.below(BLOCKS);
            self.write(block);
        }
        self.link.now.since(start)
    }

    /// Overwrites a block by chance where one more may be under way; how many were.
    fn write_some(&mut self) -> u64 {
        if self.under_way == WRITES_MAX {
            self.go_on(Nanos::NEVER);
            return 0;
        }
        let block = self.rng.below(BLOCKS);
        self.write(block);
        1
    }

    fn most(&mut self) -> u64 {
        std::mem::take(&mut self.most_percent)
    }
}

/// Goal: a volume that is overwritten at a quarter of its link's rate, and at more than it carries,
/// takes at most 1.3 times what lives, its uploads go on, and it comes down to 1.25 when it is left
/// alone. Method: four times the volume by chance each, in virtual time; clients get a third of a
/// link that cleaning wants all of.
#[test]
fn space_is_bounded_while_a_volume_is_overwritten() {
    let mut run = Run::filled();
    let blocks = 4 * BLOCKS;
    let quarter = Nanos(4 * BLOCK * 1_000_000_000 / LINK_BYTES_PER_SECOND);
    for (rest, rate_wanted) in [(quarter, 24), (Nanos::ZERO, 33)] {
        run.most();
        let took = run.overwrite(blocks, rest);
        let most = run.most();
        let rate = blocks * BLOCK * 100 / (LINK_BYTES_PER_SECOND * took.0 / 1_000_000_000);
        assert!(most <= 130, "{most} % with {rest:?} between writes");
        assert!(rate >= rate_wanted, "{rate} % of the link with {rest:?} between writes");
        run.settle();
        let status = run.volume.status();
        let percent = status.segment_blocks_bytes * 100 / status.live_bytes;
        assert!(percent <= 125, "{percent} % at rest: {status:?}");
    }
}

/// Goal: with a volume that is told to drain, what is in no store goes first. Method: the same
/// overwrites with the journal full at the end; the time until it is empty, beside its bytes.
#[test]
fn a_drain_does_not_wait_for_cleaning() {
    let mut run = Run::filled();
    run.overwrite(2 * BLOCKS, Nanos::ZERO);
    let (start, dirty) = (run.link.now, run.volume.status().dirty_bytes);
    assert!(dirty > JOURNAL / 4, "{dirty} B are dirty");
    run.volume.set_draining(true);
    while !run.volume.is_drained() {
        run.go_on(Nanos::NEVER);
    }
    let took = run.link.now.since(start);
    // Rounds that were under way go up among it.
    assert!(took < carried(dirty * 2 + 4 * SEGMENT_BYTES), "{took:?} for {dirty} B");
}

/// Goal: victims that are overwritten as a whole, and deleted, while they wait to be read are let
/// go. Method: a link that is 50 times slower down than up, and all of the volume anew meanwhile.
#[test]
fn victims_that_die_first_are_let_go() {
    let mut run = Run::filled();
    run.link.down_divisor = 50;
    run.overwrite(BLOCKS, Nanos::ZERO);
    for _ in 0..4 {
        for block in 0..BLOCKS {
            while run.under_way == WRITES_MAX {
                run.go_on(Nanos::NEVER);
            }
            run.write(block);
        }
    }
    run.link.down_divisor = 1;
    run.settle();
    let status = run.volume.status();
    assert_eq!(status.live_bytes, BLOCKS * BLOCK);
    assert!(status.segment_blocks_bytes * 100 <= status.live_bytes * 130, "{status:?}");
}

/// Goal: objects whose reads are not answered keep no write of the volume waiting for long: their
/// own blocks stay where they are, and all others go up and are cleaned. Method: a volume that
/// lives in a few places of each segment, of which some, or all, fall silent; four times the volume
/// overwritten meanwhile, beside the time that it takes with a store that answers; then rest.
#[test]
fn silent_objects_stop_no_uploads() {
    let run = || {
        let mut run = Run::filled();
        run.overwrite(2 * BLOCKS, Nanos::ZERO);
        run
    };
    let sound = run().overwrite(4 * BLOCKS, Nanos::ZERO);
    for (every, factor) in [(10, 2), (1, 2)] {
        let mut run = run();
        let keys = run.link.store.objects.keys();
        let segments = keys.filter(|key| key.starts_with("segments/"));
        let silent: BTreeSet<String> = segments.step_by(every).cloned().collect();
        run.link.silent = silent;
        let (end, mut left) = (run.link.now.saturating_add(Nanos(sound.0 * factor)), 4 * BLOCKS);
        while left > 0 {
            assert!(run.link.now < end, "one of {every}: {left} left, {:?}", run.volume.status());
            left -= run.write_some();
        }
        run.link.silent.clear();
        run.settle();
        let status = run.volume.status();
        assert_eq!(status.live_bytes, BLOCKS * BLOCK);
        assert!(run.percent() <= 130, "one of {every} at rest: {status:?}");
    }
}

/// Goal: an idle volume cleans objects that were silent once they answer. Method: all segments fall
/// silent, and half as many writes by chance as there are blocks; so much time that each victim was
/// given up, and, once they answer, that each was chosen again.
#[test]
fn an_idle_volume_cleans_what_was_silent() {
    let mut run = Run::filled();
    let keys = run.link.store.objects.keys();
    run.link.silent = keys.filter(|key| key.starts_with("segments/")).cloned().collect();
    run.overwrite(BLOCKS / 2, Nanos::ZERO);
    run.idle(Nanos::from_secs(600));
    assert!(run.percent() > 130, "nothing could be cleaned: {:?}", run.volume.status());
    run.link.silent.clear();
    run.idle(Nanos::from_secs(600));
    assert!(run.percent() <= 125, "{:?}", run.volume.status());
}

/// Goal: a store that refuses reads at once, as a busy one does, for a second has no victim given
/// up. Method: a volume whose every read of a segment fails at once for a second from the first one
/// on, while it is overwritten; then rest.
#[test]
fn a_second_of_refusals_gives_no_victim_up() {
    let mut run = Run::filled();
    run.overwrite(2 * BLOCKS, Nanos::ZERO);
    run.link.refuses_until = Nanos::NEVER;
    while run.volume.status().counters.repeated == 0 {
        run.write_some();
    }
    run.link.refuses_until = run.link.now.saturating_add(Nanos::from_millis(1000));
    while run.link.now < run.link.refuses_until {
        run.write_some();
        assert_eq!(run.volume.silent_victims(), 0, "{:?}", run.volume.status());
    }
    run.settle();
    assert!(run.percent() <= 125, "{:?} at rest", run.volume.status());
}
