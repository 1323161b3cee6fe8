//! Measures a real device: latency, bandwidth, and how many accesses it serves at once.
//!
//! How: in a directory a file of its own is made, written whole and given no name; a file or device
//! that exists is opened for reading only. Loads run one after the other ([`load`]) over the `Io`
//! that serves clients, so that its costs are in the figures; [`figures`] makes a model of them.
//! Invariant: nothing that existed is written, and nothing is left behind, even after a kill, but
//! for one between the file's creation and the next system call.
//! Cost: the file's room while it lasts, and its time: see [`ProbePlan`].
//! Not for: wear or behaviour over hours; a device may cache, throttle and clean up.

mod figures;
mod load;

pub use figures::{DEPTH_MAX, Figures, GROWTH_PERCENT_MIN, Sample, Samples};

use crate::io::{
    ARENA_BYTES_DEFAULT, DiskId, HostIo, Io, IoChoice, IoError, IoOperation, OpenDisk, OpenError,
    OpenMode, open_disk, run_alone,
};
use layby_types::{ErrorKind, Nanos, Rng};
use load::Load;
use rustix::io::Errno;
use std::fmt;
use std::path::{Path, PathBuf};

/// Fewest bytes that are probed: fewer would hardly leave a device's own memory.
pub const PROBE_BYTES_MIN: u64 = 4 << 20;
/// Bytes of a directory's file unless told otherwise.
pub const PROBE_BYTES_DEFAULT: u64 = 1 << 30;
/// Most bytes of a directory's file.
pub const PROBE_BYTES_MAX: u64 = 1 << 40;

/// An access that latency is measured with.
const SMALL: u64 = 4096;
/// An access that bandwidth is measured with.
const LARGE: u64 = 1 << 20;
/// Large writes in flight while a file is filled.
const FILL_DEPTH: u16 = 4;
/// Measures at most: filling, two or four loads one at a time, then every depth.
const STEPS_MAX: u32 = 5 + DEPTH_MAX.trailing_zeros();

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePlan {
    /// A directory, in which a file is made, or a file or block device, which is only read.
    pub path: PathBuf,
    /// Bytes of the file made, or from the beginning that are read; `None`:
    /// [`PROBE_BYTES_DEFAULT`], or all there are.
    pub bytes: Option<u64>,
    /// How long each measure takes; there are up to thirteen.
    pub measure: Nanos,
    /// Same seed, same places and bytes.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// What was measured.
    pub samples: Samples,
    /// Bytes that accesses were spread over.
    pub bytes: u64,
    /// Accesses went past the page cache; otherwise the figures are those of memory.
    pub is_direct: bool,
    /// A file that has holes, whose bytes no device was asked for.
    pub has_holes: bool,
    /// How the kernel was talked to.
    pub io: String,
}

/// How far a probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeProgress {
    /// What is measured now.
    pub step: &'static str,
    /// Measures done.
    pub done: u32,
    /// Measures at most.
    pub total: u32,
}

/// Why a device could not be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProbeError {
    /// The path is no directory, file or device, or cannot be opened.
    Open(OpenError),
    /// A file of the probe's name is there already.
    InTheWay(PathBuf),
    /// There are fewer than [`PROBE_BYTES_MIN`] bytes.
    Short(u64),
    /// The kernel gives no I/O.
    Io(IoError),
    /// An access failed.
    Access {
        /// What was measured.
        step: &'static str,
        /// The system's error.
        error: IoError,
    },
}

impl ProbeError {
    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            ProbeError::Open(error) => error.kind,
            ProbeError::InTheWay(_) | ProbeError::Short(_) => ErrorKind::Invalid,
            ProbeError::Io(_) => ErrorKind::Unsupported,
            ProbeError::Access { error, .. } => match Errno::from_raw_os_error(error.errno) {
                Errno::NOSPC | Errno::DQUOT => ErrorKind::Full,
                _ => ErrorKind::Corrupt,
            },
        }
    }
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeError::Open(error) => error.fmt(f),
            ProbeError::InTheWay(path) => write!(f, "`{}` is there already", path.display()),
            ProbeError::Short(bytes) => {
                write!(f, "{bytes} bytes to measure, at least {PROBE_BYTES_MIN}")
            }
            ProbeError::Io(error) => write!(f, "the kernel gives no I/O: {error}"),
            ProbeError::Access { step, error } => write!(f, "{step}: {error}"),
        }
    }
}

