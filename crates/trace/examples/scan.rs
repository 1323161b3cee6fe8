//! Reads a trace to its end and says how fast; what `docs/traces.md` reports is measured with it.
//!
//! `cargo run --release -p layby-trace --example scan -- TRACE [FORMAT]`. Nothing is done with the
//! records but adding them up. Not for: comparing formats of different contents.
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement prints a time")]

use layby_trace::{ReadOptions, Reader, open};
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let path = words.first().ok_or("name a trace")?;
    let format = words.get(1).map(|name| name.parse()).transpose()?;
    let start = Instant::now();
    let mut trace = open(Path::new(path), format, ReadOptions::default())?;
    let (mut batch, mut count, mut sum) = (Vec::new(), 0u64, 0u64);
    while trace.fill(&mut batch)? > 0 {
        count += batch.len() as u64;
        sum = batch.iter().fold(sum, |sum, record| sum ^ record.offset ^ record.length);
    }
    let seconds = start.elapsed().as_secs_f64();
    let rate = count as f64 / seconds / 1e6;
    println!("{}: {count} records in {seconds:.3} s, {rate:.1} M/s ({sum:x})", trace.format());
    Ok(())
}
