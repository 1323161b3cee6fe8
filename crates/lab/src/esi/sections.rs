//! The document's parts: parameters, clients, uploads, caches, bursts.
//!
//! Invariant: every section has a table. Cost: none.

use super::claims::{deep_over_flat, share, written};
use super::{
    BUNDLES, CACHES, CASES, DEPTH, DISK, FILE_TIME, FILE_TIME_OURS, GB, LINK, MB, PATIENCE, Run,
    WORKLOADS, median,
};
use crate::{Options, Section, Table};
use layby_sim::policy::forecast::Bandwidth;
use layby_sim::policy::uplink::{Ask, Room, Verdict, admit};
use layby_types::Nanos;

/// Every part.
pub(super) fn all(options: &Options, runs: &[Run]) -> Vec<Section> {
    vec![parameters(options), clients(runs), uploads(runs), caches(runs), bursts(runs), refused()]
}

fn section(heading: &str, text: &str, table: Table) -> Section {
    Section { heading: heading.into(), text: vec![text.into()], chart: None, table: Some(table) }
}

fn parameters(options: &Options) -> Section {
    let mut table = Table::new(&["what", "object per file", "bundles"]);
    let mut say = |what: &str, one: String, other: String| {
        table.push(vec![what.into(), one, other]);
    };
    let same = |value: String| (value.clone(), value);
    let (one, other) = (FILE_TIME.to_string(), FILE_TIME_OURS.to_string());
    say("a file, beside its bytes", one, other);
    let (one, other) = same(format!("{} MB/s", DISK / MB));
    say("the disk", one, other);
    let (one, other) = same(format!("{} Mbit/s, no round trip", LINK * 8 / MB));
    say("the link", one, other);
    let (one, other) = same(format!("{} s", PATIENCE.as_secs_f64()));
    say("a client's patience", one, other);
    let (one, other) = same(format!("{DEPTH} directories above a file"));
    say("a deep tree", one, other);
    say(
        "objects",
        "a file; a look-up for it and for each directory".into(),
        format!("{BUNDLES:?}"),
    );
    let (one, other) = same(format!("{} from {}", options.runs, options.seed));
    say("seeds", one, other);
    section(
        "Parameters",
        "The time per file and the disk's bandwidth of the object gateway are fitted to the \
         paper's Table II. The node's own time per file is that of an ext4 on a volume in \
         `bench esi`. The paper does not say what its link carries. At 35 Mbit/s and less Table \
         IV's cases end as there. Over a faster one 3 of 200 GB are up before a cache of 197 GB \
         is full, which passes then, and over one of 240 Mbit/s an object of 1 GB is up before \
         its client gives up, so that all pass.",
        table,
    )
}

fn clients(runs: &[Run]) -> Section {
    let mut table = Table::new(&[
        "workload",
        "files",
        "GB",
        "paper (MB/s)",
        "object per file (MB/s)",
        "bundles (MB/s)",
    ]);
    for (at, of) in WORKLOADS.iter().enumerate() {
        let files = of.users * of.files;
        table.push(vec![
            of.name.into(),
            files.to_string(),
            format!("{:.0}", (files * of.bytes) as f64 / GB as f64),
            of.paper.map_or_else(|| "none".into(), |rate| format!("{rate:.1}")),
            format!("{:.2}", written(runs, at, 0)),
            format!("{:.1}", written(runs, at, 1)),
        ]);
    }
    section(
        "Clients (findings 1 and 2)",
        "What clients write while there is room. The paper gives a band of 2 to 25 MB/s for tiny \
         and small files beside Table II's averages; several of its clients write at once, one \
         does here.",
        table,
    )
}

