//! Deletions of volumes: marked, taken back, removed; broken off anywhere, and met by other nodes.
//!
//! How: a life of a volume in the simulated world fills a store; then conversations with that store
//! are held, cut after any number of requests, with faults or without, and lives go on after them.

use super::lives::{Life, NODE};
use crate::action::{Condition, End, Fault, FaultKind, Request};
use crate::clone::ClonePlan;
use crate::removal::{Goal, KEYS_MAX, Removal, RemovalError, Step};
use crate::segment::VolumeUuid;
use crate::simulated::{SimFaults as Faults, SimStore as Store};
use crate::snapshot::{CloneMark, SnapshotChange};
use crate::superblock::{Deleted, SUPERBLOCK_KEY, Superblock};
use crate::volume::{Link, sessions_of};

const VOLUME: VolumeUuid = VolumeUuid([1; 16]);
const OTHER: VolumeUuid = VolumeUuid([8; 16]);
const GRACE: Deleted = Deleted { at_unix: 100, until_unix: 900, removing: false };
/// What lies further below a volume's place is another's, and so is what is named otherwise.
const BESIDE: [&str; 19] = [
    "checkpoints/0000000000000001-0000000g",
    "checkpoints/other/checkpoints/0000000000000001-00000000",
    "checkpoints/other/superblock",
    "checkpoints/other/superblock#1",
    "other/segments/0000000000000001-00000000",
    "other/segments/0000000000000001-00000000#1",
    "probes/notes.txt",
    "probes/other-0000000000000001#0",
    "segments/0000000000000001-00000000#",
    "segments/0000000000000001-00000000#1a",
    "segments/1-2",
    "segments/1-2#1",
    "segments/notes.txt",
    "segments/notes.txt#1",
    "segments/other/segments/0000000000000001-00000000",
    "segments/other/segments/0000000000000001-00000000#1",
    "snapshots/x-00000000-y",
    "snapshots/x-00000000-y#1",
    "snapshots/x-00000000-y/superblock",
];
/// Requests of a conversation at most, repetitions included.
const REQUESTS_MAX: usize = 10_000;

/// A settled life with a snapshot, beside objects of other volumes.
fn life(seed: u64) -> Life {
    let mut life = Life::new(seed);
    life.load(600);
    life.settle();
    let make = SnapshotChange::Make { name: "s0".to_owned(), now_unix: 7 };
    assert_eq!(life.end_of(make), Ok(()));
    for key in BESIDE {
        let (bytes, condition) = (bytes::Bytes::from_static(b"x"), Condition::Create);
        life.world.store.perform(&Request::Put { key: key.to_owned(), bytes, condition });
    }
    life
}

/// Talks until it is over, or for so many requests; a fault that may pass is met by asking again.
fn talk(life: &mut Life, goal: Goal, requests: usize) -> Option<Result<(), RemovalError>> {
    talk_and_break_off(life, goal, requests, 0)
}

/// The same; the request after those, where it removes objects, comes through for so many of them.
fn talk_and_break_off(
    life: &mut Life,
    goal: Goal,
    requests: usize,
    part: usize,
) -> Option<Result<(), RemovalError>> {
    let sessions = sessions_of(&life.world.disks.map_file);
    let mut removal = Removal::new(NODE, Some(VOLUME), goal).with_sessions(sessions);
    for _ in 0..requests {
        match removal.step() {
            Step::Over(result) => return Some(result),
            Step::TellBase(_) => removal.on_base(true),
            Step::AskOnce(request, _) => removal.on_end(life.world.ask(&request)),
            Step::Ask(request) => {
                let mut answers = std::iter::from_fn(|| Some(life.world.ask(&request)));
                let end = answers.find(|end| match end {
                    End::Failed(fault) => fault.kind != FaultKind::Retry,
                    _ => true,
                });
                removal.on_end(end.expect("faults are not for ever"));
            }
        }
    }
    match removal.step() {
        Step::Over(result) => Some(result),
        Step::Ask(Request::DeleteMany { mut keys }) => {
            keys.truncate(part);
            life.world.store.perform(&Request::DeleteMany { keys });
            None
        }
        _ => None,
    }
}

