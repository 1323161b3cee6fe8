//! Layby's own columnar form: Parquet with five required columns. `docs/formats.md` has the schema.
//!
//! How: row groups are read column by column, a batch at a time, and woven into records.
//! Invariant: a file with another schema is refused before a row is read; a damaged one gives an
//! error and no panic, since the library's panics are caught at this border.
//! Cost: a dictionary and a page per column in memory, each of 64 MiB at most; the writer holds a
//! row group's pages.
//! Not for: pipes, and files compressed as a whole; Parquet begins at its end.

use crate::error::{Fault, Place, Reason, Skipped, TraceError};
use crate::guard::{Faults, Guard};
use crate::input::Position;
use crate::page_head::page_end;
use crate::record::{BATCH_RECORDS_MAX, Reader, Record, Unit};
use crate::writer::{Writer, Written};
use layby_types::{Nanos, Operation};
use parquet::basic::{Compression, Encoding, Type, ZstdLevel};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, TypePtr};
use std::fs::File;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// The schema, as Parquet writes schemas.
const SCHEMA: &str = "message layby_trace {
    REQUIRED INT64 at_ns (INTEGER(64,false));
    REQUIRED INT32 volume (INTEGER(32,false));
    REQUIRED INT32 operation (INTEGER(8,false));
    REQUIRED INT64 offset (INTEGER(64,false));
    REQUIRED INT64 length (INTEGER(64,false));
}";
const COLUMNS: [(&str, Type); 5] = [
    ("at_ns", Type::INT64),
    ("volume", Type::INT32),
    ("operation", Type::INT32),
    ("offset", Type::INT64),
    ("length", Type::INT64),
];
const KEY_VERSION: &str = "layby.trace.version";
const KEY_UNIT: &str = "layby.trace.unit";
const VERSION: &str = "1";
/// Rows of a row group at most; bounds what a writer holds in memory.
const GROUP_ROWS_MAX: usize = 1 << 20;
/// Bytes of a value in a dictionary at least: of the narrower of our two types.
const DICTIONARY_VALUE_BYTES: usize = 4;
/// The operations, by their number in the column.
const OPERATIONS: [Operation; 4] =
    [Operation::Read, Operation::Write, Operation::Trim, Operation::Flush];

/// The first and last bytes of every Parquet file.
pub(crate) const MAGIC: &[u8] = b"PAR1";

fn wrong(cause: impl Into<String>) -> TraceError {
    TraceError::Parquet { cause: cause.into() }
}

/// Carries out `work` of the library, whose panics over damaged files become errors.
fn guarded<T>(work: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, TraceError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(cause)) => Err(wrong(cause.to_string())),
        Err(_) => Err(wrong("the file's structure contradicts itself")),
    }
}

/// The columns of one row group.
struct Group {
    at: ColumnReaderImpl<Int64Type>,
    volume: ColumnReaderImpl<Int32Type>,
    operation: ColumnReaderImpl<Int32Type>,
    offset: ColumnReaderImpl<Int64Type>,
    length: ColumnReaderImpl<Int64Type>,
}

/// A batch of each column.
#[derive(Default)]
struct Values {
    at: Vec<i64>,
    volume: Vec<i32>,
    operation: Vec<i32>,
    offset: Vec<i64>,
    length: Vec<i64>,
}

/// Reads Layby's own Parquet.
pub(crate) struct Parquet {
    file: SerializedFileReader<File>,
    /// The same file, for the heads of pages.
    heads: Arc<File>,
    group: Option<Group>,
    next_group: usize,
    values: Values,
    row: u64,
    rows: u64,
    guard: Guard,
    faults: Faults,
    position: Position,
    file_bytes: u64,
    at_end: bool,
}

