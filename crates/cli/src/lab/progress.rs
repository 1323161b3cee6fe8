//! How far an experiment is: a bar on a terminal, a line now and then elsewhere.
//!
//! How: standard error takes either. The experiment runs on a thread of its own, so that a long
//! step is told from a hang: a bar shows the time, and a line comes at the first step, every ten
//! seconds, and at the end, so that a log shows that something happens and is not flooded.
//! Invariant: standard output is left alone. Cost: a thread, and a clock per step and second.

use crate::output::Output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use layby_lab::Progress as Step;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Rest between two lines.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// How often the time is looked at while a step takes long.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// See the file's header.
pub(super) struct Progress {
    name: &'static str,
    bar: Option<ProgressBar>,
    began: Instant,
    told: Option<Duration>,
    step: Step,
}

impl Progress {
    #[expect(clippy::disallowed_methods, reason = "people are told how long it takes")]
    pub(super) fn new(name: &'static str, is_terminal: bool) -> Self {
        let bar = is_terminal.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let template = "{wide_bar} {percent:>3} %  {elapsed}, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar
        });
        Progress { name, bar, began: Instant::now(), told: None, step: Step { done: 0, total: 0 } }
    }

    /// Runs what tells its steps, and shows them.
    pub(super) fn show<T: Send>(
        mut self,
        output: &mut Output,
        run: impl FnOnce(&mut dyn FnMut(Step)) -> T + Send,
    ) -> T {
        let (steps, told): (Sender<Step>, _) = channel();
        let ended = thread::scope(|scope| {
            let run = scope.spawn(move || {
                // Its reader stays until the last one is gone.
                run(&mut |step| {
                    let _ = steps.send(step);
                })
            });
            loop {
                let step = match told.recv_timeout(LOOK_EVERY) {
                    Ok(step) => Some(step),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                self.tell(step, output);
            }
            run.join()
        });
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Shows a step that has ended, or that time passes.
    fn tell(&mut self, step: Option<Step>, output: &mut Output) {
        self.step = step.unwrap_or(self.step);
        match &self.bar {
            Some(bar) if self.step.total > 0 => {
                bar.set_length(u64::from(self.step.total));
                bar.set_position(u64::from(self.step.done));
            }
            Some(bar) => bar.tick(),
            None => {
                let elapsed = self.began.elapsed();
                if is_due(self.told, elapsed, step) {
                    self.told = Some(elapsed);
                    output.progress(&line(self.name, self.step, elapsed));
                }
            }
        }
    }
}

fn is_due(told: Option<Duration>, elapsed: Duration, ended: Option<Step>) -> bool {
    let is_long = elapsed >= told.unwrap_or_default() + LINE_EVERY;
    is_long || ended.is_some_and(|step| told.is_none() || step.done == step.total)
}

fn line(name: &str, step: Step, elapsed: Duration) -> String {
    let Step { done, total } = step;
    if total == 0 {
        return format!("{name}: the first step goes on after {} s", elapsed.as_secs());
    }
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
            if is_due(told, elapsed, Some(step)) {
                told = Some(elapsed);
                lines.push(line("wear", step, elapsed));
            }
        }
        assert_eq!(lines.len(), 11, "{lines:?}");
        assert_eq!(lines[0], "wear: 1 of 1000 steps done after 0 s");
        assert_eq!(lines[10], "wear: 1000 of 1000 steps done after 100 s");
    }

    /// Goal: a step that takes long is told from a hang. Method: a minute without a step.
    #[test]
    fn a_long_step_has_lines() {
        let (mut told, mut lines) = (None, Vec::new());
        for seconds in 1..=60 {
            let (step, elapsed) = (Step { done: 0, total: 0 }, Duration::from_secs(seconds));
            if is_due(told, elapsed, None) {
                told = Some(elapsed);
                lines.push(line("wear", step, elapsed));
            }
        }
        assert_eq!(lines.len(), 6, "{lines:?}");
        assert_eq!(lines[0], "wear: the first step goes on after 10 s");
    }
}
