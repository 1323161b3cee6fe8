//! What the paper and its specification claim, and whether it holds here.
//!
//! How: each claim looks at all workloads and tells the one where it holds least.
//! Invariant: a claim that does not hold is listed like one that does. Cost: none.

use super::figures::{Figures, Scheme};
use super::paper::{BEST_PERCENT, CHOICE_WITHIN, CHUNK_KNEE, POSTMARK_PERCENT};
use super::workloads::WORKLOADS;
use super::{CHUNKS, Results};
use crate::Claim;
use std::collections::BTreeSet;

/// Every claim.
pub(super) fn all(results: &Results) -> Vec<Claim> {
    let best = |row: &Figures, _: f64| row.best().1;
    let chosen = |_: &Figures, chosen: f64| chosen;
    let mut claims = vec![
        below("Fig. 10: the best features, against no streams", results, best, |_| 1.0),
        cut(results),
        postmark(results),
        below("Fig. 11: FIOS's own choice, against no streams", results, chosen, |_| 1.0),
    ];
    let schemes = [
        ("beyond the paper: FIOS's own choice, against one other stream", Scheme::Another),
        ("Fig. 11: FIOS's own choice, against equal partition", Scheme::Equal),
        ("Fig. 11: FIOS's own choice, against frequency alone (binary)", Scheme::Frequency),
        ("Fig. 15's baseline: FIOS's own choice, against AutoStream MQ", Scheme::Mq),
        ("beyond the paper: FIOS's own choice, against AutoStream SFR", Scheme::Sfr),
    ];
    for (what, scheme) in schemes {
        claims.push(below(what, results, chosen, move |row| row.scheme(scheme)));
    }
    let both = |row: &Figures| row.scheme(Scheme::Mq).min(row.scheme(Scheme::Sfr));
    claims.push(below("the best features, against both AutoStreams", results, best, both));
    let fine = |row: &Figures| row.scheme(Scheme::MqFine).min(row.scheme(Scheme::SfrFine));
    let what = "beyond the paper: the best features, against both AutoStreams by 128 KiB";
    claims.push(below(what, results, best, fine));
    claims.push(choice(results));
    claims.push(different(results));
    claims.push(decimal(results));
    claims.push(knee(results));
    claims
}

/// What FIOS chooses on a workload by the paper's attributes, relative to no streams.
fn chosen_of(place: usize, row: &Figures) -> f64 {
    row.set(WORKLOADS[place].printed.features())
}

/// `ours` is below `theirs` on every workload.
fn below(
    what: &str,
    results: &Results,
    ours: impl Fn(&Figures, f64) -> f64,
    theirs: impl Fn(&Figures) -> f64,
) -> Claim {
    let ratio =
        |(place, row): (usize, &Figures)| (place, ours(row, chosen_of(place, row)) / theirs(row));
    let ratios: Vec<(usize, f64)> = results.rows.iter().enumerate().map(ratio).collect();
    let holding = ratios.iter().filter(|(_, ratio)| *ratio < 1.0).count();
    let worst = ratios.iter().max_by(|one, other| one.1.total_cmp(&other.1));
    let mean = ratios.iter().map(|(_, ratio)| ratio).sum::<f64>() / ratios.len().max(1) as f64;
    Claim {
        what: what.into(),
        expected: "lower on every workload".into(),
        found: match worst {
            Some((place, ratio)) => format!(
                "on {holding} of {}; {:+.1} % on average, {:+.1} % on {}",
                ratios.len(),
                (mean - 1.0) * 100.0,
                (ratio - 1.0) * 100.0,
                WORKLOADS[*place].name
            ),
            None => "nothing was measured".into(),
        },
        holds: holding == ratios.len(),
    }
}

fn percent(relative: f64) -> f64 {
    (relative - 1.0) * 100.0
}

fn cut(results: &Results) -> Claim {
    let cuts = || results.rows.iter().map(|row| percent(row.best().1));
    let enough = cuts().filter(|cut| *cut <= BEST_PERCENT).count();
    Claim {
        what: "Fig. 10: the best features cut much on every workload".into(),
        expected: format!("{BEST_PERCENT:+.0} % or more"),
        found: format!(
            "on {enough} of {}; {:+.1} % at least",
            results.rows.len(),
            cuts().fold(f64::MIN, f64::max)
        ),
        holds: enough == results.rows.len(),
    }
}

fn postmark(results: &Results) -> Claim {
    let found = results.rows.first().map_or(0.0, |row| percent(row.best().1));
    Claim {
        what: "Fig. 10(a): the best features on Postmark".into(),
        expected: format!("{POSTMARK_PERCENT:+.0} % or more"),
        found: format!("{found:+.1} %"),
        holds: found <= POSTMARK_PERCENT,
    }
}

fn choice(results: &Results) -> Claim {
    let rows = results.rows.iter().enumerate();
    let near = rows.filter(|(place, row)| chosen_of(*place, row) <= row.best().1 * CHOICE_WITHIN);
    let (near, all) = (near.count(), results.rows.len());
    Claim {
        what: "FIOS's own choice is within 5 % of the best of fifteen".into(),
        expected: "on two workloads of three".into(),
        found: format!("on {near} of {all}"),
        holds: 3 * near >= 2 * all,
    }
}

fn different(results: &Results) -> Claim {
    let sets: BTreeSet<_> = results.rows.iter().map(|row| row.best().0).collect();
    Claim {
        what: "Fig. 10: no set of features is always the best".into(),
        expected: "three different ones or more".into(),
        found: format!("{} different ones", sets.len()),
        holds: sets.len() >= 3,
    }
}

fn decimal(results: &Results) -> Claim {
    let rows = results.rows.iter().enumerate();
    let better = rows.filter(|(place, row)| chosen_of(*place, row) <= row.chosen_binary + 0.01);
    let (better, all) = (better.count(), results.rows.len());
    Claim {
        what: "Fig. 10: features in tenths are no worse than binary ones".into(),
        expected: "on most workloads".into(),
        found: format!("on {better} of {all}"),
        holds: 2 * better > all,
    }
}

fn knee(results: &Results) -> Claim {
    let at = |chunk: u32| CHUNKS.iter().position(|size| *size == chunk).expect("it is tried");
    let (least, knee, most) = (at(CHUNKS[0]), at(CHUNK_KNEE), at(CHUNKS[CHUNKS.len() - 1]));
    let holds = |row: &&Vec<f64>| row[least] <= row[knee] + 0.01 && row[knee] < row[most];
    let holding = results.chunks.iter().filter(holds).count();
    Claim {
        what: "Fig. 13: small chunks are no worse than 32 KiB, and 512 KiB is worse".into(),
        expected: format!("on all {}", results.chunks.len()),
        found: format!("on {holding} of {}", results.chunks.len()),
        holds: holding == results.chunks.len(),
    }
}