impl Parquet {
    /// Opens the file at `path`; tells `position` how far reading is.
    pub(crate) fn open(
        path: &Path,
        lenient: bool,
        position: Position,
    ) -> Result<Parquet, TraceError> {
        let failed = |cause| TraceError::Open { path: path.to_path_buf(), cause };
        let file = File::open(path).map_err(failed)?;
        let file_bytes = file.metadata().map_err(failed)?.len();
        let heads = Arc::new(file.try_clone().map_err(failed)?);
        let file = guarded(|| SerializedFileReader::new(file))?;
        let unit = unit(file.metadata())?;
        let rows = u64::try_from(file.metadata().file_metadata().num_rows()).unwrap_or(0);
        Ok(Parquet {
            file,
            heads,
            group: None,
            next_group: 0,
            values: Values::default(),
            row: 0,
            rows,
            guard: Guard::new(unit),
            faults: Faults::new(lenient),
            position,
            file_bytes,
            at_end: false,
        })
    }

    fn fill_to(&mut self, batch: &mut Vec<Record>) -> Result<(), TraceError> {
        while batch.is_empty() && !self.at_end {
            let count = match &mut self.group {
                None => {
                    self.open_group()?;
                    continue;
                }
                Some(group) => guarded(|| group.read(&mut self.values))?,
            };
            if count == 0 {
                self.group = None;
                continue;
            }
            self.weave(count, batch)?;
        }
        Ok(())
    }

    fn open_group(&mut self) -> Result<(), TraceError> {
        if self.next_group == self.file.num_row_groups() {
            self.at_end = true;
            self.position.set(self.file_bytes);
            return Ok(());
        }
        let (file, heads, index) = (&self.file, &self.heads, self.next_group);
        self.group = Some(guarded(|| Group::open(file, heads, index))?);
        self.next_group += 1;
        let done = self.row.min(self.rows) as f64 / self.rows.max(1) as f64;
        self.position.set((self.file_bytes as f64 * done) as u64);
        Ok(())
    }

    /// Makes records of `count` values of each column.
    fn weave(&mut self, count: usize, batch: &mut Vec<Record>) -> Result<(), TraceError> {
        for index in 0..count {
            let made = self.values.record(index);
            match made.and_then(|record| self.guard.admit(&record).map(|()| record)) {
                Ok(record) => batch.push(record),
                Err(fault) => self.faults.meet(Place::Row(self.row), fault)?,
            }
            self.row += 1;
        }
        Ok(())
    }
}

impl Reader for Parquet {
    fn fill(&mut self, batch: &mut Vec<Record>) -> Result<usize, TraceError> {
        batch.clear();
        let filled = self.fill_to(batch);
        self.at_end |= filled.is_err();
        filled.map(|()| batch.len())
    }
    fn unit(&self) -> Unit {
        self.guard.unit()
    }
    fn skipped(&self) -> Skipped {
        self.faults.skipped()
    }
    fn volumes(&self) -> &[String] {
        &[]
    }
}

/// The unit of a file that has our schema and our version.
fn unit(metadata: &ParquetMetaData) -> Result<Unit, TraceError> {
    let file = metadata.file_metadata();
    let columns = file.schema_descr().columns();
    let is_ours = columns.len() == COLUMNS.len()
        && columns.iter().zip(COLUMNS).all(|(column, (name, kind))| {
            let is_required = column.max_def_level() == 0 && column.max_rep_level() == 0;
            column.name() == name && column.physical_type() == kind && is_required
        });
    if !is_ours {
        let names: Vec<&str> = columns.iter().take(8).map(|column| column.name()).collect();
        let expected = COLUMNS.map(|(name, _)| name).join(", ");
        return Err(wrong(format!("columns {}; expected {expected}", names.join(", "))));
    }
    let pairs = file.key_value_metadata().map(Vec::as_slice).unwrap_or_default();
    let value = |key| pairs.iter().find(|pair| pair.key == key).and_then(|p| p.value.as_deref());
    match (value(KEY_VERSION), value(KEY_UNIT)) {
        (Some(VERSION), Some("bytes")) => Ok(Unit::Bytes),
        (Some(VERSION), Some("objects")) => Ok(Unit::Objects),
        (version, unit) => Err(wrong(format!(
            "{KEY_VERSION} is {version:?} and {KEY_UNIT} is {unit:?}; expected 1, bytes or objects"
        ))),
    }
}

