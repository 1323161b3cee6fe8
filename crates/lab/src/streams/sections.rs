//! The document's parts: parameters, then a section per question.
//!
//! Invariant: every section has a table; a chart shows nothing that no table has. Cost: none.

use super::device::{Phases, STREAMS};
use super::figures::{Figures, Scheme};
use super::policy::FeatureSet;
use super::workloads::WORKLOADS;
use super::{CHUNK_WORKLOADS, CHUNKS, PAGES, Results, findings, paper};
use crate::{Chart, Options, Section, Series, Table};

/// Every part.
pub(super) fn all(options: &Options, results: &Results) -> Vec<Section> {
    let mut sections = vec![
        parameters(options),
        schemes(results),
        features(results),
        apart(results),
        chunks(results),
        attributes(results),
    ];
    if !results.recordings.is_empty() {
        sections.push(recorded(results));
    }
    sections
}

fn parameters(options: &Options) -> Section {
    let mut table = Table::new(&["what", "value"]);
    let mut say = |what: &str, value: String| table.push(vec![what.into(), value]);
    let Phases { training, settling, measured } = Phases::USUAL;
    say("device (MiB), pages (KiB), pages of a block", format!("{}, 4, 64", PAGES >> 8));
    say("streams, spare (%)", format!("{STREAMS}, 11"));
    say("before the load", "filled in order, then as many random pages".into());
    say(
        "load, in capacities",
        format!("{training} training, {settling} settling, {measured} measured"),
    );
    say("AutoStream's chunks (MiB)", "MQ 1, SFR 2, and 128 KiB for both".into());
    say("seeds", format!("{} from {}", options.runs, options.seed));
    Section {
        heading: "Parameters".into(),
        text: vec![
            "The paper's device would be cleaned for the first time after 177 GB, more than most \
             of its traces write; so the device is made as large as the load's footprint. FIOS \
             writes without streams while it watches; AutoStream learns and tags from the start. \
             All schemes have the same low-water mark, so that open blocks are no hidden spare."
                .into(),
            "Few of the traces can be had without registration. The loads here are drawn: sizes \
             of writes, the share of sequential ones, rates and bursts follow Table 3; how writes \
             spread over the volume is not printed and is ours (journals in one piece; records by \
             Zipf's law and files rewritten whole, in extents of 128 KiB that lie among each \
             other). --trace puts a recorded trace beside them."
                .into(),
        ],
        chart: None,
        table: Some(table),
    }
}

fn number(value: f64) -> String {
    format!("{value:.2}")
}
fn relative(value: f64) -> String {
    format!("{value:.3}")
}
fn names() -> Vec<String> {
    WORKLOADS.iter().map(|workload| workload.name.into()).collect()
}
fn chosen(place: usize, row: &Figures) -> (FeatureSet, f64) {
    let features = WORKLOADS[place].printed.features();
    (features, row.set(features))
}

/// Schemes of the table that the chart has no room for.
const NOT_DRAWN: [&str; 5] = ["one other", "equal", "F alone", "MQ, 128 KiB", "SFR, 128 KiB"];

