//! The document's parts: parameters, then a section per figure and table.
//!
//! How: a table, a chart and what to know when reading them, per figure of the paper.
//! Invariant: every section has a table; a chart shows nothing that no table has. Cost: none.

use super::Rule;
use super::claims::times_more;
use super::host::{Discarding, Scenario, Seen};
use super::paper::{
    BATCH_COPIES, COMMIT_SECONDS, DUMMY_PERCENT, LOGICAL_GIB, NVME_BATCH_PERCENT, NVME_SINGLE,
    SINGLE_COPIES, SPARE_GIB, TABLES,
};
use super::{
    AHEAD_FREE_OTHERS, AHEAD_FREE_PERMILLE, DELAY, DELAYED, DISABLED, ENABLED, Extent, FIRST,
    ONWARD, QUEUE_DEPTH, RULES, Results, Row, SINGLE, THINK,
};
use crate::{Chart, Options, Section, Series, Table};
use layby_types::Nanos;

/// Every part.
pub(super) fn all(options: &Options, extent: Extent, results: &Results) -> Vec<Section> {
    vec![
        parameters(options, extent),
        copies(results),
        queue(results),
        counts(results),
        times(results),
        placement(results),
        threshold(results),
    ]
}

fn parameters(options: &Options, extent: Extent) -> Section {
    let mut table = Table::new(&["what", "paper", "here, before scaling"]);
    let mut say =
        |what: &str, paper: &str, here: String| table.push(vec![what.into(), paper.into(), here]);
    say("scale", "1", format!("1/{} of all bytes and seconds", extent.scale));
    let device = format!("{LOGICAL_GIB} GiB and {SPARE_GIB} GiB spare");
    say("device", "32 GB, 4 GB of them spare", device);
    say("read, program, erase", "40 µs, 200 µs, 2 ms", "the same".into());
    say(
        "a page's discard",
        "200 µs",
        "the same, 64 planes at once, unless a section says otherwise".into(),
    );
    say("parallelism", "not given", format!("8 channels of 8 dies, {QUEUE_DEPTH} in service"));
    say("block of flash", "not given", "64 MiB over all planes (FEMU's line)".into());
    let ahead = f64::from(AHEAD_FREE_PERMILLE) / 10.0;
    say("cleaning ahead", "not given", format!("an eighth invalid, below {ahead} % free"));
    let filled = format!("{DUMMY_PERCENT} %");
    say("filled before", "50 %", filled);
    let files = format!("{} of 1 MiB, {} rounds", extent.files, extent.rounds);
    say("files", "10 000 of 1 MiB, 50 rounds", files);
    say("commits", "every 5 s", format!("every {COMMIT_SECONDS} s, or when room is short"));
    let delay = format!("{} s after the commit", DELAY.as_secs_f64());
    say("Delay-D's delay", "5 to 6 s from deletion", delay);
    let think = format!("{} ms of the host per file", THINK.0 / 1_000_000);
    say("pace", "as fast as it goes", think);
    say("seeds", "–", format!("{} from {}", options.runs, options.seed));
    Section {
        heading: "Parameters".into(),
        text: vec![
            "The allocator lays a volume out as ext4 does: groups of 128 MiB, the metadata of 16 \
             groups at the front of the first, copies of the superblock, a journal. Files go \
             onward from where the last one ended. A commit writes the journal and inodes, and \
             names what was freed, stretches of one group joined: that is what ext4 sends with \
             discard, so that a discard covers a group at most."
                .into(),
            "Delay-D is the node's own policy of delayed discard, which sits below the file \
             system: it is told of discards after their commit and of writes before they are \
             issued, where the paper changes ext4 itself."
                .into(),
        ],
        chart: None,
        table: Some(table),
    }
}

fn series(name: &str, values: impl Iterator<Item = f64>) -> Series {
    Series::new(name, values)
}

fn columns(first: &str, rest: &[&str]) -> Table {
    let mut columns = vec![first];
    columns.extend(rest);
    Table::new(&columns)
}

/// Logarithms, so that both ends can be seen: tens of times more than one in a million.
fn visible(seen: &Seen) -> f64 {
    (seen.copies_per_page() * 1e6).max(1.0).log10()
}

fn chart(across: &str, groups: Vec<String>, rows: &[&Row]) -> Chart {
    let bars = Discarding::ALL.iter().enumerate();
    let bars = bars.map(|(at, d)| series(d.name(), rows.iter().map(|row| visible(&row[at]))));
    Chart {
        axis: "copies per million written, log10".into(),
        across: across.into(),
        groups,
        series: bars.collect(),
        ..Chart::default()
    }
}

fn per_page(seen: &Seen) -> String {
    format!("{:.5}", seen.copies_per_page())
}

