//! The write stream of a ring's entry, which the `io_uring` crate does not name.
//!
//! How: Linux 6.16 gave `struct io_uring_sqe` a byte `write_stream` at offset 44, in the union of
//! `splice_fd_in` and `file_index`, which a read or write has no other use for; the kernel asserts
//! that offset itself. 0 is no stream. Where a file knows no streams the byte is ignored; a block
//! device refuses a number beyond its own with `EINVAL`.
//! Invariant: nothing but that byte changes.
//! Cost: a store. Not for: devices that offer no streams, nor buffered writes.
#![expect(unsafe_code, reason = "writes a byte of the kernel's entry")]

use io_uring::squeue::Entry;

/// Where the byte lies.
const STREAM_AT: usize = 44;

const _: () = assert!(size_of::<Entry>() == 64, "an entry is the kernel's 64 bytes");

/// The same write, to a stream of its device.
pub(super) fn with_stream(mut entry: Entry, stream: u8) -> Entry {
    // SAFETY: `Entry` is `repr(C)` around the kernel's structure of 64 bytes, as asserted above, so
    // that the byte lies inside; there the structure is a union of integers, all of whose bits may
    // be anything. The pointer comes from an exclusive borrow of the whole entry.
    unsafe { (&raw mut entry).cast::<u8>().add(STREAM_AT).write(stream) };
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::{opcode, types};

    fn bytes(entry: &Entry) -> [u8; 64] {
        // SAFETY: the structure has no padding that its builder does not zero, and is 64 bytes.
        unsafe { std::ptr::from_ref(entry).cast::<[u8; 64]>().read() }
    }

    /// Goal: the stream is byte 44 and nothing else changes, whichever way a write is asked for.
    /// Method: both kinds of write with every field set, beside the same without a stream.
    #[test]
    fn a_stream_is_one_byte() {
        let data = [7u8; 16];
        let plain = opcode::Write::new(types::Fd(3), data.as_ptr(), 16).offset(!0).rw_flags(!0);
        let fixed = opcode::WriteFixed::new(types::Fd(3), data.as_ptr(), 16, 0xffff).offset(!0);
        for entry in [plain.build(), fixed.rw_flags(!0).build()] {
            let entry = entry.user_data(!0).personality(0xffff);
            let before = bytes(&entry);
            assert_eq!(before[44..48], [0; 4], "a write has no other use for it");
            let after = bytes(&with_stream(entry, 0xa5));
            let changed: Vec<usize> = (0..64).filter(|at| before[*at] != after[*at]).collect();
            assert_eq!((changed, after[44]), (vec![44], 0xa5));
        }
    }
}
