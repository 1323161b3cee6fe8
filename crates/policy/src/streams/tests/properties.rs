//! What must hold of features, grouping and choice, on random traces.

use super::super::cluster;
use super::super::features::{Table, Taking};
use super::*;

const VOLUME_SECTORS: u64 = 64 * 300;

fn taking(writes: &[Write], scale: Scale, coherency: Coherency, windows: u32) -> Taking {
    let windows = Windows::over(writes[0].at, writes[writes.len() - 1].at, windows);
    let sequentiality = Sequentiality::Half;
    Taking { chunk_sectors: 64, scale, sequentiality, coherency, windows }
}

fn table(writes: &[Write], scale: Scale, coherency: Coherency) -> Table {
    Table::of(writes, &taking(writes, scale, coherency, 20))
}

fn train(writes: &[Write], parameters: &FiosParameters) -> Trained {
    Fios::train(writes, VOLUME_SECTORS, parameters).trained().clone()
}

/// Goal: a stretch and a shift of time change no feature; a shift of addresses by whole chunks
/// moves rows alone. Method: random traces, both scales.
#[test]
fn features_are_invariant() {
    for seed in 0..20 {
        let trace = random_trace(&mut Rng::new(seed), 500, VOLUME_SECTORS);
        let later = |w: &Write| Write { at: Nanos(4 * w.at.0 + (1 << 40)), ..*w };
        let later: Vec<Write> = trace.iter().map(later).collect();
        let moved = |w: &Write| Write { first: Sector(w.first.0 + 64 * 7), ..*w };
        let moved: Vec<Write> = trace.iter().map(moved).collect();
        for scale in [Scale::Binary, Scale::Decimal] {
            let [plain, later, moved] =
                [&trace, &later, &moved].map(|trace| table(trace, scale, Coherency::Friends));
            assert_eq!(plain.rows, later.rows, "SEED={seed}");
            assert_eq!(plain.rows, moved.rows, "SEED={seed}");
            assert!(plain.chunks.iter().zip(&moved.chunks).all(|(a, b)| a + 7 == *b));
            let within = |row: &[f64; 4]| row.iter().all(|value| (0.0..=1.0).contains(value));
            assert!(plain.rows.iter().all(within), "SEED={seed}");
        }
    }
}

/// Goal: friends are a part of the coherent; both are what sets of windows say; one window has
/// none. Method: random traces beside the definition, pair of windows by pair.
#[test]
fn coherency_is_its_definition() {
    for seed in 0..10 {
        let trace = random_trace(&mut Rng::new(seed), 150, VOLUME_SECTORS);
        let taking = taking(&trace, Scale::Binary, Coherency::Friends, 20);
        let friends = table(&trace, Scale::Binary, Coherency::Friends);
        let literal = table(&trace, Scale::Binary, Coherency::Literal);
        let span = trace[trace.len() - 1].at.since(trace[0].at).0 as f64 / 20.0;
        let window = |w: &Write| ((w.at.since(trace[0].at).0 as f64 / span) as u32).min(19);
        let list = |index: u32| -> Vec<u64> {
            let of_it = trace.iter().filter(|w| window(w) == index);
            let mut list: Vec<u64> = of_it.flat_map(|w| w.chunks(64)).collect();
            list.sort_unstable();
            list.dedup();
            list
        };
        let lists: Vec<Vec<u64>> = (0..20).map(list).collect();
        for (place, chunk) in friends.chunks.iter().enumerate() {
            let mut expected = (false, false);
            for (at, one) in lists.iter().enumerate() {
                for other in &lists[at + 1..] {
                    let common: Vec<_> = one.iter().filter(|c| other.contains(c)).collect();
                    let has = common.contains(&chunk);
                    expected = (expected.0 | has, expected.1 | (has && common.len() > 1));
                }
            }
            let found = (literal.rows[place][3] > 0.0, friends.rows[place][3] > 0.0);
            assert_eq!(found, expected, "SEED={seed}");
        }
        let one = Windows::over(trace[0].at, trace[0].at, 1);
        let none = Table::of(&trace, &Taking { windows: one, ..taking });
        assert!(none.rows.iter().all(|row| row[3] == 0.0), "SEED={seed}");
    }
}

