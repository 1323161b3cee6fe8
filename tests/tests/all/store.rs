//! The object store of the tests and the faulty link before it, held to what a kept client of
//! others finds: the `object_store` crate, without retries of its own.
//!
//! How: each test has a store, a link and a client; faults are put upon the client's requests, and
//! what really happened is looked up behind the server's back.
//! Invariant: what fails here is a fault of the tools, not of the node.

use layby_tests::link::{Answer, Cut, Effect, Fault, LinkProxy, Operation, Shape, StoreError};
use layby_tests::{S3Server, seed};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, ObjectStore as _, ObjectStoreExt as _, PutMode, PutPayload, PutResult,
    RetryConfig, UpdateVersion,
};
use std::time::Duration;

/// What a client waits for an answer that will not come.
const IMPATIENCE: Duration = Duration::from_millis(500);
/// For one that will.
const PATIENCE: Duration = Duration::from_secs(60);
const OBJECT_BYTES: usize = 300_000;

fn client(endpoint: &str, patience: Duration) -> AmazonS3 {
    // Only the first of all tests installs one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let store = AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_allow_http(true)
        .with_bucket_name(S3Server::BUCKET)
        .with_region(S3Server::REGION)
        .with_access_key_id(S3Server::ACCESS_KEY)
        .with_secret_access_key(S3Server::SECRET_KEY)
        .with_retry(retry)
        .with_client_options(ClientOptions::new().with_allow_http(true).with_timeout(patience));
    store.build().expect("all is given that a client needs")
}

/// A store, a link, and a client over it.
struct Setup {
    link: LinkProxy,
    client: AmazonS3,
    server: S3Server,
}

impl Setup {
    fn new(patience: Duration) -> Option<Setup> {
        let server = S3Server::start()?;
        let link = LinkProxy::start(server.address(), seed());
        let client = client(&link.endpoint(), patience);
        Some(Setup { link, client, server })
    }
    async fn put(&self, key: &str, bytes: &[u8], mode: PutMode) -> Result<PutResult, Error> {
        let payload = PutPayload::from(bytes.to_vec());
        self.client.put_opts(&Path::from(key), payload, mode.into()).await
    }
    async fn get(&self, key: &str) -> Result<Vec<u8>, Error> {
        Ok(self.client.get(&Path::from(key)).await?.bytes().await?.to_vec())
    }
}

fn bytes() -> Vec<u8> {
    (0..OBJECT_BYTES).map(|at| (at / 7 % 251) as u8).collect()
}

fn version(of: &PutResult) -> PutMode {
    PutMode::Update(UpdateVersion { e_tag: of.e_tag.clone(), version: of.version.clone() })
}

fn chain(error: &Error) -> String {
    format!("{error:?}")
}

/// Goal: the store does what a store must. Method: puts, ranges, parts, lists and deletes through
/// an untroubled link, each looked up behind the server's back.
#[tokio::test]
async fn the_store_keeps_objects() {
    let Some(setup) = Setup::new(PATIENCE) else { return };
    let (server, path) = (&setup.server, Path::from("a/b"));
    setup.put("a/b", &bytes(), PutMode::Overwrite).await.expect("a put");
    assert_eq!(server.read("a/b"), bytes());
    assert_eq!(setup.get("a/b").await.expect("a get"), bytes());
    let range = setup.client.get_range(&path, 1000..2000).await.expect("a range");
    assert_eq!(range, bytes()[1000..2000]);
    let mut parts = setup.client.put_multipart(&Path::from("parts")).await.expect("a beginning");
    let part = vec![7; 5 << 20];
    parts.put_part(part.clone().into()).await.expect("a part");
    parts.put_part(bytes().into()).await.expect("a last part");
    parts.complete().await.expect("an end");
    assert_eq!(server.read("parts"), [part, bytes()].concat());
    let listed = setup.client.list_with_delimiter(None).await.expect("a list");
    assert_eq!(listed.objects.iter().map(|o| o.location.as_ref()).collect::<Vec<_>>(), ["parts"]);
    assert_eq!(listed.common_prefixes, [Path::from("a")]);
    assert_eq!(server.objects().into_keys().collect::<Vec<_>>(), ["a/b", "parts"]);
    setup.client.delete(&path).await.expect("a delete");
    assert!(matches!(setup.get("a/b").await, Err(Error::NotFound { .. })));
    server.delete("parts");
    assert!(matches!(setup.get("parts").await, Err(Error::NotFound { .. })));
    let counts = setup.link.counts();
    let of = |operation| counts.requests_of(operation);
    assert_eq!((of(Operation::Put), of(Operation::List)), (3, 1), "{counts:?}");
    assert!(counts.bytes_up > (5 << 20) + 2 * OBJECT_BYTES as u64, "{counts:?}");
}

