//! A second request for what is late: the first answer of both counts.
//!
//! How: the latencies of the last answers say what is late: a fourth more than nineteen of twenty
//! take. Then the same is asked again, and whichever answers first is taken; a fault waits for the
//! other one.
//! Invariant: only for what may be asked twice, and in the long run for one in twenty at most.
//! Source: Dean and Barroso, The Tail at Scale (Communications of the ACM 56(2), 2013).
//! Cost: a sort of 128 numbers per 16 answers.

use crate::action::End;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Latencies that are kept.
const KEPT: usize = 128;
/// Answers between two looks at them.
const REST: usize = 16;
/// What is late before anything is known, and at least.
const LATE_DEFAULT: Duration = Duration::from_secs(1);
const LATE_MIN: Duration = Duration::from_millis(1);

struct Seen {
    latencies: Vec<Duration>,
    next: usize,
    late: Duration,
}

/// See the file's header.
pub(crate) struct Hedge {
    seen: Mutex<Seen>,
    sent: AtomicU64,
}

impl Default for Hedge {
    fn default() -> Self {
        let seen = Seen { latencies: Vec::new(), next: 0, late: LATE_DEFAULT };
        Hedge { seen: Mutex::new(seen), sent: AtomicU64::new(0) }
    }
}

impl Hedge {
    /// Second requests so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Asks, and again where that is late.
    pub(crate) async fn perform<F: Future<Output = End>>(&self, ask: impl Fn() -> F) -> End {
        let start = Instant::now();
        let mut first = std::pin::pin!(ask());
        let late = self.seen().late;
        let end = tokio::select! {
            end = &mut first => end,
            // Nothing but time tells that an answer is late.
            () = sleep(late) => {
                self.sent.fetch_add(1, Ordering::Relaxed);
                either(first, ask()).await
            }
        };
        if matches!(end, End::Bytes(..)) {
            self.note(start.elapsed());
        }
        end
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, latency: Duration) {
        let mut seen = self.seen();
        let at = seen.next % KEPT;
        if at < seen.latencies.len() {
            seen.latencies[at] = latency;
        } else {
            seen.latencies.push(latency);
        }
        seen.next += 1;
        if seen.next.is_multiple_of(REST) {
            let mut sorted = seen.latencies.clone();
            sorted.sort_unstable();
            let usual = sorted[sorted.len() * 19 / 20];
            seen.late = (usual + usual / 4).max(LATE_MIN);
        }
    }
}

/// The first answer of two, or the last fault.
async fn either(first: impl Future<Output = End>, second: impl Future<Output = End>) -> End {
    let (mut first, mut second) = (std::pin::pin!(first), std::pin::pin!(second));
    tokio::select! {
        end = &mut first => match end {
            End::Failed(_) => second.await,
            end => end,
        },
        end = &mut second => match end {
            End::Failed(_) => first.await,
            end => end,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::{Fault, FaultKind};
    use bytes::Bytes;

    fn answer(text: &'static str) -> End {
        End::Bytes(Bytes::from_static(text.as_bytes()), None)
    }

    fn text(end: &End) -> &[u8] {
        match end {
            End::Bytes(bytes, _) => bytes,
            _ => b"failed",
        }
    }

    /// Asks with latencies and answers that are written down, in their order.
    async fn perform(hedge: &Hedge, answers: &[(u64, End)]) -> End {
        let next = AtomicU64::new(0);
        let ask = || {
            let (millis, end) = answers[next.fetch_add(1, Ordering::Relaxed) as usize].clone();
            async move {
                sleep(Duration::from_millis(millis)).await;
                end
            }
        };
        hedge.perform(ask).await
    }

    /// Goal: what is late is asked for again and no sooner; the first answer counts, and a fault
    /// only where there is nothing else. Method: a clock that the test moves, latencies by hand.
    #[tokio::test(start_paused = true)]
    async fn late_requests_are_asked_again() {
        let hedge = Hedge::default();
        for _ in 0..KEPT {
            let end = perform(&hedge, &[(10, answer("first"))]).await;
            assert_eq!(text(&end), b"first");
        }
        assert_eq!(hedge.sent(), 0, "nothing was late");
        let start = Instant::now();
        let end = perform(&hedge, &[(5_000, answer("first")), (10, answer("second"))]).await;
        assert_eq!((text(&end), hedge.sent()), (&b"second"[..], 1));
        assert!(start.elapsed() < Duration::from_millis(25), "{:?}", start.elapsed());
        let fault = End::Failed(Fault { kind: FaultKind::Retry, cause: String::new() });
        let end = perform(&hedge, &[(50, answer("first")), (10, fault.clone())]).await;
        assert_eq!((text(&end), hedge.sent()), (&b"first"[..], 2));
        let end = perform(&hedge, &[(50, fault.clone()), (50, fault)]).await;
        assert_eq!(text(&end), b"failed");
    }
}
