//! OFIOS: windows, late builds, numbers that stay.

use super::*;

const CHUNKS: u64 = 200;
const VOLUME_SECTORS: u64 = 64 * CHUNKS;

fn parameters() -> OfiosParameters {
    let choice = Choice::Given(FeatureSet::of(&[Feature::Frequency]));
    let fios = FiosParameters { choice, scale: Scale::Binary, ..FiosParameters::default() };
    OfiosParameters { fios, ..OfiosParameters::default() }
}

/// Writes every tenth of a second of one window; `hot` chunks get two in three.
fn window(ofios: &mut Ofios, number: u64, hot: core::ops::Range<u64>, rng: &mut Rng) {
    for step in 0..1000 {
        let is_hot = rng.chance(2, 3);
        let among = if is_hot { hot.clone() } else { 0..CHUNKS };
        let chunk = among.start + rng.below(among.end - among.start);
        stream_of(ofios, Nanos::from_millis(100 * (1000 * number + step)), chunk * 64);
    }
}

/// Goal: a load that stays makes dictionaries that stay; one that changes is followed at the end of
/// its window and not before. Method: a hot tenth that moves in the fifth window.
#[test]
fn windows_follow_the_load() {
    let mut rng = Rng::new(5);
    let mut ofios = Ofios::new(VOLUME_SECTORS, parameters());
    assert_eq!(ofios.current().clusters, 1);
    let mut seen = Vec::new();
    for number in 0..8 {
        let hot = if number < 4 { 0..20 } else { 100..120 };
        let before = ofios.current().dictionary.clone();
        window(&mut ofios, number, hot, &mut rng);
        let during = streams_of(&ofios.current().dictionary);
        if number > 0 {
            assert_ne!(before, ofios.current().dictionary, "it changes at the window's end");
        }
        seen.push(during);
    }
    let share = |streams: &[u16], hot: core::ops::Range<usize>| {
        hot.clone().filter(|chunk| streams[*chunk] == 1).count() * 100 / hot.len()
    };
    assert!(share(&seen[4], 0..20) == 100 && share(&seen[4], 100..120) < 50);
    assert!(share(&seen[5], 100..120) == 100 && share(&seen[5], 0..20) < 50);
    let kept = (0..20).filter(|chunk| seen[2][*chunk] == seen[3][*chunk]).count();
    assert!(kept >= 19, "hot chunks keep their number: {kept}");
    assert_eq!(ofios.late_builds(), 0);
}

/// Goal: a late build keeps the old dictionary for another window. Method: a build of 30 s where
/// there are 25.
#[test]
fn late_builds_wait() {
    let mut rng = Rng::new(6);
    let late = OfiosParameters { build: Nanos::from_secs(30), ..parameters() };
    let mut ofios = Ofios::new(VOLUME_SECTORS, late);
    window(&mut ofios, 0, 0..20, &mut rng);
    stream_of(&mut ofios, Nanos::from_secs(100), 0);
    assert_eq!((ofios.current().clusters, ofios.late_builds()), (1, 1));
    stream_of(&mut ofios, Nanos::from_secs(200), 0);
    assert_eq!(ofios.current().clusters, 2);
}

/// Goal: only the watching part of a window teaches. Method: writes after it, and a window alone.
#[test]
fn what_is_written_while_building_is_not_watched() {
    let mut ofios = Ofios::new(VOLUME_SECTORS, parameters());
    for second in 80..100 {
        stream_of(&mut ofios, Nanos::from_secs(second), 64 * (second % 7));
    }
    stream_of(&mut ofios, Nanos::from_secs(300), 0);
    assert_eq!(ofios.current().clusters, 1);
}
