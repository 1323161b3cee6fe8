//! Writes of the node's catalog, one at a time and in the order in which they were requested.
//!
//! How: a write runs on a thread that may wait, and owns the turn until it has ended, also where
//! the task that requested it has been aborted meanwhile: the node's stop aborts background tasks.
//! Invariant: no two writes use the temporary files at once. A view that was saved and has not
//! taken effect is kept for the next change, or the stop.
//! Cost: a copy of the view per write. Not for: what a write contains; see `Catalog`.

use super::{Control, View};
use crate::catalog::Catalog;
use crate::error::Report;
use std::sync::Arc;
use tokio::sync::Mutex;

/// The turn of writes, and the view that was saved last as long as it has not taken effect.
#[derive(Clone, Default)]
pub(super) struct Saving(Arc<Mutex<Option<View>>>);

/// A view whose catalog is written beside the node's, and takes its place next. The caller holds
/// the node's change until then.
pub(super) struct Staged(View);

impl Saving {
    /// Carries out `write` once every earlier write has ended; it says which view it saved.
    async fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(&mut Option<View>) -> Result<T, Report> + Send + 'static,
    ) -> Result<T, Report> {
        // Before the thread, since threads may begin in any order.
        let mut turn = Arc::clone(&self.0).lock_owned().await;
        let writing = tokio::task::spawn_blocking(move || write(&mut turn));
        writing.await.expect("saving a catalog does not panic")
    }

    /// The node's view is newer than all that was saved, or the same.
    pub(super) async fn took_effect(&self) {
        *self.0.lock().await = None;
    }
}

impl Control {
    /// Saves the catalog of `view` and makes it the node's view; not once the node has stopped.
    pub(super) async fn publish(&self, view: View) -> Result<(), Report> {
        self.change.check_running("cannot save the catalog")?;
        let dir = self.facts.dir.clone();
        let unknown = self.change.unknown();
        let write = move |saved: &mut Option<View>| {
            view.catalog.stage(&dir)?;
            unknown.of(Catalog::publish_staged(&dir))?;
            *saved = Some(view.clone());
            Ok(view)
        };
        let view = self.saving.write(write).await?;
        self.take_effect(view).await;
        Ok(())
    }

    /// Writes the catalog of `view` beside the node's. The caller holds the node's change until the
    /// catalog gets its name, or does not.
    pub(super) async fn stage(&self, view: View) -> Result<Staged, Report> {
        self.change.check_running("cannot save the catalog")?;
        let dir = self.facts.dir.clone();
        let write = move |_: &mut Option<View>| view.catalog.stage(&dir).map(|()| Staged(view));
        self.saving.write(write).await
    }

    /// Gives a staged catalog its name, and makes its view the node's; not once the node has
    /// stopped.
    pub(super) async fn publish_staged(&self, Staged(view): Staged) -> Result<(), Report> {
        self.change.check_running("cannot save the catalog")?;
        let dir = self.facts.dir.clone();
        let unknown = self.change.unknown();
        let write = move |saved: &mut Option<View>| {
            unknown.of(Catalog::publish_staged(&dir))?;
            *saved = Some(view.clone());
            Ok(view)
        };
        let view = self.saving.write(write).await?;
        self.take_effect(view).await;
        Ok(())
    }

    /// Makes a view whose catalog is saved the node's view, and has shards follow it.
    pub(super) async fn take_effect(&self, view: View) {
        self.change.set_unsaved(false);
        let before = self.view();
        // Before limits: what they hold is not let go by the change that forbids it.
        self.tell_read_only(&view, &before).await;
        self.tell_limits(&view, Some(&before)).await;
        self.show(view);
        self.saving.took_effect().await;
        self.cut_strangers().await;
    }

