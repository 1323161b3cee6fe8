//! From sizes and percentages to slots: what each shard's cache is told.
//!
//! How: every level is cut into equal parts, one per shard, and the parts into slots; shares and
//! caps of classes are cut alike. A volume lives on one shard, so its own shares are of that
//! shard's part and are not cut; those of a wide volume are cut over its parts.
//! Invariant: a specification that is handed out has passed [`CacheSpec::validate`] and the check
//! of volumes against their classes, so that rounding can never make a shard refuse it.
//! Cost: runs at start and on a live change only.

use crate::catalog::VolumeRecord;
use crate::config::{Amount, ClassConfig, Kind, LevelConfig, Name, Place, Problem};
use layby_cache::{
    AdmissionKind, CacheSpec, ClassSpec, LEVELS_MAX, LevelSpec, ReadAheadLimits, Share, SpecError,
    VolumeSpec, WritebackLimits,
};
use layby_engine::io::SectorCipher;
use layby_engine::store::{nvm_slots_for, slots_for};
use layby_types::{BlockSize, ClassId, VolumeId, format_bytes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Where parts of a level file begin: a multiple of this many bytes.
pub const PART_ALIGNMENT: u64 = 1 << 16;
/// Slots of a shard's part of a level at least; with fewer, shares mean nothing.
pub const SLOTS_MIN: u32 = 16;

/// A class as the running node knows it: its place in the list is its [`ClassId`]. A deleted class
/// leaves its place empty, so that the numbers of the others stay.
pub type ClassSlot = Option<(Name, ClassConfig)>;

/// The levels of a node, cut into shards and slots.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The cache unit.
    pub block_size: BlockSize,
    /// Threads of the data path.
    pub shards: u8,
    /// Fastest first; watermarks are the live ones.
    pub levels: Vec<LevelConfig>,
    /// Slots of a shard's part of each level.
    pub slots: Vec<u32>,
    /// What each level is encrypted by, where it is.
    pub ciphers: Vec<Option<Arc<SectorCipher>>>,
    /// Levels whose files were lost when their keys were asked for in vain; none is opened.
    pub locked: BTreeSet<Name>,
    /// Destaging.
    pub writeback: WritebackLimits,
    /// Read-ahead.
    pub read_ahead: ReadAheadLimits,
    /// A level is lost: no persistent level has slots, and no class uses one.
    pub is_memory_only: bool,
}

impl Layout {
    /// Cuts `levels` into parts and slots.
    ///
    /// # Errors
    /// A [`Problem`] when a shard's part of a level would be too small, or too large.
    pub fn new(
        levels: Vec<LevelConfig>,
        block_size: BlockSize,
        shards: u8,
        limits: (WritebackLimits, ReadAheadLimits),
    ) -> Result<Layout, Problem> {
        let (writeback, read_ahead) = limits;
        let (slots, is_memory_only) = (Vec::new(), false);
        let ciphers = vec![None; levels.len()];
        let mut layout = Layout {
            block_size,
            shards,
            levels,
            slots,
            ciphers,
            locked: BTreeSet::new(),
            writeback,
            read_ahead,
            is_memory_only,
        };
        for (index, level) in layout.levels.iter().enumerate() {
            let part = layout.part_bytes(index);
            let slots = slots_in(level, part, block_size).filter(|slots| *slots >= SLOTS_MIN);
            let slots = slots.ok_or_else(|| part_refused(index, level, part, &layout))?;
            layout.slots.push(slots);
        }
        Ok(layout)
    }

    /// Bytes of each shard's part of a level.
    #[must_use]
    pub fn part_bytes(&self, level: usize) -> u64 {
        let level = &self.levels[level];
        part_bytes(level.size, self.shards, level.segments.bytes)
    }

    /// What a level is encrypted by, where it is.
    #[must_use]
    pub fn cipher(&self, level: usize) -> Option<&Arc<SectorCipher>> {
        self.ciphers.get(level)?.as_ref()
    }

