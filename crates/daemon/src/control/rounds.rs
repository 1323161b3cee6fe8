//! Reports of the shards, shared by all readers that wait for one.
//!
//! How: a reader waits for its turn. Where the round before it began after the reader had come, its
//! result is the reader's, too; else the reader makes the next round, and asks shard by shard.
//! Invariant: no result is older than the request that it answers, and no shard has two of these
//! commands at once, though readers leave in the middle of a round. Between the beginnings of a
//! round and of one for readers without rights lies [`ROUND_PERIOD`] at least.
//! Cost: a lock per reader; a reader without rights may wait for the period. A result is held until
//! no reader waits. Not for: commands that change something.

use super::{Awaited, answer_of};
use layby_engine::control::CommandError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Time from the beginning of a round until readers without rights have the next one begin.
pub const ROUND_PERIOD: Duration = Duration::from_millis(100);

/// When a reader's round may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At once: for the node's user, for root, and for what the node itself does.
    AtOnce,
    /// [`ROUND_PERIOD`] after the one before it: for readers without rights.
    Paced,
}

/// Rounds of a command that each shard answers with `A`, put together as `T`.
pub(super) struct Rounds<A, T> {
    /// Rounds that have begun.
    begun: AtomicU64,
    /// Readers that have no result yet.
    waiting: AtomicUsize,
    turn: Mutex<Turn<A, T>>,
}

struct Turn<A, T> {
    /// The answer of a shard that was asked; a round that its reader has left leaves it here.
    awaited: Option<Awaited<A>>,
    next_at: Option<Instant>,
    /// The last round's number and result, while readers wait.
    latest: Option<(u64, Result<Arc<T>, CommandError>)>,
}

impl<A, T> Default for Rounds<A, T> {
    fn default() -> Self {
        let turn = Mutex::new(Turn { awaited: None, next_at: None, latest: None });
        Rounds { begun: AtomicU64::new(0), waiting: AtomicUsize::new(0), turn }
    }
}

/// A reader that waits.
struct Reader<'a, A, T> {
    rounds: &'a Rounds<A, T>,
    /// Rounds that had begun when it came.
    seen: u64,
}

impl<A, T> Drop for Reader<'_, A, T> {
    fn drop(&mut self) {
        if self.rounds.waiting.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        // Where another reader has the turn, it came after this one was counted out.
        if let Ok(mut turn) = self.rounds.turn.try_lock() {
            turn.latest = None;
        }
    }
}

impl<A, T> Rounds<A, T> {
    fn enter(&self) -> Reader<'_, A, T> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Reader { rounds: self, seen: self.begun.load(Ordering::SeqCst) }
    }

    /// The result of a round that begins from now on. `ask` asks a shard, `merge` puts together
    /// what they answer.
    ///
    /// # Errors
    /// The first shard's that fails.
    pub(super) async fn read(
        &self,
        shards: usize,
        pace: Pace,
        ask: impl Fn(usize) -> Option<Awaited<A>>,
        merge: impl FnOnce(Vec<A>) -> T,
    ) -> Result<Arc<T>, CommandError> {
        // Before the turn, so that it is dropped after it.
        let reader = self.enter();
        let mut turn = self.turn.lock().await;
        if let Some((number, latest)) = &turn.latest
            && *number > reader.seen
        {
            return latest.clone();
        }
        if let Some(awaited) = &mut turn.awaited {
            // What it brings is older than this reader.
            drop(awaited.await);
            turn.awaited = None;
        }
        if let (Pace::Paced, Some(at)) = (pace, turn.next_at) {
            tokio::time::sleep_until(at).await;
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        turn.next_at = Some(Instant::now() + ROUND_PERIOD);
        let all = turn.ask_all(shards, ask).await;
        let result = all.map(|all| Arc::new(merge(all)));
        turn.latest = Some((number, result.clone()));
        result
    }
}

impl<A, T> Turn<A, T> {
    async fn ask_all(
        &mut self,
        shards: usize,
        ask: impl Fn(usize) -> Option<Awaited<A>>,
    ) -> Result<Vec<A>, CommandError> {
        let mut all = Vec::with_capacity(shards);
        for shard in 0..shards {
            self.awaited = ask(shard);
            let answer = answer_of(shard, self.awaited.as_mut()).await;
            self.awaited = None;
            all.push(answer?);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests;
