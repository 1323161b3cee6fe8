//! The document's parts: parameters, then a section per figure.
//!
//! How: a table, a chart and what to know when reading them, per figure of the paper.
//! Invariant: every section has a table; a chart shows nothing that no table has. Cost: none.

use super::claims::gains;
use super::cost::{BUDGETS_PERCENT, Costs, Means, OBJECTIVES, SPENDINGS};
use super::figures::{Figures, change};
use super::paper::{
    CRITICAL_PERCENT, ENDURANCE_RATIO, EXPONENTS, HITS_POINTS, NORMAL_PERCENT, UPPER_HITS_POINTS,
    WORKLOADS,
};
use super::{
    Found, Results, SMALL_FOOTPRINT, SMALL_PER_SECOND, SSD_BLOCKS, Tuning, UNIT_BLOCKS, place,
    tuning,
};
use crate::document::{extent, figure, signed};
use crate::{Chart, Claim, Options, Section, Series, Table};
use layby_sim::device::Model;
use layby_sim::fleet::Architecture::{self, Etica, Padsa, Shared};
use layby_sim::levels::PadsaDevices;
use layby_types::Nanos;

/// Every part.
pub(super) fn all(options: &Options, found: &Found) -> Vec<Section> {
    let ([results, ..], costs) = (&found.results, &found.costs);
    let mut all = vec![
        parameters(options),
        equal_cost(options, costs),
        latency(results),
        hits(results),
        distribution(results),
        endurance(results),
        both(options, results),
    ];
    all.extend(tuning::sections(found));
    all
}

fn parameters(options: &Options) -> Section {
    let mut table = Table::new(&["what", "value"]);
    let mut say = |what: &str, value: String| table.push(vec![what.into(), value]);
    let mib = |blocks: u32| f64::from(blocks) / 256.0;
    say(
        "DRAM, NVM, SSD (MiB)",
        format!("{}, {}, {}", mib(SSD_BLOCKS / 16), mib(SSD_BLOCKS / 4), mib(SSD_BLOCKS)),
    );
    for (what, model, is_the_papers) in devices(options) {
        match is_the_papers {
            true => say(what, device(&model)),
            false => say(&format!("{what}, not the paper's"), device(&model)),
        }
    }
    let vehicles = match &options.stays {
        Some(recorded) => format!("{} of a recording", recorded.stays.len()),
        None => "four at once on average, each 10 to 20 s; arrivals for 60 s".into(),
    };
    say("vehicles", vehicles);
    say(
        "small accesses (S1, S4)",
        format!(
            "4 KiB, {SMALL_PER_SECOND} per second and service, Zipf 1.2 over {} MiB",
            SMALL_FOOTPRINT >> 20
        ),
    );
    say(
        "large accesses (S2, S3)",
        format!(
            "256 KiB, {} per second and service, sequential, nothing twice",
            SMALL_PER_SECOND / 10
        ),
    );
    say(
        "sizing",
        format!(
            "{}, whatever the architecture, in units of {UNIT_BLOCKS} blocks, by the period's own \
             curve; who has just come has an equal part; the last sections show another period",
            tuning::every(Tuning::USUAL.period)
        ),
    );
    say(
        "reads from home kept on SSD",
        format!("{}; the last section shows each with and without", tuning::keepers()),
    );
    say("seeds", format!("{} from {}", options.runs, options.seed));
    Section {
        heading: "Parameters".into(),
        text: vec![
            "The paper leaves sizes, rates and footprints open; these are ours. Latencies are per \
             block of 4 KiB, weighted by rate, as in the paper's Eq. 2, which counts reads only; \
             the last sections count writes too."
                .into(),
            "Two baselines stand beside PADSA. Shared LRU is one LRU per level for all: reads rise \
             to DRAM, writes go to NVM. ETICA, extended to three levels as the paper says, gives \
             each service its own part by policy-optimised reuse distance. The paper calls ETICA \
             its baseline, and yet describes it as polluted by streams; partitions are what keeps \
             streams out, so its figures may be those of levels without partitions."
                .into(),
        ],
        chart: None,
        table: Some(table),
    }
}

