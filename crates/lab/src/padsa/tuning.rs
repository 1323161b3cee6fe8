//! What every architecture is given alike beside its own rules, and what that decides.
//!
//! How: all run under each tuning; the paper's figures are of the first, and each other one differs
//! from it by one thing.
//! Invariant: under a tuning all are sized at the same instants. Cost: a run of everything per
//! tuning.
//! Not for: the rules of an architecture; those are `sim::fleet`'s.

use super::claims::range;
use super::figures::{Figures, change};
use super::paper::WORKLOADS;
use super::{Found, PERIOD, Results, place};
use crate::document::{figure, signed};
use crate::{Measurement, Section, Table};
use layby_sim::fleet::Architecture::{self, Etica, Layby, Padsa};
use layby_types::Nanos;

/// See the file's header.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// Time between two sizings.
    pub period: Nanos,
    /// How much what a curve knows counts after a sizing.
    pub keep: f64,
    /// What is read from home is kept on SSD where the architecture's rules do not, and the other
    /// way round.
    pub turns_reads: bool,
}

/// How often levels are sized where that is measured; it divides [`PERIOD`].
const OFTEN: Nanos = Nanos::from_secs(2);

/// Places of [`Tuning::ALL`].
const USUAL_AT: usize = 0;
const OFTEN_AT: usize = 1;
const TURNED_AT: usize = 2;
/// Places of critical and normal services in [`Figures::both`].
const SIDES: [usize; 2] = [0, 1];

impl Tuning {
    /// That of the paper's figures: each period's curve is made anew.
    pub const USUAL: Tuning = Tuning { period: PERIOD, keep: 0.0, turns_reads: false };

    /// All of them. Sized more often, curves age so that they speak of as long as usual.
    pub const ALL: [Tuning; 3] = [
        Tuning::USUAL,
        Tuning { period: OFTEN, keep: 1.0 - OFTEN.0 as f64 / PERIOD.0 as f64, turns_reads: false },
        Tuning { turns_reads: true, ..Tuning::USUAL },
    ];

    /// Whether what `architecture` reads from home is kept on SSD, too.
    #[must_use]
    pub fn keeps_reads(self, architecture: Architecture) -> bool {
        architecture.keeps_reads() != self.turns_reads
    }
}

/// The results in which an architecture keeps what is read, or does not.
fn kept(found: &Found, architecture: Architecture, keeps: bool) -> &Results {
    let is_so = |at: &usize| Tuning::ALL[*at].keeps_reads(architecture) == keeps;
    let at = [USUAL_AT, TURNED_AT].into_iter().find(is_so);
    &found.results[at.expect("one of them does, the other does not")]
}

/// A period in words.
pub(super) fn every(period: Nanos) -> String {
    format!("every {} s", period.as_secs_f64())
}

/// What the period and kept reads decide.
pub(super) fn measured(found: &Found) -> Vec<Measurement> {
    let [usual, often, _] = &found.results;
    // Mean of reads and writes of critical services, from one to the other.
    let changes = |from: (&Results, Architecture), to: (&Results, Architecture)| {
        let both = |(results, architecture): (&Results, Architecture), row: usize| {
            results[row][place(architecture)].both[0]
        };
        let all = (0..WORKLOADS.len()).map(|row| change(both(from, row), both(to, row)));
        let (least, greatest) = range(all);
        format!("{} to {} %", signed(least, 2), signed(greatest, 2))
    };
    let rows = WORKLOADS.iter().enumerate().map(|(row, _)| {
        let read = |architecture| often[row][place(architecture)].read[0];
        signed(change(read(Etica), read(Padsa)), 1) + " %"
    });
    let often_said = every(OFTEN);
    let etica = format!("Fig. 7: critical mean read latency, PADSA against ETICA, {often_said}");
    let mut all = vec![Measurement::new(etica, "", rows.collect::<Vec<_>>().join(", "))];
    let ours = [
        (format!("both sized {often_said}"), often, often),
        (
            "neither keeps reads on SSD".to_owned(),
            kept(found, Padsa, false),
            kept(found, Layby, false),
        ),
        ("both keep reads on SSD".to_owned(), kept(found, Padsa, true), kept(found, Layby, true)),
    ];
    all.extend(ours.map(|(what, padsa, layby)| {
        let what = format!("Layby: critical services against PADSA, reads and writes, {what}");
        Measurement::new(what, "", changes((padsa, Padsa), (layby, Layby)))
    }));
    for one in Architecture::ALL.into_iter().filter(|one| one.is_sized()) {
        let what = format!(
            "Sized {often_said} instead of {}: critical services, {}",
            PERIOD.as_secs_f64(),
            one.name()
        );
        all.push(Measurement::new(what, "", changes((usual, one), (often, one))));
    }
    for one in Architecture::ALL {
        let what = format!("Reads kept on SSD: critical services, {}", one.name());
        let [without, with] = [false, true].map(|keeps| kept(found, one, keeps));
        all.push(Measurement::new(what, "", changes((without, one), (with, one))));
    }
    all
}