fn schemes(results: &Results) -> Section {
    let mut table = Table::new(&[
        "workload",
        "no streams (WAF)",
        "one other",
        "equal",
        "F alone",
        "MQ",
        "SFR",
        "MQ, 128 KiB",
        "SFR, 128 KiB",
        "FIOS, paper's features",
        "the paper's",
        "streams used",
        "FIOS, code's choice",
        "the code's",
        "best features",
        "FIOS, best",
        "paper, best",
    ]);
    let rows = || results.rows.iter().enumerate();
    for (place, row) in rows() {
        let ((features, fios), (best, least)) = (chosen(place, row), row.best());
        let mut cells = vec![WORKLOADS[place].name.to_owned(), number(row.none)];
        cells.extend(Scheme::ALL.map(|scheme| relative(row.scheme(scheme))));
        cells.extend([relative(fios), features.to_string(), format!("{:.0}", row.chosen_streams)]);
        cells.extend([relative(row.by_code), row.chosen_by_code()]);
        cells.extend([best.to_string(), relative(least)]);
        cells.push(paper::of_workload(WORKLOADS[place].name).to_owned());
        table.push(cells);
    }
    let series =
        |name: &str, value: &dyn Fn((usize, &Figures)) -> f64| Series::new(name, rows().map(value));
    let chart = Chart {
        axis: "write amplification, relative to no streams".into(),
        groups: names(),
        series: vec![
            series("AutoStream MQ", &|(_, row)| row.scheme(Scheme::Mq)),
            series("AutoStream SFR", &|(_, row)| row.scheme(Scheme::Sfr)),
            series("FIOS, the paper's features", &|(place, row)| chosen(place, row).1),
            series("FIOS, the code's choice", &|(_, row)| row.by_code),
            series("FIOS, best features", &|(_, row)| row.best().1),
        ],
        across: "workload".into(),
        left_out: NOT_DRAWN.map(Into::into).into(),
    };
    Section {
        heading: "Fig. 10, 11 and 15: write amplification by scheme".into(),
        text: schemes_text(results),
        chart: Some(chart),
        table: Some(table),
    }
}

fn schemes_text(results: &Results) -> Vec<String> {
    vec![
        "All but the first column of figures are relative to no streams. FIOS is shown with \
         the features that the paper's rules choose for the attributes of its Table 3, which \
         are those of whole traces; with those that the same rules choose for what the code \
         sees of the load in its training; and with the best of the fifteen sets. AutoStream \
         is compared at its published chunks, and at 128 KiB, which is as fine as our extents \
         and so the most it can be given. One other: all writes go to one other stream once \
         FIOS has been trained, which sets them apart from what was written before; whatever \
         is beyond that is owed to the policy."
            .into(),
        "Fig. 11 shows six of the paper's workloads; here it is judged on all twelve. What \
         Fig. 15 says is of OFIOS, which trains again every 100 s on eight containers of \
         databases: 47.1 % below no streams, and lower than MQ on average. FIOS here trains \
         once, on other loads, so that figure is not claimed."
            .into(),
        format!("Where it differs: {}", findings::schemes(results)),
    ]
}

fn features(results: &Results) -> Section {
    let mut columns = vec!["workload".to_owned()];
    columns.extend(FeatureSet::all().map(|set| set.to_string()));
    columns.push("the paper's features, binary".into());
    let mut table = Table { columns, rows: Vec::new() };
    for (place, row) in results.rows.iter().enumerate() {
        let mut cells = vec![WORKLOADS[place].name.to_owned()];
        cells.extend(row.sets.map(relative));
        cells.push(relative(row.chosen_binary));
        table.push(cells);
    }
    Section {
        heading: "Fig. 10: every set of features, in tenths".into(),
        text: vec![format!(
            "Relative to no streams. The paper calls C best for MSR-hm0 and FC for MSR-hm1. C \
                 as it is computed counts in how many windows a chunk comes back with company, \
                 which is a frequency with a memory of bursts. {}",
            findings::alike(results)
        )],
        chart: None,
        table: Some(table),
    }
}

fn apart(results: &Results) -> Section {
    let columns = [
        "workload",
        "no streams (WAF)",
        "MQ",
        "SFR",
        "FIOS, paper's features",
        "FIOS, best features",
    ];
    let mut table = Table::new(&columns);
    for (workload, row) in WORKLOADS.iter().zip(&results.apart) {
        let cells = [row.mq, row.sfr, row.chosen, row.best].map(relative);
        let mut line = vec![workload.name.to_owned(), number(row.none)];
        line.extend(cells);
        table.push(line);
    }
    Section {
        heading: "Copies apart from writes".into(),
        text: vec![format!(
            "The paper's simulator puts what cleaning copies into the block that the host \
                 writes to. Newer devices have blocks of their own for copies, per stream here, so \
                 that no streams already tells old from new. {} Best features are those of each \
                 seed above.",
            findings::apart(results)
        )],
        chart: None,
        table: Some(table),
    }
}

