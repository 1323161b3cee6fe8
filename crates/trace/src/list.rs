//! Bare lists of blocks: no time, no operation, no length.
//!
//! `lis` is the form of the traces of the ARC paper: a line `first-block count ignored
//! request-number` stands for `count` blocks of 512 bytes. `blocks` has one number a line, as the
//! traces of the LIRS paper have; lines that hold a word in place of a number are a fault, but `*`,
//! which ends those traces, is not. `u32be` has big-endian numbers of four bytes.
//! Invariant: every block is a record of its own, read at time zero. Where the size of a block is
//! not known, it is one byte, so that bytes count blocks. Cost: as a text, a few bytes per record.

use crate::error::{Fault, Reason};
use crate::fixed::{Layout, four};
use crate::record::Record;
use crate::text::{Columns, Lines, Sink, number};
use layby_types::{Nanos, Operation, VolumeId};

/// Blocks of one line of a `lis` trace at most; those of the paper have 256 and fewer.
pub const LIST_COUNT_MAX: u64 = 65_536;
/// Bytes of a block of the ARC traces.
const LIS_BLOCK_BYTES: u64 = 512;

/// A read of one block.
#[inline]
fn block(number: u64, length: u64) -> Record {
    let (at, volume, operation) = (Nanos::ZERO, VolumeId(0), Operation::Read);
    Record { at, volume, operation, offset: number, length }
}

/// Reads `lis`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lis;

impl Lines for Lis {
    fn line(&mut self, line: &[u8], sink: &mut Sink<'_>) -> Result<(), Box<Fault>> {
        let columns = Columns::by_blanks(line);
        if columns.count() == 0 {
            return Ok(());
        }
        let [first, count, ignored, request] = columns.exactly("4: block count 0 request")?;
        let (first, count) = (number("first block", first)?, number("count", count)?);
        number("third column", ignored)?;
        number("request number", request)?;
        if count == 0 {
            return Err(Fault::value(Reason::ZeroLength, "count", 0, "at least one block"));
        }
        let end = first.checked_add(count).filter(|_| count <= LIST_COUNT_MAX);
        let Some(end) = end else {
            return Err(Fault::value(Reason::Range, "count", count, "at most 65536 blocks"));
        };
        (first..end).try_for_each(|number| sink.push(block(number, LIS_BLOCK_BYTES)))
    }
}

/// Reads one block number a line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Blocks;

impl Lines for Blocks {
    fn line(&mut self, line: &[u8], sink: &mut Sink<'_>) -> Result<(), Box<Fault>> {
        let text = line.trim_ascii();
        if text.is_empty() || text == b"*" {
            return Ok(());
        }
        sink.push(block(number("block", text)?, 1))
    }
}

/// Reads big-endian numbers of four bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Words;

impl Layout for Words {
    const BYTES: usize = 4;
    const WHOLE: &'static str = "4 bytes";

    #[inline]
    fn decode(&mut self, record: &[u8]) -> Result<Record, Box<Fault>> {
        Ok(block(u64::from(u32::from_be_bytes(four(record, 0))), 1))
    }
}
