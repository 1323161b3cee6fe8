//! The only place that prints: answers to standard output, reports to standard error.
//!
//! How: a thin writer that tells a closed pipe (`layby status | head -1`) from a failure.
//! Invariant: nothing panics because a reader went away; answers and reports never mix.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use layby_daemon::error::{Report, ReportKind};
use serde::Serialize;
use std::io::{ErrorKind, IsTerminal, Write};

/// Why a command ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something to tell the person.
    Report(Report),
    /// The reader of our output has gone; nothing is wrong.
    PipeClosed,
}

impl From<Report> for Failure {
    fn from(report: Report) -> Self {
        Failure::Report(report)
    }
}

/// Where a command's answer goes.
pub(crate) struct Output {
    answers: Box<dyn Write>,
    reports: Box<dyn Write>,
    /// Whether a person looks at the answers, and at the reports.
    is_terminal: (bool, bool),
}

impl Output {
    /// The program's standard streams.
    pub(crate) fn standard() -> Output {
        Output {
            answers: Box::new(std::io::stdout()),
            reports: Box::new(std::io::stderr()),
            is_terminal: (std::io::stdout().is_terminal(), std::io::stderr().is_terminal()),
        }
    }

    /// Whether progress may be drawn on standard error.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal.1
    }

    /// Prints the program's help, with emphasis where a person looks at it.
    ///
    /// # Errors
    /// [`Failure`] when it cannot be written.
    pub(crate) fn help(&mut self, help: &clap::builder::StyledStr) -> Result<(), Failure> {
        let text = if self.is_terminal.0 { help.ansi().to_string() } else { help.to_string() };
        self.line(text.trim_end())
    }

    /// Prints one line of an answer.
    ///
    /// # Errors
    /// [`Failure`] when it cannot be written.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        let written = writeln!(self.answers, "{text}").and_then(|()| self.answers.flush());
        written.map_err(|cause| match cause.kind() {
            ErrorKind::BrokenPipe => Failure::PipeClosed,
            _ => Report::from_io("cannot write the answer", &cause)
                .state("the command was carried out; only its answer is lost")
                .hint("look at where standard output leads")
                .into(),
        })
    }

    /// Prints an answer for scripts.
    ///
    /// # Errors
    /// [`Failure`] when it cannot be written.
    pub(crate) fn json(&mut self, answer: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(answer).map_err(|cause| {
            Report::new(ReportKind::Failure, "cannot write the answer as JSON")
                .cause(cause.to_string())
        })?;
        self.line(&text)
    }

    /// Prints a line on how far something is; that it may be lost stops nothing.
    pub(crate) fn progress(&mut self, line: &str) {
        let _ = writeln!(self.reports, "{line}");
    }

    /// Prints a report; there is nobody left to tell when that fails.
    pub(crate) fn report(&mut self, report: &Report) {
        let _ = writeln!(self.reports, "{report}");
    }
}

/// The end of a command that finds out whether something is sound: what is wrong decides, also
/// where the answer could not be written or its reader has gone.
///
/// # Errors
/// What is wrong, or else why the answer could not be written.
pub(crate) fn verdict(wrong: Option<Report>, shown: Result<(), Failure>) -> Result<(), Failure> {
    wrong.map_or(shown, |report| Err(report.into()))
}

/// Says on standard error what a command waits for; that it may be lost stops nothing.
pub(crate) fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A table with one line of headings; every column but the first is right-aligned when `numbers`.
pub(crate) fn table<const N: usize>(headings: [&str; N], numbers_from: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings);
    for column in table.column_iter_mut().skip(numbers_from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Bytes for people: three digits and a unit, `1.50 GiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A part of a whole, `37 %`; a dash when there is no whole.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.0} %", part as f64 * 100.0 / whole as f64) }
}

/// Microseconds for people, `134 µs`; a dash when nothing was measured.
pub(crate) fn micros(value: f64) -> String {
    if value == 0.0 {
        "-".to_owned()
    } else if value < 100.0 {
        format!("{value:.1} µs")
    } else {
        format!("{value:.0} µs")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    struct Broken(ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Err(self.0.into())
        }
    }

    /// One that cannot be written, for this reason.
    pub(crate) fn output(kind: ErrorKind) -> Output {
        let reports = Box::new(Broken(kind));
        Output { answers: Box::new(Broken(kind)), reports, is_terminal: (false, false) }
    }

    /// Goal: a reader that goes away is no failure, a full disk is one. Method: writers that fail.
    #[test]
    fn closed_pipes_are_quiet() {
        assert!(matches!(output(ErrorKind::BrokenPipe).line("x"), Err(Failure::PipeClosed)));
        let full = output(ErrorKind::StorageFull).line("x");
        assert!(matches!(full, Err(Failure::Report(report)) if report.kind == ReportKind::Full));
    }

    /// Goal: what is wrong with the data decides a command's end, whatever became of its answer.
    /// Method: answers that were written, whose pipe was closed, and for which there was no room.
    #[test]
    fn the_verdict_outlives_the_answer() {
        let unsound = || Some(Report::new(ReportKind::Corrupt, "it is damaged"));
        let written = || Output { answers: Box::new(std::io::sink()), ..output(ErrorKind::Other) };
        for kind in [None, Some(ErrorKind::BrokenPipe), Some(ErrorKind::StorageFull)] {
            let mut output = kind.map_or_else(written, output);
            let ended = verdict(unsound(), output.line("x"));
            let is_told = |report: &Report| report.kind == ReportKind::Corrupt;
            assert!(matches!(ended, Err(Failure::Report(r)) if is_told(&r)), "{kind:?}");
            assert_eq!(verdict(None, output.line("x")).is_ok(), kind.is_none());
        }
    }

    /// Goal: every number has a unit and few digits. Method: one of each size.
    #[test]
    fn numbers_read_well() {
        let shown = [0, 1023, 1536, 15 << 20, 900 << 30, 5 << 40].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.50 KiB", "15.0 MiB", "900 GiB", "5.00 TiB"]);
        assert_eq!([percent(1, 3), percent(1, 0)], ["33 %", "-"]);
        assert_eq!([micros(0.0), micros(12.34), micros(1234.5)], ["-", "12.3 µs", "1234 µs"]);
    }
}