/// Goal: few kinds of chunks make few clusters; a weight of zero is a feature left out; the order
/// of chunks does not matter. Method: random traces, every set of features.
#[test]
fn grouping_follows_its_rows() {
    for seed in 0..5 {
        let trace = random_trace(&mut Rng::new(seed), 400, VOLUME_SECTORS);
        for features in FeatureSet::all() {
            let plain =
                FiosParameters { choice: Choice::Given(features), ..FiosParameters::default() };
            let binary = train(&trace, &FiosParameters { scale: Scale::Binary, ..plain });
            assert!(u32::from(binary.clusters) <= 1 << features.len(), "{features} SEED={seed}");
            let weights = Feature::ALL.map(|f| if features.has(f) { 1.0 } else { 0.0 });
            let choice = Choice::Given(FeatureSet::FULL);
            let weighted = train(&trace, &FiosParameters { choice, weights, ..plain });
            assert_eq!(train(&trace, &plain).dictionary, weighted.dictionary, "{features}");
        }
        let frequency = FeatureSet::of(&[Feature::Frequency]);
        let choice = Choice::Given(frequency);
        let decimal = train(&trace, &FiosParameters { choice, ..FiosParameters::default() });
        assert!(decimal.clusters <= 10, "SEED={seed}");
        let table = table(&trace, Scale::Decimal, Coherency::Friends);
        let (mut rows, mut writes) = (table.rows.clone(), table.writes.clone());
        rows.reverse();
        writes.reverse();
        let group = |rows: &[_], writes: &[u32]| cluster::cluster(rows, writes, &[1.0; 4], 16);
        let (straight, mut reversed) = (group(&table.rows, &table.writes), group(&rows, &writes));
        reversed.of_rows.reverse();
        assert_eq!(straight, reversed, "SEED={seed}");
    }
}

/// Goal: the matrix algorithm is its closed form, never empty and monotone. Method: all attributes.
#[test]
fn choice_is_its_closed_form() {
    for bits in 0..32_u8 {
        let has = |wanted: u8| bits & wanted == wanted;
        let rules = [
            (Feature::Frequency, has(Judgement::REUSING)),
            (Feature::Sequentiality, has(Judgement::LARGE)),
            (Feature::Adjacency, has(Judgement::BURSTY | Judgement::BUSY)),
            (Feature::Coherency, has(Judgement::BURSTY | Judgement::RANDOM)),
        ];
        let chosen = rules.iter().filter(|(_, holds)| *holds);
        let expected = chosen.fold(FeatureSet::EMPTY, |set, (feature, _)| set.with(*feature));
        let found = select(Judgement(bits));
        assert_eq!(found.fell_back, expected.is_empty());
        let fallback = FeatureSet::of(&[Feature::Frequency]);
        assert_eq!(found.features, if found.fell_back { fallback } else { expected });
        for more in 0..5 {
            let grown = select(Judgement(bits | 1 << more)).features;
            let kept = Feature::ALL.iter().all(|f| !expected.has(*f) || grown.has(*f));
            assert!(kept, "{bits:05b} with {more}");
        }
    }
    let empty = (0..32).filter(|bits| select(Judgement(*bits)).fell_back).count();
    assert_eq!(empty, 5);
}

/// Goal: SFR's stream does not fall with the rate, and counts writes where nothing decays. MQ keeps
/// each chunk in one queue, none above its count, and lets the forgotten fall to the bottom.
/// Method: even rates; random chunks, looked at after every write.
#[test]
fn autostream_ranks_by_rate() {
    let mut before = 0;
    for per_second in [1, 2, 5, 20, 100, 500] {
        let mut sfr = Sfr::new(SfrParameters { decay: Nanos::from_secs(10), ..Default::default() });
        let at = |step: u64| Nanos(step * 1_000_000_000 / per_second);
        let mut last = 0;
        for step in 0..200 * per_second {
            last = stream_of(&mut sfr, at(step), 8 * (step % 2));
        }
        assert!(last >= before, "{per_second} per second: {last} after {before}");
        before = last;
    }
    let slow = SfrParameters { decay: SfrParameters::DECAY_MAX, aging: None, ..Default::default() };
    let mut sfr = Sfr::new(slow);
    for step in 0..1000 {
        stream_of(&mut sfr, Nanos(step), 8 * (step % 2));
    }
    assert!((sfr.count(Sector(0)) - 1000.0).abs() < 1e-3);
    let mut mq = Mq::new(MqParameters { streams: 6, ..MqParameters::default() });
    let mut rng = Rng::new(3);
    let mut counts = [0_u64; 40];
    for _ in 0..3000 {
        let chunk = if rng.chance(2, 3) { rng.below(5) } else { rng.below(40) };
        counts[chunk as usize] += 1;
        stream_of(&mut mq, Nanos::ZERO, chunk * 2048);
        let known = (0..40).filter(|chunk| counts[*chunk as usize] > 0);
        let looks: Vec<_> = known.map(|chunk| (chunk, mq.look(chunk))).collect();
        assert!(looks.iter().all(|(_, look)| look.queues == 1));
        let fits = |queue: u16, chunk: u64| u32::from(queue) <= counts[chunk as usize].ilog2();
        assert!(looks.iter().all(|(chunk, look)| fits(look.queue, *chunk)));
        assert_eq!(looks.iter().filter(|(_, look)| look.is_hottest).count(), 1);
    }
    for _ in 0..3000 {
        stream_of(&mut mq, Nanos::ZERO, 39 * 2048);
    }
    assert!((0..39).all(|chunk| counts[chunk as usize] == 0 || mq.look(chunk).queue == 0));
}
