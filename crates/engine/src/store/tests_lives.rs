//! How long the log says that what it writes is likely to live.
//!
//! How: a log over a simulated disk that notes under which life each write came. Cost:
//! milliseconds.

use super::log_layout::SegmentHeader;
use super::tests_clean::Churn;
use super::{SegmentPlan, Stream};
use crate::io::WriteLife;
use layby_types::{BlockSize, Rng, Slot};
use std::collections::BTreeSet;

/// 32 segments of eight blocks.
const LENGTH: u64 = 265 * BlockSize::MIN.bytes() as u64;

/// Goal: every write to a segment goes under the life of the stream that the segment's header
/// names, checkpoints under the shortest, and all four occur. Method: new blocks, copies and
/// overwrites of a full log until it cleans, with few streams and with all; after each, what was
/// noted beside what lies on the disk.
#[test]
fn each_stream_has_its_life() {
    let few = lives_seen(SegmentPlan::default());
    assert_eq!(few, BTreeSet::from(WriteLife::ALL));
    let all = SegmentPlan { has_all_streams: Some(true), ..SegmentPlan::default() };
    assert_eq!(lives_seen(all), BTreeSet::from(WriteLife::ALL));
}

fn lives_seen(plan: SegmentPlan) -> BTreeSet<WriteLife> {
    let mut churn = Churn::with(5, LENGTH, BlockSize::MIN, plan);
    let (mut rng, mut seen) = (Rng::new(5), BTreeSet::new());
    let (disk, block) = (churn.log.disk(), BlockSize::MIN.len());
    let slots = churn.log.slot_count();
    churn.io.note_lives();
    for step in 0..6 * slots {
        let slot = if step < slots { step } else { rng.below(slots.into()) as u32 };
        let stream = if rng.chance(1, 3) { Stream::Promote } else { Stream::Write };
        churn.write(Slot(slot), stream).expect("there is room");
        churn.rest();
        let bytes = churn.io.peek(disk);
        for (_, offset, life) in churn.io.take_lives() {
            let life = life.expect("whatever a log writes while it runs has a life");
            let location = (offset - churn.log.offset_of(0)) as usize / block;
            let expected = match churn.log.geometry.segment_of(location as u32) {
                None => WriteLife::Short,
                Some(index) => {
                    let first = churn.log.geometry.segment_first(index);
                    let at = churn.log.offset_of(first) as usize;
                    let page = &bytes[at..at + block];
                    let header = SegmentHeader::decode(page, churn.log.instance, index);
                    let header = header.expect("a segment that was written to has a header");
                    Stream::ALL[header.stream as usize].life(churn.log.has_all_streams())
                }
            };
            assert_eq!(life, expected, "a write at {offset}");
            seen.insert(life);
        }
    }
    seen
}
