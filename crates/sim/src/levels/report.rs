//! What came of a simulation: per volume hits and latency, per level writes and wear.
//!
//! How: hits and writes are the cache's own counters. In counting mode a read pays a look-up in
//! each level that its class may use down to the one that has it (PADSA, section IV.C: H is the
//! ratio among the requests that reach a level), a write the level that takes it; in queueing mode
//! latencies are those of the requests themselves.
//! Invariant: hits and misses add up to the blocks read.

use super::Mode;
use super::queue::Device;
use hdrhistogram::Histogram;
use layby_cache::{Cache, LEVELS_MAX, VolumeCounters};
use layby_types::{BlockSize, Call, LevelIndex, Nanos, Operation, RequestId, VolumeId};
use std::collections::{BTreeMap, HashMap};

/// The longest latency told apart: an hour, in nanoseconds.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// What one volume saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeReport {
    /// Blocks read that each level had.
    pub hits: [u64; LEVELS_MAX],
    /// Blocks read that no level had.
    pub misses: u64,
    /// Blocks written by the client into each level.
    pub writes: [u64; LEVELS_MAX],
    /// Blocks written past every level.
    pub writes_home: u64,
    /// Requests that ended in an error.
    pub errors: u64,
    /// Time that all blocks read took, in nanoseconds.
    pub read_ns: f64,
    /// Time that all blocks written took, in nanoseconds.
    pub write_ns: f64,
    /// Latency of reads at 50, 99 and 99.9 % in nanoseconds; zeros when counting.
    pub read_ns_quantiles: [u64; 3],
    /// The same for writes.
    pub write_ns_quantiles: [u64; 3],
}

impl VolumeReport {
    /// Blocks read.
    #[must_use]
    pub fn blocks_read(&self) -> u64 {
        self.hits.iter().sum::<u64>() + self.misses
    }

    /// Blocks written.
    #[must_use]
    pub fn blocks_written(&self) -> u64 {
        self.writes.iter().sum::<u64>() + self.writes_home
    }

    /// The part of the blocks read that some level had; zero when nothing was read.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        (self.blocks_read() - self.misses) as f64 / (self.blocks_read().max(1) as f64)
    }

    /// Adds another volume's blocks and times; quantiles stay.
    pub fn add(&mut self, other: &VolumeReport) {
        for level in 0..LEVELS_MAX {
            self.hits[level] += other.hits[level];
            self.writes[level] += other.writes[level];
        }
        self.misses += other.misses;
        self.writes_home += other.writes_home;
        self.errors += other.errors;
        self.read_ns += other.read_ns;
        self.write_ns += other.write_ns;
    }
}

/// What one level saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LevelReport {
    /// The model's name.
    pub name: String,
    /// Blocks stored: client writes, evictions from above, promotions.
    pub writes: u64,
    /// Blocks that left to make room.
    pub evictions: u64,
    /// Blocks copied home.
    pub destaged: u64,
    /// Bytes written to the device.
    pub bytes_written: u64,
    /// The part of the time that the device's channels were busy; zero when counting.
    pub utilisation: f64,
}

/// The whole node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Every volume that ever was.
    pub volumes: BTreeMap<VolumeId, VolumeReport>,
    /// Fastest first.
    pub levels: Vec<LevelReport>,
    /// Bytes written to the homes.
    pub home_bytes_written: u64,
    /// Bytes read from the homes.
    pub home_bytes_read: u64,
}

struct Started {
    volume: VolumeId,
    operation: Operation,
    blocks: u64,
    at: Nanos,
    copies: Nanos,
}

struct Latency {
    read: Histogram<u64>,
    write: Histogram<u64>,
    read_ns: f64,
    write_ns: f64,
    blocks_written: u64,
    errors: u64,
}

impl Latency {
    fn record(&mut self, started: &Started, now: Nanos) {
        let taken = now.since(started.at).saturating_add(started.copies).0.max(1);
        match started.operation {
            Operation::Read => {
                self.read.saturating_record(taken);
                self.read_ns += taken as f64;
            }
            Operation::Write => {
                self.write.saturating_record(taken);
                self.write_ns += taken as f64;
            }
            _ => {}
        }
    }
}

