//! One suite that every policy passes.

use super::*;
use alloc::boxed::Box;
use alloc::vec;

const VOLUME_SECTORS: u64 = 64 * 500 + 17;

/// Every policy, fresh; those that train do so on another trace than they will see.
fn policies(seed: u64) -> Vec<(&'static str, Box<dyn StreamPolicy>)> {
    let training = random_trace(&mut Rng::new(seed + 1000), 400, VOLUME_SECTORS);
    let fios = |parameters: FiosParameters| {
        Box::new(Fios::train(&training, VOLUME_SECTORS, &parameters)) as Box<dyn StreamPolicy>
    };
    let plain = FiosParameters::default();
    let all = Choice::Given(FeatureSet::FULL);
    let late = Nanos::from_secs(30);
    vec![
        ("none", Box::new(NoStreams)),
        ("equal", Box::new(EqualPartition::new(VOLUME_SECTORS, 64, 16))),
        ("sfr", Box::new(Sfr::new(SfrParameters::default()))),
        ("mq", Box::new(Mq::new(MqParameters::default()))),
        ("fios", fios(plain)),
        ("fios, four features", fios(FiosParameters { choice: all, ..plain })),
        ("fios, binary", fios(FiosParameters { choice: all, scale: Scale::Binary, ..plain })),
        ("fios, uncut", fios(FiosParameters { crossing: Crossing::First, ..plain })),
        ("fios, four streams", fios(FiosParameters { streams: 4, choice: all, ..plain })),
        ("ofios", Box::new(Ofios::new(VOLUME_SECTORS, short(OfiosParameters::default())))),
        (
            "ofios, late and sampled",
            Box::new(Ofios::new(
                VOLUME_SECTORS,
                short(OfiosParameters { build: late, sample_percent: 30, ..Default::default() }),
            )),
        ),
    ]
}

fn short(parameters: OfiosParameters) -> OfiosParameters {
    let run = Nanos::from_secs(20);
    OfiosParameters { run, train: run, ..parameters }
}

/// Goal: parts cover their write in order, none is empty, neighbours differ, streams are in range,
/// and the same writes give the same parts. Method: random traces through two of each.
#[test]
fn parts_cover_every_write() {
    for seed in 0..20 {
        let trace = random_trace(&mut Rng::new(seed), 600, VOLUME_SECTORS);
        for ((name, mut one), (_, mut other)) in policies(seed).into_iter().zip(policies(seed)) {
            let (mut parts, mut again) = (vec![], vec![]);
            for write in &trace {
                one.tag(write, &mut parts);
                other.tag(write, &mut again);
                assert_eq!(parts, again, "{name} SEED={seed}");
                let mut at = write.first.0;
                for part in &parts {
                    assert!(part.first.0 == at && part.sectors > 0, "{name} SEED={seed}");
                    assert!(part.stream.0 < one.streams(), "{name} SEED={seed}");
                    at += u64::from(part.sectors);
                }
                assert_eq!(at, write.end().0, "{name} SEED={seed}");
                assert!(parts.windows(2).all(|pair| pair[0].stream != pair[1].stream), "{name}");
            }
        }
    }
}

/// Goal: a write beyond the volume is a bug that shows at once. Method: the sector after the last.
#[test]
fn writes_beyond_the_volume_are_refused() {
    for name in ["equal", "fios", "fios, uncut", "ofios"] {
        let refused = std::panic::catch_unwind(|| {
            let mut policies = policies(1);
            let (_, policy) = policies.iter_mut().find(|(own, _)| *own == name).expect("a name");
            stream_of(&mut **policy, Nanos::ZERO, VOLUME_SECTORS + 64);
        });
        assert!(refused.is_err(), "{name}");
    }
}
