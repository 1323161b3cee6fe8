//! Replays inputs and writes seeds, without a fuzzer.
//!
//! How: `layby-fuzz targets` lists targets and the bytes of their inputs at most, `layby-fuzz
//! seeds` writes the seeds, `layby-fuzz TARGET FILE…` replays; the same functions as everywhere.
//! Invariant: a finding is a panic, as in the fuzzer.
//! Cost: none. Not for: finding anything new.
#![forbid(unsafe_code)]

use layby_fuzz::{TARGETS, Target, target};
use std::error::Error;
use std::fs;
use std::io::Write as _;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.split_first() {
        Some((word, [])) if word == "seeds" => write_seeds(),
        Some((word, [])) if word == "targets" => {
            let line = |target: &Target| format!("{} {}\n", target.name, target.length_max);
            let lines: String = TARGETS.iter().map(line).collect();
            Ok(std::io::stdout().lock().write_all(lines.as_bytes())?)
        }
        Some((name, files)) if !files.is_empty() => {
            let target = target(name).ok_or_else(|| format!("there is no target `{name}`"))?;
            for file in files {
                (target.run)(&fs::read(file)?);
            }
            Ok(())
        }
        _ => Err("usage: layby-fuzz targets, layby-fuzz seeds, or layby-fuzz TARGET FILE…".into()),
    }
}

/// Writes the seeds of this version into the corpora, beside what fuzzers have found.
fn write_seeds() -> Result<(), Box<dyn Error>> {
    for target in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        fs::create_dir_all(&folder)?;
        for (name, bytes) in (target.seeds)() {
            fs::write(folder.join(name), bytes)?;
        }
    }
    Ok(())
}
