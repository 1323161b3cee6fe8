//! Names of objects, page by page.
//!
//! How: a page ends with a token that asks for the next one. A token that came before, a page that
//! begins as the one before, and more pages or keys than a volume may have are faults, which are
//! tried again as others are: broken stores would be asked for ever.
//! What else lies beside a volume, or below it, is not kept: a bucket may hold far more of it.
//! Invariant: the requests of a listing, and the memory for its names, are bounded.
//! Cost: a hash of each token. Not for: folders, which name their files at once.

use super::{REQUEST_TIME, within};
use crate::action::{Fault, FaultKind};
use crate::removal::{PREFIXES, is_right_below, temporary_of};
use crate::superblock::SUPERBLOCK_KEY;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use tokio::time::Instant;

/// Keys of a volume that a listing has at most: 64 TiB in segments of 4 MiB, 4 TiB in 256 KiB. What
/// else lies in a bucket beside a volume at its root does not count.
const KEYS_MAX: usize = 1 << 24;
/// Pages that a listing has at most. Stores put a thousand names on one, or as few as they like.
const PAGES_MAX: usize = 1 << 20;

/// A store that names its objects in pages.
#[derive(Clone)]
pub(super) struct Pages(pub(super) Arc<dyn PaginatedListStore>);

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pages")
    }
}

impl Pages {
    /// Reads all pages.
    pub(super) async fn read(&self, mut keys: Keys<'_>) -> Result<Vec<String>, Fault> {
        let below = (!keys.root.is_empty()).then(|| format!("{}/", keys.root));
        let (mut tokens, mut token, mut first_before) = (HashSet::new(), None, None);
        let hasher = RandomState::new();
        for _ in 0..PAGES_MAX {
            let options = PaginatedListOptions { page_token: token, ..Default::default() };
            // The number of pages is not known before: each has a request's time.
            let page = self.0.list_paginated(below.as_deref(), options);
            let page = within(Instant::now(), REQUEST_TIME, page).await?;
            let first = page.result.objects.first().map(|object| object.location.clone());
            if first.is_some() && first == first_before {
                return Err(repeated());
            }
            first_before = first.or(first_before);
            for object in page.result.objects {
                keys.add(object.location.as_ref())?;
            }
            let Some(next) = page.page_token else { return Ok(keys.into_found()) };
            if !tokens.insert(hasher.hash_one(&next)) {
                return Err(repeated());
            }
            token = Some(next);
        }
        let cause = format!("the store has more than {PAGES_MAX} pages of names");
        Err(Fault { kind: FaultKind::Retry, cause })
    }
}

fn repeated() -> Fault {
    let cause = "the store names the same page of objects again and again".to_owned();
    Fault { kind: FaultKind::Retry, cause }
}

/// The keys of a listing.
pub(super) struct Keys<'a> {
    root: String,
    prefix: &'a str,
    found: Vec<String>,
}

impl<'a> Keys<'a> {
    /// Of those below `root`, the ones that begin so.
    pub(super) fn new(root: String, prefix: &'a str) -> Self {
        Keys { root, prefix, found: Vec::new() }
    }

    /// The store named one.
    pub(super) fn add(&mut self, name: &str) -> Result<(), Fault> {
        let below = name.strip_prefix(self.root.as_str());
        let key = below.map(|below| below.trim_start_matches('/'));
        let is_wanted = |key: &&str| key.starts_with(self.prefix) && is_of_a_volume(key);
        self.found.extend(key.filter(is_wanted).map(str::to_owned));
        if self.found.len() > KEYS_MAX {
            let cause = format!("the store names more than {KEYS_MAX} objects of the volume");
            return Err(Fault { kind: FaultKind::Retry, cause });
        }
        Ok(())
    }

    pub(super) fn into_found(self) -> Vec<String> {
        self.found
    }
}

