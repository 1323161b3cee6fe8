//! Backing stores and their owners, by mock owners that write down what they are asked.

use super::*;
use crate::control::tests::MockNode;
use crate::control::{DeleteData, LeftData, UndeleteRequest, VolumeCreate, VolumePatch};
use crate::error::ReportKind;
use layby_engine::backing::RemoteBacking;
use layby_engine::control::CommandError;
use layby_engine::io::Waker;
use std::sync::Mutex;

/// Owns the homes of volumes of class `bulk`, and notes what it is told.
#[derive(Debug, Default)]
pub(crate) struct Owner {
    log: Mutex<Vec<String>>,
    refuses: Mutex<bool>,
    /// The next preparation ends in a panic.
    pub(crate) panics: Mutex<bool>,
    taken: Mutex<Option<Taken>>,
    watch: Mutex<Option<Watch>>,
    /// The next mark is answered when the other end is gone.
    pub(crate) silence: Mutex<Option<std::sync::mpsc::Receiver<()>>>,
}

/// Names a store that no mock opens.
#[derive(Debug)]
pub(crate) struct Opener;

impl OpenRemote for Opener {
    fn name(&self) -> String {
        "far".into()
    }
    fn open(&self, _: Waker) -> Result<RemoteBacking, CommandError> {
        panic!("a mock shard opens nothing")
    }
}

impl Owner {
    fn note(&self, line: String) {
        self.log.lock().expect("one test").push(line);
    }
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock().expect("one test"))
    }
    /// Volumes say from now on what is sent there.
    pub(crate) fn is_watched(&self) -> tokio::sync::watch::Sender<Option<layby_cloud::Said>> {
        let (says, watch) = Watch::new(|_, _| {});
        *self.watch.lock().expect("one test") = Some(watch);
        says
    }
    pub(crate) fn was_told(&self, line: &str) -> bool {
        self.log.lock().expect("one test").iter().any(|told| told == line)
    }
    fn refuse(&self, whether: bool) {
        *self.refuses.lock().expect("one test") = whether;
    }
    fn refused(&self, cause: &str) -> Result<(), Report> {
        match *self.refuses.lock().expect("one test") {
            true => Err(Report::new(ReportKind::Unreachable, "cannot").cause(cause)),
            false => Ok(()),
        }
    }
}

impl RemoteHomes for Owner {
    fn has(&self, record: &VolumeRecord) -> bool {
        record.class.as_str() == "bulk"
    }
    fn name(&self, record: &VolumeRecord) -> String {
        format!("bucket/{}", record.id)
    }
    fn prepare(&self, name: &Name, record: &VolumeRecord) -> Result<Arc<dyn OpenRemote>, Report> {
        self.note(format!("prepare {name} {:?}", record.phase));
        let panics = std::mem::take(&mut *self.panics.lock().expect("one test"));
        assert!(!panics, "no thread can be made");
        match *self.refuses.lock().expect("one test") {
            true => Err(Report::new(ReportKind::InUse, "cannot open the home").cause("owned")),
            false => Ok(Arc::new(Opener)),
        }
    }
    fn release(&self, record: &VolumeRecord) -> Result<(), Report> {
        self.note(format!("release {} {:?}", record.id, record.phase));
        Ok(())
    }
    fn close(&self, record: &VolumeRecord) {
        self.note(format!("close {}", record.id));
    }
    fn mark_deleted(&self, deleted: &DeletedRecord) -> Result<(), Report> {
        self.note(format!("mark {}", deleted.record.id));
        let silence = self.silence.lock().expect("one test").take();
        let _ = silence.map(|silence| silence.recv());
        Ok(())
    }
    fn undelete(&self, deleted: &DeletedRecord) -> Result<(), Report> {
        self.note(format!("undelete {}", deleted.record.id));
        self.refused("its removal has begun")
    }
    fn remove(&self, deleted: &DeletedRecord) -> Result<Option<Taken>, Report> {
        self.note(format!("remove {}", deleted.record.id));
        self.refused("no answer").map(|()| None)
    }
    fn taken(&self, _: &VolumeRecord) -> Option<Taken> {
        self.taken.lock().expect("one test").clone()
    }
    fn forget(&self, record: &VolumeRecord) -> Result<(), Report> {
        self.note(format!("forget {}", record.id));
        Ok(())
    }
    fn watch(&self, _: &VolumeRecord) -> Option<Watch> {
        self.watch.lock().expect("one test").clone()
    }
    fn follow(&self, _: &View, _: &UplinkConfig) {}
    fn uplink(&self) -> Option<Uplink> {
        None
    }
    fn problem(&self, _: &VolumeRecord) -> Option<String> {
        None
    }
}

