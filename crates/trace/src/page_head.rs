//! The heads of Parquet's pages: how long a page is, before the library makes room for it.
//!
//! How: a head is a struct in Thrift's compact form; its fields, and those of the structs in it,
//! are read by tables of what the format defines.
//! Invariant: what is read here is read by the library as the same: known fields alone, each once,
//! in ascending order, of their own type. Anything else is refused; no known writer writes it.
//! Cost: a read of 4 KiB per page. Not for: anything but pages' lengths.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// Bytes of a page at most, compressed and expanded; writers make them of about 1 MiB.
pub(crate) const PAGE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a head at most.
const HEAD_BYTES_MAX: usize = 4096;
/// The pages that there are: of data, of a dictionary, of data in the second form.
const KINDS: [i64; 3] = [0, 2, 3];
/// The fields of a head that are looked at.
const KIND: u64 = 1;
const EXPANDED: u64 = 2;
const COMPRESSED: u64 = 3;

/// How a field is written.
#[derive(Clone, Copy)]
enum Wire {
    Bool,
    I32,
    I64,
    Binary,
    Struct(&'static [Wire]),
}

/// What the fields of a head are, from 1 on; see the format's `parquet.thrift`.
const HEAD: &[Wire] = &[
    Wire::I32,
    Wire::I32,
    Wire::I32,
    Wire::I32,
    Wire::Struct(DATA),
    Wire::Struct(&[]),
    Wire::Struct(DICTIONARY),
    Wire::Struct(DATA_SECOND),
];
const DATA: &[Wire] = &[Wire::I32, Wire::I32, Wire::I32, Wire::I32, Wire::Struct(STATISTICS)];
const DICTIONARY: &[Wire] = &[Wire::I32, Wire::I32, Wire::Bool];
const DATA_SECOND: &[Wire] = &[
    Wire::I32,
    Wire::I32,
    Wire::I32,
    Wire::I32,
    Wire::I32,
    Wire::I32,
    Wire::Bool,
    Wire::Struct(STATISTICS),
];
const STATISTICS: &[Wire] = &[
    Wire::Binary,
    Wire::Binary,
    Wire::I64,
    Wire::I64,
    Wire::Binary,
    Wire::Binary,
    Wire::Bool,
    Wire::Bool,
    Wire::I64,
];

/// The end of the page that begins at `offset` of `file`, which is no longer than
/// [`PAGE_BYTES_MAX`], neither as it lies there nor expanded.
pub(crate) fn page_end(file: &File, offset: u64) -> io::Result<u64> {
    let mut bytes = [0; HEAD_BYTES_MAX];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset.saturating_add(filled as u64))? {
            0 => break,
            count => filled += count,
        }
    }
    let length = page_length(&bytes[..filled]).map_err(io::Error::other)?;
    Ok(offset.saturating_add(length))
}

/// Bytes of the page that begins with `bytes`, its head included.
fn page_length(bytes: &[u8]) -> Result<u64, String> {
    let mut head = Head { rest: bytes, numbers: [None; 4] };
    let read = head.structure(HEAD, true);
    let number = |field: u64| head.numbers[field as usize];
    let (Some(()), Some(kind), Some(expanded), Some(compressed)) =
        (read, number(KIND), number(EXPANDED), number(COMPRESSED))
    else {
        return Err("the head of a page is wrong".to_owned());
    };
    if !KINDS.contains(&kind) {
        return Err(format!("a page of kind {kind}"));
    }
    let compressed = u64::try_from(compressed).unwrap_or(u64::MAX);
    let most = compressed.max(u64::try_from(expanded).unwrap_or(u64::MAX));
    if most > PAGE_BYTES_MAX {
        return Err(format!("a page of {expanded} bytes; at most {PAGE_BYTES_MAX} are read"));
    }
    Ok((bytes.len() - head.rest.len()) as u64 + compressed)
}

/// A head that is being read.
struct Head<'a> {
    rest: &'a [u8],
    /// By the number of the field.
    numbers: [Option<i64>; 4],
}