fn whole(life: &mut Life, goal: Goal) -> Result<(), RemovalError> {
    talk(life, goal, REQUESTS_MAX).expect("a conversation ends")
}

fn superblock(store: &Store) -> Option<Superblock> {
    let (bytes, _) = store.get(SUPERBLOCK_KEY, None).ok()?;
    Some(Superblock::decode(&bytes).expect("it is whole"))
}

/// All that the volume has beside its superblock.
fn objects(store: &Store) -> Vec<String> {
    let is_beside = |key: &&String| BESIDE.contains(&key.as_str());
    let keys = store.objects.keys().filter(|key| *key != SUPERBLOCK_KEY && !is_beside(key));
    keys.cloned().collect()
}

/// Goal: a marked volume is served by nobody and loses nothing; with the word taken back it is what
/// it was, its snapshot included, on its node's disks or on empty ones. Method: lives with faults,
/// writes that the store lacks, marks and their end cut after any request, a power cut.
#[test]
fn a_deletion_taken_back_loses_nothing() {
    for seed in 7000..7030 {
        let mut life = life(seed);
        life.volume.set_draining(false);
        life.load(50);
        life.sync_all();
        let faults = Faults { errors: 20, lost_replies: 20, conflicts: 10, ..Faults::default() };
        life.stop();
        let before = objects(&life.world.store);
        let state = life.whole_state();
        life.world.faults = faults;
        for requests in 0..3 {
            talk(&mut life, Goal::Mark(GRACE), requests);
        }
        assert_eq!(whole(&mut life, Goal::Mark(GRACE)), Ok(()));
        let marked = superblock(&life.world.store).expect("it stays");
        assert_eq!(marked.deleted, Some(GRACE), "{}", life.line);
        assert_eq!(objects(&life.world.store), before, "{}", life.line);
        life.world.faults = Faults::default();
        life.open_again();
        for _ in 0..200 {
            life.tick();
        }
        let link = life.volume.status().link;
        assert!(matches!(&link, Link::Lost(why) if why.contains("deleted")), "{link:?}");
        assert_eq!(objects(&life.world.store), before, "{}", life.line);
        life.world.faults = faults;
        for requests in 0..3 {
            talk(&mut life, Goal::Unmark, requests);
        }
        assert_eq!(whole(&mut life, Goal::Unmark), Ok(()));
        life.world.faults = Faults::default();
        let now = superblock(&life.world.store).expect("it stays");
        assert!(now.deleted.is_none() && now.snapshots.len() == 1, "{now:?}");
        life.stop();
        life.open_again();
        assert!(life.read_all() == state, "{}", life.line);
        life.crash();
        life.load(200);
        life.settle();
        let kept = BESIDE.iter().all(|key| life.world.store.objects.contains_key(*key));
        assert!(kept, "a session takes what is another's: {}", life.line);
    }
}

/// Goal: a removal that breaks off at any request is finished by the next one, takes all that is
/// the volume's and nothing else, and cannot be taken back once an object may be gone; until then
/// it can, whole. Method: removals cut after every number of requests there is and of objects in
/// the next one, with a mark before them and without; each continued, and each met by the wish to
/// take it back.
#[test]
fn a_removal_that_broke_off_goes_on() {
    for is_marked in [true, false] {
        // How many objects a life leaves is chance's, so the first one that has enough is taken.
        let has_many = |life: &Life| objects(&life.world.store).len() > 6;
        let mut life = (7100..7120).map(life).find(has_many).expect("one in twenty has many");
        life.stop();
        if is_marked {
            assert_eq!(whole(&mut life, Goal::Mark(GRACE)), Ok(()));
        }
        let (full, all) = (life.world.store.clone(), objects(&life.world.store));
        for turn in 0.. {
            let (requests, part) = (turn / (all.len() + 1), turn % (all.len() + 1));
            life.world.store = full.clone();
            let end = talk_and_break_off(&mut life, Goal::Remove(GRACE), requests, part);
            let has_begun = superblock(&life.world.store)
                .is_none_or(|block| block.deleted.is_some_and(|deleted| deleted.has_begun()));
            let left = objects(&life.world.store);
            assert!(has_begun || left == all, "{requests}: nothing goes before the word");
            let cut = life.world.store.clone();
            match whole(&mut life, Goal::Unmark) {
                Ok(()) => assert!(!has_begun && left == all, "{requests}"),
                Err(RemovalError::Begun) => assert!(has_begun, "{requests}"),
                Err(RemovalError::Absent) => assert!(end.is_some(), "{requests}"),
                Err(other) => panic!("{requests}: {other}"),
            }
            life.world.store = cut;
            assert_eq!(whole(&mut life, Goal::Remove(GRACE)), Ok(()), "{requests}");
            let kept: Vec<&String> = life.world.store.objects.keys().collect();
            assert_eq!(kept, BESIDE, "{requests}");
            if end.is_some() {
                break;
            }
        }
    }
}

