//! Why what a user recorded gives no figures that mean anything.
//!
//! Invariant: each reason names the bound and what was found. Not for: files that cannot be read.

use layby_types::Nanos;
use std::fmt;

/// See the file's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfit {
    /// A trace without writes.
    Writes,
    /// A trace of objects, which have identifiers and no place on a device.
    Objects,
    /// A write that no device has room for.
    Range {
        /// Its first byte.
        offset: u64,
        /// Its bytes.
        length: u64,
    },
    /// A trace whose writes touch too little or too much for a device.
    Footprint {
        /// What they touch, in pages of 4 KiB, rounded up to whole chunks.
        pages: u32,
        /// The least that says anything.
        least: u32,
        /// The most that is replayed.
        most: u32,
    },
    /// A recording of no vehicles.
    Vehicles,
    /// A recording whose vehicles are in sight for too short a time.
    Brief {
        /// For how long at least one is.
        in_sight: Nanos,
        /// For how long one has to be.
        least: Nanos,
    },
    /// A recording with more vehicles at once than a node sizes services for.
    Crowded {
        /// The most that are there at once.
        at_once: usize,
        /// The most that can be.
        most: usize,
    },
    /// A recording with more vehicles than there are numbers for their services' volumes.
    Many {
        /// Those it has.
        vehicles: usize,
        /// The most that it may have.
        most: usize,
    },
    /// A link of too few intervals.
    Short {
        /// Those it has.
        intervals: usize,
        /// Those it needs.
        least: usize,
    },
    /// A link that carries the same in every interval.
    Even {
        /// Bytes per second.
        bytes_per_second: u64,
    },
    /// A link whose lines hold for times that differ.
    Uneven {
        /// The shortest of them.
        shortest: Nanos,
        /// The longest of them.
        longest: Nanos,
    },
}

/// Pages of 4 KiB in a MiB.
const PAGES_PER_MIB: u32 = 256;

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Writes => f.write_str("the trace holds no writes"),
            Unfit::Objects => {
                f.write_str("it is a trace of objects, whose identifiers are no bytes of a device")
            }
            Unfit::Range { offset, length } => {
                write!(f, "a write of {length} bytes at byte {offset} lies on no device")
            }
            Unfit::Footprint { pages, least, most } => write!(
                f,
                "its writes touch {} MiB; a device is made for {} to {} MiB",
                pages.div_ceil(PAGES_PER_MIB),
                least / PAGES_PER_MIB,
                most / PAGES_PER_MIB
            ),
            Unfit::Vehicles => f.write_str("the recording holds no vehicles"),
            Unfit::Brief { in_sight, least } => write!(
                f,
                "its vehicles are in sight for {} s; levels are sized by what they did, which \
                 shows from {} s on",
                in_sight.as_secs_f64(),
                least.as_secs_f64()
            ),
            Unfit::Crowded { at_once, most } => write!(
                f,
                "it has {at_once} vehicles at once; a node shares its levels among the services \
                 of at most {most}"
            ),
            Unfit::Many { vehicles, most } => write!(
                f,
                "it has {vehicles} vehicles; the volumes of their services have numbers for at \
                 most {most}"
            ),
            Unfit::Short { intervals, least } => write!(
                f,
                "it has {intervals} intervals; forecasts warm up and requests end within {least}"
            ),
            Unfit::Even { bytes_per_second } => write!(
                f,
                "it carries {bytes_per_second} bytes per second in every interval, so no forecast \
                 errs and there is nothing to compare"
            ),
            Unfit::Uneven { shortest, longest } => write!(
                f,
                "its lines hold from {} s to {} s; forecasts, means and requests count in \
                 intervals of one length",
                shortest.as_secs_f64(),
                longest.as_secs_f64()
            ),
        }
    }
}

impl std::error::Error for Unfit {}
