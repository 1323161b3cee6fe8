//! What the paper and its specification claim, and whether it holds here.
//!
//! How: where the paper prints a size, a claim; it holds within a tenth of the effect, on either
//! side. Where it prints bars without numbers, a measurement says on how many workloads the
//! direction is the paper's, and where it is least.
//! Invariant: FIOS is never called by one name for two things: with the features that the paper
//! prints for a workload, or with those that the code chooses by what it sees.
//! Cost: none.

use super::figures::{Figures, Scheme};
use super::paper::{BEST_PERCENT, CHOICE_WITHIN, CHUNK_KNEE, POSTMARK_PERCENT};
use super::workloads::WORKLOADS;
use super::{CHUNKS, Results};
use crate::{Claim, Expected, Measurement, Unit};
use std::collections::BTreeSet;

/// What the paper says of Fig. 11, which does not have all the workloads of Fig. 10.
const OF_SIX: &str = "lowest on all of six workloads; twelve here";
/// What the paper says of Fig. 15, whose scheme trains again and again.
const OF_ONLINE: &str = "Fig. 15 has OFIOS alone: below MQ on average, 47.1 % below no streams";

/// Every claim.
pub(super) fn all(results: &Results) -> Vec<Claim> {
    let cuts = results.rows.iter().map(|row| percent(row.best().1));
    let least = cuts.fold(f64::MIN, f64::max);
    let postmark = results.rows.first().map_or(f64::NAN, |row| percent(row.best().1));
    let effect = |figure| Expected::effect(figure, 0.0, Unit::Percent);
    vec![
        Claim::new(
            "Fig. 10: the least cut by the best features of any workload",
            effect(BEST_PERCENT),
            least,
        ),
        Claim::new(
            "Fig. 10(a): the cut by the best features on Postmark",
            effect(POSTMARK_PERCENT),
            postmark,
        ),
    ]
}

/// What the paper says without a size.
pub(super) fn measured(results: &Results) -> Vec<Measurement> {
    let best = |_: usize, row: &Figures| row.best().1;
    let printed = |place: usize, row: &Figures| chosen_of(place, row);
    let code = |_: usize, row: &Figures| row.by_code;
    let one = |_: &Figures| 1.0;
    let lowest = |row: &Figures| {
        let others = [Scheme::Equal, Scheme::Frequency].map(|scheme| row.scheme(scheme));
        others.into_iter().fold(1.0, f64::min)
    };
    let unsaid = |what: &'static str| (what, "");
    let mut all = vec![
        below(
            ("Fig. 10: FIOS, best features, to no streams", "lower on every workload"),
            results,
            best,
            one,
        ),
        below(
            ("Fig. 11: FIOS, the paper's features, to the best of the others", OF_SIX),
            results,
            printed,
            lowest,
        ),
        below(
            ("Fig. 11: FIOS, the code's choice, to the best of the others", OF_SIX),
            results,
            code,
            lowest,
        ),
    ];
    // What Fig. 11 has, with what the paper says of it, and what it does not have.
    let schemes = [
        ("Fig. 11: ", "no streams", None, OF_SIX),
        ("Fig. 11: ", "equal partition", Some(Scheme::Equal), OF_SIX),
        ("Fig. 11: ", "frequency alone (binary)", Some(Scheme::Frequency), OF_SIX),
        ("", "one other stream (beyond the paper)", Some(Scheme::Another), ""),
        ("", "AutoStream MQ (the one of Fig. 15)", Some(Scheme::Mq), OF_ONLINE),
        ("", "AutoStream SFR (beyond the paper)", Some(Scheme::Sfr), ""),
    ];
    for (figure, name, scheme, says) in schemes {
        let theirs = |row: &Figures| scheme.map_or(1.0, |scheme| row.scheme(scheme));
        let printed_is = format!("{figure}FIOS, the paper's features, to {name}");
        all.push(below((&printed_is, says), results, printed, theirs));
        let code_is = format!("{figure}FIOS, the code's choice, to {name}");
        all.push(below((&code_is, says), results, code, theirs));
    }
    let both = |row: &Figures| row.scheme(Scheme::Mq).min(row.scheme(Scheme::Sfr));
    all.push(below(unsaid("FIOS, best features, to both AutoStreams"), results, best, both));
    let fine = |row: &Figures| row.scheme(Scheme::MqFine).min(row.scheme(Scheme::SfrFine));
    let name = unsaid("FIOS, best features, to both AutoStreams by 128 KiB");
    all.push(below(name, results, best, fine));
    all.extend([choice(results, "the paper's features", chosen_of)]);
    all.push(choice(results, "the code's choice", |_, row| row.by_code));
    all.extend([same_choice(results), different(results), decimal(results), knee(results)]);
    all
}