impl Head<'_> {
    /// Passes over a struct; the outermost one's numbers are kept.
    fn structure(&mut self, fields: &[Wire], is_outermost: bool) -> Option<()> {
        let mut last = 0;
        loop {
            let byte = self.byte()?;
            let (delta, wire) = (u64::from(byte >> 4), byte & 15);
            if wire == 0 {
                return Some(());
            }
            let field = if delta == 0 { u64::try_from(self.number()?).ok()? } else { last + delta };
            let known = usize::try_from(field).ok().filter(|_| field > last)?;
            match (fields.get(known - 1)?, wire) {
                (Wire::Bool, 1 | 2) => {}
                (Wire::I32, 5) => {
                    let number = i64::from(i32::try_from(self.number()?).ok()?);
                    let kept = self.numbers.get_mut(known).filter(|_| is_outermost);
                    if let Some(kept) = kept {
                        *kept = Some(number);
                    }
                }
                (Wire::I64, 6) => drop(self.number()?),
                (Wire::Binary, 8) => {
                    let length = usize::try_from(self.unsigned()?).ok()?;
                    self.rest = self.rest.get(length..)?;
                }
                (Wire::Struct(fields), 12) => self.structure(fields, false)?,
                _ => return None,
            }
            last = field;
        }
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    /// Seven bits to a byte, the lowest first.
    fn unsigned(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..63).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some(number);
            }
        }
        // A tenth byte holds the last bit.
        let byte = self.byte().filter(|byte| *byte < 2)?;
        Some(number | u64::from(byte) << 63)
    }

    /// The sign is the lowest bit.
    fn number(&mut self) -> Option<i64> {
        let number = self.unsigned()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The head of a page of data of eight values, of so many bytes both ways.
    fn head(expanded: &[u8], compressed: &[u8]) -> Vec<u8> {
        let data = [0x2c, 0x15, 16, 0x15, 0, 0x15, 6, 0x15, 6, 0];
        [&[0x15, 0, 0x15], expanded, &[0x15], compressed, &data, &[0]].concat()
    }

    /// Goal: a page's length is read, and one beyond the bound is refused. Method: heads by hand,
    /// as long as may be and one byte longer, expanded and compressed; a negative one.
    #[test]
    fn lengths_are_bounded() {
        // Twice 64 MiB, in groups of seven bits.
        let (most, more) = ([0x80, 0x80, 0x80, 0x40], [0x82, 0x80, 0x80, 0x40]);
        let length = |expanded: &[u8], compressed: &[u8]| {
            let head = head(expanded, compressed);
            page_length(&head).map(|length| length - head.len() as u64)
        };
        assert_eq!(length(&[20], &[14]), Ok(7));
        assert_eq!(length(&most, &[14]), Ok(7));
        assert_eq!(length(&[20], &most), Ok(PAGE_BYTES_MAX));
        for (expanded, compressed) in [(&more[..], &[14][..]), (&[20], &more), (&[1], &[14])] {
            let cause = length(expanded, compressed).expect_err("it is refused");
            assert!(cause.contains("at most 67108864"), "{cause}");
        }
    }

    /// Goal: what the library might read as another length is refused. Method: a second length, in
    /// and out of order; a length of another type; an unknown field; every head cut short.
    #[test]
    fn ambiguous_heads_are_refused() {
        let sound = head(&[20], &[14]);
        let end = sound.len() - 1;
        for more in [&[0x05, 4, 40][..], &[0x15, 40], &[0xf5, 40], &[0x16, 40]] {
            let bytes = [&sound[..end], more, &[0]].concat();
            assert!(page_length(&bytes).is_err(), "{more:?}");
        }
        let mut other = sound.clone();
        other[2] = 0x16;
        assert!(page_length(&other).is_err(), "64 bits for 32");
        for end in 0..sound.len() {
            assert!(page_length(&sound[..end]).is_err(), "cut at {end}");
        }
    }
}