/// Follows the requests.
pub(super) struct Meter {
    mode: Mode,
    block_size: BlockSize,
    /// The request that came last, while it is in flight: when counting, there is no other.
    newest: Option<(RequestId, Started)>,
    older: HashMap<RequestId, Started>,
    latency: BTreeMap<VolumeId, Latency>,
    retired: BTreeMap<VolumeId, (VolumeCounters, u8)>,
}

impl Meter {
    pub(super) fn new(mode: Mode, block_size: BlockSize) -> Self {
        let (older, latency, retired) = (HashMap::new(), BTreeMap::new(), BTreeMap::new());
        Meter { mode, block_size, newest: None, older, latency, retired }
    }

    pub(super) fn add_volume(&mut self, id: VolumeId) {
        // Counting records no latency, and there may be thousands of volumes.
        let max = if self.mode == Mode::Queueing { LATENCY_NS_MAX } else { 2 };
        let histogram = || Histogram::new_with_max(max, 2).expect("sound bounds");
        self.latency.entry(id).or_insert_with(|| Latency {
            read: histogram(),
            write: histogram(),
            read_ns: 0.0,
            write_ns: 0.0,
            blocks_written: 0,
            errors: 0,
        });
    }

    /// Keeps the counters of a volume that is about to go.
    pub(super) fn retire(&mut self, cache: &Cache, id: VolumeId) {
        if let (Some(counters), Some(levels)) = (cache.volume_counters(id), levels_of(cache, id)) {
            self.retired.insert(id, (counters.clone(), levels));
        }
    }

    pub(super) fn start(&mut self, id: RequestId, volume: VolumeId, call: &Call, now: Nanos) {
        let (operation, copies) = (call.operation, Nanos::ZERO);
        let blocks = match call.length {
            0 => 0,
            length => {
                let last = self.block_size.block_of(call.offset + length - 1);
                last.0 - self.block_size.block_of(call.offset).0 + 1
            }
        };
        let started = Started { volume, operation, blocks, at: now, copies };
        if let Some((id, started)) = self.newest.replace((id, started)) {
            self.older.insert(id, started);
        }
    }

    /// Whether the request has begun and not ended.
    pub(super) fn is_in_flight(&self, id: RequestId) -> bool {
        let is_newest = self.newest.as_ref().is_some_and(|(newest, _)| *newest == id);
        is_newest || self.older.contains_key(&id)
    }

    /// A block came from memory within the request's own time.
    pub(super) fn add_copy(&mut self, id: RequestId, cost: Nanos) {
        let started = match &mut self.newest {
            Some((newest, started)) if *newest == id => Some(started),
            _ => self.older.get_mut(&id),
        };
        if let Some(started) = started {
            started.copies = started.copies.saturating_add(cost);
        }
    }

    pub(super) fn end(&mut self, id: RequestId, is_ok: bool, now: Nanos) {
        let started = match self.newest.take_if(|(newest, _)| *newest == id) {
            Some((_, started)) => started,
            None => self.older.remove(&id).expect("a request ends once"),
        };
        // Costs of reads are counted by level, not by request.
        if self.mode != Mode::Queueing && is_ok && started.operation == Operation::Read {
            return;
        }
        let Some(latency) = self.latency.get_mut(&started.volume) else { return };
        latency.errors += u64::from(!is_ok);
        if started.operation == Operation::Write {
            latency.blocks_written += started.blocks;
        }
        if self.mode == Mode::Queueing {
            latency.record(&started, now);
        }
    }

