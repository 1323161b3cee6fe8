//! Starts of the node: what it is told, and older copies of its levels that it has to refuse.
//!
//! How: the world keeps, as the node's directory does, how far each level had come at the last
//! start. In some restarts a copy of a level is kept, and at a later one it is put in the level's
//! place: the node has to refuse it, and starts when the right one is back.
//! Invariant: no start on an older copy succeeds. Cost: a copy of a disk now and then.
//! Not for: worlds whose disks lie or rot, where any level may be older than it should be.

use super::{World, describe};
use crate::plan::{BLOCK, Disk, VOLUMES};
use crate::plan::{client_memory_of, discards_of, schedule_of};
use layby_cache::VolumeSpec;
use layby_engine::control::{BackingPlan, Command, VolumePlan};
use layby_engine::core::{Notice, WearPlan};
use layby_engine::io::{Image, IoChoice, PowerCut};
use layby_engine::store::{Reached, StoreError};
use layby_engine::{LevelPart, Shard, ShardPlan, StartError};
use layby_frontend::nbd::NbdSession;
use layby_types::{ClassId, Nanos, Rng, VolumeId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

/// Starts that power cuts may interrupt in a row.
const STARTS_MAX: u32 = 4;
/// One of so many restarts keeps a copy of a level.
const KEPT_IN: u64 = 16;
/// Tells that chance from a run's others.
const KEEPING: u64 = 0x01de_0000_0000_0000;

/// What the node's directory knows of levels, and a copy of one.
#[derive(Default)]
pub(super) struct Levels {
    /// How far each had come, by its number.
    reached: [Option<Reached>; 3],
    copy: Option<Copy>,
}

/// A level as it was before a start.
struct Copy {
    disk: Disk,
    image: Image,
    /// How far it had come by then, as far as the node knew.
    reached: Option<Reached>,
}

/// The number of a level that is on a disk.
fn number(disk: Disk) -> usize {
    if disk == Disk::Nvm { 1 } else { 2 }
}

impl World<'_> {
    pub(super) fn plan(&self, is_new: bool) -> ShardPlan {
        let shape = &self.life.shape;
        let part = |name: &str, path: Option<Disk>, length| LevelPart {
            name: name.to_owned(),
            known: path.and_then(|disk| self.levels.reached[number(disk)]),
            path: path.map(|disk| disk.name().into()),
            base: 0,
            length,
            level_length: length,
            segments: shape.segments,
            wear: WearPlan::default(),
            budget: None,
            is_absent: false,
            cipher: path.and_then(|disk| self.life.cipher(disk)),
        };
        let memory = u64::from(shape.spec.levels[0].slots) * BLOCK;
        let volume = |index: usize| VolumePlan {
            spec: self.volume_spec(index),
            backing: match &self.homes[index] {
                Some(home) => BackingPlan::Remote(Arc::new(home.clone())),
                None => BackingPlan::File { path: Disk::Home(index).name().into(), create: false },
            },
            is_clean: self.catalog.is_clean(index),
            is_read_only: false,
        };
        ShardPlan {
            index: 0,
            count: 1,
            cpu: None,
            io: IoChoice::Auto,
            node: [7; 16],
            spec: shape.spec.clone(),
            levels: vec![
                part("dram", None, memory),
                part("nvm", Some(Disk::Nvm), shape.nvm_bytes),
                part("ssd", Some(Disk::Ssd), shape.ssd_bytes),
            ],
            volumes: (0..VOLUMES)
                .filter(|index| !self.guests.is_removed(*index))
                .map(volume)
                .collect(),
            is_new,
            is_strict: false,
            simulate_power_loss: false,
            home_delay: Nanos::ZERO,
            io_timeout: self.life.io_timeout(),
            nice: 0,
            schedule: schedule_of(self.life.seed),
            client_memory: client_memory_of(self.life.seed),
            home_budget: None,
            lock: None,
        }
    }

    pub(super) fn volume_spec(&self, index: usize) -> VolumeSpec {
        let shape = &self.life.shape;
        VolumeSpec {
            id: VolumeId(index as u32),
            class: ClassId(index as u8),
            length: self.lengths.of(index),
            shares: shape.shares[index],
            write_through: shape.through[index],
        }
    }

    /// Starts the node, again where the power fails meanwhile.
    pub(super) fn start(&mut self, is_new: bool) -> Result<(), String> {
        let plan = self.plan(is_new);
        let mut may_fail = self.fail_start();
        for _ in 0..STARTS_MAX {
            let (sender, receiver): (_, Receiver<Command<NbdSession>>) = channel();
            let host = self.host.clone();
            let heard = self.notices.clone();
            let hear = self.catalog.hear();
            let notices = Box::new(move |notice: Notice| {
                hear(&notice);
                heard.lock().expect("one thread").push(notice);
            });
            let seed = self.life.seed;
            let start = || Shard::start(host, &plan, seed, receiver, notices);
            match catch_unwind(AssertUnwindSafe(start)) {
                Ok(Ok((node, report))) => {
                    self.note(|| format!("started: {report:?}"));
                    for (level, reached) in &report.reached {
                        self.levels.reached[*level] = Some(*reached);
                    }
                    (self.node, self.commands) = (Some(node), sender);
                    let discards = discards_of(self.life.seed);
                    self.command(Command::SetDiscards(discards, Box::new(drop)));
                    return Ok(());
                }
                Ok(Err(error)) if may_fail => {
                    // The fault is over, and the next start goes on from there.
                    self.note(|| format!("the start fails: {error}"));
                    self.tally.starts_failed += 1;
                    self.lose_power(self.life.shape.crash);
                    may_fail = false;
                }
                Ok(Err(error)) if self.has_failed => {
                    self.note(|| format!("the start is refused: {error}"));
                    self.tally.refused += 1;
                    self.is_over = true;
                    return Ok(());
                }
                Ok(Err(error)) => return Err(format!("the node does not start: {error}")),
                Err(payload) if payload.is::<PowerCut>() => {
                    self.note(|| "the power fails during recovery".to_owned());
                    self.tally.cuts_in_recovery += 1;
                    self.lose_power(self.life.shape.crash);
                }
                Err(payload) => return Err(describe(payload.as_ref())),
            }
        }
        Err("each start is cut short".to_owned())
    }

    /// An older copy of a level in its place, where there is one; else one is kept, now and then.
    pub(super) fn start_on_an_older_level(&mut self) -> Result<(), String> {
        let mut rng = Rng::new(self.life.seed ^ KEEPING ^ self.tally.cuts << 8);
        let Some(copy) = self.levels.copy.take().filter(|_| !self.is_tolerant) else {
            if rng.chance(1, KEPT_IN) {
                self.keep_copy(if rng.chance(1, 2) { Disk::Nvm } else { Disk::Ssd });
            }
            return Ok(());
        };
        if self.levels.reached[number(copy.disk)] == copy.reached {
            // No start has succeeded since.
            self.levels.copy = Some(copy);
            return Ok(());
        }
        let Copy { disk, image, .. } = copy;
        let right = self.exchange(disk, image);
        let (plan, host, seed) = (self.plan(false), self.host.clone(), self.life.seed);
        let (_, receiver): (_, Receiver<Command<NbdSession>>) = channel();
        let start = || Shard::start(host, &plan, seed, receiver, Box::new(|_: Notice| ()));
        let started = catch_unwind(AssertUnwindSafe(start));
        let outcome = match started {
            Ok(Err(StartError::Level { error: StoreError::Older { .. }, .. })) => Ok(()),
            Ok(Err(error)) => Err(format!("an older {} is refused as: {error}", disk.name())),
            Ok(Ok(_)) => Err(format!("the node starts on an older copy of {}", disk.name())),
            Err(payload) if payload.is::<PowerCut>() => Ok(()),
            Err(payload) => Err(describe(payload.as_ref())),
        };
        self.lose_power(self.life.shape.crash);
        self.exchange(disk, right);
        self.tally.older += u64::from(outcome.is_ok());
        outcome
    }

    fn keep_copy(&mut self, disk: Disk) {
        let mut machine = self.host.machine();
        let there = machine.attach_disk(&disk.name()).expect("a node has its disks");
        let (image, reached) = (machine.image(there), self.levels.reached[number(disk)]);
        self.levels.copy = Some(Copy { disk, image, reached });
    }

    /// Puts an image on a disk, and answers with what was there.
    fn exchange(&mut self, disk: Disk, image: Image) -> Image {
        let mut machine = self.host.machine();
        let there = machine.attach_disk(&disk.name()).expect("a node has its disks");
        let before = machine.image(there);
        machine.put_image(there, image);
        before
    }
}