    /// Whether a level is used, now that one may be lost.
    #[must_use]
    pub fn is_used(&self, level: &LevelConfig) -> bool {
        let is_memory = level.kind == Kind::Memory;
        is_memory || !self.is_memory_only && !self.locked.contains(&level.name)
    }

    /// The shard that serves a volume.
    #[must_use]
    pub fn shard_of(&self, volume: VolumeId) -> usize {
        (volume.0 % u32::from(self.shards)) as usize
    }

    /// What every shard's cache is told.
    ///
    /// # Errors
    /// A [`Problem`] when the classes ask for more than there is.
    pub fn cache_spec(&self, classes: &[ClassSlot]) -> Result<CacheSpec, Problem> {
        let levels = self.levels.iter().zip(&self.slots);
        let level = |(level, slots): (&LevelConfig, &u32)| LevelSpec {
            kind: level.kind.into(),
            slots: if self.is_used(level) { *slots } else { 0 },
            eviction: level.policy.into(),
            watermarks: level.watermarks,
        };
        let spec = CacheSpec {
            block_size: self.block_size,
            levels: levels.map(level).collect(),
            classes: classes.iter().map(|slot| self.class_spec(slot.as_ref())).collect(),
            writeback: self.writeback,
            read_ahead: self.read_ahead,
        };
        spec.validate().map_err(|refused| self.spec_problem(classes, refused))?;
        Ok(spec)
    }

    fn class_spec(&self, slot: Option<&(Name, ClassConfig)>) -> ClassSpec {
        let Some((name, class)) = slot else {
            return ClassSpec {
                name: String::new(),
                rank: u8::MAX,
                levels: 0,
                durable_writes: false,
                borrow: false,
                keep_reads: false,
                latency_objective: None,
                admission: AdmissionKind::All,
                shares: [Share::OPEN; LEVELS_MAX],
            };
        };
        let bits = self.levels.iter().enumerate();
        let allowed = bits.filter(|(_, level)| class.levels.contains(&level.name));
        let allowed = allowed.filter(|(_, level)| self.is_used(level));
        ClassSpec {
            name: name.as_str().to_owned(),
            rank: class.rank,
            levels: allowed.fold(0, |levels, (index, _)| levels | 1 << index),
            durable_writes: class.durable_writes,
            borrow: class.borrow,
            keep_reads: class.keep_reads,
            latency_objective: class.latency_objective.map(|time| time.0),
            admission: class.admission.into(),
            shares: self.shares(&class.share, &class.cap, self.shards),
        }
    }

    /// Shares and caps in slots of one shard, when `parts` shards carry them together.
    fn shares(
        &self,
        share: &BTreeMap<Name, Amount>,
        cap: &BTreeMap<Name, Amount>,
        parts: u8,
    ) -> [Share; LEVELS_MAX] {
        let mut shares = [Share::OPEN; LEVELS_MAX];
        let used = self.levels.iter().enumerate().filter(|(_, level)| self.is_used(level));
        for (index, level) in used {
            let slots = |amount: &Amount| self.slots_of(index, *amount, parts);
            shares[index].cap = cap.get(&level.name).map_or(u32::MAX, slots);
            shares[index].guaranteed = share.get(&level.name).map_or(0, slots);
        }
        shares
    }

    fn slots_of(&self, level: usize, amount: Amount, parts: u8) -> u32 {
        let whole = u64::from(self.slots[level]) * u64::from(self.shards);
        let slots = match amount {
            Amount::Percent(_) => amount.bytes_of(whole),
            Amount::Bytes(bytes) => bytes / u64::from(self.block_size.bytes()),
        };
        u32::try_from(slots / u64::from(parts)).unwrap_or(u32::MAX)
    }