/// Goal: a conditional put has one winner. Method: creates and updates, of the current and of an
/// old version, then ten updates of one version at once.
#[tokio::test]
async fn conditional_puts_have_one_winner() {
    let Some(setup) = Setup::new(PATIENCE) else { return };
    let first = setup.put("head", b"1", PutMode::Create).await.expect("nobody was first");
    let again = setup.put("head", b"2", PutMode::Create).await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
    let second = setup.put("head", b"2", version(&first)).await.expect("the version is current");
    let stale = setup.put("head", b"3", version(&first)).await;
    assert!(matches!(stale, Err(Error::Precondition { .. })), "{stale:?}");
    assert_eq!(setup.server.read("head"), b"2");
    let missing = setup.put("none", b"1", version(&first)).await;
    assert!(missing.is_err(), "{missing:?}");
    let mut rivals = tokio::task::JoinSet::new();
    for rival in 10..20_u8 {
        let (client, mode) = (setup.client.clone(), version(&second));
        rivals.spawn(async move {
            let head = Path::from("head");
            let put = client.put_opts(&head, vec![rival].into(), mode.into()).await;
            (rival, put.is_ok())
        });
    }
    let outcomes = rivals.join_all().await;
    let winners: Vec<u8> = outcomes.into_iter().filter(|(_, won)| *won).map(|(r, _)| r).collect();
    assert_eq!(winners.len(), 1, "{winners:?}");
    assert_eq!(setup.server.read("head"), winners);
}

/// Goal: what a store refuses, the client hears in the store's words, and nothing is stored.
/// Method: each refusal once, then a put that succeeds.
#[tokio::test]
async fn refusals_are_heard() {
    let Some(setup) = Setup::new(PATIENCE) else { return };
    for error in [
        StoreError::INTERNAL,
        StoreError::SLOW_DOWN,
        StoreError::UNAVAILABLE,
        StoreError::TOKEN_EXPIRED,
        StoreError::KEY_INVALID,
        StoreError::ACCESS_DENIED,
        StoreError::TIME_SKEWED,
        StoreError::QUOTA_EXCEEDED,
        StoreError::STORAGE_FULL,
        StoreError::CONFLICT,
    ] {
        let fault = setup.link.fault(Fault::new(Effect::Fail(error)).on(Operation::Put).times(1));
        let refused = setup.put("a", &bytes(), PutMode::Overwrite).await.expect_err("a refusal");
        assert!(chain(&refused).contains(&error.status.to_string()), "{error:?}: {refused:?}");
        assert_eq!(fault.hits(), 1);
        assert!(setup.server.objects().is_empty(), "{error:?}");
    }
    setup.put("a", &bytes(), PutMode::Overwrite).await.expect("no fault is left");
}

/// Goal: a lost reply leaves the object stored, and a conditional put that is tried again fails by
/// its own success. Method: replies lost and swallowed.
#[tokio::test]
async fn lost_replies_hide_success() {
    let Some(setup) = Setup::new(IMPATIENCE) else { return };
    for (key, effect) in [("lost", Effect::LoseReply), ("swallowed", Effect::SwallowReply)] {
        let fault = setup.link.fault(Fault::new(effect).on(Operation::Put).times(1));
        setup.put(key, &bytes(), PutMode::Create).await.expect_err("no answer came");
        assert_eq!((fault.hits(), setup.server.read(key)), (1, bytes()));
        let again = setup.put(key, &bytes(), PutMode::Create).await;
        assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
    }
}

/// Goal: a torn upload leaves nothing, a torn or damaged download is noticed or not, as without
/// checksums. Method: each once.
#[tokio::test]
async fn tears_and_damage() {
    let Some(setup) = Setup::new(PATIENCE) else { return };
    let once = |effect| setup.link.fault(Fault::new(effect).times(1));
    let tear = once(Effect::TearUpload);
    setup.put("a", &bytes(), PutMode::Overwrite).await.expect_err("the connection broke");
    assert_eq!((tear.hits(), setup.server.objects().len()), (1, 0));
    setup.put("a", &bytes(), PutMode::Overwrite).await.expect("the fault is used up");
    let tear = once(Effect::TearDownload);
    setup.get("a").await.expect_err("the connection broke");
    assert_eq!(tear.hits(), 1);
    let damage = once(Effect::Damage);
    let damaged = setup.get("a").await.expect("nobody checks");
    assert_eq!((damage.hits(), damaged.len()), (1, OBJECT_BYTES));
    let differing = damaged.iter().zip(bytes()).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
    assert_eq!(differing, 1);
    setup.server.damage("a", |bytes| bytes[5] ^= 1);
    assert_ne!(setup.get("a").await.expect("nobody checks"), bytes());
}

