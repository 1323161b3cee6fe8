//! Durable writes that failed, while it is not known whether their sync did.
//!
//! How: such a write is repeated without its sync, and where that ends well, the sync is what
//! failed. The kernel has told its error by then: a sync, or another durable write of the disk,
//! ends well though the device may have dropped what it covers. Such ends are held until the
//! repetitions that are in flight have ended; where one shows that a sync failed, they are errors.
//! Invariant: what is held ends behind the write that it waits for, and waits for no later one.
//! Cost: nothing, unless a durable write fails. Not for: syncs that fail by themselves, which say
//! so at once. With threads, another thread's end may be noted between the kernel's error and
//! [`Suspects::begin`].

use super::flights::Flight;
use super::{DiskId, IoDone, IoError, IoOperation};

/// All such writes of one `Io`, with what waits for them.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    /// Those whose repetition is in flight, by their disk.
    repeated: Vec<(u64, DiskId)>,
    held: Vec<Held>,
    begun_total: u64,
}

/// An operation that ended well.
#[derive(Debug)]
struct Held {
    done: IoDone,
    /// Suspects that have not ended, of those that there were when it ended.
    awaited: Vec<u64>,
    /// A sync did fail.
    refused: Option<IoError>,
}

impl Suspects {
    /// A durable write has failed, and is about to be repeated.
    pub(super) fn begin(&mut self, disk: DiskId) -> u64 {
        self.begun_total += 1;
        self.repeated.push((self.begun_total, disk));
        self.begun_total
    }

    /// The end of any flight: moves to `done` what may be told by now.
    pub(super) fn end(
        &mut self,
        flight: Flight,
        result: Result<usize, IoError>,
        done: &mut Vec<IoDone>,
    ) {
        let suspect = flight.suspect;
        let awaited = match result {
            Ok(_) => self.awaited_by(&flight.operation),
            Err(_) => Vec::new(),
        };
        let ended = flight.end(result);
        if !awaited.is_empty() {
            return self.held.push(Held { done: ended, awaited, refused: None });
        }
        let refused = ended.result.err().filter(|_| ended.is_sync_failed);
        done.push(ended);
        if let Some(number) = suspect {
            self.on_repeated(number, refused, done);
        }
    }

    /// The suspects of the disk, if what ended makes anything durable.
    fn awaited_by(&self, operation: &IoOperation) -> Vec<u64> {
        let (IoOperation::Sync { disk } | IoOperation::Write { disk, durable: true, .. }) =
            operation
        else {
            return Vec::new();
        };
        let of_disk = self.repeated.iter().filter(|(_, of)| of == disk);
        of_disk.map(|(number, _)| *number).collect()
    }

    /// A suspect has ended; its sync failed where `refused` says so.
    fn on_repeated(&mut self, number: u64, refused: Option<IoError>, done: &mut Vec<IoDone>) {
        self.repeated.retain(|(of, _)| *of != number);
        for held in &mut self.held {
            let before = held.awaited.len();
            held.awaited.retain(|awaited| *awaited != number);
            if held.awaited.len() < before {
                held.refused = held.refused.or(refused);
            }
        }
        for mut held in self.held.extract_if(.., |held| held.awaited.is_empty()) {
            if let Some(error) = held.refused {
                held.done.result = Err(error);
            }
            done.push(held.done);
        }
    }
}
