//! Who gives place when a control socket's connections are all taken.
//!
//! How: each connection notes the turn of its last byte on a shared counter. Where a new one
//! finds no place, the connection with the oldest turn is cut off, unless its request is being
//! worked on. Where all are worked on, the first whose request has an answer ends behind it,
//! however many requests it has sent ahead. [`Watched`] notes the turns, fails a write that its
//! client does not take in time, and holds back the end of what a client sends until its last
//! request is answered: a client that only shuts down its writing side still reads.
//! Invariant: at most `max` places are held; who has just moved a byte goes last.
//! Cost: a walk over the places where all are taken. Not for: fairness among those who are active.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Sleep;

/// The places of one socket.
pub(super) struct Places {
    max: usize,
    held: Mutex<Vec<Arc<Place>>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    turns: AtomicU64,
    /// A new connection waits for a place.
    is_wanted: AtomicBool,
    left: Notify,
}

/// One connection's.
pub(super) struct Place {
    task: OnceLock<AbortHandle>,
    /// The turn of its last byte; [`GONE`] when it has ended.
    turn: AtomicU64,
    /// Requests that are being worked on.
    working: AtomicUsize,
    /// The client sends no more, and has a request that is not answered.
    has_ended: AtomicBool,
    shared: Arc<Shared>,
}

const GONE: u64 = u64::MAX;

/// Time in which a request must be answered whose client sends no more.
pub(super) const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(2);

impl Places {
    pub(super) fn new(max: usize) -> Places {
        Places { max, held: Mutex::default(), shared: Arc::default() }
    }

    fn held(&self) -> MutexGuard<'_, Vec<Arc<Place>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, which may have been another's.
    pub(super) async fn take(&self) -> Arc<Place> {
        loop {
            let left = self.shared.left.notified();
            if let Some(place) = self.try_take() {
                self.shared.is_wanted.store(false, Ordering::Relaxed);
                return place;
            }
            self.shared.is_wanted.store(true, Ordering::Relaxed);
            left.await;
        }
    }

    fn try_take(&self) -> Option<Arc<Place>> {
        let mut held = self.held();
        held.retain(|place| place.turn.load(Ordering::Relaxed) != GONE);
        if held.len() >= self.max {
            let idle = held.iter().enumerate().filter(|(_, place)| place.is_idle());
            let oldest = idle.min_by_key(|(_, place)| place.turn.load(Ordering::Relaxed));
            let index = oldest.map(|(index, _)| index)?;
            let place = held.swap_remove(index);
            place.task.get().map(AbortHandle::abort);
        }
        let place = Arc::new(Place {
            task: OnceLock::new(),
            turn: AtomicU64::new(self.shared.turns.fetch_add(1, Ordering::Relaxed)),
            working: AtomicUsize::new(0),
            has_ended: AtomicBool::new(false),
            shared: Arc::clone(&self.shared),
        });
        held.push(Arc::clone(&place));
        Some(place)
    }
}

impl Place {
    pub(super) fn set_task(&self, task: AbortHandle) {
        // It is told once.
        let _ = self.task.set(task);
    }

    /// A request is worked on for as long as this lives.
    pub(super) fn work(self: &Arc<Self>) -> Working {
        self.working.fetch_add(1, Ordering::Relaxed);
        Working(Arc::clone(self))
    }

    /// Whether the connection is to end behind the answer that it has; one is told for each that
    /// waits.
    pub(super) fn gives_place(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
            || self.shared.is_wanted.swap(false, Ordering::Relaxed)
    }

    fn is_idle(&self) -> bool {
        !self.is_working() && self.task.get().is_some()
    }

    fn is_working(&self) -> bool {
        self.working.load(Ordering::Relaxed) > 0
    }

    fn note(&self) {
        let turn = self.shared.turns.fetch_add(1, Ordering::Relaxed);
        let is_held = |known| (known != GONE).then_some(turn);
        // Where it has ended already, there is nothing to note.
        let _ = self.turn.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_held);
    }
}

/// Goes with a connection's task, ended or cut off, and frees its place.
pub(super) struct Leaving(Arc<Place>);

impl Leaving {
    pub(super) fn new(place: &Arc<Place>) -> Leaving {
        Leaving(Arc::clone(place))
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.turn.store(GONE, Ordering::Relaxed);
        self.0.shared.left.notify_one();
    }
}

/// A request that is being worked on.
pub(super) struct Working(Arc<Place>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::Relaxed);
        self.0.note();
        self.0.shared.left.notify_one();
    }
}

/// A stream that notes when it moves, and whose writes have a time.
pub(super) struct Watched<T> {
    stream: T,
    place: Arc<Place>,
    timeout: Duration,
    /// Since a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Since the client sends no more, and has a request that is not answered.
    ended: Option<Pin<Box<Sleep>>>,
}

impl<T> Watched<T> {
    pub(super) fn new(stream: T, place: &Arc<Place>, timeout: Duration) -> Watched<T> {
        Watched { stream, place: Arc::clone(place), timeout, waiting: None, ended: None }
    }

