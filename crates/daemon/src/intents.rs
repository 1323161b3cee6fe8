//! Write intents: which volumes may have in a level what their backing store does not have.
//!
//! How: a file beside the catalog names, by number, the volumes that were changed since they were
//! last clean, and the levels that may hold such changes. It is replaced as a whole, as the catalog
//! is, but under a lock of its own, since a write waits for it, and within the room that it has, so
//! that a full disk keeps no volume from being changed. A node that lost a level serves the volumes
//! that have no intent there.
//! Invariant: an intent is durable before the first change of a clean volume starts (the shard
//! holds it), and is removed only after the shard found the volume clean and nothing recorded it
//! since. A file that is missing or damaged counts as an intent of every volume in every level.
//! Cost: a small file written twice per time that a volume is dirty. Not for: volumes in object
//! stores, whose levels hold clean copies alone.

use crate::catalog::VolumeRecord;
use crate::checked::Checked;
use crate::config::Name;
use crate::control::View;
use crate::error::Report;
use crate::homes::Homes;
use crate::replace::{ROOM, replace_within};
use layby_engine::control::{BackingPlan, VolumePlan};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The file within the node's directory.
pub const INTENTS_FILE_NAME: &str = "intents.json";
const STAGED_FILE_NAME: &str = "intents.json.new";
const FILE: Checked =
    Checked { format: "layby write intents", version: 1, content: "volumes", bytes_max: 64 << 20 };

/// What a damaged file costs.
pub(crate) const COST: &str = "every volume counts as dirty in every level";

/// The levels by volume number.
type Volumes = BTreeMap<u32, BTreeSet<Name>>;

/// A volume's intent.
#[derive(Clone, Debug, Default)]
struct Intent {
    levels: BTreeSet<Name>,
    /// Raised each time that it is recorded.
    stamp: u64,
}

/// See the file's header.
#[derive(Clone, Debug)]
pub struct Intents {
    dir: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    volumes: BTreeMap<u32, Intent>,
    /// Levels that clean volumes are about to use, which the node's view may not say yet.
    expected: Volumes,
    /// The file says what `volumes` does. A replacement that failed late may have taken effect.
    is_saved: bool,
}

impl State {
    /// Makes the file say `after`, then takes it over.
    fn replace(&mut self, dir: &Path, after: BTreeMap<u32, Intent>) -> Result<(), Report> {
        self.is_saved = false;
        save(dir, &after)?;
        (self.volumes, self.is_saved) = (after, true);
        Ok(())
    }
}

/// What a start finds.
#[derive(Debug)]
pub enum Found {
    /// The intents, by volume number.
    Known(BTreeMap<u32, BTreeSet<Name>>),
    /// Any volume may be dirty anywhere; why.
    Unknown(String),
}

impl Found {
    /// The levels that may hold changes of a volume; none where it is clean.
    #[must_use]
    pub fn levels(&self, record: &VolumeRecord, all: &BTreeSet<Name>) -> Option<BTreeSet<Name>> {
        match self {
            Found::Known(volumes) => volumes.get(&record.id).cloned(),
            Found::Unknown(_) => Some(all.clone()),
        }
    }
}

/// Reads the intents of the node in `dir`.
#[must_use]
pub fn read(dir: &Path) -> Found {
    let path = dir.join(INTENTS_FILE_NAME);
    match FILE.read(&path) {
        Ok(volumes) => Found::Known(volumes),
        Err(cause) => Found::Unknown(format!("cannot read `{}`: {cause}", path.display())),
    }
}

/// What is wrong with the file of the node in `dir`, if anything.
pub(crate) fn damage(dir: &Path) -> Option<String> {
    FILE.damage::<Volumes>(&dir.join(INTENTS_FILE_NAME))
}

impl Intents {
    /// The intents of a node that starts with `volumes`; the file says so from now on.
    ///
    /// # Errors
    /// A report when the disk refuses.
    pub fn begin(
        dir: &Path,
        volumes: BTreeMap<u32, BTreeSet<Name>>,
        before: &Found,
    ) -> Result<Intents, Report> {
        let is_same = matches!(before, Found::Known(known) if *known == volumes);
        let intent = |(id, levels)| (id, Intent { levels, stamp: 0 });
        let state: BTreeMap<u32, Intent> = volumes.into_iter().map(intent).collect();
        if !is_same {
            save(dir, &state)?;
        }
        let has_room = || {
            let staged = std::fs::metadata(dir.join(STAGED_FILE_NAME));
            staged.is_ok_and(|staged| staged.len() >= ROOM)
        };
        // Each save gives one of the two files its room. Where there is none now, the next intents
        // say so if there is none then.
        for _ in 0..2 {
            if !has_room() {
                let _ = save(dir, &state);
            }
        }
        let state = State { volumes: state, expected: Volumes::new(), is_saved: true };
        Ok(Intents { dir: dir.to_owned(), state: Arc::new(Mutex::new(state)) })
    }