fn name(text: &str) -> Name {
    text.parse().expect("a good name")
}

pub(crate) fn wanted(volume: &str) -> VolumeCreate {
    let text = format!("{{\"name\":\"{volume}\",\"size\":\"1MiB\",\"class\":\"bulk\"}}");
    serde_json::from_str(&text).expect("JSON")
}

pub(crate) fn with_owner(text: &str) -> (Arc<Owner>, MockNode) {
    let owner = Arc::new(Owner::default());
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    (owner.clone(), MockNode::with_homes(dir, text, Some(owner)))
}

/// Goal: a volume of an owner's is prepared before its shard hears of it, writes through for
/// life, and is released after its shard has let go; files are files as ever. Method: creates,
/// a change, a refusal, a deletion and a restart over mock shards.
#[tokio::test]
async fn owners_are_asked_in_order() {
    let (owner, node) = with_owner("");
    node.control
        .volume_create(wanted("far"), crate::control::Authority::Owner)
        .await
        .expect("the owner has it");
    let plan = |node: &MockNode, id: u32| {
        node.shards.iter().find_map(|shard| {
            let state = shard.state();
            let plan = state.volumes.get(&id)?;
            let is_remote = matches!(plan.backing, BackingPlan::Remote(_));
            Some((is_remote, plan.spec.write_through))
        })
    };
    assert_eq!(plan(&node, 0), Some((false, false)), "the default volume is a file");
    assert_eq!(plan(&node, 1), Some((true, true)));
    let patch = VolumePatch { read_only: Some(true), ..VolumePatch::default() };
    node.control.volume_set(&name("far"), patch).await.expect("a change");
    owner.refuse(true);
    let report = node
        .control
        .volume_create(wanted("other"), crate::control::Authority::Owner)
        .await
        .expect_err("refused");
    assert_eq!(report.kind, ReportKind::InUse, "{report}");
    owner.refuse(false);
    let deleted = node.control.volume_delete(&name("far"), DeleteData::Keep).await;
    deleted.expect("its shard lets go");
    let expected =
        ["prepare far Creating", "prepare other Creating", "release 2 Creating", "release 1 Ready"];
    assert_eq!(owner.take(), expected);
}

/// Goal: a backing file that another process holds is in use, by the exit code too, wherever it is
/// opened. Method: a held file that is to be made longer; a shard that cannot lock one, at a
/// creation and at a start; other refusals keep their kinds.
#[tokio::test]
async fn a_file_that_another_process_holds_is_in_use() {
    let root = tempfile::TempDir::new().expect("a temporary directory");
    let node = MockNode::new(&format!("[node]\nvolume_roots = [\"{}\"]\n", root.path().display()));
    let (short, whole) = (root.path().join("short"), root.path().join("whole"));
    let create = async |path: &Path| {
        let wanted = r#"{"name":"a","size":"1MiB"}"#;
        let wanted: VolumeCreate = serde_json::from_str(wanted).expect("JSON");
        let wanted = VolumeCreate { path: Some(path.into()), ..wanted };
        let made = node.control.volume_create(wanted, crate::control::Authority::Owner).await;
        made.expect_err("it cannot be opened")
    };
    let held = std::fs::File::create(&short).expect("a writable directory");
    let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(&held, lock).expect("a fresh file");
    let refused = create(&short).await;
    assert_eq!((refused.kind, refused.kind.exit_code()), (ReportKind::InUse, 4), "{refused}");
    assert!(refused.hint.contains("stop the other program"), "{refused}");
    let file = std::fs::File::create(&whole).expect("a writable directory");
    file.set_len(1 << 20).expect("there is room");
    use layby_types::ErrorKind as Kind;
    for (kind, expected) in [
        (Kind::Retry, ReportKind::InUse),
        (Kind::Denied, ReportKind::Denied),
        (Kind::Corrupt, ReportKind::Corrupt),
    ] {
        for shard in &node.shards {
            let cause = "cannot open it".into();
            shard.state().fail_next = Some(CommandError { kind, cause });
        }
        let refused = create(&whole).await;
        assert_eq!(refused.kind, expected, "{refused}");
        let volume = layby_types::VolumeId(0);
        let refusal = layby_engine::control::HomeRefusal { volume, kind, cause: "no".into() };
        let report =
            layby_engine::control::StartReport { absent: vec![refusal], ..Default::default() };
        let absent =
            crate::recovery::absences(&node.control.view(), &node.control.facts().homes, &[report]);
        let why = &absent[0].1.why;
        assert_eq!(why.kind, expected, "{why}");
        assert_eq!(why.hint.contains("stop the other program"), kind == Kind::Retry, "{why}");
        node.shards.iter().for_each(|shard| shard.state().fail_next = None);
    }
}

