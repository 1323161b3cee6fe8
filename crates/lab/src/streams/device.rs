//! A multi-stream device under a tagged load: how much it programs for what is written.
//!
//! How: the device is filled in order and aged by random pages; then the load is replayed, through
//! a policy or, until there is one, in stream 0. Only its last part is measured.
//! Invariant: every scheme has the same device, the same low-water mark and the same writes.
//! Cost: some ten million pages a second.

use super::policy::{NoStreams, Part, Sector, StreamPolicy, Write};
use super::workloads::PAGE_SECTORS;
use layby_sim::device::flash::{
    Configuration, CopyPlacement, Flash, Geometry, LogicalPage, Preconditioning, Stream,
};
use layby_types::Rng;
use std::ops::Range;

/// Streams of the device: the paper's.
pub(super) const STREAMS: u16 = 16;
/// Pages of a block, as in the paper; of 4 KiB here. Fewer where there would be too few blocks.
const PAGES_PER_BLOCK: u32 = 64;
/// Blocks below which the open ones of sixteen streams would weigh too much.
const BLOCKS_MIN: u32 = 2048;
/// Physical over logical pages, times ten thousand: 11 % of the medium are spare.
const PHYSICAL: u64 = 11_236;

/// How long the parts of a replay are, in capacities of the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Phases {
    /// FIOS watches, and writes without streams.
    pub(super) training: f64,
    /// With streams, until the device has settled.
    pub(super) settling: f64,
    /// Measured.
    pub(super) measured: f64,
}

impl Phases {
    pub(super) const USUAL: Phases = Phases { training: 1.5, settling: 1.0, measured: 2.0 };

    pub(super) fn total(&self) -> f64 {
        self.training + self.settling + self.measured
    }
}

/// The device that every scheme gets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device {
    /// Pages that the host may address.
    pub(super) pages: u32,
    /// Where cleaning copies to.
    pub(super) copies: CopyPlacement,
    /// Of its ageing.
    pub(super) seed: u64,
}

impl Device {
    fn flash(&self) -> Flash {
        let physical = u64::from(self.pages) * PHYSICAL / 10_000;
        let per_block = (self.pages / BLOCKS_MIN).max(4).next_power_of_two().min(PAGES_PER_BLOCK);
        let geometry = Geometry {
            page_bytes: Geometry::PAGE_BYTES_DEFAULT,
            pages_per_block: per_block,
            logical_pages: self.pages,
            blocks: physical.div_ceil(u64::from(per_block)) as u32,
            reserve_blocks: 0,
        };
        let blocks_per_stream = if self.copies == CopyPlacement::Shared { 1 } else { 2 };
        let configuration = Configuration {
            streams: STREAMS,
            copies: self.copies,
            // The same for one stream as for all, or more streams would mean more spare.
            free_blocks_min: u32::from(STREAMS) * blocks_per_stream + 2,
            ..Configuration::plain(geometry)
        };
        let mut flash = Flash::new(&configuration).expect("constants make a device");
        let aging = Preconditioning {
            random_passes: 1,
            random_passes_max: 1,
            ..Preconditioning::whole(&flash)
        };
        let aged = flash.precondition(&aging, &mut Rng::new(self.seed));
        aged.expect("a new device takes its capacity");
        flash
    }
}

/// What a replay cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    /// Pages programmed over pages written, in the measured part.
    pub(super) amplification: f64,
    /// Streams that writes of the measured part went to.
    pub(super) streams: u32,
}

