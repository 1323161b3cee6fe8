//! What a volume's requests look like, sampled while they are served.
//!
//! How: a bounded miss-ratio curve and miniature caches per watched volume see every block that a
//! client reads or writes. A host ends a period with [`Cache::observe`] and gets an
//! [`Observation`]; the first call for a volume begins the watch. Where the sample takes more
//! requests than [`SAMPLED_PER_SECOND_MAX`], its rate is lowered for the next period.
//! Invariant: watching never changes what the cache does. Cost: a hash and a comparison per block
//! of a request, some 100 ns for one in the sample; about 110 KiB per watched volume.

use crate::cache::Cache;
use crate::miniature::Miniature;
use crate::spec::{LEVELS_MAX, Share};
use alloc::boxed::Box;
use alloc::vec::Vec;
use layby_policy::Moment;
use layby_policy::curve::{Access, BoundedCurve, Curve, SampleRate, Served};
use layby_policy::registry::EvictionKind;
use layby_types::{BlockIndex, BlockKey, Call, ClassId, ErrorKind, Nanos, Operation, VolumeId};

/// Volumes of a shard that are watched at most; the memory of more would exceed 28 MiB.
pub const VOLUMES_WATCHED_MAX: usize = 256;
/// Requests per second that a volume's sample takes before its rate is lowered: 0.5 % of a core.
const SAMPLED_PER_SECOND_MAX: f64 = 40_000.0;
/// A request costs the miniatures about this many times what it costs the curve.
const MINIATURE_COST: f64 = 4.0;
/// Sizes beyond this many times all levels together are of no interest.
const SIZES_MAX: u64 = 8;

/// What a period showed of a volume.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Which volume.
    pub volume: VolumeId,
    /// Its class.
    pub class: ClassId,
    /// The levels that it may use, a bit each: its class's, or fewer.
    pub levels: u8,
    /// Its misses by size in blocks, over this period and fading ones before.
    pub curve: Curve,
    /// The part of its reads that each policy would hit in the room it has; empty while unknown.
    pub policies: Vec<(EvictionKind, f64)>,
    /// Blocks read and written in this period.
    pub requests: [u64; 2],
    /// Blocks read in this period that a level had, by level, and that none had.
    pub hits: [u64; LEVELS_MAX],
    /// See `hits`.
    pub misses: u64,
    /// Slots it holds of each level.
    pub held: [u32; LEVELS_MAX],
    /// The shares that it was sized, if it was.
    pub sized: Option<[u32; LEVELS_MAX]>,
    /// Its guarantees and caps.
    pub shares: [Share; LEVELS_MAX],
}

/// See the file's header.
pub(crate) struct Watch {
    curve: BoundedCurve,
    miniature: Miniature,
    rate_max: SampleRate,
    requests: [u64; 2],
    hits_before: [u64; LEVELS_MAX],
    misses_before: u64,
    started: Nanos,
}

impl Watch {
    fn new(now: Nanos, size_max: u64) -> Self {
        let blocks = BoundedCurve::SAMPLE_BLOCKS_DEFAULT;
        Watch {
            curve: BoundedCurve::new(blocks, size_max, Served::All),
            miniature: Miniature::new(),
            rate_max: SampleRate::MAX,
            requests: [0; 2],
            hits_before: [0; LEVELS_MAX],
            misses_before: 0,
            started: now,
        }
    }

    #[inline]
    fn on_request(&mut self, moment: &mut Moment<'_>, key: BlockKey, access: Access) {
        self.requests[access as usize] += 1;
        self.curve.on_request(key, access);
        self.miniature.on_request(moment, key, access);
    }

    /// Ends a period and lowers or raises the rate to what the period's length allows.
    fn end_period(&mut self, moment: &mut Moment<'_>, keep: f64, size: u64) {
        let seconds = moment.now.since(self.started).as_secs_f64();
        let [reads, writes] = self.requests;
        let curve = (reads + writes) as f64 * self.curve.rate().part();
        let cost = curve + self.miniature.sampled as f64 * MINIATURE_COST;
        let allowed = SAMPLED_PER_SECOND_MAX * seconds.max(0.001);
        if cost > allowed {
            self.rate_max = SampleRate::new(self.curve.rate().part() * allowed / cost);
        } else if cost < allowed / 4.0 {
            self.rate_max = SampleRate::new((self.rate_max.part() * 2.0).min(1.0));
        }
        self.curve.limit_rate(self.rate_max);
        self.curve.on_period_end(keep);
        self.miniature.on_period_end(moment, keep, size, self.rate_max);
        (self.requests, self.started) = ([0; 2], moment.now);
    }
}

