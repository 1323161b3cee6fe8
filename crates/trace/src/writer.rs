//! Writes traces: Layby's own forms, fio's I/O logs, and oracleGeneral for other simulators.
//!
//! How: [`create`] writes a new file beside the path that was asked for and renames it at the end,
//! so that a trace is there whole or not at all, a power cut included; one that was not there when
//! writing began is replaced only where that was asked for. A path that ends with `.zst` is
//! compressed, but for Parquet, which compresses itself.
//! Invariant: what is written is read back by the reader of the same format as the same records, as
//! far as the format can say them; what it cannot say is counted in [`Written`] or refused.
//! Cost: no allocation per record; Parquet holds a row group of 32 MiB.

use crate::csv::{HEADINGS_BYTES, HEADINGS_OBJECTS, OPERATIONS};
use crate::error::TraceError;
use crate::fio::{HEADER_V2, HEADER_V3};
use crate::format::Format;
use crate::parquet::ParquetWriter;
use crate::record::{Record, Unit};
use layby_types::{Nanos, Operation, VolumeId};
use std::collections::HashSet;
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use tempfile::{NamedTempFile, PathPersistError, TempPath};

/// Rights of a new trace: what a volume's clients do is not everybody's.
const FILE_MODE: u32 = 0o600;
/// Bytes gathered before they are written.
const BUFFER_BYTES: usize = 256 << 10;
/// Bits of an oracleGeneral identifier that hold the sector of a block device.
const ORACLE_SECTOR_BITS: u32 = 48;
const SECTOR_BYTES: u64 = 512;

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Records in the trace.
    pub records: u64,
    /// Records that the format has no words for, such as a flush in oracleGeneral.
    pub left_out: u64,
}

/// Takes records in the order of their time and writes them.
pub trait Writer {
    /// Writes `records`.
    ///
    /// # Errors
    /// [`TraceError::Write`], or [`TraceError::Unsupported`] for a record that the format cannot
    /// hold.
    fn write(&mut self, records: &[Record]) -> Result<(), TraceError>;
    /// Writes what the end of a trace needs. A trace that is not finished is not sound.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    fn finish(self: Box<Self>) -> Result<Written, TraceError>;
}

/// A trace on its way to a file.
pub struct NewTrace {
    writer: Box<dyn Writer + Send>,
    /// The file that is written, for its sync.
    file: File,
    /// Goes with its value, unless it was renamed.
    partial: TempPath,
    path: PathBuf,
    overwrite: bool,
}

/// Makes a trace of `format` at `path`, with offsets of `unit`. With `overwrite` a file that is
/// there is replaced when the new one is finished; until then it is untouched. Without it the end
/// fails where there is one by then.
///
/// # Errors
/// [`TraceError::Open`], or [`TraceError::Unsupported`] for a format that is only read.
pub fn create(
    path: &Path,
    format: Format,
    unit: Unit,
    overwrite: bool,
) -> Result<NewTrace, TraceError> {
    let failed = |cause| TraceError::Open { path: path.to_path_buf(), cause };
    can_hold(format, unit)?;
    let (output, partial) = partial(path).map_err(failed)?.into_parts();
    let file = output.try_clone().map_err(failed)?;
    let is_zstd = path.extension().is_some_and(|end| end == "zst") && format != Format::Parquet;
    let writer = if is_zstd {
        let mut encoder = zstd::Encoder::new(output, 0).map_err(failed)?;
        // Else a flipped bit may read as other requests.
        encoder.include_checksum(true).map_err(failed)?;
        writer(Finished(Some(encoder)), format, unit)?
    } else {
        writer(output, format, unit)?
    };
    Ok(NewTrace { writer, file, partial, path: path.to_path_buf(), overwrite })
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A new file beside `path` that its owner alone can read, whatever the umask. No link is followed,
/// and nothing that is there is touched.
fn partial(path: &Path) -> io::Result<NamedTempFile> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    tempfile::Builder::new()
        .prefix(&name)
        .suffix(".partial")
        .permissions(Permissions::from_mode(FILE_MODE))
        .tempfile_in(folder_of(path))
}

impl NewTrace {
    /// Leaves the unfinished file where it is should the trace never be finished, and says where:
    /// for what cannot be written again, as a recording. Parquet cannot be read without its end.
    pub fn keep_unfinished(&mut self) -> &Path {
        self.partial.disable_cleanup(true);
        &self.partial
    }
}