/// Replays `writes`; `policy` is in use from the start where it learns as it goes, and else (when
/// `trained`) from the end of the training part on.
pub(super) fn replay(
    device: &Device,
    writes: &[Write],
    phases: &Phases,
    policy: &mut dyn StreamPolicy,
    trained: bool,
) -> Outcome {
    let mut flash = device.flash();
    let base = flash.statistics().host_pages;
    let pages = |capacities: f64| (f64::from(device.pages) * capacities) as u64;
    let switch = if trained { pages(phases.training) } else { 0 };
    let measured_from = pages(phases.training + phases.settling);
    let (mut before, mut used) = (None, [false; STREAMS as usize]);
    let mut parts: Vec<Part> = Vec::new();
    for write in writes {
        let written = flash.statistics().host_pages - base;
        if before.is_none() && written >= measured_from {
            before = Some(flash.statistics());
        }
        if written < switch {
            NoStreams.tag(write, &mut parts);
        } else {
            policy.tag(write, &mut parts);
        }
        for part in &parts {
            used[usize::from(part.stream.0)] |= before.is_some();
            program(&mut flash, part);
        }
    }
    let since = flash.statistics().since(&before.unwrap_or_default());
    let streams = used.iter().filter(|used| **used).count() as u32;
    Outcome { amplification: since.write_amplification(), streams }
}

/// The pages that sectors lie in, whole or in part: what a device programs for them.
pub(super) fn pages_touched(first: Sector, sectors: u32) -> Range<u64> {
    let size = u64::from(PAGE_SECTORS);
    first.0 / size..(first.0 + u64::from(sectors)).div_ceil(size)
}

/// How many pages a write touches.
pub(super) fn page_count(write: &Write) -> u64 {
    let pages = pages_touched(write.first, write.sectors);
    pages.end - pages.start
}

/// Whole pages, as far as the part reaches.
fn program(flash: &mut Flash, part: &Part) {
    let pages = pages_touched(part.first, part.sectors);
    let (first, count) = (LogicalPage(pages.start as u32), pages.end - pages.start);
    let stream = Stream(part.stream.0);
    let written = flash.write_run(first, count as u32, stream);
    written.expect("a device without endurance and with room for its open blocks takes writes");
}

/// How many pages of the load FIOS may look at.
pub(super) fn training_writes<'a>(
    device: &Device,
    writes: &'a [Write],
    phases: &Phases,
) -> &'a [Write] {
    let pages = (f64::from(device.pages) * phases.training) as u64;
    let mut seen = 0;
    let end = writes.iter().position(|write| {
        seen += page_count(write);
        seen > pages
    });
    &writes[..end.unwrap_or(writes.len())]
}

#[cfg(test)]
mod tests {
    use super::super::policy::StreamNumber;
    use super::*;
    use layby_types::Nanos;

    /// Counts the writes that it tags.
    struct Counts(usize);

    impl StreamPolicy for Counts {
        fn streams(&self) -> u16 {
            STREAMS
        }
        fn tag(&mut self, write: &Write, parts: &mut Vec<Part>) {
            self.0 += 1;
            NoStreams.tag(write, parts);
            parts[0].stream = StreamNumber(1);
        }
    }

    /// Goal: FIOS trains on the writes that the device gets before streams are used, whatever
    /// pages they begin and end in. Method: random writes of sectors, some below a page, most of
    /// them misaligned; the writes left to the policy beside those that it was trained on.
    #[test]
    fn training_ends_where_streams_begin() {
        let phases = Phases { training: 0.5, settling: 0.1, measured: 0.1 };
        for seed in 1..=4 {
            let device = Device { pages: 4096, copies: CopyPlacement::Shared, seed };
            let mut rng = Rng::new(seed);
            let sectors_max = if seed == 1 { 1 } else { 24 };
            let write = |at| {
                let first = Sector(rng.below(4096 * 8 - 24));
                let sectors = rng.below(sectors_max) as u32 + 1;
                Write { at: Nanos(at), first, sectors }
            };
            let writes: Vec<Write> = (0..4000).map(write).collect();
            let mut counts = Counts(0);
            replay(&device, &writes, &phases, &mut counts, true);
            let untagged = writes.len() - counts.0;
            let watched = training_writes(&device, &writes, &phases).len();
            // A write that crosses the border is replayed without streams and not watched.
            assert!(
                (untagged - 1..=untagged).contains(&watched),
                "seed {seed}: {watched} writes watched, {untagged} without streams"
            );
        }
    }
}
