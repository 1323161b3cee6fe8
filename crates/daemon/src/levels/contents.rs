//! What a file or a device holds before a first start formats it.
//!
//! How: of a file, what its file system says is data, up to [`READ_BYTES_MAX`]; a device, and what
//! a file has beyond that, in its first and last MiB, in the first MiB of each shard's part, and in
//! [`SAMPLES`] blocks spread evenly. File systems, partition tables, volume managers and RAID keep
//! their signatures in the first or last MiB.
//! Invariant: a file of at most [`READ_BYTES_MAX`] of data is empty only where every byte is zero.
//! Cost: a file that was reserved and never written costs nothing; a device some hundred reads.
//! Not for: whose a level is; see `levels`.

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io::Result;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

/// Bytes of a file's data that are read at most.
pub(super) const READ_BYTES_MAX: u64 = 1 << 30;
/// Bytes at both ends, and at the beginning of each part.
const END_BYTES: u64 = 1 << 20;
/// Blocks between them.
const SAMPLES: u64 = 256;
const SAMPLE_BYTES: u64 = 4096;
/// Bytes read at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// Extents of a file that are walked at most; a file of more has data for sure.
const EXTENTS_MAX: usize = 1 << 20;

/// The first byte found that is not zero; none where the file or device counts as empty. `bases`
/// are the beginnings of the shards' parts.
///
/// # Errors
/// The system's, where it cannot be read.
pub(super) fn first_data(
    file: &File,
    length: u64,
    is_file: bool,
    bases: &[u64],
) -> Result<Option<u64>> {
    let mut left = if is_file { READ_BYTES_MAX } else { 0 };
    let mut at = 0;
    for _ in 0..EXTENTS_MAX {
        if left == 0 {
            break;
        }
        let Some(extent) = next_data(file, at, length) else { return Ok(None) };
        at = extent.end.min(extent.start + left);
        left -= at - extent.start;
        if let Some(found) = first_of(file, extent.start..at)? {
            return Ok(Some(found));
        }
    }
    let rest = places(length, bases).into_iter().filter(|place| place.end > at);
    for place in rest {
        if let Some(found) = first_of(file, place)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The next extent from `at` on that may hold data; where the file system does not tell, the rest.
fn next_data(file: &File, at: u64, length: u64) -> Option<Range<u64>> {
    let rest = (at < length).then_some(at..length);
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => {
            let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(length);
            (start < length).then_some(start..end.clamp(start + 1, length))
        }
        Err(Errno::NXIO) => None,
        Err(_) => rest,
    }
}

/// What is looked at where not all is read.
fn places(length: u64, bases: &[u64]) -> Vec<Range<u64>> {
    let place = |start: u64, bytes: u64| start.min(length)..start.saturating_add(bytes).min(length);
    let ends = [0, length.saturating_sub(END_BYTES)].into_iter().chain(bases.iter().copied());
    let step = (length / SAMPLES).max(SAMPLE_BYTES) / SAMPLE_BYTES * SAMPLE_BYTES;
    let samples = (0..SAMPLES).map(|index| place(index * step, SAMPLE_BYTES));
    ends.map(|start| place(start, END_BYTES)).chain(samples).collect()
}

fn first_of(file: &File, range: Range<u64>) -> Result<Option<u64>> {
    let mut at = range.start;
    let longest = usize::try_from(CHUNK_BYTES.min(range.end - at)).unwrap_or(0);
    let (mut buffer, zeros) = (vec![0; longest], vec![0; longest]);
    while at < range.end {
        let bytes = usize::try_from(CHUNK_BYTES.min(range.end - at)).unwrap_or(0);
        file.read_exact_at(&mut buffer[..bytes], at)?;
        if buffer[..bytes] != zeros[..bytes] {
            let index = buffer.iter().position(|byte| *byte != 0);
            return Ok(index.map(|index| at + index as u64));
        }
        at += bytes as u64;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sparse(length: u64) -> File {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(length).expect("the file system has sparse files");
        file
    }

    /// Goal: a single byte anywhere in a file is found, and zeros are none, reserved or written.
    /// Method: a byte at both ends, in the middle, and in a file of a few bytes.
    #[test]
    fn a_byte_in_a_file_is_found() {
        const LENGTH: u64 = 64 << 20;
        for at in [0, 4096, LENGTH / 2 + 7, LENGTH - 1] {
            let file = sparse(LENGTH);
            file.write_all_at(&[0; 8192], 1 << 20).expect("writable");
            assert_eq!(first_data(&file, LENGTH, true, &[0]).expect("readable"), None);
            file.write_all_at(&[1], at).expect("writable");
            assert_eq!(first_data(&file, LENGTH, true, &[0]).expect("readable"), Some(at));
        }
        let small = sparse(3);
        assert_eq!(first_data(&small, 3, true, &[0]).expect("readable"), None);
        small.write_all_at(b"x", 2).expect("writable");
        assert_eq!(first_data(&small, 3, true, &[0]).expect("readable"), Some(2));
    }

    /// Goal: of a device, signatures at both ends and at a part's beginning are found, and data
    /// that fills more than a part in 256. Method: a file that is looked at like a device.
    #[test]
    fn signatures_of_a_device_are_found() {
        const LENGTH: u64 = 8 << 30;
        let bases = [0, LENGTH / 2 + 4096];
        let superblocks = [0x438, 0x10000, LENGTH - 512, LENGTH - 0x2000, bases[1] + 0x438];
        for at in superblocks {
            let file = sparse(LENGTH);
            assert_eq!(first_data(&file, LENGTH, false, &bases).expect("readable"), None);
            file.write_all_at(&[0x53], at).expect("writable");
            assert_eq!(first_data(&file, LENGTH, false, &bases).expect("readable"), Some(at));
        }
        let file = sparse(LENGTH);
        let data = vec![7; (LENGTH / SAMPLES + SAMPLE_BYTES) as usize];
        file.write_all_at(&data, 1234 << 20).expect("writable");
        assert!(first_data(&file, LENGTH, false, &bases).expect("readable").is_some());
    }

    /// Goal: what lies beyond the bytes that are read of a file is still looked at as of a device.
    /// Method: the bound is reached by zeros that were written; a signature at the end.
    #[test]
    fn beyond_the_bound_ends_are_looked_at() {
        let places = places(8 << 30, &[0]);
        assert!(places.iter().any(|place| place.end == 8 << 30 && place.start < (8 << 30) - 8192));
        assert!(places.iter().all(|place| place.start <= place.end && place.end <= 8 << 30));
        assert!(places.len() as u64 >= SAMPLES);
    }
}
