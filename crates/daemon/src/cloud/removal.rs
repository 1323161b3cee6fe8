//! Volumes that go from their stores.
//!
//! How: the superblock says first that the volume is deleted, so that nobody opens half of it or
//! clones it; then its objects go, then its marks in its bases, and the superblock last. So a
//! removal that broke off goes on where it was.
//! Invariant: nothing goes that a clone rests on, and nothing that another node serves.
//! Cost: a request per object. Not for: files and devices; see `homes`.

use super::CloudHomes;
use layby_cloud::{
    Base, Deleted, End, Fault, FaultKind, Request, SUPERBLOCK_KEY, Snapshot, Store, Superblock,
};

/// Prefixes of all that a volume has beside its superblock.
const PREFIXES: [&str; 3] = ["segments/", "checkpoints/", "snapshots/"];

/// The clones of a volume, by their names and places.
pub(super) fn clones_of(snapshots: &[Snapshot]) -> Option<String> {
    let clones = snapshots.iter().flat_map(|snapshot| &snapshot.clones);
    let names: Vec<String> =
        clones.map(|clone| format!("`{}` ({})", clone.name, clone.url)).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

impl CloudHomes {
    /// What is at a volume's place, once the removal of one that this node deleted there, and that
    /// broke off, is finished for a new one.
    pub(super) fn finish_removal(
        &self,
        store: &Store,
        found: Option<Superblock>,
        is_new: bool,
    ) -> Result<Option<Superblock>, Fault> {
        match found {
            Some(block) if block.deleted.is_none() => Ok(Some(block)),
            Some(block) if is_new && block.node == self.node().0.to_string() => {
                self.remove_objects(store).map(|()| None)
            }
            Some(block) => {
                let cause = format!("node {} deleted the volume there, not to the end", block.node);
                Err(Fault { kind: FaultKind::Condition, cause })
            }
            None => Ok(None),
        }
    }

    /// Removes a volume from its store.
    pub(super) fn remove_objects(&self, store: &Store) -> Result<(), Fault> {
        let Some(block) = self.superblock(store)? else { return Ok(()) };
        if block.node != self.node().0.to_string() {
            // Another node serves it now: what is there is that node's.
            return Ok(());
        }
        let refused = |block: &Superblock| {
            let cause = format!("volumes are clones of it: {}", clones_of(&block.snapshots)?);
            Some(Fault { kind: FaultKind::Denied, cause })
        };
        let now = u64::try_from(chrono::Utc::now().timestamp()).unwrap_or(0);
        let deleted = Deleted { at_unix: now, until_unix: now };
        let change = |block: &Superblock| Ok(block.marked_deleted(deleted));
        let is_done = |block: &Superblock| block.deleted.is_some() || refused(block).is_some();
        self.replace(store, change, is_done)?;
        let Some(block) = self.superblock(store)? else { return Ok(()) };
        if let Some(refused) = refused(&block) {
            return Err(refused);
        }
        for prefix in PREFIXES {
            let End::Keys(keys) = self.done(store, Request::List { prefix: prefix.to_owned() })?
            else {
                continue;
            };
            for key in keys {
                self.done(store, Request::Delete { key })?;
            }
        }
        if let Some(Base { url, snapshot, .. }) = block.bases.last() {
            let unreachable = |cause| Fault { kind: FaultKind::Denied, cause };
            let base = store.beside(url).map_err(unreachable)?;
            if !self.unmark(url, snapshot, store.url(), &base) {
                let cause = format!("`{url}` cannot be told that its clone is gone");
                return Err(Fault { kind: FaultKind::Retry, cause });
            }
        }
        self.done(store, Request::Delete { key: SUPERBLOCK_KEY.to_owned() }).map(drop)
    }

    fn done(&self, store: &Store, request: Request) -> Result<End, Fault> {
        match self.insist(store, request) {
            End::Failed(fault) => Err(fault),
            end => Ok(end),
        }
    }
}
