//! Replays what fuzzers have found worth keeping, on stable Rust and without a fuzzer.
//!
//! How: every file of `fuzz/corpus/<target>` and every seed that this version's encoders make is
//! given to the target's function; a finding is a panic, whose file is then named.
//! Invariant: the corpora stay small enough to be kept with the code. Cost: seconds.
//! Not for: finding anything new; that is `cargo xtask fuzz --target all`.

use layby_fuzz::{TARGETS, Target};
use layby_types::Rng;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// Bytes of all corpora together.
const BYTES_MAX: u64 = 300_000;
/// Files of a corpus at most: more is for the fuzzer's own folder.
const FILES_MAX: usize = 150;

fn corpus(target: &Target) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|cause| panic!("{folder:?}: {cause}"));
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.expect("the folder can be listed").path()).collect();
    files.sort();
    files
}

fn replay(target: &Target, name: &str, bytes: &[u8]) {
    let (run, copy) = (target.run, bytes.to_vec());
    assert!(catch_unwind(move || run(&copy)).is_ok(), "{}: {name} is a finding", target.name);
}

/// Goal: no input that a fuzzer once found interesting is a finding. Method: all of them.
#[test]
fn corpora_hold_no_finding() {
    for target in &TARGETS {
        for path in corpus(target) {
            let bytes = fs::read(&path).expect("a corpus can be read");
            replay(target, &path.display().to_string(), &bytes);
        }
    }
}

/// Goal: what this version writes is no finding, cut anywhere. Method: every seed, and a few of its
/// beginnings.
#[test]
fn seeds_hold_no_finding() {
    for target in &TARGETS {
        for (name, bytes) in (target.seeds)() {
            replay(target, &name, &bytes);
            for cut in [1, bytes.len() / 3, bytes.len() / 2, bytes.len().saturating_sub(1)] {
                replay(target, &format!("{name} cut to {cut}"), &bytes[..cut.min(bytes.len())]);
            }
        }
    }
}

/// One to four changes of an input: bytes that change, go, come or repeat.
fn mutate(bytes: &mut Vec<u8>, length_max: usize, rng: &mut Rng) {
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        let end = (at + 1 + rng.below(8) as usize).min(bytes.len()).max(at);
        match rng.below(5) {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << rng.below(8)),
            1 => bytes[at..end].fill([0, 0xff, rng.next_u64() as u8][rng.below(3) as usize]),
            2 => drop(bytes.drain(at..end)),
            3 => bytes.insert(at, rng.next_u64() as u8),
            _ => bytes.extend_from_within(at..end),
        }
    }
    bytes.truncate(length_max);
}

/// Goal: what is a little different from what fuzzers and encoders made is no finding. Method:
/// seeded changes of both, `LAYBY_SEEDS` of them per target; a finding prints the input.
#[test]
fn mutations_hold_no_finding() {
    let count = std::env::var("LAYBY_SEEDS").ok().and_then(|count| count.parse().ok());
    for target in &TARGETS {
        let files = corpus(target).into_iter();
        let mut inputs: Vec<Vec<u8>> =
            files.map(|path| fs::read(path).expect("a corpus can be read")).collect();
        inputs.extend((target.seeds)().into_iter().map(|(_, bytes)| bytes));
        for seed in 0..count.unwrap_or(2000) {
            let mut rng = Rng::new(seed);
            let mut bytes = inputs[rng.below(inputs.len() as u64) as usize].clone();
            mutate(&mut bytes, target.length_max, &mut rng);
            replay(target, &format!("seed {seed}: {bytes:?}"), &bytes);
        }
    }
}

/// Goal: corpora neither vanish nor grow without end. Method: files and bytes are counted.
#[test]
fn corpora_are_small_and_there() {
    let mut bytes = 0;
    for target in &TARGETS {
        let files = corpus(target);
        assert!((2..=FILES_MAX).contains(&files.len()), "{}: {}", target.name, files.len());
        for path in files {
            let length = fs::metadata(&path).expect("a corpus can be read").len();
            assert!(length <= target.length_max as u64, "{path:?} has {length} bytes");
            bytes += length;
        }
    }
    assert!(bytes <= BYTES_MAX, "{bytes} bytes in all corpora");
}
