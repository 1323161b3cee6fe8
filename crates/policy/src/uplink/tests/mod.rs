//! The uplink beside a model of it, timetables and admission beside arithmetic by hand.

mod admission;
mod by_hand;
mod probes;
mod properties;
mod timetable;

use super::*;
use crate::forecast::Bandwidth;
use alloc::vec::Vec;
use layby_types::Rng;

const CRITICAL: ClassId = ClassId(0);
const NORMAL: ClassId = ClassId(1);
const BULK: ClassId = ClassId(2);

fn at(now: Nanos) -> When {
    When { now, time_of_day: TimeOfDay::from_secs(now.as_secs()) }
}

fn outlook(near: f64, long: f64) -> Outlook {
    Outlook { near: Bandwidth::new(near), long: Bandwidth::new(long), error: 0.0 }
}

/// One of critical, normal and bulk each; bulk is patient. Volume `n` is of class `n % 3`.
fn three_classes(limits: UplinkLimits, volumes: u32) -> Uplink {
    let mut uplink = Uplink::new(limits);
    let plan = |share, is_patient| ClassPlan { share, is_patient };
    uplink.set_class(CRITICAL, plan(Share::Strict, false));
    uplink.set_class(NORMAL, plan(Share::Weight(300), false));
    uplink.set_class(BULK, plan(Share::Weight(100), true));
    for volume in 0..volumes {
        let class = ClassId((volume % 3) as u8);
        uplink.set_volume(VolumeId(volume), VolumePlan { class, bounds: DirtyBounds::DEFAULT });
    }
    uplink
}

fn upload(id: u64, volume: u32, bytes: u64, since: Nanos) -> Upload {
    Upload { id: UploadId(id), volume: VolumeId(volume), bytes, since }
}
