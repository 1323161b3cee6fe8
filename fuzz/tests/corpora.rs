//! Replays what fuzzers have found worth keeping, on stable Rust and without a fuzzer.
//!
//! How: every file of `fuzz/corpus/<target>` and every seed that this version's encoders make is
//! given to the target's function; a finding is a panic, whose file is then named.
//! Invariant: the corpora stay small enough to be kept with the code. Cost: seconds.
//! Not for: finding anything new; that is `cargo xtask fuzz --target all`.

use layby_fuzz::{TARGETS, Target};
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
