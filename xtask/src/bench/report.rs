//! Turns samples into an entry: a heading that answers, a table, and how to run it again.
//!
//! How: medians over rounds, half the range as spread, and for each load the ratio of Layby's best
//! export to the best peer within each round, so that drift cancels out.

use super::fio::Sample;
use super::{Arguments, Comparison, Entry};
use crate::process::{self, Failure};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;

/// A measured entry.
pub(crate) struct Report {
    pub(crate) heading: String,
    pub(crate) table: String,
}

/// What was measured, and the report of it.
pub(crate) struct Measured {
    /// Everything, in the order in which it was measured.
    pub(crate) raw: Vec<Value>,
    /// Or why there is none.
    pub(crate) report: Result<Report, Failure>,
}

impl Measured {
    /// Makes the report of `raw`. A measurement may have taken hours, so that raw results stay
    /// where their report fails or panics: such a defect can be fixed, and the report made again.
    pub(crate) fn new(
        raw: Vec<Value>,
        report: impl FnOnce(&[Value]) -> Result<Report, Failure>,
    ) -> Self {
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| report(&raw)));
        let panicked = |_| Err(Failure::new("the report of what was measured panicked; see above"));
        let report = made.unwrap_or_else(panicked);
        Measured { raw, report }
    }
}

/// Where the figures come from.
pub(crate) struct Origin {
    line: String,
}

impl Origin {
    /// Commit, machine, raw results and command line.
    pub(crate) fn of(root: &Path, arguments: &Arguments, kept: &str) -> Self {
        let git = |words: &[&str]| process::output(process::command("git", root).args(words));
        let commit = git(&["rev-parse", "--short", "HEAD"]).unwrap_or_default();
        let changed = git(&["status", "--porcelain", "--untracked-files=no"]).unwrap_or_default();
        let mark = if changed.is_empty() { "" } else { " with changes" };
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let line = format!(
            "Median of {} ± half the range; commit {}{mark}; machine: {cores} cores; raw: {kept}\n\
             Run: {}",
            arguments.runs,
            commit.trim(),
            command(arguments)
        );
        Origin { line }
    }
}

/// The line that runs an entry again, with all that decides its figures.
fn command(arguments: &Arguments) -> String {
    let entry = clap::ValueEnum::to_possible_value(&arguments.entry);
    let entry = entry.map_or(String::new(), |value| value.get_name().to_string());
    let (runs, seed, seconds) = (arguments.runs, arguments.seed, arguments.seconds);
    let more = if arguments.entry == Entry::Live {
        format!(" --swap {} --period {}", arguments.swap, arguments.period)
    } else {
        format!(" --seconds {seconds}")
    };
    let more = if arguments.realtime { more + " --realtime" } else { more };
    let more = if matches!(arguments.entry, Entry::Cloud | Entry::Cut) {
        let (delay, width) = (arguments.link_delay_ms, arguments.link_bits_per_second);
        format!("{more} --link-delay-ms {delay} --link-bits-per-second {width}")
    } else {
        more
    };
    format!("cargo xtask bench {entry} --runs {runs} --seed {seed}{more}")
}

impl Report {
    /// The entry as it goes into a document.
    pub(crate) fn print(&self, origin: &Origin) -> String {
        format!("\n### {}\n\n{}\n\n{}", self.heading, self.table, origin.line)
    }
}

/// A median and half the range around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) half_range: f64,
    /// The least and the greatest.
    pub(crate) ends: [f64; 2],
    /// What at least [`ROUNDS_MET`] of the rounds reach, and what as many stay within.
    most: [f64; 2],
}

/// What stands for a figure that is not there.
pub(crate) const NOT_MEASURED: &str = "not measured";

/// A bar is met where so large a part of the rounds meets it.
pub(crate) const ROUNDS_MET: f64 = 0.8;

impl Spread {
    /// Where nothing was measured, or a round shows no figure: meets no bar.
    const UNKNOWN: Spread = {
        let nan = f64::NAN;
        Spread { median: nan, half_range: nan, ends: [nan; 2], most: [nan; 2] }
    };

