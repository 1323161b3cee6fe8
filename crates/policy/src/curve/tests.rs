//! Curves beside caches that are really simulated, and samples beside exact curves.

use super::{
    Access, BoundedCurve, Counted, Curve, ExactCurve, Point, SampleRate, SampledCurve, Served,
};
use alloc::vec::Vec;
use layby_types::{BlockKey, Rng};

type Request = (BlockKey, Access);

fn requests(rng: &mut Rng, count: usize, blocks: u64) -> Vec<Request> {
    let one = |rng: &mut Rng| {
        let key = crate::golden::skewed(rng, blocks);
        (BlockKey(key), if rng.chance(1, 4) { Access::Write } else { Access::Read })
    };
    (0..count).map(|_| one(rng)).collect()
}

/// Hits (reads, writes) of a level of `size` blocks that really holds them, LRU.
fn simulated(requests: &[Request], size: usize, served: Served) -> [f64; 2] {
    let (mut held, mut hits): (Vec<BlockKey>, _) = (Vec::new(), [0.0; 2]);
    for (key, access) in requests {
        let found = held.iter().position(|other| other == key);
        found.map(|at| held.remove(at));
        if served == Served::Reads && *access == Access::Write {
            continue;
        }
        hits[*access as usize] += f64::from(u8::from(found.is_some()));
        if found.is_some() || served != Served::Writes || *access == Access::Write {
            held.insert(0, *key);
            held.truncate(size);
        }
    }
    hits
}

/// Goal: the curve equals a real LRU cache at every size, reads and writes apart, for a level that
/// keeps everything and for a read-only one. Method: random traces, each size simulated.
#[test]
fn exact_curve_equals_lru_at_every_size() {
    for (seed, served) in (0..6).flat_map(|s| [(s, Served::All), (s, Served::Reads)]) {
        let trace = requests(&mut Rng::new(seed), 3000, 80);
        let mut exact = ExactCurve::new(served);
        trace.iter().for_each(|(key, access)| exact.on_request(*key, *access));
        let curve = exact.curve();
        for size in 1..100usize {
            let expected = simulated(&trace, size, served);
            let counted = [Counted::Reads, Counted::Writes].map(|c| curve.hits(c, size as u64));
            assert_eq!(counted, expected, "SEED={seed} {served:?} size {size}");
        }
        assert_eq!(curve.requests(Counted::Both), 3000.0);
    }
}

/// Goal: distances survive renumbering and growth. Method: a loop over more blocks than there are
/// moments at first; every distance after the first round is the loop's length less one.
#[test]
fn distances_survive_renumbering() {
    let mut stack = super::StackDistances::new();
    for step in 0..100_000u64 {
        let expected = (step >= 20_000).then_some(19_999);
        assert_eq!(stack.on_use(BlockKey(step % 20_000)), expected, "at step {step}");
    }
    assert_eq!(stack.len(), 20_000);
}

/// Goal: ETICA's distance counts what the level serves. Method: sequences of A and B by hand; the
/// answer to each request is the size that serves it, zero where none does.
#[test]
fn policy_optimised_distances_by_hand() {
    use Access::{Read, Write};
    let (a, b) = (BlockKey(1), BlockKey(2));
    let sequence = [(a, Read), (b, Read), (a, Read), (a, Write), (a, Read), (b, Read), (a, Read)];
    let sizes = |served, sequence: &[Request]| -> Vec<u64> {
        let mut curve = ExactCurve::new(served);
        let mut hits_before = [0.0; 3];
        let answer = |(key, access): &Request| {
            curve.on_request(*key, *access);
            let hits = [1, 2, 3].map(|size| curve.curve().hits(Counted::Both, size));
            let found = (0..3).find(|at| hits[*at] > hits_before[*at]);
            hits_before = hits;
            found.map_or(0, |at| at as u64 + 1)
        };
        sequence.iter().map(answer).collect()
    };
    assert_eq!(sizes(Served::All, &sequence), [0, 0, 2, 1, 1, 2, 2]);
    // The write ends A's chain: the next read of A misses, and its reuse starts again.
    assert_eq!(sizes(Served::Reads, &sequence), [0, 0, 2, 0, 0, 2, 2]);
    // Only A is ever written, so B is never served and takes no room from A.
    assert_eq!(sizes(Served::Writes, &sequence), [0, 0, 0, 0, 1, 0, 1]);
    // A read beyond a break finds nothing: the last read needs what the one before it needed.
    let broken = [(a, Write), (b, Write), (a, Read), (a, Read), (a, Write), (a, Read)];
    assert_eq!(sizes(Served::Writes, &broken), [0, 0, 2, 2, 2, 1]);
}

