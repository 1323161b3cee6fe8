//! How far the demo is: a bar on a terminal, a line now and then elsewhere.
//!
//! How: each phase says that it begins, and a line comes every ten seconds, so that a log or a pipe
//! tells a demo that goes on from one that hangs.
//! Invariant: standard output is left alone. Cost: nothing but the lines.

use super::TICKS_PER_SECOND;
use crate::output::note;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Seconds between two lines.
const LINE_SECONDS: u64 = 10;

/// See the file's header.
pub(super) struct Progress {
    bar: ProgressBar,
    is_drawn: bool,
    phase_seconds: u64,
}

impl Progress {
    /// Of two phases of so many seconds.
    pub(super) fn new(phase_seconds: u64, is_terminal: bool) -> Progress {
        let target = match is_terminal {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let ticks = 2 * phase_seconds * TICKS_PER_SECOND;
        let bar = ProgressBar::with_draw_target(Some(ticks), target);
        let style = ProgressStyle::with_template("{wide_bar} {percent:>3} %  {msg}");
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar, is_drawn: is_terminal, phase_seconds }
    }

    /// A phase begins: its files are written, and its node starts.
    pub(super) fn begin(&self, phase: &'static str) {
        self.bar.set_message(phase);
        if !self.is_drawn {
            note(&format!("demo: {phase}, {} s", self.phase_seconds));
        }
    }

    /// A tick of the phase has passed.
    pub(super) fn tick(&self) {
        self.bar.inc(1);
        if let Some(line) = line(self.bar.position(), self.phase_seconds)
            && !self.is_drawn
        {
            note(&line);
        }
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// What is said after so many ticks; most of them pass in silence.
fn line(ticks: u64, phase_seconds: u64) -> Option<String> {
    let is_due = ticks.is_multiple_of(LINE_SECONDS * TICKS_PER_SECOND);
    let (seconds, all) = (ticks / TICKS_PER_SECOND, 2 * phase_seconds);
    is_due.then(|| format!("demo: {seconds} of {all} s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a pipe gets a line every ten seconds, and no flood. Method: the ticks of a demo.
    #[test]
    fn lines_are_few() {
        let lines: Vec<String> =
            (1..=2 * 20 * TICKS_PER_SECOND).filter_map(|ticks| line(ticks, 20)).collect();
        let expected = [10, 20, 30, 40].map(|seconds| format!("demo: {seconds} of 40 s"));
        assert_eq!(lines, expected);
    }
}