    /// Of the rounds; not measured where there is none, or one of them is no number.
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.collect();
        if sorted.is_empty() || sorted.iter().any(|value| value.is_nan()) {
            return Spread::UNKNOWN;
        }
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        let half_range = (sorted[sorted.len() - 1] - sorted[0]) / 2.0;
        let missed = ((1.0 - ROUNDS_MET) * sorted.len() as f64 + 1e-9) as usize;
        let most = [sorted[missed], sorted[sorted.len() - 1 - missed]];
        let ends = [sorted[0], sorted[sorted.len() - 1]];
        Spread { median: low.midpoint(high), half_range, ends, most }
    }
    /// Whether a bar is met from above: so many rounds reach it, whatever the median is.
    pub(crate) fn reaches(self, bar: f64) -> bool {
        self.most[0] >= bar
    }
    /// Whether it is met from below.
    pub(crate) fn stays_below(self, bar: f64) -> bool {
        self.most[1] < bar
    }
    /// The same where the bar itself is good enough.
    pub(crate) fn stays_within(self, bar: f64) -> bool {
        self.most[1] <= bar
    }
    pub(crate) fn is_measured(self) -> bool {
        !self.median.is_nan()
    }
    pub(crate) fn whole(self) -> String {
        self.shown(0)
    }
    pub(crate) fn fraction(self) -> String {
        self.shown(2)
    }
    fn shown(self, digits: usize) -> String {
        match self.is_measured() {
            true => format!("{:.digits$} ± {:.digits$}", self.median, self.half_range),
            false => NOT_MEASURED.to_owned(),
        }
    }
}

/// The entry of a comparison.
pub(crate) fn comparison(comparison: &Comparison, samples: &[Sample]) -> Report {
    let mut table = String::from("| server | load | IOPS | p50 (us) | p99 (us) |\n");
    table.push_str("| --- | --- | ---: | ---: | ---: |\n");
    let mut ratios = Vec::new();
    for load in &comparison.loads {
        for server in &comparison.servers {
            let own = |sample: &&Sample| sample.load == load.name && sample.server == server.name;
            let spread = |figure: fn(&Sample) -> f64| {
                Spread::of(samples.iter().filter(own).map(figure)).whole()
            };
            let (iops, p50, p99) =
                (spread(|s| s.iops), spread(|s| s.latency_us_p50), spread(|s| s.latency_us_p99));
            // Writing to a string cannot fail.
            let _ = writeln!(table, "| {} | {} | {iops} | {p50} | {p99} |", server.name, load.name);
        }
        ratios.extend(ratio_lines(comparison, samples, load.name));
    }
    let answers: Vec<String> =
        ratios.iter().map(|(what, spread)| format!("{what} {}", spread.fraction())).collect();
    let met = ratios.iter().all(|(_, spread)| spread.reaches(comparison.ratio_min));
    let heading = format!("{} {}", comparison.question, if met { "Yes." } else { "Not always." });
    let _ = write!(table, "\nIOPS over the best peer's, per round: {}.", answers.join("; "));
    Report { heading, table }
}