impl Group {
    fn open(
        file: &SerializedFileReader<File>,
        heads: &Arc<File>,
        index: usize,
    ) -> Result<Group, ParquetError> {
        let group = file.get_row_group(index)?;
        Ok(Group {
            at: column_reader(&*group, heads, 0)?,
            volume: column_reader(&*group, heads, 1)?,
            operation: column_reader(&*group, heads, 2)?,
            offset: column_reader(&*group, heads, 3)?,
            length: column_reader(&*group, heads, 4)?,
        })
    }

    /// Reads the next batch of each column and says how many rows it has.
    fn read(&mut self, values: &mut Values) -> Result<usize, ParquetError> {
        let counts = [
            read(&mut self.at, &mut values.at)?,
            read(&mut self.volume, &mut values.volume)?,
            read(&mut self.operation, &mut values.operation)?,
            read(&mut self.offset, &mut values.offset)?,
            read(&mut self.length, &mut values.length)?,
        ];
        if counts.iter().any(|count| *count != counts[0]) {
            return Err(ParquetError::General("columns differ in their rows".to_owned()));
        }
        Ok(counts[0])
    }
}

fn column_reader<T: DataType>(
    group: &dyn RowGroupReader,
    heads: &Arc<File>,
    index: usize,
) -> Result<ColumnReaderImpl<T>, ParquetError> {
    let about = group.metadata().schema_descr().column(index);
    let (next, length) = group.metadata().column(index).byte_range();
    let (pages, heads) = (group.get_column_page_reader(index)?, Arc::clone(heads));
    let pages = BoundedPages { pages, heads, next, end: next.saturating_add(length) };
    Ok(ColumnReaderImpl::new(about, Box::new(pages)))
}

/// Pages that are not too long, and whose dictionaries hold what they claim: the library makes room
/// for the claims first.
struct BoundedPages {
    pages: Box<dyn PageReader>,
    heads: Arc<File>,
    /// Where the next page begins, and where the column ends.
    next: u64,
    end: u64,
}

impl BoundedPages {
    /// Passes the next page's head, if there is one.
    fn pass_head(&mut self) -> Result<(), ParquetError> {
        if self.next < self.end {
            self.next = page_end(&self.heads, self.next)
                .map_err(|cause| ParquetError::General(cause.to_string()))?;
        }
        Ok(())
    }
}

impl PageReader for BoundedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        self.pass_head()?;
        let page = self.pages.get_next_page()?;
        if let Some(Page::DictionaryPage { buf, num_values, .. }) = &page
            && *num_values as usize > buf.len() / DICTIONARY_VALUE_BYTES
        {
            let cause = format!("a dictionary of {num_values} values in {} bytes", buf.len());
            return Err(ParquetError::General(cause));
        }
        Ok(page)
    }
    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.pages.peek_next_page()
    }
    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.pass_head()?;
        self.pages.skip_next_page()
    }
}

impl Iterator for BoundedPages {
    type Item = Result<Page, ParquetError>;
    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

fn read<T: DataType>(
    column: &mut ColumnReaderImpl<T>,
    values: &mut Vec<T::T>,
) -> Result<usize, ParquetError> {
    values.clear();
    column.read_records(BATCH_RECORDS_MAX, None, None, values)?;
    Ok(values.len())
}

impl Values {
    fn record(&self, index: usize) -> Result<Record, Box<Fault>> {
        let number = self.operation[index];
        let operation = usize::try_from(number).ok().and_then(|at| OPERATIONS.get(at));
        let operation = operation.copied().ok_or_else(|| {
            Fault::value(Reason::Operation, "operation", number, "a number from 0 to 3")
        })?;
        let volume = crate::csv::own_volume(u64::from(self.volume[index].cast_unsigned()))?;
        Ok(Record {
            at: Nanos(self.at[index].cast_unsigned()),
            volume,
            operation,
            offset: self.offset[index].cast_unsigned(),
            length: self.length[index].cast_unsigned(),
        })
    }
}

/// Writes Layby's own Parquet.
pub(crate) struct ParquetWriter<W: Write + Send> {
    file: SerializedFileWriter<W>,
    pending: Vec<Record>,
    written: Written,
}

impl<W: Write + Send> ParquetWriter<W> {
    pub(crate) fn new(output: W, unit: Unit) -> Result<Self, TraceError> {
        let schema: TypePtr = Arc::new(guarded(|| parse_message_type(SCHEMA))?);
        let properties = Arc::new(properties(unit));
        let file = guarded(|| SerializedFileWriter::new(output, schema, properties))?;
        Ok(ParquetWriter { file, pending: Vec::new(), written: Written::default() })
    }

