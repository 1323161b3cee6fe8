//! Offline write-back: a node that lost a level serves volumes without any; what the other levels
//! hold of these goes to their backing stores first.
//!
//! How: the levels that are there are opened as at a start. For each volume that is given, what
//! recovery would zero is zeroed, its dirty blocks are written in order of age, and the backing
//! store is synced. No level is written, but for what an NVM level repairs when it is opened.
//! Invariant: what the levels hold stays as it is, so that a level that comes back is recovered
//! beside the others as if nothing had happened.
//! Cost: the stores' recovery, and a read and a write per dirty block. Not for: remote backing
//! stores, which have no dirty blocks in levels.

use super::recover::HomePlan;
use super::stores::LevelPlan;
use super::{Core, CoreError};
use crate::io::Io;
use crate::store::{CorruptInfo, Recovered, RecoveredEntry, Resolved, StoreIdentity, resolve};
use layby_cache::CacheSpec;
use layby_types::planted::{Plant, is_planted};
use layby_types::{BackingOperation, ErrorKind, VolumeId};
use std::fmt;

/// What became of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenBack {
    /// Which volume.
    pub volume: VolumeId,
    /// Blocks written to its backing store, which has all of it now; or why it has not.
    pub result: Result<u64, NotWritten>,
}

/// Why not all of a volume was written back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotWritten {
    /// By remedy.
    pub kind: ErrorKind,
    /// In words.
    pub cause: String,
}

impl NotWritten {
    /// What a level holds is damaged.
    fn of_damage(cause: String) -> NotWritten {
        NotWritten { kind: ErrorKind::Corrupt, cause }
    }
}

impl fmt::Display for NotWritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

/// Whether damage in the levels that are there is accepted as a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// A volume with a damaged block is not written back.
    Refused,
    /// Damaged blocks keep what the backing store has.
    Accepted,
}

impl Core {
    /// Writes what the levels hold of the volumes of `homes` to their backing stores.
    ///
    /// # Errors
    /// [`CoreError`] where a level that is there cannot be opened; no level was written.
    pub fn write_back_offline(
        io: &mut dyn Io,
        spec: CacheSpec,
        plans: &[LevelPlan],
        identity: StoreIdentity,
        homes: Vec<HomePlan>,
        damage: Damage,
    ) -> Result<Vec<WrittenBack>, CoreError> {
        let (mut core, nvm, log) = Core::open(io, spec, plans, identity, homes, 0)?;
        let mut found = Found::new(&core, nvm.unwrap_or_default(), log.unwrap_or_default());
        let mut volumes: Vec<VolumeId> = core.homes.keys().copied().collect();
        volumes.sort_unstable();
        let write_back = |volume| {
            let result = core.write_back_volume(io, volume, &mut found, damage);
            WrittenBack { volume, result }
        };
        Ok(volumes.into_iter().map(write_back).collect())
    }

    fn write_back_volume(
        &mut self,
        io: &mut dyn Io,
        volume: VolumeId,
        found: &mut Found,
        damage: Damage,
    ) -> Result<u64, NotWritten> {
        if let (Damage::Refused, Some(cause)) = (damage, found.damage_of(volume)) {
            return Err(NotWritten::of_damage(cause));
        }
        let is_its = |entry: &&(usize, RecoveredEntry)| {
            entry.1.key.volume() == volume && !self.is_behind(entry.1.key)
        };
        let entries: Vec<_> = found.dirty.iter().filter(is_its).copied().collect();
        let failed = |error: CoreError| match error {
            CoreError::Home { name, kind } => {
                NotWritten { kind, cause: format!("cannot write `{name}`: {kind}") }
            }
            other => NotWritten::of_damage(format!("{other:?}")),
        };
        if !is_planted(Plant::WriteBackZeroesOmitted) {
            self.zero_again(io, volume, &found.resolved).map_err(failed)?;
        }
        let (size, mut blocks) = (self.cache.spec().block_size, 0);
        for (level, entry) in entries {
            let offset = size.offset_of(entry.key.block());
            let Some(data) = self.read_alone(io, level, entry) else {
                if damage == Damage::Refused {
                    let cause = format!("the block at byte {offset} cannot be read");
                    return Err(NotWritten::of_damage(cause));
                }
                continue;
            };
            let mut buffer = io.buffer(data.len());
            buffer.copy_from_slice(&data);
            let write = BackingOperation::Write { offset, buffer, durable: false };
            self.home_alone(io, volume, write).map_err(failed)?;
            blocks += 1;
        }
        self.home_alone(io, volume, BackingOperation::Sync).map_err(failed)?;
        Ok(blocks)
    }
}

/// What the levels hold, decided between them.
struct Found {
    resolved: Resolved,
    /// Dirty blocks with their level, oldest first.
    dirty: Vec<(usize, RecoveredEntry)>,
    bad: Vec<CorruptInfo>,
    /// Volumes of which an earlier start could not decide some blocks.
    undecided: Vec<VolumeId>,
    /// What was damaged so that nobody knows which blocks had their newest version there.
    is_undecided: bool,
}

impl Found {
    fn new(core: &Core, mut nvm: Recovered, mut log: Recovered) -> Found {
        let resolved = resolve(&mut nvm, &mut log);
        let [nvm_level, log_level] = [core.nvm_level(), core.log().map(|(level, _)| level)];
        let of = |level: Option<usize>, found: &Recovered| {
            let dirty = found.entries.iter().filter(|entry| entry.dirty);
            let dirty = level.map(|level| dirty.map(move |entry| (level, *entry)));
            dirty.into_iter().flatten().collect::<Vec<_>>()
        };
        let mut dirty = of(nvm_level, &nvm);
        dirty.extend(of(log_level, &log));
        dirty.sort_unstable_by_key(|(_, entry)| entry.seq);
        let undecided = log.lost_runs.iter().map(|(first, _)| first.volume()).collect();
        let is_undecided = nvm.undecided.is_some() || log.undecided.is_some();
        let bad = nvm.lost.into_iter().chain(log.lost).collect();
        Found { resolved, dirty, bad, undecided, is_undecided }
    }

    /// Why not all of a volume's newest blocks are known.
    fn damage_of(&self, volume: VolumeId) -> Option<String> {
        let of = |info: &&CorruptInfo| info.key.is_some_and(|key| key.volume() == volume);
        let bad = self.bad.iter().find(of).map(|info| format!("a block is damaged: {info}"));
        let was_undecided = self.undecided.contains(&volume);
        let cause = match () {
            () if self.is_undecided => "a level is damaged where newer blocks may have been",
            () if was_undecided => "it has blocks that are lost already",
            () => return bad,
        };
        bad.or_else(|| Some(cause.to_owned()))
    }
}
