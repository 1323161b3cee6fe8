//! Where a volume's URL leads: a client of a store, and a prefix in it.
//!
//! How: what each client takes from the environment is looked at before it is used, since clients
//! panic over addresses that are none. A folder that is not there is looked for from the nearest
//! one that is, so that reading makes nothing.
//! Invariant: a URL that names no store is refused here, with what to write instead. A folder whose
//! file system hangs is refused within [`crate::LOOK_TIME`].
//! Cost: nothing is asked. Not for: whether the store is there; its first request tells.

use super::answers::Bounded;
use super::calls::Calls;
use super::clouds;
use super::pages::Pages;
use super::profile::Profile;
use crate::looks::look_at;
use crate::removal::PREFIXES;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as S3};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::list::PaginatedListStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path as StorePath;
use object_store::{ClientOptions, Error, ObjectStore, RetryConfig};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

/// A client of a store.
#[derive(Debug)]
pub(super) struct Client {
    pub store: Arc<dyn ObjectStore>,
    /// Where the store names its objects in pages.
    pub pages: Option<Pages>,
    /// Where it is a folder.
    pub folder: Option<Folder>,
}

/// A folder as a store.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    pub files: Arc<LocalFileSystem>,
    pub calls: Arc<Calls>,
}

/// A client and the prefix that a URL names.
pub(super) fn open(url: &str) -> Result<(Client, StorePath), String> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| bad_url(url))?;
    let named = |error: String| format!("`{url}`: {error}");
    if scheme == "file" {
        return folder(absolute(url, rest)?).map_err(named);
    }
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(bad_url(url));
    }
    // They would be other spellings of the same place.
    if bucket.contains(['@', ':']) {
        return Err(format!("`{url}` has a user or a port; name the bucket alone"));
    }
    let root = format!("{scheme}://{bucket}");
    let client = client(scheme, &root).map_err(named)?;
    let prefix = StorePath::parse(prefix).map_err(|error| named(error.to_string()))?;
    Ok((client.ok_or_else(|| bad_url(url))?, prefix))
}

/// Makes the folder of a new volume, and refuses a place that the volume above it takes for its
/// own objects'.
pub(super) fn prepare(url: &str) -> Result<(), String> {
    let last = url.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    if PREFIXES.iter().any(|prefix| prefix.trim_end_matches('/') == last) {
        return Err(format!(
            "`{url}` ends in `{last}`, where a volume above it would keep objects of its own; \
             choose another prefix"
        ));
    }
    match url.strip_prefix("file://") {
        Some(rest) => {
            let folder = absolute(url, rest)?;
            let making = folder.to_owned();
            let made = look_at(Path::new(folder), move || std::fs::create_dir_all(making));
            let made = made.unwrap_or_else(|no_answer| Err(no_answer.into()));
            made.map_err(|error| format!("`{folder}`: {error}"))
        }
        None => Ok(()),
    }
}

fn absolute<'a>(url: &str, folder: &'a str) -> Result<&'a str, String> {
    match folder.starts_with('/') {
        true if !folder.trim_matches('/').is_empty() => Ok(folder),
        _ => Err(format!("`{url}` names no folder; write file:///FOLDER, with all of its path")),
    }
}

/// The folder as a store, looked at within a time: its mount may hang.
fn folder(folder: &str) -> Result<(Client, StorePath), String> {
    let looked_at = folder.to_owned();
    let found = look_at(Path::new(folder), move || found_folder(Path::new(&looked_at)));
    found.map_err(|no_answer| no_answer.to_string())?
}

fn found_folder(folder: &Path) -> Result<(Client, StorePath), String> {
    let there = folder.ancestors().find(|place| place.exists()).ok_or("there is no such folder")?;
    let metadata = there.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_dir() {
        return Err(format!("`{}` is no folder", there.display()));
    }
    let rest = folder.strip_prefix(there).ok().and_then(Path::to_str);
    let prefix = StorePath::parse(rest.unwrap_or_default()).map_err(|error| error.to_string())?;
    let store = LocalFileSystem::new_with_prefix(there).map_err(|error| error.to_string())?;
    // What a deleted volume leaves is nothing, no empty folders either.
    let store = Arc::new(store.with_fsync(true).with_automatic_cleanup(true));
    let calls = Calls::new(metadata.dev());
    let folder = Folder { files: store.clone(), calls };
    Ok((Client { store, pages: None, folder: Some(folder) }, prefix))
}

