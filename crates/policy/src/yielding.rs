//! Whose room is taken when a level is full.
//!
//! The order in one sentence: room is taken first from borrowers, then from the lowest class that
//! is above its guarantee, its coldest block first, and never from a volume or class at or below
//! its guarantee, except by itself. Where shares are sized live, a volume within its share is asked
//! after all others, and displaces itself before anybody else who is within theirs.
//! How: one pass over the candidates, which are the volumes that hold slots in the level.
//! Cost: linear in their number, which is small beside the cost of an eviction.

use crate::Group;

/// A group that holds slots in the level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which group.
    pub group: Group,
    /// How it stands towards the one who asks for room.
    pub standing: Standing,
    /// Rank of its class; the highest yields first.
    pub rank: u8,
    /// How long ago its coldest block was used, in the level's stamps.
    pub coldest_age: u16,
}

/// How a candidate stands towards the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Holds room that it was only lent.
    Borrower,
    /// Volume and class hold more than their guarantees.
    AboveGuarantee,
    /// It is the one who asks, at or below a guarantee: it may only displace itself.
    Self_,
    /// Above its guarantee, but within the share that it was sized: last to be asked.
    WithinShare,
    /// At or below a guarantee: untouchable.
    Protected,
}

/// Seeks the one who yields, candidate by candidate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Yielders {
    first: Option<u64>,
}

impl Yielders {
    /// One more who holds room.
    #[inline]
    pub fn consider(&mut self, candidate: Candidate) {
        let Candidate { group, standing, rank, coldest_age } = candidate;
        if standing == Standing::Protected {
            return;
        }
        let (rank, age) = (u64::from(u8::MAX - rank), u64::from(u16::MAX - coldest_age));
        let place = (standing as u64) << 40 | rank << 32 | age << 16 | u64::from(group.0);
        self.first = Some(self.first.map_or(place, |first| first.min(place)));
    }

    /// The group that yields a slot, or `None` when all are protected.
    #[must_use]
    pub fn first(self) -> Option<Group> {
        self.first.map(|place| Group(place as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(group: u16, standing: Standing, rank: u8, coldest_age: u16) -> Candidate {
        Candidate { group: Group(group), standing, rank, coldest_age }
    }

    /// Goal: the sentence in the header. Method: one case per clause.
    #[test]
    fn the_order_of_yielding() {
        use Standing::{AboveGuarantee, Borrower, Protected, Self_, WithinShare};
        let all = [
            candidate(0, Protected, 2, 90),
            candidate(1, AboveGuarantee, 0, 90),
            candidate(2, AboveGuarantee, 2, 1_000),
            candidate(3, AboveGuarantee, 2, 65_000),
            candidate(4, Borrower, 1, 0),
            candidate(5, Self_, 2, 99),
            candidate(6, WithinShare, 3, 99),
        ];
        let choose = |skip: &[u16]| {
            let mut yielders = Yielders::default();
            let rest = all.into_iter().filter(|c| !skip.contains(&c.group.0));
            rest.for_each(|candidate| yielders.consider(candidate));
            yielders.first().map(|group| group.0)
        };
        assert_eq!(choose(&[]), Some(4), "borrowers first");
        assert_eq!(choose(&[4]), Some(3), "then the lowest class, coldest first");
        assert_eq!(choose(&[4, 3]), Some(2));
        assert_eq!(choose(&[4, 3, 2]), Some(1), "then the next class");
        assert_eq!(choose(&[4, 3, 2, 1]), Some(5), "then itself");
        assert_eq!(choose(&[4, 3, 2, 1, 5]), Some(6), "then who is within its share");
        assert_eq!(choose(&[4, 3, 2, 1, 5, 6]), None, "the protected never yield");
    }
}
