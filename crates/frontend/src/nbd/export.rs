//! What a node offers to one NBD peer: its exports and their properties.
//!
//! How: the daemon implements [`Exports`] for a peer whose identity it knows; the handshake asks.
//! Invariant: the handshake never names an export that `list` or `find` did not give it.
//! Cost: called during negotiation only; properties are copied into the session once.
//! Not for: live properties; a resized volume shows its new size to new connections.

use super::wire::transmission;
use layby_types::{BlockSize, VolumeId};

/// The longest read or write that any export accepts, 32 MiB: what every client may assume.
pub const REQUEST_LENGTH_MAX: u32 = 32 << 20;

/// A volume as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// The volume behind the export.
    pub volume: VolumeId,
    /// The canonical name, at most 4096 bytes of UTF-8.
    pub name: String,
    /// A line for people; may be empty.
    pub description: String,
    /// Bytes of the volume.
    pub size: u64,
    /// The size at which aligned requests are cheapest.
    pub block_size: BlockSize,
    /// The longest read or write accepted, at most [`REQUEST_LENGTH_MAX`].
    pub request_length_max: u32,
    /// Writes, trims and zeroes are refused.
    pub read_only: bool,
    /// Seeks cost time on what backs the volume.
    pub rotational: bool,
}

impl ExportInfo {
    /// An export of `volume` with the defaults: writable, not rotational, no description.
    #[must_use]
    pub fn new(volume: VolumeId, name: &str, size: u64) -> Self {
        ExportInfo {
            volume,
            name: name.to_owned(),
            description: String::new(),
            size,
            block_size: BlockSize::DEFAULT,
            request_length_max: REQUEST_LENGTH_MAX,
            read_only: false,
            rotational: false,
        }
    }
    /// The transmission flags that announce this export.
    pub(crate) fn transmission_flags(&self, structured: bool) -> u16 {
        use transmission as flag;
        let mut flags = flag::HAS_FLAGS
            | flag::SEND_FLUSH
            | flag::SEND_FUA
            | flag::CAN_MULTI_CONN
            | flag::SEND_CACHE;
        flags |= if self.read_only {
            flag::READ_ONLY
        } else {
            flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO
        };
        if self.rotational {
            flags |= flag::ROTATIONAL;
        }
        if structured {
            flags |= flag::SEND_DF;
        }
        flags
    }
}

/// Why a peer does not get an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportError {
    /// No export of that name, or none that this peer should know of.
    Unknown,
    /// The export exists, and this peer is not on its list.
    Denied,
    /// The node is going down.
    ShuttingDown,
    /// Another node has the volume by now.
    Taken,
}

/// The exports that one peer may see.
pub trait Exports {
    /// Names visible to this peer, at most 4096 bytes each.
    fn list(&self) -> Vec<String>;
    /// The export called `name`; the empty name asks for the default export.
    ///
    /// # Errors
    /// [`ExportError`] when this peer does not get it.
    fn find(&self, name: &str) -> Result<ExportInfo, ExportError>;
}