fn bad_url(url: &str) -> String {
    format!(
        "`{url}` names no store; write s3://BUCKET/PREFIX, az://CONTAINER/PREFIX, \
         gs://BUCKET/PREFIX or file:///FOLDER"
    )
}

fn client(scheme: &str, root: &str) -> Result<Option<Client>, String> {
    // The client looks for the process's provider of TLS; one that is installed already stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = match scheme {
        "s3" => s3(with_profile(AmazonS3Builder::from_env().with_url(root))?),
        "az" => az(clouds::azure(MicrosoftAzureBuilder::from_env().with_url(root), &variable)?),
        "gs" => gs(clouds::google(GoogleCloudStorageBuilder::from_env().with_url(root), &variable)),
        _ => return Ok(None),
    };
    client.map(Some)
}

/// Whether the environment says of an S3 store that it knows no conditions on puts
/// (`AWS_CONDITIONAL_PUT=disabled`).
pub(super) fn is_without_conditions(url: &str) -> bool {
    let said = AmazonS3Builder::from_env().get_config_value(&S3::ConditionalPut);
    url.starts_with("s3://") && said.as_deref() == Some("disabled")
}

/// Fills in from the profile what the environment leaves open. Without credentials the client would
/// ask a cloud's metadata service, which elsewhere takes half a minute to fail: it is asked only
/// where the environment says that this machine has one.
fn with_profile(mut builder: AmazonS3Builder) -> Result<AmazonS3Builder, String> {
    let profile = Profile::of_process()?;
    let is_open = |builder: &AmazonS3Builder, key| builder.get_config_value(&key).is_none();
    if is_open(&builder, S3::AccessKeyId) && is_open(&builder, S3::SecretAccessKey) {
        let own = [
            (S3::AccessKeyId, profile.access_key_id),
            (S3::SecretAccessKey, profile.secret_access_key),
            (S3::Token, profile.session_token),
        ];
        for (key, value) in own {
            builder =
                value.into_iter().fold(builder, |builder, value| builder.with_config(key, value));
        }
    }
    for (key, value) in [(S3::Region, profile.region), (S3::Endpoint, profile.endpoint)] {
        if is_open(&builder, key) {
            builder =
                value.into_iter().fold(builder, |builder, value| builder.with_config(key, value));
        }
    }
    Ok(builder)
}

/// Whether credentials are there, or a service that the environment names has them.
fn check_credentials(builder: &AmazonS3Builder) -> Result<(), String> {
    let has = |key| builder.get_config_value(&key).is_some();
    let missing = match (has(S3::AccessKeyId), has(S3::SecretAccessKey)) {
        (true, true) => return Ok(()),
        (true, false) => "AWS_SECRET_ACCESS_KEY is not set",
        (false, true) => "AWS_ACCESS_KEY_ID is not set",
        (false, false) => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set",
    };
    if CREDENTIAL_SERVICES.iter().any(|name| std::env::var_os(name).is_some()) {
        return Ok(());
    }
    Err(format!(
        "there are no credentials: {missing}, and neither AWS_PROFILE nor the default profile has \
         them; AWS_METADATA_ENDPOINT=http://169.254.169.254 asks this machine's metadata service"
    ))
}

/// Variables by which an environment says that credentials come from a service, or that none are
/// needed.
const CREDENTIAL_SERVICES: [&str; 6] = [
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_METADATA_ENDPOINT",
    "AWS_IMDSV1_FALLBACK",
    "AWS_SKIP_SIGNATURE",
];

fn s3(builder: AmazonS3Builder) -> Result<Client, String> {
    let value = |key| builder.get_config_value(&key);
    let names = [
        (value(S3::S3Endpoint), "AWS_ENDPOINT_URL_S3"),
        (value(S3::Endpoint), "AWS_ENDPOINT_URL (or AWS_ENDPOINT)"),
    ];
    let words = [
        (value(S3::AccessKeyId), "AWS_ACCESS_KEY_ID"),
        (value(S3::Token), "AWS_SESSION_TOKEN"),
        (value(S3::Region), "AWS_REGION"),
    ];
    words.iter().try_for_each(|(word, name)| check_word(word.as_deref(), name))?;
    // The first one of these counts.
    let endpoint = names.iter().find_map(|(value, name)| Some((value.as_deref()?, *name)));
    let options = options(endpoint)?;
    check_credentials(&builder)?;
    let builder = builder.with_retry(retry()).with_client_options(options);
    built(builder.with_http_connector(Bounded).build())
}

