//! Restores of volumes that are written meanwhile, and so change under their reader.
//!
//! How: a life in the simulated world goes on between two requests of a restore, until what it was
//! to read next is overwritten, cleaned and deleted; or a volume of which half stays as it is.

use super::cleaning::settle;
use super::lives::{BLOCK, BLOCKS, Life, NODE, open, plan};
use super::takes::{DOWNLOAD_BYTES, superblock_of, upload, uploading};
use crate::action::{Fault, FaultKind};
use crate::restore::{READS_MAX, RestoreError, Restored};
use crate::segment::Compression;
use crate::simulated::{SimDisks as Disks, SimWorld as World};
use crate::superblock::{SUPERBLOCK_KEY, Superblock};
use crate::volume::{Limits, Plan, Volume, create};
use bytes::Bytes;
use layby_types::{BackingOperation, Nanos, Rng};
use std::ops::Range;

/// What a restore came to.
struct Outcome {
    end: Result<usize, RestoreError>,
    state: Vec<Vec<u8>>,
    begins: usize,
}

/// Restores a volume; `before` comes before each request, with its number.
fn restore(life: &mut Life, before: &mut dyn FnMut(&mut Life, usize)) -> Outcome {
    let zeros = || vec![vec![0; BLOCK as usize]; BLOCKS as usize];
    let (state, mut begins, mut requests) = (std::cell::RefCell::new(zeros()), 0, 0);
    let mut fetch = |key: &str, range: Option<Range<u64>>| -> Result<Bytes, Fault> {
        before(life, requests);
        requests += 1;
        life.world.store.get(key, range).map(|(bytes, _)| bytes)
    };
    let mut begin = |_: &Restored, bytes: u64| {
        begins += 1;
        if bytes == 0 {
            state.replace(zeros());
        }
        Ok::<(), RestoreError>(())
    };
    let mut sink = |offset: u64, bytes: &[u8]| {
        for (index, block) in bytes.chunks(BLOCK as usize).enumerate() {
            state.borrow_mut()[(offset / BLOCK) as usize + index] = block.to_vec();
        }
        Ok(())
    };
    let read = Restored::read(&mut fetch, (None, false), &mut begin, &mut sink);
    let end = read.map(|(_, pass)| pass.damaged.len());
    Outcome { end, state: state.into_inner(), begins }
}

fn settled(seed: u64) -> Life {
    let mut life = Life::new(seed);
    life.load(1500);
    life.settle();
    life
}

fn go_on(life: &mut Life) {
    life.load(3000);
    life.settle();
}

/// Goal: a volume that was written while it was restored is restored all the same, as it was at one
/// moment, and no damage is claimed. Method: lives that go on once, before each request there is.
#[test]
fn what_changed_meanwhile_is_read_anew() {
    let mut again = 0;
    for request in 1..12 {
        let mut life = settled(8000 + request as u64);
        let since = life.submitted();
        let outcome = restore(&mut life, &mut |life, number| {
            if number == request {
                go_on(life);
            }
        });
        assert_eq!(outcome.end, Ok(0), "request {request}: {}", life.line);
        let mut counts = since..=life.submitted();
        let is_one = counts.any(|count| life.is_prefix(&outcome.state, count));
        assert!(is_one, "it never was so, request {request}: {}", life.line);
        again += usize::from(outcome.begins > 1);
    }
    assert!(again > 2, "nothing was deleted under a reader: {again}");
}