/// For each export of ours, its IOPS over the best peer's in the same round.
fn ratio_lines(
    comparison: &Comparison,
    samples: &[Sample],
    load: &'static str,
) -> Vec<(String, Spread)> {
    let is_peer = |name: &str| comparison.servers.iter().any(|s| s.peer && s.name == name);
    let best = |round: u32| {
        let peers = samples.iter().filter(|s| s.load == load && s.round == round);
        peers.filter(|s| is_peer(s.server)).map(|s| s.iops).fold(f64::MIN_POSITIVE, f64::max)
    };
    let ours = comparison.servers.iter().filter(|server| !server.peer);
    let ratios = ours.map(|server| {
        let own = samples.iter().filter(|s| s.load == load && s.server == server.name);
        let spread = Spread::of(own.map(|s| s.iops / best(s.round)));
        (format!("{} {load}", server.name), spread)
    });
    ratios.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: medians and spreads are right for odd and even counts. Method: by hand.
    #[test]
    fn spreads_are_medians_and_half_ranges() {
        let odd = Spread::of([3.0, 1.0, 8.0].into_iter());
        assert_eq!((odd.median, odd.half_range), (3.0, 3.5));
        assert_eq!(Spread::of([4.0, 2.0].into_iter()).median, 3.0);
        assert_eq!(odd.whole(), "3 ± 4");
    }

    /// Goal: a bar is met where four rounds of five meet it, and not by the median. Method: five
    /// rounds of which one, then two, miss it; nine of which one and two do.
    #[test]
    fn rounds_meet_bars() {
        let of = |rounds: &[f64]| Spread::of(rounds.iter().copied());
        assert!(of(&[0.1, 2.0, 2.0, 3.0, 2.0]).reaches(2.0));
        assert!(!of(&[0.1, 1.9, 2.0, 3.0, 2.0]).reaches(2.0));
        assert!(of(&[9.0, 0.5, 0.6, 0.7, 0.9]).stays_below(1.0));
        assert!(!of(&[9.0, 1.0, 0.6, 0.7, 0.9]).stays_below(1.0));
        assert!(of(&[1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]).reaches(2.0));
        assert!(!of(&[1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]).reaches(2.0));
        assert!(of(&[2.0]).reaches(2.0) && !of(&[1.9]).reaches(2.0));
    }

    /// Goal: a value that was not measured meets no bar, and neither does nothing at all; both
    /// read so. Method: NaN of either sign among values that would meet the bar, where the nine
    /// tenths of the rounds that are left would; no values.
    #[test]
    fn what_was_not_measured_meets_no_bar() {
        for unknown in [f64::NAN, -f64::NAN] {
            let mut rounds = vec![2.0; 9];
            rounds.push(unknown);
            let found = Spread::of(rounds.into_iter());
            assert!(!found.reaches(1.0) && !found.stays_within(3.0) && !found.stays_below(3.0));
            assert_eq!(
                (found.whole(), found.fraction()),
                (NOT_MEASURED.into(), "not measured".into())
            );
        }
        let nothing = Spread::of(std::iter::empty());
        assert!(!nothing.reaches(0.0) && !nothing.stays_within(0.0) && !nothing.stays_below(1.0));
        assert_eq!(nothing.fraction(), NOT_MEASURED);
        // What was measured and has no bounds is a figure like others.
        assert!(Spread::of([f64::INFINITY].into_iter()).reaches(1.0));
    }

    /// Goal: raw results outlive a report that fails. Method: one that panics, one that fails, and
    /// one that is made.
    #[test]
    fn raw_results_outlive_their_report() {
        let raw = || vec![Value::from(1), Value::from(2)];
        let panicked = Measured::new(raw(), |raw| {
            assert!(raw.is_empty(), "as a defect of a report does");
            Err(Failure::new("not reached"))
        });
        let failed = Measured::new(raw(), |_| Err(Failure::new("no figures")));
        let made = Measured::new(raw(), |raw| {
            Ok(Report { heading: raw.len().to_string(), table: String::new() })
        });
        for (measured, word) in [(&panicked, "panicked"), (&failed, "no figures")] {
            assert_eq!(measured.raw, raw());
            let cause = measured.report.as_ref().err().map(ToString::to_string);
            assert!(cause.is_some_and(|cause| cause.contains(word)), "{word}");
        }
        assert!(made.report.is_ok_and(|report| report.heading == "2") && made.raw == raw());
    }

    /// Goal: the line that runs an entry again has what its link was. Method: `cut` and `cloud`
    /// with a link, and an entry without one.
    #[test]
    fn lines_name_the_link() {
        let line = |words: &[&str]| {
            #[derive(clap::Parser)]
            struct Line {
                #[command(flatten)]
                arguments: Arguments,
            }
            let words = ["bench"].iter().chain(words);
            command(&<Line as clap::Parser>::parse_from(words).arguments)
        };
        let link = ["--link-delay-ms", "20", "--link-bits-per-second", "5000000"];
        for entry in ["cut", "cloud"] {
            let line = line(&[&[entry], &link[..]].concat());
            assert!(line.starts_with(&format!("cargo xtask bench {entry} --runs ")), "{line}");
            assert!(line.ends_with(&link.join(" ")), "{line}");
        }
        assert!(!line(&["wide"]).contains("link"));
    }
}
