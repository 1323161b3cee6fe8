//! Restores of volumes that are written meanwhile, and so change under their reader.
//!
//! How: a life in the simulated world goes on between two requests of a restore, until what it was
//! to read next is overwritten, cleaned and deleted.

use super::lives::{BLOCK, BLOCKS, Life};
use crate::action::Fault;
use crate::restore::{READS_MAX, RestoreError, Restored};
use bytes::Bytes;
use std::ops::Range;

/// What a restore came to.
struct Outcome {
    end: Result<usize, RestoreError>,
    state: Vec<Vec<u8>>,
    begins: usize,
}

/// Restores a volume; `before` comes before each request, with its number.
fn restore(life: &mut Life, before: &mut dyn FnMut(&mut Life, usize)) -> Outcome {
    let zeros = || vec![vec![0; BLOCK as usize]; BLOCKS as usize];
    let (state, mut begins, mut requests) = (std::cell::RefCell::new(zeros()), 0, 0);
    let mut fetch = |key: &str, range: Option<Range<u64>>| -> Result<Bytes, Fault> {
        before(life, requests);
        requests += 1;
        life.world.store.get(key, range).map(|(bytes, _)| bytes)
    };
    let mut begin = |_: &Restored| {
        begins += 1;
        state.replace(zeros());
        Ok::<(), RestoreError>(())
    };
    let mut sink = |offset: u64, bytes: &[u8]| {
        for (index, block) in bytes.chunks(BLOCK as usize).enumerate() {
            state.borrow_mut()[(offset / BLOCK) as usize + index] = block.to_vec();
        }
        Ok(())
    };
    let read = Restored::read(&mut fetch, (None, false), &mut begin, &mut sink);
    let end = read.map(|(_, pass)| pass.damaged.len());
    Outcome { end, state: state.into_inner(), begins }
}

fn settled(seed: u64) -> Life {
    let mut life = Life::new(seed);
    life.load(1500);
    life.settle();
    life
}

fn go_on(life: &mut Life) {
    life.load(3000);
    life.settle();
}

/// Goal: a volume that was written while it was restored is restored all the same, as it was at one
/// moment, and no damage is claimed. Method: lives that go on once, before each request there is.
#[test]
fn what_changed_meanwhile_is_read_anew() {
    let mut again = 0;
    for request in 1..12 {
        let mut life = settled(8000 + request as u64);
        let since = life.submitted();
        let outcome = restore(&mut life, &mut |life, number| {
            if number == request {
                go_on(life);
            }
        });
        assert_eq!(outcome.end, Ok(0), "request {request}: {}", life.line);
        let mut counts = since..=life.submitted();
        let is_one = counts.any(|count| life.is_prefix(&outcome.state, count));
        assert!(is_one, "it never was so, request {request}: {}", life.line);
        again += usize::from(outcome.begins > 1);
    }
    assert!(again > 2, "nothing was deleted under a reader: {again}");
}

/// Goal: a restore that never gets to its end says why, and no more often than its bound. Method: a
/// life that goes on before every few requests.
#[test]
fn a_restore_gives_up_on_what_always_changes() {
    let mut life = settled(8100);
    let outcome = restore(&mut life, &mut |life, number| {
        if number % 4 == 3 {
            go_on(life);
        }
    });
    assert_eq!(outcome.end, Err(RestoreError::Changing), "{}", life.line);
    assert!(outcome.begins <= READS_MAX, "{}", outcome.begins);
}

/// Goal: what is missing of a volume that nobody writes is damage, and said at once. Method: a
/// segment removed from a settled store.
#[test]
fn missing_objects_are_damage() {
    let mut life = settled(8200);
    let live = |key: &&String| key.starts_with("segments/");
    let keys: Vec<String> = life.world.store.objects.keys().filter(live).cloned().collect();
    let begins: Vec<usize> = keys
        .iter()
        .filter_map(|key| {
            let object = life.world.store.objects.remove(key).expect("it was listed");
            let outcome = restore(&mut life, &mut |_, _| ());
            life.world.store.objects.insert(key.clone(), object);
            // One that the superblock names and that holds nothing any more is not looked for, and
            // one whose index is needed makes all unreadable.
            outcome.end.is_ok_and(|damaged| damaged > 0).then_some(outcome.begins)
        })
        .collect();
    assert!(!begins.is_empty() && begins.iter().all(|begins| *begins == 1), "{begins:?}");
}
