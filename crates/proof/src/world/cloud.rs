//! What happens to a life's volumes in the cloud, and what their stores alone have.
//!
//! How: acts of the plan reach into the homes; the store's objects are restored as `layby restore`
//! would and held against the oracle, at acts, whenever all is looked at, and when the node's disks
//! are destroyed.
//! Invariant: a store alone has what its volume was at one moment, not before what the volume says
//! is stored. Cost: a restore of a small volume. Not for: what the shard serves; see `world`.

use super::lost::Catalog;
use super::{TURNS_MAX, World, block_cells};
use crate::home::CloudHome;
use crate::plan::{BLOCK, CloudAct, Disk, VOLUMES};
use layby_cloud::simulated::SimDeed;
use layby_engine::io::CrashMode;

/// Turns that are taken at most until a store has a segment that no superblock names.
const SPOIL_TURNS_MAX: u32 = 300;

impl World<'_> {
    /// Performs an act of a volume in the cloud; of others nothing happens.
    pub(super) fn cloud(&mut self, act: CloudAct) -> Result<(), String> {
        let (CloudAct::Weather(index, _)
        | CloudAct::FileFault(index, _)
        | CloudAct::Upload(index)
        | CloudAct::Look(index)
        | CloudAct::Rival(index)
        | CloudAct::Spoil(index, _)) = act;
        let Some(home) = self.homes[index].clone() else { return Ok(()) };
        match act {
            CloudAct::Weather(_, faults) => {
                let name = if faults.is_cut { "link cut" } else { "store that fails" };
                *self.tally.faults.entry(name).or_default() += 1;
                home.set_faults(faults);
                Ok(())
            }
            CloudAct::FileFault(_, deed) => {
                let is_map = deed == SimDeed::MapWritten;
                let name = if is_map { "map file error" } else { "journal error" };
                *self.tally.faults.entry(name).or_default() += 1;
                (self.is_tolerant, self.has_failed) = (true, true);
                self.oracle.expect_ghosts();
                home.fail_file(deed);
                Ok(())
            }
            CloudAct::Upload(_) => self.upload(index, &home),
            CloudAct::Look(_) => {
                self.tally.older_nodes += u64::from(home.older()?);
                self.look_at_store(index)
            }
            CloudAct::Rival(_) => {
                *self.tally.faults.entry("second node").or_default() += 1;
                self.tally.older_nodes += u64::from(home.older()?);
                home.rival()
            }
            CloudAct::Spoil(_, draw) => self.spoil(&home, draw),
        }
    }

    /// Waits for a segment that no superblock names; then the power fails, and the store spoils it.
    fn spoil(&mut self, home: &CloudHome, draw: u64) -> Result<(), String> {
        let cuts = self.tally.cuts;
        // One at rest takes no steps.
        home.set_draining(!draw.is_multiple_of(4));
        for _ in 0..SPOIL_TURNS_MAX {
            if home.has_unnamed() {
                break;
            }
            self.turn()?;
            if self.is_over || self.tally.cuts != cuts {
                home.set_draining(false);
                return Ok(());
            }
        }
        home.spoil_at_crash(draw);
        self.restart(self.life.shape.crash)?;
        if let Some(how) = home.spoiled() {
            self.note(|| format!("a segment that no superblock names is a {how}"));
            *self.tally.faults.entry(how).or_default() += 1;
        }
        Ok(())
    }

    /// Waits until the store has everything, which it then has.
    fn upload(&mut self, index: usize, home: &CloudHome) -> Result<(), String> {
        home.mend_link();
        home.set_draining(true);
        let cuts = self.tally.cuts;
        for _ in 0..TURNS_MAX {
            if home.is_drained() {
                home.set_draining(false);
                return self.look_at_store(index);
            }
            self.turn()?;
            if self.is_over || self.tally.cuts != cuts {
                return Ok(());
            }
        }
        home.set_draining(false);
        match self.is_tolerant {
            // A journal that failed is not trusted until a restart.
            true => Ok(()),
            false => Err(format!("volume {index} never drains: {}", home.describe())),
        }
    }

    /// What a home in the cloud says of itself, behind a failure.
    pub(super) fn describe_home(&self, index: usize) -> String {
        self.homes[index].as_ref().map_or(String::new(), |home| format!("; {}", home.describe()))
    }

    /// Holds what a store alone has against the oracle.
    pub(super) fn look_at_store(&mut self, index: usize) -> Result<(), String> {
        let Some(home) = &self.homes[index] else { return Ok(()) };
        if self.has_lied {
            // What a level made of a block may have gone home.
            return Ok(());
        }
        let restored = home.restore();
        let bytes =
            restored.map_err(|what| format!("the store of volume {index} alone: {what}"))?;
        self.tally.restored += 1;
        let blocks = bytes.chunks_exact(BLOCK as usize);
        let cells: Vec<Option<&[u8]>> = blocks.flat_map(|block| block_cells(Some(block))).collect();
        self.oracle.check_restored(index, &cells, home.stored())
    }

    /// All disks of the node are gone; the next one has new ones, and takes what is in the cloud.
    pub(super) fn destroy(&mut self, is_ghost: bool) -> Result<(), String> {
        (0..VOLUMES).try_for_each(|volume| self.look_at_store(volume))?;
        self.note(|| "the node's disks are destroyed".to_owned());
        self.tally.destroyed += 1;
        self.tally.cuts += 1;
        self.node = None;
        self.clients.iter_mut().for_each(|client| *client = None);
        self.orphans.clear();
        self.left.clear();
        self.lengths.crash();
        self.guests.crash();
        let homes = (0..VOLUMES).map(Disk::Home);
        let mut machine = self.host.machine();
        machine.crash(CrashMode::DropAll);
        for disk in [Disk::Nvm, Disk::Ssd].into_iter().chain(homes) {
            let disk = machine.attach_disk(&disk.name()).expect("a node has all its disks");
            machine.replace_disk(disk);
        }
        drop(machine);
        for (index, home) in self.homes.iter().enumerate() {
            let stored = home.as_ref().map_or(0, CloudHome::stored);
            self.oracle.destroy(index, stored);
            home.iter().for_each(|home| home.destroy(is_ghost));
        }
        self.oracle.crash();
        self.has_crashed = true;
        self.is_bereft |= self.has_lied;
        self.heal();
        self.catalog = Catalog::new(self.life.shape.remote, self.life.seed);
        // The seed gives the new levels the instances of the old ones, which no real start draws.
        self.levels = super::starts::Levels::default();
        self.start(true)?;
        if self.is_over { Ok(()) } else { self.settle() }
    }
}
