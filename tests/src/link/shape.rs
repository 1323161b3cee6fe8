//! The link itself: how late, how wide, and whether it carries anything at all.
//!
//! How: each direction of a connection is a reader that notes when each piece came and a writer
//! that lets it go when it is due. Width is a lane of the whole link: a piece books its time there
//! when it is its turn, so many connections share the width, and a change takes effect within a
//! piece.
//! Invariant: bytes keep their order and none is lost unless the link is cut by [`Cut::Refuse`].
//! Cost: two copies of each byte, and a timer for what is late. Delays are kept to a millisecond,
//! widths exactly over time: after calm, [`BURST`] worth of bytes pass at once.
//! Not for: loss and reordering of packets, which TCP hides; `tc netem` can do those.

use super::counts::Board;
use std::future::pending;
use std::io;
use std::num::NonZeroU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// The most that is read at once.
const PIECE_BYTES_MAX: u64 = 16 << 10;
/// The least, however narrow the link.
const PIECE_BYTES_MIN: u64 = 512;
/// A piece takes no longer than this on a narrow link, so that changes are felt soon.
const PIECE_TIME: Duration = Duration::from_millis(20);
/// Pieces on their way in one direction of a connection, which bounds what a late link carries:
/// 1 MiB per one-way delay.
const PIECES_MAX: usize = 64;
/// What a lane that was idle lets pass at once; also what timers that fire late make up for.
const BURST: Duration = Duration::from_millis(20);

/// A kind of broken link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Nobody listens: connections are reset, new ones refused.
    Refuse,
    /// Connections stay and are accepted, and nothing passes, as behind a dead radio link. What was
    /// on its way arrives when the link comes back.
    Hang,
}

/// What the link is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// How late every byte is, each way: an answer is late by twice of it.
    pub delay: Duration,
    /// Width from client to server, bytes per second of all connections; none is unlimited.
    pub up_bytes_per_second: Option<NonZeroU64>,
    /// Width from server to client.
    pub down_bytes_per_second: Option<NonZeroU64>,
    /// How it is broken, if it is.
    pub cut: Option<Cut>,
}

impl Shape {
    /// A link of so many bits per second in both directions.
    ///
    /// # Panics
    /// Where that is less than a byte per second.
    #[must_use]
    pub fn bits_per_second(bits: u64) -> Self {
        let width = NonZeroU64::new(bits / 8);
        assert!(width.is_some(), "a link carries a byte per second at least");
        Shape { up_bytes_per_second: width, down_bytes_per_second: width, ..Shape::default() }
    }

    /// The same link, late by `delay` each way.
    #[must_use]
    pub fn late(self, delay: Duration) -> Self {
        Shape { delay, ..self }
    }

    fn width(&self, way: Way) -> Option<NonZeroU64> {
        match way {
            Way::Up => self.up_bytes_per_second,
            Way::Down => self.down_bytes_per_second,
        }
    }
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Client to server.
    Up,
    /// Server to client.
    Down,
}

/// The width of one direction, shared by all connections: when it is free again.
#[derive(Debug)]
pub(super) struct Lane(Mutex<Instant>);

impl Lane {
    pub(super) fn new() -> Self {
        Lane(Mutex::new(Instant::now()))
    }

    /// Takes the time that `bytes` need; answers with when they are through.
    fn book(&self, bytes: usize, width: NonZeroU64) -> Instant {
        let mut free_at = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let start = free_at.max(now.checked_sub(BURST).unwrap_or(now));
        *free_at = start + time_of(bytes, width);
        *free_at
    }
}

fn time_of(bytes: usize, width: NonZeroU64) -> Duration {
    let nanos = bytes as u128 * 1_000_000_000 / u128::from(width.get());
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// What all connections of a link share.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) shape: watch::Sender<Shape>,
    pub(super) up: Lane,
    pub(super) down: Lane,
    pub(super) board: Board,
}

impl Link {
    fn lane(&self, way: Way) -> &Lane {
        match way {
            Way::Up => &self.up,
            Way::Down => &self.down,
        }
    }

    /// Returns once the link carries something.
    async fn open(&self) {
        let mut shape = self.shape.subscribe();
        // The sender is our own, so it is there as long as we wait.
        let _ = shape.wait_for(|shape| shape.cut != Some(Cut::Hang)).await;
    }