/// The sections of what was measured.
pub(super) fn sections(found: &Found) -> [Section; 2] {
    [periods(found), reads_kept(found)]
}

/// A row per workload and architecture, with the mean of reads and writes of critical and of normal
/// services in each of two results, and what else is given.
fn table(
    columns: &[&str],
    results: impl Fn(Architecture) -> [Results; 2],
    more: impl Fn([&Figures; 2]) -> Vec<String>,
) -> Table {
    let mut table = Table::new(columns);
    for (row, workload) in WORKLOADS.iter().enumerate() {
        for architecture in Architecture::ALL {
            let two = results(architecture);
            let two = [&two[0][row][place(architecture)], &two[1][row][place(architecture)]];
            let mut cells = vec![format!("{workload:?}, {}", architecture.name())];
            for side in SIDES {
                cells.extend(two.map(|figures| figure(figures.both[side] / 1000.0, 2)));
            }
            cells.extend(more(two));
            table.push(cells);
        }
    }
    table
}

fn periods(found: &Found) -> Section {
    let [usual, often] = [PERIOD, OFTEN].map(every);
    let columns = [
        "workload, architecture",
        &format!("critical, {usual} (µs)"),
        &format!("{often} (µs)"),
        &format!("normal, {usual} (µs)"),
        &format!("{often} (µs)"),
    ];
    let two = |_| [found.results[USUAL_AT], found.results[OFTEN_AT]];
    Section {
        heading: "Beyond the paper: how often levels are sized".into(),
        text: vec![
            format!(
                "Mean latency of reads and writes, every architecture sized {usual} and {often}; \
                 all other sections are of {usual}. The paper does not say how often. Sized \
                 {often}, what a curve knew counts {:.0} % at the next sizing, so that it speaks \
                 of about as long. The shared LRU has no shares, and is the same in both.",
                Tuning::ALL[OFTEN_AT].keep * 100.0
            ),
            "A service has the part of one who has just come until it was there for a whole \
             period. Of a stay of 10 to 20 s that is most with the long period, and little with \
             the short one."
                .into(),
        ],
        chart: None,
        table: Some(table(&columns, two, |_| Vec::new())),
    }
}

fn reads_kept(found: &Found) -> Section {
    let columns = [
        "workload, architecture",
        "critical, reads not kept (µs)",
        "kept (µs)",
        "normal, reads not kept (µs)",
        "kept (µs)",
        "blocks to SSD, reads not kept",
        "kept",
    ];
    let two = |architecture| [false, true].map(|keeps| *kept(found, architecture, keeps));
    let worn = |two: [&Figures; 2]| two.map(|one| format!("{:.0}", one.worn[1])).to_vec();
    Section {
        heading: "Beyond the paper: what is read from home kept on SSD".into(),
        text: vec![format!(
            "Mean latency of reads and writes where a block that is read from home into DRAM is \
             stored on SSD, too, and where it is not. In all other sections {} so. It costs \
             writes to SSD.",
            keepers()
        )],
        chart: None,
        table: Some(table(&columns, two, worn)),
    }
}

/// Whose own rules keep what is read.
pub(super) fn keepers() -> String {
    let names = Architecture::ALL.into_iter().filter(|one| one.keeps_reads());
    let names: Vec<&str> = names.map(Architecture::name).collect();
    format!("{} alone does", names.join(", "))
}
