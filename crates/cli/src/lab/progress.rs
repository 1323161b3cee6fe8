//! How far an experiment is: a bar on a terminal, a line now and then elsewhere.
//!
//! How: standard error takes either. A line comes at the first step, at most every ten seconds, and
//! at the end, so that a log shows that something happens and is not flooded.
//! Invariant: standard output is left alone. Cost: a clock per step.

use crate::output::Output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use layby_lab::Progress as Step;
use std::time::{Duration, Instant};

/// Rest between two lines.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// See the file's header.
pub(super) struct Progress {
    name: &'static str,
    bar: Option<ProgressBar>,
    began: Instant,
    told: Option<Duration>,
}

impl Progress {
    #[expect(clippy::disallowed_methods, reason = "people are told how long it takes")]
    pub(super) fn new(name: &'static str, is_terminal: bool) -> Self {
        let bar = is_terminal.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let template = "{wide_bar} {percent:>3} %  {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar
        });
        Progress { name, bar, began: Instant::now(), told: None }
    }

    pub(super) fn tell(&mut self, step: Step, output: &mut Output) {
        match &self.bar {
            Some(bar) => {
                bar.set_length(u64::from(step.total));
                bar.set_position(u64::from(step.done));
            }
            None => {
                let elapsed = self.began.elapsed();
                if is_due(self.told, elapsed, step) {
                    self.told = Some(elapsed);
                    output.progress(&line(self.name, step, elapsed));
                }
            }
        }
    }

    pub(super) fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn is_due(told: Option<Duration>, elapsed: Duration, step: Step) -> bool {
    step.done == step.total || told.is_none_or(|told| elapsed >= told + LINE_EVERY)
}

fn line(name: &str, step: Step, elapsed: Duration) -> String {
    let Step { done, total } = step;
    format!("{name}: {done} of {total} steps done after {} s", elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a log gets the first and the last step and no more than a line per ten seconds
    /// between. Method: a thousand steps of 100 ms.
    #[test]
    fn lines_are_few() {
        let (mut told, mut lines) = (None, Vec::new());
        for done in 1..=1000 {
            let (step, elapsed) = (Step { done, total: 1000 }, Duration::from_millis(100) * done);
            if is_due(told, elapsed, step) {
                told = Some(elapsed);
                lines.push(line("wear", step, elapsed));
            }
        }
        assert_eq!(lines.len(), 11, "{lines:?}");
        assert_eq!(lines[0], "wear: 1 of 1000 steps done after 0 s");
        assert_eq!(lines[10], "wear: 1000 of 1000 steps done after 100 s");
    }
}