fn az(builder: MicrosoftAzureBuilder) -> Result<Client, String> {
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    let endpoint = endpoint.as_deref().map(|value| (value, "AZURE_STORAGE_ENDPOINT"));
    let options = options(endpoint)?;
    clouds::check_azure(&builder, &variable)?;
    let builder = builder.with_retry(retry()).with_client_options(options);
    built(builder.with_http_connector(Bounded).build())
}

fn gs(builder: GoogleCloudStorageBuilder) -> Result<Client, String> {
    let endpoint = builder.get_config_value(&GoogleConfigKey::BaseUrl);
    let name = "GOOGLE_BASE_URL (or STORAGE_EMULATOR_HOST)";
    let options = options(endpoint.as_deref().map(|value| (value, name)))?;
    clouds::check_google(&builder, &variable)?;
    let builder = builder.with_retry(retry()).with_client_options(options);
    built(builder.with_http_connector(Bounded).build())
}

/// A variable of this process.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn built<S>(client: Result<S, Error>) -> Result<Client, String>
where
    S: ObjectStore + PaginatedListStore,
{
    let client = Arc::new(client.map_err(|error| super::one_line(&error))?);
    Ok(Client { store: client.clone(), pages: Some(Pages(client)), folder: None })
}

/// A request's time is the volume's to say, and so is its repetition.
fn retry() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// How to connect to an endpoint, which has the name of its variable with it; none is the cloud's.
fn options(endpoint: Option<(&str, &str)>) -> Result<ClientOptions, String> {
    let is_http = endpoint.map(|(value, name)| is_http(value, name)).transpose()?;
    Ok(ClientOptions::new().with_allow_http(is_http == Some(true)))
}

/// Whether an endpoint is spoken to without TLS; refused where it is no address at all.
fn is_http(endpoint: &str, name: &str) -> Result<bool, String> {
    // The client is not as lenient as this parser with slashes and blanks.
    let rest = endpoint.split_once("://").map_or("/", |(_, rest)| rest);
    let is_plain = !rest.starts_with('/') && rest.chars().all(|c| c.is_ascii_graphic());
    let url = reqwest::Url::parse(endpoint).ok().filter(|url| is_plain && url.host().is_some());
    match url.as_ref().map(reqwest::Url::scheme) {
        Some("http") => Ok(true),
        Some("https") => Ok(false),
        _ if endpoint.is_empty() => {
            Err(format!("{name} is empty; write https://HOST, or unset it for the cloud's own"))
        }
        _ => Err(format!("{name} is `{endpoint}`; write https://HOST:PORT or http://HOST:PORT")),
    }
}

