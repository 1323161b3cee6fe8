//! Writing a node's catalog, on a disk that may be full.
//!
//! How: the new catalog is written over the file that held the one before the last, and the names
//! of both are exchanged (see [`crate::replace`]). Both files have some room to spare, so that a
//! change which makes the catalog a little longer needs none: a volume can be deleted while the
//! disk is full. What is announced and written ends with blanks up to the file's length.
//! Invariant: at any instant the catalog is the old one or the new one, whole, and the one that
//! was written last is named; the file before it is kept for its room, not to be put back.
//! Cost: the catalog's length once more on the disk, and two syncs per change, beside those of
//! [`last`]. Not for: what is in a catalog.

use super::{CATALOG_FILE_NAME, Catalog, NAMES, encode, last};
use crate::error::Report;
use crate::held;
use crate::replace::{ROOM, exchange, open_staged, pad, stage_within};
use std::io::{Error, ErrorKind};
use std::path::Path;

/// Bytes that the next catalogs may be longer than this one without new room: some deletions.
const SPARE: u64 = 4 << 10;

/// Bytes that a file keeps beyond the room of its catalog, which may have had more volumes. An
/// earlier build let both files grow with each start.
const EXCESS_MAX: u64 = 1 << 20;

/// Bytes of a file for so many of a catalog.
fn room_of(bytes: u64) -> u64 {
    (bytes + SPARE).next_multiple_of(ROOM)
}

impl Catalog {
    /// Replaces the catalog of `dir` with this one.
    ///
    /// # Errors
    /// A report when the disk refuses: as [`Catalog::stage`], then [`Catalog::publish_staged`].
    pub fn save(&self, dir: &Path) -> Result<(), Report> {
        self.stage(dir)?;
        Catalog::publish_staged(dir)
    }

    /// Writes this catalog beside that of `dir`, durably; what needs room on the disk is over then.
    ///
    /// # Errors
    /// A report when the disk refuses; the old catalog stands either way.
    pub fn stage(&self, dir: &Path) -> Result<(), Report> {
        check_held(dir)?;
        stage(dir, &encode(self)).map_err(|cause| unwritten(dir, &cause))
    }

    /// Puts the catalog that was staged last in the place of that of `dir`.
    ///
    /// # Errors
    /// A report when the disk refuses; which catalog stands is not known then, so that the next one
    /// has to be saved whatever it says.
    pub fn publish_staged(dir: &Path) -> Result<(), Report> {
        check_held(dir)?;
        exchange(dir, NAMES).map_err(|cause| {
            unwritten(dir, &cause).state(
                "the node goes on as before; a crash before its next change or a clean stop may \
                 leave the changed catalog",
            )
        })?;
        Catalog::keep_as_last(dir);
        Ok(())
    }

    /// Has no catalog but that of `dir` count as the one that was written last. Where that cannot
    /// be written down, the change stands all the same: the next change or start does it.
    pub(crate) fn keep_as_last(dir: &Path) {
        if let Err(cause) = last::settle(dir) {
            tracing::warn!(%cause, "{}", last::COST);
        }
    }

    /// Replaces the catalog of `dir`, which is `found`, where this one differs; and sees to the
    /// room of the next one.
    ///
    /// # Errors
    /// As [`Catalog::save`].
    pub(crate) fn save_changed(&self, found: Option<&Catalog>, dir: &Path) -> Result<(), Report> {
        if found != Some(self) {
            self.save(dir)?;
        }
        self.keep_room(dir);
        Ok(())
    }

    /// Has the catalog that follows this one in `dir` find room that an earlier build did not
    /// leave. Where there is none, the next change says so.
    fn keep_room(&self, dir: &Path) {
        // Of the catalog, not of its file, which has its room already.
        if let Err(cause) = pad(dir, NAMES.0, room_of(encode(self).len() as u64)) {
            tracing::warn!(%cause, "a full disk may refuse the next change of the node's catalog");
        }
    }
}

fn stage(dir: &Path, bytes: &[u8]) -> std::io::Result<()> {
    stage_by(dir, bytes, |padded| stage_within(dir, NAMES.0, padded))
}

/// With room to spare where there is some; else within what the staged file has.
fn stage_by(
    dir: &Path,
    bytes: &[u8],
    mut write: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let least = bytes.len() as u64;
    let mut stage_to = |length: u64| {
        // An attempt that found no room has made the file longer before.
        let there = open_staged(dir, NAMES.0)?.metadata()?.len();
        let kept = if there > room_of(least) + EXCESS_MAX { 0 } else { there };
        let mut padded = bytes.to_vec();
        padded.resize(usize::try_from(length.max(kept)).map_err(Error::other)?, b'\n');
        last::announce(dir, &padded)?;
        write(&padded)
    };
    match stage_to(room_of(least)) {
        Err(cause) if is_full(&cause) => stage_to(least),
        staged => staged,
    }
}

