//! Which connection is served next: by rank, and in turn within a rank.
//!
//! How: flows that have work wait in a band per rank. A *round* serves the best band until it is
//! empty; the bands below pass [`quantum`](super::ScheduleLimits) bytes in a round at most, and
//! nothing in a round that has served a better band, unless they starve: a band that waited while
//! [`STARVING_BYTES`] of better ones passed gets its quantum all the same, behind them. Between
//! rounds the caller looks for what has arrived. Within a band flows share by deficit round robin;
//! below the best band a visit lasts [`VISIT_QUANTA`] rounds, so that a long request is done while
//! its bytes are still near the processor, and is not spread over everybody's.
//! Invariant: from the moment a flow of the best band is woken, nothing of another band is served
//! before it; what arrives unseen during a round waits behind at most one quantum of lower bytes.
//! Cost: constant per grant; a scan over the busy bands. Not for: order within a flow.

use super::Rank;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Bytes of better bands during which a band that waits gets nothing.
pub(super) const STARVING_BYTES: u64 = 1 << 20;
/// What a request costs beside its bytes, so that small ones are no free ride.
pub(super) const REQUEST_BYTES: u64 = 512;

/// Quanta of a visit below the best band. More keep others of the band waiting, fewer have several
/// long requests half done at a time.
pub(super) const VISIT_QUANTA: u64 = 32;

/// Something that has requests to serve: a connection, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow(pub u32);

/// What may be served now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Whose turn it is.
    pub flow: Flow,
    /// Its rank.
    pub rank: Rank,
    /// Bytes that it may pass. Below the best rank this is a bound; at the best rank a request that
    /// is longer passes whole, and the flow waits the longer for its next turn.
    pub bytes: u64,
}

struct Entry {
    flow: Flow,
    weight: u16,
    deficit: i64,
    /// It has had its share of this visit.
    is_visited: bool,
}

struct Band {
    rank: Rank,
    flows: VecDeque<Entry>,
    /// Bytes of better bands that passed while this one waited.
    starved: u64,
    /// Nothing of it is served: it is at its bound of bytes in flight.
    is_held: bool,
}

/// See the file's header.
pub struct ReadyQueue {
    quantum: u64,
    /// Bands by rank; a handful.
    bands: Vec<Band>,
    /// By flow: whether it waits in a band.
    waiting: Vec<bool>,
    /// Bytes that lower bands may still pass in this round.
    left: u64,
    /// The best rank that was served in this round.
    served: Option<Rank>,
    granted: Option<Entry>,
    granted_rank: Rank,
}

impl ReadyQueue {
    /// Nothing waits. Panics on a quantum of zero.
    #[must_use]
    pub fn new(quantum_bytes: u32) -> Self {
        assert!(quantum_bytes > 0, "a quantum of nothing serves nobody");
        ReadyQueue {
            quantum: u64::from(quantum_bytes),
            bands: Vec::new(),
            waiting: Vec::new(),
            left: 0,
            served: None,
            granted: None,
            granted_rank: Rank::FIRST,
        }
    }

    fn band(&mut self, rank: Rank) -> &mut Band {
        let index = match self.bands.binary_search_by_key(&rank, |band| band.rank) {
            Ok(index) => index,
            Err(index) => {
                let band = Band { rank, flows: VecDeque::new(), starved: 0, is_held: false };
                self.bands.insert(index, band);
                index
            }
        };
        &mut self.bands[index]
    }

    /// The flow has something to serve. It keeps its place if it waits already.
    pub fn wake(&mut self, flow: Flow, rank: Rank, weight: u16) {
        let index = flow.0 as usize;
        if self.waiting.len() <= index {
            self.waiting.resize(index + 1, false);
        }
        if !core::mem::replace(&mut self.waiting[index], true) {
            let entry = Entry { flow, weight: weight.max(1), deficit: 0, is_visited: false };
            self.band(rank).flows.push_back(entry);
        }
    }

    /// The flow is gone, or changes its rank.
    pub fn forget(&mut self, flow: Flow) {
        if self.waiting.get_mut(flow.0 as usize).is_some_and(core::mem::take) {
            self.bands.iter_mut().for_each(|band| band.flows.retain(|entry| entry.flow != flow));
        }
    }

