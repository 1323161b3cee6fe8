//! Brings a fresh device into the state of one in use.
//!
//! How: sequential passes over the part to be filled, then uniform random pages, then more of these
//! until every block was erased often enough and a pass amplifies like the one before.
//! Invariant: it ends with cleaning at work, or says that it does not. Cost: some drive writes.

use super::ftl::{Failure, Flash, LogicalPage, Stream};
use layby_types::Rng;

/// How a device is filled and aged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preconditioning {
    /// Pages from the first that are filled; the rest stays unmapped.
    pub pages: u32,
    /// Times these are written in order.
    pub sequential_passes: u32,
    /// Times as many pages are written at random, at the least.
    pub random_passes: u32,
    /// Further random passes at most, until cleaning is reached and steady.
    pub random_passes_max: u32,
    /// Two passes count as alike when their write amplifications differ by less, relatively.
    pub steady_within: f64,
}

impl Preconditioning {
    /// Random passes beyond which nobody waits for a steady state.
    pub const RANDOM_PASSES_MAX: u32 = 100;

    /// One sequential and three random passes over the whole device, as in the HotStorage paper.
    #[must_use]
    pub fn whole(flash: &Flash) -> Self {
        Preconditioning {
            pages: flash.logical_pages(),
            sequential_passes: 1,
            random_passes: 3,
            random_passes_max: Self::RANDOM_PASSES_MAX,
            steady_within: 0.05,
        }
    }
}

/// What a device was like at the end of its preconditioning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preconditioned {
    /// Random passes that it took.
    pub random_passes: u32,
    /// Write amplification of the last random pass.
    pub write_amplification: f64,
    /// Whether every block on average was erased once, and the last two passes were alike.
    pub steady: bool,
}

impl Flash {
    /// Fills and ages the device by `plan`, drawing pages from `rng`, in stream 0. Wear
    /// levelers that move data wait, and what is written is not the host's own. Figures of what
    /// follows are differences to [`Flash::statistics`] at its end.
    ///
    /// # Errors
    /// The device failed.
    pub fn precondition(
        &mut self,
        plan: &Preconditioning,
        rng: &mut Rng,
    ) -> Result<Preconditioned, Failure> {
        self.set_leveling(false);
        self.set_owning(false);
        let outcome = self.fill_and_age(plan, rng);
        self.set_owning(true);
        self.set_leveling(true);
        outcome
    }
    fn fill_and_age(
        &mut self,
        plan: &Preconditioning,
        rng: &mut Rng,
    ) -> Result<Preconditioned, Failure> {
        let pages = plan.pages.clamp(1, self.logical_pages());
        for _ in 0..plan.sequential_passes {
            self.write_run(LogicalPage(0), pages, Stream::default())?;
        }
        let mut outcome =
            Preconditioned { random_passes: 0, write_amplification: 0.0, steady: false };
        while outcome.random_passes < plan.random_passes
            || (!outcome.steady && outcome.random_passes < plan.random_passes_max)
        {
            let pass = self.random_pass(pages, rng)?;
            let change = (pass - outcome.write_amplification) / pass;
            let aged = self.statistics().erases() >= self.medium.blocks.len() as u64;
            outcome.steady = aged && change.abs() < plan.steady_within;
            outcome.write_amplification = pass;
            outcome.random_passes += 1;
        }
        Ok(outcome)
    }
    fn random_pass(&mut self, pages: u32, rng: &mut Rng) -> Result<f64, Failure> {
        let before = self.statistics();
        for _ in 0..pages {
            self.write(LogicalPage(rng.below(pages.into()) as u32), Stream::default())?;
        }
        Ok(self.statistics().since(&before).write_amplification())
    }
}
