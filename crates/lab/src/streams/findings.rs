//! What the figures of a run say in sentences.
//!
//! How: each sentence is made of the run's own figures, which are medians over its seeds. Where
//! they do not show what a sentence is about, it is left out or says the contrary.
//! Invariant: no sentence names a figure, an order or a load that its run did not find.
//! Cost: none. Not for: what holds of the paper or of a load by construction; see `sections`.

use super::figures::{Figures, Scheme};
use super::paper::POSTMARK_PERCENT;
use super::policy::{Feature, FeatureSet};
use super::workloads::WORKLOADS;
use super::{CHUNK_WORKLOADS, CHUNKS, Results};

/// A workload's features by the paper's rules, and its figures.
fn row<'a>(results: &'a Results, name: &str) -> Option<(FeatureSet, &'a Figures)> {
    let place = WORKLOADS.iter().position(|workload| workload.name == name)?;
    Some((WORKLOADS[place].printed.features(), results.rows.get(place)?))
}

/// What `relative` is below no streams, in percent.
fn cut(relative: f64) -> f64 {
    (1.0 - relative) * 100.0
}

fn mean(figures: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = figures.len().max(1) as f64;
    figures.sum::<f64>() / count
}

/// Names in parentheses; nothing where there are none.
fn listed(names: &[&str]) -> String {
    if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) }
}

/// Where write amplification is not as the paper has it.
pub(super) fn schemes(results: &Results) -> String {
    let mut parts = Vec::new();
    if let Some((_, postmark)) = row(results, "Postmark") {
        let (found, printed) = (cut(postmark.best().1), -POSTMARK_PERCENT);
        parts.push(if found < printed {
            format!(
                "Postmark's {printed:.0} % are not reached, but {found:.1} %: so much needs data \
                 that can be told apart almost wholly, which a load of Zipf's law is not."
            )
        } else {
            format!("Postmark's {printed:.0} % are reached: {found:.1} %.")
        });
    }
    if let Some((printed, iozone)) = row(results, "IOzone") {
        let (best, least) = iozone.best();
        let beside = match best == printed {
            true => "the least of all sets".to_owned(),
            false => format!("and {best}, the best, {least:.3}"),
        };
        parts.push(format!(
            "IOzone rewrites large parts in order, which costs {:.2} without streams; the set \
             chosen for it ({printed}) tells only sequential chunks from others and costs {:.3} of \
             that, {beside}.",
            iozone.none,
            iozone.set(printed)
        ));
    }
    parts.push(one_feature(results));
    parts.join(" ")
}

/// `AutoStream` SFR beside FIOS where the paper's rules choose a single feature.
fn one_feature(results: &Results) -> String {
    let rows = WORKLOADS.iter().zip(&results.rows);
    let rows = rows.map(|(workload, row)| (workload.name, workload.printed.features(), row));
    let single: Vec<_> = rows.filter(|(_, features, _)| features.len() == 1).collect();
    let lower = single.iter().filter(|(_, set, row)| row.scheme(Scheme::Sfr) < row.set(*set));
    let lower: Vec<&str> = lower.map(|(name, ..)| *name).collect();
    format!(
        "One feature alone cannot fill 16 streams (A and F in tenths make 10, S two): of the {} \
         loads for which one is chosen, SFR, which weighs count and age together, is lower on \
         {}{}.",
        single.len(),
        lower.len(),
        listed(&lower)
    )
}

/// How far the features C and F alone lie apart.
pub(super) fn alike(results: &Results) -> String {
    let [chunked, frequent] =
        [Feature::Coherency, Feature::Frequency].map(|of| FeatureSet::of(&[of]));
    let apart = |row: &Figures| (row.set(chunked) - row.set(frequent)).abs();
    let most = results.rows.iter().map(apart).fold(0.0, f64::max);
    format!(
        "Here they differ by {:.3} on average and by {most:.3} at most.",
        mean(results.rows.iter().map(apart))
    )
}

/// What is left to gain where copies have blocks of their own.
pub(super) fn apart(results: &Results) -> String {
    format!(
        "FIOS with its best features is {:.1} % below no streams there on average, and {:.1} % \
         where copies share the blocks of writes.",
        cut(mean(results.apart.iter().map(|row| row.best))),
        cut(mean(results.rows.iter().map(|row| row.best().1)))
    )
}

/// Where amplification rises with the size of a chunk.
pub(super) fn chunks(results: &Results) -> String {
    let rows = || CHUNK_WORKLOADS.iter().zip(&results.chunks);
    let steepest = |(name, row): (&&str, &Vec<f64>)| {
        let steps = row.windows(2).map(|pair| (pair[1] / pair[0] - 1.0) * 100.0);
        let most = steps.enumerate().max_by(|one, other| one.1.total_cmp(&other.1));
        match most {
            Some((at, rise)) if rise > 0.0 => {
                let [from, to] = [CHUNKS[at] / 2, CHUNKS[at + 1] / 2];
                format!("on {name} from {from} to {to} KiB ({rise:+.1} %)")
            }
            _ => format!("on {name} nowhere"),
        }
    };
    let steepest: Vec<String> = rows().map(steepest).collect();
    let mut text = format!("Here it rises most {}.", steepest.join(", "));
    let worse = rows().filter(|(_, row)| row[0] > row[1]);
    let worse: Vec<&str> = worse.map(|(name, _)| *name).collect();
    if !worse.is_empty() {
        text += &format!(
            " The smallest chunks are worse than those of {} KiB on {}: a training of 1.5 \
             capacities shows each of them few writes.",
            CHUNKS[1] / 2,
            worse.join(", ")
        );
    }
    text
}

/// How often the code chooses what the paper's own attributes would choose.
pub(super) fn choices(results: &Results) -> String {
    let rows = WORKLOADS.iter().zip(&results.rows);
    let same = rows.filter(|(workload, row)| row.measured == [workload.printed.features()]);
    format!(
        "what is chosen by our attributes is the paper's set, under every seed of the run, on {} \
         of {} loads",
        same.count(),
        results.rows.len()
    )
}
