//! oracleGeneral of libCacheSim: binary records of 24 bytes, an object each.
//!
//! A record is, in little-endian: time in seconds (u32), identifier (u64), size in bytes (u32), and
//! the number of the record that names the object next, or -1 (i64). The format knows no operation,
//! so every record is a read, and no volume.
//! Invariant: times count from the first record. Cost: see `docs/traces.md` for records per second.

use crate::error::Fault;
use crate::fixed::{Layout, eight, four};
use crate::guard::Origin;
use crate::record::Record;
use layby_types::{Nanos, Operation, VolumeId};

/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = 24;

/// Decodes oracleGeneral.
#[derive(Clone, Debug, Default)]
pub(crate) struct Oracle {
    origin: Origin,
}

impl Layout for Oracle {
    const BYTES: usize = RECORD_BYTES;
    const WHOLE: &'static str = "24 bytes";

    #[inline]
    fn decode(&mut self, record: &[u8]) -> Result<Record, Box<Fault>> {
        let seconds = u32::from_le_bytes(four(record, 0));
        Ok(Record {
            // 2^32 seconds are less than 2^63 nanoseconds.
            at: Nanos::from_secs(self.origin.since(u64::from(seconds))?),
            volume: VolumeId(0),
            operation: Operation::Read,
            offset: u64::from_le_bytes(eight(record, 4)),
            length: u64::from(u32::from_le_bytes(four(record, 12))),
        })
    }
}