/// Goal: a removal of many objects takes few requests, and the superblock goes last. Method: a
/// store with so many objects that three requests are needed for them; requests in their order.
#[test]
fn many_objects_go_in_few_requests() {
    let mut life = life(7150);
    life.stop();
    let named = |prefix: &str| {
        objects(&life.world.store).iter().filter(|key| key.starts_with(prefix)).count()
    };
    let more = 3 * KEYS_MAX - named("segments/");
    for number in 0..more {
        let key = format!("segments/{:016x}-00000009", 1_000_000 + number);
        let (bytes, condition) = (bytes::Bytes::from_static(b"x"), Condition::Create);
        life.world.store.perform(&Request::Put { key, bytes, condition });
    }
    let (mut removal, mut asked) =
        (Removal::new(NODE, Some(VOLUME), Goal::Remove(GRACE)), Vec::new());
    while let Step::Ask(request) | Step::AskOnce(request, _) = removal.step() {
        asked.push(match &request {
            Request::DeleteMany { keys } => format!("delete {}", keys.len().min(KEYS_MAX)),
            Request::Delete { key } => format!("delete {key}"),
            Request::List { prefix } => format!("list {prefix}"),
            Request::Get { key, .. } => format!("get {key}"),
            Request::Put { key, .. } => format!("put {key}"),
        });
        removal.on_end(life.world.ask(&request));
    }
    let segments = ["list segments/", "delete 1000", "delete 1000", "delete 1000"];
    let expected = [&["get superblock", "put superblock"][..], &segments].concat();
    assert_eq!(asked[..expected.len()], expected);
    assert_eq!(asked.last().map(String::as_str), Some("delete superblock"));
    assert!(asked.len() <= expected.len() + 6, "{asked:?}");
    let kept: Vec<&String> = life.world.store.objects.keys().collect();
    assert_eq!(kept, BESIDE);
}

/// Goal: a removal takes what uploads that were cut short left in a folder, of every session, and
/// what a probe left, of every node; none of another volume's or of strangers. Method: such names
/// in a store, beside the others'.
#[test]
fn a_removal_takes_what_was_cut_short() {
    let mut life = life(7160);
    life.stop();
    let own = ["segments/0000000000000001", "checkpoints/00000000000000ff"];
    let own =
        own.iter().flat_map(|key| [format!("{key}-00000000#1"), format!("{key}-00000009#23")]);
    let snapshot = format!("snapshots/{:016x}-{:08x}-{:08x}#2", 1, 9, 7);
    let probes = [NODE, OTHER].map(|node| format!("probes/{node}-{:016x}", 7));
    let probes =
        probes.iter().flat_map(|key| [key.clone(), format!("{key}#0"), format!("{key}#1")]);
    for key in own.chain([snapshot]).chain(probes) {
        let (bytes, condition) = (bytes::Bytes::from_static(b"x"), Condition::Create);
        life.world.store.perform(&Request::Put { key, bytes, condition });
    }
    assert_eq!(whole(&mut life, Goal::Remove(GRACE)), Ok(()));
    let kept: Vec<&String> = life.world.store.objects.keys().collect();
    assert_eq!(kept, BESIDE);
}

