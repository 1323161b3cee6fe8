//! What volumes have done so far, and what of it counts for each class.
//!
//! How: a class's totals are those of its volumes since they came to it, and what volumes that have
//! left it, or have gone, had done in it. The node's view says which volumes a class has; counters
//! are those of the last scrape, and of a look at the shards right before a volume leaves.
//! Invariant: a total of a class never falls. What a volume does counts once, for one class. A
//! class that is deleted takes its totals along; one that is made anew begins at zero.
//! Cost: some hundred bytes per volume; a pass over each latency histogram per look.
//! Not for: requests that end between the look and a deletion: those are in no class's totals.

use crate::config::Name;
use layby_engine::control::{OperationStats, Snapshot, VolumeStats};
use std::collections::{BTreeMap, BTreeSet};

/// Upper ends of the latency buckets in microseconds: 1-2-5 from 10 µs to 10 s.
pub(crate) const LATENCY_BUCKETS_US: [u64; 19] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000,
    500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000,
];

/// How two counters become one.
type Merge = fn(u128, u128) -> u128;

fn merge(own: &mut u64, other: u64, how: Merge) {
    *own = u64::try_from(how((*own).into(), other.into())).unwrap_or(u64::MAX);
}

/// Latencies in the buckets of [`LATENCY_BUCKETS_US`] and one without an end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Buckets {
    pub(crate) counts: [u64; LATENCY_BUCKETS_US.len() + 1],
    pub(crate) sum_ns: u128,
}

impl Buckets {
    fn add(&mut self, operation: &OperationStats) {
        for step in operation.latency_ns.iter_recorded() {
            let nanos = step.value_iterated_to();
            let bucket = LATENCY_BUCKETS_US.partition_point(|us| us * 1_000 < nanos);
            self.counts[bucket] += step.count_at_value();
            self.sum_ns += u128::from(nanos) * u128::from(step.count_at_value());
        }
    }

    fn merge(&mut self, other: &Buckets, how: Merge) {
        let counts = self.counts.iter_mut().zip(other.counts);
        counts.for_each(|(own, other)| merge(own, other, how));
        self.sum_ns = how(self.sum_ns, other.sum_ns);
    }
}

/// One kind of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OperationTotals {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) errors: u64,
    pub(crate) latency: Buckets,
}

impl OperationTotals {
    fn add(&mut self, stats: &OperationStats) {
        self.requests += stats.requests;
        self.bytes += stats.bytes;
        self.errors += stats.errors;
        self.latency.add(stats);
    }

    fn merge(&mut self, other: &OperationTotals, how: Merge) {
        merge(&mut self.requests, other.requests, how);
        merge(&mut self.bytes, other.bytes, how);
        merge(&mut self.errors, other.errors, how);
        self.latency.merge(&other.latency, how);
    }
}

/// Counters of a volume, or of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) read: OperationTotals,
    pub(crate) write: OperationTotals,
    pub(crate) other: OperationTotals,
    /// By level index.
    pub(crate) hits: Vec<u64>,
    pub(crate) misses: u64,
}

impl Totals {
    /// The sum over a volume's parts.
    pub(crate) fn of<'a>(parts: impl IntoIterator<Item = &'a VolumeStats>) -> Totals {
        let mut totals = Totals::default();
        for stats in parts {
            totals.read.add(&stats.read);
            totals.write.add(&stats.write);
            totals.other.add(&stats.other);
            totals.hits.resize(totals.hits.len().max(stats.hits.len()), 0);
            totals.hits.iter_mut().zip(&stats.hits).for_each(|(own, hits)| *own += hits);
            totals.misses += stats.misses;
        }
        totals
    }

    fn merge(&mut self, other: &Totals, how: Merge) {
        self.read.merge(&other.read, how);
        self.write.merge(&other.write, how);
        self.other.merge(&other.other, how);
        self.hits.resize(self.hits.len().max(other.hits.len()), 0);
        let hits = self.hits.iter_mut().zip(&other.hits);
        hits.for_each(|(own, other)| merge(own, *other, how));
        merge(&mut self.misses, other.misses, how);
    }

    fn add(&mut self, other: &Totals) {
        self.merge(other, u128::saturating_add);
    }
}

/// A volume in its class.
#[derive(Debug)]
struct Member {
    class: Name,
    /// What it had done when it came to the class.
    before: Totals,
    /// The most that was ever seen of its counters: two looks may end in another order.
    seen: Totals,
}

impl Member {
    fn new(class: Name, before: Totals) -> Member {
        Member { class, seen: before.clone(), before }
    }

