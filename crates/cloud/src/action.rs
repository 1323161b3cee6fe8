//! What a volume asks of its host, and how that ends.
//!
//! How: the volume is a state machine without I/O; it hands out actions with a number each and
//! hears their ends. Hosts perform writes and syncs of the journal in the order given, and the map
//! file's, too; all else may end in any order.
//! Invariant: each action ends exactly once, or its host is gone. Cost: plain values.
//! Not for: the clients' calls; these are `layby_types::Backing`'s.

use crate::map::MapImage;
use bytes::Bytes;
use layby_types::Nanos;
use std::ops::Range;

/// An action's number, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActionId(pub u64);

/// Something for the host to do.
#[derive(Clone, Debug)]
pub enum Action {
    /// Write bytes at a byte of the journal's device.
    JournalWrite {
        /// First byte of the device.
        at: u64,
        /// What to write.
        bytes: Vec<u8>,
    },
    /// Make all journal writes that ended durable.
    JournalSync,
    /// Read bytes of the journal's device.
    JournalRead {
        /// First byte of the device.
        at: u64,
        /// Bytes.
        length: u64,
    },
    /// Write bytes at a byte of the read cache, which nothing makes durable.
    CacheWrite {
        /// First byte.
        at: u64,
        /// What to write.
        bytes: Vec<u8>,
    },
    /// Read bytes of the read cache.
    CacheRead {
        /// First byte.
        at: u64,
        /// Bytes.
        length: u64,
    },
    /// Encode the map beside the volume's own work; ends with the bytes, and without the image.
    EncodeMap(MapImage),
    /// Append to the map file, durably. Behind a change of that file that failed, none is made: all
    /// fail until the volume is opened again.
    MapAppend(Vec<u8>),
    /// Replace the map file as a whole, durably; see [`Action::MapAppend`].
    MapReplace(Vec<u8>),
    /// Ask the object store.
    Object(Request),
    /// Get what a client waits for from the object store.
    Fetch(Request),
    /// Put a segment into the object store, when it is the volume's turn.
    Upload {
        /// The put.
        request: Request,
        /// Since when its oldest byte has been dirty, by the volume's clock.
        since: Nanos,
    },
}

/// A request to the object store; keys are below the volume's prefix.
#[derive(Clone, Debug)]
pub enum Request {
    /// Fetch an object, or a range of its bytes.
    Get {
        /// Which.
        key: String,
        /// Bytes of it; all without.
        range: Option<Range<u64>>,
    },
    /// Store an object.
    Put {
        /// Which.
        key: String,
        /// Its contents.
        bytes: Bytes,
        /// When.
        condition: Condition,
    },
    /// Remove an object; one that is not there is removed.
    Delete {
        /// Which.
        key: String,
    },
    /// Remove objects, in any order; a fault may leave any of them.
    DeleteMany {
        /// Which.
        keys: Vec<String>,
    },
    /// Name the objects whose keys begin so; of a folder the files beside the volume's, too, see
    /// [`crate::temporary_of`].
    List {
        /// How keys begin.
        prefix: String,
    },
}

impl Request {
    /// Bytes that it takes to the store, names and headers left out.
    #[must_use]
    pub fn bytes_put(&self) -> u64 {
        match self {
            Request::Put { bytes, .. } => bytes.len() as u64,
            _ => 0,
        }
    }
}

/// A version of an object, in the store's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag(pub String);

/// When a put may go through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Where there is no such object.
    Create,
    /// Where the object still is this version.
    Replace(Tag),
}

/// How an action ended.
#[derive(Clone, Debug)]
pub enum End {
    /// Done, with nothing to say.
    Done,
    /// Bytes that were read, and the object's version.
    Bytes(Bytes, Option<Tag>),
    /// Stored as this version.
    Stored(Tag),
    /// Keys, in any order.
    Keys(Vec<String>),
    /// Not done, or perhaps done: the store knows.
    Failed(Fault),
}

/// Why an action failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Sorted by remedy.
    pub kind: FaultKind,
    /// In the device's or the store's words.
    pub cause: String,
}

/// Faults by remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A passing fault, a timeout, a lost reply: ask again.
    Retry,
    /// There is no such object.
    NotFound,
    /// The object is there and ends before the first byte of the range that was asked for.
    Short,
    /// The condition of a put does not hold.
    Condition,
    /// The store refuses: credentials or permissions. Asked again, since people mend it.
    Denied,
    /// A local device failed.
    Device,
    /// The program that asks is ending: the request may not have been sent, and nothing was learned
    /// of the store.
    Closed,
}