    /// Returns when connections are to be reset.
    pub(super) async fn refused(&self) {
        let mut shape = self.shape.subscribe();
        let _ = shape.wait_for(|shape| shape.cut == Some(Cut::Refuse)).await;
    }
}

/// Carries one client's connection over the link to `far`, until either side ends it.
pub(super) async fn carry(
    mut client: TcpStream,
    far: DuplexStream,
    link: &Link,
    service: impl Future<Output = ()>,
) {
    let (from_client, to_client) = client.split();
    let (from_far, to_far) = tokio::io::split(far);
    let upward = pump(from_client, to_far, link, Way::Up);
    let downward = pump(from_far, to_client, link, Way::Down);
    let others = async {
        tokio::join!(upward, service);
        pending::<()>().await;
    };
    let is_refused = tokio::select! {
        () = downward => false,
        () = others => false,
        () = link.refused() => true,
    };
    if is_refused {
        // A reset rather than an orderly end; a client that is gone already does not care.
        let _ = client.set_zero_linger();
    }
}

async fn pump(
    reader: impl AsyncRead + Unpin,
    writer: impl AsyncWrite + Unpin,
    link: &Link,
    way: Way,
) {
    let (queue, due) = mpsc::channel(PIECES_MAX);
    // An end of either side ends the connection; there is nobody to tell.
    let _ = tokio::join!(receive(reader, queue, link, way), send(writer, due, link, way));
}

/// Bytes on their way.
struct Piece {
    bytes: Vec<u8>,
    /// None where the link is not late.
    due: Option<Instant>,
}

async fn receive(
    mut reader: impl AsyncRead + Unpin,
    queue: mpsc::Sender<Piece>,
    link: &Link,
    way: Way,
) -> io::Result<()> {
    loop {
        let mut bytes = vec![0; piece_bytes(link.shape.borrow().width(way))];
        let count = reader.read(&mut bytes).await?;
        bytes.truncate(count);
        let delay = link.shape.borrow().delay;
        let due = (!delay.is_zero()).then(|| Instant::now() + delay);
        if count == 0 || queue.send(Piece { bytes, due }).await.is_err() {
            return Ok(());
        }
    }
}

async fn send(
    mut writer: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Piece>,
    link: &Link,
    way: Way,
) -> io::Result<()> {
    while let Some(Piece { bytes, due }) = queue.recv().await {
        if let Some(due) = due {
            sleep_until(due).await;
        }
        link.open().await;
        let width = link.shape.borrow().width(way);
        if let Some(width) = width {
            sleep_until(link.lane(way).book(bytes.len(), width)).await;
            link.open().await;
        }
        // First: the peer may look at the counts as soon as it has the bytes.
        link.board.passed(way, bytes.len());
        writer.write_all(&bytes).await?;
    }
    writer.shutdown().await
}

fn piece_bytes(width: Option<NonZeroU64>) -> usize {
    let wanted = width.map_or(PIECE_BYTES_MAX, |width| {
        let bytes = u128::from(width.get()) * PIECE_TIME.as_nanos() / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    });
    usize::try_from(wanted.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)).expect("it fits 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: pieces are neither tiny nor long-lasting. Method: widths at and beyond the bounds.
    #[test]
    fn pieces_fit_the_width() {
        let of = |width| piece_bytes(NonZeroU64::new(width));
        assert_eq!(piece_bytes(None), 16 << 10);
        assert_eq!((of(1), of(100_000), of(u64::MAX)), (512, 2000, 16 << 10));
    }

    /// Goal: a lane gives its width and no more. Method: a second's worth of bookings at once.
    #[tokio::test]
    async fn a_lane_gives_its_width() {
        let (lane, width) = (Lane::new(), NonZeroU64::new(1_000_000).expect("not zero"));
        let begin = Instant::now();
        let through = (0..100).map(|_| lane.book(10_000, width)).last().expect("a hundred");
        let taken = through - begin;
        assert!(taken <= Duration::from_secs(1), "{taken:?}");
        assert!(taken >= Duration::from_secs(1) - BURST, "{taken:?}");
    }
}
