//! Volumes that are taken: from a node that never rests, and by a take that broke off.

use super::lives::{BLOCK, BLOCKS, JOURNAL, Life, NODE, open, plan};
use crate::segment::{Compression, VolumeUuid};
use crate::simulated::{SimDisks as Disks, SimFaults, SimWorld as World};
use crate::superblock::{SUPERBLOCK_KEY, Superblock};
use crate::volume::{Link, Plan, Volume, create, is_settled};
use layby_types::{BackingDone, BackingOperation, Nanos};

const OTHER: VolumeUuid = VolumeUuid([8; 16]);

/// A node that takes a volume from one that goes on writing.
struct Taking {
    world: World,
    volume: Volume<Vec<u8>>,
}

impl Taking {
    /// Begins beside `life`, with requests that take up to `patience` steps.
    fn begin(life: &Life, seed: u64, patience: u64) -> Taking {
        let plan = Plan { takeover: true, ..plan(OTHER) };
        let disks = Disks::new(JOURNAL, create(&plan, JOURNAL, seed));
        let mut world = World::new(seed, disks);
        world.patience = patience;
        let mut volume = open(&mut world, plan, life.now);
        let buffer = vec![0; (BLOCKS * BLOCK) as usize];
        volume.submit(1, BackingOperation::Read { offset: 0, buffer });
        Taking { world, volume }
    }

    /// Does one thing at the store of `life`.
    fn step(&mut self, life: &mut Life) {
        std::mem::swap(&mut self.world.store, &mut life.world.store);
        self.world.take(self.volume.take_actions());
        let end = self.world.step();
        std::mem::swap(&mut self.world.store, &mut life.world.store);
        end.into_iter().for_each(|(id, end)| self.volume.on_end(id, end));
        self.volume.on_tick(life.now);
    }
}

impl Life {
    /// The node that serves the volume takes a few turns, at the same moment.
    pub(super) fn go_on(&mut self) {
        for _ in 0..3 {
            self.volume.on_tick(self.now);
            let actions = self.volume.take_actions();
            self.world.take(actions);
            let end = self.world.step();
            end.into_iter().for_each(|(id, end)| self.volume.on_end(id, end));
        }
    }
}

/// The node that serves a volume does one thing, a tenth of a millisecond later.
fn serve(life: &mut Life) {
    life.now = life.now.saturating_add(Nanos::from_micros(100));
    life.go_on();
    while life.volume.poll().is_some() {}
}

fn superblock(life: &Life) -> (Superblock, u64) {
    let (bytes, version) = &life.world.store.objects[SUPERBLOCK_KEY];
    (Superblock::decode(bytes).expect("it is whole"), *version)
}

pub(super) fn superblock_of(life: &Life) -> Option<Superblock> {
    let (bytes, _) = life.world.store.objects.get(SUPERBLOCK_KEY)?;
    Superblock::decode(bytes)
}

/// What the taking node read is a prefix of the history, and the volume is its.
fn is_taken_whole(life: &Life, next: &Taking, done: BackingDone<Vec<u8>>, seed: u64) {
    assert_eq!(done.result, Ok(()), "seed {seed}: {:?}", next.volume.status().link);
    let bytes = done.buffer.expect("a read's buffer comes back");
    let state: Vec<_> = bytes.chunks(BLOCK as usize).map(<[u8]>::to_vec).collect();
    let mut counts = 0..=life.submitted();
    assert!(counts.any(|count| life.is_prefix(&state, count)), "no prefix, seed {seed}");
    assert_eq!(superblock(life).0.node, OTHER.to_string(), "seed {seed}");
}

/// Goal: a volume is taken from a node that writes without end, also over a link on which learning
/// the volume takes longer than the node's pause between two superblocks: what was learned is kept.
/// Method: requests that take longer than that pause on average; superblocks of the first node are
/// counted until the second one has read all.
#[test]
fn a_node_that_never_rests_can_be_taken_from() {
    const SUPERBLOCKS_MAX: u32 = 30;
    for seed in 8200..8230 {
        let mut life = Life::new(seed);
        life.load(600);
        life.volume.set_dirty_age_max(Nanos::from_millis(50));
        let mut next = Taking::begin(&life, seed, 160);
        let (mut superblocks, mut version, mut step) = (0, superblock(&life).1, 0);
        let done = loop {
            next.step(&mut life);
            if step % 200 == 0 {
                life.write();
            }
            step += 1;
            serve(&mut life);
            if let Some(done) = next.volume.poll() {
                break done;
            }
            let now = superblock(&life).1;
            superblocks += u32::from(std::mem::replace(&mut version, now) != now);
            assert!(superblocks < SUPERBLOCKS_MAX, "it never opens, seed {seed}, step {step}");
        };
        is_taken_whole(&life, &next, done, seed);
    }
}

