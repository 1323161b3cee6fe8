//! Places for destages: how many may be in flight, by the device of the backing store.
//!
//! How: volumes whose backing stores lie on one device share as many places as the limit says; one
//! with a device of its own, as in an object store, has as many for itself. A device that is slow
//! or silent keeps its own places only. All together are bounded, too: behind that bound each
//! device has one place, for a short run.
//! Invariant: what is in flight to a backing store that does not answer counts for its volume only.
//! Cost: a look into a small table per candidate. Where backing stores lie on several devices, and
//! while a destage is in flight, a level is swept once a millisecond and at each end of a destage:
//! what waits for a full device would be looked at in vain at every event.

use crate::cache::Cache;
use crate::hash::FixedMap;
use crate::spec::LEVELS_MAX;
use crate::volumes::Volumes;
use layby_types::{Nanos, VolumeId};

/// As many times the limit are in flight at most, but for a short run per device.
const DEVICES_FULL_MAX: u32 = 16;
/// The part of the merge size that a short run has.
const SHORT_RUN: u32 = 16;

/// See the file's header.
pub(crate) struct Places {
    /// Destages in flight to one device at most.
    limit: u32,
    /// Destages in flight, but for those to backing stores that do not answer.
    taken: u32,
    /// Of these, those to each device that backing stores share.
    on_device: FixedMap<u64, u32>,
    /// Backing stores lie on several devices.
    has_devices: bool,
    /// When each level is swept again, unless a destage ends before.
    sweep_not_before: [Nanos; LEVELS_MAX],
}

impl Places {
    pub(crate) fn new(limit: u16) -> Self {
        let (on_device, has_devices) = (FixedMap::default(), false);
        let sweep_not_before = [Nanos::ZERO; LEVELS_MAX];
        Places { limit: limit.into(), taken: 0, on_device, has_devices, sweep_not_before }
    }

    pub(crate) fn set_limit(&mut self, limit: u16) {
        self.limit = limit.into();
    }

    /// Whether some device may have no place left while others have.
    pub(crate) fn may_differ(&self) -> bool {
        self.has_devices && self.taken > 0
    }

    /// Whether a sweep of the level would hardly find anything that the last one did not.
    pub(crate) fn rests(&self, level: usize, now: Nanos) -> bool {
        now < self.sweep_not_before[level]
    }

    /// The level has been swept until nothing was found that may begin.
    pub(crate) fn note_swept(&mut self, level: usize, until: Nanos) {
        if self.may_differ() {
            self.sweep_not_before[level] = until;
        }
    }

    /// What may begin has changed.
    pub(crate) fn sweep_again(&mut self) {
        self.sweep_not_before.fill(Nanos::ZERO);
    }

    /// Bytes of a run at most, where it is to have `merge_bytes`.
    pub(crate) fn run_bytes(&self, merge_bytes: u32) -> u32 {
        if self.are_many() { merge_bytes / SHORT_RUN } else { merge_bytes }
    }

    fn are_many(&self) -> bool {
        self.taken >= self.limit.saturating_mul(DEVICES_FULL_MAX)
    }

    fn add(&mut self, device: Option<u64>, count: i32) {
        let add = |places: &mut u32| {
            *places = places.checked_add_signed(count).expect("as many were counted");
        };
        add(&mut self.taken);
        if let Some(device) = device {
            let places = self.on_device.entry(device).or_default();
            add(places);
            if *places == 0 {
                self.on_device.remove(&device);
            }
        }
    }
}

impl Volumes {
    /// Whether a destage of the volume may begin.
    pub(crate) fn has_place(&self, number: u16) -> bool {
        let (state, places) = (self.get(number), &self.places);
        let shared = |device| places.on_device.get(&device).copied().unwrap_or_default();
        let beside = state.device.map_or(state.destages_inflight, shared);
        beside < places.limit && (beside == 0 || !places.are_many())
    }

    /// Whether the volume's dirty blocks wait for a device that is not the asker's.
    pub(crate) fn waits_elsewhere(&self, number: u16, asker: Option<u16>) -> bool {
        let is_elsewhere = |asker: u16| {
            let (device, asked) = (self.get(number).device, self.get(asker).device);
            asker != number && (device.is_none() || device != asked)
        };
        self.places.may_differ() && asker.is_some_and(is_elsewhere) && !self.has_place(number)
    }
}

impl Cache {
    /// Says on which device a volume's backing store lies; `None` is one of its own. Volumes share
    /// a device unless this says something else. Before the volume's first request.
    pub fn set_device(&mut self, id: VolumeId, device: Option<u64>) {
        if let Some(number) = self.volumes.number(id) {
            let state = self.volumes.get_mut(number);
            assert_eq!(state.destages_inflight, 0, "a volume that has just been added");
            state.device = device;
            let others = || self.volumes.iter().filter(|(other, _)| *other != number);
            let differs = others().any(|(_, other)| device.is_none() || other.device != device);
            self.volumes.places.has_devices |= differs;
        }
    }

    /// Whether a destage of any volume with something dirty in the level may begin.
    pub(crate) fn has_any_place(&self, level: usize) -> bool {
        let (held, volumes) = (&self.levels[level], &self.volumes);
        let places = &volumes.places;
        if !places.has_devices {
            return places.taken < places.limit;
        }
        places.taken == 0
            || volumes.iter().any(|(n, _)| held.holding(n).dirty > 0 && volumes.has_place(n))
    }

    /// A destage of the volume began.
    pub(crate) fn count_destage(&mut self, number: u16) {
        let volume = self.volumes.get_mut(number);
        volume.destages_inflight += 1;
        let device = volume.device;
        self.volumes.places.add(device, 1);
    }

    /// A destage of the volume ended.
    pub(crate) fn uncount_destage(&mut self, number: u16) {
        let volume = self.volumes.get_mut(number);
        volume.destages_inflight -= 1;
        let (device, is_stuck) = (volume.device, volume.is_stuck);
        self.volumes.places.sweep_again();
        if !is_stuck {
            self.volumes.places.add(device, -1);
        }
    }

    /// The volume's backing store does not answer, or does again: what is in flight there counts
    /// for it alone, or for its device.
    pub(crate) fn move_places(&mut self, number: u16) {
        let volume = self.volumes.get(number);
        let (device, inflight) = (volume.device, volume.destages_inflight as i32);
        let count = if volume.is_stuck { -inflight } else { inflight };
        self.volumes.places.add(device, count);
        self.volumes.places.sweep_again();
    }
}