/// Goal: one object that never answers delays nobody else, and answers once the fault is lifted.
/// Method: a silent key beside another.
#[tokio::test]
async fn one_silent_object() {
    let Some(setup) = Setup::new(IMPATIENCE) else { return };
    for key in ["silent", "other"] {
        setup.put(key, &bytes(), PutMode::Overwrite).await.expect("a put");
    }
    let fault = setup.link.fault(Fault::new(Effect::NeverAnswer).key("silent"));
    let (silent, other) = tokio::join!(setup.get("silent"), setup.get("other"));
    silent.expect_err("no answer came");
    assert_eq!(other.expect("the other one answers"), bytes());
    assert!(fault.hits() >= 1);
    fault.lift();
    assert_eq!(setup.get("silent").await.expect("it answers"), bytes());
}

/// Goal: a request that arrives twice, at once or late, meets the store's condition. Method:
/// repeated creates, heard first and second; an update that lingers until another one has won.
#[tokio::test]
async fn requests_arrive_twice() {
    let Some(setup) = Setup::new(PATIENCE) else { return };
    let puts = |effect| setup.link.fault(Fault::new(effect).on(Operation::Put).times(1));
    let repeat = puts(Effect::Repeat(Answer::First));
    let first = setup.put("first", b"1", PutMode::Create).await.expect("the first one won");
    let answer = puts(Effect::Repeat(Answer::Second));
    let second = setup.put("second", b"1", PutMode::Create).await;
    assert!(matches!(second, Err(Error::AlreadyExists { .. })), "{second:?}");
    assert_eq!((repeat.hits(), answer.hits()), (1, 1));
    let lingering = puts(Effect::RepeatLate);
    let current = setup.put("first", b"2", version(&first)).await.expect("it is current");
    setup.put("first", b"3", version(&current)).await.expect("it is current");
    lingering.lift_and_deliver();
    assert_eq!(setup.server.read("first"), b"3", "a late copy of an old update won");
}

/// Goal: requests overtake each other, in any order. Method: ten gets, each late by a draw.
#[tokio::test]
async fn answers_out_of_order() {
    let Some(setup) = Setup::new(PATIENCE) else { return };
    setup.put("a", &bytes(), PutMode::Overwrite).await.expect("a put");
    let late = Effect::Late { least: Duration::ZERO, most: Duration::from_millis(200) };
    let _fault = setup.link.fault(Fault::new(late).on(Operation::Get));
    let mut gets = tokio::task::JoinSet::new();
    for number in 0..10 {
        let client = setup.client.clone();
        gets.spawn(async move {
            let get = client.get_range(&Path::from("a"), number..number + 1).await;
            (number, get.expect("late and not lost"))
        });
    }
    let mut order = Vec::new();
    while let Some(ended) = gets.join_next().await {
        let (number, byte) = ended.expect("it does not panic");
        assert_eq!(byte[0], bytes()[usize::try_from(number).expect("it is small")]);
        order.push(number);
    }
    assert!(!order.is_sorted(), "{order:?}: replay with LAYBY_SEED={}", seed());
}

/// Goal: a cut link refuses or hangs, and is whole again afterwards. Method: each cut, with a put
/// that fails and one that waits.
#[tokio::test]
async fn cuts() {
    let Some(mut setup) = Setup::new(IMPATIENCE) else { return };
    setup.put("a", b"1", PutMode::Overwrite).await.expect("the link is whole");
    for cut in [Cut::Refuse, Cut::Hang] {
        setup.link.cut(cut);
        setup.put("a", b"2", PutMode::Overwrite).await.expect_err("the link is cut");
        assert_eq!(setup.server.read("a"), b"1");
        setup.link.restore();
        setup.put("b", b"3", PutMode::Overwrite).await.expect("the link is whole again");
    }
    setup.server.kill();
    setup.put("b", b"4", PutMode::Overwrite).await.expect_err("the store is down");
    setup.server.revive();
    setup.put("b", b"4", PutMode::Overwrite).await.expect("the store is up again");
}

/// Goal: a link is as late and as narrow as it was told. Method: a small get over a late link; a
/// large one each way over 16 Mbit/s; bounds only from below, since machines may be slow.
#[tokio::test]
async fn links_are_late_and_narrow() {
    let Some(setup) = Setup::new(PATIENCE) else { return };
    setup.put("small", b"1", PutMode::Overwrite).await.expect("a put");
    let delay = Duration::from_millis(60);
    setup.link.shape(Shape::default().late(delay));
    let begin = tokio::time::Instant::now();
    setup.get("small").await.expect("late and not lost");
    assert!(begin.elapsed() >= 2 * delay, "{:?}", begin.elapsed());
    setup.link.shape(Shape::bits_per_second(16_000_000));
    // 300 kB at 2 MB/s are 150 ms, less what passes at once.
    let least = Duration::from_millis(120);
    let begin = tokio::time::Instant::now();
    setup.put("large", &bytes(), PutMode::Overwrite).await.expect("slow and not lost");
    assert!(begin.elapsed() >= least, "{:?}", begin.elapsed());
    let begin = tokio::time::Instant::now();
    assert_eq!(setup.get("large").await.expect("slow and not lost"), bytes());
    assert!(begin.elapsed() >= least, "{:?}", begin.elapsed());
}