/// Draws of a Zipf law over `blocks` blocks, scattered.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(blocks: u64, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=blocks).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Zipf(sums.collect())
    }

    fn draw(&self, rng: &mut Rng) -> BlockKey {
        let point = rng.unit() * self.0.last().expect("at least one block");
        BlockKey(self.0.partition_point(|sum| *sum < point) as u64)
    }
}

fn grid(exact: &Curve) -> impl Iterator<Item = u64> {
    let size_max = exact.size_max();
    (1..=100).map(move |part| size_max * part / 100)
}

/// Goal: samples of some 10,000 and 1,600 blocks stay near the exact curve, 0.03 and 0.06 in the
/// mean; half of that is chance (which of the hottest blocks they hold). Method: six seeded Zipf
/// traces of 500,000 requests over 200,000 blocks, 100 sizes each.
#[test]
fn samples_stay_near_the_exact_curve() {
    for (seed, exponent) in [(1, 0.8), (2, 1.0), (3, 1.2), (4, 0.8), (5, 1.0), (6, 1.2)] {
        let (zipf, mut rng) = (Zipf::new(200_000, exponent), Rng::new(seed));
        let mut exact = ExactCurve::default();
        let mut sampled = SampledCurve::new(SampleRate::new(0.05), Served::All);
        let blocks = BoundedCurve::SAMPLE_BLOCKS_DEFAULT;
        let mut bounded = BoundedCurve::new(blocks, 1 << 20, Served::All);
        for _ in 0..500_000 {
            // Other blocks by seed, so that another sample is met.
            let key = BlockKey(zipf.draw(&mut rng).0 + (seed << 32));
            let access = if rng.chance(3, 10) { Access::Write } else { Access::Read };
            exact.on_request(key, access);
            sampled.on_request(key, access);
            bounded.on_request(key, access);
            assert!(bounded.blocks_sampled() < blocks);
        }
        let truth = exact.curve();
        for counted in [Counted::Reads, Counted::Writes, Counted::Both] {
            let by_rate = truth.difference(&sampled.curve(), counted, grid(&truth));
            let by_size = truth.difference(&bounded.curve(), counted, grid(&truth));
            assert!(by_rate.mean < 0.03, "SEED={seed} rate, {counted:?}: {by_rate:?}");
            assert!(by_size.mean < 0.06, "SEED={seed} size, {counted:?}: {by_size:?}");
        }
        assert!(bounded.memory_bytes() <= BoundedCurve::MEMORY_BYTES_MAX);
    }
}

/// Goal: a sample of everything is exact. Method: rate one beside the exact curve.
#[test]
fn a_full_sample_is_exact() {
    for served in [Served::All, Served::Reads, Served::Writes] {
        let trace = requests(&mut Rng::new(9), 5000, 500);
        let mut exact = ExactCurve::new(served);
        let mut sampled = SampledCurve::new(SampleRate::MAX, served);
        for (key, access) in trace {
            exact.on_request(key, access);
            sampled.on_request(key, access);
        }
        assert_eq!(exact.curve(), sampled.curve());
    }
}

/// Goal: memory stays bounded whatever comes, and the rate recovers when the working set shrinks.
/// Method: invalidations and a scan of 2^22 blocks under each policy, then a small working set.
#[test]
fn bounded_curve_keeps_its_bound_and_recovers() {
    for served in [Served::All, Served::Reads, Served::Writes] {
        let (mut rng, mut curve) = (Rng::new(5), BoundedCurve::new(256, 4096, served));
        for step in 0..1 << 21 {
            let near = BlockKey(step - rng.below(1000).min(step));
            let access = if rng.chance(1, 2) { Access::Write } else { Access::Read };
            curve.on_request(near, access);
        }
        assert!(curve.memory_bytes() <= BoundedCurve::MEMORY_BYTES_MAX);
        let rate_low = curve.rate();
        for _period in 0..12 {
            curve.on_period_end(0.5);
            for _ in 0..10_000 {
                curve.on_request(BlockKey(rng.below(100)), Access::Read);
            }
        }
        assert!(curve.rate() > rate_low, "{:?} did not rise", curve.rate());
        assert!(curve.memory_bytes() <= BoundedCurve::MEMORY_BYTES_MAX);
        assert!(curve.blocks_sampled() < 256);
    }
}