/// Goal: a deleted volume is nobody's to see, comes back under its name and a new number, or
/// under another name, and goes for good when it is told to; what fails changes nothing, and a
/// restart forgets nothing. Method: both ways over mock shards, with an owner that refuses.
#[tokio::test]
async fn deleted_volumes_wait_and_come_back() {
    let (owner, node) = with_owner("");
    let control = &node.control;
    control
        .volume_create(wanted("far"), crate::control::Authority::Owner)
        .await
        .expect("the owner has it");
    let deleted = control.volume_delete(&name("far"), DeleteData::Delete).await;
    deleted.expect("its shard lets go");
    assert_eq!(owner.take(), ["prepare far Creating", "close 1"], "nothing is removed");
    assert!(node.shards.iter().any(|s| s.state().log.contains(&"remove 1 false".to_owned())));
    control
        .volume_create(wanted("far"), crate::control::Authority::Owner)
        .await
        .expect("the name is free");
    let back = |new_name| UndeleteRequest { number: None, new_name };
    let taken = control.volume_undelete(&name("far"), back(None)).await.expect_err("taken");
    assert!(taken.hint.contains("--as"), "{taken}");
    owner.refuse(true);
    let refused = control.volume_undelete(&name("far"), back(Some(name("old")))).await;
    assert!(refused.expect_err("it is refused").cause.contains("has begun"));
    assert_eq!(control.deleted_volumes().await.len(), 1, "it is where it was");
    owner.refuse(false);
    let view = control.volume_undelete(&name("far"), back(Some(name("old")))).await;
    view.expect("it comes back");
    let record = control.view().catalog.volumes["old"].clone();
    assert_eq!((record.id, record.local, record.phase), (3, Some(1), VolumePhase::Ready));
    assert!(control.deleted_volumes().await.is_empty());
    assert!(owner.take().ends_with(&["undelete 1".into(), "prepare old Ready".into()]));
    owner.refuse(true);
    let now = control.volume_delete(&name("old"), DeleteData::Now).await.expect_err("no answer");
    assert_eq!(now.kind, ReportKind::Unreachable);
    assert!(!control.view().catalog.volumes.contains_key("old"), "it is served no more");
    let left = control.deleted_volumes().await;
    assert!(left[0].problem.as_ref().is_some_and(|why| why.contains("no answer")), "{left:?}");
    owner.refuse(false);
    let again = control.volume_delete(&name("old"), DeleteData::Keep).await;
    assert_eq!(again.expect_err("it is deleted").kind, ReportKind::NotFound);
    control.volume_delete(&name("old"), DeleteData::Now).await.expect("it is removed");
    assert!(control.deleted_volumes().await.is_empty());
    let kept = crate::catalog::Catalog::load(node.dir.path()).expect("sound").expect("there");
    assert!(kept.deleted.is_empty() && !kept.volumes.contains_key("old"));
    let gone = control.volume_undelete(&name("old"), back(None)).await.expect_err("gone");
    assert_eq!(gone.kind, ReportKind::NotFound);
}