    /// Waits for the write that an aborted task left behind, and has its view take effect: it is
    /// the catalog's, and what is saved next contains it. The caller holds the node's change.
    pub(super) async fn end_saving(&self) {
        let left = self.saving.0.lock().await.clone();
        if let Some(saved) = left {
            self.take_effect(saved).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::catalog::{Catalog, last};
    use crate::config::UplinkConfig;
    use crate::control::tests::MockNode;
    use crate::control::{Control, View};
    use crate::replace::tests::fail_next_sync;
    use std::future::{Future, pending};
    use std::pin::Pin;
    use std::sync::mpsc::Sender;
    use std::task::Poll;
    use std::time::Duration;
    use tokio::runtime::Runtime;

    /// A future's state after it was polled once.
    async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
        std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
    }

    /// Whether a future waits after it was polled once.
    async fn waits<F: Future>(future: Pin<&mut F>) -> bool {
        poll_once(future).await.is_pending()
    }

    /// A runtime with so many threads that may wait.
    fn runtime(threads: usize) -> Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().max_blocking_threads(threads).build();
        runtime.expect("a runtime")
    }

    /// Keeps as many threads busy until what is returned is dropped.
    fn keep_busy(threads: usize) -> Vec<Sender<()>> {
        let busy = |_| {
            let (go, gone) = std::sync::mpsc::channel::<()>();
            tokio::task::spawn_blocking(move || gone.recv().is_err());
            go
        };
        (0..threads).map(busy).collect()
    }

    /// Aborts a task whose write waits for a thread, and lets `meanwhile` be polled before that;
    /// the number that its view alone has.
    async fn abort_a_save<F: Future>(control: &Control, mut meanwhile: Pin<&mut F>) -> u32 {
        let mut view = View::clone(&control.view());
        view.catalog.volume_id_next += 1;
        let next = view.catalog.volume_id_next;
        let _change = control.lock_changes().await;
        let mut aborted = std::pin::pin!(control.publish(view));
        assert!(waits(aborted.as_mut()).await, "no thread is free");
        assert!(waits(meanwhile.as_mut()).await, "it waits for the change");
        next
    }

    /// A node whose background task is aborted while its write waits for a thread, and that stops
    /// then.
    async fn stop_beside_a_save(threads: usize, is_unsaved: bool) {
        let node = MockNode::new("");
        let control = &node.control;
        let busy = keep_busy(threads);
        let next = abort_a_save(control, std::pin::pin!(pending::<()>())).await;
        control.change.set_unsaved(is_unsaved);
        let mut stopping = std::pin::pin!(control.stop());
        assert!(waits(stopping.as_mut()).await, "the stop does not wait for the write");
        drop(busy);
        stopping.await.expect("shards answer");
        last::check(node.dir.path()).expect("the catalog is the one that was written last");
        let saved = Catalog::load(node.dir.path()).expect("it is whole").expect("it is there");
        assert_eq!(saved.volume_id_next, next, "an older view was saved last");
        assert_eq!(control.view().catalog, saved);
    }

    /// Goal: a change whose catalog got its name, and whose directory could not be synced then, is
    /// not in the catalog after a clean stop, as its answer says. Method: the sync fails, of a
    /// change that stages its catalog first and of one that does not; the stop, what it leaves.
    #[tokio::test]
    async fn a_stop_writes_the_catalog_over_one_that_got_its_name() {
        for is_staged in [false, true] {
            let node = MockNode::new("");
            let (control, dir) = (&node.control, node.dir.path());
            let before = control.view().catalog.clone();
            let mut view = View::clone(&control.view());
            view.catalog.volume_id_next += 1;
            let staged = match is_staged {
                true => Some(control.stage(view.clone()).await.expect("there is room")),
                false => None,
            };
            fail_next_sync(&dir.join("catalog.json"));
            let refused = match staged {
                Some(staged) => control.publish_staged(staged).await,
                None => control.publish(view).await,
            };
            let refused = refused.expect_err("it is not durable");
            assert!(refused.state.contains("goes on as before"), "{refused}");
            let saved = || Catalog::load(dir).expect("it is whole").expect("it is there");
            assert_ne!(saved(), before, "it got its name");
            assert_eq!(control.view().catalog, before);
            control.stop().await.expect("shards answer");
            assert_eq!(saved(), before, "staged: {is_staged}");
        }
    }

    /// Goal: a stop waits for the write of a task that was aborted, and what it saves itself is not
    /// older; the next start finds the catalog that was written last. Method: all threads that may
    /// wait are busy while a task saves, is aborted, and the node stops, with something to save and
    /// with nothing; then they become free. One thread, and several, on which writes could overlap.
    #[test]
    fn a_stop_ends_the_writes_of_aborted_tasks() {
        for (threads, round) in [1, 2, 4].into_iter().flat_map(|n| (0..4).map(move |r| (n, r))) {
            runtime(threads).block_on(stop_beside_a_save(threads, round % 2 == 0));
        }
    }