fn copies(results: &Results) -> Section {
    let head = ["Disabled", "Enabled", "Delay-D", "Disabled to Enabled", "Disabled to Delay-D"];
    let mut table = columns("copies per page written", &head);
    for (scenario, row) in Scenario::ALL.iter().zip(&results.scenarios[ONWARD]) {
        let mut cells = vec![scenario.name().to_string()];
        cells.extend(row.iter().map(per_page));
        let ratios = [ENABLED, DELAYED].map(|at| times_more(&row[DISABLED], &row[at]));
        cells.extend(ratios.map(|ratio| format!("{ratio:.0}x")));
        table.push(cells);
    }
    let rows: Vec<&Row> = results.scenarios[ONWARD].iter().collect();
    let groups = Scenario::ALL.iter().map(|scenario| scenario.name().to_string()).collect();
    Section {
        heading: "Fig. 1a and 3a: pages that cleaning copies".into(),
        text: vec![
            format!(
                "The paper: batch-erase, Disabled up to {BATCH_COPIES} times Enabled, Delay-D like \
                 Enabled; single-erase, Delay-D {} times fewer than Disabled. Without discards a \
                 volume that was written once is full for good: cleaning has the spare blocks \
                 alone, and firmware that cleans ahead copies live and dead files all the time.",
                SINGLE_COPIES[0]
            ),
            "Here discards act at once. Enabled then has the fewest copies: what is deleted is \
             invalid some seconds sooner."
                .into(),
        ],
        chart: Some(chart("scenario", groups, &rows)),
        table: Some(table),
    }
}

fn queue(results: &Results) -> Section {
    let head = [
        "Disabled",
        "Enabled",
        "Delay-D",
        "Enabled to Delay-D",
        "time, Enabled (s)",
        "time, Delay-D (s)",
    ];
    let mut table = columns("discards act", &head);
    for (rule, row) in RULES.iter().zip(&results.rules) {
        let mut cells = vec![rule.name()];
        cells.extend(row.iter().map(per_page));
        cells.push(format!("{:.2}x", times_more(&row[ENABLED], &row[DELAYED])));
        cells.extend([ENABLED, DELAYED].map(|side| format!("{:.0}", row[side].seconds)));
        table.push(cells);
    }
    let rows: Vec<&Row> = results.rules.iter().collect();
    let groups = RULES.iter().map(|rule| match rule {
        Rule::InOrder => "at once".into(),
        Rule::WholeBlocks => "blocks".into(),
        Rule::Queued { command: Nanos::ZERO, page } => format!("{} µs/pg", page.0 / 1000),
        Rule::Queued { command, .. } => format!("{} ms", command.0 / 1_000_000),
        Rule::Forgotten => "never".into(),
    });
    Section {
        heading: "Enabled and Delay-D on devices whose discards queue".into(),
        text: vec![
            format!(
                "The paper: Enabled copies {} times more than Delay-D, in single-erase, and no \
                 reason for it. A device that acts upon a discard at once cannot show that: a \
                 discard makes pages invalid, and sooner is better. So here are devices that serve \
                 one discard after the other, at a cost of each command or of each page, while \
                 writes go on. A discard acts when it was served; what was written again meanwhile \
                 it leaves alone. How far a device falls behind follows from the number and the \
                 length of what it was sent, for both sides alike.",
                SINGLE_COPIES[1]
            ),
            "Both send the same pages, so a cost of each page makes both late alike. A cost of \
             each command makes the side late that sends more of them."
                .into(),
        ],
        chart: Some(chart("how discards act", groups.collect(), &rows)),
        table: Some(table),
    }
}

fn counts(results: &Results) -> Section {
    let head = ["Enabled sent", "Delay-D sent", "merged", "cancelled", "fewer sent"];
    let mut table = columns("discards", &head);
    let fewer = |enabled: f64, delayed: f64| format!("{:.1}x", enabled / delayed.max(1.0));
    for (at, scenario) in Scenario::ALL.iter().enumerate() {
        let row = &results.scenarios[ONWARD][at];
        let (enabled, delayed) = (&row[ENABLED], &row[DELAYED]);
        table.push(vec![
            format!("{}, here", scenario.name()),
            format!("{:.0}", enabled.sent),
            format!("{:.0}", delayed.sent),
            format!("{:.0}", delayed.merged),
            format!("{:.0}", delayed.cancelled),
            fewer(enabled.sent, delayed.sent),
        ]);
        for paper in TABLES.iter().map(|rows| rows[at]) {
            table.push(vec![
                format!("{}, paper, {}", scenario.name(), paper.device),
                paper.enabled.to_string(),
                paper.delayed.to_string(),
                paper.merged.to_string(),
                "–".into(),
                fewer(paper.enabled.into(), paper.delayed.into()),
            ]);
        }
    }
    Section {
        heading: "Tables 2 to 4: discards sent and merged".into(),
        text: vec![
            "Disabled sends none. Enabled sends about one per group of 128 MiB and round, since a \
             commit joins what it freed within a group; Delay-D joins groups, up to the next \
             metadata. The paper's commercial devices are shown beside, and were not modelled: \
             what such a device does with a discard is not published, so their times (Fig. 4 and \
             5) cannot be derived."
                .into(),
            "What differs: Delay-D sends fewer than the paper's, since files here lie in perfect \
             rows; a used ext4 also has directories, dummy files of other sizes and reservations \
             between them."
                .into(),
        ],
        chart: None,
        table: Some(table),
    }
}