impl std::error::Error for ProbeError {}

/// Measures the device under `plan.path`. `progress` is told of every measure as it begins.
///
/// # Errors
/// [`ProbeError`]; nothing is left behind then, either.
pub fn probe(
    plan: &ProbePlan,
    progress: &mut dyn FnMut(ProbeProgress),
) -> Result<Probed, ProbeError> {
    let (mut io, _, description) =
        HostIo::start(IoChoice::Auto, ARENA_BYTES_DEFAULT).map_err(ProbeError::Io)?;
    let writes = plan.path.is_dir();
    let target = if writes { new_file(plan)? } else { existing(&plan.path)? };
    let bytes = plan.bytes.unwrap_or(u64::MAX).min(target.length()) / LARGE * LARGE;
    if bytes < PROBE_BYTES_MIN {
        return Err(ProbeError::Short(bytes));
    }
    let (is_direct, has_holes) = (target.is_direct(), target.has_holes());
    let disk = io.attach_disk(target);
    let rng = Rng::new(plan.seed);
    let mut run = Run { io: &mut io, disk, bytes, measure: plan.measure, rng, progress, done: 0 };
    let samples = run.all(writes)?;
    Ok(Probed { samples, bytes, is_direct, has_holes, io: description })
}

/// A file in the directory `plan.path` that has lost its name by the time this returns.
fn new_file(plan: &ProbePlan) -> Result<OpenDisk, ProbeError> {
    let path = plan.path.join(format!(".layby-probe-{}", std::process::id()));
    let length = plan.bytes.unwrap_or(PROBE_BYTES_DEFAULT);
    if length < PROBE_BYTES_MIN {
        return Err(ProbeError::Short(length));
    }
    let (direct, preallocate, create_length) = (true, true, Some(length));
    let mode = OpenMode { direct, preallocate, create_length, ..OpenMode::default() };
    let file = open_disk(&path, mode).map_err(ProbeError::Open)?;
    if !file.created {
        return Err(ProbeError::InTheWay(path));
    }
    // The kernel keeps the bytes for as long as the file is open, and no longer.
    rustix::fs::unlink(&path).map_err(|error| {
        let step = "removing the file's name";
        ProbeError::Access { step, error: error.into() }
    })?;
    Ok(file)
}

fn existing(path: &Path) -> Result<OpenDisk, ProbeError> {
    let (direct, is_shared, is_read_only) = (true, true, true);
    let mode = OpenMode { direct, is_shared, is_read_only, ..OpenMode::default() };
    open_disk(path, mode).map_err(ProbeError::Open)
}

/// A probe under way.
struct Run<'a> {
    io: &'a mut dyn Io,
    disk: DiskId,
    bytes: u64,
    measure: Nanos,
    rng: Rng,
    progress: &'a mut dyn FnMut(ProbeProgress),
    done: u32,
}

