//! What salvage saves of a journal that is damaged in places.
//!
//! How: a journal whose store is out of reach, with all that was flushed; its files, of which one
//! payload or another rots before salvage finds what there is, or behind that.

use super::lives::{BLOCK, JOURNAL, Life};
use crate::host::{HostError, Paths};
use crate::salvage::{Salvage, SalvageKind};
use crate::segment::CHUNK_BYTES;
use crate::simulated::SimDisks;
use crate::volume::Wanted;
use layby_types::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt as _;

/// A life whose journal alone has what was flushed, which a later start knows.
fn life(seed: u64) -> Life {
    let mut life = Life::new(seed);
    life.load(100);
    life.settle();
    life.volume.set_draining(false);
    life.world.faults.is_cut = true;
    life.load(80);
    life.sync_all();
    let until = life.now.saturating_add(Nanos::from_secs(1));
    while life.now < until {
        life.tick();
    }
    life.stop();
    life
}

/// The node's files of a volume, in a folder.
pub(super) fn files(disks: &SimDisks, folder: &std::path::Path) -> Paths {
    let paths = Paths { journal: folder.join("journal"), map: folder.join("map") };
    let journal = disks.read(0, JOURNAL).expect("all of the device");
    std::fs::write(&paths.journal, journal).expect("the test's own folder");
    std::fs::write(&paths.map, &disks.map_file).expect("the test's own folder");
    paths
}

/// A byte of the journal becomes another one.
fn rot(paths: &Paths, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(&paths.journal);
    let (file, mut byte) = (file.expect("the test's own file"), [0]);
    file.read_exact_at(&mut byte, at).expect("it is as long");
    file.write_all_at(&[byte[0] ^ 1], at).expect("the test's own file");
}

/// The blocks of all ranges of a kind.
fn blocks(salvage: &Salvage, what: SalvageKind) -> BTreeSet<u64> {
    let ranges = salvage.ranges().into_iter().filter(|range| range.what == what);
    ranges.flat_map(|range| range.offset / BLOCK..(range.offset + range.length) / BLOCK).collect()
}

/// Goal: a payload that has rotted costs what it held, and no other: the rest is saved, and the
/// blocks of the payload have no older version in its stead. Method: one byte of any payload,
/// before the journal is looked at and between that and the copy; all blocks beside what was
/// written.
#[test]
fn rot_of_a_payload_costs_that_payload() {
    for seed in 0..40 {
        let mut life = life(seed);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let paths = files(&life.world.disks, folder.path());
        let found = Salvage::open(&paths, Wanted::Unnamed).expect("it is whole");
        let (data, zeros) = (blocks(&found, SalvageKind::Data), blocks(&found, SalvageKind::Zeros));
        let places = found.places();
        let at = places[life.world.rng.below(places.len() as u64) as usize];
        if seed % 2 == 0 {
            rot(&paths, at);
        }
        let mut found = Salvage::open(&paths, Wanted::Unnamed).expect("it is found");
        if seed % 2 == 1 {
            rot(&paths, at);
        }
        let mut saved = BTreeMap::new();
        let copied = found.copy::<HostError>(&mut |offset, bytes| {
            for (index, block) in bytes.chunks(BLOCK as usize).enumerate() {
                saved.insert(offset / BLOCK + index as u64, block.to_vec());
            }
            Ok(())
        });
        copied.unwrap_or_else(|error| panic!("{error}, seed {seed}"));
        let state = life.whole_state();
        for (block, bytes) in &saved {
            assert!(state[*block as usize] == *bytes, "block {block}, seed {seed}");
        }
        let lost = blocks(&found, SalvageKind::Damaged);
        assert!(!lost.is_empty() && lost.len() <= CHUNK_BYTES / BLOCK as usize, "seed {seed}");
        let kept: BTreeSet<u64> = saved.into_keys().collect();
        assert_eq!(kept, blocks(&found, SalvageKind::Data), "what is listed, seed {seed}");
        assert!(kept.is_disjoint(&lost), "seed {seed}");
        assert_eq!(kept.union(&lost).copied().collect::<BTreeSet<u64>>(), data, "seed {seed}");
        assert_eq!(blocks(&found, SalvageKind::Zeros), zeros, "seed {seed}");
    }
}