impl Writer for NewTrace {
    fn write(&mut self, records: &[Record]) -> Result<(), TraceError> {
        self.writer.write(records)
    }
    fn finish(self: Box<Self>) -> Result<Written, TraceError> {
        let NewTrace { writer, file, partial, path, overwrite } = *self;
        let failed = |cause| TraceError::Write { cause };
        let written = writer.finish()?;
        // Else a power cut could leave the name and not the bytes.
        file.sync_all().map_err(failed)?;
        let placed = match overwrite {
            true => partial.persist(&path),
            false => partial.persist_noclobber(&path),
        };
        placed.map_err(|refused| unplaced(&path, refused))?;
        File::open(folder_of(&path)).and_then(|folder| folder.sync_all()).map_err(failed)?;
        Ok(written)
    }
}

/// A trace that is whole and cannot have its name. Recording it may have taken hours: where another
/// file has the name, it is kept under its own.
fn unplaced(path: &Path, refused: PathPersistError) -> TraceError {
    let PathPersistError { error: cause, path: partial } = refused;
    if cause.kind() != io::ErrorKind::AlreadyExists {
        return TraceError::Write { cause };
    }
    match partial.keep() {
        Ok(kept) => TraceError::Taken { path: path.to_path_buf(), kept },
        Err(refused) => TraceError::Write { cause: refused.error },
    }
}

/// A compressor that ends its stream when it is flushed for the last time, which is when its buffer
/// is: see [`Buffered::end`].
struct Finished<W: Write>(Option<zstd::Encoder<'static, W>>);

impl<W: Write> Write for Finished<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.0.as_mut().map_or(Ok(0), |encoder| encoder.write(buffer))
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.take().map_or(Ok(()), |encoder| encoder.finish()?.flush())
    }
}

/// Whether `format` can be written with offsets of `unit`.
fn can_hold(format: Format, unit: Unit) -> Result<(), TraceError> {
    let what = match (format, unit) {
        (Format::Csv | Format::Parquet | Format::OracleGeneral, _)
        | (Format::CsvObjects, Unit::Objects)
        | (Format::FioV2 | Format::FioV3, Unit::Bytes) => return Ok(()),
        (Format::FioV2 | Format::FioV3, Unit::Objects) => {
            "the trace names objects, which fio has none of; write csv, parquet or oracle-general"
                .to_owned()
        }
        (Format::CsvObjects, Unit::Bytes) => {
            "the trace has offsets in bytes, and csv-objects names objects; write csv".to_owned()
        }
        (other, _) => format!(
            "{other} is read, not written; write csv, parquet, fio-v2, fio-v3 or oracle-general"
        ),
    };
    Err(TraceError::Unsupported { what })
}

/// Writes a trace of `format` to `output`, with offsets of `unit`.
///
/// # Errors
/// As [`create`].
pub fn writer<W: Write + Send + 'static>(
    output: W,
    format: Format,
    unit: Unit,
) -> Result<Box<dyn Writer + Send>, TraceError> {
    can_hold(format, unit)?;
    let buffer = Buffered { output: BufWriter::with_capacity(BUFFER_BYTES, output) };
    Ok(match format {
        Format::Parquet => Box::new(ParquetWriter::new(buffer.output, unit)?),
        Format::FioV2 => Box::new(Fio::new(buffer, false)?),
        Format::FioV3 => Box::new(Fio::new(buffer, true)?),
        Format::OracleGeneral => Box::new(Oracle { buffer, unit, written: Written::default() }),
        _ => Box::new(Csv::new(buffer, unit)?),
    })
}

/// A buffer whose failures are the crate's.
struct Buffered<W: Write> {
    output: BufWriter<W>,
}

impl<W: Write> Buffered<W> {
    fn line(&mut self, line: std::fmt::Arguments<'_>) -> Result<(), TraceError> {
        self.output.write_fmt(line).map_err(|cause| TraceError::Write { cause })
    }
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), TraceError> {
        self.output.write_all(bytes).map_err(|cause| TraceError::Write { cause })
    }
    /// Writes out what is gathered; nothing may follow.
    fn end(mut self) -> Result<(), TraceError> {
        self.output.flush().map_err(|cause| TraceError::Write { cause })
    }
}

/// Writes Layby's own comma-separated form.
struct Csv<W: Write> {
    buffer: Buffered<W>,
    written: Written,
}

impl<W: Write> Csv<W> {
    fn new(mut buffer: Buffered<W>, unit: Unit) -> Result<Self, TraceError> {
        let headings = match unit {
            Unit::Bytes => HEADINGS_BYTES,
            Unit::Objects => HEADINGS_OBJECTS,
        };
        buffer.line(format_args!("{headings}\n"))?;
        Ok(Csv { buffer, written: Written::default() })
    }
}

impl<W: Write> Writer for Csv<W> {
    fn write(&mut self, records: &[Record]) -> Result<(), TraceError> {
        for Record { at, volume, operation, offset, length } in records {
            let word = OPERATIONS.iter().find(|(_, other)| other == operation);
            let Some((word, _)) = word else {
                self.written.left_out += 1;
                continue;
            };
            let (at, volume) = (at.0, volume.0);
            self.buffer.line(format_args!("{at},{volume},{word},{offset},{length}\n"))?;
            self.written.records += 1;
        }
        Ok(())
    }
    fn finish(self: Box<Self>) -> Result<Written, TraceError> {
        self.buffer.end().map(|()| self.written)
    }
}

