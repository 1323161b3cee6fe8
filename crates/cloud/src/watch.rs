//! The way to a volume that runs on a thread of its own: what it says of itself, and orders to it.
//!
//! How: a channel that keeps what was said last, and one that passes orders, which count on; with
//! what it says a volume tells the last order that it has heard.
//! Invariant: what is said with an order's number is newer than the order; both outlive the volume.
//! Cost: a copy per question. Not for: calls; see `host`.

use crate::segment::Compression;
use crate::snapshot::{Snapshot, SnapshotChange, SnapshotError};
use crate::superblock::Base;
use crate::volume::Status;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{oneshot, watch};

/// What a volume last said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// How safe it is.
    pub status: Status,
    /// The store has all that was written.
    pub is_drained: bool,
    /// Batches of its journal before this one are written: what was acknowledged is in them.
    pub written_next: u64,
    /// The store has segments with what the journal held before this batch.
    pub put_next: u64,
    /// Its superblock names these segments for what the journal held before this batch.
    pub stored_next: u64,
    /// The store has the volume's size, as far as it may be there by now.
    pub is_size_stored: bool,
    /// Whose segments it shares, where it is a clone; the first one's first.
    pub bases: Vec<Base>,
    /// Its snapshots, oldest first; none until the store has said so once.
    pub snapshots: Option<Vec<Snapshot>>,
    /// Orders that it had heard.
    pub heard: u64,
}

/// What outlives the backing: the way to ask how safe a volume is, and to drain it.
#[derive(Clone)]
pub struct Watch {
    said: watch::Receiver<Option<Said>>,
    /// The number of the last order, locked until it is on its way.
    orders: Arc<Mutex<u64>>,
    control: Arc<dyn Fn(Order, u64) + Send + Sync>,
}

/// What a volume says; of what comes between two questions only the last counts.
pub struct Changes(watch::Receiver<Option<Said>>);

impl Changes {
    /// What it said since the last question; `None` when it has ended.
    pub async fn next(&mut self) -> Option<Said> {
        loop {
            self.0.changed().await.ok()?;
            if let Some(said) = self.0.borrow_and_update().clone() {
                return Some(said);
            }
        }
    }
}

/// Where the end of a change of snapshots is awaited.
pub type SnapshotAnswer = oneshot::Sender<Result<(), SnapshotError>>;

/// An order to a volume.
#[derive(Debug)]
pub enum Order {
    /// Upload all there is; or take one such order back: without any the volume goes back to full
    /// segments.
    Drain(bool),
    /// The volume has another size, in bytes.
    Resize(u64),
    /// Chunks are stored in another way from now on.
    Compress(Compression),
    /// Say how safe it is now.
    Say,
    /// Ask the store whose the volume is.
    Look,
    /// Make or drop a snapshot.
    Snapshots(SnapshotChange, SnapshotAnswer),
    /// End all calls that wait for the store, with an error: the node stops, or the volume is to be
    /// removed.
    StopWaiting,
    /// Have calls wait for the store again: the volume is not removed after all.
    ResumeWaiting,
    /// End the reads that wait for the store and reach behind this byte, with an error.
    GiveUpReads(u64),
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

impl Watch {
    /// One whose orders go to `control`, with their numbers; what the volume says goes in at the
    /// other end.
    pub fn new(
        control: impl Fn(Order, u64) + Send + Sync + 'static,
    ) -> (watch::Sender<Option<Said>>, Watch) {
        let (said, listener) = watch::channel(None);
        let (orders, control) = (Arc::new(Mutex::new(0)), Arc::new(control));
        (said, Watch { said: listener, orders, control })
    }

    /// What the volume said last; none before its first turn.
    #[must_use]
    pub fn said(&self) -> Option<Said> {
        self.said.borrow().clone()
    }

    /// All that the volume says from now on.
    #[must_use]
    pub fn changes(&self) -> Changes {
        Changes(self.said.clone())
    }

    /// Waits until the volume has said something that `is_so`, or `None` when it has ended.
    pub async fn wait(&self, is_so: impl Fn(&Said) -> bool) -> Option<Said> {
        let mut said = self.said.clone();
        let found = said.wait_for(|said| said.as_ref().is_some_and(&is_so)).await;
        found.ok().and_then(|said| said.clone())
    }

    /// Makes or drops a snapshot, which takes until the store has said so: where it does not
    /// answer, this waits for it. Who stops waiting before a snapshot has begun gets none.
    ///
    /// # Errors
    /// [`SnapshotError`] when that cannot be; after [`SnapshotError::Lost`] and
    /// [`SnapshotError::Closed`] it may have been done all the same.
    pub async fn change_snapshots(&self, change: SnapshotChange) -> Result<(), SnapshotError> {
        let (answer, end) = oneshot::channel();
        self.order(Order::Snapshots(change, answer));
        end.await.unwrap_or(Err(SnapshotError::Closed))
    }

    /// Passes an order and returns its number; after the volume's end it does nothing. What the
    /// volume says once it has heard that number is newer than the order.
    pub fn order(&self, order: Order) -> u64 {
        let mut last = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        *last += 1;
        (self.control)(order, *last);
        *last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: orders are heard in the order of their numbers, so that a caller that waits until its
    /// own was heard does not wait for ever. Method: threads that give orders at once; the numbers
    /// heard.
    #[test]
    fn orders_are_heard_in_their_order() {
        const THREADS: u64 = 8;
        const ORDERS: u64 = 20_000;
        let heard = Arc::new(Mutex::new(Vec::new()));
        let inlet = heard.clone();
        let (_said, watch) = Watch::new(move |_, number| {
            inlet.lock().expect("no thread panics").push(number);
        });
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..ORDERS {
                        watch.order(Order::Say);
                    }
                });
            }
        });
        let heard = heard.lock().expect("no thread panics");
        assert_eq!(heard.len() as u64, THREADS * ORDERS);
        assert!(heard.is_sorted(), "an order was heard before one with a smaller number");
    }
}
