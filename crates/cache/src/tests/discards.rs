//! Trims and zeroings that wait for their ranges.

use super::host::*;
use layby_types::*;

/// Goal: discards that wait cost the rest of the shard nothing: what ends elsewhere checks none of
/// their ranges, and of those behind one another only the first is checked. Method: a block whose
/// write-back never ends, 64 overlapping trims, reads and writes of another volume; then it ends,
/// and all trims do; checks are counted, and what was trimmed reads as zeros; seeds.
#[test]
fn discards_that_wait_cost_the_others_nothing() {
    const TRIMS: u32 = 64;
    for seed in 0..20 {
        let volumes = [volume(1, 1, 512), volume(2, 1, 96)];
        let mut host = Host::new(spec([4, 4, 128]), &volumes, seed);
        host.silent.insert(VolumeId(1));
        host.run(VolumeId(1), call(Operation::Write, 100 * 4096, 4096), 7);
        host.drain(1, Some(VolumeId(1)));
        host.settle();
        for trim in 0..u64::from(TRIMS) {
            host.submit(VolumeId(1), call(Operation::Trim, trim * 4096, 128 * 4096), 0);
        }
        host.settle();
        assert_eq!(host.under_way(), 1, "the write-back holds up all; SEED={seed}");
        let checks = |host: &Host| host.cache.effort.range_checks.get();
        let (submitted, mut rng) = (checks(&host), Rng::new(seed));
        assert!(submitted <= 2, "{submitted} checks for the first; SEED={seed}");
        for _ in 0..200 {
            let operation = if rng.chance(1, 2) { Operation::Read } else { Operation::Write };
            host.run(VolumeId(2), call(operation, rng.below(96) * 4096, 4096), 1);
            host.settle();
        }
        assert_eq!(checks(&host), submitted, "by operations elsewhere; SEED={seed}");
        host.completed.clear();
        host.silent.clear();
        host.settle();
        let ended = host.completed.drain(..).filter(|answer| answer.result.is_ok()).count();
        assert_eq!(ended, TRIMS as usize, "SEED={seed}");
        let ends = checks(&host) - submitted;
        assert!(ends <= 2 * TRIMS, "{ends} checks for {TRIMS} trims; SEED={seed}");
        let read = host.run(VolumeId(1), call(Operation::Read, 0, 192 * 4096), 0);
        assert!(read.cells.iter().all(|cell| *cell == 0), "SEED={seed}");
    }
}
