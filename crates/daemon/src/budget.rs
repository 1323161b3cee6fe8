//! What lower classes may have in a device's hands at first, from what was measured of it.
//!
//! How: where a class has a latency objective, budgets of outstanding work follow it; they begin
//! with what the device holds without making anybody wait, rather than with as much as they may.
//! Invariant: nothing changes where no class has an objective, since nothing would let a budget
//! grow again. Not for: keeping a promise over time; that is `policy::schedule`'s.

use layby_cache::CacheSpec;
use layby_cache::schedule::{Load, unqueued};
use layby_device::Model;

/// The part of one of `shards` in what the device called `name` holds.
pub(crate) fn of(devices: &[Model], name: &str, spec: &CacheSpec, shards: u8) -> Option<Load> {
    let has_objective = spec.classes.iter().any(|class| class.latency_objective.is_some());
    let device = devices.iter().find(|device| device.name == name).filter(|_| has_objective)?;
    let latency = device.read.max(device.write);
    let load = unqueued(device.channels, latency, device.channel_bytes_per_second);
    let shards = u32::from(shards);
    Some(Load { ios: load.ios.div_ceil(shards), bytes: load.bytes / u64::from(shards) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::MockNode;
    use layby_types::Nanos;

    fn spec(objective: &str) -> CacheSpec {
        let node = MockNode::new(&format!("[class.critical]\n{objective}"));
        node.control.view().checked_spec("this is a test").expect("valid")
    }

    /// Goal: shards share what a device holds, and only where a class has an objective. Method: a
    /// device of four channels under two shards.
    #[test]
    fn shards_share_what_the_device_holds() {
        let device = Model {
            name: "ssd".into(),
            read: Nanos::from_micros(50),
            write: Nanos::from_micros(100),
            channel_bytes_per_second: 1_000_000_000,
            channels: 4,
            dollars_per_tb: 0,
        };
        let with = spec("latency_objective = \"1ms\"");
        let devices = [device];
        assert_eq!(of(&devices, "ssd", &with, 2), Some(Load { ios: 2, bytes: 200_000 }));
        assert_eq!(of(&devices, "main", &with, 2), None);
        assert_eq!(of(&devices, "ssd", &spec("latency_objective = \"0s\""), 2), None);
    }
}