    /// The client sends no more. A closed socket looks alike, and a request whose client is gone
    /// ends with its connection: so a request has [`HALF_CLOSED_TIMEOUT`], and its answer, behind
    /// which the connection ends, the time of every answer.
    fn at_end(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let is_working = self.place.is_working();
        if self.ended.is_none() {
            if !is_working && self.waiting.is_none() {
                return Poll::Ready(Ok(()));
            }
            self.place.has_ended.store(is_working, Ordering::Relaxed);
        }
        let held = || Box::pin(tokio::time::sleep(HALF_CLOSED_TIMEOUT));
        ready!(self.ended.get_or_insert_with(held).as_mut().poll(context));
        if self.waiting.is_some() { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    /// What becomes of a write: it moved, or it waits, not for ever.
    fn moved<R>(&mut self, context: &mut Context<'_>, write: Poll<Result<R>>) -> Poll<Result<R>> {
        if write.is_ready() {
            self.waiting = None;
            self.place.note();
            return write;
        }
        let timeout = self.timeout;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(Error::from(ErrorKind::TimedOut)))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        self.place.note();
        let is_end = read.is_ok() && buffer.filled().len() == before && buffer.remaining() > 0;
        if is_end { self.at_end(context) } else { Poll::Ready(read) }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.moved(context, write)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.moved(context, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    const ANSWER: Duration = Duration::from_secs(20);

    /// A place whose task never ends by itself.
    async fn taken(places: &Places) -> (Arc<Place>, tokio::task::JoinHandle<()>) {
        let place = places.take().await;
        let task = tokio::spawn(std::future::pending());
        place.set_task(task.abort_handle());
        (place, task)
    }

    /// Goal: who hangs longest gives place; who is worked on does not. Method: three places, one of
    /// which moves a byte and one of which works.
    #[tokio::test]
    async fn who_hangs_longest_gives_place() {
        let places = Places::new(3);
        let (first, first_task) = taken(&places).await;
        let (second, second_task) = taken(&places).await;
        let (_third, third_task) = taken(&places).await;
        let working = first.work();
        second.note();
        let (_fourth, _) = taken(&places).await;
        assert!(third_task.await.expect_err("it was cut off").is_cancelled());
        let (_fifth, _) = taken(&places).await;
        assert!(second_task.await.expect_err("it was cut off").is_cancelled());
        drop(working);
        assert!(!first_task.is_finished());
    }

    /// Goal: where all are worked on, a new one waits for the first to end. Method: one place.
    #[tokio::test]
    async fn work_is_waited_for() {
        let places = Places::new(1);
        let (first, _task) = taken(&places).await;
        let working = first.work();
        let mut next = std::pin::pin!(places.take());
        let polled = std::future::poll_fn(|c| Poll::Ready(next.as_mut().poll(c).is_ready())).await;
        assert!(!polled, "it waits");
        drop(working);
        next.await;
        assert!(!first.gives_place(), "it has one");
    }

    /// Goal: a connection that always has a request that is worked on gives place behind an answer,
    /// and one does for each that waits. Method: two places; each begins its next request before it
    /// ends one.
    #[tokio::test]
    async fn connections_that_ask_on_and_on_give_place() {
        let places = Places::new(2);
        let (first, _first_task) = taken(&places).await;
        let (second, _second_task) = taken(&places).await;
        let _working = (first.work(), second.work());
        assert!(!first.gives_place(), "no connection waits");
        let mut next = std::pin::pin!(places.take());
        let polled = std::future::poll_fn(|c| Poll::Ready(next.as_mut().poll(c).is_ready())).await;
        assert!(!polled, "it waits");
        assert_eq!((second.gives_place(), first.gives_place()), (true, false));
        drop(Leaving::new(&second));
        next.await;
    }

    /// Goal: the end of what a client sends is held back while its request is worked on, for a
    /// time, so that a client that half closes is answered and one that is gone ends what waits for
    /// it; without a request it is told at once. Method: pipes whose far ends shut down, paused
    /// time.
    #[tokio::test(start_paused = true)]
    async fn half_closed_clients_are_answered() {
        let places = Places::new(2);
        let (near, mut far) = duplex(64);
        let place = places.take().await;
        let mut near = Watched::new(near, &place, ANSWER);
        far.shutdown().await.expect("open");
        assert_eq!(near.read(&mut [0; 8]).await.expect("an end"), 0);
        assert!(!place.gives_place(), "nothing is to be answered");

        let (near, mut far) = duplex(64);
        let place = places.take().await;
        let mut near = Watched::new(near, &place, ANSWER);
        let working = place.work();
        far.shutdown().await.expect("open");
        let start = tokio::time::Instant::now();
        let read = tokio::time::timeout(HALF_CLOSED_TIMEOUT / 2, near.read(&mut [0; 8])).await;
        assert!(read.is_err(), "the end is held back");
        assert!(place.gives_place(), "the connection ends behind the answer");
        near.write_all(b"answer").await.expect("the client reads");
        far.read_exact(&mut [0; 6]).await.expect("an answer");
        assert_eq!(near.read(&mut [0; 8]).await.expect("an end"), 0);
        assert_eq!(start.elapsed(), HALF_CLOSED_TIMEOUT);
        drop(working);
    }

    /// Goal: an answer that is not read ends its connection in time; one that is read slowly does
    /// not. Method: a small pipe, paused time.
    #[tokio::test(start_paused = true)]
    async fn unread_answers_end() {
        let places = Places::new(1);
        let place = places.take().await;
        let time = Duration::from_secs(20);
        let (near, mut far) = duplex(8);
        let mut near = Watched::new(near, &place, time);
        let slow = async {
            for _ in 0..8 {
                tokio::time::sleep(time / 2).await;
                far.read_exact(&mut [0; 8]).await.expect("open");
            }
            far
        };
        let (written, _far) = tokio::join!(near.write_all(&[1; 64]), slow);
        written.expect("it is read in time");
        let refused = near.write_all(&[1; 64]).await.expect_err("nobody reads");
        assert_eq!(refused.kind(), ErrorKind::TimedOut);
    }
}
