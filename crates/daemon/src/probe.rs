//! `layby probe`: what a real device can do, measured without a node.
//!
//! How: the engine measures; here its errors become reports.
//! Invariant: nothing that existed is written. Cost: see [`layby_engine::probe`].

use crate::error::{Report, ReportKind};
use layby_engine::probe::{ProbeError, probe as measure};
use layby_types::ErrorKind;

pub use layby_engine::io::{DeviceHints, device_hints};
pub use layby_engine::probe::{
    Figures, PROBE_BYTES_MAX, PROBE_BYTES_MIN, ProbePlan, ProbeProgress, Probed, Sample, Samples,
};

/// Measures the device under `plan.path`. `progress` is told of every measure as it begins.
///
/// # Errors
/// A report when the path cannot be opened, has too few bytes, or an access failed.
pub fn probe(plan: &ProbePlan, progress: &mut dyn FnMut(ProbeProgress)) -> Result<Probed, Report> {
    measure(plan, progress).map_err(|cause| {
        Report::new(kind(&cause), format!("cannot measure `{}`", plan.path.display()))
            .cause(cause.to_string())
            .state("nothing that was there before was written, and nothing was left behind")
            .hint(hint(&cause))
    })
}

fn kind(cause: &ProbeError) -> ReportKind {
    match cause {
        ProbeError::Open(error) if error.is_missing() => ReportKind::NotFound,
        ProbeError::InTheWay(_) => ReportKind::InUse,
        ProbeError::Access { .. } if cause.kind() != ErrorKind::Full => ReportKind::Failure,
        other => ReportKind::from(other.kind()),
    }
}

fn hint(cause: &ProbeError) -> &'static str {
    match cause.kind() {
        ErrorKind::Full => "make room, or measure less with --size",
        ErrorKind::Denied => "look at who may write the directory or read the device",
        _ => match cause {
            ProbeError::Short(_) => "measure at least 4MiB: see --size",
            ProbeError::InTheWay(_) => "a probe that was killed may have left it: remove it",
            ProbeError::Access { .. } => "look at what the kernel's log says of the device",
            _ => "name a directory to write in, or a file or block device to read",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Nanos;

    /// Goal: exit codes tell absent, short and full apart. Method: a report of each.
    #[test]
    fn failures_are_told_apart() {
        let directory = tempfile::TempDir::new().expect("a temporary directory");
        let refused = |path: &str, bytes| {
            let (path, measure) = (directory.path().join(path), Nanos::from_millis(1));
            let plan = ProbePlan { path, bytes: Some(bytes), measure, seed: 1 };
            probe(&plan, &mut |_| {}).expect_err("it cannot be measured").kind
        };
        assert_eq!(refused("absent", PROBE_BYTES_MIN), ReportKind::NotFound);
        assert_eq!(refused("", 4096), ReportKind::Invalid);
        assert_eq!(refused("", 1 << 60), ReportKind::Full);
    }
}
