//! A device as the papers describe one: latency, bandwidth, channels, price.
//!
//! How: an access takes the device's latency, which covers a block of 4 KiB, and, where a bandwidth
//! is known, the time of its further bytes.
//! Invariant: an access never takes less than its latency. Cost: a division.
//! Source: PADSA, Table I.

use alloc::string::{String, ToString};
use layby_types::Nanos;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// What a device costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// What people call it.
    pub name: String,
    /// An access's latency, reading up to [`LATENCY_BYTES`].
    pub read: Nanos,
    /// An access's latency, writing up to [`LATENCY_BYTES`].
    pub write: Nanos,
    /// Bytes per second that one channel moves beyond [`LATENCY_BYTES`]; 0 means that the latency
    /// is all, as in the papers.
    pub channel_bytes_per_second: u64,
    /// Accesses in service at once.
    pub channels: u16,
    /// Dollars per TB.
    pub dollars_per_tb: u32,
}

/// Bytes of an access that its latency covers: people measure latency with blocks of 4 KiB.
pub const LATENCY_BYTES: u64 = 4096;

/// Name, read and write latency in tenths of a nanosecond, price: PADSA, Table I.
pub const TABLE_I: [(&str, u64, u64, u32); 4] = [
    ("dram", 79, 79, 41_152),
    ("nvm", 700, 5_000, 11_176),
    ("ssd", 250_000, 2_000_000, 3_200),
    ("hdd", 50_000_000, 50_000_000, 693),
];

impl Model {
    /// A row of PADSA's Table I by its name, rounded to whole nanoseconds; `None` for another name.
    #[must_use]
    pub fn built_in(name: &str) -> Option<Model> {
        let row = TABLE_I.iter().find(|(known, ..)| *known == name)?;
        Some(Model {
            name: name.to_string(),
            read: Nanos(row.1.div_ceil(10)),
            write: Nanos(row.2.div_ceil(10)),
            channel_bytes_per_second: 0,
            channels: 1,
            dollars_per_tb: row.3,
        })
    }

    /// The paper's main storage: a mid-range SSD of ten times the cache SSD's latency.
    #[must_use]
    pub fn main_storage() -> Model {
        let ssd = Model::built_in("ssd").expect("Table I has it");
        let (read, write) = (Nanos(ssd.read.0 * 10), Nanos(ssd.write.0 * 10));
        Model { name: "mid-range ssd".to_string(), read, write, ..ssd }
    }

    /// How long one access of `bytes` keeps a channel.
    #[must_use]
    pub fn service(&self, direction: Direction, bytes: u64) -> Nanos {
        let latency = match direction {
            Direction::Read => self.read,
            Direction::Write => self.write,
        };
        if self.channel_bytes_per_second == 0 {
            return latency;
        }
        let further = u128::from(bytes.saturating_sub(LATENCY_BYTES));
        let moving = further * 1_000_000_000 / u128::from(self.channel_bytes_per_second);
        latency.saturating_add(Nanos(moving.min(u128::from(u64::MAX)) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: Table I is what the paper prints. Method: its rows, to the nanosecond.
    #[test]
    fn table_i_is_the_papers() {
        let read = |name| Model::built_in(name).map(|model| (model.read.0, model.write.0));
        assert_eq!(read("dram"), Some((8, 8)));
        assert_eq!(read("nvm"), Some((70, 500)));
        assert_eq!(read("ssd"), Some((25_000, 200_000)));
        assert_eq!(read("hdd"), Some((5_000_000, 5_000_000)));
        assert_eq!(read("tape"), None);
        assert_eq!(Model::main_storage().read, Nanos(250_000));
    }

    /// Goal: bytes beyond a block take time, and only where a bandwidth is known. Method: one
    /// device, twice.
    #[test]
    fn bandwidth_adds_to_latency() {
        let mut ssd = Model::built_in("ssd").expect("Table I has it");
        assert_eq!(ssd.service(Direction::Read, 1 << 20), Nanos(25_000));
        ssd.channel_bytes_per_second = 1 << 30;
        assert_eq!(ssd.service(Direction::Read, 1 << 20), Nanos(25_000 + 972_747));
        assert_eq!(ssd.service(Direction::Read, 4096), Nanos(25_000));
        assert_eq!(ssd.service(Direction::Write, 512), Nanos(200_000));
    }
}
