//! What happened in a life, a line each, for whoever replays a failing seed.
//!
//! How: the world notes as it goes when it was asked to; otherwise nothing is even formatted.
//! Cost: a line of text per note. Not for: statistics.

use layby_types::Nanos;
use std::fmt;

/// Lines that are kept; the oldest go first.
const LINES_MAX: usize = 4000;

/// See the module's header.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    is_on: bool,
    lines: std::collections::VecDeque<(Nanos, String)>,
}

impl Timeline {
    /// One that keeps notes, or one that does not.
    #[must_use]
    pub fn new(is_on: bool) -> Self {
        Timeline { is_on, lines: std::collections::VecDeque::new() }
    }

    /// Notes what happened at `now`.
    pub fn note(&mut self, now: Nanos, line: impl FnOnce() -> String) {
        if self.is_on {
            if self.lines.len() == LINES_MAX {
                self.lines.pop_front();
            }
            self.lines.push_back((now, line()));
        }
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (now, line) in &self.lines {
            writeln!(f, "{:>12.3} us  {line}", now.0 as f64 / 1e3)?;
        }
        Ok(())
    }
}
