//! Deliberate faults, so that the proof can show that it would find them.
//!
//! How: a place in the code asks [`is_planted`]; the answer is a constant no unless the feature
//! `planted` is on, which only the proof turns on, in a build of its own.
//! Invariant: without the feature no fault can be planted, and the question costs nothing.
//! Not for: faults of devices; simulated disks have those.

/// A fault of ours, as somebody might really make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Plant {
    /// A log's sync reports success without asking the device.
    MissingSync = 1,
    /// Blocks read from the log are not compared with their checksum.
    ChecksumIgnored,
    /// A checkpoint's trailer is written before its chunks are durable.
    TrailerFirst,
    /// Recovery prefers a checkpoint's entry to a newer batch.
    StaleIndex,
    /// A write leaves older copies in other levels.
    LostInvalidation,
    /// A request is answered twice.
    DoubleCompletion,
    /// Recovery reads one block less of every segment.
    SegmentEnd,
    /// A slot that is released still counts for its volume.
    ShareMiscount,
    /// Writes with FUA are taken for ordinary ones.
    FuaIgnored,
    /// At recovery a trim kills what was written after it.
    TrimReachesNewer,
    /// A flush is answered before the levels are synced.
    FlushEarly,
    /// Recovery ignores the last batch of the log.
    LastRecordIgnored,
    /// What goes home is not made durable there.
    HomeNotDurable,
    /// A clean block that a restart found leaves without a forget (a fault that the proof found).
    ForgetOmitted,
    /// What a write that failed may have left is not declared void: a batch's header stays, and so
    /// does a tombstone (a fault that the proof found).
    VoidOmitted,
    /// A write of a part of a block forgets the rest.
    MergeOmitted,
    /// A checkpoint drops the tombstones of discards that wait, and does not write down that their
    /// homes owe zeros.
    OwedOmitted,
    /// A segment of the log is discarded when it becomes empty, before a checkpoint has freed it.
    DiscardEarly,
    /// A write over a discard that waits leaves it waiting, so that it reaches the newer bytes.
    CancelOmitted,
    /// A write that cancels a discard is answered before a start would know of it.
    CancelEarly,
    /// The journal of a volume in the cloud lets go of a segment's writes before the store has it.
    JournalFreedEarly,
    /// The superblock in the store names segments that are still on their way there.
    SuperblockFirst,
    /// A sync of a volume in the cloud ends before its journal's.
    JournalSyncOmitted,
    /// A restore takes what the checkpoint has, and not the segments behind it.
    NewestSegmentsIgnored,
    /// Segments leave out what was zeroed.
    ZeroesNotUploaded,
    /// A node whose volume another one has taken goes on to replace the superblock.
    FenceIgnored,
    /// A segment is deleted while a replay from the last checkpoint needs it.
    DeletedEarly,
    /// A write or flush that was timed out, since a device did not answer, is answered as done.
    TimedOutAsDone,
    /// A request touches what one that was timed out may still change (a fault that the proof
    /// found).
    LateOverNewer,
    /// A change of a clean volume does not wait for its write intent.
    IntentOmitted,
    /// A volume is called clean once it is drained, whatever its discards and zeroings do.
    CleanEarly,
    /// A write-back without a lost level repeats no zeroing.
    WriteBackZeroesOmitted,
    /// The read cache of a volume in the cloud holds on to a block of which a newer version came.
    ReadCacheKeepsOlder,
    /// A volume's length is taken for one in whole blocks (a fault that a hunt found).
    LengthRounded,
    /// Pending discards behind the new end of a truncated backing store stay pending (a fault that
    /// a hunt found).
    DiscardsBehindEnd,
    /// A backing store is truncated while changes in flight reach behind its new end.
    CutEarly,
    /// An older copy of a level is taken for the level (a fault that a hunt found).
    OlderLevel,
    /// Cleaning drops a dirty block as if it were clean.
    CleanDropsDirty,
    /// Cleaning drops a block when its destage is issued, not when it has ended.
    CleanDropsBeforeSettled,
    /// Cleaning drops blocks that are reserved for a volume or class.
    CleanDropsReserved,
    /// Cleaning drops a block after its destage although it was overwritten meanwhile.
    CleanVerdictStale,
    /// A segment that cleaning has emptied is used again without a checkpoint.
    CleanReusedEarly,
    /// Cleaning waits for destages however few segments are free.
    CleanWaitsForBacking,
    /// An increment of a log's checkpoint does not say which slots were emptied.
    IncrementOmitsFreed,
    /// Recovery takes an increment whose base is another checkpoint.
    IncrementOnWrongBase,
    /// A removal that keeps the data takes the end of its drain for the end of dirty blocks (a
    /// fault that a hunt found).
    RemovalEarly,
    /// What lies behind a new end is zeroed while changes there are in flight (a fault that a hunt
    /// found).
    ZeroingEarly,
    /// A drain takes a block for written back once a newer version has replaced it.
    DrainOvertaken,
    /// A request that was abandoned is answered after its ring was given back.
    AbandonedAnswered,
    /// Recovery takes a batch from its copy that no batch vouches for, as one that failed.
    CopyUnvouched,
    /// A volume is called clean while a change of it waits for an intent that is recorded already
    /// (a fault that a hunt found).
    CleanWhileWanted,
    /// A segment in the store that no superblock names counts once its header is there (a fault
    /// that a hunt found).
    HeaderForWhole,
}

