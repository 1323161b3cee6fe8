//! The document's parts: parameters, then a section per figure.
//!
//! How: a table, a chart and what to know when reading them, per figure of the paper.
//! Invariant: every section has a table; a chart shows nothing that no table has. Cost: none.

use super::claims::gains;
use super::cost::{BUDGETS_PERCENT, Costs, SPENDINGS};
use super::figures::{Figures, change};
use super::paper::{
    CRITICAL_PERCENT, ENDURANCE_RATIO, EXPONENTS, HITS_POINTS, NORMAL_PERCENT, UPPER_HITS_POINTS,
    WORKLOADS,
};
use super::{PERIOD, Results, SMALL_FOOTPRINT, SMALL_PER_SECOND, SSD_BLOCKS, UNIT_BLOCKS, place};
use crate::document::{figure, signed};
use crate::{Chart, Options, Section, Series, Table};
use layby_sim::device::Model;
use layby_sim::fleet::Architecture::{self, Etica, Padsa, Shared};
use layby_types::Nanos;

/// Every part.
pub(super) fn all(options: &Options, results: &Results, costs: &Costs) -> Vec<Section> {
    vec![
        parameters(options),
        equal_cost(costs),
        latency(results),
        hits(results),
        distribution(results),
        endurance(results),
        both(results),
    ]
}

fn parameters(options: &Options) -> Section {
    let mut table = Table::new(&["what", "value"]);
    let mut say = |what: &str, value: String| table.push(vec![what.into(), value]);
    let mib = |blocks: u32| f64::from(blocks) / 256.0;
    say(
        "DRAM, NVM, SSD (MiB)",
        format!("{}, {}, {}", mib(SSD_BLOCKS / 16), mib(SSD_BLOCKS / 4), mib(SSD_BLOCKS)),
    );
    match &options.devices {
        Some(devices) => {
            for (place, model) in ["DRAM", "NVM", "SSD"].iter().zip(&devices.levels) {
                say(&format!("{place}, not the paper's"), device(model));
            }
            say("main storage, not the paper's", device(&devices.home));
        }
        None => {
            say("main storage", "a mid-range SSD: ten times the latency of Table I's SSD".into());
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
            "every {} s, in units of {UNIT_BLOCKS} blocks; who has just come has an equal part",
            PERIOD.as_secs_f64()
        ),
    );
    say("seeds", format!("{} from {}", options.runs, options.seed));
    Section {
        heading: "Parameters".into(),
        text: vec![
            "The paper leaves sizes, rates and footprints open; these are ours. Latencies are per \
             block of 4 KiB, weighted by rate, as in the paper's Eq. 2, which counts reads only; \
             the last section counts writes too."
                .into(),
            "Two baselines stand beside PADSA. Shared LRU is one LRU per level for all: reads rise \
             to DRAM, writes go to NVM. ETICA, extended to three levels as the paper says, gives \
             each service its own part by policy-optimised reuse distance. The paper calls ETICA \
             its baseline, and yet describes it as polluted by streams; partitions are what keeps \
             streams out, so its figures may be those of levels without partitions. Ours fit \
             neither baseline: most gains are passed against the shared LRU, few are reached \
             against ETICA, and the tables say which."
                .into(),
        ],
        chart: None,
        table: Some(table),
    }
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

/// Which of the budgets is drawn: the one at which the paper's bars show best.
const BUDGET_DRAWN: usize = 1;

fn equal_cost(costs: &Costs) -> Section {
    let mut table = Table::new(&[
        "budget (%), exponent",
        "DRAM + SSD (µs)",
        "DRAM + NVM (µs)",
        "all three (µs)",
        "gain (%)",
        "gain, reads only (%)",
    ]);
    for (budget, rows) in BUDGETS_PERCENT.iter().zip(costs) {
        for (exponent, row) in EXPONENTS.iter().zip(rows) {
            let mut cells = vec![format!("{budget}, {exponent}")];
            cells.extend(row.iter().map(|means| figure(means[1] / 1000.0, 1)));
            let [reads, both] = gains(row);
            cells.extend([both, reads].map(|gain| signed(gain, 1)));
            table.push(cells);
        }
    }
    let drawn = &costs[BUDGET_DRAWN];
    let bars = SPENDINGS.iter().enumerate();
    let bars = bars.map(|(i, name)| series(name, drawn.iter().map(|row| row[i][1] / 1000.0)));
    let chart = Chart {
        axis: "mean latency (µs)".into(),
        across: "exponent of Zipf's law".into(),
        groups: EXPONENTS.iter().map(ToString::to_string).collect(),
        series: bars.collect(),
        ..Chart::default()
    };
    Section {
        heading: "Fig. 3: two levels or three for the same money".into(),
        text: vec![
            format!(
                "Mean latency of one service, 70 % reads. DRAM is the same everywhere; the rest of \
                 the money buys NVM, SSD, or half of each. A budget is given as the part of the \
                 footprint that it would buy as NVM; SSD is 3.5 times cheaper. The gain is over \
                 the better of the two others; the bars are those of {} %.",
                BUDGETS_PERCENT[BUDGET_DRAWN]
            ),
            "The paper prints bars without sizes: three levels win everywhere, most at high \
             locality. That is what 10 % shows. With less money SSD's larger room avoids reads \
             from main storage, at 250 µs each, and two levels win; with more, NVM alone holds \
             what is hot. Blocks read from main storage are kept below DRAM here; where DRAM alone \
             keeps them, as PADSA's rules read, two levels win at nearly every budget."
                .into(),
        ],
        chart: Some(chart),
        table: Some(table),
    }
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
            "NVM gains far more than the paper says, since streams never reach it. SSD loses under \
             PADSA: by its rules every normal write and every block of a map download goes to SSD. \
             The baselines write little there, since a dirty block that leaves NVM goes home at \
             once when SSD holds nothing clean to replace; a baseline that forces it through SSD \
             writes each upload twice, and still less than PADSA with its downloads."
                .into(),
        ],
        chart: None,
        table: Some(table),
    }
}

fn both(results: &Results) -> Section {
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
            "Mean latency of reads and writes. The paper counts reads only, which hides what PADSA \
             costs normal services: their writes go from NVM to SSD, 400 times slower."
                .into(),
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