/// Steps of a test between two writes of a node that writes without end.
const WRITE_STEPS: u64 = 8;
/// Bytes that a taking node downloads in a step: a whole segment takes longer than the other node
/// takes to put the next one, and the head of one less.
pub(super) const DOWNLOAD_BYTES: u64 = 1 << 10;

/// A node that puts several large segments between two superblocks, and cleans none. It has put
/// some that no superblock names.
pub(super) fn uploading(seed: u64) -> Life {
    const JOURNAL_LARGE: u64 = 16 << 20;
    let mut life = Life::new(seed);
    let mut plan = plan(NODE);
    plan.compression = Compression::None;
    plan.limits.segment_bytes = 320 << 10;
    plan.limits.dirty_age_max = Nanos::from_secs(10);
    plan.limits.commit_interval = Nanos::from_millis(80);
    plan.limits.checkpoint_segments = u32::MAX;
    plan.limits.amplification_percent_max = u32::MAX;
    life.world.disks = Disks::new(JOURNAL_LARGE, create(&plan, JOURNAL_LARGE, seed));
    life.volume = open(&mut life.world, plan, life.now);
    let has_put = (0..10_000).any(|step| {
        upload(&mut life, step);
        superblock_of(&life).is_some_and(|block| block.committed > 0)
            && life.world.store.unnamed().len() > 1
    });
    assert!(has_put, "seed {seed}");
    life
}

/// The node writes now and then, and does one thing.
pub(super) fn upload(life: &mut Life, step: u64) {
    if step.is_multiple_of(WRITE_STEPS) {
        life.write();
    }
    serve(life);
}

/// Goal: a volume is taken from a node that puts segments faster than the taking node downloads
/// them: reading whole what no superblock names would never end. Method: a download takes time by
/// its bytes; superblocks of the first node are counted until the second one has read all.
#[test]
fn a_node_that_uploads_faster_can_be_taken_from() {
    const SUPERBLOCKS_MAX: u32 = 12;
    for seed in 8500..8520 {
        let mut life = uploading(seed);
        let mut next = Taking::begin(&life, seed, 0);
        next.world.download_bytes = DOWNLOAD_BYTES;
        let (mut superblocks, mut version, mut step) = (0, superblock(&life).1, 0);
        let done = loop {
            next.step(&mut life);
            upload(&mut life, step);
            step += 1;
            if let Some(done) = next.volume.poll() {
                break done;
            }
            let now = superblock(&life).1;
            superblocks += u32::from(std::mem::replace(&mut version, now) != now);
            let learned = next.volume.map().number;
            assert!(
                superblocks < SUPERBLOCKS_MAX,
                "it never opens, seed {seed}, step {step}, segment {learned} of {}",
                life.volume.map().number
            );
        };
        is_taken_whole(&life, &next, done, seed);
    }
}

/// Goal: a segment that no superblock names and that is damaged is not the taken volume's, whether
/// the node that put it went on while the other one learned, or not; from one that died the volume
/// is taken up to the last segment that is whole. Method: after any number of superblocks a segment
/// is damaged that the taking node does not know yet, and the first node does nothing more.
#[test]
fn what_a_live_node_put_damaged_is_not_taken() {
    let (mut counts, mut not_followed) = ([0; 3], 0);
    for seed in 8600..8660 {
        let mut life = uploading(seed);
        let mut next = Taking::begin(&life, seed, 0);
        next.world.download_bytes = DOWNLOAD_BYTES;
        let (superblocks_max, mut superblocks) = (seed as usize % counts.len(), 0);
        let (mut version, mut damaged) = (superblock(&life).1, None);
        let done = (0..20_000).find_map(|step| {
            next.step(&mut life);
            if damaged.is_none() {
                upload(&mut life, step);
                let now = superblock(&life).1;
                superblocks += usize::from(std::mem::replace(&mut version, now) != now);
                if superblocks == superblocks_max {
                    damaged = damage_unlearned(&mut life, next.volume.map().number);
                }
            } else {
                life.now = life.now.saturating_add(Nanos::from_micros(100));
            }
            next.volume.poll()
        });
        let done = done.unwrap_or_else(|| panic!("it never opens, seed {seed}"));
        is_taken_whole(&life, &next, done, seed);
        let Some(damaged) = damaged else { continue };
        counts[superblocks] += 1;
        let block = superblock(&life).0;
        assert!(block.segment(damaged).is_some_and(|name| name.epoch == block.epoch), "{block:?}");
        if superblocks < 2 {
            assert_eq!(first_of(&block), damaged, "what is whole is taken, seed {seed}");
        }
        not_followed += u32::from(first_of(&block) < damaged);
    }
    assert!(
        counts.iter().all(|count| *count > 4) && not_followed > 4,
        "{counts:?}, {not_followed}"
    );
}

