//! CloudPhysics vscsi: binary records of what a virtual machine asked of its SCSI disk.
//!
//! Version 1, 32 bytes: serial number, length in bytes, scatter-gather entries (u32 each), command,
//! version (u16 each), block of 512 bytes, time in microseconds (u64 each). Version 2, 40 bytes:
//! command, version, serial number, length, scatter-gather entries, block, time, response time. All
//! little-endian; the version is the upper byte of its field.
//! Invariant: times count from the first record; commands other than reads, writes, unmaps and
//! flushes are a fault. Cost: as `oracle`.

use crate::error::{Fault, Reason};
use crate::fixed::{Layout, eight, four};
use crate::guard::{Origin, instant};
use crate::record::Record;
use layby_types::{Operation, VolumeId};

/// Bytes of a block as the trace counts them.
const BLOCK_BYTES: u64 = 512;
const NANOS_PER_TICK: u64 = 1000;
const COMMANDS: &str = "a SCSI read, write, unmap or synchronize cache";

/// Bytes of a record of version 1.
pub(crate) const V1_BYTES: usize = 32;
/// Bytes of a record of version 2.
pub(crate) const V2_BYTES: usize = 40;

/// Decodes version 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct VscsiV1(Origin);

/// Decodes version 2.
#[derive(Clone, Debug, Default)]
pub(crate) struct VscsiV2(Origin);

/// Fields that both versions have.
struct Fields {
    command: u16,
    version: u16,
    length: u32,
    block: u64,
    micros: u64,
}

impl Layout for VscsiV1 {
    const BYTES: usize = V1_BYTES;
    const WHOLE: &'static str = "32 bytes";

    #[inline]
    fn decode(&mut self, record: &[u8]) -> Result<Record, Box<Fault>> {
        request(&fields_v1(record), 1, &mut self.0)
    }
}

impl Layout for VscsiV2 {
    const BYTES: usize = V2_BYTES;
    const WHOLE: &'static str = "40 bytes";

    #[inline]
    fn decode(&mut self, record: &[u8]) -> Result<Record, Box<Fault>> {
        request(&fields_v2(record), 2, &mut self.0)
    }
}

#[inline]
fn fields_v1(record: &[u8]) -> Fields {
    Fields {
        command: two(record, 12),
        version: two(record, 14),
        length: u32::from_le_bytes(four(record, 4)),
        block: u64::from_le_bytes(eight(record, 16)),
        micros: u64::from_le_bytes(eight(record, 24)),
    }
}

#[inline]
fn fields_v2(record: &[u8]) -> Fields {
    Fields {
        command: two(record, 0),
        version: two(record, 2),
        length: u32::from_le_bytes(four(record, 8)),
        block: u64::from_le_bytes(eight(record, 16)),
        micros: u64::from_le_bytes(eight(record, 24)),
    }
}

#[inline]
fn two(record: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([record[at], record[at + 1]])
}

#[inline]
fn request(fields: &Fields, version: u16, origin: &mut Origin) -> Result<Record, Box<Fault>> {
    if fields.version >> 8 != version {
        let found = format!("{:#06x}", fields.version);
        return Err(Fault::value(Reason::Columns, "version", found, "that of the first record"));
    }
    let operation = operation(fields.command).ok_or_else(|| {
        Fault::value(Reason::Operation, "command", format!("{:#04x}", fields.command), COMMANDS)
    })?;
    let offset = fields.block.checked_mul(BLOCK_BYTES).ok_or_else(|| {
        Fault::value(Reason::Range, "block", fields.block, "a range that ends within 64 PiB")
    })?;
    let (at, volume) = (instant(origin.since(fields.micros)?, NANOS_PER_TICK)?, VolumeId(0));
    // A flush may name a range that it is limited to; Layby's has none.
    let is_flush = operation == Operation::Flush;
    let (offset, length) = if is_flush { (0, 0) } else { (offset, u64::from(fields.length)) };
    Ok(Record { at, volume, operation, offset, length })
}

/// What a SCSI command does: READ and WRITE of 6, 10, 12 and 16 bytes, UNMAP and
/// SYNCHRONIZE CACHE.
#[inline]
fn operation(command: u16) -> Option<Operation> {
    match command {
        0x08 | 0x28 | 0xa8 | 0x88 => Some(Operation::Read),
        0x0a | 0x2a | 0xaa | 0x8a => Some(Operation::Write),
        0x42 => Some(Operation::Trim),
        0x35 | 0x91 => Some(Operation::Flush),
        _ => None,
    }
}

/// The version that the first two records of a trace agree on.
pub(crate) fn version(head: &[u8]) -> Option<u16> {
    let agree = |bytes: usize, fields: fn(&[u8]) -> Fields, version: u16| {
        let records = head.chunks_exact(bytes).take(2).map(fields);
        head.len() >= bytes
            && records
                .into_iter()
                .all(|found| found.version >> 8 == version && operation(found.command).is_some())
    };
    match () {
        () if agree(V2_BYTES, fields_v2, 2) => Some(2),
        () if agree(V1_BYTES, fields_v1, 1) => Some(1),
        () => None,
    }
}
