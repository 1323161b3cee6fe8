//! Bars that a claim has to meet, by rounds.
//!
//! How: a figure per round beside what is wanted of it; a bar is met where four rounds of five
//! meet it ([`super::report::ROUNDS_MET`]), whatever the median is.
//! Invariant: a round without a figure meets no bar, and its bar is not met; neither does one whose
//! figure is infinite, zero or below, which no rate, latency or ratio of them is. Not for: figures
//! that nothing is wanted of in any entry; those are columns of a table.

use super::report::Spread;
use std::fmt::Write as _;

/// What is wanted of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wanted {
    AtLeast(f64),
    AtMost(f64),
    /// Nothing: it stands beside the others.
    Nothing,
}

/// A figure of every round.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) what: String,
    pub(crate) wanted: Wanted,
    pub(crate) rounds: Vec<f64>,
}

/// Whether a measurement can have come to this: it is finite and positive.
pub(crate) fn is_figure(figure: f64) -> bool {
    figure.is_finite() && figure > 0.0
}

impl Bar {
    pub(crate) fn new(
        what: impl Into<String>,
        wanted: Wanted,
        rounds: impl Iterator<Item = f64>,
    ) -> Bar {
        Bar { what: what.into(), wanted, rounds: rounds.collect() }
    }

    fn spread(&self) -> Spread {
        Spread::of(self.rounds.iter().copied())
    }

    /// Whether it is met; `None` where nothing is wanted.
    pub(crate) fn is_met(&self) -> Option<bool> {
        let are_figures = self.rounds.iter().copied().all(is_figure);
        match self.wanted {
            Wanted::AtLeast(bar) => Some(are_figures && self.spread().reaches(bar)),
            Wanted::AtMost(bar) => Some(are_figures && self.spread().stays_within(bar)),
            Wanted::Nothing => None,
        }
    }

    /// Rounds that meet it.
    fn met(&self) -> usize {
        let meets = |figure: &&f64| match self.wanted {
            Wanted::AtLeast(bar) => **figure >= bar,
            Wanted::AtMost(bar) => **figure <= bar,
            Wanted::Nothing => false,
        };
        self.rounds.iter().filter(|figure| is_figure(**figure)).filter(meets).count()
    }

    fn row(&self) -> String {
        let rounds: Vec<String> = self.rounds.iter().map(|round| format!("{round:.2}")).collect();
        let (wanted, met) = match self.wanted {
            Wanted::AtLeast(bar) => (format!("at least {bar}"), true),
            Wanted::AtMost(bar) => (format!("at most {bar}"), true),
            Wanted::Nothing => ("-".to_owned(), false),
        };
        let met = if met { format!("{} of {}", self.met(), rounds.len()) } else { "-".to_owned() };
        let verdict = self.is_met().map_or("-", |is_met| if is_met { "met" } else { "not met" });
        let (what, median) = (&self.what, self.spread().fraction());
        format!("| {what} | {wanted} | {median} | {} | {met} | {verdict} |", rounds.join(", "))
    }
}

/// The question, and how many bars are met.
pub(crate) fn heading(question: &str, bars: &[Bar]) -> String {
    let verdicts: Vec<bool> = bars.iter().filter_map(Bar::is_met).collect();
    let (met, of) = (verdicts.iter().filter(|is_met| **is_met).count(), verdicts.len());
    let answer = match met {
        0 => "No",
        met if met == of => "Yes",
        _ => "Not wholly",
    };
    format!("{question} {answer}: {met} of {of} bars are met.")
}

/// All bars with all their rounds.
pub(crate) fn table(bars: &[Bar]) -> String {
    let mut table = String::from(
        "| figure | wanted | median | every round | met in | bar |\n\
         | --- | --- | ---: | --- | --- | --- |\n",
    );
    for bar in bars {
        // Writing to a string cannot fail.
        let _ = writeln!(table, "{}", bar.row());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(wanted: Wanted, rounds: &[f64]) -> Bar {
        Bar::new("p99", wanted, rounds.iter().copied())
    }

    /// Goal: four rounds of five meet a bar from either side, the bar itself included, whatever
    /// the median is. Method: five rounds of which one, then two, miss it.
    #[test]
    fn four_rounds_of_five_meet_a_bar() {
        let (least, most) = (Wanted::AtLeast(2.0), Wanted::AtMost(2.0));
        assert_eq!(bar(least, &[0.1, 2.0, 2.0, 3.0, 9.0]).is_met(), Some(true));
        assert_eq!(bar(least, &[0.1, 1.9, 2.0, 3.0, 9.0]).is_met(), Some(false));
        assert_eq!(bar(most, &[9.0, 2.0, 2.0, 1.0, 0.1]).is_met(), Some(true));
        assert_eq!(bar(most, &[9.0, 2.1, 2.0, 1.0, 0.1]).is_met(), Some(false));
        assert_eq!(bar(Wanted::Nothing, &[1.0]).is_met(), None);
    }

    /// Goal: rounds without a figure, and no rounds, meet nothing. Method: NaN in one round of
    /// ten, where the other nine would do; an empty list.
    #[test]
    fn what_is_not_measured_meets_nothing() {
        let mut rounds = vec![3.0; 9];
        rounds.push(f64::NAN);
        let unknown = bar(Wanted::AtLeast(2.0), &rounds);
        assert_eq!((unknown.is_met(), unknown.met()), (Some(false), 9));
        assert_eq!(bar(Wanted::AtMost(2.0), &[]).is_met(), Some(false));
    }

    /// Goal: a figure that no measurement comes to meets no bar, and its bar is not met. Method: an
    /// infinite one, zero and one below in one round of ten, where the other nine would do.
    #[test]
    fn what_is_no_figure_meets_nothing() {
        for figure in [f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0] {
            for wanted in [Wanted::AtLeast(1.0), Wanted::AtMost(2.0)] {
                let mut rounds = vec![1.5; 9];
                rounds.push(figure);
                let found = bar(wanted, &rounds);
                assert_eq!((found.is_met(), found.met()), (Some(false), 9), "{figure}");
            }
        }
    }

    /// Goal: the heading counts bars alone, and a row has all of a bar. Method: one met, one
    /// missed, one of which nothing is wanted.
    #[test]
    fn bars_are_counted_and_shown() {
        let (met, missed) =
            (bar(Wanted::AtMost(1.5), &[1.0, 1.5]), bar(Wanted::AtLeast(2.0), &[1.0, 3.0]));
        let beside = bar(Wanted::Nothing, &[1.0, 1.0]);
        let all = [met, missed, beside];
        assert_eq!(heading("Is it so?", &all), "Is it so? Not wholly: 1 of 2 bars are met.");
        assert_eq!(heading("Is it so?", &all[..1]), "Is it so? Yes: 1 of 1 bars are met.");
        assert_eq!(heading("Is it so?", &all[1..]), "Is it so? No: 0 of 1 bars are met.");
        let rows = table(&all);
        let rows: Vec<&str> = rows.lines().skip(2).collect();
        assert_eq!(rows[0], "| p99 | at most 1.5 | 1.25 ± 0.25 | 1.00, 1.50 | 2 of 2 | met |");
        assert_eq!(rows[1], "| p99 | at least 2 | 2.00 ± 1.00 | 1.00, 3.00 | 1 of 2 | not met |");
        assert_eq!(rows[2], "| p99 | - | 1.00 ± 0.00 | 1.00, 1.00 | - | - |");
    }
}