    /// Goal: a change that waited behind an aborted task's saves what that task has saved, too; the
    /// stop does not save less. Method: the only thread that may wait is busy while a task saves, a
    /// change waits for its turn, and the task is aborted; then the thread becomes free.
    #[test]
    fn a_change_behind_an_aborted_task_keeps_what_it_saved() {
        let behind = async {
            let node = MockNode::new("");
            let control = &node.control;
            let busy = keep_busy(1);
            let wanted: UplinkConfig = serde_json::from_str("{\"cap\":\"1MiB/s\"}").expect("JSON");
            let mut change = std::pin::pin!(control.uplink_set(wanted));
            let next = abort_a_save(control, change.as_mut()).await;
            drop(busy);
            change.await.expect("there is room");
            control.stop().await.expect("shards answer");
            let saved = Catalog::load(node.dir.path()).expect("it is whole").expect("it is there");
            assert!(saved.uplink.is_some(), "the change is not saved");
            assert_eq!(saved.volume_id_next, next, "the task's change is gone");
            assert_eq!(control.view().catalog, saved);
        };
        runtime(1).block_on(behind);
    }

    /// Goal: a write of the catalog that never ends holds up no stop for ever, be it an aborted
    /// task's or the stop's own, nor a change after that. Method: the only thread that may wait
    /// stays busy, and the clock is moved on.
    #[test]
    fn a_stop_waits_for_a_write_for_a_time() {
        const SECONDS_MAX: u32 = 60;
        let stop = async |is_aborted: bool| {
            let node = MockNode::new("");
            let control = &node.control;
            let _busy = keep_busy(1);
            if is_aborted {
                abort_a_save(control, std::pin::pin!(pending::<()>())).await;
            } else {
                control.change.set_unsaved(true);
            }
            tokio::time::pause();
            let mut stopping = std::pin::pin!(control.stop());
            let mut seconds = 0;
            let stopped = loop {
                match poll_once(stopping.as_mut()).await {
                    Poll::Ready(stopped) => break stopped,
                    Poll::Pending => tokio::time::advance(Duration::from_secs(1)).await,
                }
                seconds += 1;
                assert!(seconds < SECONDS_MAX, "the stop waits for the write");
            };
            stopped.expect("the shards stop");
            assert!(node.shards.iter().all(|shard| shard.state().stopped));
            let late = control.uplink_set(UplinkConfig::default());
            match poll_once(std::pin::pin!(late)).await {
                Poll::Ready(refused) => drop(refused.expect_err("the node has stopped")),
                Poll::Pending => panic!("a change waits for the write"),
            }
        };
        for is_aborted in [true, false] {
            runtime(1).block_on(stop(is_aborted));
        }
    }

    /// Goal: a change that goes on and a write of the catalog that hangs behind it delay a stop by
    /// one bound together, so that the shards' stop has what the service manager leaves it. Method:
    /// a change that ends shortly before the bound, while the only thread that may wait stays busy;
    /// the clock is moved on.
    #[test]
    fn a_change_and_a_write_share_a_stops_bound() {
        const SECONDS_MAX: u32 = 20;
        runtime(1).block_on(async {
            let node = MockNode::new("");
            let control = &node.control;
            let mut change = Some(control.lock_changes().await);
            let _busy = keep_busy(1);
            control.change.set_unsaved(true);
            tokio::time::pause();
            let mut stopping = std::pin::pin!(control.stop());
            let mut seconds = 0;
            let stopped = loop {
                match poll_once(stopping.as_mut()).await {
                    Poll::Ready(stopped) => break stopped,
                    Poll::Pending => tokio::time::advance(Duration::from_secs(1)).await,
                }
                seconds += 1;
                change = change.filter(|_| seconds + 2 < SECONDS_MAX);
                assert!(seconds <= SECONDS_MAX + 1, "the stop waits for both, one after the other");
            };
            stopped.expect("the shards stop");
            assert!(node.shards.iter().all(|shard| shard.state().stopped));
        });
    }
}
