//! The SSD level's wear: what its log writes is charged, kept across restarts, and reported.
//!
//! How: the cache owns the budget; after each round of work the core charges what the log's
//! counters have grown by. The log's checkpoints carry the budget's state as a note, with the time
//! of day, and recovery adds what was written behind the newest checkpoint.
//! Invariant: a byte is charged once, in the life that wrote it or by the recovery after it.
//! Cost: one comparison per round. Not for: levels that do not wear.

use super::{Core, Level};
use crate::control::WearStats;
use crate::store::{LogCounters, Recovered};
use layby_cache::wear::{DAY, Endurance, Wear, WearLimits, WearState};
use layby_types::{LevelIndex, Nanos};

/// What a level's wear is reckoned with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WearPlan {
    /// This shard's part of the endurance; without one, bytes are counted and never refused.
    pub endurance: Option<Endurance>,
    /// Seconds since 1970 when the shard started; 0 where nobody knows.
    pub started_unix: u64,
}

/// The log's counters up to which the level was charged, and how to tell the time.
#[derive(Debug, Default)]
pub(super) struct WearMeter {
    plan: WearPlan,
    started: Nanos,
    charged: u64,
}

const NOTE_BYTES: usize = 64;
/// What the last eight bytes of a note say when there is one: the layout below.
const NOTE_KIND: u64 = 1;

impl WearMeter {
    fn unix(&self, now: Nanos) -> u64 {
        match self.plan.started_unix {
            0 => 0,
            started => started + now.since(self.started).0 / 1_000_000_000,
        }
    }
}

impl Core {
    /// Begins to count where the level's last life ended.
    pub(super) fn start_wear(&mut self, plan: WearPlan, found: &Recovered) {
        let Some(level) = self.ssd_level() else { return };
        let now = self.now;
        self.wear = WearMeter { plan, started: now, charged: 0 };
        let limits = WearLimits::DEFAULT;
        let mut wear = match decode(&found.note) {
            None => Wear::new(plan.endurance, limits, now),
            Some((state, unix)) => {
                // A clock that went back, or nobody's, says nothing of the time between.
                let known = unix > 0 && plan.started_unix > unix;
                let away = if known { plan.started_unix - unix } else { 0 };
                let away = Nanos(away.min(365 * 86_400) * 1_000_000_000);
                Wear::resume(plan.endurance, limits, &state, away, now)
            }
        };
        wear.charge(found.bytes_since_note, now);
        self.cache.set_wear(level, wear);
    }

    /// Charges what the log wrote since the last time.
    pub(super) fn charge_wear(&mut self) {
        let Some((level, log)) = self.log() else { return };
        let written = log.counters().bytes_device();
        if written > self.wear.charged {
            let level = LevelIndex(level as u8);
            self.cache.charge_wear(level, written - self.wear.charged, self.now);
            self.wear.charged = written;
        }
    }

    /// Has a checkpoint that may begin in this turn keep what is known by now.
    pub(super) fn note_wear(&mut self) {
        self.charge_wear();
        if self.log().is_none_or(|(_, log)| log.next_deadline() > self.now) {
            return;
        }
        let (now, Some(level)) = (self.now, self.ssd_level()) else { return };
        let Some((wear, _)) = self.cache.wear(level) else { return };
        let note = encode(&wear.state(now), self.wear.unix(now));
        if let Some(log) = self.log_mut() {
            log.set_note(note);
        }
    }

    /// The cache holds as much as the segments in use have room for.
    pub(super) fn fit_ssd_level(&mut self) {
        if let Some((level, log)) = self.log() {
            let (level, slots) = (LevelIndex(level as u8), log.slots_usable());
            self.cache.limit_level(level, slots);
        }
    }

    /// From now on the cache says what the log's cleaner does with live blocks.
    pub(super) fn own_cleaning(&mut self) {
        let Some(Level::Ssd(log)) =
            self.levels.iter_mut().find(|level| matches!(level, Level::Ssd(_)))
        else {
            return;
        };
        let limits = log.cleaning_limits();
        log.ask_owner(limits.cold_percent > 0);
        self.cache.set_cleaning(limits);
    }

    pub(super) fn ssd_level(&self) -> Option<LevelIndex> {
        let found = self.levels.iter().position(|level| matches!(level, Level::Ssd(_)))?;
        Some(LevelIndex(found as u8))
    }

    pub(super) fn wear_stats(&self, level: usize, log: &LogCounters) -> Option<WearStats> {
        let (wear, refused) = self.cache.wear(LevelIndex(level as u8))?;
        let [short, written, promoted, cleaned, cleaned_old] = log.bytes_by_stream;
        Some(WearStats {
            bytes_written: short + written,
            bytes_promoted: promoted,
            bytes_cleaned: cleaned + cleaned_old,
            bytes_descriptors: log.bytes_descriptors(),
            bytes_checkpoints: log.bytes_checkpoint,
            bytes_lifetime: wear.written(),
            endurance_bytes: wear.endurance().map(|endurance| endurance.bytes),
            daily_budget_bytes: wear.endurance().map(Endurance::daily_bytes),
            budget_left_bytes: wear.balance(self.now),
            daily_rates: wear.daily_rates(self.now),
            copies_refused: refused.copies,
            dirty_passed_by: refused.dirty,
        })
    }
}

fn encode(state: &WearState, unix: u64) -> [u8; NOTE_BYTES] {
    let [hour, day, week] = state.averages.map(f64::to_bits);
    let balance = state.balance.cast_unsigned();
    let words = [state.written, balance, state.seen.0, hour, day, week, unix, NOTE_KIND];
    let mut note = [0; NOTE_BYTES];
    for (bytes, word) in note.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    note
}

fn decode(note: &[u8; NOTE_BYTES]) -> Option<(WearState, u64)> {
    let word = |index: usize| {
        let bytes = note[8 * index..8 * index + 8].try_into().expect("eight bytes are eight");
        u64::from_le_bytes(bytes)
    };
    let state = WearState {
        written: word(0),
        balance: word(1).cast_signed(),
        seen: Nanos(word(2)),
        averages: [3, 4, 5].map(|index| f64::from_bits(word(index))),
    };
    (word(7) == NOTE_KIND).then_some((state, word(6)))
}

/// Days until `left` bytes are written at `per_day` bytes a day.
#[must_use]
pub fn days_left(left: u64, per_day: f64) -> Option<f64> {
    let longest = Endurance::LIFE_MAX.0 as f64 / DAY.0 as f64;
    (per_day > 0.0).then(|| (left as f64 / per_day).min(longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a note comes back as it was, and none is none. Method: both.
    #[test]
    fn notes_come_back() {
        let state =
            WearState { written: 7 << 40, balance: -5, seen: DAY, averages: [0.5, 1e12, f64::MAX] };
        assert_eq!(decode(&encode(&state, 1_800_000_000)), Some((state, 1_800_000_000)));
        assert_eq!(decode(&[0; NOTE_BYTES]), None);
    }
}
