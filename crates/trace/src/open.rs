//! Opens a trace: finds out how it is compressed and which format it has.
//!
//! How: the beginning is read and looked at, then put back in front of the rest, so that pipes can
//! be read too. Invariant: memory is bounded whatever the trace's length; see [`Reader`].
//! Cost: one buffer of a few hundred KiB, and the decompressor's window.

use crate::blkparse::Blkparse;
use crate::csv::{Alibaba, Msr, Own, Tencent};
use crate::error::{Skipped, TraceError};
use crate::fio::Fio;
use crate::fixed::Fixed;
use crate::format::{Format, HEAD_BYTES, UTF8_MARK, detect, is_marked_text};
use crate::input::{Compression, Counted, Position, expand};
use crate::list::{Blocks, Lis, Words};
use crate::oracle::Oracle;
use crate::parquet::{self, Parquet};
use crate::record::{ReadOptions, Reader, Record, Unit};
use crate::text::Text;
use crate::vscsi::{VscsiV1, VscsiV2};
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::Path;

/// An open trace. Reads like any [`Reader`], and knows how far it is.
pub struct Trace {
    format: Format,
    reader: Box<dyn Reader + Send>,
    position: Position,
    file_bytes: u64,
}

impl Trace {
    /// The trace's format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }
    /// Bytes of the file consumed so far, as it lies on disk.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position.get()
    }
    /// Bytes of the file; zero for a pipe.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }
}

impl Reader for Trace {
    fn fill(&mut self, batch: &mut Vec<Record>) -> Result<usize, TraceError> {
        self.reader.fill(batch)
    }
    fn unit(&self) -> Unit {
        self.reader.unit()
    }
    fn skipped(&self) -> Skipped {
        self.reader.skipped()
    }
    fn volumes(&self) -> &[String] {
        self.reader.volumes()
    }
    fn has_open_end(&self) -> bool {
        self.reader.has_open_end()
    }
}

/// Opens the trace at `path`. Without a `format` it is told by name and contents.
///
/// # Errors
/// [`TraceError::Open`], [`TraceError::Read`], or [`TraceError::Unsure`] when the format cannot be
/// told.
pub fn open(
    path: &Path,
    format: Option<Format>,
    options: ReadOptions,
) -> Result<Trace, TraceError> {
    let wrong = |cause| TraceError::Open { path: path.to_path_buf(), cause };
    let file = File::open(path).map_err(wrong)?;
    let about = file.metadata().map_err(wrong)?;
    if about.is_dir() {
        return Err(wrong(io::Error::from(io::ErrorKind::IsADirectory)));
    }
    let (file, position) = Counted::new(file);
    let (first, file) = head(file).map_err(wrong)?;
    let compression = Compression::of(&first);
    let unreadable = |cause| TraceError::Read { offset: 0, cause };
    let (mut head, mut bytes) =
        head(expand(file, compression).map_err(wrong)?).map_err(unreadable)?;
    if is_marked_text(path, &head) {
        bytes.read_exact(&mut [0; UTF8_MARK.len()]).map_err(unreadable)?;
        head.drain(..UTF8_MARK.len());
    }
    let format = format.or_else(|| detect(path, &head));
    let format = format.ok_or_else(|| TraceError::unsure(path.to_path_buf(), &head))?;
    let reader = if format == Format::Parquet {
        if head.starts_with(parquet::MAGIC) && compression != Compression::None {
            return Err(unsupported("Parquet is not read through compression; expand it first"));
        }
        if !about.is_file() {
            return Err(unsupported("Parquet is read from its end: from a file, not from a pipe"));
        }
        Box::new(Parquet::open(path, options.lenient, position.clone())?)
    } else {
        reader(bytes, format, options)?
    };
    Ok(Trace { format, reader, position, file_bytes: about.len() })
}

fn unsupported(what: &str) -> TraceError {
    TraceError::Unsupported { what: what.to_owned() }
}

/// Reads a trace of `format` from `input`, which is not compressed.
///
/// # Errors
/// [`TraceError::Unsupported`] for Parquet, which needs a file: see [`open`].
pub fn reader<R: Read + Send + 'static>(
    input: R,
    format: Format,
    options: ReadOptions,
) -> Result<Box<dyn Reader + Send>, TraceError> {
    let lenient = options.lenient;
    Ok(match format {
        Format::Parquet => return Err(unsupported("Parquet is read from a file, not a stream")),
        Format::FioV2 | Format::FioV3 => {
            Box::new(Text::new(input, Fio::new(format), format, lenient))
        }
        Format::Blkparse => {
            Box::new(Text::new(input, Blkparse::new(options.event), format, lenient))
        }
        Format::OracleGeneral => Box::new(Fixed::new(input, Oracle::default(), format, lenient)),
        Format::VscsiV1 => Box::new(Fixed::new(input, VscsiV1::default(), format, lenient)),
        Format::VscsiV2 => Box::new(Fixed::new(input, VscsiV2::default(), format, lenient)),
        Format::U32Be => Box::new(Fixed::new(input, Words, format, lenient)),
        Format::Msr => Box::new(Text::new(input, Msr::default(), format, lenient)),
        Format::Alibaba => Box::new(Text::new(input, Alibaba::default(), format, lenient)),
        Format::Tencent => Box::new(Text::new(input, Tencent::default(), format, lenient)),
        Format::Csv | Format::CsvObjects => {
            Box::new(Text::new(input, Own::new(format.unit()), format, lenient))
        }
        Format::Lis => Box::new(Text::new(input, Lis, format, lenient)),
        Format::Blocks => Box::new(Text::new(input, Blocks, format, lenient)),
    })
}

/// The beginning of `input`, and all of it.
fn head<R: Read>(mut input: R) -> io::Result<(Vec<u8>, Again<R>)> {
    let mut head = Vec::new();
    input.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok((head.clone(), Again { head: Cursor::new(head), rest: input }))
}

/// An input whose beginning was read before.
struct Again<R> {
    head: Cursor<Vec<u8>>,
    rest: R,
}

impl<R: Read> Read for Again<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.head.read(buffer)? {
            0 => self.rest.read(buffer),
            count => Ok(count),
        }
    }
}
