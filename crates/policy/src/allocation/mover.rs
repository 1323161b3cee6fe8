//! Whether moving shares pays.
//!
//! How: moved room is filled again block by block, and each block costs a transfer. Shares move
//! when an objective that was missed will be met, or when the predicted gain is a noticeable part
//! of the cost and pays for the transfers within the payback time. Invariant: without a gain
//! nothing moves, so equal predictions never make shares swing. Cost: constant per service.

use super::{Cost, Problem, Shares};
use layby_types::Nanos;

/// When a gain is worth its transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoverLimits {
    /// The least gain, in thousandths of the present cost.
    pub gain_permille: u32,
    /// What moving a block costs, in the time of whoever waits for it.
    pub block_move: Nanos,
    /// The time in which the gain has to pay for the transfers.
    pub payback: Nanos,
}

impl MoverLimits {
    /// The least of each limit.
    pub const MIN: MoverLimits =
        MoverLimits { gain_permille: 0, block_move: Nanos::ZERO, payback: Nanos::from_secs(1) };
    /// The most of each limit.
    pub const MAX: MoverLimits = MoverLimits {
        gain_permille: 1000,
        block_move: Nanos::from_secs(1),
        payback: Nanos::from_secs(24 * 3600),
    };
    /// What holds where nobody says otherwise: 2 %, a transfer from an SSD, one minute.
    pub const DEFAULT: MoverLimits = MoverLimits {
        gain_permille: 20,
        block_move: Nanos::from_micros(100),
        payback: Nanos::from_secs(60),
    };

    /// Whether every limit lies within its range.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        (Self::MIN.gain_permille..=Self::MAX.gain_permille).contains(&self.gain_permille)
            && (Self::MIN.block_move..=Self::MAX.block_move).contains(&self.block_move)
            && (Self::MIN.payback..=Self::MAX.payback).contains(&self.payback)
    }
}

impl Default for MoverLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What was found, with its reasons: the metrics show them beside the outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Shares shall move.
    pub is_move: bool,
    /// The predicted cost of the present shares.
    pub now: Cost,
    /// The predicted cost of the proposed shares.
    pub proposed: Cost,
    /// Blocks of room that would change hands.
    pub blocks_moved: u64,
}

impl MoverLimits {
    /// Whether to move from the shares `now` to `proposed`.
    #[must_use]
    pub fn decide(&self, problem: &Problem<'_>, now: &[Shares], proposed: &[Shares]) -> Decision {
        assert!(self.is_valid(), "{self:?} is out of range");
        let units = now.iter().flatten().zip(proposed.iter().flatten());
        let grown: u64 = units.map(|(now, new)| u64::from(new.saturating_sub(*now))).sum();
        let blocks_moved = grown * problem.unit_blocks;
        let (now, proposed) = (problem.cost(now), problem.cost(proposed));
        let gain = now.waiting - proposed.waiting;
        let meets_more = proposed.is_less(Cost { unmet: now.unmet, waiting: f64::NEG_INFINITY });
        let is_noticeable = gain > 0.0
            && proposed.is_less(now)
            && gain * 1000.0 >= now.waiting * f64::from(self.gain_permille);
        let pays =
            gain * self.payback.as_secs_f64() >= blocks_moved as f64 * self.block_move.0 as f64;
        Decision { is_move: meets_more || (is_noticeable && pays), now, proposed, blocks_moved }
    }
}