impl Plant {
    /// All of them.
    pub const ALL: [Plant; 52] = [
        Plant::MissingSync,
        Plant::ChecksumIgnored,
        Plant::TrailerFirst,
        Plant::StaleIndex,
        Plant::LostInvalidation,
        Plant::DoubleCompletion,
        Plant::SegmentEnd,
        Plant::ShareMiscount,
        Plant::FuaIgnored,
        Plant::TrimReachesNewer,
        Plant::FlushEarly,
        Plant::LastRecordIgnored,
        Plant::HomeNotDurable,
        Plant::ForgetOmitted,
        Plant::VoidOmitted,
        Plant::MergeOmitted,
        Plant::OwedOmitted,
        Plant::DiscardEarly,
        Plant::CancelOmitted,
        Plant::CancelEarly,
        Plant::JournalFreedEarly,
        Plant::SuperblockFirst,
        Plant::JournalSyncOmitted,
        Plant::NewestSegmentsIgnored,
        Plant::ZeroesNotUploaded,
        Plant::FenceIgnored,
        Plant::DeletedEarly,
        Plant::TimedOutAsDone,
        Plant::LateOverNewer,
        Plant::IntentOmitted,
        Plant::CleanEarly,
        Plant::WriteBackZeroesOmitted,
        Plant::ReadCacheKeepsOlder,
        Plant::LengthRounded,
        Plant::DiscardsBehindEnd,
        Plant::CutEarly,
        Plant::OlderLevel,
        Plant::CleanDropsDirty,
        Plant::CleanDropsBeforeSettled,
        Plant::CleanDropsReserved,
        Plant::CleanVerdictStale,
        Plant::CleanReusedEarly,
        Plant::CleanWaitsForBacking,
        Plant::IncrementOmitsFreed,
        Plant::IncrementOnWrongBase,
        Plant::RemovalEarly,
        Plant::ZeroingEarly,
        Plant::DrainOvertaken,
        Plant::AbandonedAnswered,
        Plant::CopyUnvouched,
        Plant::CleanWhileWanted,
        Plant::HeaderForWhole,
    ];
}

#[cfg(feature = "planted")]
static CHOSEN: core::sync::atomic::AtomicU8 = core::sync::atomic::AtomicU8::new(0);

/// Plants a fault in place of the one before, or none.
#[cfg(feature = "planted")]
pub fn plant(fault: Option<Plant>) {
    let number = fault.map_or(0, |fault| fault as u8);
    CHOSEN.store(number, core::sync::atomic::Ordering::SeqCst);
}

/// Whether this fault is to be made.
#[cfg(feature = "planted")]
#[must_use]
pub fn is_planted(fault: Plant) -> bool {
    CHOSEN.load(core::sync::atomic::Ordering::Relaxed) == fault as u8
}

/// Whether this fault is to be made: never, in a build for use.
#[cfg(not(feature = "planted"))]
#[inline(always)]
#[must_use]
pub const fn is_planted(_: Plant) -> bool {
    false
}
