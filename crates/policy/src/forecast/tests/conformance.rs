//! One suite that every forecast passes.

use super::*;

const AHEADS: [u64; 5] = [1, 2, 5, 15, 64];

/// Goal: whatever is measured, answers are finite, never negative and within bounds; there is none
/// before the first sample and always one after it; the same history gives the same answers; state
/// does not grow. Method: wild histories through two of each kind.
#[test]
fn answers_are_sound() {
    for kind in ForecastKind::ALL {
        for seed in 0..60 {
            let history = wild(&mut Rng::new(seed), 400);
            let (mut one, mut other) = (kind.build(), kind.build());
            let memory = one.memory_bytes();
            let mut is_known = false;
            for sample in &history {
                for ahead in AHEADS {
                    let said = one.forecast(Ahead::new(ahead));
                    assert_eq!(said.is_some(), is_known, "{} SEED={seed}", kind.name());
                    assert_eq!(said, other.forecast(Ahead::new(ahead)), "{}", kind.name());
                    let value = said.map_or(0.0, Bandwidth::get);
                    let sound = (0.0..=Bandwidth::MAX.get()).contains(&value);
                    assert!(sound, "{} said {value} SEED={seed}", kind.name());
                }
                is_known |= sample.is_some();
                one.observe(*sample);
                other.observe(*sample);
            }
            assert_eq!(one.memory_bytes(), memory, "{} grew", kind.name());
            assert!(memory < 32 << 10, "{} takes {memory} bytes", kind.name());
        }
    }
}

/// Goal: a link that does not change is forecast as it is, near and far, even after gaps, and a
/// dead one as dead. Method: constants with gaps.
#[test]
fn constants_are_learnt() {
    for kind in ForecastKind::ALL {
        for level in [0.0, 1.0, 1.5e6, 1e12] {
            let mut forecast = kind.build();
            for step in 0..500 {
                forecast.observe(if step % 7 == 3 { None } else { bandwidth(level) });
            }
            for ahead in AHEADS {
                let said = forecast.forecast(Ahead::new(ahead)).map_or(-1.0, Bandwidth::get);
                let off = (said - level).abs();
                assert!(off <= level * 1e-3, "{}: {said} for {level}", kind.name());
            }
            let mean = forecast.mean(1000).map_or(-1.0, Bandwidth::get);
            assert!((mean - level).abs() <= level * 1e-3, "{}: {mean}", kind.name());
        }
    }
}

/// Goal: bits or bytes, the forecast is the same: a link so many times faster is forecast so many
/// times faster. Method: one history in two units.
#[test]
fn units_do_not_matter() {
    for kind in ForecastKind::ALL {
        let mut rng = Rng::new(5);
        let (mut one, mut other) = (kind.build(), kind.build());
        let mut level = 1e6;
        for _ in 0..300 {
            level = (level + normal(&mut rng) * 5e4).max(2e5);
            let sample = level * (1.0 + normal(&mut rng) / 10.0);
            one.observe(bandwidth(sample));
            other.observe(bandwidth(sample * 1024.0));
        }
        for ahead in AHEADS {
            let said = |from: &dyn Forecast| from.forecast(Ahead::new(ahead)).map(Bandwidth::get);
            let (small, large) = (said(&*one).unwrap_or(0.0), said(&*other).unwrap_or(0.0));
            let ratio = large / small / 1024.0;
            assert!((ratio - 1.0).abs() < 1e-6, "{}: {ratio}", kind.name());
        }
    }
}

/// Goal: a link that comes back is believed again. Method: a minute of outage in the middle of
/// noise; some intervals after it the forecast is near the level.
#[test]
fn outages_are_forgotten() {
    for kind in ForecastKind::ALL {
        let (mut rng, mut forecast) = (Rng::new(3), kind.build());
        for step in 0..400 {
            let up = !(200..260).contains(&step);
            let level = if up { 1e6 * (1.0 + normal(&mut rng) / 20.0) } else { 0.0 };
            forecast.observe(bandwidth(level));
        }
        let said = forecast.forecast(Ahead::NEXT).map_or(0.0, Bandwidth::get);
        assert!((0.85e6..1.15e6).contains(&said), "{}: {said}", kind.name());
    }
}

/// Goal: names are unique and lead back. Method: all.
#[test]
fn names_lead_back() {
    for kind in ForecastKind::ALL {
        assert_eq!(ForecastKind::from_name(kind.name()), Some(kind));
    }
    assert_eq!(ForecastKind::from_name("oracle"), None);
    assert!(!ForecastKind::CHOICES.contains(&ForecastKind::Chosen));
}
