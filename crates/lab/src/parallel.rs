//! Work on all cores, with its results in order.
//!
//! How: as many threads as cores take one item after the other; the caller's thread counts ends and
//! tells the progress. Invariant: results are in the order of the items, whatever ended first, so
//! the number of cores changes no figure. Cost: a thread per core while it lasts.
//! Not for: items that depend on each other.

use crate::Progress;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::{available_parallelism, scope};

/// Does `work` for every item. `progress` is told of every end. Panics when `work` does.
pub(crate) fn each<Item: Sync, Out: Send>(
    items: &[Item],
    progress: &mut dyn FnMut(Progress),
    work: impl Fn(&Item) -> Out + Sync,
) -> Vec<Out> {
    let threads = available_parallelism().map_or(1, NonZeroUsize::get).min(items.len());
    let next = AtomicUsize::new(0);
    let mut ends: Vec<Option<Out>> = items.iter().map(|_| None).collect();
    let total = u32::try_from(items.len()).unwrap_or(u32::MAX);
    scope(|scope| {
        let (ended, received) = channel();
        for _ in 0..threads {
            let (ended, next, work) = (ended.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(place) else { return };
                    // The receiver is dropped last, so a send cannot fail.
                    let _ = ended.send((place, work(item)));
                }
            });
        }
        drop(ended);
        for (done, (place, end)) in (1..).zip(received) {
            ends[place] = Some(end);
            progress(Progress { done, total });
        }
    });
    ends.into_iter().map(|end| end.expect("every item was done")).collect()
}

/// The seeds of a run, counted up from the first.
pub(crate) fn seeds(options: &crate::Options) -> Vec<u64> {
    assert!(options.runs > 0, "no run, no figure");
    (0..u64::from(options.runs)).map(|run| options.seed.wrapping_add(run)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: results are in the order of the items, and every end is told. Method: more items than
    /// cores, the first of which end last.
    #[test]
    fn results_are_in_order() {
        let items: Vec<u64> = (0..50).collect();
        let mut told = Vec::new();
        let work = |item: &u64| {
            let spent = (0..(50 - item) * 1000).fold(1u64, |sum, step| sum.wrapping_mul(step | 1));
            std::hint::black_box(spent);
            item * 2
        };
        let found = each(&items, &mut |progress| told.push(progress), work);
        assert_eq!(found, items.iter().map(|item| item * 2).collect::<Vec<_>>());
        assert_eq!(told.last(), Some(&Progress { done: 50, total: 50 }));
        assert_eq!(told.len(), 50);
    }
}