/// Whether a key may be of an object of the volume, or of a file beside one.
fn is_of_a_volume(key: &str) -> bool {
    let is_superblock = temporary_of(key).map_or(key, |(of, _)| of) == SUPERBLOCK_KEY;
    is_superblock || PREFIXES.iter().any(|prefix| is_right_below(key, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::BoxFuture;
    use object_store::list::PaginatedListResult;
    use object_store::path::Path;
    use object_store::{ListResult, ObjectMeta, Result};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Which names, if any, and which token page `n` has.
    type Page = fn(usize) -> (Option<usize>, Option<usize>);

    struct Book(Page, AtomicUsize);

    impl PaginatedListStore for Book {
        fn list_paginated<'a, 'b, 'c>(
            &'a self,
            below: Option<&'b str>,
            options: PaginatedListOptions,
        ) -> BoxFuture<'c, Result<PaginatedListResult>>
        where
            'a: 'c,
            'b: 'c,
            Self: 'c,
        {
            assert_eq!(below, Some("maps/"));
            let number = self.1.fetch_add(1, Ordering::Relaxed);
            assert_eq!(options.page_token.is_some(), number > 0);
            let (name, token) = (self.0)(number);
            let object = name.map(|name| ObjectMeta {
                location: Path::from(format!("maps/segments/{name}")),
                last_modified: Default::default(),
                size: 1,
                e_tag: None,
                version: None,
            });
            let result = ListResult {
                common_prefixes: Vec::new(),
                objects: object.into_iter().collect(),
                extensions: Default::default(),
            };
            let page_token = token.map(|token| token.to_string());
            Box::pin(async { Ok(PaginatedListResult { result, page_token }) })
        }
    }

    /// Goal: a store that repeats itself is found out at once, one that goes on without an end at a
    /// bound, and one that is slow to name things is read. Method: stores that repeat a token, a
    /// round of tokens, a page under new tokens; that have empty pages without an end; and good
    /// ones, with empty pages between.
    #[tokio::test]
    async fn listings_end() {
        let cases: [(Page, usize, Option<usize>); 6] = [
            (|page| (Some(page), Some(7)), 2, None),
            (|page| (Some(page), Some(page % 5)), 6, None),
            (|page| (Some(3), Some(page)), 2, None),
            (|page| (None, Some(page)), PAGES_MAX, None),
            (|page| (Some(page), (page < 9).then_some(page)), 10, Some(10)),
            (|page| ((page % 3 == 2).then_some(page), (page < 8).then_some(page)), 9, Some(3)),
        ];
        for (number, (page, asked, found)) in cases.into_iter().enumerate() {
            let book = Arc::new(Book(page, AtomicUsize::new(0)));
            let keys = Keys::new("maps".to_owned(), "segments/");
            match Pages(book.clone()).read(keys).await {
                Ok(keys) => assert_eq!(Some(keys.len()), found, "case {number}: {keys:?}"),
                Err(fault) => {
                    assert!(found.is_none(), "case {number}: {}", fault.cause);
                    assert_eq!(fault.kind, FaultKind::Retry);
                }
            }
            assert_eq!(book.1.load(Ordering::Relaxed), asked, "case {number}");
        }
    }

    /// Goal: a volume at a bucket's root keeps the names of its own objects alone, however many
    /// others there are, and other volumes below it keep theirs. Method: names of each kind.
    #[test]
    fn what_is_not_the_volumes_is_not_kept() {
        let own = [
            "superblock",
            "superblock#0",
            "superblock#12",
            "segments/0000000000000001-00000001",
            "segments/0000000000000001-00000001#2",
            "checkpoints/0000000000000001-00000001",
            "snapshots/0000000000000001-00000001-00000000",
            "probes/node-1",
        ];
        let others = [
            "photos/1.jpg",
            "index.html",
            "superblock2",
            "superblock#",
            "superblock#1/x",
            "segments",
            "segments/other/segments/0000000000000001-00000001",
            "other/superblock",
            "other/checkpoints/0000000000000001-00000001",
        ];
        for root in ["", "maps"] {
            let mut keys = Keys::new(root.to_owned(), "");
            for name in own.iter().chain(&others) {
                let name =
                    if root.is_empty() { (*name).to_owned() } else { format!("{root}/{name}") };
                assert!(keys.add(&name).is_ok());
            }
            assert_eq!(keys.into_found(), own, "below `{root}`");
        }
    }
}