    /// Tells in a volume's plans whether its changes wait for an intent. A volume over several
    /// shards has its own from now on, since its changes pass no single gate; while levels are
    /// being made anew, once they are, see [`Intents::mark_wide`]. It has none for a stand-in,
    /// which takes no changes: an intent says that a backing store was there. May take long.
    ///
    /// # Errors
    /// A report when the disk refuses.
    pub fn mark(
        &self,
        view: &View,
        homes: &Homes,
        record: &VolumeRecord,
        plans: &mut [VolumePlan],
    ) -> Result<(), Report> {
        if view.layout.is_memory_only || !may_be_dirty(view, homes, record) {
            return Ok(());
        }
        if record.wide.is_some() {
            // An intent says that levels may hold changes, and then they are not made anew.
            let is_early = view.catalog.is_formatting;
            let is_refused =
                |plan: &VolumePlan| matches!(plan.backing, BackingPlan::Refused { .. });
            return match is_early || plans.iter().all(is_refused) {
                true => Ok(()),
                false => self.record_wide(view, record),
            };
        }
        let is_clean = self.is_clean(record.id);
        plans.iter_mut().for_each(|plan| plan.is_clean = is_clean);
        Ok(())
    }

    /// Records what [`Intents::mark`] put off while levels were being made anew, for the volumes
    /// that are served. May take long.
    ///
    /// # Errors
    /// A report when the disk refuses.
    pub fn mark_wide(&self, view: &View, homes: &Homes) -> Result<(), Report> {
        assert!(!view.catalog.is_formatting, "the levels have been made");
        let served = view.catalog.volumes.iter().filter(|(name, _)| view.absence(name).is_none());
        let mut wide = served.filter(|(_, r)| r.wide.is_some() && may_be_dirty(view, homes, r));
        wide.try_for_each(|(_, record)| self.record_wide(view, record))
    }

    fn record_wide(&self, view: &View, record: &VolumeRecord) -> Result<(), Report> {
        self.record(record.id, &levels_of(view, record))
    }

    /// Whether a volume has no intent.
    #[must_use]
    pub fn is_clean(&self, id: u32) -> bool {
        !self.lock().volumes.contains_key(&id)
    }

    /// Records that `levels` may hold changes of a volume, durably. May take long.
    ///
    /// # Errors
    /// A report when the disk refuses; the volume is as it was.
    pub fn record(&self, id: u32, levels: &BTreeSet<Name>) -> Result<(), Report> {
        let mut state = self.lock();
        let mut after = state.volumes.clone();
        let intent = after.entry(id).or_default();
        intent.stamp += 1;
        let known = intent.levels.len();
        let expected = state.expected.get(&id);
        intent.levels.extend(levels.iter().chain(expected.into_iter().flatten()).cloned());
        let is_new = !state.volumes.contains_key(&id) || intent.levels.len() > known;
        if is_new || !state.is_saved {
            return state.replace(&self.dir, after);
        }
        state.volumes = after;
        Ok(())
    }

    /// A volume is to use `levels` from now on: its intent says so, where it has one, and else each
    /// one that is recorded from now on. To be called before shards are told. May take long.
    ///
    /// # Errors
    /// As for [`Intents::record`].
    pub fn widen(&self, id: u32, levels: &BTreeSet<Name>) -> Result<(), Report> {
        // In this order: a record of a volume that is clean meanwhile has them, too.
        self.lock().expected.insert(id, levels.clone());
        match self.is_clean(id) {
            true => Ok(()),
            false => self.record(id, levels),
        }
    }

    /// A volume uses no more levels than the node's view says.
    pub fn expect_no_more(&self, id: u32) {
        self.lock().expected.remove(&id);
    }

    /// What [`Intents::remove`] wants of a volume that may become clean; none where it is.
    #[must_use]
    pub fn stamp(&self, id: u32) -> Option<u64> {
        self.lock().volumes.get(&id).map(|intent| intent.stamp)
    }

