//! A journal, a map file and a store that fail as real ones do, all from one seed.
//!
//! How: actions wait and end in a random order, those of the journal and of the map file in theirs.
//! A power cut keeps of the journal what was synced and any part of the rest, and may tear the map
//! file's last append. The store applies a request and loses its answer, or fails it, or keeps it.

use crate::action::{Action, ActionId, Condition, End, Fault, FaultKind, Request, Tag};
use bytes::Bytes;
use layby_types::Rng;
use std::collections::BTreeMap;
use std::ops::Range;

/// How often the store fails, of 100 requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) errors: u64,
    pub(super) lost_replies: u64,
    /// Puts that are said to conflict with others, though nothing was stored.
    pub(super) conflicts: u64,
    pub(super) is_cut: bool,
}

#[derive(Clone, Default)]
pub(super) struct Store {
    pub(super) objects: BTreeMap<String, (Bytes, u64)>,
    version: u64,
    pub(super) puts: u64,
    /// A key that never answers.
    pub(super) stuck: Option<String>,
    /// Where a clone's base lies.
    pub(super) base: Option<Box<Store>>,
}

fn failed(kind: FaultKind) -> End {
    End::Failed(Fault { kind, cause: format!("{kind:?}") })
}

impl Store {
    pub(super) fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<(Bytes, u64), Fault> {
        if let (Some(_), key) = crate::clone::split_key(key) {
            return self.base.as_ref().expect("a clone has a base").get(key, range);
        }
        let absent = || Fault { kind: FaultKind::NotFound, cause: key.to_owned() };
        let (bytes, version) = self.objects.get(key).ok_or_else(absent)?;
        let range = range.unwrap_or(0..u64::MAX);
        let length = bytes.len() as u64;
        let cut = range.start.min(length) as usize..range.end.min(length) as usize;
        Ok((bytes.slice(cut), *version))
    }

    pub(super) fn perform(&mut self, request: &Request) -> End {
        match request {
            Request::Get { key, range } => match self.get(key, range.clone()) {
                Ok((bytes, version)) => End::Bytes(bytes, Some(Tag(version.to_string()))),
                Err(fault) => End::Failed(fault),
            },
            Request::Put { key, bytes, condition } => {
                let held = self.objects.get(key).map(|(_, version)| version.to_string());
                let may = match condition {
                    Condition::Create => held.is_none(),
                    Condition::Replace(tag) => held.as_ref() == Some(&tag.0),
                };
                if !may {
                    return failed(FaultKind::Condition);
                }
                self.version += 1;
                self.puts += 1;
                self.objects.insert(key.clone(), (bytes.clone(), self.version));
                End::Stored(Tag(self.version.to_string()))
            }
            Request::Delete { key } => {
                self.objects.remove(key);
                End::Done
            }
            Request::List { prefix } => {
                let keys = self.objects.keys().filter(|key| key.starts_with(prefix));
                End::Keys(keys.cloned().collect())
            }
        }
    }
}

/// A node's devices.
#[derive(Default)]
pub(super) struct Disks {
    journal: Vec<u8>,
    /// Writes that no sync covers, in order.
    unsynced: Vec<(u64, Vec<u8>)>,
    pub(super) map_file: Vec<u8>,
}

impl Disks {
    pub(super) fn new(journal_bytes: u64, (map_file, first_page): (Vec<u8>, Vec<u8>)) -> Self {
        let mut journal = vec![0; journal_bytes as usize];
        journal[..first_page.len()].copy_from_slice(&first_page);
        Disks { journal, unsynced: Vec::new(), map_file }
    }

    pub(super) fn read(&self, at: u64, length: u64) -> Result<Vec<u8>, String> {
        let mut bytes =
            self.journal.get(at as usize..(at + length) as usize).ok_or("beyond")?.to_vec();
        for (from, written) in &self.unsynced {
            for (index, byte) in written.iter().enumerate() {
                let place = from + index as u64;
                if (at..at + length).contains(&place) {
                    bytes[(place - at) as usize] = *byte;
                }
            }
        }
        Ok(bytes)
    }

    pub(super) fn rot(&mut self, at: u64) {
        self.journal[at as usize] ^= 0x10;
    }