    /// What it has done in its class.
    fn own(&self) -> Totals {
        let mut own = self.seen.clone();
        own.merge(&self.before, u128::saturating_sub);
        own
    }
}

/// See the file's header.
#[derive(Debug, Default)]
pub(crate) struct ClassTotals {
    /// By the volumes' numbers.
    members: BTreeMap<u32, Member>,
    /// What volumes did in a class that have left it.
    departed: BTreeMap<Name, Totals>,
}

impl ClassTotals {
    /// The node has these classes, and these volumes, each with its class, from now on.
    pub(crate) fn follow(&mut self, classes: &BTreeSet<&Name>, volumes: &BTreeMap<u32, &Name>) {
        let (stayed, left) = std::mem::take(&mut self.members)
            .into_iter()
            .partition(|(id, member)| volumes.get(id).is_some_and(|class| **class == member.class));
        self.members = stayed;
        let left: BTreeMap<u32, Member> = left;
        for member in left.values() {
            self.departed.entry(member.class.clone()).or_default().add(&member.own());
        }
        self.departed.retain(|class, _| classes.contains(class));
        for (id, class) in volumes {
            let before = || left.get(id).map(|member| member.seen.clone()).unwrap_or_default();
            let new = || Member::new(Name::clone(class), before());
            self.members.entry(*id).or_insert_with(new);
        }
    }

    /// What shards have counted.
    pub(crate) fn see(&mut self, snapshots: &[Snapshot]) {
        for (id, member) in &mut self.members {
            let all = snapshots.iter().flat_map(|snapshot| &snapshot.volumes);
            let now = Totals::of(all.filter(|stats| stats.volume.0 == *id));
            member.seen.merge(&now, u128::max);
        }
    }

    /// What counts for each class, where that is anything.
    pub(crate) fn by_class(&self) -> BTreeMap<Name, Totals> {
        let mut totals = self.departed.clone();
        for member in self.members.values() {
            totals.entry(member.class.clone()).or_default().add(&member.own());
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    fn done(requests: u64) -> Totals {
        let mut totals = Totals { misses: requests, hits: vec![requests], ..Totals::default() };
        totals.read.requests = requests;
        totals.read.latency.counts[3] = requests;
        totals.read.latency.sum_ns = u128::from(requests) * 70_000;
        totals
    }

    /// Goal: what a volume does counts once, for the class that it is in then, and no class's
    /// totals fall. Method: one volume that moves there and back and is deleted, one that stays; a
    /// look that comes late with old counters; a class that is deleted and made anew.
    #[test]
    fn totals_stay_with_their_class() {
        let (a, b) = (name("a"), name("b"));
        let both = BTreeSet::from([&a, &b]);
        let mut totals = ClassTotals::default();
        let see = |totals: &mut ClassTotals, counts: &[(u32, u64)]| {
            for (id, count) in counts {
                let member = totals.members.get_mut(id).expect("it is there");
                member.seen.merge(&done(*count), u128::max);
            }
        };
        let expect = |totals: &ClassTotals, counts: [u64; 2]| {
            let found = totals.by_class();
            let found = [&a, &b].map(|class| found.get(class).cloned().unwrap_or_default());
            let expected = counts.map(|count| {
                let none = Totals::default();
                if count > 0 { done(count) } else { none }
            });
            for (found, mut expected) in found.into_iter().zip(expected) {
                expected.hits.resize(found.hits.len(), 0);
                assert_eq!(found, expected);
            }
        };
        totals.follow(&both, &BTreeMap::from([(1, &a), (2, &a)]));
        see(&mut totals, &[(1, 10), (2, 5)]);
        expect(&totals, [15, 0]);
        totals.follow(&both, &BTreeMap::from([(1, &b), (2, &a)]));
        expect(&totals, [15, 0]);
        see(&mut totals, &[(1, 14), (2, 5)]);
        expect(&totals, [15, 4]);
        see(&mut totals, &[(1, 11), (2, 5)]);
        expect(&totals, [15, 4]);
        totals.follow(&both, &BTreeMap::from([(1, &a), (2, &a)]));
        see(&mut totals, &[(1, 20), (2, 6)]);
        expect(&totals, [22, 4]);
        totals.follow(&both, &BTreeMap::from([(2, &a)]));
        expect(&totals, [22, 4]);
        totals.follow(&both, &BTreeMap::from([(1, &a), (2, &a)]));
        see(&mut totals, &[(1, 1), (2, 6)]);
        expect(&totals, [23, 4]);
        totals.follow(&BTreeSet::from([&a]), &BTreeMap::from([(2, &a)]));
        totals.follow(&both, &BTreeMap::from([(2, &a)]));
        expect(&totals, [23, 0]);
    }
}
