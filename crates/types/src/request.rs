//! What a client asks of a volume, whichever protocol carried it.

/// A request in flight, unique within its shard until completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What to do with a range of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Return the bytes of the range.
    Read,
    /// Replace the bytes of the range with the payload.
    Write,
    /// Make every write completed before this request durable.
    Flush,
    /// The range's contents are no longer needed; it reads as zeros afterwards.
    Trim,
    /// The range reads as zeros afterwards.
    WriteZeroes,
    /// Bring the range into the fastest level the volume may use.
    Cache,
    /// Say which parts of the range hold data.
    BlockStatus,
}

/// Modifiers of a call; each is meaningful only where its line says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallFlags {
    /// Write, Trim, WriteZeroes: durable before completion.
    pub fua: bool,
    /// WriteZeroes: keep the range allocated in the backing store.
    pub no_hole: bool,
    /// WriteZeroes: refuse at once unless it is faster than writing the zeros.
    pub fast_zero: bool,
    /// Read: answer in one piece.
    pub dont_fragment: bool,
    /// BlockStatus: answer with one extent only.
    pub one_extent: bool,
}

/// One client call: a protocol's cookie and what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The client's own mark, returned with the answer.
    pub cookie: u64,
    /// What to do.
    pub operation: Operation,
    /// First byte of the range.
    pub offset: u64,
    /// Bytes of the range; zero for Flush.
    pub length: u64,
    /// Modifiers.
    pub flags: CallFlags,
}

/// A run of bytes with one allocation status, as base:allocation of NBD reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of the run.
    pub length: u64,
    /// Nothing is allocated for the run below.
    pub hole: bool,
    /// The run reads as zeros.
    pub zero: bool,
}
