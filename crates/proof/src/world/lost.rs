//! What a node that lost a level would rest on: write intents, and the write-back without levels.
//!
//! How: the world keeps the catalog's write intents, durable as soon as they are taken down. After
//! a power loss the bytes of each clean volume's backing store are held against the oracle, without
//! the node; in some runs the NVM level is taken for lost, and what the log has of the volumes
//! that do not use it is written back and held against the oracle, too.
//! Invariant: what a client was promised of a clean volume is in its backing store alone. The
//! write-back changes no level, so that the start behind it recovers all.
//! Cost: a read of the simulated disks. Not for: disks whose silent corruption a level would catch.

use super::{World, block_cells, describe};
use crate::plan::{BLOCK, Disk, VOLUMES};
use layby_engine::ShardPlan;
use layby_engine::control::{Command, CommandError};
use layby_engine::core::{Damage, Notice, WrittenBack};
use layby_engine::io::PowerCut;
use layby_engine::write_back_on;
use layby_types::{ErrorKind, Rng, VolumeId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// The level that is taken for lost.
const NVM: usize = 1;

/// In one of so many runs intents are refused now and then.
const REFUSING_LIVES: u64 = 8;
/// Tells that chance from a run's others.
const REFUSING: u64 = 0x1a7e_0000_0000_0000;

/// In one of so many runs the node hears late that an intent is recorded.
const LATE_LIVES: u64 = 4;
/// Tells that chance from a run's others.
const LATE: u64 = 0x1a7e_0001_0000_0000;

/// What the node said of write intents, in its order: a volume whose intent is wanted, or that is
/// clean, and how often its intent had been recorded when that was asked.
type Said = Arc<Mutex<Vec<(VolumeId, Option<u64>)>>>;

/// The catalog's part of write intents.
#[derive(Default)]
pub(super) struct Catalog {
    clean: [bool; VOLUMES],
    /// How often each intent was recorded: what was recorded since is not removed.
    stamps: [u64; VOLUMES],
    said: Said,
    /// Volumes whose intent was refused once.
    refused: [bool; VOLUMES],
    /// Chance for a disk that takes no intents now and then, in some runs.
    refusing: Option<Rng>,
    /// Chance for intents that are recorded a while before the node hears of it, in some runs.
    lateness: Option<Rng>,
    /// Volumes of which the node is to hear that.
    late: Vec<VolumeId>,
}

impl Catalog {
    /// Volumes that are made now are clean, but those in object stores, which no level holds.
    pub(super) fn new(remote: [bool; VOLUMES], seed: u64) -> Catalog {
        let mut rng = Rng::new(seed ^ REFUSING);
        let refusing = rng.chance(1, REFUSING_LIVES).then_some(rng);
        let clean = remote.map(|is_remote| !is_remote);
        let mut rng = Rng::new(seed ^ LATE);
        let lateness = rng.chance(1, LATE_LIVES).then_some(rng);
        Catalog { clean, refusing, lateness, ..Catalog::default() }
    }

    /// Whether changes of the volume may have failed for want of an intent.
    pub(super) fn has_refused(&self, volume: usize) -> bool {
        self.refused[volume]
    }

    /// Whether the disk takes no intent this time.
    fn refuses(&mut self) -> bool {
        self.refusing.as_mut().is_some_and(|rng| rng.chance(3, 4))
    }

    /// Whether the node hears later of what is so now.
    fn is_late(&mut self) -> bool {
        self.lateness.as_mut().is_some_and(|rng| rng.chance(3, 4))
    }

    pub(super) fn is_clean(&self, volume: usize) -> bool {
        self.clean[volume]
    }

    /// What takes the node's notices down.
    pub(super) fn hear(&self) -> impl Fn(&Notice) + Send + use<> {
        let said = Arc::clone(&self.said);
        move |notice| {
            if let Notice::IntentWanted { volume } = notice {
                said.lock().expect("one thread").push((*volume, None));
            }
        }
    }

    /// Asks the node to make a volume clean.
    pub(super) fn clean<S>(&self, volume: usize) -> Command<S> {
        let stamp = self.stamps[volume];
        let (said, volume) = (Arc::clone(&self.said), VolumeId(volume as u32));
        let answer = move |result: Result<bool, CommandError>| {
            if result == Ok(true) {
                said.lock().expect("one thread").push((volume, Some(stamp)));
            }
        };
        Command::Clean(volume, Box::new(answer))
    }
}

impl World<'_> {
    /// Takes down what the node said of write intents, and tells it.
    pub(super) fn take_intents(&mut self) {
        for volume in std::mem::take(&mut self.catalog.late) {
            match self.catalog.is_late() {
                true => self.catalog.late.push(volume),
                false => self.command(Command::RecordIntent(volume, Box::new(drop))),
            }
        }
        let said = std::mem::take(&mut *self.catalog.said.lock().expect("one thread"));
        for (volume, clean) in said {
            let index = volume.0 as usize;
            if let Some(stamp) = clean {
                self.catalog.clean[index] |= self.catalog.stamps[index] == stamp;
            } else if self.catalog.refuses() {
                // Its clients hear of it, and it is tried again.
                let refuse = Command::RefuseIntent(volume, ErrorKind::Full, Box::new(drop));
                self.command(refuse);
                self.tally.intents_refused += 1;
                self.catalog.refused[index] = true;
                self.catalog.said.lock().expect("one thread").push((volume, None));
            } else {
                self.catalog.clean[index] = false;
                self.catalog.stamps[index] += 1;
                match self.catalog.is_late() {
                    true => self.catalog.late.push(volume),
                    false => self.command(Command::RecordIntent(volume, Box::new(drop))),
                }
            }
        }
    }

    /// Holds backing stores against the oracle after a power loss, before the node starts again.
    pub(super) fn check_without_levels(&mut self) -> Result<(), String> {
        self.catalog.said.lock().expect("one thread").clear();
        self.catalog.late.clear();
        if self.has_lied || self.is_bereft {
            return Ok(());
        }
        self.check_removed()?;
        let is_clean =
            |volume: &usize| self.catalog.clean[*volume] && !self.guests.is_removed(*volume);
        for volume in (0..VOLUMES).filter(is_clean) {
            self.check_home(volume, "is clean")?;
            self.tally.clean_checked += 1;
        }
        let mut rng = Rng::new(self.life.seed ^ u64::from(self.tally.cuts as u32) << 32);
        if rng.chance(1, 4) { self.write_back_without_nvm() } else { Ok(()) }
    }

    pub(super) fn check_home(&self, volume: usize, why: &str) -> Result<(), String> {
        let cells = self.home_cells(volume);
        let cells: Vec<_> = cells.iter().map(Option::as_deref).collect();
        let checked = self.oracle.check_at_rest(volume, &cells);
        checked.map_err(|what| {
            format!("the backing store alone of volume {volume}, which {why}: {what}")
        })
    }

    /// What a backing store holds now, cell by cell.
    pub(super) fn home_cells(&self, volume: usize) -> Vec<Option<Vec<u8>>> {
        let mut machine = self.host.machine();
        let disk = machine.attach_disk(&Disk::Home(volume).name()).expect("a node has its disks");
        let bytes = machine.peek(disk);
        // A home may be longer for a moment.
        let length = bytes.len().min(self.lengths.of(volume) as usize);
        let blocks = bytes[..length].chunks(BLOCK as usize);
        blocks.flat_map(|block| block_cells(Some(block))).map(|c| c.map(<[u8]>::to_vec)).collect()
    }

    fn write_back_without_nvm(&mut self) -> Result<(), String> {
        let plan = self.plan_without_nvm();
        let host = self.host.clone();
        let write_back = || write_back_on(host, &plan, Damage::Refused);
        let written = match catch_unwind(AssertUnwindSafe(write_back)) {
            Ok(Ok(written)) => written,
            Ok(Err(error)) if self.is_tolerant => {
                self.note(|| format!("the write-back is refused: {error}"));
                return Ok(());
            }
            Ok(Err(error)) => return Err(format!("the write-back without NVM fails: {error}")),
            Err(payload) if payload.is::<PowerCut>() => {
                self.lose_power(self.life.shape.crash);
                return Ok(());
            }
            Err(payload) => return Err(describe(payload.as_ref())),
        };
        for WrittenBack { volume, result } in written {
            match result {
                Ok(_) => self.check_home(volume.0 as usize, "was written back")?,
                Err(_) if self.is_tolerant => continue,
                Err(cause) => return Err(format!("volume {} stays: {cause}", volume.0)),
            }
            self.tally.written_back += 1;
        }
        Ok(())
    }

    /// The volumes whose class does not use the level that is lost.
    fn plan_without_nvm(&self) -> ShardPlan {
        let mut plan = self.plan(false);
        plan.levels[NVM].is_absent = true;
        let classes = &self.life.shape.spec.classes;
        plan.volumes.retain(|volume| {
            let index = volume.spec.id.0 as usize;
            classes[index].levels & (1 << NVM) == 0 && self.homes[index].is_none()
        });
        plan
    }
}