/// What goes into a request's head must fit on a line.
fn check_word(word: Option<&str>, name: &str) -> Result<(), String> {
    match word.is_some_and(|word| word.chars().any(|c| c.is_control() || !c.is_ascii())) {
        true => Err(format!("{name} holds a line break, or something else that no header may")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: addresses that are none are refused with their variable's name, and all others taken,
    /// with TLS or without. Method: each cloud's client, as its environment would make it.
    #[test]
    fn endpoints_are_addresses() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let s3 = |key, value| {
            let builder = AmazonS3Builder::new().with_bucket_name("b").with_access_key_id("id");
            s3(builder.with_secret_access_key("secret").with_config(key, value))
        };
        for bad in [
            "localhost:41065",
            "",
            "::bad",
            "http://",
            "ftp://x",
            "/tmp",
            "https:///x",
            "http:x",
            "http://x\n",
        ] {
            let refused = [
                (s3(S3::Endpoint, bad), "AWS_ENDPOINT_URL (or AWS_ENDPOINT)"),
                (s3(S3::S3Endpoint, bad), "AWS_ENDPOINT_URL_S3"),
                (
                    az(MicrosoftAzureBuilder::new()
                        .with_container_name("c")
                        .with_account("a")
                        .with_config(AzureConfigKey::Endpoint, bad)),
                    "AZURE_STORAGE_ENDPOINT",
                ),
                (
                    gs(GoogleCloudStorageBuilder::new().with_bucket_name("b").with_base_url(bad)),
                    "GOOGLE_BASE_URL",
                ),
            ];
            for (client, name) in refused {
                let cause = client.expect_err("it is no address");
                assert!(cause.starts_with(name), "{bad}: {cause}");
            }
        }
        for good in ["http://127.0.0.1:9000", "https://s3.example/", "HTTPS://x", "http://[::1]:1"]
        {
            assert!(s3(S3::Endpoint, good).is_ok(), "{good}");
        }
        assert_eq!(is_http("http://x", ""), Ok(true));
        assert_eq!(is_http("https://x", ""), Ok(false));
        assert!(s3(S3::Token, "a\n").is_err_and(|cause| cause.contains("AWS_SESSION_TOKEN")));
    }

    /// Goal: what names no store is refused, and says so. Method: URLs by hand.
    #[test]
    fn urls_name_stores() {
        for bad in ["s3:/layby/x", "s3:///x", "http://layby/x", "maps", "s3://"] {
            let cause = open(bad).expect_err("it names none");
            assert!(cause.contains("names no store"), "{bad}: {cause}");
        }
        for bad in ["file://rel/v", "file://", "file://./x", "file:///", "file:////"] {
            for cause in [open(bad).err(), prepare(bad).err()] {
                let cause = cause.expect("it names no folder");
                assert!(cause.contains("file:///FOLDER"), "{bad}: {cause}");
            }
        }
        for bad in ["s3://b/maps/checkpoints", "s3://b/segments/", "file:///x/snapshots"] {
            let cause = prepare(bad).expect_err("it is another volume's");
            assert!(cause.contains("choose another prefix"), "{bad}: {cause}");
        }
        assert_eq!(prepare("s3://b/segments/maps"), Ok(()));
    }

    /// Goal: only a new volume's folder is made, one that is missing has no objects, and a file in
    /// its way is named. Method: a folder below one that is not there either, opened, asked, made,
    /// and asked again; files.
    #[tokio::test]
    async fn reading_makes_no_folder() {
        use crate::action::{Condition, End, FaultKind, Request};
        let folder = tempfile::tempdir().expect("a temporary folder");
        let place = folder.path().join("a/b");
        let url = format!("file://{}", place.display());
        let store = super::super::Store::open(&url).expect("it names a folder");
        let get = Request::Get { key: "superblock".to_owned(), range: None };
        match store.perform(get.clone()).await {
            End::Failed(fault) => assert_eq!(fault.kind, FaultKind::NotFound, "{}", fault.cause),
            end => panic!("there is nothing: {end:?}"),
        }
        let list = store.perform(Request::List { prefix: String::new() }).await;
        assert!(matches!(&list, End::Keys(keys) if keys.is_empty()), "{list:?}");
        assert!(!folder.path().join("a").exists(), "it was only read");
        std::fs::write(folder.path().join("file"), b"").expect("the test's own folder");
        for blocked in ["file", "file/x/y"] {
            let url = format!("file://{}/{blocked}", folder.path().display());
            let cause = open(&url).expect_err("a file lies in its way");
            assert!(cause.contains("is no folder"), "{cause}");
        }
        let made = super::super::Store::create(&url).expect("it can be made");
        assert!(place.is_dir());
        let (key, condition) = ("superblock".to_owned(), Condition::Create);
        let put = Request::Put { key, bytes: vec![1].into(), condition };
        assert!(matches!(made.perform(put).await, End::Stored(_)));
        for store in [made, store] {
            assert!(matches!(store.perform(get.clone()).await, End::Bytes(..)));
        }
    }

    /// Goal: a volume that is deleted leaves no folders of its objects. Method: objects in two
    /// folders, deleted one by one and together.
    #[tokio::test]
    async fn deleting_leaves_no_folders() {
        use crate::action::{Condition, End, Request};
        let folder = tempfile::tempdir().expect("a temporary folder");
        let url = format!("file://{}", folder.path().display());
        let store = super::super::Store::create(&url).expect("it can be made");
        for key in ["segments/1/2", "segments/1/3", "checkpoints/1"] {
            let (key, condition) = (key.to_owned(), Condition::Create);
            let put = Request::Put { key, bytes: vec![1].into(), condition };
            assert!(matches!(store.perform(put).await, End::Stored(_)));
        }
        let one = Request::Delete { key: "checkpoints/1".to_owned() };
        let keys = ["segments/1/2", "segments/1/3"].map(str::to_owned).to_vec();
        for request in [one, Request::DeleteMany { keys }] {
            let end = store.perform(request).await;
            assert!(matches!(end, End::Done), "{end:?}");
        }
        let left = std::fs::read_dir(folder.path()).expect("the store stays");
        assert_eq!(left.count(), 0);
    }
}
