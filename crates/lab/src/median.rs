//! Medians of few figures.

/// The median; of an even number, the middle of the two in the middle. What is no number counts as
/// one above all others, whatever its sign. Panics when there is none.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> =
        values.map(|value| if value.is_nan() { f64::NAN } else { value }).collect();
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2].midpoint(values[values.len() / 2])
}
