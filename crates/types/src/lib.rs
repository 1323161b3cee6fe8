//! The words every room shares: addresses, sizes, instants, chance, requests, and their traits.
//!
//! How: plain values with a newtype per meaning, so that a slot can never be passed for a block.
//! Invariant: nothing here reads a clock, does I/O or draws chance of its own.
//! Cost: every type is `Copy` or a thin owner; nothing allocates but the parsers' errors.
//! Not for: anything that only one room needs; that lives in the room.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod address;
mod backing;
mod error;
mod guest;
mod instant;
pub mod parity;
pub mod pauses;
pub mod planted;
mod request;
mod rng;
mod session;
mod size;
mod stripes;
mod volume;

pub use address::{
    BlockIndex, BlockKey, BlockSize, ClassId, LevelIndex, Seq, ShardIndex, Slot, VolumeId,
};
pub use backing::{Backing, BackingDone, BackingOperation};
pub use error::ErrorKind;
pub use guest::{GuestRing, Taken};
pub use instant::{Nanos, parse_duration};
pub use request::{Call, CallFlags, Extent, Operation, RequestId};
pub use rng::Rng;
pub use session::{Cipher, Parsed, Session, SessionError};
pub use size::{ByteSize, ParseRateError, ParseSizeError, format_bytes, parse_bytes, parse_rate};
pub use stripes::Stripes;
pub use volume::{Volume, VolumeDone};
