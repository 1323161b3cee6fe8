//! The document's parts: parameters, uploads, bursts.
//!
//! Invariant: every section has a table; a chart shows nothing that no table has. Cost: none.

use super::found::{share_payload, share_put};
use super::{
    BURST_PART, CASES, DEPTH, DISK, GB, LINK_BURST, LINKS, MB, Run, WORKLOAD_BYTES, WORKLOADS,
    WRITE_BYTES, median,
};
use crate::{Chart, Section, Series, Table};

/// Every part.
pub(super) fn all(runs: &[Run]) -> Vec<Section> {
    vec![parameters(), uploads(runs), bursts(runs)]
}

fn parameters() -> Section {
    let mut table = Table::new(&["what", "value"]);
    let mut say = |what: &str, value: String| table.push(vec![what.into(), value]);
    say(
        "volume",
        "blocks of 4 KiB, segments of 8 MiB, four uploads at once, no compression".into(),
    );
    say(
        "disk",
        format!("{} MB/s, {} ms a sync", DISK.bytes_per_second / MB, DISK.sync.0 / 1_000_000),
    );
    say("store", "S3's rates; latencies of a store in the same region, drawn by seed".into());
    say("links", LINKS.map(|link| link.name).join("; "));
    say("written per workload", format!("{} MB of files", WORKLOAD_BYTES / MB));
    say("writes", format!("{} KiB at most, {DEPTH} at once", WRITE_BYTES >> 10));
    let burst = GB / BURST_PART / MB;
    say("a burst", format!("200 files of {burst} MB, one write at once (1/{BURST_PART})"));
    Section {
        heading: "Parameters".into(),
        text: vec![
            "A file takes whole blocks. What a file system adds for its metadata is not here, nor \
             what it gathers before it writes, nor the levels of the node's cache: writes reach \
             the volume's journal as the client makes them. Bytes put are those of objects; what \
             HTTP, TLS and TCP add to them is not counted."
                .into(),
        ],
        chart: None,
        table: Some(table),
    }
}

fn uploads(runs: &[Run]) -> Section {
    let mut table = Table::new(&[
        "link, files",
        "written (s)",
        "in the store (s)",
        "of the link, payload",
        "of the link, bytes put",
        "bytes put per byte of files",
        "requests",
    ]);
    for (link, plan) in LINKS.iter().enumerate() {
        for (at, of) in WORKLOADS.iter().enumerate() {
            let outcome = |run: &Run| run.workloads[link][at];
            let put = median(runs, |run| outcome(run).put as f64 / outcome(run).payload as f64);
            table.push(vec![
                format!("{}, {}", plan.name, of.name),
                format!("{:.2}", median(runs, |run| outcome(run).written.as_secs_f64())),
                format!("{:.2}", median(runs, |run| outcome(run).stored.as_secs_f64())),
                format!("{:.3}", share_payload(runs, link, at)),
                format!("{:.3}", share_put(runs, link, at)),
                format!("{put:.3}"),
                format!("{:.0}", median(runs, |run| outcome(run).requests as f64)),
            ]);
        }
    }
    let series = WORKLOADS.iter().enumerate().map(|(at, of)| {
        Series::new(of.name, (0..LINKS.len()).map(|link| share_payload(runs, link, at)))
    });
    let chart = Chart {
        axis: "share of the link, payload".into(),
        groups: LINKS.iter().map(|link| link.name.to_owned()).collect(),
        series: series.collect(),
        across: "link, and its round trip".into(),
        ..Chart::default()
    };
    Section {
        heading: "Uploads (finding 4)".into(),
        text: vec![
            "From the first write until the store has everything, at what the link carries. The \
             time in which the session opens, the last segment's round trips and the last change \
             of the superblock are in it, so that a fast link is filled less."
                .into(),
        ],
        chart: Some(chart),
        table: Some(table),
    }
}

fn bursts(runs: &[Run]) -> Section {
    let mut table = Table::new(&[
        "cache (GB)",
        "paper",
        "journal here (MB)",
        "written (s)",
        "longest wait of a write (s)",
    ]);
    for (at, of) in CASES.iter().enumerate() {
        table.push(vec![
            of.cache_gb.to_string(),
            if of.passes { "pass" } else { "fail" }.into(),
            (of.cache_gb * GB / BURST_PART / MB).to_string(),
            format!("{:.1}", median(runs, |run| run.cases[at].written.as_secs_f64())),
            format!("{:.2}", median(runs, |run| run.cases[at].longest_wait.as_secs_f64())),
        ]);
    }
    Section {
        heading: "Bursts beyond the cache (finding 6)".into(),
        text: vec![format!(
            "200 files of the paper's 1 GB, and caches, {BURST_PART} times smaller; link ({}), \
             disk and segments are not. Once the journal is full, a write waits until a segment is \
             up and the superblock names it, however long the burst is. The paper's gateway failed \
             where its cache was smaller than the burst, with 35 to 83 % of it used, for reasons \
             inside it that no model from outside has; its ten cases differ in server and tree, \
             too, which a volume does not tell apart.",
            LINKS[LINK_BURST].name
        )],
        chart: None,
        table: Some(table),
    }
}
