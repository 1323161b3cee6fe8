//! The chooser: what it scores, what it chooses, and how little that costs.

use super::*;

const NOISE: f64 = 1e5;

/// Level, then noise around it.
fn noisy(rng: &mut Rng, length: usize) -> Vec<Option<Bandwidth>> {
    (0..length).map(|_| bandwidth(1e6 + normal(rng) * NOISE)).collect()
}

/// A walk without noise: its last value is all that is to be known.
fn walk(rng: &mut Rng, length: usize) -> Vec<Option<Bandwidth>> {
    let mut at = 1e7;
    (0..length)
        .map(|_| {
            at += normal(rng) * NOISE;
            bandwidth(at)
        })
        .collect()
}

/// Goal: errors are what was said against what came, discounted, at every horizon, for the chooser
/// as for its choices; gaps are not scored. Method: the same sums kept outside.
#[test]
fn errors_are_what_was_said_against_what_came() {
    let history = wild(&mut Rng::new(4), 300);
    let mut chooser = Chooser::new(ChooserParameters::DEFAULT);
    let keep = 1.0 - 1.0 / f64::from(ErrorWindow::DEFAULT.intervals);
    let mut said: Vec<[Option<Bandwidth>; HORIZONS.len()]> = Vec::new();
    let mut sums = [(0.0, 0.0, 0u64); HORIZONS.len()];
    for (now, sample) in history.iter().enumerate() {
        for (at, ahead) in HORIZONS.into_iter().enumerate() {
            let then = (now + 1).checked_sub(usize::from(ahead.get()));
            let earlier = then.and_then(|then| said.get(then)?[at]);
            if now >= usize::from(ahead.get())
                && let (Some(earlier), Some(came)) = (earlier, sample)
            {
                let sum = &mut sums[at];
                *sum = (
                    sum.0 * keep + (earlier.get() - came.get()).abs(),
                    sum.1 * keep + 1.0,
                    sum.2 + 1,
                );
            }
        }
        chooser.observe(*sample);
        // Index 0 is before anything was seen, when nothing is said.
        if said.is_empty() {
            said.push([None; HORIZONS.len()]);
        }
        said.push(HORIZONS.map(|ahead| chooser.forecast(ahead)));
    }
    for (at, ahead) in HORIZONS.into_iter().enumerate() {
        let shown = chooser.error(ahead);
        let (absolute, weight, scored) = sums[at];
        assert_eq!(shown.scored, scored, "{ahead:?}");
        let mean = absolute / weight;
        assert!((shown.mean_absolute - mean).abs() <= mean * 1e-9, "{shown:?} {mean}");
    }
}

/// Goal: the right one is chosen: an average for noise around a level, the naive forecast for a
/// walk, and the choice follows a link that changes. Method: one after the other.
#[test]
fn the_choice_follows_the_link() {
    let mut rng = Rng::new(9);
    let mut chooser = Chooser::new(ChooserParameters::DEFAULT);
    assert_eq!(chooser.chosen(Ahead::NEXT), ForecastKind::Naive, "nothing is known yet");
    for sample in noisy(&mut rng, 600) {
        chooser.observe(sample);
    }
    assert!(matches!(chooser.chosen(Ahead::NEXT), ForecastKind::EwmaSlow | ForecastKind::Ar));
    for sample in walk(&mut rng, 1500) {
        chooser.observe(sample);
    }
    assert!(matches!(chooser.chosen(Ahead::NEXT), ForecastKind::Naive | ForecastKind::Ar));
    for sample in noisy(&mut rng, 1500) {
        chooser.observe(sample);
    }
    assert!(matches!(chooser.chosen(Ahead::NEXT), ForecastKind::EwmaSlow | ForecastKind::Ar));
}

/// Goal: choosing online costs little against the best choice in hindsight, and never much against
/// naive. Method: noise, walks, and both in turns; many seeds.
#[test]
fn choosing_costs_little() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mixed = |rng: &mut Rng| {
            let turns = (0..6).flat_map(|turn| match turn % 2 {
                0 => noisy(rng, 300),
                _ => walk(rng, 300),
            });
            turns.collect::<Vec<_>>()
        };
        for history in [noisy(&mut rng, 1500), walk(&mut rng, 1500), mixed(&mut rng)] {
            let error = |kind: ForecastKind| mean_error(&mut *kind.build(), &history);
            let best = ForecastKind::CHOICES.map(error).into_iter().fold(f64::MAX, f64::min);
            let (chosen, naive) = (error(ForecastKind::Chosen), error(ForecastKind::Naive));
            assert!(chosen < 1.06 * best, "{chosen} beside {best} SEED={seed}");
            assert!(chosen < 1.03 * naive, "{chosen} beside {naive} SEED={seed}");
        }
    }
}

/// Goal: an outlook tells a good period from a bad one. Method: an hour at one level, then a
/// minute at half of it.
#[test]
fn outlooks_tell_periods_apart() {
    let mut chooser = Chooser::new(ChooserParameters::DEFAULT);
    assert_eq!(chooser.outlook(10), None);
    for step in 0..3660 {
        chooser.observe(bandwidth(if step < 3600 { 2e6 } else { 1e6 }));
    }
    let outlook = chooser.outlook(10).expect("much was measured");
    assert!((0.9e6..1.1e6).contains(&outlook.near.get()), "{outlook:?}");
    assert!((1.9e6..2e6).contains(&outlook.long.get()), "{outlook:?}");
    let errors: Vec<_> = chooser.errors(Ahead::NEXT).collect();
    assert_eq!(errors.len(), ForecastKind::ALL.len());
    assert!(errors.iter().all(|(_, error)| error.scored == 3659 && error.normalised < 0.1));
}
