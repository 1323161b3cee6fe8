//! Forecasts beside values worked out by hand, known processes, and one suite for all.

mod by_hand;
mod choosing;
mod conformance;

use super::*;
use alloc::vec::Vec;
use layby_types::Rng;

fn bandwidth(bytes: f64) -> Option<Bandwidth> {
    Some(Bandwidth::new(bytes))
}

/// About normal, with mean nothing and deviation one: twelve even draws.
fn normal(rng: &mut Rng) -> f64 {
    (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0
}

/// A history with all that links and measurements do: gaps, zeros, jumps, noise, nonsense.
fn wild(rng: &mut Rng, length: usize) -> Vec<Option<Bandwidth>> {
    let mut level = 10f64.powi(rng.below(10) as i32);
    let sample = |_| match rng.below(20) {
        0..=2 => None,
        3 => bandwidth(0.0),
        4 => bandwidth(f64::NAN),
        5 if rng.chance(1, 8) => bandwidth(f64::INFINITY),
        6 if rng.chance(1, 4) => {
            level = 10f64.powi(rng.below(13) as i32 - 2);
            bandwidth(level)
        }
        _ => bandwidth(level * (1.0 + normal(rng) / 4.0)),
    };
    (0..length).map(sample).collect()
}

/// Tells `forecast` of `history` and gives the mean absolute error one interval ahead.
fn mean_error(forecast: &mut dyn Forecast, history: &[Option<Bandwidth>]) -> f64 {
    let (mut sum, mut scored) = (0.0, 0u32);
    for sample in history {
        if let (Some(said), Some(came)) = (forecast.forecast(Ahead::NEXT), sample) {
            sum += (said.get() - came.get()).abs();
            scored += 1;
        }
        forecast.observe(*sample);
    }
    sum / f64::from(scored.max(1))
}