fn is_full(cause: &Error) -> bool {
    matches!(cause.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Refuses a change of a node whose directory is elsewhere: it may rest on what is at the path.
fn check_held(dir: &Path) -> Result<(), Report> {
    held::check(dir).map_err(|moved| moved.report(error(dir)))
}

fn error(dir: &Path) -> String {
    format!("cannot write the node's catalog `{}`", dir.join(CATALOG_FILE_NAME).display())
}

fn unwritten(dir: &Path, cause: &Error) -> Report {
    Report::from_io(error(dir), cause)
        .state("the catalog is as it was before; no stored data is affected")
        .hint("make room or correct the permissions, then repeat the command")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::VolumeRecord;
    use crate::catalog::tests::example;
    use crate::config::Name;

    /// Goal: catalogs are replaced in the room that two files have, a longer one takes more, and
    /// each is the one that was written last; what an earlier build left has no less room once a
    /// start has seen to it. Method: catalogs of many lengths in turn, files' lengths; a catalog
    /// as an earlier build wrote it.
    #[test]
    fn catalogs_are_replaced_in_the_room_that_they_have() {
        let dir = tempfile::tempdir().expect("a folder");
        let lengths = || {
            let length = |name| std::fs::metadata(dir.path().join(name)).map_or(0, |f| f.len());
            [NAMES.0, NAMES.1].map(length)
        };
        let mut catalog = example();
        let mut save = |volumes: u32, number: u32| {
            let record = example().volumes.values().next().expect("it has one").clone();
            let name = |id: u32| format!("v{id}").parse::<Name>().expect("good");
            let record = |id| (name(id), VolumeRecord { id, ..record.clone() });
            catalog.volumes = (0..volumes).map(record).collect();
            catalog.volume_id_next = 1000 + number;
            catalog.save(dir.path()).expect("there is room");
            last::check(dir.path()).expect("it was written last");
            assert_eq!(Catalog::load(dir.path()), Ok(Some(catalog.clone())));
        };
        save(1, 0);
        save(1, 1);
        let few = lengths();
        assert!(few[0] == few[1] && few[0].is_multiple_of(ROOM), "{few:?}");
        save(4, 2);
        assert_eq!(lengths(), few, "it is a little longer");
        save(400, 3);
        save(400, 4);
        let many = lengths();
        assert!(many[0] == many[1] && many[0] > few[0], "{many:?}");
        save(1, 5);
        save(400, 6);
        assert_eq!(lengths(), many, "a shorter one keeps the room");
        std::fs::remove_file(dir.path().join(NAMES.0)).expect("it was left there");
        std::fs::write(dir.path().join(NAMES.1), encode(&example())).expect("a write");
        example().keep_room(dir.path());
        let kept = lengths();
        assert!(kept[0] >= kept[1] + SPARE, "{kept:?}");
        example().keep_room(dir.path());
        assert_eq!(lengths(), kept);
    }

    /// Goal: starts do not make the catalog's files longer, and what an earlier build made of them
    /// is given back (16 KiB were added by each start that followed an odd number of changes).
    /// Method: 40 starts with no change, one and two between them; files of 2 MiB, two changes.
    #[test]
    fn starts_take_no_more_room() {
        let dir = tempfile::tempdir().expect("a folder");
        let lengths = || {
            let length = |name| std::fs::metadata(dir.path().join(name)).map_or(0, |f| f.len());
            [NAMES.0, NAMES.1].map(length)
        };
        let mut catalog = example();
        let start = |catalog: &mut Catalog, changes: u32| {
            let found = Catalog::load(dir.path()).expect("it is whole");
            catalog.save_changed(found.as_ref(), dir.path()).expect("there is room");
            for _ in 0..changes {
                catalog.volume_id_next += 1;
                catalog.save(dir.path()).expect("there is room");
                last::check(dir.path()).expect("it was written last");
            }
        };
        start(&mut catalog, 2);
        let first = lengths();
        for life in 0..40 {
            start(&mut catalog, life % 3);
            assert_eq!(lengths(), first, "life {life}");
        }
        for name in [NAMES.0, NAMES.1] {
            let path = dir.path().join(name);
            let mut bytes = std::fs::read(&path).expect("it is there");
            bytes.resize(2 << 20, b'\n');
            std::fs::write(&path, bytes).expect("the test's own file");
        }
        start(&mut catalog, 2);
        assert_eq!(lengths(), first, "what was too much is given back");
        assert_eq!(Catalog::load(dir.path()), Ok(Some(catalog)));
    }

    /// Goal: a catalog that was written into the last room of a disk is the one that was written
    /// last, though an attempt at more made the file longer before. Method: a disk that ends within
    /// a block of the first attempt's, at each length that the file may have then.
    #[test]
    fn what_an_attempt_left_is_no_part_of_the_next() {
        const BLOCK: u64 = 4096;
        let bytes = encode(&example());
        for blocks in 0..room_of(bytes.len() as u64) / BLOCK {
            let dir = tempfile::tempdir().expect("a folder");
            let path = dir.path().join(NAMES.0);
            let mut attempts = 0;
            let write = |padded: &[u8]| {
                attempts += 1;
                if attempts == 1 {
                    let room = padded.len().min((blocks * BLOCK) as usize);
                    std::fs::write(&path, &padded[..room])?;
                    return Err(ErrorKind::StorageFull.into());
                }
                stage_within(dir.path(), NAMES.0, padded)
            };
            stage_by(dir.path(), &bytes, write).expect("there is room for the catalog itself");
            Catalog::publish_staged(dir.path()).expect("a rename");
            last::check(dir.path()).unwrap_or_else(|refused| panic!("{blocks} blocks: {refused}"));
            assert_eq!(Catalog::load(dir.path()), Ok(Some(example())), "{blocks} blocks");
        }
    }
}
