//! Bytes of a trace: one large buffer over any `Read`, cut into lines or records.
//!
//! How: the buffer is refilled when it holds no whole line or record; what is left over moves to
//! its front. [`expand`] decompresses by magic number.
//! Invariant: the buffer never grows, so a line longer than [`LINE_BYTES_MAX`] is reported, not
//! gathered. Cost: a copy of less than a record per refill, no allocation after the first.
//! Not for: Parquet, which is read from its end.

use crate::error::TraceError;
use liblzma::bufread::XzDecoder;
use liblzma::stream::Stream;
use std::io::{self, BufReader, ErrorKind, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 256 << 10;
/// Bytes of a line at most, without its end. The longest that a tool writes is a few hundred.
pub const LINE_BYTES_MAX: usize = 4096;
/// Bytes of a line that is too long, after which it is taken for no line at all: `/dev/zero` has no
/// end.
const LINE_SKIPPED_MAX: u64 = 64 << 20;
/// Memory that decompressing xz may take; `xz -9` asks for 65 MiB. Zstandard has its own bound of
/// 128 MiB, and gzip needs 32 KiB.
const XZ_MEMORY_MAX: u64 = 256 << 20;
/// How often a read that a signal interrupted is repeated.
const INTERRUPTS_MAX: u32 = 1000;

/// A buffered input and how much of it is consumed.
pub(crate) struct Source<R> {
    input: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    consumed: u64,
    at_end: bool,
    has_open_end: bool,
}

/// What [`Source::line`] found.
pub(crate) enum Line<'a> {
    /// A line without its end.
    Text(&'a [u8]),
    /// The beginning of a line that is too long; all of it is consumed.
    TooLong(Vec<u8>),
    /// No more lines.
    End,
}

impl<R: Read> Source<R> {
    pub(crate) fn new(input: R) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        let (at_end, has_open_end) = (false, false);
        Source { input, buffer, start: 0, end: 0, consumed: 0, at_end, has_open_end }
    }

    /// Whether the last line was given and the input ended before it did.
    pub(crate) fn has_open_end(&self) -> bool {
        self.has_open_end
    }

    /// Bytes consumed so far, after decompression.
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed
    }

    /// What is buffered: at least `least` bytes, fewer only at the end.
    #[inline]
    pub(crate) fn ahead(&mut self, least: usize) -> Result<&[u8], TraceError> {
        assert!(least <= self.buffer.len(), "the buffer holds what is asked for");
        if self.end - self.start < least {
            self.refill(least)?;
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// Drops `count` bytes from the front of what is buffered.
    #[inline]
    pub(crate) fn consume(&mut self, count: usize) {
        assert!(count <= self.end - self.start, "only what is buffered can be consumed");
        self.start += count;
        self.consumed += count as u64;
    }

    /// The next line.
    #[inline]
    pub(crate) fn line(&mut self) -> Result<Line<'_>, TraceError> {
        let found = memchr::memchr(b'\n', &self.buffer[self.start..self.end]);
        let length = match found {
            Some(length) => length,
            None => match self.line_after_refill()? {
                Some(length) => length,
                None => return Ok(Line::End),
            },
        };
        if length > LINE_BYTES_MAX {
            return self.too_long();
        }
        let first = self.start;
        self.consume((length + 1).min(self.end - first));
        let line = &self.buffer[first..first + length];
        Ok(Line::Text(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// The length of the next line, of which no end is buffered; `None` at the end of the input.
    fn line_after_refill(&mut self) -> Result<Option<usize>, TraceError> {
        let ahead = self.ahead(LINE_BYTES_MAX + 1)?;
        let (found, count) = (memchr::memchr(b'\n', ahead), ahead.len());
        // Less was buffered than was asked for: the input has ended.
        self.has_open_end |= found.is_none() && (1..=LINE_BYTES_MAX).contains(&count);
        Ok((count > 0).then_some(found.unwrap_or(count)))
    }

    /// Consumes a line that is too long, to its end, and keeps its beginning.
    #[cold]
    fn too_long(&mut self) -> Result<Line<'_>, TraceError> {
        let head = self.ahead(1)?.iter().take(LINE_BYTES_MAX).copied().collect();
        let until = self.consumed + LINE_SKIPPED_MAX;
        loop {
            if self.consumed > until {
                self.at_end = true;
                let cause = io::Error::new(ErrorKind::InvalidData, "a line does not end");
                return Err(TraceError::Read { offset: self.consumed, cause });
            }
            let ahead = self.ahead(1)?;
            let (length, found) = (ahead.len(), memchr::memchr(b'\n', ahead));
            self.consume(found.map_or(length, |at| at + 1));
            if found.is_some() || length == 0 {
                return Ok(Line::TooLong(head));
            }
        }
    }

    #[cold]
    fn refill(&mut self, least: usize) -> Result<(), TraceError> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let mut interrupts = 0;
        while self.end < least && !self.at_end {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.at_end = true,
                Ok(count) => self.end += count,
                Err(cause)
                    if cause.kind() == ErrorKind::Interrupted && interrupts < INTERRUPTS_MAX =>
                {
                    interrupts += 1;
                }
                Err(cause) => {
                    self.at_end = true;
                    return Err(TraceError::Read { offset: self.consumed, cause });
                }
            }
        }
        Ok(())
    }
}

