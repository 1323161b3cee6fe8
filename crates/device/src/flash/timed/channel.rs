//! A channel that carries one page at a time, and what of its future is taken.
//!
//! How: reserved stretches in order, touching ones merged; a transfer takes the first gap that is
//! long enough once its bytes are ready. Stretches that lie before every later request are dropped.
//! Invariant: stretches are in order and do not touch. Cost: a search and a short scan; memory by
//! what is outstanding.

use alloc::collections::VecDeque;

#[derive(Clone, Debug, Default)]
pub(super) struct Channel {
    taken: VecDeque<(u64, u64)>,
}

impl Channel {
    /// Takes `length` from `ready` on, as early as may be; the end. Nobody will ask for time
    /// before `now` again.
    pub(super) fn reserve(&mut self, now: u64, ready: u64, length: u64) -> u64 {
        if length == 0 {
            return ready;
        }
        while self.taken.front().is_some_and(|&(_, end)| end < now) {
            self.taken.pop_front();
        }
        let (mut at, mut begin) = (self.first_after(ready), ready);
        while let Some(&(taken, end)) = self.taken.get(at) {
            if begin + length <= taken {
                break;
            }
            begin = begin.max(end);
            at += 1;
        }
        self.insert(at, begin, begin + length);
        begin + length
    }
    /// The first stretch that ends after `ready`. Most transfers come last, so it is looked for
    /// from the end.
    fn first_after(&self, ready: u64) -> usize {
        match self.taken.back() {
            Some(&(_, end)) if end > ready => self.taken.partition_point(|&(_, end)| end <= ready),
            _ => self.taken.len(),
        }
    }
    /// Inserts a stretch before stretch `at`, merged with what it touches.
    fn insert(&mut self, at: usize, begin: u64, end: u64) {
        let joins_before = at > 0 && self.taken[at - 1].1 == begin;
        let joins_after = self.taken.get(at).is_some_and(|&(taken, _)| taken == end);
        match (joins_before, joins_after) {
            (true, true) => {
                self.taken[at - 1].1 = self.taken[at].1;
                self.taken.remove(at);
            }
            (true, false) => self.taken[at - 1].1 = end,
            (false, true) => self.taken[at].0 = begin,
            (false, false) => self.taken.insert(at, (begin, end)),
        }
    }
    pub(super) fn bytes(&self) -> usize {
        self.taken.capacity() * size_of::<(u64, u64)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;
    use std::vec;

    /// Goal: a transfer takes the first gap that fits, and no time is taken twice. Method: random
    /// transfers beside an array of instants.
    #[test]
    fn gaps_are_filled_in_order() {
        let mut rng = Rng::new(3);
        for _ in 0..50 {
            let (mut channel, mut taken) = (Channel::default(), vec![false; 4000]);
            for step in 0..150u64 {
                let now = step * 5;
                let (ready, length) = (now + rng.below(300), 1 + rng.below(6));
                let fits = |begin: usize| !taken[begin..begin + length as usize].contains(&true);
                let begin = (ready as usize..).find(|&begin| fits(begin)).expect("room");
                taken[begin..begin + length as usize].fill(true);
                assert_eq!(channel.reserve(now, ready, length), begin as u64 + length);
                let touching = channel.taken.iter().zip(channel.taken.iter().skip(1));
                assert!(touching.into_iter().all(|(before, after)| before.1 < after.0));
            }
        }
    }
}
