//! Levels whose device fails, for the log, the metrics and drains that wait.
//!
//! How: of each kind of operation the first failure is a notice; the others only renew it. It is
//! over when one of the kind ends well and none has failed for [`WELL_AFTER`]. A level that is not
//! trusted any more, since a flush failed, syncs no more, so that this stays until a restart.
//! Invariant: a notice per failure of a level, whatever the number of requests and blocks.
//! Cost: nothing while all ends well. Not for: devices that do not answer (see `stuck`), backing
//! stores, or bytes that are not what was written.

use super::{Core, Notice};
use crate::control::FailedLevel;
use crate::io::{Io, OperationKind};
use crate::store::DeviceFailure;
use layby_types::{ErrorKind, Nanos};

/// How long after a failure operations have to end well until the device is said to work.
const WELL_AFTER: Nanos = Nanos::from_secs(5);

/// A failure that is not over.
pub(super) struct Failed {
    level: usize,
    disk: String,
    first: DeviceFailure,
    since: Nanos,
    last: Nanos,
}

impl Failed {
    fn is(&self, level: usize, operation: OperationKind) -> bool {
        self.level == level && self.first.operation == operation
    }

    fn shown(&self, now: Nanos) -> FailedLevel {
        FailedLevel {
            level: self.level,
            disk: self.disk.clone(),
            failure: self.first,
            seconds: now.since(self.since).as_secs_f64(),
        }
    }
}

impl Core {
    /// An operation of a level's device has failed.
    pub(super) fn on_device_failed(&mut self, io: &dyn Io, level: usize, first: DeviceFailure) {
        let now = self.now;
        let mut open = self.failed.iter_mut();
        if let Some(known) = open.find(|failed| failed.is(level, first.operation)) {
            known.last = now;
            return;
        }
        let disk = super::stuck::level_disk(&self.levels[level]).expect("memory has no device");
        let disk = io.disk_name(disk).to_owned();
        let failed = Failed { level, disk, first, since: now, last: now };
        self.notices.push(Notice::LevelFailed(failed.shown(now)));
        self.failed.push(failed);
    }

    /// An operation of a kind that had failed has ended well.
    pub(super) fn on_device_works(&mut self, level: usize, operation: OperationKind) {
        let now = self.now;
        let is_over =
            |failed: &Failed| failed.is(level, operation) && now.since(failed.last) >= WELL_AFTER;
        let Some(index) = self.failed.iter().position(is_over) else { return };
        let failed = self.failed.remove(index);
        self.levels[level].forgive(operation);
        self.notices.push(Notice::LevelWorks(failed.shown(now)));
    }

    /// The levels whose device fails now, the first ones first.
    pub(super) fn failed_levels(&self) -> Vec<FailedLevel> {
        let mut failed: Vec<_> = self.failed.iter().map(|failed| failed.shown(self.now)).collect();
        failed.sort_by_key(|failed| (failed.level, failed.failure.operation));
        failed
    }

    /// Why a drain has ended with an error: by remedy, and in words.
    #[must_use]
    pub fn why_undrained(&self, kind: ErrorKind) -> (ErrorKind, String) {
        let faults = self.homes.keys().filter_map(|id| self.cache.destage_fault(*id)?.level);
        let levels: Vec<usize> = faults.map(|level| usize::from(level.0)).collect();
        let mut failed = self.failed_levels().into_iter();
        // Nothing that is merely unreadable keeps others from being made durable.
        let failed = failed.find(|failed| {
            kind != ErrorKind::Corrupt
                && failed.failure.operation != OperationKind::Read
                && levels.contains(&failed.level)
        });
        match failed {
            Some(failed) => (ErrorKind::Retry, failed.to_string()),
            None => (kind, kind.to_string()),
        }
    }
}
