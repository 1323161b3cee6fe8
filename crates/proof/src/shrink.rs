//! Makes a failing life short: acts that it fails without are left out.
//!
//! How: delta debugging (Zeller and Hildebrandt 2002, without the complements' granularity rules):
//! ever smaller runs of acts are left out where the life still fails without them.
//! Invariant: what comes back fails. Cost: some hundred lives at most.
//! Not for: keeping the very same failure; another one found on the way is a failure as well.

use crate::plan::Life;
use crate::timeline::Timeline;
use crate::world::{Failure, live};

/// Lives that shrinking may take.
const LIVES_MAX: u32 = 600;

/// The shortest life found that fails, and how.
#[must_use]
pub fn shrink(life: &Life, failure: Failure) -> (Life, Failure) {
    let (mut best, mut failure) = (life.clone(), failure);
    best.acts.truncate(failure.act + 1);
    let mut lives = 0;
    let mut run = best.acts.len() / 2;
    while run > 0 {
        let mut at = 0;
        let mut is_shorter = false;
        while at < best.acts.len() && lives < LIVES_MAX {
            let mut shorter = best.clone();
            let end = (at + run).min(shorter.acts.len());
            shorter.acts.drain(at..end);
            lives += 1;
            match live(&shorter, &mut Timeline::default()) {
                Err(found) => {
                    shorter.acts.truncate(found.act + 1);
                    (best, failure, is_shorter) = (shorter, found, true);
                }
                Ok(_) => at += run,
            }
        }
        if !is_shorter || run > 1 {
            run /= 2;
        }
    }
    (best, failure)
}