/// Goal: what fails on the way, or is said to conflict, changes no end. Method: removals and marks
/// under faults, by many seeds.
#[test]
fn removals_end_through_faults() {
    for seed in 7200..7240 {
        let mut life = life(seed);
        life.stop();
        life.world.faults =
            Faults { errors: 30, lost_replies: 30, conflicts: 20, ..Faults::default() };
        if seed % 2 == 0 {
            assert_eq!(whole(&mut life, Goal::Mark(GRACE)), Ok(()), "{}", life.line);
        }
        assert_eq!(whole(&mut life, Goal::Remove(GRACE)), Ok(()), "{}", life.line);
        let kept: Vec<&String> = life.world.store.objects.keys().collect();
        assert_eq!(kept, BESIDE, "{}", life.line);
        assert_eq!(whole(&mut life, Goal::Unmark), Err(RemovalError::Absent));
    }
}

/// Performs a removal's requests as a node does; the superblock's first deletion is said to have
/// failed, and `meanwhile` happens behind it. Ends with the number of such deletions.
fn remove_with_a_lost_answer(
    store: &mut Store,
    volume: Option<VolumeUuid>,
    is_done: bool,
    mut meanwhile: impl FnMut(&mut Store) -> bool,
) -> (Result<(), RemovalError>, u32) {
    const ATTEMPTS_MAX: u32 = 5;
    let mut removal = Removal::new(NODE, volume, Goal::Remove(GRACE));
    let (mut lost, mut is_last_lost) = (0, true);
    loop {
        let (request, attempts_max) = match removal.step() {
            Step::Ask(request) => (request, ATTEMPTS_MAX),
            Step::AskOnce(request, _) => (request, 1),
            Step::TellBase(_) => unreachable!("it is no clone"),
            Step::Over(end) => return (end, lost),
        };
        let is_last = matches!(&request, Request::Delete { key } if key == SUPERBLOCK_KEY);
        let mut end = None;
        for _ in 0..attempts_max {
            if !(is_last && is_last_lost) {
                end = Some(store.perform(&request));
                break;
            }
            if is_done {
                store.perform(&request);
            }
            lost += 1;
            is_last_lost = meanwhile(store);
        }
        let silent = || Fault { kind: FaultKind::Retry, cause: "no answer".to_owned() };
        removal.on_end(end.unwrap_or_else(|| End::Failed(silent())));
    }
}

/// Goal: a deletion of the superblock that fails is not repeated at once, and ever later; a removal
/// that begins anew starts over. Method: a store that fails each such deletion.
#[test]
fn deletions_of_the_superblock_pause() {
    let mut store = life(7100).world.store;
    for _ in 0..2 {
        let mut removal = Removal::new(NODE, Some(VOLUME), Goal::Remove(GRACE));
        let mut pauses = Vec::new();
        let end = loop {
            let end = match removal.step() {
                Step::Ask(request) => store.perform(&request),
                Step::AskOnce(_, pause) => {
                    pauses.push(pause.as_millis());
                    End::Failed(Fault { kind: FaultKind::Retry, cause: "no answer".to_owned() })
                }
                Step::TellBase(_) => unreachable!("it is no clone"),
                Step::Over(end) => break end,
            };
            removal.on_end(end);
        };
        assert!(matches!(end, Err(RemovalError::Store(_))), "{end:?}");
        assert_eq!(pauses, [0, 200, 400, 800, 1600]);
    }
}

/// Goal: a removal deletes no superblock that came behind its own, where the answer to the deletion
/// of its own is lost and another volume begins at the place; a deletion that was not done is asked
/// for again, and not for ever. Method: a store whose answer to it is lost once, with the deletion
/// done and another node's or the same node's superblock put, or not done; then one where it fails
/// each time. The number of the volume is known or not.
#[test]
fn a_removal_deletes_no_later_superblock() {
    for volume in [Some(VOLUME), None] {
        let mut life = life(7250);
        life.stop();
        let block = superblock(&life.world.store).expect("it is there");
        for node in [NODE, OTHER] {
            let (other, node) = (VolumeUuid([2; 16]).to_string(), node.to_string());
            let later = Superblock { volume: other, node, snapshots: Vec::new(), ..block.clone() };
            let mut store = life.world.store.clone();
            let (end, lost) = remove_with_a_lost_answer(&mut store, volume, true, |store| {
                let (key, bytes) = (SUPERBLOCK_KEY.to_owned(), later.encode().into());
                store.perform(&Request::Put { key, bytes, condition: Condition::Create });
                false
            });
            assert_eq!((superblock(&store), lost), (Some(later), 1), "it is another volume's");
            assert_eq!((end, objects(&store)), (Ok(()), Vec::new()));
        }
        let mut store = life.world.store.clone();
        let (end, lost) = remove_with_a_lost_answer(&mut store, volume, false, |_| false);
        assert_eq!((end, lost, superblock(&store)), (Ok(()), 1, None));
        let mut store = life.world.store.clone();
        let (end, lost) = remove_with_a_lost_answer(&mut store, volume, false, |_| true);
        assert!(matches!(end, Err(RemovalError::Store(_))), "{end:?}");
        assert!(lost <= 10, "{lost} deletions");
        assert_eq!(whole(&mut life, Goal::Remove(GRACE)), Ok(()), "the next one ends it");
    }
}