    /// Removes the intent of a volume that is clean, unless it was recorded since `stamp`. May take
    /// long; says whether it is gone.
    ///
    /// # Errors
    /// A report when the disk refuses; the intent stays.
    pub fn remove(&self, id: u32, stamp: u64) -> Result<bool, Report> {
        let mut state = self.lock();
        if state.volumes.get(&id).is_none_or(|intent| intent.stamp != stamp) {
            return Ok(!state.volumes.contains_key(&id));
        }
        let mut after = state.volumes.clone();
        after.remove(&id);
        state.replace(&self.dir, after)?;
        Ok(true)
    }

    /// Forgets a number that no volume has any more; the file says so when it is next written.
    pub fn forget(&self, id: u32) {
        let mut state = self.lock();
        state.volumes.remove(&id);
        state.expected.remove(&id);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn save(dir: &Path, state: &BTreeMap<u32, Intent>) -> Result<(), Report> {
    let volumes: Volumes = state.iter().map(|(id, intent)| (*id, intent.levels.clone())).collect();
    let bytes = FILE.bytes(&volumes);
    replace_within(dir, (STAGED_FILE_NAME, INTENTS_FILE_NAME), &bytes).map_err(|cause| {
        let path = dir.join(INTENTS_FILE_NAME);
        Report::from_io(format!("cannot write the write intents `{}`", path.display()), &cause)
            .state("no stored data is affected; writes to volumes that were clean fail")
            .hint("make room or correct the permissions; it is tried again")
    })
}

/// The persistent levels of a node.
#[must_use]
pub fn persistent_levels(view: &View) -> BTreeSet<Name> {
    let levels = view.layout.levels.iter().filter(|level| level.path.is_some());
    levels.map(|level| level.name.clone()).collect()
}

/// The levels that may hold changes of a volume: the persistent ones that its class uses, and the
/// SSD level, whose log says which records of the NVM level are dead.
#[must_use]
pub fn levels_of(view: &View, record: &VolumeRecord) -> BTreeSet<Name> {
    let Some((_, class)) = view.class(record.class.as_str()) else { return BTreeSet::new() };
    let levels = view.layout.levels.iter().filter(|level| level.path.is_some());
    let used = levels.filter(|level| {
        class.levels.contains(&level.name) || level.kind == crate::config::Kind::Ssd
    });
    let used: BTreeSet<Name> = used.map(|level| level.name.clone()).collect();
    let is_any = used.iter().any(|level| class.levels.contains(level));
    if is_any { used } else { BTreeSet::new() }
}

/// Whether levels may ever hold changes of a volume.
#[must_use]
pub fn may_be_dirty(view: &View, homes: &Homes, record: &VolumeRecord) -> bool {
    !homes.writes_through(record) && !levels_of(view, record).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn levels(names: &[&str]) -> BTreeSet<Name> {
        names.iter().map(|name| name.parse().expect("a name")).collect()
    }

    fn known(dir: &TempDir) -> BTreeMap<u32, BTreeSet<Name>> {
        match read(dir.path()) {
            Found::Known(volumes) => volumes,
            Found::Unknown(cause) => panic!("{cause}"),
        }
    }

    /// Goal: what is recorded is in the file, what was recorded again since is not removed. Method:
    /// a volume that is recorded, recorded with another level, removed with an old and the last
    /// stamp.
    #[test]
    fn an_intent_stays_that_was_recorded_since() {
        let dir = TempDir::new().expect("a temporary directory");
        let found = read(dir.path());
        assert!(matches!(found, Found::Unknown(_)), "there is no file");
        let intents = Intents::begin(dir.path(), BTreeMap::new(), &found).expect("writable");
        assert!(known(&dir).is_empty() && intents.is_clean(7));
        intents.record(7, &levels(&["ssd"])).expect("writable");
        assert_eq!(known(&dir), BTreeMap::from([(7, levels(&["ssd"]))]));
        let old = intents.stamp(7).expect("recorded");
        intents.record(7, &levels(&["nvm"])).expect("writable");
        assert_eq!(known(&dir), BTreeMap::from([(7, levels(&["nvm", "ssd"]))]));
        assert!(!intents.remove(7, old).expect("nothing is written"));
        assert_eq!(known(&dir).len(), 1);
        let stamp = intents.stamp(7).expect("recorded");
        assert!(intents.remove(7, stamp).expect("writable"));
        assert!(known(&dir).is_empty() && intents.is_clean(7));
    }

    /// Goal: a volume that is to use more levels has them in its intent, also where it was clean
    /// when that was decided and what records its first change does not know yet. Method: a clean
    /// volume and one with an intent, widened; intents recorded by what the view said before.
    #[test]
    fn a_clean_volume_that_gains_a_level_has_it_in_its_intent() {
        let dir = TempDir::new().expect("a temporary directory");
        let intents = Intents::begin(dir.path(), BTreeMap::new(), &read(dir.path()));
        let intents = intents.expect("writable");
        let (ssd, both) = (levels(&["ssd"]), levels(&["nvm", "ssd"]));
        intents.record(8, &ssd).expect("writable");
        for id in [7, 8] {
            intents.widen(id, &both).expect("writable");
        }
        assert_eq!(known(&dir), BTreeMap::from([(8, both.clone())]), "the other one is clean");
        intents.record(7, &ssd).expect("writable");
        assert_eq!(known(&dir), BTreeMap::from([(7, both.clone()), (8, both)]));
        let stamp = intents.stamp(7).expect("recorded");
        assert!(intents.remove(7, stamp).expect("writable"));
        intents.expect_no_more(7);
        intents.record(7, &ssd).expect("writable");
        assert_eq!(known(&dir)[&7], ssd);
    }

    /// Goal: an intent whose removal failed is in the file before the next change of its volume,
    /// also where the removal had taken effect before it failed (the sync of the folder). Method: a
    /// folder in the staged file's place, and the file as the removal would have left it.
    #[test]
    fn a_removal_that_failed_is_undone_by_the_next_change() {
        let dir = TempDir::new().expect("a temporary directory");
        let intents = Intents::begin(dir.path(), BTreeMap::new(), &read(dir.path()));
        let intents = intents.expect("writable");
        let without = std::fs::read(dir.path().join(INTENTS_FILE_NAME)).expect("it is there");
        intents.record(7, &levels(&["ssd"])).expect("writable");
        let staged = dir.path().join(STAGED_FILE_NAME);
        std::fs::remove_file(&staged).expect("it is there");
        std::fs::create_dir(&staged).expect("a folder");
        let stamp = intents.stamp(7).expect("recorded");
        intents.remove(7, stamp).expect_err("the file cannot be written");
        std::fs::write(dir.path().join(INTENTS_FILE_NAME), without).expect("writable");
        intents.record(7, &levels(&["ssd"])).expect_err("the file cannot be written");
        std::fs::remove_dir(&staged).expect("empty");
        intents.record(7, &levels(&["ssd"])).expect("writable");
        assert_eq!(known(&dir), BTreeMap::from([(7, levels(&["ssd"]))]));
    }

    /// Goal: after a start both files have the room that the next intents take, also where an
    /// earlier build wrote a shorter one. Method: a short file and no staged one; their lengths.
    #[test]
    fn a_start_makes_room() {
        let dir = TempDir::new().expect("a temporary directory");
        let volumes = BTreeMap::from([(7, levels(&["ssd"]))]);
        Intents::begin(dir.path(), volumes.clone(), &read(dir.path())).expect("writable");
        let path = dir.path().join(INTENTS_FILE_NAME);
        let text = std::fs::read_to_string(&path).expect("it is there");
        std::fs::write(&path, text.trim_end()).expect("writable");
        std::fs::remove_file(dir.path().join(STAGED_FILE_NAME)).expect("it is there");
        Intents::begin(dir.path(), volumes.clone(), &read(dir.path())).expect("writable");
        for name in [INTENTS_FILE_NAME, STAGED_FILE_NAME] {
            let length = std::fs::metadata(dir.path().join(name)).expect("it is there").len();
            assert!(length >= ROOM, "{name} has {length} bytes");
        }
        assert_eq!(known(&dir), volumes);
    }

    /// Goal: a damaged file counts as an intent of every volume. Method: each byte of it changed.
    #[test]
    fn damage_is_an_intent_of_all() {
        use std::os::unix::fs::FileExt as _;
        let dir = TempDir::new().expect("a temporary directory");
        let volumes = BTreeMap::from([(7, levels(&["ssd"]))]);
        Intents::begin(dir.path(), volumes.clone(), &read(dir.path())).expect("writable");
        let path = dir.path().join(INTENTS_FILE_NAME);
        let bytes = std::fs::read(&path).expect("it is there");
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("writable");
        for (at, byte) in bytes.iter().enumerate() {
            file.write_all_at(&[byte ^ 1], at as u64).expect("writable");
            if let Found::Known(found) = read(dir.path()) {
                assert_eq!(found, volumes, "byte {at} is white space");
            }
            file.write_all_at(&[*byte], at as u64).expect("writable");
        }
    }
}
