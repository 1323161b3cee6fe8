//! K-means over rows of features: deterministic, and independent of how many chunks there are.
//!
//! How: equal rows are counted once. The first centre is the commonest row, each further one the
//! row farthest from all centres so far; then Lloyd's iterations. Clusters are numbered by how
//! often their chunks are written, fewest first.
//! Invariant: the order of chunks changes nothing; no more clusters than distinct rows.
//! Cost: distinct rows x clusters x at most [`ROUNDS_MAX`]. Not for: more than four features.

use super::StreamNumber;
use super::features::Row;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Ordering;

/// Rounds of Lloyd's iteration at most.
pub(super) const ROUNDS_MAX: u32 = 100;

/// Distinct rows with what is summed over their chunks.
struct Distinct {
    row: Row,
    chunks: u64,
    writes: u64,
}

/// Which cluster each row is in, and which one a chunk without history is in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Clusters {
    pub(super) of_rows: Vec<StreamNumber>,
    pub(super) of_nothing: StreamNumber,
    pub(super) count: u16,
}

/// Groups `rows`, at least one, into at most `most` clusters; `weights` multiply squared
/// distances, and a column without weight is as if it were not there.
pub(super) fn cluster(rows: &[Row], writes: &[u32], weights: &Row, most: u16) -> Clusters {
    assert!(!rows.is_empty() && rows.len() == writes.len(), "rows to group, and their writes");
    let masked: Vec<Row> = rows.iter().map(|row| mask(row, weights)).collect();
    let (distinct, places) = collapse(&masked, writes);
    let mut centres = first_centres(&distinct, weights, most);
    let mut assigned = vec![usize::MAX; distinct.len()];
    for _ in 0..ROUNDS_MAX {
        let nearest: Vec<usize> =
            distinct.iter().map(|one| nearest(&centres, &one.row, weights)).collect();
        if nearest == assigned {
            break;
        }
        assigned = nearest;
        move_centres(&mut centres, &distinct, &assigned);
    }
    let numbers = canonical(&centres, &distinct, &assigned);
    let number = |cluster: usize| StreamNumber(numbers[cluster]);
    let of_nothing = distinct.iter().position(|one| one.row == [0.0; 4]);
    let of_nothing = of_nothing.map(|place| assigned[place]);
    let of_nothing = of_nothing.unwrap_or_else(|| nearest(&centres, &[0.0; 4], weights));
    Clusters {
        of_rows: places.iter().map(|place| number(assigned[*place])).collect(),
        of_nothing: number(of_nothing),
        count: centres.len() as u16,
    }
}

fn mask(row: &Row, weights: &Row) -> Row {
    core::array::from_fn(|column| if weights[column] > 0.0 { row[column] } else { 0.0 })
}

fn order(one: &Row, other: &Row) -> Ordering {
    let pairs = one.iter().zip(other);
    pairs.map(|(a, b)| a.total_cmp(b)).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
}

/// Distinct rows, ascending, and for each row its place among them.
fn collapse(rows: &[Row], writes: &[u32]) -> (Vec<Distinct>, Vec<usize>) {
    let mut by_row: Vec<usize> = (0..rows.len()).collect();
    by_row.sort_unstable_by(|one, other| order(&rows[*one], &rows[*other]));
    let mut distinct: Vec<Distinct> = Vec::new();
    let mut places = vec![0; rows.len()];
    for place in by_row {
        if distinct.last().is_none_or(|last| order(&last.row, &rows[place]).is_ne()) {
            distinct.push(Distinct { row: rows[place], chunks: 0, writes: 0 });
        }
        places[place] = distinct.len() - 1;
        let last = distinct.last_mut().expect("one was pushed");
        last.chunks += 1;
        last.writes += u64::from(writes[place]);
    }
    (distinct, places)
}

fn distance(one: &Row, other: &Row, weights: &Row) -> f64 {
    let columns = one.iter().zip(other).zip(weights);
    columns.map(|((a, b), weight)| weight * (a - b) * (a - b)).sum()
}

fn nearest(centres: &[Row], row: &Row, weights: &Row) -> usize {
    let mut best = (0, f64::INFINITY);
    for (cluster, centre) in centres.iter().enumerate() {
        let away = distance(centre, row, weights);
        if away < best.1 {
            best = (cluster, away);
        }
    }
    best.0
}

/// The commonest row, then always the one farthest from its nearest centre; the lowest of equals.
fn first_centres(distinct: &[Distinct], weights: &Row, most: u16) -> Vec<Row> {
    let count = distinct.len().min(usize::from(most));
    let mut first = 0;
    for (place, one) in distinct.iter().enumerate() {
        if one.chunks > distinct[first].chunks {
            first = place;
        }
    }
    let mut centres = vec![distinct[first].row];
    let mut away: Vec<f64> =
        distinct.iter().map(|one| distance(&one.row, &centres[0], weights)).collect();
    while centres.len() < count {
        let mut farthest = 0;
        for (place, distance) in away.iter().enumerate() {
            if *distance > away[farthest] {
                farthest = place;
            }
        }
        let centre = distinct[farthest].row;
        centres.push(centre);
        for (one, away) in distinct.iter().zip(&mut away) {
            *away = away.min(distance(&one.row, &centre, weights));
        }
    }
    centres
}

/// Each centre to the mean of its rows; one without rows stays.
fn move_centres(centres: &mut [Row], distinct: &[Distinct], assigned: &[usize]) {
    let mut sums = vec![([0.0; 4], 0.0); centres.len()];
    for (one, cluster) in distinct.iter().zip(assigned) {
        let (sum, chunks) = &mut sums[*cluster];
        *chunks += one.chunks as f64;
        for (total, value) in sum.iter_mut().zip(one.row) {
            *total += value * one.chunks as f64;
        }
    }
    for (centre, (sum, chunks)) in centres.iter_mut().zip(sums) {
        if chunks > 0.0 {
            *centre = sum.map(|total| total / chunks);
        }
    }
}

/// For each cluster its number: by mean writes of its chunks, ascending, then by its centre.
fn canonical(centres: &[Row], distinct: &[Distinct], assigned: &[usize]) -> Vec<u16> {
    let mut sums = vec![(0_u64, 0_u64); centres.len()];
    for (one, cluster) in distinct.iter().zip(assigned) {
        sums[*cluster].0 += one.writes;
        sums[*cluster].1 += one.chunks;
    }
    let mean = |cluster: usize| sums[cluster].0 as f64 / sums[cluster].1.max(1) as f64;
    let mut by_writes: Vec<usize> = (0..centres.len()).collect();
    by_writes.sort_unstable_by(|one, other| {
        let by_centre = || order(&centres[*one], &centres[*other]);
        mean(*one).total_cmp(&mean(*other)).then_with(by_centre).then(one.cmp(other))
    });
    let mut numbers = vec![0; centres.len()];
    for (number, cluster) in by_writes.into_iter().enumerate() {
        numbers[cluster] = number as u16;
    }
    numbers
}
