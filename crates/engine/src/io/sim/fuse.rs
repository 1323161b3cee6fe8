//! A simulated power cut at a chosen step, wherever in the node's code that step lies.
//!
//! How: every step that a device could notice (an operation begun or ended, a store to mapped
//! memory, a flush of its cache lines) burns the fuse; the chosen one unwinds the node's stack with
//! [`PowerCut`], past every line that would have run next.
//! Invariant: with the same seed and calls the same step is the last.
//! Cost: one lock per step. Not for: real machines.

use crate::io::OperationKind;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

/// What unwinds out of a node whose power was cut: catch it with `catch_unwind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerCut;

/// Something that a device notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Deed {
    /// An operation was handed over.
    Begun(OperationKind),
    /// An operation took effect; nobody has been told.
    Ended(OperationKind),
    /// Bytes of mapped memory were replaced.
    Stored,
    /// Cache lines of mapped memory were flushed.
    Persisted,
}

/// A deed and the disk it concerned, by number; sockets have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Step {
    /// Which disk.
    pub disk: Option<u32>,
    /// What was done.
    pub deed: Deed,
}

/// When the power is to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutAt {
    /// At the n-th step from now on, counting from one.
    Any(u32),
    /// At the n-th step of this kind from now on, counting from one.
    Only(Step, u32),
}

/// The last two steps before a power cut: the window that it fell into.
pub type Window = (Option<Step>, Step);

#[derive(Debug, Default)]
struct State {
    cut: Option<CutAt>,
    last: Option<Step>,
    seen: BTreeSet<Window>,
    cuts: BTreeSet<Window>,
    steps: u64,
}

/// The fuse of one simulated machine, shared with its disks' mappings, and with devices of it that
/// a test brings itself.
#[derive(Debug, Default)]
pub struct Fuse(Mutex<State>);

impl Fuse {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("the fuse unwinds with its lock released")
    }

    pub(super) fn set(&self, cut: Option<CutAt>) {
        self.state().cut = cut;
    }

    /// Steps so far.
    pub(super) fn steps(&self) -> u64 {
        self.state().steps
    }

    /// The windows that were passed, and those in which the power was cut.
    pub(super) fn windows(&self) -> (BTreeSet<Window>, BTreeSet<Window>) {
        let state = self.state();
        (state.seen.clone(), state.cuts.clone())
    }

    /// Takes note of a step. Call it with no lock held that the test needs: it may not come back,
    /// but unwind with [`PowerCut`].
    pub fn burn(&self, step: Step) {
        let mut state = self.state();
        state.steps += 1;
        let window = (state.last.replace(step), step);
        state.seen.insert(window);
        let is_cut = match &mut state.cut {
            Some(CutAt::Any(left)) => count_down(left),
            Some(CutAt::Only(only, left)) if *only == step => count_down(left),
            _ => false,
        };
        if is_cut {
            state.cut = None;
            state.cuts.insert(window);
            drop(state);
            // Not a panic: no hook is to report it.
            std::panic::resume_unwind(Box::new(PowerCut));
        }
    }

    /// After a crash the next step follows nothing; a cut still to come may fall into recovery.
    pub(super) fn rest(&self) {
        self.state().last = None;
    }
}

fn count_down(left: &mut u32) -> bool {
    *left = left.saturating_sub(1);
    *left == 0
}
