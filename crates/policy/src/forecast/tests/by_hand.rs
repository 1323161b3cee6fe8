//! Each forecast beside what its definition gives.

use super::*;

fn told(mut forecast: impl Forecast, samples: &[Option<f64>]) -> impl Forecast {
    for sample in samples {
        forecast.observe(sample.map(Bandwidth::new));
    }
    forecast
}

fn said(forecast: &impl Forecast, ahead: u64) -> f64 {
    forecast.forecast(Ahead::new(ahead)).map_or(f64::NAN, Bandwidth::get)
}

/// Goal: numbers out of range become the nearest in range. Method: edges.
#[test]
fn bandwidths_are_in_range() {
    for (given, expected) in
        [(f64::NAN, 0.0), (-1.0, 0.0), (f64::NEG_INFINITY, 0.0), (f64::INFINITY, 1e15), (2.5, 2.5)]
    {
        assert_eq!(Bandwidth::new(given).get(), expected, "{given}");
    }
    assert_eq!(Bandwidth::of(3_000_000, Nanos::from_millis(1500)).get(), 2e6);
    assert_eq!(Bandwidth::of(1, Nanos::ZERO), Bandwidth::ZERO);
    assert_eq!(Bandwidth::new(7.9).whole(), 7);
    assert_eq!((Ahead::new(0).get(), Ahead::new(1000).get()), (1, Ahead::MAX));
}

/// Goal: the naive forecast is the last sample. Method: with a gap and a zero.
#[test]
fn the_last_is_the_last() {
    let naive = told(Last::default(), &[Some(5.0), Some(7.0), None]);
    assert_eq!((said(&naive, 1), said(&naive, 60)), (7.0, 7.0));
    assert_eq!(said(&told(naive, &[Some(0.0)]), 1), 0.0);
}

/// Goal: the average begins as a mean, then forgets by its weight, faster after a gap. Method: by
/// hand: mean of 4 and 8; a quarter of the way from 6 to 10; then after one gap 1 - 0.75² of it.
#[test]
fn averages_are_as_defined() {
    let quarter = AverageParameters { weight: 0.25 };
    let mean = told(Average::new(quarter), &[Some(4.0), Some(8.0)]);
    assert_eq!(said(&mean, 1), 6.0);
    let steady = told(mean, &[Some(6.0), Some(6.0), Some(10.0)]);
    assert_eq!(said(&steady, 9), 7.0);
    let gone = told(steady, &[None, Some(11.0)]);
    assert_eq!(said(&gone, 1), 7.0 + 4.0 * (1.0 - 0.75 * 0.75));
    let naive = told(Average::new(AverageParameters { weight: 9.0 }), &[Some(4.0), Some(8.0)]);
    assert_eq!(said(&naive, 1), 8.0, "the weight is brought into its bounds");
}

/// Goal: the median is that of the newest samples; an outlier does not move it. Method: five of
/// six, then two of a fresh one.
#[test]
fn medians_ignore_outliers() {
    let samples = [99.0, 5.0, 6.0, 0.0, 7.0, 8.0].map(Some);
    let median = told(Median::new(MedianParameters::DEFAULT), &samples);
    assert_eq!(said(&median, 3), 6.0);
    let two = told(Median::new(MedianParameters::DEFAULT), &[Some(1.0), None, Some(2.0)]);
    assert_eq!(said(&two, 1), 1.5);
}

/// Goal: a line is continued, damped far ahead, and held to what a link can do. Method: a ramp.
#[test]
fn trends_are_damped() {
    let plain = TrendParameters { damping: 1.0, ..TrendParameters::DEFAULT };
    let ramp: Vec<Option<f64>> =
        (0..400).map(|step| Some(1000.0 + 10.0 * f64::from(step))).collect();
    let line = told(Trend::new(plain), &ramp);
    assert!((said(&line, 1) - 5000.0).abs() < 1.0, "{}", said(&line, 1));
    assert!((said(&line, 10) - 5090.0).abs() < 10.0, "{}", said(&line, 10));
    let damped = told(Trend::new(TrendParameters::DEFAULT), &ramp);
    let (near, far) = (said(&damped, 1), said(&damped, 64));
    assert!(near < far && far < near + 10.0 * 10.0, "{near} {far}");
    let fall: Vec<Option<f64>> = (0..50).map(|step| Some(500.0 - 10.0 * f64::from(step))).collect();
    assert_eq!(said(&told(Trend::new(plain), &fall), 64), 0.0, "nothing is less than nothing");
}

/// Goal: a season is learnt. Method: a rhythm of forty intervals, high in one half: after some
/// rounds both halves are forecast from the other one.
#[test]
fn seasons_are_learnt() {
    let season = Some(Season { intervals: 40, parts: 8 });
    let slow = TrendParameters { level: 0.02, trend: 0.0, season, ..TrendParameters::DEFAULT };
    let rhythm = |step: u32| Some(if step % 40 < 20 { 900.0 } else { 100.0 });
    let samples: Vec<Option<f64>> = (0..40 * 60).map(rhythm).collect();
    let learnt = told(Trend::new(slow), &samples);
    // The next interval begins a round: ten ahead it is high, thirty ahead low.
    let (high, low) = (said(&learnt, 10), said(&learnt, 30));
    assert!((high - 900.0).abs() < 90.0 && (low - 100.0).abs() < 90.0, "{high} {low}");
    let later = told(learnt, &samples[..20]);
    assert!((said(&later, 10) - 100.0).abs() < 90.0, "{}", said(&later, 10));
}

/// Goal: an AR process is learnt: its one-step error comes near the noise, which none can undercut,
/// and its far forecast near the mean. Method: AR(2) with known coefficients around a level.
#[test]
fn regressions_learn_their_process() {
    let (level, deviation) = (1e6, 5e4);
    let mut rng = Rng::new(11);
    let (mut before, mut last) = (0.0, 0.0);
    let process: Vec<Option<Bandwidth>> = (0..4000)
        .map(|_| {
            let next = 1.2 * last - 0.5 * before + normal(&mut rng) * deviation;
            (before, last) = (last, next);
            bandwidth(level + next)
        })
        .collect();
    let mut regression = Regression::new(RegressionParameters::DEFAULT);
    mean_error(&mut regression, &process[..2000]);
    let error = mean_error(&mut regression, &process[2000..]);
    // The mean absolute value of a normal draw is 0.798 of its deviation.
    let least = 0.798 * deviation;
    assert!((0.9 * least..1.1 * least).contains(&error), "{error} beside {least}");
    let far = said(&regression, 64);
    assert!((far - level).abs() < 0.1 * level, "{far}");
    let naive = mean_error(&mut Last::default(), &process[2000..]);
    assert!(naive > 1.2 * error, "{naive} beside {error}");
}

/// Goal: a gap is filled by the process itself and teaches nothing. Method: a rhythm of two
/// intervals, stopped for a while: the forecast keeps its beat.
#[test]
fn gaps_keep_the_beat() {
    let beat = |step: u32| Some(if step.is_multiple_of(2) { 100.0 } else { 300.0 });
    let samples: Vec<Option<f64>> = (0..400).map(beat).collect();
    let learnt = told(Regression::new(RegressionParameters::DEFAULT), &samples);
    let gone = told(learnt, &[None, None, None]);
    let (one, two) = (said(&gone, 1), said(&gone, 2));
    assert!((one - 300.0).abs() < 20.0 && (two - 100.0).abs() < 20.0, "{one} {two}");
}