/// How many claims hold; of several seeds, their medians.
pub(super) fn verdict(claims: &[Claim]) -> String {
    let (shared, etica) = (met(claims, Shared), met(claims, Etica));
    format!(
        "Of the paper's figures {shared} are met against the shared LRU, {etica} against ETICA."
    )
}

/// How many claims against a baseline hold, of how many.
fn met(claims: &[Claim], baseline: Architecture) -> String {
    let against: Vec<_> =
        claims.iter().filter(|claim| claim.what().contains(baseline.name())).collect();
    format!("{} of {}", against.iter().filter(|claim| claim.holds()).count(), against.len())
}

/// The devices, and which of them are the paper's.
fn devices(options: &Options) -> [(&'static str, Model, bool); 4] {
    let flat = |devices: PadsaDevices| {
        let [dram, nvm, ssd] = devices.levels;
        [dram, nvm, ssd, devices.home]
    };
    let here = flat(options.devices.clone().unwrap_or_default());
    let same = |one: &Model, other: &Model| {
        let all = |model: &Model| (model.read, model.write, model.dollars_per_tb);
        all(one) == all(other)
    };
    let names = ["DRAM", "NVM", "SSD", "main storage"];
    let mut all = names.into_iter().zip(here).zip(flat(PadsaDevices::default()));
    std::array::from_fn(|_| {
        let ((name, model), paper) = all.next().expect("there are four");
        let is_the_papers = same(&model, &paper);
        (name, model, is_the_papers)
    })
}

/// Whether a device is another than the paper's.
pub(super) fn has_other_devices(options: &Options) -> bool {
    devices(options).iter().any(|(.., is_the_papers)| !is_the_papers)
}

fn device(model: &Model) -> String {
    let us = |time: Nanos| time.0 as f64 / 1e3;
    let (read, write, price) = (us(model.read), us(model.write), model.dollars_per_tb);
    format!("read {read} µs, write {write} µs, {price} $/TB")
}

fn groups() -> Vec<String> {
    WORKLOADS.iter().map(|workload| format!("{workload:?}")).collect()
}

fn series(name: &str, values: impl Iterator<Item = f64>) -> Series {
    Series::new(name, values)
}

fn equal_cost(options: &Options, costs: &Costs) -> Section {
    let [_, (_, nvm, _), (_, ssd, _), (_, main, _)] = devices(options);
    let dearer = f64::from(nvm.dollars_per_tb) / f64::from(ssd.dollars_per_tb);
    let mut columns = vec!["budget (%), exponent".to_owned()];
    for counted in OBJECTIVES {
        columns.extend(SPENDINGS.map(|spent| format!("{spent}, {counted} (µs)")));
        columns.push(format!("gain, {counted} (%)"));
    }
    let mut table = Table { columns, rows: Vec::new() };
    for (budget, rows) in BUDGETS_PERCENT.iter().zip(costs) {
        for (exponent, row) in EXPONENTS.iter().zip(rows) {
            let mut cells = vec![format!("{budget}, {exponent}")];
            for (objective, gain) in gains(row).into_iter().enumerate() {
                cells.extend(row.iter().map(|means| figure(means[objective] / 1000.0, 1)));
                cells.push(signed(gain, 1));
            }
            table.push(cells);
        }
    }
    let bars = OBJECTIVES.into_iter().enumerate().map(|(objective, name)| {
        series(name, costs.iter().flatten().map(|row| gains(row)[objective]))
    });
    let chart = Chart {
        axis: "change of mean latency, three levels against the better two (%)".into(),
        across: "budget (%), exponent of Zipf's law".into(),
        groups: table.rows.iter().map(|row| row[0].clone()).collect(),
        series: bars.collect(),
        ..Chart::default()
    };
    Section {
        heading: "Fig. 3: two levels or three for the same money".into(),
        text: vec![
            format!(
                "Mean latency of one service, 70 % reads. DRAM is the same everywhere; the rest of \
                 the money buys NVM, SSD, or half of each. A budget is given as the part of the \
                 footprint that it would buy as NVM, which costs {} times as much as SSD. The gain \
                 is over the better of the two others.",
                figure(dearer, if dearer < 1.0 { 3 } else { 1 })
            ),
            format!(
                "The paper prints bars without sizes: three levels win everywhere, most at high \
                 locality. Its Eq. 2 counts reads alone. Here, by reads alone, they win for {} of \
                 {} exponents; by reads and writes for {}. A read from main storage takes {} µs.",
                wins(costs, 0),
                EXPONENTS.len(),
                wins(costs, 1),
                main.read.0 as f64 / 1e3
            ),
            "Blocks read from main storage are kept below DRAM here; what that decides is in \
             docs/lab.md."
                .into(),
        ],
        chart: Some(chart),
        table: Some(table),
    }
}

/// For how many exponents three levels are better by an objective, budget by budget.
fn wins(costs: &Costs, objective: usize) -> String {
    let better = |row: &&Means| gains(row)[objective] < 0.0;
    let all = BUDGETS_PERCENT.iter().zip(costs);
    let cells: Vec<String> = all
        .map(|(budget, rows)| format!("{} at {budget} %", rows.iter().filter(better).count()))
        .collect();
    cells.join(", ")
}

fn latency(results: &Results) -> Section {
    let mut table = Table::new(&[
        "workload",
        "critical, paper (%)",
        "against shared LRU (%)",
        "against ETICA (%)",
        "normal, paper (%)",
        "against shared LRU (%)",
        "against ETICA (%)",
        "all, against shared LRU (%)",
        "against ETICA (%)",
    ]);
    let gain = |row: &[Figures], baseline: Architecture, side: usize| {
        change(row[place(baseline)].read[side], row[place(Padsa)].read[side])
    };
    for (index, (workload, row)) in WORKLOADS.iter().zip(results).enumerate() {
        let ours = |side| [Shared, Etica].map(|baseline| signed(gain(row, baseline, side), 1));
        let mut cells = vec![format!("{workload:?}"), format!("{:+.0}", CRITICAL_PERCENT[index])];
        cells.extend(ours(0));
        cells.push(format!("{:+.1}", NORMAL_PERCENT[index]));
        cells.extend(ours(1));
        cells.extend(ours(2));
        table.push(cells);
    }
    let against = |baseline| results.iter().map(move |row| gain(row, baseline, 0));
    let chart = Chart {
        axis: "critical read latency, change (%)".into(),
        groups: groups(),
        series: vec![
            series("paper", CRITICAL_PERCENT.into_iter()),
            series("against shared LRU", against(Shared)),
            series("against ETICA", against(Etica)),
        ],
        across: "workload".into(),
        ..Chart::default()
    };
    Section {
        heading: "Fig. 7: mean read latency under PADSA".into(),
        text: vec![
            "Change of the mean read latency from the baseline to PADSA; less is better.".into(),
            "Under A to C normal services read in order and nothing twice, so that no architecture \
             has a block of theirs when it is read: all of it comes from home, and the paper's 0 % \
             follows from the load. It is shown and not claimed."
                .into(),
        ],
        chart: Some(chart),
        table: Some(table),
    }
}

fn hits(results: &Results) -> Section {
    let mut columns = vec!["workload".to_string()];
    columns.extend(Architecture::ALL.iter().map(|a| format!("{} (%)", a.name())));
    let mut table = Table { columns, rows: Vec::new() };
    for (workload, row) in WORKLOADS.iter().zip(results) {
        let cells = row.iter().map(|figures| figure(figures.hits[0] * 100.0, 1));
        table.push(std::iter::once(format!("{workload:?}")).chain(cells).collect());
    }
    Section {
        heading: "Fig. 8: hit ratio of critical reads".into(),
        text: vec![format!(
            "The paper: {HITS_POINTS:+.0} points on average over its baseline, up to +8. What \
             every architecture misses alike are first reads: a vehicle comes with a volume that \
             no level has seen."
        )],
        chart: Some(chart_of(results, "critical hit ratio (%)", &|figures| {
            figures.hits[0] * 100.0
        })),
        table: Some(table),
    }
}

fn chart_of(results: &Results, axis: &str, of: &dyn Fn(&Figures) -> f64) -> Chart {
    let all = Architecture::ALL.iter().enumerate();
    let series = all.map(|(i, a)| series(a.name(), results.iter().map(|row| of(&row[i]))));
    Chart {
        axis: axis.into(),
        across: "workload".into(),
        groups: groups(),
        series: series.collect(),
        ..Chart::default()
    }
}

fn distribution(results: &Results) -> Section {
    let mut table =
        Table::new(&["workload, architecture", "DRAM (%)", "NVM (%)", "SSD (%)", "home (%)"]);
    for (workload, row) in WORKLOADS.iter().zip(results) {
        for (architecture, figures) in Architecture::ALL.iter().zip(row) {
            let mut cells = vec![format!("{workload:?}, {}", architecture.name())];
            cells.extend(figures.found.iter().map(|part| figure(part * 100.0, 1)));
            table.push(cells);
        }
    }
    let [dram, nvm] = UPPER_HITS_POINTS;
    Section {
        heading: "Fig. 9: where critical reads were found".into(),
        text: vec![format!("The paper: DRAM {dram:+.0} points, NVM {nvm:+.0} points under PADSA.")],
        chart: None,
        table: Some(table),
    }
}

fn endurance(results: &Results) -> Section {
    let mut table = Table::new(&[
        "workload, architecture",
        "blocks to NVM",
        "blocks to SSD",
        "NVM endurance",
        "SSD endurance",
    ]);
    for (workload, row) in WORKLOADS.iter().zip(results) {
        let base = row[place(Shared)].worn;
        for (architecture, figures) in Architecture::ALL.iter().zip(row) {
            let mut cells = vec![format!("{workload:?}, {}", architecture.name())];
            cells.extend(figures.worn.iter().map(|blocks| format!("{blocks:.0}")));
            cells.extend([0, 1].map(|i| figure(base[i] / figures.worn[i], 2)));
            table.push(cells);
        }
    }
    Section {
        heading: "Fig. 10: wear".into(),
        text: vec![
            format!(
                "Endurance is the shared LRU's block writes over those of the architecture; the \
                 paper: up to {ENDURANCE_RATIO}, on NVM and SSD."
            ),
            format!(
                "PADSA's endurance of NVM is {} times the shared LRU's, that of SSD {} times. By \
                 its rules streams never reach NVM, and every normal write and every block of a \
                 map download goes to SSD; under the baselines a dirty block that leaves NVM goes \
                 home at once when SSD holds nothing clean to replace.",
                lasting(results, 0),
                lasting(results, 1)
            ),
        ],
        chart: None,
        table: Some(table),
    }
}

/// The least and the greatest endurance of a level under PADSA, to the shared LRU's.
fn lasting(results: &Results, level: usize) -> String {
    let of = |row: &[Figures]| row[place(Shared)].worn[level] / row[place(Padsa)].worn[level];
    let ends = extent(results.iter().map(|row| of(row))).unwrap_or((f64::NAN, f64::NAN));
    format!("{} to {}", figure(ends.0, 2), figure(ends.1, 2))
}

fn both(options: &Options, results: &Results) -> Section {
    let [_, (_, nvm, _), (_, ssd, _), _] = devices(options);
    let slower = ssd.write.0 as f64 / nvm.write.0 as f64;
    let mut table = Table::new(&[
        "workload, architecture",
        "critical (µs)",
        "normal (µs)",
        "all (µs)",
        "critical writes (µs)",
        "normal writes (µs)",
    ]);
    let us = |ns: f64| figure(ns / 1000.0, 2);
    for (workload, row) in WORKLOADS.iter().zip(results) {
        for (architecture, figures) in Architecture::ALL.iter().zip(row) {
            let mut cells = vec![format!("{workload:?}, {}", architecture.name())];
            cells.extend(figures.both.map(us));
            cells.extend([figures.write[0], figures.write[1]].map(us));
            table.push(cells);
        }
    }
    Section {
        heading: "Beyond the paper: writes counted".into(),
        text: vec![
            format!(
                "Mean latency of reads and writes. The paper counts reads only. Under PADSA normal \
                 services write to SSD instead of NVM: a write takes {} times as long there.",
                figure(slower, if slower < 10.0 { 2 } else { 0 })
            ),
            "Layby's own allocation gives every service what its curve says, on every level, with \
             critical services first; a stream gets the least room that takes its writes at NVM's \
             speed, and no more; what a critical service reads from home is kept on SSD, too."
                .into(),
        ],
        chart: Some(chart_of(results, "critical, reads and writes (µs)", &|figures| {
            figures.both[0] / 1000.0
        })),
        table: Some(table),
    }
}