/// Counts the bytes that pass, for a progress bar beside a reader that owns its input.
pub(crate) struct Counted<R> {
    input: R,
    count: Position,
}

/// How many bytes a [`Counted`] input gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Position(Arc<AtomicU64>);

impl Position {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

impl<R> Counted<R> {
    pub(crate) fn new(input: R) -> (Self, Position) {
        let count = Position::default();
        (Counted { input, count: count.clone() }, count)
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.count.add(count as u64);
        Ok(count)
    }
}

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Zstd,
    Gzip,
    Xz,
}

impl Compression {
    /// What the first bytes of a file say.
    pub(crate) fn of(head: &[u8]) -> Compression {
        let magics: [(&[u8], Compression); 3] = [
            (&[0x28, 0xb5, 0x2f, 0xfd], Compression::Zstd),
            (&[0x1f, 0x8b], Compression::Gzip),
            (&[0xfd, b'7', b'z', b'X', b'Z', 0], Compression::Xz),
        ];
        let found = magics.iter().find(|(magic, _)| head.starts_with(magic));
        found.map_or(Compression::None, |(_, compression)| *compression)
    }
}

/// Bytes of `input` as they were before compression.
pub(crate) fn expand<'a>(
    input: impl Read + Send + 'a,
    compression: Compression,
) -> io::Result<Box<dyn Read + Send + 'a>> {
    Ok(match compression {
        Compression::None => Box::new(input),
        Compression::Zstd => Box::new(Frames(zstd::Decoder::new(input)?)),
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(buffered(input))),
        Compression::Xz => {
            let stream = Stream::new_stream_decoder(XZ_MEMORY_MAX, liblzma::stream::CONCATENATED)?;
            Box::new(XzDecoder::new_stream(buffered(input), stream))
        }
    })
}

/// Zstandard's decoder, whose own errors have no kind: what it cannot decode is damaged. Errors of
/// the input below come from the system, have a number there and stay as they are.
struct Frames<R>(R);

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|cause| {
            let is_decoders = cause.kind() == ErrorKind::Other && cause.raw_os_error().is_none();
            if is_decoders { io::Error::new(ErrorKind::InvalidData, cause) } else { cause }
        })
    }
}

fn buffered<R: Read>(input: R) -> BufReader<R> {
    BufReader::with_capacity(BUFFER_BYTES, input)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives its bytes a few at a time.
    struct Drip<'a>(&'a [u8], usize);

    impl Read for Drip<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(buffer.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn lines(bytes: &[u8], at_once: usize) -> Vec<Option<Vec<u8>>> {
        let mut source = Source::new(Drip(bytes, at_once));
        let mut lines = Vec::new();
        loop {
            match source.line().expect("memory can be read") {
                Line::Text(line) => lines.push(Some(line.to_vec())),
                Line::TooLong(_) => lines.push(None),
                Line::End => break,
            }
        }
        assert_eq!(source.consumed(), bytes.len() as u64);
        lines
    }

    /// Goal: lines are cut at their ends, however the bytes arrive. Method: odd ends, one byte at a
    /// time and all at once, beside `split`.
    #[test]
    fn lines_end_where_they_end() {
        let text = b"one\r\n\ntwo\nlast without end";
        let expected = [&b"one"[..], b"", b"two", b"last without end"];
        for at_once in [1, 7, 1000] {
            let found: Vec<_> = lines(text, at_once).into_iter().flatten().collect();
            assert_eq!(found, expected);
        }
        assert!(lines(b"", 1).is_empty());
        let longest = vec![b'x'; LINE_BYTES_MAX];
        for (text, is_open) in [
            (&text[..], true),
            (b"one\n", false),
            (b"", false),
            (b"a\nb\r\n", false),
            (&longest, true),
        ] {
            let mut source = Source::new(Drip(text, 1));
            while !matches!(source.line().expect("memory can be read"), Line::End) {}
            assert_eq!(source.has_open_end(), is_open, "{} bytes", text.len());
        }
    }

    /// Goal: a line of any length costs no memory, and its neighbours are found. Method: lines at
    /// the bound, just above, and larger than the buffer; the last without an end.
    #[test]
    fn long_lines_are_passed_over() {
        for (length, at_once, fits) in [
            (LINE_BYTES_MAX, 100_000, true),
            (LINE_BYTES_MAX + 1, 100_000, false),
            (3 * BUFFER_BYTES + 5, 999, false),
        ] {
            let mut text = b"a\n".to_vec();
            text.extend(std::iter::repeat_n(b'x', length));
            text.extend(b"\nb\n");
            let found = lines(&text, at_once);
            assert_eq!(found.len(), 3);
            assert_eq!(found[1].is_some(), fits);
            assert_eq!(found[2].as_deref(), Some(&b"b"[..]));
            let open = lines(&text[..text.len() - 3], at_once);
            assert_eq!(open.len(), 2);
        }
    }
}
