//! `layby trace convert`, `sample` and `cut`: one trace into another.
//!
//! How: one loop reads a batch, lets a selection make the next one of it, and writes that.

use super::{
    CopyArguments, check_absent, create_target, note_open_end, source, target_format, unread,
    unwritten,
};
use crate::output::{Failure, Output};
use layby_daemon::config::Time;
use layby_daemon::error::{Report, ReportKind};
use layby_daemon::types::{BlockSize, Nanos};
use layby_trace::Unit;
use layby_trace::{Cutter, Reader, Record, Sampler, Skipped, Trace, Window, Writer, Written};

/// What becomes of each batch: appends what is kept, and says whether to go on.
type Selection = Box<dyn FnMut(&[Record], &mut Vec<Record>) -> bool>;

pub(super) fn convert(arguments: &CopyArguments, output: &mut Output) -> Result<(), Failure> {
    let all = |_: Unit| -> Selection {
        Box::new(|records, kept| {
            kept.extend_from_slice(records);
            true
        })
    };
    copy(arguments, all, output)
}

pub(super) fn sample(
    arguments: &CopyArguments,
    (rate, seed): (f64, u64),
    block_size: BlockSize,
    output: &mut Output,
) -> Result<(), Failure> {
    let chosen = |unit: Unit| -> Selection {
        let sampler = Sampler::new(rate, seed, unit, block_size);
        Box::new(move |records, kept| {
            sampler.select(records, kept);
            true
        })
    };
    copy(arguments, chosen, output)
}

/// The window that the flags describe.
pub(super) fn window(
    from: Option<Time>,
    until: Option<Time>,
    first: u64,
    count: Option<u64>,
) -> Result<Window, Report> {
    let window = Window {
        from: from.map_or(Nanos::ZERO, |time| time.0),
        until: until.map_or(Nanos::NEVER, |time| time.0),
        first,
        count: count.unwrap_or(u64::MAX),
    };
    if window.from < window.until && window.count > 0 {
        return Ok(window);
    }
    Err(Report::new(ReportKind::Invalid, "the part to cut out is empty")
        .cause("--until is not after --from, or --count is 0")
        .state("nothing was read or written")
        .hint("give a time after --from, or a count of at least 1"))
}

pub(super) fn cut(
    arguments: &CopyArguments,
    window: Window,
    output: &mut Output,
) -> Result<(), Failure> {
    let part = |_: Unit| -> Selection {
        let mut cutter = Cutter::new(window);
        Box::new(move |records, kept| cutter.select(records, kept))
    };
    copy(arguments, part, output)
}

fn copy(
    arguments: &CopyArguments,
    selection: impl Fn(Unit) -> Selection,
    output: &mut Output,
) -> Result<(), Failure> {
    let CopyArguments { source: from, target } = arguments;
    let format = target_format(target)?;
    check_absent(target)?;
    let (mut trace, bar) = source(from, output)?;
    let failed = |cause| unwritten(target, &cause);
    let mut writer = Box::new(create_target(target, format, trace.unit())?);
    let (mut batch, mut kept, mut select) = (Vec::new(), Vec::new(), selection(trace.unit()));
    while trace.fill(&mut batch).map_err(|cause| unread(from, &cause))? > 0 {
        kept.clear();
        let more = select(&batch, &mut kept);
        writer.write(&kept).map_err(failed)?;
        bar.set_position(trace.position());
        if !more {
            break;
        }
    }
    let written = writer.finish().map_err(failed)?;
    bar.finish_and_clear();
    note_open_end(&trace);
    output.line(&format!(
        "`{}`: {} requests in {format}, from {}",
        target.out.display(),
        written.records,
        trace.format(),
    ))?;
    if written.records == 0 {
        output.line("it is empty: the source has no request that was to be kept")?;
    }
    losses(&trace, &written, output)
}

/// Says what is missing from the new trace, if anything is.
fn losses(trace: &Trace, written: &Written, output: &mut Output) -> Result<(), Failure> {
    if written.left_out > 0 {
        let count = written.left_out;
        output.line(&format!("left out: {count} requests that the format has no words for"))?;
    }
    let skipped: Skipped = trace.skipped();
    for (reason, count) in skipped.iter() {
        output.line(&format!("left out: {count} requests: {}", reason.name()))?;
    }
    Ok(())
}
