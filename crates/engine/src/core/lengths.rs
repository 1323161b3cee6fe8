//! Resizing: the lengths of volumes and of their backing stores.
//!
//! How: a backing store is extended before its volume grows. The rest of the old last block is
//! zeroed, since a file that was not truncated once has old bytes there. A volume that shrinks is
//! zeroed behind its new end first, in steps, once the changes have ended that were in flight
//! there; no client changes anything there meanwhile. From then on no operation is submitted there.
//! The file is truncated when none in flight reaches behind the new end and the catalog has the new
//! length.
//! Invariant: a backing store is never shorter than its volume. Lengths are in bytes: a last block
//! may be partial. Cost: a walk over the operations in flight per truncation.
//! Not for: the zeroing itself, see `shard/commands.rs`; the catalog.

use super::answer::Destination;
use super::{Asker, Core, Home, Request};
use crate::io::Io;
use layby_types::planted::{Plant, is_planted};
use layby_types::{Call, ErrorKind, Operation, VolumeId};

impl Core {
    /// Bytes of a volume, zero for an unknown one.
    #[must_use]
    pub fn length_of(&self, volume: VolumeId) -> u64 {
        if is_planted(Plant::LengthRounded) {
            return self.end_of(volume);
        }
        self.cache.length_of(volume)
    }

    /// Where a volume's last block ends, in bytes.
    #[must_use]
    pub fn end_of(&self, volume: VolumeId) -> u64 {
        self.cache.blocks_of(volume) * u64::from(self.cache.spec().block_size.bytes())
    }

    /// Whether a client's call reaches behind the volume's end, which may lie within a block: one
    /// that connected before the volume shrank does not know better. The shard's own zeroings may.
    /// While these go on, no change is behind the end that the volume will have.
    pub(super) fn is_behind_end(&self, asker: Asker, volume: VolumeId, call: &Call) -> bool {
        let Some(home) = self.homes.get(&volume).filter(|_| !asker.is_own()) else { return false };
        let ending = home.ending.filter(|_| is_change(call.operation)).unwrap_or(u64::MAX);
        let end = call.offset.checked_add(call.length);
        end.is_none_or(|end| end > self.length_of(volume).min(ending))
    }

    /// Clients change nothing behind this byte from now on, since what lies there is being zeroed;
    /// none takes that back.
    pub fn set_ending(&mut self, volume: VolumeId, ending: Option<u64>) {
        if let Some(home) = self.homes.get_mut(&volume) {
            home.ending = ending;
        }
    }

    /// Whether changes that clients were let begin before reach behind this byte of a volume: what
    /// they store, now or after a wait for room or for a block, would lie over a zeroing there. One
    /// that was timed out does not count, since the zeroing itself is refused until it has ended.
    #[must_use]
    pub fn has_changes_behind(&self, volume: VolumeId, end: u64) -> bool {
        let reaches = |entry: &Request| {
            entry.volume == volume
                && !entry.asker.is_own()
                && is_change(entry.call.operation)
                && entry.call.offset.saturating_add(entry.call.length) > end
                && !matches!(entry.destination, Destination::TimedOut)
        };
        !is_planted(Plant::ZeroingEarly) && self.requests.values().any(reaches)
    }

    /// Whether the volume's home is a file or device, which may hold bytes behind the volume's end.
    #[must_use]
    pub fn has_file(&self, volume: VolumeId) -> bool {
        self.homes.get(&volume).is_some_and(|home| !home.backing.is_remote())
    }

    /// Whether the volume's home is an object store, for which a request may wait for hours.
    #[must_use]
    pub fn has_remote_home(&self, volume: VolumeId) -> bool {
        self.homes.get(&volume).is_some_and(|home| home.backing.is_remote())
    }

    /// Reads in flight at a remote home that reach behind this byte of a volume end soon, with an
    /// error: what lies there is being given up, and its zeroing is queued behind them. Their bytes
    /// reach no level, however late the home has them.
    pub fn give_up_reads(&mut self, volume: VolumeId, from: u64) {
        if let Some(home) = self.homes.get_mut(&volume) {
            home.backing.give_up_reads(from);
        }
    }

    /// A volume, or a part of one, ends here from now on; its home is to be cut. What is read there
    /// meanwhile may come back short.
    pub fn end_home(&mut self, volume: VolumeId, length: u64) {
        if let Some(home) = self.homes.get_mut(&volume) {
            home.backing.end_at(length);
        }
    }

    /// Whether something that its home was asked for reaches behind this length of the volume.
    #[must_use]
    pub fn is_home_reached(&self, volume: VolumeId, length: u64) -> bool {
        let is_reached = |home: &Home| home.backing.is_reached(length);
        self.homes.get(&volume).is_some_and(is_reached) && !is_planted(Plant::CutEarly)
    }

    /// Gives the home of a volume that had `before` bytes another length. A file that is longer
    /// than its volume was keeps the rest.
    ///
    /// # Errors
    /// Why it stays as it was, sorted by remedy, with the cause.
    pub fn resize_home(
        &mut self,
        io: &mut dyn Io,
        volume: VolumeId,
        (before, length): (u64, u64),
    ) -> Result<(), (ErrorKind, String)> {
        let Some(home) = self.homes.get_mut(&volume) else { return Ok(()) };
        home.backing.resize(io, (before, length))?;
        self.drop_discards_behind(io, volume, length);
        Ok(())
    }

    /// Gives a volume's home the length of the whole volume, also where this is a part of it.
    ///
    /// # Errors
    /// As [`Core::resize_home`]; `Closed` where there is no such volume.
    pub fn resize_whole_home(
        &mut self,
        io: &mut dyn Io,
        volume: VolumeId,
        (before, length): (u64, u64),
    ) -> Result<(), (ErrorKind, String)> {
        let lengths = (before, length);
        let Some(home) = self.homes.get_mut(&volume) else {
            return Err((ErrorKind::Closed, "no such volume".into()));
        };
        match self.wides.has(volume) {
            true => home.backing.resize_whole(io, lengths)?,
            false => home.backing.resize(io, lengths)?,
        }
        let own = home.backing.own_length(length);
        self.drop_discards_behind(io, volume, own);
        Ok(())
    }

    /// A volume, or a part of one, ends here, or where its file does: what waits behind the end is
    /// done for. The zeroing of a shrink was sent, and a truncated file would refuse it for ever.
    pub(super) fn drop_discards_behind(&mut self, io: &mut dyn Io, id: VolumeId, length: u64) {
        let Some(home) = self.homes.get_mut(&id).filter(|_| !is_planted(Plant::DiscardsBehindEnd))
        else {
            return;
        };
        let end = home.backing.length(io).map_or(length, |there| there.min(length));
        home.discards.table.forget(end..u64::MAX);
        let first = self.cache.spec().block_size.block_of(end).0;
        self.end_delays(io, id, first..u64::MAX);
    }
}

fn is_change(operation: Operation) -> bool {
    matches!(operation, Operation::Write | Operation::Trim | Operation::WriteZeroes)
}