/// Writes fio's I/O log; a volume is the file `volume-N`.
struct Fio<W: Write> {
    buffer: Buffered<W>,
    has_times: bool,
    /// Version 2: milliseconds that the last wait reaches.
    waited: u64,
    opened: HashSet<VolumeId>,
    written: Written,
}

impl<W: Write> Fio<W> {
    fn new(mut buffer: Buffered<W>, has_times: bool) -> Result<Self, TraceError> {
        let header = if has_times { HEADER_V3 } else { HEADER_V2 };
        buffer.line(format_args!("{header}\n"))?;
        let (waited, opened) = (0, HashSet::new());
        Ok(Fio { buffer, has_times, waited, opened, written: Written::default() })
    }

    /// Begins a line: the time in version 3, a wait before it in version 2.
    fn begin(&mut self, at: Nanos, volume: VolumeId) -> Result<(), TraceError> {
        if self.has_times {
            return self.buffer.line(format_args!("{} volume-{} ", at.0 / 1000, volume.0));
        }
        let millis = at.0 / 1_000_000;
        if millis > self.waited {
            self.waited = millis;
            self.buffer.line(format_args!("volume-{} wait {millis} 0\n", volume.0))?;
        }
        self.buffer.line(format_args!("volume-{} ", volume.0))
    }

    fn open(&mut self, at: Nanos, volume: VolumeId) -> Result<(), TraceError> {
        for action in ["add", "open"] {
            self.begin(at, volume)?;
            self.buffer.line(format_args!("{action}\n"))?;
        }
        Ok(())
    }
}

impl<W: Write> Writer for Fio<W> {
    fn write(&mut self, records: &[Record]) -> Result<(), TraceError> {
        for Record { at, volume, operation, offset, length } in records {
            let word = match operation {
                Operation::Read => "read",
                Operation::Write => "write",
                Operation::Trim => "trim",
                Operation::Flush => "sync",
                _ => {
                    self.written.left_out += 1;
                    continue;
                }
            };
            if self.opened.insert(*volume) {
                self.open(*at, *volume)?;
            }
            self.begin(*at, *volume)?;
            self.buffer.line(format_args!("{word} {offset} {length}\n"))?;
            self.written.records += 1;
        }
        Ok(())
    }
    fn finish(self: Box<Self>) -> Result<Written, TraceError> {
        self.buffer.end().map(|()| self.written)
    }
}

/// Writes oracleGeneral. Of a block device, an object is the sector where a request begins, with
/// the volume in the upper bits; trims and flushes are left out. The next access is not known (-1).
struct Oracle<W: Write> {
    buffer: Buffered<W>,
    unit: Unit,
    written: Written,
}

impl<W: Write> Oracle<W> {
    fn object(&self, record: &Record) -> Result<u64, TraceError> {
        let volume = u64::from(record.volume.0);
        match self.unit {
            Unit::Objects if volume == 0 => Ok(record.offset),
            Unit::Bytes if volume < 1 << (u64::BITS - ORACLE_SECTOR_BITS) => {
                Ok((volume << ORACLE_SECTOR_BITS) | (record.offset / SECTOR_BYTES))
            }
            _ => Err(unsupported(format!("oracle-general has no room for volume {volume}"))),
        }
    }
}

fn unsupported(what: String) -> TraceError {
    TraceError::Unsupported { what }
}

impl<W: Write> Writer for Oracle<W> {
    fn write(&mut self, records: &[Record]) -> Result<(), TraceError> {
        for record in records {
            if !matches!(record.operation, Operation::Read | Operation::Write) {
                self.written.left_out += 1;
                continue;
            }
            let (Ok(seconds), Ok(size)) =
                (u32::try_from(record.at.as_secs()), u32::try_from(record.length))
            else {
                let (at, length) = (record.at.as_secs(), record.length);
                return Err(unsupported(format!(
                    "oracle-general has 32 bits for seconds and for sizes; a request of {length} \
                     bytes at {at} s needs more"
                )));
            };
            let mut bytes = [0xff; crate::oracle::RECORD_BYTES];
            bytes[..4].copy_from_slice(&seconds.to_le_bytes());
            bytes[4..12].copy_from_slice(&self.object(record)?.to_le_bytes());
            bytes[12..16].copy_from_slice(&size.to_le_bytes());
            self.buffer.bytes(&bytes)?;
            self.written.records += 1;
        }
        Ok(())
    }
    fn finish(self: Box<Self>) -> Result<Written, TraceError> {
        self.buffer.end().map(|()| self.written)
    }
}
