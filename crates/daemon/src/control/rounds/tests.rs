//! Rounds of two shards that answer when the test has them answer.

use super::*;
use layby_types::ErrorKind;
use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use tokio::sync::oneshot;

type Sender = oneshot::Sender<Result<u32, CommandError>>;

/// Shards that keep what they were asked.
#[derive(Default)]
struct Shards(RefCell<Vec<Option<Sender>>>);

impl Shards {
    fn ask(&self, _: usize) -> Option<Awaited<u32>> {
        let (sender, receiver) = oneshot::channel();
        self.0.borrow_mut().push(Some(sender));
        Some(receiver)
    }

    fn asked(&self) -> usize {
        self.0.borrow().len()
    }

    fn answer(&self, asked: usize, value: u32) {
        let sender = self.0.borrow_mut()[asked].take().expect("it was not answered");
        // The reader may be gone.
        let _ = sender.send(Ok(value));
    }
}

async fn read(rounds: &Rounds<u32, u32>, shards: &Shards, pace: Pace) -> u32 {
    let sum = |all: Vec<u32>| all.iter().sum();
    let read = rounds.read(2, pace, |shard| shards.ask(shard), sum).await;
    *read.expect("the shards run")
}

fn poll<T>(future: &mut Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Goal: readers that come before a round share its result, one that comes later does not, and no
/// result is kept when all have theirs. Method: two that come during the first round.
#[tokio::test(start_paused = true)]
async fn a_result_is_never_older_than_its_reader() {
    let (rounds, shards) = (Rounds::default(), Shards::default());
    let mut first = pin!(read(&rounds, &shards, Pace::AtOnce));
    assert_eq!((poll(&mut first), shards.asked()), (None, 1));
    let mut second = pin!(read(&rounds, &shards, Pace::AtOnce));
    let mut third = pin!(read(&rounds, &shards, Pace::AtOnce));
    assert_eq!((poll(&mut second), poll(&mut third)), (None, None));
    shards.answer(0, 1);
    assert_eq!((poll(&mut first), shards.asked()), (None, 2), "one shard after the other");
    shards.answer(1, 2);
    assert_eq!(poll(&mut first), Some(3));
    assert_eq!((poll(&mut second), shards.asked()), (None, 3), "the first round began before it");
    shards.answer(2, 10);
    assert_eq!(poll(&mut second), None);
    shards.answer(3, 20);
    assert_eq!((poll(&mut second), poll(&mut third)), (Some(30), Some(30)));
    assert_eq!(shards.asked(), 4, "the third shared it");
    let turn = rounds.turn.try_lock().expect("no reader is left");
    assert!(turn.latest.is_none() && turn.awaited.is_none());
}

/// Goal: readers that leave do not fill a shard's queue: it has one command at a time. Method:
/// readers that are dropped in the middle of a round, then one that stays.
#[tokio::test(start_paused = true)]
async fn readers_that_leave_queue_nothing() {
    let (rounds, shards) = (Rounds::default(), Shards::default());
    for _ in 0..10 {
        let mut leaves = pin!(read(&rounds, &shards, Pace::AtOnce));
        assert_eq!(poll(&mut leaves), None);
        let mut waits = Box::pin(read(&rounds, &shards, Pace::AtOnce));
        assert_eq!(poll(&mut waits.as_mut()), None);
        drop(waits);
    }
    let mut leaves = Box::pin(read(&rounds, &shards, Pace::AtOnce));
    assert_eq!(poll(&mut leaves.as_mut()), None);
    drop(leaves);
    assert_eq!(shards.asked(), 1);
    let mut stays = pin!(read(&rounds, &shards, Pace::AtOnce));
    assert_eq!((poll(&mut stays), shards.asked()), (None, 1));
    shards.answer(0, 100);
    assert_eq!((poll(&mut stays), shards.asked()), (None, 2));
    shards.answer(1, 1);
    assert_eq!(poll(&mut stays), None);
    shards.answer(2, 2);
    assert_eq!(poll(&mut stays), Some(3), "the old answer is not among them");
}

/// Goal: a shard that has ended ends all readers of a round, and not one round after the other.
/// Method: readers that wait together.
#[tokio::test(start_paused = true)]
async fn a_failure_is_shared() {
    let rounds: Rounds<u32, u32> = Rounds::default();
    let asked = RefCell::new(0);
    let ask = |_: usize| {
        *asked.borrow_mut() += 1;
        None
    };
    let begun = Instant::now();
    let one = || rounds.read(2, Pace::Paced, ask, |_| 0);
    let (first, second, third) = tokio::join!(one(), one(), one());
    for ended in [first, second, third] {
        assert_eq!(ended.map_err(|refused| refused.kind), Err(ErrorKind::Closed));
    }
    assert_eq!(*asked.borrow(), 2, "a round that failed at its first shard, and the next one");
    assert_eq!(begun.elapsed(), ROUND_PERIOD);
}