/// What FIOS costs on a workload with the features that the paper's attributes give, relative to
/// no streams.
pub(super) fn chosen_of(place: usize, row: &Figures) -> f64 {
    row.set(WORKLOADS[place].printed.features())
}

/// On how many workloads `ours` is below `theirs`, by how much, and where it is not.
fn below(
    (what, said): (&str, &str),
    results: &Results,
    ours: impl Fn(usize, &Figures) -> f64,
    theirs: impl Fn(&Figures) -> f64,
) -> Measurement {
    let ratio = |(place, row): (usize, &Figures)| (place, ours(place, row) / theirs(row));
    let ratios: Vec<(usize, f64)> = results.rows.iter().enumerate().map(ratio).collect();
    let holding = ratios.iter().filter(|(_, ratio)| *ratio < 1.0).count();
    let mean = ratios.iter().map(|(_, ratio)| ratio).sum::<f64>() / ratios.len().max(1) as f64;
    let missing: Vec<String> = ratios
        .iter()
        .filter(|(_, ratio)| *ratio >= 1.0)
        .map(|(place, ratio)| format!("{} {:+.1} %", WORKLOADS[*place].name, percent(*ratio)))
        .collect();
    let mut found =
        format!("lower on {holding} of {}; {:+.1} % on average", ratios.len(), percent(mean));
    if !missing.is_empty() {
        found += &format!("; not on {}", missing.join(", "));
    }
    Measurement::new(what, said, found)
}

fn percent(relative: f64) -> f64 {
    (relative - 1.0) * 100.0
}

fn choice(results: &Results, whose: &str, of: impl Fn(usize, &Figures) -> f64) -> Measurement {
    let rows = results.rows.iter().enumerate();
    let near = rows.filter(|(place, row)| of(*place, row) <= row.best().1 * CHOICE_WITHIN);
    Measurement::new(
        format!("FIOS, {whose}: within 5 % of the best of fifteen"),
        "",
        format!("on {} of {}", near.count(), results.rows.len()),
    )
}

fn same_choice(results: &Results) -> Measurement {
    let rows = results.rows.iter().enumerate();
    let same = rows.filter(|(place, row)| row.measured == [WORKLOADS[*place].printed.features()]);
    Measurement::new(
        "the code chooses the features that the paper prints",
        "on all (it is the paper's rule)",
        format!("on {} of {}", same.count(), results.rows.len()),
    )
}

fn different(results: &Results) -> Measurement {
    let sets: BTreeSet<_> = results.rows.iter().map(|row| row.best().0).collect();
    Measurement::new(
        "Fig. 10: sets of features that are the best of some workload",
        "no set is always the best",
        format!("{} different ones", sets.len()),
    )
}

fn decimal(results: &Results) -> Measurement {
    let rows = results.rows.iter().enumerate();
    let better = rows.filter(|(place, row)| chosen_of(*place, row) <= row.chosen_binary);
    Measurement::new(
        "Fig. 10: the paper's features in tenths at most as high as binary",
        "lower",
        format!("on {} of {}", better.count(), results.rows.len()),
    )
}

fn knee(results: &Results) -> Measurement {
    let at = |chunk: u32| CHUNKS.iter().position(|size| *size == chunk).expect("it is tried");
    let (least, knee, most) = (at(CHUNKS[0]), at(CHUNK_KNEE), at(CHUNKS[CHUNKS.len() - 1]));
    let rises = |row: &Vec<f64>| {
        format!(
            "{:+.1} % and {:+.1} %",
            percent(row[knee] / row[least]),
            percent(row[most] / row[knee])
        )
    };
    let found: Vec<String> = results.chunks.iter().map(rises).collect();
    Measurement::new(
        "Fig. 13: rise from chunks of 4 KiB to 32 KiB, and from there to 512 KiB",
        "slow, then fast",
        found.join("; "),
    )
}
