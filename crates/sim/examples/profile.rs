//! Replays a trace and says how fast: for profiles of the hot paths.
//!
//! `cargo run --release -p layby-sim --example profile -- TRACE SLOTS [POLICY]`: one level under a
//! policy; without one, three levels, where the SSD gets SLOTS, the NVM a quarter and the DRAM a
//! sixteenth of them, with eight services, half of them critical. Not for: claims; those are
//! measured with `cargo xtask bench replay`.
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement prints a time")]

use layby_sim::levels::{PadsaDevices, PadsaReplay, PadsaSetup};
use layby_sim::policy::AdmissionKind;
use layby_sim::policy::registry::EvictionKind;
use layby_sim::single::{Batch, References, build};
use layby_trace::{ReadOptions, Reader, open};
use layby_types::BlockSize;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let path = words.first().ok_or("name a trace")?;
    let slots: u32 = words.get(1).ok_or("say how many slots")?.parse()?;
    let start = Instant::now();
    let (count, hits) = match words.get(2) {
        Some(name) => {
            let kind = EvictionKind::ALL.into_iter().find(|kind| kind.name() == name);
            let mut level = build(kind.ok_or("no such policy")?, AdmissionKind::All, slots, 1);
            let count = pass(path, &mut |batch| level.on_batch(batch))?;
            (count, level.counts().hits_all())
        }
        None => {
            let (services, critical) = (Some(8), (0..4).collect());
            let slots = [slots / 16, slots / 4, slots];
            let setup = {
                let devices = PadsaDevices::default();
                let admission = AdmissionKind::All;
                let block_size = BlockSize::DEFAULT;
                PadsaSetup { slots, admission, devices, block_size, services, critical, seed: 1 }
            };
            let (mut replay, mut done) = (PadsaReplay::new(setup)?, Ok(()));
            let count = pass(path, &mut |batch| done = done.and_then(|()| replay.on_batch(batch)))?;
            done?;
            let report = replay.report();
            (count, report.volumes.values().flat_map(|volume| volume.hits).sum())
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    let rate = count as f64 / seconds / 1e6;
    println!("{count} references in {seconds:.2} s, {rate:.2} M/s, {hits} hits");
    Ok(())
}

/// Hands every reference of the trace to `take`; how many there were.
fn pass(path: &str, take: &mut dyn FnMut(&Batch)) -> Result<usize, Box<dyn Error>> {
    let mut trace = open(Path::new(path), None, ReadOptions::default())?;
    let mut references = References::new(trace.unit(), BlockSize::DEFAULT);
    let (mut records, mut count) = (Vec::new(), 0);
    while trace.fill(&mut records)? > 0 {
        references.cut(&records, |batch| {
            count += batch.len();
            take(batch);
        })?;
    }
    Ok(count)
}
