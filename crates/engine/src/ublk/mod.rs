//! Block devices of this host's kernel, served from here (ublk): its commands and its queues.
//!
//! How: [`Driver`] makes, starts, stops and removes devices; a [`Channel`] is one device's queue,
//! a ring of its own whose ends raise an event descriptor, so that a shard waits for it as for any
//! other event. The commands are few and fixed, so they are spelled out here: the crate `libublk`
//! would bring an asynchronous runtime, a generator of bindings and fifty packages.
//! Written from the public header `linux/ublk_cmd.h`; commands as numbered since Linux 6.4.
//! Invariant: memory that the kernel was told of outlives its use by the kernel.
//! Cost: a system call per turn with answers. Not for: knowing what a request means; the frontend
//! does.

mod channel;
mod driver;

pub use channel::Channel;
pub use driver::{
    Device, DeviceState, Driver, FEATURE_RECOVERY, FEATURE_REISSUE, FEATURES_NEEDED, NewDevice,
};

use rustix::io::Errno;
use std::time::Duration;

/// Longest that the kernel may take for a command that waits for nobody.
pub const COMMAND_TIME_MAX: Duration = Duration::from_secs(10);

/// Longest that a disk may take to end: what was written to it and not synced is written then.
pub const STOP_TIME_MAX: Duration = Duration::from_secs(60);

/// A command of the driver by its kind of transfer and its number, as `_IOR` and `_IOWR` encode
/// them for `'u'` and the bytes of its argument.
const fn encoded(transfer: u32, bytes: u32, number: u32) -> u32 {
    transfer << 30 | bytes << 16 | (b'u' as u32) << 8 | number
}
/// The caller reads.
const READS: u32 = 2;
/// The caller reads and writes.
const READS_WRITES: u32 = 3;

fn errno(result: i32) -> Result<i32, Errno> {
    if result < 0 { Err(Errno::from_raw_os_error(-result)) } else { Ok(result) }
}
