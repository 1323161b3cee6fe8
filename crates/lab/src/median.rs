//! Medians of few figures.

/// The median; of an even number, the middle of the two in the middle. Panics when there is none.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2].midpoint(values[values.len() / 2])
}