    /// Lets a rank wait for room, or go on.
    pub fn hold(&mut self, rank: Rank, is_held: bool) {
        self.band(rank).is_held = is_held;
    }

    /// Whether anything could be served in the next round.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.bands.iter().any(|band| !band.is_held && !band.flows.is_empty())
    }

    /// Whether the best rank, or a better one, has something to serve.
    #[must_use]
    pub fn has_best(&self, best: Rank) -> bool {
        let mut bands = self.bands.iter().take_while(|band| band.rank <= best);
        bands.any(|band| !band.is_held && !band.flows.is_empty())
    }

    /// Flows that wait in a rank.
    #[must_use]
    pub fn waiting(&self, rank: Rank) -> usize {
        let found = self.bands.binary_search_by_key(&rank, |band| band.rank);
        found.map_or(0, |index| self.bands[index].flows.len())
    }

    /// Begins a round: all that has arrived is woken.
    pub fn begin_round(&mut self) {
        self.left = self.quantum;
        self.served = None;
    }

    /// Who is served next; `best` is the best rank that could have work. `None` ends the round. The
    /// caller serves the flow, then calls [`ReadyQueue::passed`].
    pub fn next(&mut self, best: Rank) -> Option<Grant> {
        assert!(self.granted.is_none(), "a grant is answered before the next");
        let index = self.choose(best)?;
        let (left, band) = (self.left, &mut self.bands[index]);
        let quanta = if band.rank > best { VISIT_QUANTA } else { 1 };
        let entry = visit(band, self.quantum * quanta);
        let mut bytes = entry.deficit.unsigned_abs();
        if band.rank > best {
            bytes = bytes.min(left);
        }
        let (flow, rank) = (entry.flow, band.rank);
        (self.granted, self.granted_rank) = (Some(entry), rank);
        Some(Grant { flow, rank, bytes })
    }

    /// The best rank, then who starves, then by rank, but nobody below who was served this round.
    fn choose(&self, best: Rank) -> Option<usize> {
        let has_work = |band: &Band| !band.is_held && !band.flows.is_empty();
        let first = self.bands.iter().position(has_work)?;
        if self.bands[first].rank <= best {
            return Some(first);
        }
        if self.left == 0 {
            return None;
        }
        // Who starves is due a whole quantum, not what is left of one.
        let is_whole = self.left == self.quantum;
        let is_starving =
            |band: &Band| is_whole && has_work(band) && band.starved >= STARVING_BYTES;
        let rank = self.bands[first].rank;
        let in_turn = self.served.is_none_or(|served| rank <= served).then_some(first);
        self.bands.iter().rposition(is_starving).or(in_turn)
    }

    /// The granted flow passed `requests` with `bytes`, and has more to serve or not. Who passed
    /// nothing of more wants a whole quantum, and gets one in a later round: the next one, unless
    /// it had a whole one now.
    pub fn passed(&mut self, best: Rank, requests: u64, bytes: u64, has_more: bool) {
        let mut entry = self.granted.take().expect("a grant is answered once");
        let rank = self.granted_rank;
        let cost = (bytes + requests * REQUEST_BYTES).max(1);
        let is_short = has_more && bytes == 0 && requests == 0;
        let had_part = rank > best && self.left < self.quantum;
        if rank > best {
            assert!(bytes <= self.left, "a lower rank passes no more than it was granted");
            self.left = if is_short { 0 } else { self.left.saturating_sub(cost) };
        }
        self.served = Some(self.served.map_or(rank, |served| served.min(rank)));
        for band in &mut self.bands {
            if band.rank > rank && !band.flows.is_empty() {
                band.starved += cost;
            }
        }
        let band = self.band(rank);
        band.starved = 0;
        entry.deficit = entry.deficit.saturating_sub(cost.cast_signed());
        if !has_more {
            self.waiting[entry.flow.0 as usize] = false;
        } else if entry.deficit > 0 && (!is_short || had_part) {
            band.flows.push_front(entry);
        } else {
            entry.is_visited = false;
            band.flows.push_back(entry);
        }
    }
}

