//! A file system's allocator in the manner of ext4: where files lie, and when their blocks return.
//!
//! How: block groups, their metadata at the front of every flexible group, copies of the superblock
//! in some, a journal in the middle. A file takes the first free stretch that holds it, from where
//! the last one ended or from the first group. What is deleted comes back with the next commit,
//! which writes to the journal, writes inodes in place, and names what it freed, stretches of one
//! group joined, as ext4 with `discard` does.
//! Invariant: a page belongs to one file, to the free ones, to those freed since the last commit,
//! or to the file system itself; nothing is given out before the commit that freed it.
//! Cost: logarithmic in the free stretches of a group per file, plus the groups passed over.
//! Not for: directories, growth of files, delayed allocation.

use crate::PageRun;
use layby_types::Rng;
use std::collections::{BTreeMap, VecDeque};

/// Where the search for room begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Where the last file ended, as ext4 does for streams.
    Onward,
    /// At the first group, as ext4 does for small files of one directory.
    First,
}

/// A file system, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FilesSpec {
    /// Pages of the volume.
    pub pages: u64,
    /// Pages of a block group.
    pub group_pages: u64,
    /// Pages of a group's bitmaps and inodes; those of a flexible group lie in its first group.
    pub group_metadata_pages: u64,
    /// Groups of a flexible group.
    pub flex_groups: u64,
    /// Pages of a copy of the superblock and the descriptors.
    pub copy_pages: u64,
    /// Pages of the journal.
    pub journal_pages: u64,
    /// Inodes that share a page.
    pub inodes_per_page: u64,
    /// Pages of a file.
    pub file_pages: u64,
    /// Where files go.
    pub placement: Placement,
}

impl FilesSpec {
    /// ext4 as `mkfs` makes it on a volume of so many pages, with files of 1 MiB; everything but
    /// the volume divided by `scale`.
    #[must_use]
    pub fn ext4(pages: u64, scale: u64, placement: Placement) -> FilesSpec {
        let scaled = |pages: u64| (pages / scale).max(1);
        FilesSpec {
            pages,
            group_pages: scaled(32_768),
            group_metadata_pages: scaled(514),
            flex_groups: 16,
            copy_pages: scaled(1025),
            journal_pages: scaled(32_768),
            inodes_per_page: 16 * scale,
            file_pages: scaled(256),
            placement,
        }
    }
}

/// What a commit brings to the device, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// To the journal, then in place.
    pub writes: Vec<PageRun>,
    /// What was freed, by group and ascending; to be told once the writes are durable.
    pub freed: Vec<PageRun>,
}

/// A file system.
#[derive(Clone, Debug)]
pub struct Files {
    spec: FilesSpec,
    /// Free stretches by group: first page to pages.
    free: Vec<BTreeMap<u64, u64>>,
    free_pages: u64,
    /// Files in the order of their making.
    files: VecDeque<Vec<PageRun>>,
    /// Freed since the last commit, by group.
    pending: BTreeMap<usize, BTreeMap<u64, u64>>,
    /// Inodes that changed since the last commit, and pages of groups that did.
    inodes_changed: u64,
    /// Where the last file ended.
    cursor: u64,
    journal: PageRun,
    journal_next: u64,
    rng: Rng,
}