fn times(results: &Results) -> Section {
    let head = ["Disabled (s)", "Enabled (s)", "Delay-D (s)", "Delay-D to Disabled"];
    let mut table = columns("scenario", &head);
    for (scenario, row) in Scenario::ALL.iter().zip(&results.scenarios[ONWARD]) {
        let mut cells = vec![scenario.name().to_string()];
        cells.extend(row.iter().map(|seen| format!("{:.0}", seen.seconds)));
        let change = (row[DELAYED].seconds / row[DISABLED].seconds - 1.0) * 100.0;
        cells.push(format!("{change:+.0} %"));
        table.push(cells);
    }
    let bars = Discarding::ALL.iter().enumerate().map(|(at, discarding)| {
        series(discarding.name(), results.scenarios[ONWARD].iter().map(|row| row[at].seconds))
    });
    Section {
        heading: "Fig. 1b, 3b and 4: time".into(),
        text: vec![format!(
            "Seconds of the device's own time, multiplied by the scale. The paper: on FEMU all \
             three alike; on an NVMe SSD Delay-D {NVME_BATCH_PERCENT} % in batch-erase and \
             {NVME_SINGLE} times faster in single-erase. Here Disabled is slower, since its host \
             waits for what cleaning copies; on the paper's FEMU the host was slower than the \
             flash, so that copies did not show."
        )],
        chart: Some(Chart {
            axis: "seconds".into(),
            across: "scenario".into(),
            groups: Scenario::ALL.iter().map(|scenario| scenario.name().to_string()).collect(),
            series: bars.collect(),
            ..Chart::default()
        }),
        table: Some(table),
    }
}

fn placement(results: &Results) -> Section {
    let head = ["Disabled", "Enabled", "Delay-D", "sent, Enabled", "sent, Delay-D", "cancelled"];
    let mut table = columns("copies per page written, and discards", &head);
    for (at, name) in [(ONWARD, "onward"), (FIRST, "first free place")] {
        for (scenario, row) in Scenario::ALL.iter().zip(&results.scenarios[at]) {
            let mut cells = vec![format!("{}, {name}", scenario.name())];
            cells.extend(row.iter().map(per_page));
            let delayed = &row[DELAYED];
            let counts = [row[ENABLED].sent, delayed.sent, delayed.cancelled];
            cells.extend(counts.map(|count| format!("{count:.0}")));
            table.push(cells);
        }
    }
    Section {
        heading: "Beyond the paper: where files go".into(),
        text: vec![
            "An allocator that takes the first free place reuses what was deleted at once. Then \
             most of the volume is never written, a device has room without any discard, and \
             Delay-D cancels much, which is what the paper calls invalidation at no cost. The \
             paper's numbers of discards, sent and merged, leave next to nothing cancelled: its \
             files went onward, as ext4's do."
                .into(),
        ],
        chart: None,
        table: Some(table),
    }
}

fn threshold(results: &Results) -> Section {
    let head = ["Disabled", "Enabled", "Delay-D", "Disabled to Delay-D"];
    let mut table = columns("cleans ahead below", &head);
    let mut rows: Vec<(u32, &Row)> =
        AHEAD_FREE_OTHERS.into_iter().zip(&results.thresholds).collect();
    rows.push((AHEAD_FREE_PERMILLE, &results.scenarios[ONWARD][SINGLE]));
    rows.sort_by_key(|(permille, _)| *permille);
    for (permille, row) in &rows {
        let mut cells = vec![format!("{} % free", f64::from(*permille) / 10.0)];
        cells.extend(row.iter().map(per_page));
        cells.push(format!("{:.0}x", times_more(&row[DISABLED], &row[DELAYED])));
        table.push(cells);
    }
    let groups = rows.iter().map(|(permille, _)| format!("{} %", f64::from(*permille) / 10.0));
    let drawn: Vec<&Row> = rows.iter().map(|(_, row)| *row).collect();
    Section {
        heading: "Beyond the paper: how early the device cleans".into(),
        text: vec![format!(
            "The paper does not say below how much free space its device cleans ahead, and the \
             ratio of Disabled to Delay-D depends on it more than on anything else. {} % is this \
             project's choice, 25 % FEMU's default: more than discards leave free here (the volume \
             is filled to 86 %), so that all clean all the time.",
            f64::from(AHEAD_FREE_PERMILLE) / 10.0
        )],
        chart: Some(chart("where the device begins to clean", groups.collect(), &drawn)),
        table: Some(table),
    }
}