/// Takes the flow of a band whose turn it is, with its share of this visit. A debt of a long
/// request is paid by waiting; who waits for nobody owes nothing.
fn visit(band: &mut Band, quantum: u64) -> Entry {
    loop {
        let mut entry = band.flows.pop_front().expect("the caller found one");
        let share = quantum.cast_signed() * i64::from(entry.weight);
        if !core::mem::replace(&mut entry.is_visited, true) {
            let is_alone = band.flows.is_empty();
            let kept = if is_alone { entry.deficit.max(0) } else { entry.deficit };
            entry.deficit = (kept + share).min(2 * share);
        }
        if entry.deficit > 0 {
            return entry;
        }
        entry.is_visited = false;
        band.flows.push_back(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use layby_types::Rng;

    const QUANTUM: u64 = 64 << 10;

    /// Goal: for random mixes of ranks, no request of the best rank is passed by more lower bytes
    /// than a quantum from its arrival on, none at all from when it was seen, and lower ranks go
    /// on all the same. Method: flows with requests of random lengths; arrivals at any time, seen
    /// between rounds only, as in a shard; bytes counted in front of each request.
    #[test]
    fn nobody_better_waits_behind_more_than_a_quantum() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let mut queue = ReadyQueue::new(QUANTUM as u32);
            let ranks = 2 + rng.below(3) as u16;
            let count = 2 + rng.below(8) as u32;
            let rank_of = |flow: u32| Rank(flow as u16 % ranks);
            let mut pieces: Vec<VecDeque<u64>> = (0..count).map(|_| VecDeque::new()).collect();
            let mut unseen: Vec<(u32, u64, u64)> = Vec::new();
            // By flow of the best rank: lower bytes that had passed when its requests arrived.
            let mut arrived: BTreeMap<u32, VecDeque<(u64, bool)>> = BTreeMap::new();
            let (mut lower, mut passed_by_rank) = (0u64, [0u64; 5]);
            for _ in 0..300 {
                for (flow, bytes, at) in unseen.drain(..) {
                    pieces[flow as usize].push_back(bytes);
                    queue.wake(Flow(flow), rank_of(flow), 1 + (flow % 3) as u16);
                    if rank_of(flow) == Rank::FIRST {
                        assert!(lower - at <= QUANTUM, "seed {seed}: it waited to be seen");
                        arrived.entry(flow).or_default().push_back((lower, true));
                    }
                }
                queue.begin_round();
                while let Some(grant) = queue.next(Rank::FIRST) {
                    if rng.chance(1, 3) {
                        let flow = rng.below(u64::from(count)) as u32;
                        let bytes = 4096 * (1 + rng.below(40));
                        unseen.push((flow, bytes, lower));
                    }
                    let is_best = grant.rank == Rank::FIRST;
                    let mine = &mut pieces[grant.flow.0 as usize];
                    let (mut bytes, mut requests) = (0, 0);
                    while let Some(front) = mine.front_mut() {
                        let room = grant.bytes.saturating_sub(bytes);
                        let piece = if is_best { *front } else { (*front).min(QUANTUM) };
                        if room == 0 || (!is_best && piece > room) {
                            break;
                        }
                        bytes += piece;
                        *front -= piece;
                        if *front == 0 {
                            mine.pop_front();
                            requests += 1;
                        }
                        if is_best {
                            let waited = arrived.get_mut(&grant.flow.0).map(VecDeque::pop_front);
                            let (at, _) = waited.flatten().expect("it arrived");
                            assert_eq!(at, lower, "seed {seed}: it was seen and passed over");
                        } else {
                            lower += piece;
                        }
                    }
                    passed_by_rank[usize::from(grant.rank.0)] += bytes;
                    let has_more = !pieces[grant.flow.0 as usize].is_empty();
                    queue.passed(Rank::FIRST, requests, bytes, has_more);
                }
                if rng.chance(1, 2) {
                    let flow = rng.below(u64::from(count)) as u32;
                    unseen.push((flow, 4096 * (1 + rng.below(100)), lower));
                }
            }
            let left = pieces.iter().flatten().sum::<u64>();
            let passed: u64 = passed_by_rank.iter().sum();
            assert!(passed > left / 4, "seed {seed}: lower ranks go on ({passed}, {left} left)");
        }
    }

    /// Goal: a band that better ones would starve gets a quantum after so many of their bytes.
    /// Method: two lower bands that always have work.
    #[test]
    fn the_lowest_does_not_starve() {
        let mut queue = ReadyQueue::new(QUANTUM as u32);
        let mut passed = [0u64; 3];
        queue.wake(Flow(1), Rank(1), 1);
        queue.wake(Flow(2), Rank(2), 1);
        for _ in 0..1000 {
            queue.begin_round();
            let mut round = 0;
            while let Some(grant) = queue.next(Rank::FIRST) {
                assert!(grant.bytes <= QUANTUM - round);
                round += grant.bytes;
                passed[usize::from(grant.rank.0)] += grant.bytes;
                queue.passed(Rank::FIRST, 1, grant.bytes, true);
            }
        }
        let ratio = passed[1] / passed[2];
        assert!((12..20).contains(&ratio), "one quantum in {STARVING_BYTES} bytes: {passed:?}");
    }

    /// Goal: below the best rank a flow keeps its turn, though a round's rest is too small for its
    /// next piece; who takes nothing of a whole quantum loses it. Method: three flows by hand, one
    /// of them in pieces of three quarters of a quantum, one that takes nothing.
    #[test]
    fn a_turn_lasts_several_rounds_below_the_best() {
        let mut queue = ReadyQueue::new(QUANTUM as u32);
        let piece = [QUANTUM * 3 / 4, QUANTUM, u64::MAX];
        (0..3).for_each(|flow| queue.wake(Flow(flow), Rank(1), 1));
        let mut order: Vec<u32> = Vec::new();
        // A turn is 4/3 and 1 of its quanta in rounds, and one round.
        for _ in 0..6 * VISIT_QUANTA {
            queue.begin_round();
            while let Some(Grant { flow, bytes, .. }) = queue.next(Rank::FIRST) {
                let taken =
                    if piece[flow.0 as usize] <= bytes { piece[flow.0 as usize] } else { 0 };
                queue.passed(Rank::FIRST, 0, taken, true);
                if order.last() != Some(&flow.0) {
                    order.push(flow.0);
                }
            }
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 0]);
    }

    /// Goal: within a rank bytes are shared by weight, whatever the lengths of requests. Method:
    /// two flows, one with long and one with short requests, weights 1 and 3.
    #[test]
    fn flows_of_a_rank_share_by_weight() {
        let mut queue = ReadyQueue::new(QUANTUM as u32);
        let (lengths, mut passed) = ([256u64 << 10, 4 << 10], [0u64; 2]);
        queue.wake(Flow(0), Rank(4), 1);
        queue.wake(Flow(1), Rank(4), 3);
        for _ in 0..2000 {
            queue.begin_round();
            // Both are of the best rank: nothing is cut.
            for _ in 0..8 {
                let Some(grant) = queue.next(Rank(4)) else { break };
                let length = lengths[grant.flow.0 as usize];
                let count = grant.bytes.div_ceil(length);
                passed[grant.flow.0 as usize] += count * length;
                queue.passed(Rank(4), 0, count * length, true);
            }
        }
        let ratio = passed[1] as f64 / passed[0] as f64;
        assert!((2.9..3.1).contains(&ratio), "{passed:?}");
    }

    /// Goal: a rank that is held is not served, and a flow that left is forgotten. Method: by hand.
    #[test]
    fn held_and_forgotten_flows_wait() {
        let mut queue = ReadyQueue::new(QUANTUM as u32);
        queue.wake(Flow(3), Rank(2), 1);
        queue.hold(Rank(2), true);
        queue.begin_round();
        assert!(!queue.has_work() && queue.next(Rank::FIRST).is_none());
        queue.hold(Rank(2), false);
        assert!(queue.has_work() && queue.waiting(Rank(2)) == 1);
        queue.forget(Flow(3));
        assert!(!queue.has_work() && queue.next(Rank::FIRST).is_none());
    }
}