/// The first segment of the session that has the volume.
fn first_of(block: &Superblock) -> u64 {
    block.epochs.last().expect("a session is there").first
}

/// Damages the last segment that no superblock names and that the taking node does not know, of
/// those that follow each other, where there are two; answers its number.
fn damage_unlearned(life: &mut Life, learned: u64) -> Option<u64> {
    let (block, _) = superblock(life);
    let from = learned.max(block.committed) + 1;
    let objects = &mut life.world.store.objects;
    let key = |number| block.segment(number).expect("a session is there").key();
    let last = (from..).take_while(|number| objects.contains_key(&key(*number))).last();
    let last = last.filter(|last| *last > from)?;
    let (bytes, _) = objects.get_mut(&key(last)).expect("it was just seen");
    let mut changed = bytes.to_vec();
    *changed.last_mut().expect("it has bytes") ^= 1;
    *bytes = changed.into();
    Some(last)
}

/// Goal: nothing that was learned of one session stays where another one has the volume by the next
/// answer. Method: the first node is cut off once the second one has learned a segment that the
/// first does not know in the store yet, and puts another one in its place before the second one
/// goes on.
#[test]
fn what_another_session_said_is_forgotten() {
    let mut cut = 0;
    for seed in 8300..8400 {
        let mut life = Life::new(seed);
        life.load(400);
        // So that it has segments in the store whose puts it repeats.
        life.world.faults = SimFaults { lost_replies: 30, ..SimFaults::default() };
        let mut next = Taking::begin(&life, seed, 20);
        let mut is_cut = false;
        let done = (0..20_000).find_map(|step| {
            next.step(&mut life);
            if step % 20 == 0 && life.volume.status().link == Link::Up {
                life.write();
            }
            let is_ahead = next.volume.map().number > life.volume.map().number;
            if is_ahead && !is_cut && superblock(&life).0.node == NODE.to_string() {
                is_cut = true;
                life.crash();
                life.load(200);
            }
            serve(&mut life);
            next.volume.poll()
        });
        cut += u32::from(is_cut);
        let done = done.expect("a read ends");
        assert_eq!(done.result, Ok(()), "seed {seed}: {:?}", next.volume.status().link);
        let bytes = done.buffer.expect("a read's buffer comes back");
        let state: Vec<_> = bytes.chunks(BLOCK as usize).map(<[u8]>::to_vec).collect();
        let mut counts = 0..=life.submitted();
        assert!(counts.any(|count| life.is_prefix(&state, count)), "no prefix, seed {seed}");
    }
    assert!(cut > 33, "the first node was cut off in {cut} of 100 lives");
}

/// Goal: a take that broke off after its claim goes on, unless another session has served the
/// volume since: then it takes nothing. Method: a power cut right behind the claim's put; the first
/// node takes the volume back, or does not; the second one starts, still told to take it.
#[test]
fn a_take_that_broke_off_takes_nothing_back() {
    let mut broken = 0;
    for seed in 8400..8460 {
        let mut life = Life::new(seed);
        life.load(300);
        life.settle();
        life.stop();
        life.take_over(OTHER);
        let is_put = (0..4000).any(|_| {
            life.tick();
            superblock(&life).0.node == OTHER.to_string()
        });
        assert!(is_put, "seed {seed}");
        life.stop();
        if is_settled(&life.world.disks.map_file) {
            continue;
        }
        broken += 1;
        let disks = life.world.disks.clone();
        let is_taken_back = seed % 2 == 0;
        if is_taken_back {
            life.take_over(NODE);
            life.settle();
            life.stop();
        }
        let before = superblock(&life);
        life.world.disks = disks;
        life.open_told_to_take(OTHER);
        if !is_taken_back {
            life.settle();
            continue;
        }
        (0..2000).for_each(|_| life.tick());
        assert_eq!(superblock(&life), before, "it takes the volume back, seed {seed}");
        assert!(life.volume.is_taken(), "seed {seed}");
        let Link::Lost(why) = life.volume.status().link else { panic!("it is") };
        assert!(why.contains("broke off"), "{why}");
    }
    assert!(broken > 30, "{broken} of 60 broke off");
}
