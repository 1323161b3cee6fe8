//! Idle clients give their places to others when all are taken.
//!
//! How: each shard is asked for the one of its clients that has moved nothing for the longest time,
//! [`IDLE_MIN`] at least, until one has such a client and cuts it off.
//! Cost: a command per shard, while places are scarce.

use super::{Command, Control};
use layby_types::Nanos;

/// A client that has asked for something within this time is not idle.
const IDLE_MIN: Nanos = Nanos::from_secs(60);

impl Control {
    /// Cuts an idle client off; false where there is none.
    pub(crate) async fn drop_idle(&self) -> bool {
        for shard in 0..self.shards.len() {
            let dropped = self.ask(shard, |answer| Command::DropIdle(IDLE_MIN, answer)).await;
            if dropped.is_ok_and(|has_dropped| has_dropped) {
                return true;
            }
        }
        false
    }
}