/// Goal: a node that lost its volume to another neither marks nor removes it. Method: all goals
/// after a takeover; a removal of another volume there.
#[test]
fn a_fenced_node_deletes_nothing() {
    let mut life = life(7300);
    drop(life.lose_disks(OTHER));
    life.settle();
    let before = life.world.store.objects.clone();
    for goal in [Goal::Mark(GRACE), Goal::Unmark, Goal::Remove(GRACE)] {
        let refused = whole(&mut life, goal);
        assert_eq!(refused, Err(RemovalError::OtherNode(OTHER.to_string())), "{goal:?}");
    }
    assert!(life.world.store.objects == before, "it changed what is another node's");
    // Its own node, which serves it, finds out at its next word.
    life.stop();
    let mut removal = Removal::new(OTHER, Some(VolumeUuid([2; 16])), Goal::Remove(GRACE));
    while let Step::Ask(request) | Step::AskOnce(request, _) = removal.step() {
        removal.on_end(life.world.ask(&request));
    }
    let Step::Over(refused) = removal.step() else { panic!("it is over") };
    assert_eq!(refused, Err(RemovalError::OtherVolume(VOLUME.to_string())));
    assert!(life.world.store.objects == before);
}

/// Talks without faults until it is over; `between` is done after each request.
fn talk_with(
    life: &mut Life,
    sessions: &[u64],
    goal: Goal,
    between: fn(&mut Life),
) -> Result<(), RemovalError> {
    let mut removal = Removal::new(NODE, Some(VOLUME), goal).with_sessions(sessions.to_vec());
    loop {
        match removal.step() {
            Step::Ask(request) | Step::AskOnce(request, _) => {
                removal.on_end(life.world.ask(&request));
            }
            Step::TellBase(_) => unreachable!("it is no clone"),
            Step::Over(end) => return end,
        }
        between(life);
    }
}

/// Goal: an older copy of a node's directory, whose catalog says that a volume is deleted, changes
/// nothing of it once another copy has served it since; until then, and where no session is known,
/// its word is as good as the other one's. Method: all goals with the sessions of before a life
/// that followed on a deletion taken back, with the volume served and deleted again; then with the
/// sessions of after it, with none, and by a superblock that names none.
#[test]
fn an_older_copy_deletes_nothing() {
    let goals = [Goal::Mark(GRACE), Goal::Unmark, Goal::Remove(GRACE)];
    for is_deleted_again in [false, true] {
        let mut life = life(7350);
        life.stop();
        let older = sessions_of(&life.world.disks.map_file);
        assert!(!older.is_empty(), "the map file remembers what was served");
        for goal in [Goal::Mark(GRACE), Goal::Unmark] {
            assert_eq!(whole(&mut life, goal), Ok(()));
            assert_eq!(talk_with(&mut life, &older, goal, |_| ()), Ok(()), "no node served it");
        }
        life.open_again();
        life.settle();
        life.load(100);
        life.settle();
        life.stop();
        if is_deleted_again {
            assert_eq!(whole(&mut life, Goal::Mark(GRACE)), Ok(()));
        }
        let before = life.world.store.objects.clone();
        let block = superblock(&life.world.store).expect("it is there");
        for goal in goals {
            let refused = talk_with(&mut life, &older, goal, |_| ());
            assert_eq!(refused, Err(RemovalError::OtherCopy(block.epoch)), "{goal:?}");
        }
        assert!(life.world.store.objects == before, "it changed what is another copy's");
        let newer = sessions_of(&life.world.disks.map_file);
        for goal in [Goal::Unmark, Goal::Mark(GRACE)] {
            assert_eq!(talk_with(&mut life, &newer, goal, |_| ()), Ok(()), "{goal:?}");
            assert_eq!(talk_with(&mut life, &[], goal, |_| ()), Ok(()), "{goal:?}");
        }
        let (bytes, _) = life.world.store.objects.get_mut(SUPERBLOCK_KEY).expect("it is there");
        *bytes = Superblock { session: 0, ..block }.encode().into();
        assert_eq!(talk_with(&mut life, &older, Goal::Remove(GRACE), |_| ()), Ok(()));
        let kept: Vec<&String> = life.world.store.objects.keys().collect();
        assert_eq!(kept, BESIDE);
    }
}