/// The key that the samples' hash turns into `hash`.
fn key_of_hash(hash: u64) -> BlockKey {
    // Newton's method: each round doubles the bits of the inverse that are right.
    let inverse = |odd: u64| {
        (0..6).fold(odd, |it, _| it.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(it))))
    };
    let mixed = hash.wrapping_mul(inverse(0xa076_1d64_78bd_642f));
    let first = mixed ^ (mixed >> 32);
    BlockKey(first.wrapping_mul(inverse(0xd6e8_feb8_6659_fd93)))
}

/// Goal: a trace made of blocks that no rate leaves out ends no curve, nor does it exceed the
/// bound; every request counts. Method: more such blocks than the smallest sample holds, each used
/// twice in a row, under each policy.
#[test]
fn blocks_of_one_hash_are_passed_over() {
    let blocks_max = BoundedCurve::SAMPLE_BLOCKS_MIN;
    for served in [Served::All, Served::Reads, Served::Writes] {
        let mut curve = BoundedCurve::new(blocks_max, 4096, served);
        for key in (0..4 * u64::from(blocks_max)).map(key_of_hash) {
            assert!(SampleRate::MIN.takes(key), "{key:?} is in every sample");
            curve.on_request(key, Access::Write);
            curve.on_request(key, Access::Read);
            assert!(curve.blocks_sampled() < blocks_max, "{served:?}");
        }
        assert_eq!(curve.rate(), SampleRate::MIN, "{served:?}");
        assert!(curve.blocks_sampled() > blocks_max / 2, "{served:?}");
        assert!(curve.memory_bytes() <= BoundedCurve::MEMORY_BYTES_MAX);
        let requests = 2.0 * 4.0 * f64::from(blocks_max);
        assert_eq!(curve.curve().requests(Counted::Both), requests, "{served:?}: all count");
    }
}

/// Goal: old periods fade. Method: a loop that fits 10 blocks, then one that needs 50; with `keep`
/// zero only the second counts, with a half both do.
#[test]
fn periods_fade() {
    for keep in [0.0, 0.5] {
        let mut curve = ExactCurve::default();
        let mut period = |blocks: u64| {
            (0..1000).for_each(|step| curve.on_request(BlockKey(step % blocks), Access::Read));
            let hits = curve.curve().hits(Counted::Reads, 20);
            curve.on_period_end(keep);
            hits
        };
        assert_eq!(period(10), 990.0);
        // The ten blocks of before are hit once more, deep or not; forty are new.
        let second = period(50);
        assert!((second - 990.0 * keep).abs() <= 10.0, "{second}");
    }
}

/// Goal: the hull lies on or below the misses, touches both ends, and is convex. Method: a curve
/// with a cliff, by hand, and random curves.
#[test]
fn hulls_are_lower_and_convex() {
    let point = |size, hits| Point { size, hits: [hits, 0.0] };
    let cliff = Curve::new(alloc::vec![point(1, 10.0), point(100, 90.0)], [100.0, 0.0]);
    let hull = cliff.hull(Counted::Reads);
    assert_eq!(hull.vertices().len(), 3);
    assert!((hull.misses(50) - (90.0 - 80.0 * 49.0 / 99.0)).abs() < 1e-9);
    for seed in 0..20 {
        let mut exact = ExactCurve::default();
        let trace = requests(&mut Rng::new(seed), 2000, 200);
        trace.iter().for_each(|(key, access)| exact.on_request(*key, *access));
        let (curve, counted) = (exact.curve(), Counted::Both);
        let hull = curve.hull(counted);
        let misses = |size| curve.requests(counted) - curve.hits(counted, size);
        for size in 1..=curve.size_max() {
            assert!(hull.misses(size) <= misses(size) + 1e-9, "SEED={seed} at {size}");
            let bend = hull.misses(size - 1) + hull.misses(size + 1) - 2.0 * hull.misses(size);
            assert!(bend >= -1e-9, "SEED={seed} not convex at {size}");
        }
        assert_eq!(hull.misses(curve.size_max()), misses(curve.size_max()));
    }
}
