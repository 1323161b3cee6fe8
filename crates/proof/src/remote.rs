//! A home that is no disk of the simulated machine: it ends calls late and in any order, and a
//! power cut leaves a prefix of what it has accepted.
//!
//! How: as a cloud's home does, it keeps a journal in the order of acceptance. A call ends some
//! questions after it was asked; while one waits, the home wakes the node, so as to be asked again.
//! Invariant: at least what a sync or a durable write covered is left by a power cut.
//! Cost: a copy of each write. Not for: errors, which the engine's own tests have.

use layby_engine::backing::RemoteBacking;
use layby_engine::control::{CommandError, OpenRemote};
use layby_engine::io::{Buffer, Waker};
use layby_types::{Backing, BackingDone, BackingOperation, Rng};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

/// Questions after which a call ends at the latest.
const PATIENCE: u64 = 24;

/// See the file's header; clones are one home.
#[derive(Clone)]
pub(crate) struct Remote(Arc<Mutex<State>>);

struct Call {
    token: u64,
    operation: BackingOperation<Buffer>,
    /// Questions until it ends.
    left: u64,
    /// How much of the journal there was when it was asked.
    covers: usize,
}

struct State {
    rng: Rng,
    /// What the bytes were when the journal began.
    base: Vec<u8>,
    bytes: Vec<u8>,
    journal: Vec<(u64, Vec<u8>)>,
    durable: usize,
    asked: Vec<Call>,
    waker: Option<Waker>,
}

impl Remote {
    /// A home of zeros, whose chance follows from `seed`.
    pub(crate) fn new(length: u64, seed: u64) -> Remote {
        let base = vec![0; usize::try_from(length).expect("a small volume")];
        let (bytes, rng) = (base.clone(), Rng::new(seed));
        let (journal, asked) = (Vec::new(), Vec::new());
        Remote(Arc::new(Mutex::new(State {
            rng,
            base,
            bytes,
            journal,
            durable: 0,
            asked,
            waker: None,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no power is cut within")
    }

    /// The power is cut.
    pub(crate) fn crash(&self) {
        let state = &mut *self.state();
        let volatile = (state.journal.len() - state.durable) as u64;
        state.journal.truncate(state.durable + state.rng.below(volatile + 1) as usize);
        for (offset, bytes) in state.journal.drain(..) {
            state.base[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        state.bytes.clone_from(&state.base);
        (state.durable, state.waker) = (0, None);
        state.asked.clear();
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a remote home")
    }
}

impl OpenRemote for Remote {
    fn name(&self) -> String {
        "far".to_owned()
    }

    fn open(&self, waker: Waker) -> Result<RemoteBacking, CommandError> {
        self.state().waker = Some(waker);
        Ok(Box::new(self.clone()))
    }
}

impl Backing<Buffer> for Remote {
    fn submit(&mut self, token: u64, operation: BackingOperation<Buffer>) {
        let state = &mut *self.state();
        let left = state.rng.below(PATIENCE);
        state.asked.push(Call { token, operation, left, covers: state.journal.len() });
        state.wake();
    }

    fn poll(&mut self) -> Option<BackingDone<Buffer>> {
        let state = &mut *self.state();
        let ended = state.asked.iter().position(|call| call.left == 0);
        let done = ended.map(|index| state.asked.remove(index)).map(|call| state.end(call));
        if done.is_none() {
            state.asked.iter_mut().for_each(|call| call.left -= 1);
        }
        state.wake();
        done
    }

    fn name(&self) -> &str {
        "far"
    }
}

impl State {
    /// Whoever waits is to be asked again.
    fn wake(&self) {
        if let Some(waker) = self.waker.as_ref().filter(|_| !self.asked.is_empty()) {
            waker.wake();
        }
    }

    fn accept(&mut self, offset: u64, bytes: Vec<u8>) {
        self.bytes[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        self.journal.push((offset, bytes));
    }

    fn end(&mut self, call: Call) -> BackingDone<Buffer> {
        let Call { token, operation, covers, .. } = call;
        let (mut returned, mut extents) = (None, Vec::new());
        match operation {
            BackingOperation::Read { offset, mut buffer } => {
                let length = buffer.len();
                buffer.copy_from_slice(&self.bytes[offset as usize..][..length]);
                returned = Some(buffer);
            }
            BackingOperation::Write { offset, buffer, durable } => {
                self.accept(offset, buffer.to_vec());
                self.durable = if durable { self.journal.len() } else { self.durable };
                returned = Some(buffer);
            }
            BackingOperation::Zero { offset, length, .. } => {
                self.accept(offset, vec![0; length as usize]);
            }
            BackingOperation::Extents { offset, length } => extents.push((offset, length, true)),
            BackingOperation::Sync => self.durable = self.durable.max(covers),
        }
        BackingDone { token, result: Ok(()), buffer: returned, extents }
    }
}