    /// What the shards of a volume are told about it, part by part.
    pub fn volume_specs(
        &self,
        record: &VolumeRecord,
        class: ClassId,
    ) -> impl Iterator<Item = VolumeSpec> + use<> {
        let shares = self.shares(&record.share, &record.cap, record.shards());
        let (stripes, length) = (record.stripes(), record.length);
        let spec = move |(part, id): (u8, VolumeId)| VolumeSpec {
            id,
            class,
            length: stripes.map_or(length, |stripes| stripes.below(part, length)),
            shares,
            write_through: false,
        };
        (0..).zip(record.parts()).map(spec)
    }

    /// Checks the guarantees of all volumes against their classes and levels, shard by shard.
    ///
    /// # Errors
    /// A [`Problem`] that names the first volume whose guarantee cannot be kept.
    pub fn check_volumes(
        &self,
        spec: &CacheSpec,
        volumes: &BTreeMap<Name, VolumeRecord>,
        class_of: impl Fn(&Name) -> Option<ClassId>,
    ) -> Result<(), Problem> {
        for shard in 0..usize::from(self.shards) {
            for level in 0..self.levels.len() {
                let mut sums = vec![0u64; spec.classes.len()];
                for (name, record) in volumes {
                    let Some(class) = class_of(&record.class) else { continue };
                    let mut parts = self.volume_specs(record, ClassId(0));
                    let own = parts.find(|part| self.shard_of(part.id) == shard);
                    let Some(volume) = own.filter(|part| part.shares[level].guaranteed > 0) else {
                        continue;
                    };
                    if spec.classes[usize::from(class.0)].levels & (1 << level) == 0 {
                        return Err(self.unusable_share(level, name, record));
                    }
                    sums[usize::from(class.0)] += u64::from(volume.shares[level].guaranteed);
                    if !self.volumes_fit(spec, level, &sums) {
                        return Err(self.volume_problem(level, name, record));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether each class's volumes stay within its promise (or, where it has none, within what no
    /// class was promised) and within its cap.
    fn volumes_fit(&self, spec: &CacheSpec, level: usize, sums: &[u64]) -> bool {
        let shares = spec.classes.iter().map(|class| class.shares[level]).zip(sums);
        let mut promised = 0;
        for (share, &sum) in shares {
            let guaranteed = u64::from(share.guaranteed);
            if (guaranteed > 0 && sum > guaranteed) || sum > u64::from(share.cap) {
                return false;
            }
            promised += guaranteed.max(sum);
        }
        promised <= u64::from(self.slots[level])
    }

    /// A share that would keep room from others and be of no use to its volume.
    fn unusable_share(&self, level: usize, name: &Name, record: &VolumeRecord) -> Problem {
        let (level, class) = (&self.levels[level].name, &record.class);
        let cause = format!(
            "volume `{name}` has a share of level `{level}`, which its class `{class}` may not use"
        );
        let hint = format!("choose a class that uses `{level}`, or leave the share out");
        Problem::new(Place::Volume(name.clone()), "share", cause, hint)
    }

    fn volume_problem(&self, level: usize, name: &Name, record: &VolumeRecord) -> Problem {
        let LevelConfig { name: level_name, .. } = &self.levels[level];
        let cause = format!(
            "volume `{name}` cannot be guaranteed {} of level `{level_name}`: with the other \
             volumes on its shard this exceeds what class `{}` has",
            record.share.get(level_name).map_or_else(String::new, ToString::to_string),
            record.class
        );
        let hint = format!(
            "a volume lives on one of {} shards, each with {} of `{level_name}`; lower the share, \
             or raise that of the class",
            self.shards,
            format_bytes(u64::from(self.slots[level]) * u64::from(self.block_size.bytes()))
        );
        Problem::new(Place::Volume(name.clone()), "share", cause, hint)
    }

    /// Words for a specification that the cache itself refuses.
    fn spec_problem(&self, classes: &[ClassSlot], refused: SpecError) -> Problem {
        let class = classes.iter().flatten().next_back().map(|(name, _)| name.clone());
        let place = class.map_or(Place::Node, Place::Class);
        let name = |level: u8| self.levels[usize::from(level)].name.to_string();
        let (key, cause) = match refused {
            SpecError::LevelsTooMany => ("levels", "too many levels".to_owned()),
            SpecError::ClassCount => ("levels", "too many classes".to_owned()),
            SpecError::LevelOrder { level } => {
                ("levels", format!("level `{}` is faster than the one before", name(level)))
            }
            SpecError::GuaranteesExceedLevel { level, guaranteed, slots } => (
                "share",
                format!("{guaranteed} blocks of `{}` are guaranteed; it has {slots}", name(level)),
            ),
            SpecError::GuaranteeAboveCap { level } => {
                ("share", format!("a share of `{}` exceeds its cap", name(level)))
            }
            SpecError::Watermarks { level } => {
                ("dirty_red", format!("watermarks of `{}` are not in order", name(level)))
            }
            other => ("share", format!("the cache refuses it: {other:?}")),
        };
        Problem::new(place, key, cause, "lower shares until their sum fits every level")
    }
}

/// Bytes of each of `shards` parts of a level, so that segments of a size that was chosen begin at
/// multiples of it in every part.
#[must_use]
pub fn part_bytes(level_bytes: u64, shards: u8, segment: Option<u64>) -> u64 {
    let alignment = segment.unwrap_or(PART_ALIGNMENT);
    level_bytes / u64::from(shards) / alignment * alignment
}

/// Bytes of a shard's part of a level at most, in whole MiB: its blocks have numbers of 32 bits.
#[must_use]
pub fn part_bytes_max(block_size: BlockSize) -> u64 {
    const STEP: u64 = 1 << 20;
    u64::from(u32::MAX - 1) * u64::from(block_size.bytes()) / STEP * STEP
}

/// Why a shard's part of a level has no slots, or too few.
fn part_refused(index: usize, level: &LevelConfig, part: u64, layout: &Layout) -> Problem {
    let most = part_bytes_max(layout.block_size);
    let segments = level
        .segments
        .bytes
        .map_or_else(String::new, |bytes| format!(" in segments of {}", format_bytes(bytes)));
    let (shards, block) = (u64::from(layout.shards), u64::from(layout.block_size.bytes()));
    let given = format!(
        "level `{}` of {} gives each of {shards} shards {}",
        level.name,
        format_bytes(level.size),
        format_bytes(part),
    );
    let (cause, hint) = match part > most {
        true => (
            format!(
                "{given}, too much for blocks of {}: a shard numbers {} of them at most",
                format_bytes(block),
                u32::MAX - 1
            ),
            format!(
                "write at most {}, use more shards, or larger blocks (`block_size` of [node])",
                format_bytes(most * shards)
            ),
        ),
        false => (
            format!("{given}, too little for blocks of {}{segments}", format_bytes(block)),
            format!(
                "write at least {}, or use fewer shards",
                format_bytes(part_bytes_min(level, layout).saturating_mul(shards))
            ),
        ),
    };
    Problem::new(Place::Level(index), "size", cause, hint)
}

/// Bytes of a shard's part of a level that are enough, to a power of two.
fn part_bytes_min(level: &LevelConfig, layout: &Layout) -> u64 {
    let fits = |bytes: &u64| {
        let slots = slots_in(level, *bytes, layout.block_size);
        slots.is_some_and(|slots| slots >= SLOTS_MIN)
    };
    let sizes = std::iter::successors(Some(PART_ALIGNMENT), |bytes| bytes.checked_mul(2));
    sizes.into_iter().find(fits).unwrap_or(u64::MAX)
}

/// Slots that a part of `bytes` has room for beside its metadata.
fn slots_in(level: &LevelConfig, bytes: u64, block_size: BlockSize) -> Option<u32> {
    match level.kind {
        Kind::Memory => u32::try_from(bytes / u64::from(block_size.bytes())).ok(),
        Kind::Nvm => Some(nvm_slots_for(bytes, block_size)),
        // Zero lets the log choose its segments by the part's size.
        Kind::Ssd => Some(slots_for(bytes, block_size, &level.segments.plan(false, 1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::VolumePhase;
    use crate::config::tests::with_three_levels;
    use crate::config::{Config, Overrides};

    fn layout(text: &str, shards: u8) -> (Layout, Vec<ClassSlot>) {
        let text = with_three_levels(text);
        let config = Config::parse(None, &text, &Overrides::default()).expect("a good text");
        let limits = (config.writeback, config.read_ahead);
        let layout = Layout::new(config.levels, BlockSize::DEFAULT, shards, limits);
        (layout.expect("levels are large"), config.classes.into_iter().map(Some).collect())
    }

    fn volume(id: u32, share: &str) -> VolumeRecord {
        let ssd = || "ssd".parse().expect("a name");
        VolumeRecord {
            id,
            phase: VolumePhase::Ready,
            length: 1 << 20,
            class: "gold".parse().expect("a name"),
            path: "x".into(),
            read_only: false,
            allow: Vec::new(),
            share: BTreeMap::from([(ssd(), share.parse().expect("an amount"))]),
            cap: BTreeMap::new(),
            limits: crate::config::LimitsConfig::default(),
            discard: Default::default(),
            discard_delay: Default::default(),
            discard_bandwidth: None,
            ublk: false,
            key: None,
            wide: None,
            clone_of: None,
            take: false,
            compression: None,
            local: None,
            device: None,
            home_device: None,
            configured: None,
        }
    }

    /// Goal: parts of all shards together never exceed a level. Method: every level over
    /// shard counts that do not divide it.
    #[test]
    fn levels_are_cut_within_their_size() {
        for shards in [1, 2, 3, 7] {
            let (layout, classes) = layout("", shards);
            let spec = layout.cache_spec(&classes).expect("defaults fit");
            for (index, level) in spec.levels.iter().enumerate() {
                let bytes = u64::from(level.slots) * 4096;
                assert!(bytes <= layout.part_bytes(index));
                assert!(layout.part_bytes(index) * u64::from(shards) <= layout.levels[index].size);
            }
            assert_eq!(spec.classes[0].levels, 0b111);
            assert_eq!(spec.classes[1].levels, 0b100);
            assert_eq!(spec.classes[2].shares[2].cap, spec.levels[2].slots / 2);
            assert_eq!(spec.write_level(ClassId(0)), Some(1));
        }
    }

    /// Goal: a level that gives a shard more blocks than it can number is refused as too large,
    /// with the largest size, which is accepted. Method: each kind of level at 16 TiB on one shard;
    /// at the size that the hint names; on two shards, and with larger blocks; one too small.
    #[test]
    fn levels_that_are_too_large_say_so() {
        let text = with_three_levels("");
        let config = Config::parse(None, &text, &Overrides::default()).expect("a good text");
        let cut = |kind: Kind, size: u64, block_size: BlockSize, shards: u8| {
            let level = config.levels.iter().find(|level| level.kind == kind).expect("one of each");
            let levels = vec![LevelConfig { size, ..level.clone() }];
            Layout::new(levels, block_size, shards, (config.writeback, config.read_ahead))
        };
        for kind in [Kind::Memory, Kind::Nvm, Kind::Ssd] {
            let problem = cut(kind, 16 << 40, BlockSize::DEFAULT, 1).expect_err("2^32 blocks");
            assert!(problem.cause.contains("too much for blocks of 4KiB"), "{problem:?}");
            let most = part_bytes_max(BlockSize::DEFAULT);
            let named = format!("at most {}", format_bytes(most));
            assert!(problem.hint.contains(&named), "{problem:?}");
            assert!(problem.hint.contains("block_size"), "{problem:?}");
            cut(kind, most, BlockSize::DEFAULT, 1).expect("as the hint says");
            cut(kind, 16 << 40, BlockSize::DEFAULT, 2).expect("half of the blocks");
            let large = BlockSize::new(8192).expect("a size of blocks");
            cut(kind, 16 << 40, large, 1).expect("half of the blocks");
            let problem = cut(kind, 64 << 10, BlockSize::DEFAULT, 7).expect_err("not 16 blocks");
            assert!(problem.cause.contains("too little"), "{problem:?}");
        }
    }

    /// Goal: shares of a class are cut over shards, those of a volume are not. Method: 50 % of a
    /// level in both, on two shards.
    #[test]
    fn shares_are_cut_by_shards() {
        let (layout, classes) = layout("[class.gold.share]\nssd = \"50%\"\n", 2);
        let spec = layout.cache_spec(&classes).expect("half fits");
        let slots = layout.slots[2];
        assert_eq!(spec.classes[3].shares[2].guaranteed, slots / 2);
        let mut specs = layout.volume_specs(&volume(1, "50%"), ClassId(3));
        let half = specs.next().expect("it has one part");
        assert_eq!(half.shares[2], Share { guaranteed: slots, cap: u32::MAX });
    }

    /// Goal: promises to volumes stay within those to their class. Method: two volumes that fit on
    /// different shards and not on one.
    #[test]
    fn volumes_stay_within_their_class() {
        let (layout, classes) = layout("[class.gold.share]\nssd = \"50%\"\n", 2);
        let spec = layout.cache_spec(&classes).expect("half fits");
        let check = |ids: [u32; 2]| {
            let names = ["a", "b"].map(|name| name.parse::<Name>().expect("a name"));
            let volumes = names.into_iter().zip(ids.map(|id| volume(id, "20%"))).collect();
            layout.check_volumes(&spec, &volumes, |_| Some(ClassId(3)))
        };
        assert_eq!(check([0, 1]), Ok(()));
        let problem = check([0, 2]).expect_err("twice 40 % of a shard exceeds 50 %");
        assert!(problem.cause.contains("volume `b`"), "{problem:?}");
    }

    /// Goal: no volume reserves room that its class may not use, and the refusal names volume,
    /// level and class. Method: a normal volume with a share of the NVM level, then a critical one.
    #[test]
    fn shares_are_of_levels_that_the_class_uses() {
        let (layout, classes) = layout("", 1);
        let spec = layout.cache_spec(&classes).expect("the defaults fit");
        let check = |class: &str| {
            let name = |text: &str| text.parse::<Name>().expect("a name");
            let mut record = volume(0, "5%");
            record.share = BTreeMap::from([(name("nvm"), "5%".parse().expect("an amount"))]);
            record.class = name(class);
            let volumes = BTreeMap::from([(name("a"), record)]);
            let number = |class: &Name| {
                let is_own = |slot: &ClassSlot| slot.as_ref().is_some_and(|(own, _)| own == class);
                classes.iter().position(is_own).map(|at| ClassId(at as u8))
            };
            layout.check_volumes(&spec, &volumes, number)
        };
        let problem = check("normal").expect_err("normal volumes do not use NVM");
        for word in ["volume `a`", "level `nvm`", "class `normal`"] {
            assert!(problem.cause.contains(word), "{problem:?}");
        }
        assert_eq!(check("critical"), Ok(()));
    }

    /// Goal: too many shards for a level is said with a size that would do. Method: a small SSD
    /// level over 64 shards.
    #[test]
    fn small_parts_are_refused() {
        let text = "[[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = \"8MiB\"\n";
        let config = Config::parse(None, text, &Overrides::default()).expect("a good text");
        let limits = (config.writeback, config.read_ahead);
        let problem = Layout::new(config.levels, BlockSize::DEFAULT, 64, limits);
        let problem = problem.expect_err("128 KiB hold no log");
        assert!(problem.hint.contains("at least"), "{problem:?}");
    }
}
