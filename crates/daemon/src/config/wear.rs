//! How long a flash level shall last, as it is written: bytes in its life, or drive writes per day.
//!
//! How: `endurance` is the maker's TBW for the part of the device that the level takes, and
//! `drive_writes_per_day` the same by the level's size; `life` spreads it over time.
//! Invariant: an endurance that is handed out lies within the policy's bounds.

use super::checks::{Place, Problem};
use super::{Kind, Size, Time};
use layby_cache::wear::{DAY, Endurance};

/// Drive writes per day at least.
pub(super) const DRIVE_WRITES_MIN: f64 = 0.01;
/// Drive writes per day at most.
pub(super) const DRIVE_WRITES_MAX: f64 = 100.0;

/// The three keys of a level's table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WearKeys {
    pub(super) endurance: Option<Size>,
    pub(super) drive_writes_per_day: Option<f64>,
    pub(super) life: Option<Time>,
}

impl WearKeys {
    /// What they say of level number `index`.
    pub(super) fn read(
        self,
        index: usize,
        kind: Kind,
        size: u64,
    ) -> Result<Option<Endurance>, Problem> {
        let refused = |key, cause: String, hint: &str| {
            Err(Problem::new(Place::Level(index), key, cause, hint.to_owned()))
        };
        let life = self.life.map_or(Endurance::LIFE_DEFAULT, |life| life.0);
        let bytes = match (self.endurance, self.drive_writes_per_day) {
            (None, None) if self.life.is_none() => return Ok(None),
            (None, None) => {
                let cause = "how long a level lasts depends on what it endures".to_owned();
                return refused("life", cause, "write `endurance` or `drive_writes_per_day`, too");
            }
            (Some(_), Some(_)) => {
                let cause = "`endurance` says the same in bytes".to_owned();
                return refused("drive_writes_per_day", cause, "write one of the two");
            }
            (Some(Size(bytes)), None) => bytes,
            (None, Some(rate)) if !(DRIVE_WRITES_MIN..=DRIVE_WRITES_MAX).contains(&rate) => {
                let cause = format!("{rate} is outside {DRIVE_WRITES_MIN} to {DRIVE_WRITES_MAX}");
                return refused("drive_writes_per_day", cause, "write a number such as 1.0");
            }
            (None, Some(rate)) => (size as f64 * rate * life.0 as f64 / DAY.0 as f64) as u64,
        };
        let key = if self.endurance.is_some() { "endurance" } else { "drive_writes_per_day" };
        if kind != Kind::Ssd {
            let cause = format!("a level of kind {kind:?} does not wear");
            return refused(key, cause, "leave it out, or give it to the level of kind ssd");
        }
        if !(Endurance::LIFE_MIN..=Endurance::LIFE_MAX).contains(&life) {
            let (least, most) = (Endurance::LIFE_MIN, Endurance::LIFE_MAX);
            let cause = format!("{life} is outside {least} to {most}");
            return refused("life", cause, "write a time such as 1825d");
        }
        if !(Endurance::BYTES_MIN..=Endurance::BYTES_MAX).contains(&bytes) {
            let (least, most) = (Size(Endurance::BYTES_MIN), Size(Endurance::BYTES_MAX));
            let cause = format!("{} is outside {least} to {most}", Size(bytes));
            return refused(key, cause, "write a size such as 600TiB");
        }
        Ok(Some(Endurance { bytes, life }))
    }
}