/// Goal: where an older copy's deletion meets the start of the directory that brought the volume
/// back, one of both wins whole: the volume is served and nothing of it goes, or it goes and is
/// served by no node. Method: marks and removals by turns with that start's steps, at every offset.
#[test]
fn a_deletion_by_an_older_copy_meets_a_start() {
    let mut ends = [0; 2];
    for (goal, offset) in [Goal::Mark(GRACE), Goal::Remove(GRACE)]
        .iter()
        .flat_map(|goal| (0..24).map(move |o| (*goal, o)))
    {
        let mut life = life(7360);
        life.stop();
        let older = sessions_of(&life.world.disks.map_file);
        life.open_again();
        (0..offset).for_each(|_| life.tick());
        let end = talk_with(&mut life, &older, goal, Life::tick);
        (0..400).for_each(|_| life.tick());
        let link = life.volume.status().link;
        match end {
            Ok(()) => assert!(matches!(link, Link::Lost(_)), "{goal:?} {offset}: {link:?}"),
            Err(RemovalError::OtherCopy(_)) => {
                assert_eq!(link, Link::Up, "{goal:?} {offset}");
                assert!(superblock(&life.world.store).is_some_and(|b| b.deleted.is_none()));
            }
            Err(other) => panic!("{goal:?} {offset}: {other}"),
        }
        ends[usize::from(link == Link::Up)] += 1;
    }
    assert!(ends.iter().all(|count| *count > 0), "both win: {ends:?}");
}

/// Goal: a node that has nothing and is told to take a deleted volume brings it back, with all that
/// its store had and its snapshot, whenever the mark comes on its way; from then on the node that
/// deleted it changes nothing there. Method: the taking node's requests by turns with the mark's,
/// at every offset, before and after it; reads of all; all goals of the first node.
#[test]
fn a_deleted_volume_can_be_taken() {
    for offset in 0..12 {
        let mut life = life(7400);
        let state = life.whole_state();
        life.stop();
        life.take_over(OTHER);
        let mut removal = Removal::new(NODE, Some(VOLUME), Goal::Mark(GRACE));
        for _ in 0..offset {
            life.tick();
        }
        let end = loop {
            match removal.step() {
                Step::Ask(request) | Step::AskOnce(request, _) => {
                    removal.on_end(life.world.ask(&request));
                }
                Step::TellBase(_) => unreachable!("a mark tells no base"),
                Step::Over(end) => break end,
            }
            life.tick();
        };
        let other = Err(RemovalError::OtherNode(OTHER.to_string()));
        assert!(end == Ok(()) || end == other, "{offset}: {end:?}");
        for _ in 0..400 {
            life.tick();
        }
        assert_eq!(life.volume.status().link, Link::Up, "{offset}");
        assert!(life.read_all() == state, "{offset}");
        let block = superblock(&life.world.store).expect("it stays");
        assert!(block.deleted.is_none() && block.snapshots.len() == 1, "{offset}: {block:?}");
        for goal in [Goal::Mark(GRACE), Goal::Unmark, Goal::Remove(GRACE)] {
            assert_eq!(whole(&mut life, goal), other, "{offset}: {goal:?}");
        }
    }
}