/// Goal: one answer that was cut or changed on its way is not damage of an object, whichever it is;
/// an object that stays so is. Method: each request of a restore in turn is answered wrong once, in
/// three ways; then all requests for the object that the last one named.
#[test]
fn one_wrong_answer_is_no_damage() {
    let mut life = settled(8100);
    let sound = restore_wrongly(&mut life, &mut |_, _| None);
    assert_eq!(sound.damaged, Ok(0));
    for (at, key) in sound.keys.iter().enumerate() {
        for wrong in [Wrong::Cut, Wrong::Flipped, Wrong::Gone] {
            if (key.as_str(), wrong) == (SUPERBLOCK_KEY, Wrong::Gone) {
                continue;
            }
            let once = restore_wrongly(&mut life, &mut |number, _| (number == at).then_some(wrong));
            assert_eq!(once.damaged, Ok(0), "request {at} for `{key}`, {wrong:?}");
            assert!(once.state == sound.state, "request {at} for `{key}`, {wrong:?}");
        }
    }
    let key = sound.keys.last().expect("a restore asks");
    let stays = restore_wrongly(&mut life, &mut |_, of| (of == key).then_some(Wrong::Flipped));
    assert_ne!(stays.damaged, Ok(0), "`{key}` is damaged");
}

/// How an answer is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Cut,
    Flipped,
    Gone,
}

/// What a restore with wrong answers came to.
struct Wronged {
    damaged: Result<usize, RestoreError>,
    state: Vec<u8>,
    keys: Vec<String>,
}

