//! Counters of volumes and levels, collected for a snapshot.
//!
//! How: a meter per volume counts requests, bytes and latency; the rest is read from cache and
//! stores when asked. Cost: two histogram increments per request.

use super::{Core, Level};
use crate::control::{
    LOST_NAMED_MAX, LevelStats, LostRange, OperationStats, Snapshot, VolumeStats,
};
use crate::io::DiskId;
use crate::whole::name_ranges;
use hdrhistogram::Histogram;
use layby_types::{Call, LevelIndex, Nanos, Operation};

/// The longest latency told apart: an hour, in nanoseconds.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// Requests of one volume, by kind.
pub(super) struct VolumeMeter {
    read: OperationStats,
    write: OperationStats,
    other: OperationStats,
    /// Reads since the last observation, and the nanoseconds that they waited.
    reads: (u64, u64),
    /// Requests answered before their work ended.
    pub(super) timed_out: u64,
}

fn operation_stats() -> OperationStats {
    let latency_ns = Histogram::new_with_max(LATENCY_NS_MAX, 2).expect("the bounds are sound");
    OperationStats { requests: 0, bytes: 0, errors: 0, latency_ns }
}

impl VolumeMeter {
    pub(super) fn new() -> Self {
        let [read, write, other] = [(); 3].map(|()| operation_stats());
        VolumeMeter { read, write, other, reads: (0, 0), timed_out: 0 }
    }

    pub(super) fn count(&mut self, call: &Call, latency: Nanos, is_ok: bool) {
        if call.operation == Operation::Read {
            self.reads = (self.reads.0 + 1, self.reads.1 + latency.0);
        }
        let stats = match call.operation {
            Operation::Read => &mut self.read,
            Operation::Write => &mut self.write,
            _ => &mut self.other,
        };
        stats.requests += 1;
        stats.bytes += call.length;
        stats.errors += u64::from(!is_ok);
        stats.latency_ns.saturating_record(latency.0.max(1));
    }

    /// Reads since the last call, and the nanoseconds that they waited.
    pub(super) fn take_reads(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.reads)
    }
}

impl Core {
    /// Counters of everything the core knows.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let backing = self.cache.backing_counters();
        let levels = (0..self.levels.len()).map(|l| self.level_stats(l)).collect();
        let mut volumes: Vec<VolumeStats> =
            self.homes.iter().map(|(id, home)| self.volume_stats(*id, home)).collect();
        volumes.sort_unstable_by_key(|volume| volume.volume);
        Snapshot {
            queue_depth: volumes.iter().map(|volume| volume.queue_depth).sum(),
            volumes,
            levels,
            io_inflight: 0,
            backing_blocks_read: backing.blocks_read,
            backing_blocks_read_ahead: backing.blocks_read_ahead,
            backing_writes: backing.writes,
            backing_blocks_written: backing.blocks_written,
            cpu_ns: 0,
            classes: self.class_latencies(),
            ranks: Vec::new(),
            devices: Vec::new(),
            client_memory: Default::default(),
            stuck: self.stuck_places(),
            failed: self.failed_levels(),
            uptime_seconds: self.now.as_secs_f64(),
        }
    }

    /// The level that is a log, and its disk.
    #[must_use]
    pub fn log_disk(&self) -> Option<(usize, DiskId)> {
        self.log().map(|(index, log)| (index, log.disk()))
    }

    fn volume_stats(&self, id: layby_types::VolumeId, home: &super::Home) -> VolumeStats {
        let counters = self.cache.volume_counters(id).cloned().unwrap_or_default();
        let held = |l| self.cache.held_by(id, LevelIndex(l));
        let levels = 0..self.levels.len() as u8;
        VolumeStats {
            volume: id,
            read: home.stats.read.clone(),
            write: home.stats.write.clone(),
            other: home.stats.other.clone(),
            hits: counters.hits[..self.levels.len()].to_vec(),
            misses: counters.misses,
            slots: levels.clone().map(|l| u64::from(held(l).0) + u64::from(held(l).1)).collect(),
            slots_dirty: levels.map(|l| u64::from(held(l).2)).collect(),
            connections: 0,
            queue_depth: home.inflight,
            waits: Default::default(),
            discards: home.discards.stats(),
            timed_out: home.stats.timed_out,
            destage_fault: self.cache.destage_fault(id),
            lost: self.cache.lost().of_volume(id).map(|(_, count)| count).sum(),
        }
    }

    /// What is not known of each volume, by the bytes that its clients know.
    pub(super) fn lost_ranges(&self) -> Vec<LostRange> {
        let size = self.cache.spec().block_size;
        let mut found: Vec<LostRange> = Vec::new();
        for (first, count) in self.cache.lost().iter() {
            let (volume, start) = (first.volume(), size.offset_of(first.block()));
            let range = start..start + count * u64::from(size.bytes());
            if found.last().is_none_or(|last| last.volume != volume) {
                found.push(LostRange { volume, blocks: 0, ranges: 0, named: Vec::new() });
            }
            let last = found.last_mut().expect("it was just looked at, or pushed");
            last.blocks += count;
            let place = self.wides.place_of(volume);
            last.ranges += name_ranges(place, range, (&mut last.named, LOST_NAMED_MAX));
        }
        found
    }

    fn level_stats(&self, index: usize) -> LevelStats {
        let view = self.cache.level_view(LevelIndex(index as u8), self.now);
        let (mut wear, mut segments, mut discards) = (None, [0; 5], None);
        let (device_bytes_written, cleaned, corrupt, store_bytes) = match &self.levels[index] {
            Level::Memory(slab) => (slab.bytes_written, 0, 0, 0),
            Level::Nvm(store) => {
                let counters = store.counters();
                (counters.bytes_written, 0, counters.corrupt_blocks, store.memory_bytes())
            }
            Level::Ssd(store) => {
                let counters = store.counters();
                let block = u64::from(self.cache.spec().block_size.bytes());
                let cleaned = counters.bytes_relocated / block;
                wear = self.wear_stats(index, &counters);
                let (retired, suspect) = (store.segments_retired(), store.segments_suspect());
                let (count, bytes) = (u64::from(store.segment_count()), store.segment_bytes());
                let damaged = u64::from(store.segments_damaged());
                segments = [count, retired as u64, suspect as u64, bytes, damaged];
                discards = Some(store.discard_stats());
                (counters.bytes_device(), cleaned, counters.corrupt_blocks, store.memory_bytes())
            }
        };
        LevelStats {
            slots: u64::from(view.slots),
            slots_used: u64::from(view.used) + u64::from(view.borrowed),
            slots_dirty: u64::from(view.dirty),
            dirty_age_seconds: view.dirty_age.as_secs_f64(),
            hits: view.counters.hits,
            writes: view.counters.writes,
            evictions: view.counters.evictions,
            destaged: view.counters.destaged,
            device_bytes_written,
            cleaned,
            cleaning_dropped: view.counters.cleaning_dropped,
            cleaning_destaged: view.counters.cleaning_destaged,
            cleaning_reserved: view.counters.cleaning_reserved,
            corrupt,
            metadata_bytes: (view.memory_bytes + store_bytes) as u64,
            metadata_slack_bytes: view.slack_bytes as u64,
            waiting: u64::from(view.waiting),
            wear,
            segments: segments[0],
            segments_retired: segments[1],
            segments_suspect: segments[2],
            segment_bytes: segments[3],
            segments_damaged: segments[4],
            discards,
            hints: None,
        }
    }
}
