//! Reading what a start reads, where parts of it cannot be read.
//!
//! How: block by block, and where a block fails sector by sector; what stands for a sector that
//! cannot be read is noise, so that it counts as damaged.
//! Invariant: a device that has failed is an error: nothing of a whole segment can be read, or not
//! even the superblock, which could be read before.
//! Cost: none where all can be read.

use super::StoreError;
use super::layout::{META_BYTES, SECTOR_BYTES};
use super::log_config::LogConfig;
use super::log_recover::failed;
use crate::io::{Buffer, Io, IoOperation, run_alone};

/// What stands for a sector that cannot be read: noise, which no structure has and no data but by
/// intent.
const UNREADABLE: [u8; SECTOR_BYTES] = noise();

/// Bytes of a multiplicative generator, fixed for good.
const fn noise() -> [u8; SECTOR_BYTES] {
    let (mut bytes, mut state, mut at) = ([0; SECTOR_BYTES], 0x9e37_79b9_7f4a_7c15_u64, 0);
    while at < SECTOR_BYTES {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        bytes[at] = (state >> 56) as u8;
        at += 1;
    }
    bytes
}

/// Whether a sector of the bytes could not be read.
pub(super) fn has_unreadable(bytes: &[u8]) -> bool {
    let mut sectors = bytes.chunks_exact(SECTOR_BYTES);
    sectors.any(|sector| *sector == UNREADABLE)
}

/// Reads blocks. `may_be_lost` is whether it may be that none of them can be read, as long as the
/// superblock can.
pub(super) fn read(
    io: &mut dyn Io,
    config: &LogConfig,
    (block, count): (u32, u32),
    may_be_lost: bool,
) -> Result<Buffer, StoreError> {
    let region = &config.region;
    let length = (count as usize * region.block_size.len()).max(META_BYTES);
    let buffer = io.buffer(length);
    let offset = region.base + u64::from(block) * u64::from(region.block_size.bytes());
    match run_alone(io, IoOperation::Read { disk: region.disk, offset, buffer }) {
        Ok(done) => Ok(done.buffer.expect("a read returns its buffer")),
        Err(error) => {
            let left = read_what_is_left(io, config, (offset, length), may_be_lost);
            left.ok_or_else(|| failed(io, config, offset, error.errno))
        }
    }
}

/// Reads block by block, and where a block fails sector by sector; sectors that cannot be read
/// hold [`UNREADABLE`]. `None` where the device has failed: nothing of a whole segment can be read,
/// or not even the superblock, which could be read before.
fn read_what_is_left(
    io: &mut dyn Io,
    config: &LogConfig,
    (offset, length): (u64, usize),
    may_be_lost: bool,
) -> Option<Buffer> {
    let mut whole = io.buffer(length);
    let (disk, base) = (config.region.disk, config.region.base);
    let fill = |io: &mut dyn Io, at: u64, piece: &mut [u8]| {
        let read = IoOperation::Read { disk, offset: at, buffer: io.buffer(piece.len()) };
        let done = run_alone(io, read).ok().and_then(|done| done.buffer);
        let buffer = done?;
        piece.copy_from_slice(&buffer[..piece.len()]);
        io.recycle(buffer);
        Some(())
    };
    let block = config.region.block_size.len();
    let mut is_any = false;
    for (index, piece) in whole.chunks_mut(block).enumerate() {
        let at = offset + (index * block) as u64;
        if length > block && fill(io, at, piece).is_some() {
            is_any = true;
            continue;
        }
        for (sector, piece) in piece.chunks_mut(SECTOR_BYTES).enumerate() {
            match fill(io, at + (sector * SECTOR_BYTES) as u64, piece) {
                Some(()) => is_any = true,
                None => piece.copy_from_slice(&UNREADABLE[..piece.len()]),
            }
        }
    }
    let lives = is_any || may_be_lost && fill(io, base, &mut [0; META_BYTES]).is_some();
    lives.then_some(whole)
}