fn uploads(runs: &[Run]) -> Section {
    let mut table = Table::new(&[
        "workload",
        "of the link, object per file",
        "of the link, bundles",
        "deep over flat, object per file",
        "deep over flat, bundles",
        "requests per GB, object per file",
        "requests per GB, bundles",
    ]);
    for (at, of) in WORKLOADS.iter().enumerate() {
        let requests = |gateway: usize| {
            median(runs, |run| {
                let outcome = &run.workloads[at].flat[gateway];
                outcome.requests as f64 / (outcome.bytes as f64 / GB as f64)
            })
        };
        table.push(vec![
            of.name.into(),
            format!("{:.3}", share(runs, at, 0)),
            format!("{:.3}", share(runs, at, 1)),
            format!("{:.2}", deep_over_flat(runs, at, 0)),
            format!("{:.3}", deep_over_flat(runs, at, 1)),
            format!("{:.0}", requests(0)),
            format!("{:.0}", requests(1)),
        ]);
    }
    section(
        "Uploads (findings 4 and 5)",
        "What goes up once all is written and the link comes back: eight requests at a time, flat \
         trees and deep ones. The paper has figures of this only as plots: peaks near the link's \
         bandwidth for large and huge files, and deep trees below flat ones.",
        table,
    )
}

fn caches(runs: &[Run]) -> Section {
    let mut table = Table::new(&["cache (GB)", "large files written (MB/s)", "in the store (s)"]);
    for (at, gb) in CACHES.iter().enumerate() {
        table.push(vec![
            gb.to_string(),
            format!("{:.1}", median(runs, |run| run.caches[at].write_rate()) / MB as f64),
            format!("{:.0}", median(runs, |run| run.caches[at].stored.as_secs_f64())),
        ]);
    }
    section(
        "Caches (finding 3)",
        "The paper's gateway walks its cache in the background: 197 GB are slower than 99 and \
         3200 are no better than 985. Nothing here does, in the model by construction; of the \
         node itself `cargo xtask bench metadata` and `bench esi` tell.",
        table,
    )
}

fn bursts(runs: &[Run]) -> Section {
    let mut table = Table::new(&[
        "server",
        "tree",
        "cache (GB)",
        "paper",
        "object per file",
        "GB written",
        "bundles",
        "GB written",
        "longest wait of a write (s)",
    ]);
    let word = |passes: bool| if passes { "pass" } else { "fail" };
    for (at, of) in CASES.iter().enumerate() {
        let passes = |gateway: usize| runs.iter().all(|run| !run.cases[at][gateway].has_failed);
        let gb = |gateway: usize| {
            format!("{:.0}", median(runs, |run| run.cases[at][gateway].bytes as f64) / GB as f64)
        };
        let wait = median(runs, |run| run.cases[at][1].longest_wait.as_secs_f64());
        table.push(vec![
            of.server.to_string(),
            if of.is_deep { "deep" } else { "flat" }.into(),
            of.cache_gb.to_string(),
            word(of.passes).into(),
            word(passes(0)).into(),
            gb(0),
            word(passes(1)).into(),
            gb(1),
            format!("{wait:.2}"),
        ]);
    }
    section(
        "Bursts beyond the cache (finding 6)",
        "200 files of 1 GB. An object needs room for its whole file, which comes back when \
         another one is up as a whole; a bundle needs room for a write, so that a burst slows \
         down to the link. \
         The paper's two servers differ in disks, which the model does not tell apart.",
        table,
    )
}

/// What admission says of such a burst.
fn refused() -> Section {
    let mut table = Table::new(&["cache (GB)", "to be accepted within", "answer"]);
    let drain = Some(Bandwidth::new(LINK as f64));
    for cache_gb in [99, 197, 497] {
        for minutes in [30, 180] {
            let within = Nanos::from_secs(minutes * 60);
            let ask = Ask { bytes: 200 * GB, accepted_within: Some(within), uploaded_within: None };
            let room = Room { free_bytes: cache_gb * GB, ahead_bytes: 0 };
            let answer = match admit(&ask, &room, drain) {
                Verdict::Now => "at once".to_owned(),
                Verdict::SlowTo(rate) => format!("at {:.1} MB/s", rate.get() / MB as f64),
                Verdict::Refuse(refusal) => format!("refused: {refusal}"),
            };
            table.push(vec![cache_gb.to_string(), format!("{minutes} min"), answer]);
        }
    }
    section(
        "Refused at once",
        "What the node's admission answers to a burst of 200 GB with a time to be accepted in: \
         what cannot be kept is refused before it begins, with the reason.",
        table,
    )
}