/// Restores a volume, of which `wrong` says how a request's answer is to be, by number and key.
fn restore_wrongly(
    life: &mut Life,
    wrong: &mut dyn FnMut(usize, &str) -> Option<Wrong>,
) -> Wronged {
    let (mut state, mut keys) = (vec![0; (BLOCK * BLOCKS) as usize], Vec::new());
    let mut fetch = |key: &str, range: Option<Range<u64>>| -> Result<Bytes, Fault> {
        let wrong = wrong(keys.len(), key);
        keys.push(key.to_owned());
        let (bytes, _) = life.world.store.get(key, range)?;
        Ok(match wrong {
            None => bytes,
            Some(Wrong::Cut) => bytes.slice(..bytes.len() / 2),
            Some(Wrong::Gone) => {
                return Err(Fault { kind: FaultKind::NotFound, cause: "gone".to_owned() });
            }
            Some(Wrong::Flipped) => {
                let mut changed = bytes.to_vec();
                let middle = changed.len() / 2;
                changed[middle] ^= 1;
                changed.into()
            }
        })
    };
    let mut begin = |_: &Restored, _: u64| Ok::<(), RestoreError>(());
    let mut sink = |offset: u64, bytes: &[u8]| {
        state[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    let read = Restored::read(&mut fetch, (None, false), &mut begin, &mut sink);
    let damaged = read.map(|(_, pass)| pass.damaged.len());
    Wronged { damaged, state, keys }
}

/// Goal: what was read already is not read again where it lies where it lay; what was written or
/// zeroed meanwhile is as it is by then. Method: a volume whose first half stays and whose second
/// one is overwritten, in part by zeros, between two requests of a restore; bytes and requests.
#[test]
fn what_did_not_change_is_kept() {
    let mut hot = Hot::new();
    for round in 0..3 {
        hot.write(round);
    }
    let (mut image, mut kept, mut fetched) = (vec![0u8; (HOT_BLOCKS * BLOCK) as usize], 0, 0);
    let cell = std::cell::RefCell::new(&mut image);
    let mut begin = |_: &Restored, bytes: u64| {
        kept = bytes;
        if bytes == 0 {
            cell.borrow_mut().fill(0);
        }
        Ok::<(), RestoreError>(())
    };
    let (mut segments, mut last_round) = (0, 2);
    let mut fetch = |key: &str, range: Option<Range<u64>>| -> Result<Bytes, Fault> {
        // Heads are read first; then come the first half's segments.
        let is_data = key.starts_with("segments/") && range.as_ref().is_some_and(|r| r.start > 0);
        segments += usize::from(is_data);
        while is_data && segments == 6 && last_round < 9 {
            last_round += 1;
            hot.write(last_round);
        }
        let got = hot.world.store.get(key, range).map(|(bytes, _)| bytes);
        fetched += got.as_ref().map_or(0, |bytes| bytes.len() as u64);
        got
    };
    let mut sink = |offset: u64, bytes: &[u8]| {
        let at = offset as usize;
        cell.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    let read = Restored::read(&mut fetch, (None, false), &mut begin, &mut sink);
    let (_, pass) = read.expect("it changed once");
    assert_eq!((last_round, pass.damaged.len()), (9, 0));
    assert!(kept >= HOT_BLOCKS / 2 * BLOCK, "{kept} bytes were kept");
    assert!(fetched < 2 * HOT_BLOCKS * BLOCK, "{fetched} bytes were fetched");
    for block in 0..HOT_BLOCKS {
        let at = (block * BLOCK) as usize;
        assert!(image[at..at + BLOCK as usize] == hot_contents(block, 9), "block {block}");
    }
}

const HOT_BLOCKS: u64 = 1024;

/// A volume whose first half is written once; of its second half every third block becomes zeros
/// in each odd round, and all others are written.
struct Hot {
    world: World,
    volume: Volume<Vec<u8>>,
    now: Nanos,
    token: u64,
}

fn hot_contents(block: u64, round: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    let is_cold = block < HOT_BLOCKS / 2;
    if is_cold || round.is_multiple_of(2) || !block.is_multiple_of(3) {
        Rng::new(block << 8 | if is_cold { 0 } else { round }).fill(&mut bytes);
    }
    bytes
}

impl Hot {
    fn new() -> Hot {
        let limits = Limits { segment_bytes: 512 << 10, ..plan(NODE).limits };
        let size_bytes = HOT_BLOCKS * BLOCK;
        let plan = Plan { size_bytes, compression: Compression::None, limits, ..plan(NODE) };
        let mut world = World::new(9, Disks::new(8 << 20, create(&plan, 8 << 20, 9)));
        let mut volume = open(&mut world, plan, Nanos::ZERO);
        volume.set_draining(true);
        Hot { world, volume, now: Nanos::ZERO, token: 0 }
    }

    fn call(&mut self, operation: BackingOperation<Vec<u8>>) {
        self.token += 1;
        self.volume.submit(self.token, operation);
    }

    fn write(&mut self, round: u64) {
        let first = if round == 0 { 0 } else { HOT_BLOCKS / 2 };
        for block in first..HOT_BLOCKS {
            let (offset, buffer) = (block * BLOCK, hot_contents(block, round));
            match buffer.iter().all(|byte| *byte == 0) {
                true => self.call(BackingOperation::Zero {
                    offset,
                    length: BLOCK,
                    keep_allocated: false,
                }),
                false => self.call(BackingOperation::Write { offset, buffer, durable: false }),
            }
            if block % 64 == 63 {
                self.call(BackingOperation::Sync);
                settle(&mut self.world, &mut self.volume, &mut self.now);
            }
        }
    }
}

/// Goal: a restore that never gets to its end says why, and no more often than its bound. Method: a
/// life that goes on before every few requests.
#[test]
fn a_restore_gives_up_on_what_always_changes() {
    let mut life = settled(8100);
    let outcome = restore(&mut life, &mut |life, number| {
        if number % 4 == 3 {
            go_on(life);
        }
    });
    assert_eq!(outcome.end, Err(RestoreError::Changing), "{}", life.line);
    assert!(outcome.begins <= READS_MAX, "{}", outcome.begins);
}

/// Goal: a restore beside a node that puts segments faster than they are downloaded ends, with what
/// there was when it began and not less than the superblock names. Method: a download takes time by
/// its bytes, in which the node goes on; a restore of the few segments at its beginning, beside a
/// bound on its requests.
#[test]
fn a_node_that_uploads_faster_can_be_restored_from() {
    const REQUESTS_MAX: usize = 100;
    let mut beyond = 0;
    for seed in 8700..8720 {
        let mut life = uploading(seed);
        let begun = superblock_of(&life).expect("it was put");
        let before = life.submitted();
        let (mut step, mut requests) = (0, 0);
        let mut fetch = |key: &str, range: Option<Range<u64>>| -> Result<Bytes, Fault> {
            requests += 1;
            assert!(requests < REQUESTS_MAX, "it never ends, seed {seed}");
            let got = life.world.store.get(key, range).map(|(bytes, _)| bytes);
            let length = got.as_ref().map_or(0, |bytes| bytes.len() as u64);
            for _ in 0..=length / DOWNLOAD_BYTES {
                upload(&mut life, step);
                step += 1;
            }
            got
        };
        let mut state = vec![vec![0; BLOCK as usize]; BLOCKS as usize];
        let mut sink = |offset: u64, bytes: &[u8]| {
            for (index, block) in bytes.chunks(BLOCK as usize).enumerate() {
                state[(offset / BLOCK) as usize + index] = block.to_vec();
            }
            Ok(())
        };
        let mut begin = |_: &Restored, _: u64| Ok::<(), RestoreError>(());
        let read = Restored::read(&mut fetch, (None, false), &mut begin, &mut sink);
        let (restored, pass) = read.unwrap_or_else(|error| panic!("{error}, seed {seed}"));
        assert_eq!((restored.superblock, pass.damaged.len()), (begun, 0), "seed {seed}");
        beyond += restored.segments_beyond;
        let mut counts = 0..=life.submitted();
        assert!(counts.any(|count| life.is_prefix(&state, count)), "no prefix, seed {seed}");
        assert!(life.submitted() > before + 100, "the node went on, seed {seed}");
    }
    assert!(beyond > 20, "{beyond} segments that no superblock named were restored");
}

/// Goal: what is missing of a volume that nobody writes is damage, and said at once. Method: a
/// segment removed from a settled store.
#[test]
fn missing_objects_are_damage() {
    let mut life = settled(8200);
    let live = |key: &&String| key.starts_with("segments/");
    let keys: Vec<String> = life.world.store.objects.keys().filter(live).cloned().collect();
    let begins: Vec<usize> = keys
        .iter()
        .filter_map(|key| {
            let object = life.world.store.objects.remove(key).expect("it was listed");
            let outcome = restore(&mut life, &mut |_, _| ());
            life.world.store.objects.insert(key.clone(), object);
            // One that the superblock names and that holds nothing any more is not looked for, and
            // one whose index is needed makes all unreadable.
            outcome.end.is_ok_and(|damaged| damaged > 0).then_some(outcome.begins)
        })
        .collect();
    assert!(!begins.is_empty() && begins.iter().all(|begins| *begins == 1), "{begins:?}");
}

/// Goal: what lies behind the end of an object that was cut off is damage, named with its object,
/// and all else is restored. Method: each segment of a settled store cut to ten bytes, and emptied.
#[test]
fn shorter_objects_are_damage() {
    let mut life = settled(8250);
    let whole = restore(&mut life, &mut |_, _| ());
    let live = |key: &&String| key.starts_with("segments/");
    let keys: Vec<String> = life.world.store.objects.keys().filter(live).cloned().collect();
    let mut damaged = 0;
    for (key, bytes) in keys.iter().flat_map(|key| [(key, 0), (key, 10)]) {
        let object = life.world.store.objects[key].clone();
        life.world.store.objects.get_mut(key).expect("it was listed").0 = object.0.slice(..bytes);
        let outcome = restore(&mut life, &mut |_, _| ());
        life.world.store.objects.insert(key.clone(), object);
        match outcome.end {
            Ok(0) => assert!(outcome.state == whole.state, "{key}"),
            Ok(_) => {
                let blocks = outcome.state.iter().zip(&whole.state);
                let mut other = blocks.filter(|(is, was)| is != was);
                assert!(other.all(|(is, _)| is.iter().all(|byte| *byte == 0)), "{key}");
                damaged += 1;
            }
            // Its index is needed.
            Err(RestoreError::Damaged(named)) => assert_eq!(named, *key),
            Err(error) => panic!("{key}: {error}"),
        }
    }
    assert!(damaged > 2, "{damaged}");
}

/// Goal: another volume's objects do not pass for this one's, by whatever key. Method: two volumes
/// of the same history, whose checkpoint, snapshot's map and segments are put in each other's
/// place, one at a time; each restore names the object, and so does the node that opens the volume.
#[test]
fn objects_of_another_volume_are_damage() {
    let mut met = 0;
    for seed in 71..81 {
        let own = settled(seed);
        let mut other = settled(seed);
        let keys: Vec<String> = own.world.store.objects.keys().cloned().collect();
        for object in other.world.store.objects.values_mut() {
            object.0 = renamed(&object.0);
        }
        for key in keys.iter().filter(|key| !key.starts_with("superblock")) {
            let mut store = own.world.store.clone();
            let foreign = other.world.store.objects[key].clone();
            store.objects.insert(key.clone(), foreign);
            let mut fetch = |key: &str, range| store.get(key, range).map(|(bytes, _)| bytes);
            match Restored::open(&mut fetch) {
                Err(RestoreError::Damaged(named)) => {
                    assert_eq!(named, *key);
                    met += 1;
                }
                // A segment that the checkpoint has is read by the map's own checksums.
                found => drop(found.expect("nothing else is wrong")),
            }
        }
    }
    assert!(met > 20, "{met}");
}

/// An object as another volume would have written it.
fn renamed(bytes: &Bytes) -> Bytes {
    use crate::map::{CloudMap, MapImage};
    use crate::segment::{Index, VolumeUuid};
    let volume = VolumeUuid([9; 16]);
    if let Some(mut map) = CloudMap::decode(bytes) {
        map.volume = volume;
        return MapImage(std::sync::Arc::new(map)).encode().into();
    }
    let Some(index) = Index::decode(bytes) else { return bytes.clone() };
    let (old, mut new) = (index.encode(), Index { volume, ..index }.encode());
    new.extend_from_slice(&bytes[old.len()..]);
    new.into()
}

/// Replaces a settled volume's superblock in its store.
fn with_superblock(seed: u64, change: impl Fn(&mut Superblock)) -> Life {
    let mut life = settled(seed);
    let (bytes, version) = life.world.store.objects[SUPERBLOCK_KEY].clone();
    let mut superblock = Superblock::decode(&bytes).expect("it is whole");
    change(&mut superblock);
    let bytes = superblock.encode().into();
    life.world.store.objects.insert(SUPERBLOCK_KEY.to_owned(), (bytes, version));
    life
}

/// Goal: a restore writes nothing behind the volume's end, whatever the store maps there. Method: a
/// superblock that says less than the map has, in whole blocks and not; what the sink gets.
#[test]
fn nothing_is_restored_behind_the_end() {
    for size_bytes in [10 * BLOCK, 10 * BLOCK + 512] {
        let life = with_superblock(8100, |block| block.size_bytes = size_bytes);
        let mut fetch = |key: &str, range: Option<Range<u64>>| -> Result<Bytes, Fault> {
            life.world.store.get(key, range).map(|(bytes, _)| bytes)
        };
        let restored = Restored::find(&mut fetch, None, false).expect("it is whole");
        let mut end = 0;
        let mut sink = |offset: u64, bytes: &[u8]| {
            end = end.max(offset + bytes.len() as u64);
            Ok(())
        };
        restored.copy(&mut fetch, &mut sink).expect("the store answers");
        assert!(end > 8 * BLOCK && end <= size_bytes, "{end} bytes of {size_bytes}");
    }
}

/// Goal: a superblock that does not say who wrote the segments that it has is damage, and no volume
/// without them. Method: its epochs and its checkpoint taken away.
#[test]
fn a_superblock_without_epochs_is_damage() {
    let mut life = with_superblock(8101, |block| {
        block.epochs.clear();
        block.checkpoint = None;
    });
    let end = restore(&mut life, &mut |_, _| ()).end;
    assert_eq!(end, Err(RestoreError::Damaged(SUPERBLOCK_KEY.to_owned())));
}