/// Goal: a volume that was deleted comes back by no node that knew it before, whatever it is told,
/// and by nobody when its removal has begun. Method: a node that had the volume opens it again,
/// told to take it, after another one took and deleted it; a takeover after the removal's first
/// word.
#[test]
fn a_takeover_has_its_bounds() {
    let mut life = life(7450);
    life.stop();
    let disks = life.world.disks.clone();
    life.take_over(OTHER);
    life.settle();
    life.stop();
    let mut removal = Removal::new(OTHER, Some(VOLUME), Goal::Mark(GRACE));
    while let Step::Ask(request) | Step::AskOnce(request, _) = removal.step() {
        removal.on_end(life.world.ask(&request));
    }
    life.world.disks = disks;
    life.open_told_to_take(NODE);
    for _ in 0..200 {
        life.tick();
    }
    let link = life.volume.status().link;
    assert!(matches!(&link, Link::Lost(why) if why.contains("deleted")), "{link:?}");
    let block = superblock(&life.world.store).expect("it stays");
    assert_eq!((block.deleted, block.node), (Some(GRACE), OTHER.to_string()));

    let mut life = self::life(7460);
    life.stop();
    talk(&mut life, Goal::Remove(GRACE), 2);
    life.take_over(OTHER);
    for _ in 0..200 {
        life.tick();
    }
    assert!(matches!(life.volume.status().link, Link::Lost(_)));
    let block = superblock(&life.world.store).expect("it stays");
    assert!(block.deleted.is_some_and(|deleted| deleted.has_begun()), "{block:?}");
}

/// Goal: what a clone rests on stays, deleted or not, until the clone is gone; a clone's removal
/// tells its base first. Method: a marked base; the steps of a clone's removal.
#[test]
fn clones_keep_their_base() {
    let mut life = life(7500);
    let clone = CloneMark { url: "mem://clone".to_owned(), name: "clone".to_owned() };
    let mark = SnapshotChange::Mark { snapshot: life.snapshot_id("s0"), clone };
    assert_eq!(life.end_of(mark), Ok(()));
    life.stop();
    let base = superblock(&life.world.store).expect("it is there");
    assert_eq!(whole(&mut life, Goal::Mark(GRACE)), Ok(()));
    let all = objects(&life.world.store);
    let refused = whole(&mut life, Goal::Remove(GRACE)).expect_err("a clone rests on it");
    assert!(matches!(&refused, RemovalError::HasClones(who) if who.contains("clone")));
    assert_eq!(objects(&life.world.store), all);
    assert_eq!(whole(&mut life, Goal::Unmark), Ok(()), "nothing has begun");
    let snapshot = base.snapshots[0].clone();
    let (map, _) = life.world.store.get(&snapshot.key(), None).expect("it is whole");
    let plan = ClonePlan {
        volume: VOLUME,
        name: "clone".to_owned(),
        url: "mem://clone".to_owned(),
        node: NODE,
        size_bytes: base.size_bytes,
        base_url: "mem://base".to_owned(),
    };
    let made = plan.objects(&base, &snapshot, &map).expect("it can be cloned");
    let mut store = Store::default();
    for (key, bytes) in
        [(&made.checkpoint_key[..], made.checkpoint), (SUPERBLOCK_KEY, made.superblock)]
    {
        let (key, bytes, condition) = (key.to_owned(), bytes.into(), Condition::Create);
        store.perform(&Request::Put { key, bytes, condition });
    }
    for is_told in [false, true] {
        let mut removal = Removal::new(NODE, Some(VOLUME), Goal::Remove(GRACE));
        let end = loop {
            match removal.step() {
                Step::Ask(request) | Step::AskOnce(request, _) => {
                    removal.on_end(store.perform(&request));
                }
                Step::TellBase(base) => {
                    assert_eq!((base.url.as_str(), base.snapshot.as_str()), ("mem://base", "s0"));
                    assert!(store.objects.contains_key(SUPERBLOCK_KEY), "it can go on from here");
                    removal.on_base(is_told);
                }
                Step::Over(end) => break end,
            }
        };
        let silent = RemovalError::BaseSilent("mem://base".to_owned());
        assert_eq!(end, if is_told { Ok(()) } else { Err(silent) });
        assert_eq!(store.objects.is_empty(), is_told);
    }
}