fn chunks(results: &Results) -> Section {
    let mut columns = vec!["workload".to_owned()];
    columns.extend(CHUNKS.map(|chunk| format!("{} KiB", chunk / 2)));
    let mut table = Table { columns, rows: Vec::new() };
    for (name, row) in CHUNK_WORKLOADS.iter().zip(&results.chunks) {
        let mut cells = vec![(*name).to_owned()];
        cells.extend(row.iter().map(|value| relative(*value)));
        table.push(cells);
    }
    Section {
        heading: "Fig. 13: sizes of a chunk".into(),
        text: vec![format!(
            "FIOS with the paper's features, relative to no streams. The paper's amplification \
                 rises slowly up to 32 KiB and fast beyond. {} Our extents are of 128 KiB: a chunk \
                 that spans several mixes what differs.",
            findings::chunks(results)
        )],
        chart: None,
        table: Some(table),
    }
}

fn attributes(results: &Results) -> Section {
    let mut table = Table::new(&[
        "workload",
        "ACF, paper",
        "ACF",
        "random (%), paper",
        "random (%)",
        "size, paper",
        "size (sectors)",
        "reuse, paper",
        "reuse in training",
        "chosen for the paper's",
        "chosen by the code",
    ]);
    for (workload, row) in WORKLOADS.iter().zip(&results.rows) {
        let (printed, ours) = (&workload.printed, &row.attributes);
        table.push(vec![
            workload.name.to_owned(),
            number(printed.autocorrelation),
            number(ours.autocorrelation),
            format!("{:.0}", printed.random_percent),
            format!("{:.0}", ours.random_percent),
            format!("{:.0}", printed.size),
            format!("{:.0}", ours.size_sectors),
            number(printed.reuse),
            number(ours.reuse),
            printed.features().to_string(),
            row.chosen_by_code(),
        ]);
    }
    Section {
        heading: "Table 3: what the loads are like".into(),
        text: vec![format!(
            "Reuse grows with the length of a trace, and a training of 1.5 capacities sees \
                 only the beginning; {}. Rates are the printed ones on a device made smaller, so \
                 bytes per day say little and are left out.",
            findings::choices(results)
        )],
        chart: None,
        table: Some(table),
    }
}

fn recorded(results: &Results) -> Section {
    let mut table = Table::new(&[
        "trace",
        "writes",
        "footprint (MiB)",
        "passes",
        "no streams (WAF)",
        "MQ",
        "SFR",
        "MQ, 128 KiB",
        "SFR, 128 KiB",
        "FIOS",
        "paper's features",
        "best features",
        "best",
    ]);
    for trace in &results.recordings {
        let mut cells = vec![
            trace.name.clone(),
            trace.writes.to_string(),
            (trace.pages >> 8).to_string(),
            format!("{:.1}", trace.passes),
        ];
        let row = &trace.figures;
        cells.push(number(row.none));
        let schemes = [Scheme::Mq, Scheme::Sfr, Scheme::MqFine, Scheme::SfrFine];
        cells.extend(schemes.map(|scheme| relative(row.scheme(scheme))));
        cells.extend([relative(row.by_code), row.chosen_by_code()]);
        cells.extend([row.best().0.to_string(), relative(row.best().1)]);
        table.push(cells);
    }
    Section {
        heading: "Recorded traces".into(),
        text: vec![
            "Each on a device as large as what it touches. One that is shorter than the replay is \
             repeated, its 64 segments in another order each time. FIOS uses the features that \
             the trace's own attributes ask for. Footprints below 16 MiB or above 4 GiB are \
             refused."
                .into(),
        ],
        chart: None,
        table: Some(table),
    }
}