    fn sync(&mut self) {
        for (at, bytes) in std::mem::take(&mut self.unsynced) {
            self.journal[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// The power fails: of what was not synced any sectors may have come through.
    fn cut(&mut self, rng: &mut Rng) {
        for (at, bytes) in std::mem::take(&mut self.unsynced) {
            for (index, sector) in bytes.chunks(512).enumerate() {
                if rng.chance(1, 2) {
                    let at = at as usize + index * 512;
                    self.journal[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
    }
}

/// Actions that wait for their end.
pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) disks: Disks,
    pub(super) store: Store,
    pub(super) faults: Faults,
    journal: Vec<(ActionId, Action)>,
    map_file: Vec<(ActionId, Action)>,
    others: Vec<(ActionId, Action)>,
}

impl World {
    pub(super) fn new(seed: u64, disks: Disks) -> Self {
        World {
            rng: Rng::new(seed),
            disks,
            store: Store::default(),
            faults: Faults::default(),
            journal: Vec::new(),
            map_file: Vec::new(),
            others: Vec::new(),
        }
    }

    pub(super) fn take(&mut self, actions: Vec<(ActionId, Action)>) {
        for (id, action) in actions {
            match action {
                Action::JournalWrite { .. } | Action::JournalSync => {
                    self.journal.push((id, action));
                }
                Action::MapAppend(_) | Action::MapReplace(_) => self.map_file.push((id, action)),
                _ => self.others.push((id, action)),
            }
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.journal.is_empty() && self.map_file.is_empty() && self.others.is_empty()
    }

    /// Performs one action that waits, any one that may be next.
    pub(super) fn step(&mut self) -> Option<(ActionId, End)> {
        let counts = [self.journal.len().min(1), self.map_file.len().min(1), self.others.len()];
        let total: usize = counts.iter().sum();
        if total == 0 {
            return None;
        }
        let draw = self.rng.below(total as u64) as usize;
        if draw < counts[0] {
            let (id, action) = self.journal.remove(0);
            return Some((id, self.journal_action(action)));
        }
        if draw < counts[0] + counts[1] {
            let (id, action) = self.map_file.remove(0);
            match action {
                Action::MapAppend(bytes) => self.disks.map_file.extend(bytes),
                Action::MapReplace(bytes) => self.disks.map_file = bytes,
                _ => unreachable!("sorted above"),
            }
            return Some((id, End::Done));
        }
        let (id, action) = self.others.remove(draw - counts[0] - counts[1]);
        match &action {
            Action::JournalRead { at, length } => {
                let bytes = self.disks.read(*at, *length).expect("within the device");
                Some((id, End::Bytes(bytes.into(), None)))
            }
            Action::Object(request) | Action::Fetch(request) | Action::Upload { request, .. } => {
                match self.object(request) {
                    Some(end) => Some((id, end)),
                    None => {
                        self.others.push((id, action));
                        None
                    }
                }
            }
            _ => unreachable!("sorted above"),
        }
    }

    fn journal_action(&mut self, action: Action) -> End {
        match action {
            Action::JournalWrite { at, bytes } => self.disks.unsynced.push((at, bytes)),
            _ => self.disks.sync(),
        }
        End::Done
    }

    fn object(&mut self, request: &Request) -> Option<End> {
        if let (Request::Get { key, .. }, Some(stuck)) = (request, &self.store.stuck)
            && key == stuck
        {
            return None;
        }
        if self.faults.is_cut || self.rng.chance(self.faults.errors, 100) {
            return Some(failed(FaultKind::Retry));
        }
        if matches!(request, Request::Put { .. }) && self.rng.chance(self.faults.conflicts, 100) {
            return Some(failed(FaultKind::Condition));
        }
        let end = self.store.perform(request);
        let is_lost = self.rng.chance(self.faults.lost_replies, 100);
        Some(if is_lost { failed(FaultKind::Retry) } else { end })
    }

    /// Performs a request of one that waits for its end.
    pub(super) fn ask(&mut self, request: &Request) -> End {
        self.object(request).expect("its object answers")
    }

    /// The node dies with what it had under way: requests to the store may still arrive.
    pub(super) fn cut_power(&mut self) {
        for (_, action) in std::mem::take(&mut self.journal) {
            if let Action::JournalWrite { at, bytes } = action {
                self.disks.unsynced.push((at, bytes));
            }
        }
        self.disks.cut(&mut self.rng);
        if let Some((_, Action::MapAppend(bytes))) = self.map_file.first() {
            let keep = self.rng.below(bytes.len() as u64 + 1) as usize;
            self.disks.map_file.extend_from_slice(&bytes[..keep]);
        }
        self.map_file.clear();
        for (_, action) in std::mem::take(&mut self.others) {
            if let Action::Object(request @ Request::Put { .. }) | Action::Upload { request, .. } =
                action
                && !self.faults.is_cut
                && self.rng.chance(1, 2)
            {
                self.store.perform(&request);
            }
        }
    }
}
