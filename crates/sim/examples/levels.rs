//! Replays a trace through three levels and says how fast: for profiles of the hot path.
//!
//! `cargo run --release -p layby-sim --example levels -- TRACE SLOTS`, where the SSD gets SLOTS,
//! the NVM a quarter and the DRAM a sixteenth of them; eight services, half of them critical. Not
//! for: claims; those are measured with `cargo xtask bench replay`.
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement prints a time")]

use layby_sim::levels::{PadsaReplay, PadsaSetup};
use layby_sim::single::References;
use layby_trace::{ReadOptions, Reader, open};
use layby_types::BlockSize;
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let path = words.first().ok_or("name a trace")?;
    let slots: u32 = words.get(1).ok_or("say how many slots")?.parse()?;
    let start = Instant::now();
    let mut trace = open(Path::new(path), None, ReadOptions::default())?;
    let mut references = References::new(trace.unit(), BlockSize::DEFAULT);
    let (services, critical) = (Some(8), (0..4).collect());
    let slots = [slots / 16, slots / 4, slots];
    let mut replay = PadsaReplay::new(PadsaSetup { slots, services, critical, seed: 1 })?;
    let (mut records, mut count, mut done) = (Vec::new(), 0, Ok(()));
    while trace.fill(&mut records)? > 0 {
        references.cut(&records, |batch| {
            count += batch.len();
            done = done.and_then(|()| replay.on_batch(batch));
        })?;
    }
    done?;
    let seconds = start.elapsed().as_secs_f64();
    let report = replay.report();
    let hits: u64 = report.volumes.values().flat_map(|volume| volume.hits).sum();
    let rate = count as f64 / seconds / 1e6;
    println!("{count} references in {seconds:.2} s, {rate:.2} M/s, {hits} hits");
    Ok(())
}