    /// Writes what is pending as a row group.
    fn flush(&mut self) -> Result<(), TraceError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let (file, rows) = (&mut self.file, &self.pending);
        written(write_group(file, rows))?;
        self.written.records += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

/// A failure to write, which is the output's unless the library says otherwise.
fn written<T>(done: Result<T, ParquetError>) -> Result<T, TraceError> {
    done.map_err(|cause| match cause {
        ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
            Ok(cause) => TraceError::Write { cause: *cause },
            Err(other) => wrong(other.to_string()),
        },
        other => wrong(other.to_string()),
    })
}

fn properties(unit: Unit) -> WriterProperties {
    let name = match unit {
        Unit::Bytes => "bytes",
        Unit::Objects => "objects",
    };
    let pair = |key: &str, value: &str| KeyValue::new(key.to_owned(), value.to_owned());
    WriterProperties::builder()
        .set_key_value_metadata(Some(vec![pair(KEY_VERSION, VERSION), pair(KEY_UNIT, name)]))
        .set_created_by(concat!("layby ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_column_dictionary_enabled(ColumnPath::from("at_ns"), false)
        .set_column_encoding(ColumnPath::from("at_ns"), Encoding::DELTA_BINARY_PACKED)
        .build()
}

fn write_group<W: Write + Send>(
    file: &mut SerializedFileWriter<W>,
    rows: &[Record],
) -> Result<(), ParquetError> {
    let mut group = file.next_row_group()?;
    column::<Int64Type, _>(&mut group, rows, |row| row.at.0.cast_signed())?;
    column::<Int32Type, _>(&mut group, rows, |row| row.volume.0.cast_signed())?;
    column::<Int32Type, _>(&mut group, rows, |row| number(row.operation).unwrap_or(-1))?;
    column::<Int64Type, _>(&mut group, rows, |row| row.offset.cast_signed())?;
    column::<Int64Type, _>(&mut group, rows, |row| row.length.cast_signed())?;
    group.close().map(|_| ())
}

/// The number of `operation` in its column.
fn number(operation: Operation) -> Option<i32> {
    OPERATIONS.iter().position(|other| *other == operation).map(|at| at as i32)
}

fn column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    rows: &[Record],
    value: impl Fn(&Record) -> T::T,
) -> Result<(), ParquetError> {
    let missing = || ParquetError::General("the schema has five columns".to_owned());
    let values: Vec<T::T> = rows.iter().map(value).collect();
    let mut column = group.next_column()?.ok_or_else(missing)?;
    column.typed::<T>().write_batch(&values, None, None)?;
    column.close()
}

impl<W: Write + Send> Writer for ParquetWriter<W> {
    fn write(&mut self, records: &[Record]) -> Result<(), TraceError> {
        for record in records {
            if number(record.operation).is_none() {
                self.written.left_out += 1;
                continue;
            }
            self.pending.push(*record);
            if self.pending.len() == GROUP_ROWS_MAX {
                self.flush()?;
            }
        }
        Ok(())
    }
    fn finish(mut self: Box<Self>) -> Result<Written, TraceError> {
        self.flush()?;
        let written_rows = self.written;
        let mut output = written(self.file.into_inner())?;
        output.flush().map_err(|cause| TraceError::Write { cause })?;
        Ok(written_rows)
    }
}
