//! Reads, writes and generates traces: which volume was read or written, where, how much and when.
//!
//! How: [`open`] tells a trace's format and gives a [`Reader`], which fills batches of [`Record`]s
//! from a stream. Generators draw the same records from a seeded `Rng`. A [`LinkTrace`] is what a
//! link carried over time, read or drawn.
//! Invariant: a bad trace gives an error with its place, or is counted when read leniently; nothing
//! panics. Every generated access lies whole within its footprint, and follows from its seed.
//! Cost: bounded memory and no allocation per record. Not for: deciding when an access is sent.
#![forbid(unsafe_code)]

mod blkparse;
mod csv;
mod error;
mod files;
mod fio;
mod fixed;
mod fleet;
mod format;
mod generate;
mod guard;
mod hash;
mod input;
mod link;
mod list;
mod open;
mod oracle;
mod overwrites;
mod page_head;
mod parquet;
mod record;
mod select;
mod sequential;
mod service;
mod summary;
mod text;
mod vehicle;
mod vscsi;
mod writer;
mod zipf;

pub use error::{FOUND_CHARS_MAX, Fault, Place, Reason, Skipped, TraceError};
pub use files::{Commit, Files, FilesSpec, Placement};
pub use fleet::{FleetEvent, FleetLoad, Pace};
pub use format::{Format, format_of_name};
pub use generate::{EXPONENT_MAX, Generator, GeneratorSpec, Shape};
pub use input::LINE_BYTES_MAX;
pub use link::{
    Fading, Handovers, LINK_SAMPLES_MAX, LinkParameters, LinkSample, LinkShape, LinkSpec,
    LinkState, LinkTrace, Outages, Rhythm, Slots, read_link, write_link,
};
pub use list::LIST_COUNT_MAX;
pub use open::{Trace, open, reader};
pub use overwrites::{Overwrites, OverwritesSpec, PageRun};
pub use record::{
    BATCH_RECORDS_MAX, BlockEvent, LENGTH_MAX, RANGE_END_MAX, ReadOptions, Reader, Record, Unit,
    VOLUMES_MAX,
};
pub use select::{Cutter, Sampler, Window};
pub use sequential::Sequential;
pub use service::{Pattern, SERVICES, Service, ServiceLoad, ServiceSpec, Workload};
pub use summary::{Counts, FOOTPRINT_BLOCKS_MAX, Summary};
pub use vehicle::{Stay, VehicleSpec, tracks_meta};
pub use writer::{NewTrace, Writer, Written, create, writer};
pub use zipf::{Scatter, Zipf};

use layby_types::Operation;

/// One access of a service to its volume: a read or a write of a whole range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// `Operation::Read` or `Operation::Write`.
    pub operation: Operation,
    /// First byte.
    pub offset: u64,
    /// Bytes, never zero.
    pub length: u64,
}