/// Goal: what another node has is only forgotten, and bytes that are in no store go only when
/// that is asked for. Method: both words over mock shards.
#[tokio::test]
async fn what_is_lost_is_thrown_away_by_a_clear_word() {
    let (owner, node) = with_owner("");
    node.control
        .volume_create(wanted("far"), crate::control::Authority::Owner)
        .await
        .expect("the owner has it");
    let taken = Taken { by: "node 7 has the volume".into(), bytes_lost: 1088 << 10, unknown: None };
    *owner.taken.lock().expect("one test") = Some(taken.clone());
    let refused = node.control.volume_delete(&name("far"), DeleteData::Keep).await;
    let refused = refused.expect_err("bytes would be lost");
    assert!(refused.cause.contains("1088KiB that were written here"), "{refused}");
    assert!(refused.hint.contains("--data delete"), "{refused}");
    let gone = node.control.volume_delete(&name("far"), DeleteData::Delete).await;
    assert_eq!(gone.expect("that is a clear word"), Some(LeftData::Taken(taken)));
    assert_eq!(owner.take(), ["prepare far Creating", "forget 1"]);
    assert!(node.control.view().catalog.deleted.is_empty());
}

/// Goal: a node that is stopped and started often counts a grace to its end all the same.
/// Method: virtual time, lives shorter than what lies between two notes, clean stops.
#[tokio::test(start_paused = true)]
async fn a_clean_stop_forgets_no_time() {
    const GRACE: &str = "[cloud]\ngrace = \"3h\"\n";
    let (owner, mut node) = with_owner(GRACE);
    node.control
        .volume_create(wanted("far"), crate::control::Authority::Owner)
        .await
        .expect("the owner has it");
    let deleted = node.control.volume_delete(&name("far"), DeleteData::Delete).await;
    deleted.expect("its shard lets go");
    for life in 1..=3 {
        let running = crate::control::attend_deleted(Arc::clone(&node.control));
        let _ = tokio::time::timeout(std::time::Duration::from_secs(300), running).await;
        node.control.stop().await.expect("the shards stop");
        let kept = crate::catalog::Catalog::load(node.dir.path()).expect("sound");
        let waited = kept.expect("there").deleted[0].waited_seconds;
        assert!((300 * life - life..=300 * life).contains(&waited), "{waited} in life {life}");
        node = MockNode::with_homes(node.dir, GRACE, Some(owner.clone()));
    }
}

/// Goal: a deleted volume's objects go when the node has lived through its grace, whatever any
/// clock says, and not before; what fails is tried again. Method: virtual time, a clock that
/// was wrong by years at the deletion, a restart in between, an owner that refuses.
#[tokio::test(start_paused = true)]
async fn only_the_nodes_own_time_ends_a_grace() {
    const GRACE: &str = "[cloud]\ngrace = \"3h\"\n";
    let (owner, node) = with_owner(GRACE);
    node.control
        .volume_create(wanted("far"), crate::control::Authority::Owner)
        .await
        .expect("the owner has it");
    let deleted = node.control.volume_delete(&name("far"), DeleteData::Delete).await;
    deleted.expect("its shard lets go");
    let minute = std::time::Duration::from_secs(60);
    let attend = async |node: &MockNode, time: std::time::Duration| {
        let running = crate::control::attend_deleted(Arc::clone(&node.control));
        let _ = tokio::time::timeout(time, running).await;
    };
    attend(&node, 120 * minute).await;
    assert!(owner.take().ends_with(&["mark 1".to_owned()]), "it is marked once");
    let mut catalog = node.control.view().catalog.clone();
    let waited = catalog.deleted[0].waited_seconds;
    assert!((6600..=7200).contains(&waited), "{waited}");
    catalog.deleted[0].at_unix = 5;
    catalog.save(node.dir.path()).expect("a writable directory");
    let node = MockNode::with_homes(node.dir, GRACE, Some(owner.clone()));
    attend(&node, 30 * minute).await;
    assert_eq!(owner.take(), ["mark 1"], "a new life says it again");
    owner.refuse(true);
    attend(&node, 90 * minute).await;
    let tries = owner.take();
    assert!(tries.len() > 1 && tries.iter().all(|line| line == "remove 1"), "{tries:?}");
    assert!(tries.len() < 50, "at growing intervals");
    owner.refuse(false);
    attend(&node, 30 * minute).await;
    assert_eq!(owner.take(), ["remove 1"]);
    assert!(node.control.view().catalog.deleted.is_empty());
}
