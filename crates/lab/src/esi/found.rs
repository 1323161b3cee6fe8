//! The paper's six findings, what of them is shown here, and what is not.
//!
//! How: the paper prints sizes of its own gateway alone, which is not modelled; so nothing here is
//! a claim. What a model shows by construction is named as not shown.
//! Invariant: each finding has a line. Cost: none.

use super::{CASES, LINKS, MB, Run, WORKLOADS, median};
use crate::Measurement;

/// Payload that reached the store per second, over what the link carries.
pub(super) fn share_payload(runs: &[Run], link: usize, workload: usize) -> f64 {
    let carried = LINKS[link].bytes_per_second as f64;
    let of = |run: &Run| run.workloads[link][workload];
    median(runs, |run| of(run).rate(of(run).payload)) / carried
}

/// The same of all bytes that were put.
pub(super) fn share_put(runs: &[Run], link: usize, workload: usize) -> f64 {
    let carried = LINKS[link].bytes_per_second as f64;
    let of = |run: &Run| run.workloads[link][workload];
    median(runs, |run| of(run).rate(of(run).put)) / carried
}

const NOT_SHOWN: &str = "not shown here: ";

/// Every finding.
pub(super) fn all(runs: &[Run]) -> Vec<Measurement> {
    let not = |what: &str, said: &str, why: &str| {
        Measurement::new(what, said, format!("{NOT_SHOWN}{why}"))
    };
    let mut all = vec![
        not(
            "finding 1: what clients with tiny files get",
            "2 to 25 MB/s for tiny and small files",
            "a file's own time is its file system's; `bench esi` measures one",
        ),
        not(
            "finding 2: a disk of its own for metadata",
            "faster",
            "a volume does not know which blocks are metadata",
        ),
        not(
            "finding 3: a larger cache",
            "slower: 197 MB than 99, 3200 MB no better than 985",
            "the paper's gateway walks its cache; nothing in a model would",
        ),
    ];
    all.extend(uploads(runs));
    all.push(not(
        "finding 5: deep trees",
        "go up slower than flat ones",
        "a volume knows no trees; `bench esi` measures both",
    ));
    all.push(bursts(runs));
    all
}

fn uploads(runs: &[Run]) -> Vec<Measurement> {
    let links = LINKS.iter().enumerate().map(|(link, plan)| {
        let shares = WORKLOADS.iter().enumerate().map(|(at, of)| {
            let (payload, put) = (share_payload(runs, link, at), share_put(runs, link, at));
            let name = of.name.split(':').next().unwrap_or(of.name);
            format!("{name} {payload:.3} and {put:.3}")
        });
        Measurement::new(
            format!("finding 4: share of the link, in payload and in bytes put, {}", plan.name),
            "large files near the link's rate, tiny ones far below (plots)",
            shares.collect::<Vec<_>>().join("; "),
        )
    });
    links.collect()
}

fn bursts(runs: &[Run]) -> Measurement {
    let waits = CASES.iter().enumerate().map(|(at, of)| {
        let wait = median(runs, |run| run.cases[at].longest_wait.as_secs_f64());
        format!("{} GB {wait:.2} s", of.cache_gb)
    });
    let link = LINKS[super::LINK_BURST].bytes_per_second / MB;
    Measurement::new(
        format!(
            "finding 6: the longest wait of a write in a 500th of a burst of 200 GB, link of \
             {link} MB/s"
        ),
        "50, 99 and 197 GB fail",
        waits.collect::<Vec<_>>().join(", "),
    )
}