impl Cache {
    /// Shows a call to the watch of its volume.
    #[inline]
    pub(crate) fn watch(&mut self, moment: &mut Moment<'_>, volume: u16, call: &Call) {
        let state = self.volumes.get_mut(volume);
        let Some(watch) = &mut state.watch else { return };
        let access = match call.operation {
            Operation::Read => Access::Read,
            Operation::Write => Access::Write,
            _ => return,
        };
        if call.length == 0 {
            return;
        }
        let bytes = u64::from(self.spec.block_size.bytes());
        let (first, last) = (call.offset / bytes, (call.offset + call.length - 1) / bytes);
        for block in first..=last {
            watch.on_request(moment, BlockKey::new(state.id, BlockIndex(block)), access);
        }
    }

    /// Ends a period of a volume: what it showed, after which the past counts `keep` times as much.
    /// The first call begins the watch and shows nothing.
    ///
    /// # Errors
    /// `Closed` for an unknown volume, `Full` when [`VOLUMES_WATCHED_MAX`] others are watched.
    pub fn observe(
        &mut self,
        moment: &mut Moment<'_>,
        id: VolumeId,
        keep: f64,
    ) -> Result<Option<Observation>, ErrorKind> {
        let volume = self.volumes.number(id).ok_or(ErrorKind::Closed)?;
        let all: u64 = self.levels.iter().map(|level| u64::from(level.slots)).sum();
        if self.volumes.get(volume).watch.is_none() {
            let watched = self.volumes.iter().filter(|(_, state)| state.watch.is_some()).count();
            if watched >= VOLUMES_WATCHED_MAX {
                return Err(ErrorKind::Full);
            }
            let mut watch = Watch::new(moment.now, all.max(1) * SIZES_MAX);
            let counters = &self.volumes.get(volume).counters;
            (watch.hits_before, watch.misses_before) = (counters.hits, counters.misses);
            self.volumes.get_mut(volume).watch = Some(Box::new(watch));
            return Ok(None);
        }
        let mut held = [0; LEVELS_MAX];
        for (level, held) in self.levels.iter().zip(&mut held) {
            *held = level.holding(volume).used;
        }
        let levels = self.levels_of(volume);
        let state = self.volumes.get_mut(volume);
        let watch = state.watch.as_mut().expect("it was just looked for");
        let counters = &state.counters;
        let before = core::mem::replace(&mut watch.hits_before, counters.hits);
        let observation = Observation {
            volume: id,
            class: ClassId(state.class as u8),
            levels,
            curve: watch.curve.curve(),
            policies: watch.miniature.hit_ratios(),
            requests: watch.requests,
            hits: core::array::from_fn(|level| counters.hits[level] - before[level]),
            misses: counters.misses - core::mem::replace(&mut watch.misses_before, counters.misses),
            held,
            sized: state.sized,
            shares: state.shares,
        };
        let size = held.iter().map(|slots| u64::from(*slots)).sum();
        watch.end_period(moment, keep, size);
        Ok(Some(observation))
    }

    /// Gives a volume the shares that it was sized, in slots by level, or takes them from it. They
    /// rule whose room is taken when a level is full: nothing moves before somebody needs room, so
    /// nobody waits for the change, and no guarantee or cap yields to it.
    ///
    /// # Errors
    /// `Closed` for an unknown volume.
    pub fn set_sized(
        &mut self,
        id: VolumeId,
        sized: Option<[u32; LEVELS_MAX]>,
    ) -> Result<(), ErrorKind> {
        let volume = self.volumes.number(id).ok_or(ErrorKind::Closed)?;
        self.volumes.get_mut(volume).sized = sized;
        Ok(())
    }
}