impl Run<'_> {
    fn all(&mut self, writes: bool) -> Result<Samples, ProbeError> {
        if writes {
            self.fill()?;
        }
        let one = self.small(1);
        let mut reads = vec![self.sample("random reads", one)?];
        let (mut write, mut large_write) = (None, None);
        let large_read = self.sample("large reads", self.large())?;
        if writes {
            write = Some(self.sample("random writes", Load { is_write: true, ..one })?);
            let large = Load { is_write: true, ..self.large() };
            large_write = Some(self.sample("large writes", large)?);
        }
        let mut depth = 2;
        while depth <= DEPTH_MAX && !figures::is_saturated(&reads) {
            reads.push(self.sample("deeper queues", self.small(depth))?);
            depth *= 2;
        }
        Ok(Samples { reads, write, large_read, large_write })
    }

    /// Gives every block of the file bytes of its own: what was never written is not read either.
    fn fill(&mut self) -> Result<(), ProbeError> {
        let (is_write, depth, time_max) = (true, FILL_DEPTH, Nanos::NEVER);
        let accesses_max = self.bytes / LARGE;
        let step = "writing the file";
        self.sample(step, Load { is_write, depth, time_max, accesses_max, ..self.large() })?;
        let synced = run_alone(self.io, IoOperation::Sync { disk: self.disk });
        synced.map(|_| ()).map_err(|error| ProbeError::Access { step, error })
    }

    fn small(&self, depth: u16) -> Load {
        Load {
            is_write: false,
            is_random: true,
            bytes: SMALL,
            depth,
            extent: self.bytes,
            time_max: self.measure,
            accesses_max: u64::MAX,
        }
    }

    fn large(&self) -> Load {
        Load { is_random: false, bytes: LARGE, ..self.small(1) }
    }

    fn sample(&mut self, step: &'static str, load: Load) -> Result<Sample, ProbeError> {
        (self.progress)(ProbeProgress { step, done: self.done, total: STEPS_MAX });
        self.done += 1;
        load::run(self.io, self.disk, &load, &mut self.rng)
            .map_err(|error| ProbeError::Access { step, error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(path: &Path) -> ProbePlan {
        let (path, bytes) = (path.to_owned(), Some(PROBE_BYTES_MIN));
        ProbePlan { path, bytes, measure: Nanos::from_millis(2), seed: 1 }
    }

    /// Goal: a directory is measured both ways, and its file has no name meanwhile and after.
    /// Method: a small file; every step counts the directory's entries.
    #[test]
    fn a_directory_stays_empty() {
        let directory = tempfile::tempdir().unwrap();
        let entries = || std::fs::read_dir(directory.path()).unwrap().count();
        let (mut steps, mut seen) = (0, 0);
        let probed = probe(&plan(directory.path()), &mut |progress| {
            seen = seen.max(entries());
            assert_eq!(progress.done, steps);
            steps += 1;
            assert!(steps <= progress.total);
        });
        let probed = probed.unwrap();
        assert_eq!((seen, entries(), probed.has_holes), (0, 0, false));
        let figures = probed.samples.figures();
        assert!(figures.read > Nanos::ZERO && figures.write.is_some_and(|w| w > Nanos::ZERO));
        assert!(figures.channels >= 1 && probed.bytes == PROBE_BYTES_MIN);
    }

    /// Goal: what exists is read and never written, and holes are told. Method: a file of known
    /// bytes, one of none; both are compared afterwards.
    #[test]
    fn what_exists_is_only_read() {
        let directory = tempfile::tempdir().unwrap();
        let (full, hollow) = (directory.path().join("full"), directory.path().join("hollow"));
        let mut bytes = vec![0; PROBE_BYTES_MIN as usize + 4096];
        Rng::new(1).fill(&mut bytes);
        std::fs::write(&full, &bytes).unwrap();
        std::fs::File::create(&hollow).and_then(|file| file.set_len(PROBE_BYTES_MIN)).unwrap();
        let probed = probe(&ProbePlan { bytes: None, ..plan(&full) }, &mut |_| {}).unwrap();
        assert!(probed.samples.write.is_none() && probed.samples.large_write.is_none());
        assert_eq!(probed.bytes, PROBE_BYTES_MIN);
        assert!(std::fs::read(&full).unwrap() == bytes, "the file was changed");
        assert!(probe(&plan(&hollow), &mut |_| {}).unwrap().has_holes);
    }

    /// Goal: what cannot be measured is refused, and nothing is left. Method: too few bytes, more
    /// than any file system has, a name that is taken, a path that is not there.
    #[test]
    fn what_cannot_be_measured_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let refusal = |plan: &ProbePlan| probe(plan, &mut |_| {}).unwrap_err();
        let few = ProbePlan { bytes: Some(PROBE_BYTES_MIN - 1), ..plan(directory.path()) };
        assert_eq!(refusal(&few), ProbeError::Short(PROBE_BYTES_MIN - 1));
        let much = ProbePlan { bytes: Some(1 << 60), ..plan(directory.path()) };
        assert_eq!(refusal(&much).kind(), ErrorKind::Full);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let taken = directory.path().join(format!(".layby-probe-{}", std::process::id()));
        std::fs::write(&taken, "mine").unwrap();
        assert_eq!(refusal(&plan(directory.path())), ProbeError::InTheWay(taken.clone()));
        assert_eq!(std::fs::read(&taken).unwrap(), b"mine");
        assert!(matches!(refusal(&plan(&directory.path().join("x"))), ProbeError::Open(_)));
    }
}
