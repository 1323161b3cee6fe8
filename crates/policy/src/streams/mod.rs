//! Which write goes into which stream of a multi-stream device, so that what dies together lies
//! together: none, equal partition, `AutoStream` (SFR and MQ), FIOS and OFIOS.
//!
//! How: a [`StreamPolicy`] is shown every write in the order of time and cuts it into parts, each
//! with the stream it goes to. FIOS looks at a trace first ([`Fios::train`]); OFIOS trains itself
//! again and again on what it is shown.
//! Invariant: the parts of a write cover it exactly, in order; a stream is below
//! [`StreamPolicy::streams`]; the same writes give the same parts.
//! Cost: a look-up per chunk of a write; memory by chunks that were written.
//! Not for: reads, and file systems that never write to the same place again.
//!
//! Sources: Bhimani et al., ACM Transactions on Storage 18(2):17, 2022 (FIOS, OFIOS); Yang et al.,
//! `AutoStream`, SYSTOR 2017.

mod attributes;
mod autostream;
mod cluster;
mod coherency;
mod dictionary;
mod features;
mod fios;
mod fixed;
mod ofios;
mod selection;
#[cfg(test)]
mod tests;

pub use attributes::{Attributes, Judgement, Thresholds};
pub use autostream::{Exponent, Mq, MqParameters, Sfr, SfrParameters};
pub use coherency::Coherency;
pub use dictionary::Dictionary;
pub use features::{Scale, Sequentiality, Windows};
pub use fios::{Choice, Crossing, Fios, FiosParameters, Trained, Training};
pub use fixed::{EqualPartition, NoStreams};
pub use ofios::{Ofios, OfiosParameters};
pub use selection::{Feature, FeatureSet, Selection, select};

use alloc::vec::Vec;
use layby_types::Nanos;

/// A sector of a volume, counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sector(pub u64);

/// Bytes of a [`Sector`].
pub const SECTOR_BYTES: u64 = 512;

/// A stream, counted from zero. A device for which zero means "no stream" adds one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamNumber(pub u16);

/// Streams of one device.
pub struct StreamCount;

impl StreamCount {
    /// One stream: as without any.
    pub const MIN: u16 = 1;
    /// What four bits of a dictionary can name.
    pub const MAX: u16 = 16;
    /// The paper's.
    pub const DEFAULT: u16 = 16;
}

/// A write as a policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// When; never before the write shown last.
    pub at: Nanos,
    /// Its first sector.
    pub first: Sector,
    /// How many sectors; never zero.
    pub sectors: u32,
}

impl Write {
    /// The first sector after it.
    #[must_use]
    pub const fn end(&self) -> Sector {
        Sector(self.first.0 + self.sectors as u64)
    }
    /// The chunks of `chunk_sectors` that it touches: the first one, and the one after the last.
    fn chunks(&self, chunk_sectors: u32) -> core::ops::Range<u64> {
        let size = u64::from(chunk_sectors);
        self.first.0 / size..(self.end().0 - 1) / size + 1
    }
}

/// A part of a write, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its stream.
    pub stream: StreamNumber,
    /// Its first sector.
    pub first: Sector,
    /// How many sectors; never zero.
    pub sectors: u32,
}

/// Tags writes with streams.
pub trait StreamPolicy {
    /// How many streams it may name.
    fn streams(&self) -> u16;
    /// Replaces what `parts` holds with the parts of `write`, and learns from it.
    ///
    /// # Panics
    /// The write is empty, or ends beyond the volume that the policy was made for.
    fn tag(&mut self, write: &Write, parts: &mut Vec<Part>);
}

/// The whole write in one stream.
fn whole(write: &Write, stream: StreamNumber, parts: &mut Vec<Part>) {
    assert!(write.sectors > 0, "a write has a length");
    parts.clear();
    parts.push(Part { stream, first: write.first, sectors: write.sectors });
}

/// The write cut where the stream changes from one chunk to the next.
fn split(
    write: &Write,
    chunk_sectors: u32,
    parts: &mut Vec<Part>,
    stream_of: impl Fn(u64) -> StreamNumber,
) {
    assert!(write.sectors > 0, "a write has a length");
    parts.clear();
    for chunk in write.chunks(chunk_sectors) {
        let stream = stream_of(chunk);
        let begin = write.first.0.max(chunk * u64::from(chunk_sectors));
        let end = write.end().0.min((chunk + 1) * u64::from(chunk_sectors));
        let sectors = (end - begin) as u32;
        match parts.last_mut() {
            Some(last) if last.stream == stream => last.sectors += sectors,
            _ => parts.push(Part { stream, first: Sector(begin), sectors }),
        }
    }
}