impl Files {
    /// An empty file system. Panics when the volume has no room for what belongs to the system.
    #[must_use]
    pub fn new(spec: FilesSpec, seed: u64) -> Files {
        let groups = spec.pages.div_ceil(spec.group_pages);
        let mut files = Files {
            spec,
            free: (0..groups).map(|_| BTreeMap::new()).collect(),
            free_pages: 0,
            files: VecDeque::new(),
            pending: BTreeMap::new(),
            inodes_changed: 0,
            cursor: 0,
            journal: PageRun { first: 0, count: spec.journal_pages },
            journal_next: 0,
            rng: Rng::new(seed),
        };
        for group in 0..groups {
            files.lay_out(group);
        }
        files.journal = files.take_journal(groups / 2);
        files
    }
    /// Frees a group, but for what is the system's own.
    fn lay_out(&mut self, group: u64) {
        let spec = self.spec;
        let (begin, end) = (group * spec.group_pages, (group + 1) * spec.group_pages);
        let end = end.min(spec.pages);
        let copy = if has_copy(group) { spec.copy_pages } else { 0 };
        let flex = if group.is_multiple_of(spec.flex_groups) {
            spec.flex_groups * spec.group_metadata_pages
        } else {
            0
        };
        let first = begin + copy + flex;
        if first < end {
            self.give(PageRun { first, count: end - first });
        }
    }
    /// Takes one stretch for the journal, cut to what there is in one group.
    fn take_journal(&mut self, near: u64) -> PageRun {
        self.cursor = near * self.spec.group_pages;
        let longest = self.free.iter().flat_map(BTreeMap::values).copied().max();
        let pages = self.spec.journal_pages.min(longest.expect("room for the journal"));
        let run = self.next_fit(pages).expect("the longest stretch is there");
        self.take_from(run, pages);
        self.cursor = 0;
        PageRun { first: run.first, count: pages }
    }
    /// Pages that a file may take now.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.free_pages
    }
    /// Files that are there.
    #[must_use]
    pub fn len(&self) -> usize {
        self.files.len()
    }
    /// Whether there is no file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Makes a file and adds where it lies to `writes`; false, and nothing is changed, where there
    /// is no room until the next commit.
    pub fn create(&mut self, writes: &mut Vec<PageRun>) -> bool {
        if self.spec.placement == Placement::First {
            self.cursor = 0;
        }
        let mut runs = Vec::new();
        if !self.take(self.spec.file_pages, &mut runs) {
            return false;
        }
        writes.extend(&runs);
        self.files.push_back(runs);
        self.inodes_changed += 1;
        true
    }
    /// Deletes the file that was made first, if there is one; its pages return with the commit.
    pub fn delete_oldest(&mut self) -> bool {
        let Some(runs) = self.files.pop_front() else { return false };
        for run in runs {
            let group = (run.first / self.spec.group_pages) as usize;
            self.pending.entry(group).or_default().insert(run.first, run.count);
        }
        self.inodes_changed += 1;
        true
    }
    /// Forgets which files there are; their pages stay taken. For what only fills a device.
    pub fn keep_for_good(&mut self) {
        self.files.clear();
    }

    /// Takes `pages`, in one stretch where there is one, adding what it took to `runs`.
    fn take(&mut self, pages: u64, runs: &mut Vec<PageRun>) -> bool {
        if self.free_pages < pages {
            return false;
        }
        let mut wanted = pages;
        while let Some(run) = self.next_fit(wanted).or_else(|| self.next_fit(1)) {
            let count = run.count.min(wanted);
            self.take_from(run, count);
            runs.push(PageRun { first: run.first, count });
            self.cursor = run.first + count;
            wanted -= count;
            if wanted == 0 {
                return true;
            }
        }
        unreachable!("as many pages are free as are wanted")
    }
    /// The first stretch of at least `pages` from the cursor on, or else from the beginning.
    fn next_fit(&self, pages: u64) -> Option<PageRun> {
        let groups = self.free.len();
        let first = ((self.cursor / self.spec.group_pages) as usize).min(groups - 1);
        let fits =
            |(&first, &count): (&u64, &u64)| (count >= pages).then_some(PageRun { first, count });
        let behind = self.free[first].range(self.cursor..).find_map(fits);
        behind.or_else(|| {
            let mut others = (1..=groups).map(|step| (first + step) % groups);
            others.find_map(|group| self.free[group].iter().find_map(fits))
        })
    }
    fn take_from(&mut self, run: PageRun, count: u64) {
        let group = &mut self.free[(run.first / self.spec.group_pages) as usize];
        group.remove(&run.first);
        if run.count > count {
            group.insert(run.first + count, run.count - count);
        }
        self.free_pages -= count;
    }
    /// Frees a stretch of one group, joined to its neighbours there.
    fn give(&mut self, run: PageRun) {
        let group = &mut self.free[(run.first / self.spec.group_pages) as usize];
        self.free_pages += run.count;
        let (mut first, mut count) = (run.first, run.count);
        if let Some((&before, &pages)) = group.range(..first).next_back()
            && before + pages == first
        {
            group.remove(&before);
            (first, count) = (before, count + pages);
        }
        if let Some(pages) = group.remove(&(first + count)) {
            count += pages;
        }
        group.insert(first, count);
    }

    /// Ends the transaction: what was deleted may be taken again.
    pub fn commit(&mut self) -> Commit {
        let mut commit = Commit::default();
        let groups_changed = self.pending.len() as u64;
        let inode_pages = self.inodes_changed.div_ceil(self.spec.inodes_per_page);
        if self.inodes_changed > 0 || groups_changed > 0 {
            self.write_journal(inode_pages + groups_changed + 2, &mut commit.writes);
            self.write_in_place(inode_pages, &mut commit.writes);
        }
        self.inodes_changed = 0;
        for runs in std::mem::take(&mut self.pending).into_values() {
            let joined = joined(runs);
            joined.iter().for_each(|run| self.give(*run));
            commit.freed.extend(joined);
        }
        commit
    }
    fn write_journal(&mut self, pages: u64, writes: &mut Vec<PageRun>) {
        let mut left = pages.min(self.journal.count);
        while left > 0 {
            let count = left.min(self.journal.count - self.journal_next);
            writes.push(PageRun { first: self.journal.first + self.journal_next, count });
            self.journal_next = (self.journal_next + count) % self.journal.count;
            left -= count;
        }
    }
    /// Pages of inodes and bitmaps, somewhere in the flexible groups' front.
    fn write_in_place(&mut self, pages: u64, writes: &mut Vec<PageRun>) {
        let spec = self.spec;
        let flex = spec.flex_groups * spec.group_pages;
        for _ in 0..pages {
            let group = self.rng.below(spec.pages.div_ceil(flex)) * spec.flex_groups;
            let copy = if has_copy(group) { spec.copy_pages } else { 0 };
            let place = self.rng.below(spec.flex_groups * spec.group_metadata_pages);
            let first = group * spec.group_pages + copy + place;
            if first < spec.pages {
                writes.push(PageRun { first, count: 1 });
            }
        }
    }
}

