//! What cleaning asks of the store, and what a later start knows of it.
//!
//! How: random overwrites of single blocks, which leave segments that live in a few places each; a
//! store that answers at once, and counts.

use super::lives::{BLOCK, Life, NODE, open, plan};
use crate::segment::Compression;
use crate::simulated::{SimDisks as Disks, SimWorld as World};
use crate::volume::{Limits, Link, Plan, Volume, create};
use layby_types::{BackingOperation, Nanos};

const JOURNAL: u64 = 8 << 20;
const BLOCKS: u64 = 1024;
const SEGMENT_BYTES: u64 = 512 << 10;
/// Steps until all is in the store, at most.
const STEPS_MAX: u32 = 200_000;

pub(super) fn settle(world: &mut World, volume: &mut Volume<Vec<u8>>, now: &mut Nanos) {
    for _ in 0..STEPS_MAX {
        world.take(volume.take_actions());
        match world.step() {
            Some((id, end)) => volume.on_end(id, end),
            None if volume.is_drained() && world.is_idle() => return,
            None => {
                *now = now.saturating_add(Nanos::from_millis(5));
                volume.on_tick(*now);
            }
        }
        while let Some(done) = volume.poll() {
            assert_eq!(done.result, Ok(()));
        }
    }
    panic!("does not settle: {:?}", volume.status());
}

/// Goal: random overwrites are cleaned within the bound of space, and by about a request per
/// segment that goes, of not much more than what is moved. Method: 24 times half of a volume
/// overwritten by chance, in segments of 128 blocks; the volume's own counters.
#[test]
fn cleaning_asks_little_of_the_store() {
    let limits = Limits { segment_bytes: SEGMENT_BYTES, ..plan(NODE).limits };
    let (size_bytes, compression) = (BLOCKS * BLOCK, Compression::None);
    let plan = Plan { size_bytes, compression, limits, ..plan(NODE) };
    let mut world = World::new(9, Disks::new(JOURNAL, create(&plan, JOURNAL, 9)));
    let mut volume = open(&mut world, plan, Nanos::ZERO);
    let (mut now, mut token) = (Nanos::ZERO, 0);
    volume.set_draining(true);
    for round in 0..24u64 {
        for write in 0..BLOCKS / 2 {
            let block = match round {
                0 | 1 => round * (BLOCKS / 2) + write,
                _ => world.rng.below(BLOCKS),
            };
            token += 1;
            let mut buffer = vec![0; BLOCK as usize];
            layby_types::Rng::new(token).fill(&mut buffer);
            let offset = block * BLOCK;
            volume.submit(token, BackingOperation::Write { offset, buffer, durable: false });
            if write % 16 == 15 {
                token += 1;
                volume.submit(token, BackingOperation::Sync);
            }
        }
        settle(&mut world, &mut volume, &mut now);
    }
    let status = volume.status();
    let counters = status.counters;
    let spare = status.segment_blocks_bytes - status.live_bytes;
    assert!(spare <= status.live_bytes / 4 + 4 * SEGMENT_BYTES, "{status:?}");
    assert!(counters.segments_deleted > 60 && counters.bytes_moved > 4 << 20, "{counters:?}");
    let (reads, deleted) = (counters.clean_reads, counters.segments_deleted);
    assert!(reads * 2 <= deleted * 3, "{reads} reads for {deleted} segments: {counters:?}");
    assert!(counters.clean_bytes_read <= 4 * counters.bytes_moved, "{counters:?}");
}

/// Goal: what was deleted is not counted by a later start, from the moment at which the store has
/// answered, and nothing that is there is left behind. Method: lives that clean and delete, a stop
/// or a power cut, and a start; the store's own keys.
#[test]
fn a_start_counts_no_segments_that_are_gone() {
    let stored = |life: &Life| {
        let keys = life.world.store.objects.keys();
        keys.filter(|key| key.starts_with("segments/")).count() as u64
    };
    let mut gone = 0;
    for seed in 8300..8310 {
        let mut life = Life::new(seed);
        life.load(1500);
        life.settle();
        gone += life.volume.status().counters.segments_deleted;
        match seed % 2 {
            0 => {
                life.stop();
                life.open_again();
            }
            _ => life.crash(),
        }
        while life.volume.status().link != Link::Up {
            life.tick();
        }
        let (counted, there) = (life.volume.status().segments, stored(&life));
        assert!(counted <= there, "{counted} of {there} segments: {}", life.line);
        life.load(20);
        life.settle();
        assert_eq!(life.volume.status().segments, stored(&life), "{}", life.line);
    }
    assert!(gone > 100, "{gone} were deleted");
}
