//! Operations of a disk that wait, since the ring has as many of it as it takes at once.
//!
//! How: a queue per disk, in order; each end of an operation begins the next one. Extents and
//! discards, which go to the threads, wait in their queues.
//! Invariant: where an operation waits, as many of its disk are in flight as may be, so it begins
//! when one of them ends; one disk's operations wait for no other disk.
//! Cost: a comparison per operation. Not for: sockets and events, which have a few each.

use super::super::flights::Flight;
use super::super::{DiskId, IoOperation, Token};
use super::RingIo;

/// Operations of one disk that the ring has at once: no device is the faster for more, and the
/// kernel has room for so many ends. Clients may ask for more: each long read of a log that was
/// written at random is an operation per block.
const DISK_FLIGHTS_MAX: usize = 4096;

/// Of one ring.
pub(super) struct Turns {
    /// Operations of one disk at once.
    pub(super) most: usize,
    /// Those that waited and have begun since the last wait for ends began.
    pub(super) begun: Vec<Token>,
}

impl Default for Turns {
    fn default() -> Self {
        Turns { most: DISK_FLIGHTS_MAX, begun: Vec::new() }
    }
}

impl RingIo {
    /// Has the ring take so many operations of a disk at once.
    #[cfg(test)]
    pub(in crate::io) fn set_disk_flights_max(&mut self, most: usize) {
        self.turns.most = most;
    }

    /// Begins a disk's operation, or has it wait for those that the disk has.
    pub(super) fn begin_in_turn(&mut self, id: DiskId, flight: Flight) {
        let most = self.turns.most;
        let disk = self.disks[id.0 as usize].as_mut().expect("the disk is attached");
        if disk.in_flight >= most {
            return disk.waiting.push_back(flight);
        }
        assert!(disk.waiting.is_empty(), "an operation waits beside an idle disk");
        self.begin(id, flight);
    }

    fn begin(&mut self, id: DiskId, flight: Flight) {
        let disk = self.disks[id.0 as usize].as_mut().expect("the disk is attached");
        disk.in_flight += 1;
        let slot = self.flights.insert(flight);
        self.start(slot);
    }

    /// An operation has left the ring: the next one of its disk begins.
    pub(super) fn leave_disk(&mut self, operation: &IoOperation) {
        let id = operation.disk().expect("sockets and events are left otherwise");
        // Of a disk that was detached nothing waits.
        let Some(disk) = self.disks[id.0 as usize].as_mut() else { return };
        disk.in_flight -= 1;
        if disk.in_flight < self.turns.most
            && let Some(next) = disk.waiting.pop_front()
        {
            self.turns.begun.push(next.token);
            self.begin(id, next);
        }
    }

    /// Begins all that waits: its disk is about to be detached.
    pub(super) fn begin_all(&mut self, id: DiskId) {
        let disk = self.disks[id.0 as usize].as_mut().expect("a disk is detached once");
        for flight in std::mem::take(&mut disk.waiting) {
            self.begin(id, flight);
        }
    }
}