/// Groups 0 and 1 and those of powers of 3, 5 and 7 hold copies of the superblock.
fn has_copy(group: u64) -> bool {
    let is_power = |base: u64| {
        std::iter::successors(Some(base), |power| power.checked_mul(base))
            .take_while(|power| *power <= group)
            .any(|power| power == group)
    };
    group <= 1 || [3, 5, 7].into_iter().any(is_power)
}

/// Stretches that touch, joined.
fn joined(runs: BTreeMap<u64, u64>) -> Vec<PageRun> {
    let mut joined: Vec<PageRun> = Vec::new();
    for (first, count) in runs {
        match joined.last_mut() {
            Some(last) if last.first + last.count == first => last.count += count,
            _ => joined.push(PageRun { first, count }),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(placement: Placement) -> Files {
        Files::new(FilesSpec::ext4(65_536, 64, placement), 1)
    }

    /// Goal: no page is given out twice, or before the commit that freed it, and none gets lost.
    /// Method: a random life beside a plain array of owners.
    #[test]
    fn pages_have_one_owner() {
        for (seed, placement) in [(1, Placement::Onward), (2, Placement::First)] {
            let (mut files, mut rng) = (system(placement), Rng::new(seed));
            let total = files.free_pages();
            let mut taken = vec![false; 65_536];
            let mut alive: VecDeque<Vec<PageRun>> = VecDeque::new();
            let mut dead: Vec<PageRun> = Vec::new();
            for _ in 0..60_000 {
                let roll = rng.below(100);
                if roll < 55 {
                    let mut runs = Vec::new();
                    if files.create(&mut runs) {
                        for page in runs.iter().flat_map(|run| run.first..run.first + run.count) {
                            assert!(!std::mem::replace(&mut taken[page as usize], true), "{page}");
                        }
                        alive.push_back(runs);
                    }
                } else if roll < 99 {
                    assert_eq!(files.delete_oldest(), !alive.is_empty());
                    dead.extend(alive.pop_front().into_iter().flatten());
                } else {
                    let freed: u64 = files.commit().freed.iter().map(|run| run.count).sum();
                    for run in dead.drain(..) {
                        taken[run.first as usize..(run.first + run.count) as usize].fill(false);
                    }
                    let used = taken.iter().filter(|taken| **taken).count() as u64;
                    assert_eq!(files.free_pages(), total - used, "{freed} freed");
                }
                assert_eq!(files.len(), alive.len());
            }
        }
    }

    /// Goal: what a commit names is what ext4 sends: a stretch per group. Method: a gigabyte of
    /// files made in a row and deleted at once.
    #[test]
    fn a_commit_frees_by_group() {
        let mut files = system(Placement::Onward);
        let (mut writes, mut made) = (Vec::new(), 0);
        while files.free_pages() > 20_000 && files.create(&mut writes) {
            made += 1;
        }
        let first = files.commit();
        assert!(first.freed.is_empty() && !first.writes.is_empty());
        (0..made).for_each(|_| assert!(files.delete_oldest()));
        let freed = files.commit().freed;
        let groups: u64 = (writes.iter().map(|run| run.count).sum::<u64>()).div_ceil(512);
        assert!((groups..groups + 12).contains(&(freed.len() as u64)), "{} {groups}", freed.len());
        assert!(freed.windows(2).all(|two| two[0].first < two[1].first));
        assert!(files.is_empty());
    }

    /// Goal: onward placement comes back to a place late, first placement at once. Method: one file
    /// is deleted and another made.
    #[test]
    fn placement_decides_what_is_reused() {
        for (placement, reuses) in [(Placement::Onward, false), (Placement::First, true)] {
            let mut files = system(placement);
            let (mut first, mut second) = (Vec::new(), Vec::new());
            assert!(files.create(&mut first) && files.create(&mut Vec::new()));
            files.delete_oldest();
            files.commit();
            assert!(files.create(&mut second));
            assert_eq!(first == second, reuses, "{placement:?}");
        }
    }

    /// Goal: copies of the superblock lie where ext4 has them. Method: the first ones.
    #[test]
    fn copies_lie_where_they_should() {
        let copies: Vec<u64> = (0..130).filter(|group| has_copy(*group)).collect();
        assert_eq!(copies, [0, 1, 3, 5, 7, 9, 25, 27, 49, 81, 125]);
    }
}