    /// See [`super::Machine::cost`].
    pub(super) fn cost(
        &self,
        cache: &Cache,
        id: VolumeId,
        devices: &[Device],
        home: &Device,
    ) -> Nanos {
        let counters = cache.volume_counters(id).zip(levels_of(cache, id));
        let Some(((counters, mask), latency)) = counters.zip(self.latency.get(&id)) else {
            return Nanos::ZERO;
        };
        let seen = counted(counters, latency, mask, devices, home);
        Nanos((seen.read_ns + seen.write_ns) as u64)
    }

    pub(super) fn report(
        &self,
        cache: &Cache,
        devices: &[Device],
        home: &Device,
        (mode, now): (Mode, Nanos),
    ) -> Report {
        let mut report = Report {
            home_bytes_written: home.bytes_written,
            home_bytes_read: home.bytes_read,
            ..Report::default()
        };
        for (id, latency) in &self.latency {
            let live = cache.volume_counters(*id).cloned().zip(levels_of(cache, *id));
            let Some((counters, mask)) = live.or_else(|| self.retired.get(id).cloned()) else {
                continue;
            };
            let mut volume = counted(&counters, latency, mask, devices, home);
            if mode == Mode::Queueing {
                measured(&mut volume, latency);
            }
            report.volumes.insert(*id, volume);
        }
        for (index, device) in devices.iter().enumerate() {
            let counters = cache.level_view(LevelIndex(index as u8), now).counters;
            let model = device.model();
            let room = now.0 as f64 * f64::from(model.channels.max(1));
            report.levels.push(LevelReport {
                name: model.name.clone(),
                writes: counters.writes,
                evictions: counters.evictions,
                destaged: counters.destaged,
                bytes_written: device.bytes_written,
                utilisation: match mode {
                    Mode::Counting | Mode::Destaging => 0.0,
                    Mode::Queueing => device.busy.0 as f64 / room.max(1.0),
                },
            });
        }
        report
    }
}

/// The levels that a volume's reads look into, as a mask.
fn levels_of(cache: &Cache, id: VolumeId) -> Option<u8> {
    let class = cache.class_of(id)?;
    let class = &cache.spec().classes[usize::from(class.0)];
    Some(if class.borrow { u8::MAX } else { class.levels })
}

fn counted(
    counters: &VolumeCounters,
    latency: &Latency,
    mask: u8,
    devices: &[Device],
    home: &Device,
) -> VolumeReport {
    let home = home.model();
    let mut report = VolumeReport {
        hits: counters.hits,
        misses: counters.misses,
        writes: counters.writes,
        errors: latency.errors,
        ..VolumeReport::default()
    };
    report.writes_home = latency.blocks_written.saturating_sub(counters.writes.iter().sum());
    let mut reached = 0.0;
    for (level, model) in devices.iter().map(Device::model).enumerate() {
        if mask & (1 << level) != 0 || counters.hits[level] > 0 {
            reached += model.read.0 as f64;
        }
        report.read_ns += counters.hits[level] as f64 * reached;
        report.write_ns += counters.writes[level] as f64 * model.write.0 as f64;
    }
    report.read_ns += counters.misses as f64 * (reached + home.read.0 as f64);
    report.write_ns += report.writes_home as f64 * home.write.0 as f64;
    report
}

fn measured(report: &mut VolumeReport, latency: &Latency) {
    let quantiles = |histogram: &Histogram<u64>| {
        [0.5, 0.99, 0.999].map(|part| histogram.value_at_quantile(part))
    };
    report.read_ns = latency.read_ns;
    report.write_ns = latency.write_ns;
    report.read_ns_quantiles = quantiles(&latency.read);
    report.write_ns_quantiles = quantiles(&latency.write);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a volume that nothing was read of has no hits. Method: none read, hits alone, both.
    #[test]
    fn nothing_read_is_no_hit() {
        let ratio = |hit: u64, misses: u64| {
            let mut report = VolumeReport { misses, ..VolumeReport::default() };
            report.hits[0] = hit;
            report.hit_ratio()
        };
        assert_eq!([ratio(0, 0), ratio(0, 3), ratio(3, 0), ratio(1, 3)], [0.0, 0.0, 1.0, 0.25]);
    }
}
