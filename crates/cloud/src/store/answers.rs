//! How much of a store's answer is taken into memory.
//!
//! How: objects are streamed, and read up to the length that their head says, which is held against
//! what was asked for, or else against the most that an object of its kind has. All other answers
//! (lists, refusals, words to credentials) are read here, by [`Bounded`], before the store's client
//! sees them: it would give them as much memory as their head says.
//! Invariant: memory is given for bytes that came, and for no more than was asked for. An answer
//! that is no store's, a page in HTML or a redirect, is a fault: it would count as a put's.
//! Cost: a copy of what comes in more than one piece, as without.
//! Not for: the memory that bytes take once they are decoded; see `formats`.

use crate::segment::{SEGMENT_BYTES_MAX, SegmentName};
use crate::superblock::SUPERBLOCK_KEY;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions, Error, GetResult, GetResultPayload};
use reqwest::redirect::Policy;
use reqwest::{Method, StatusCode};
use std::fmt;
use std::ops::Range;
use std::time::Duration;

const CONNECT_TIME: Duration = Duration::from_secs(5);

/// The most that a superblock has: 64 snapshots with 32 clones each, by name and URL.
const SUPERBLOCK_BYTES_MAX: u64 = 16 << 20;
/// The most that any other object has, checkpoints and snapshots above all: what S3 takes in one
/// put, so that whatever was stored is read.
const OBJECT_BYTES_MAX: u64 = 5 << 30;
/// The most that an answer has that is no object: a page of a thousand long names, and more.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Memory that is given to an answer before it comes.
const FIRST_BYTES_MAX: usize = 1 << 20;

/// The most bytes that a get of a key may be answered with, where these of it are asked for.
pub(super) fn bytes_max(key: &str, range: Option<&Range<u64>>) -> u64 {
    match range {
        Some(range) => range.end.saturating_sub(range.start),
        None if key == SUPERBLOCK_KEY => SUPERBLOCK_BYTES_MAX,
        None if SegmentName::parse(key).is_some() => SEGMENT_BYTES_MAX,
        None => OBJECT_BYTES_MAX,
    }
}

/// An object's bytes, or `None` where there are more than its head says.
pub(super) async fn read(found: GetResult, length: u64) -> Result<Option<Bytes>, Error> {
    match found.payload {
        // A file is as long as it is.
        GetResultPayload::File(..) => found.bytes().await.map(Some),
        GetResultPayload::Stream(pieces) => {
            collect(pieces, usize::try_from(length).unwrap_or(usize::MAX)).await
        }
    }
}

/// The bytes of all pieces, or `None` where there are more than `most`.
async fn collect<E>(
    mut pieces: BoxStream<'_, Result<Bytes, E>>,
    most: usize,
) -> Result<Option<Bytes>, E> {
    let first = pieces.try_next().await?.unwrap_or_default();
    if first.len() > most {
        return Ok(None);
    }
    // What comes in one piece is not copied.
    let Some(second) = pieces.try_next().await? else { return Ok(Some(first)) };
    let mut all = Vec::with_capacity(most.min(FIRST_BYTES_MAX));
    all.extend_from_slice(&first);
    let mut next = Some(second);
    while let Some(piece) = next {
        if piece.len() > most - all.len() {
            return Ok(None);
        }
        all.extend_from_slice(&piece);
        next = pieces.try_next().await?;
    }
    Ok(Some(all.into()))
}

/// Marks a request whose answer, where it is a good one, is read by [`read`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Streamed;

/// A store's word that an object ends before the range that was asked for, or is empty: S3, Azure
/// and Google's store say it by the same status.
#[derive(Debug)]
struct Short(StatusCode);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the object ends before the range that was asked for ({})", self.0)
    }
}

impl std::error::Error for Short {}

/// Whether a store said that an object ends before the range that was asked for.
pub(super) fn is_short(error: &Error) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if error.is::<Short>() {
            return true;
        }
        next = error.source();
    }
    false
}

/// Connects to clients that read answers up to a bound, and follow no redirect: a network's login
/// page, to which a redirected put becomes a get, would count as its success and get its token.
#[derive(Debug)]
pub(super) struct Bounded;

impl HttpConnector for Bounded {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let is_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let client = reqwest::Client::builder()
            .user_agent(concat!("layby/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIME)
            .redirect(Policy::none())
            // Reads that clients wait for share no connection with uploads, and no dead one.
            .http1_only()
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate()
            .https_only(is_http.as_deref() != Some("true"))
            .build();
        let client = client.map_err(|error| {
            let source = Box::new(error);
            Error::Generic { store: "HTTP", source }
        })?;
        Ok(HttpClient::new(BoundedClient(HttpClient::new(client))))
    }
}

#[derive(Debug)]
struct BoundedClient(HttpClient);

impl BoundedClient {
    async fn answer(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_streamed = request.extensions().get::<Streamed>().is_some();
        let is_range = request.headers().contains_key("range");
        // A machine's metadata service answers empty ones with tokens.
        let is_put = request.method() == Method::PUT && !request.body().is_empty();
        let response = self.0.execute(request).await?;
        let refused =
            |cause: String| Err(HttpError::new_boxed(HttpErrorKind::Decode, cause.into()));
        if let Some(cause) = redirect(&response) {
            return refused(cause);
        }
        let is_page = is_page(&response);
        if is_streamed && response.status().is_success() {
            return match is_page {
                true => refused(page(response.status())),
                // Of an empty object some stores give all there is, whatever the range.
                false if is_range && is_empty(&response) => {
                    Err(HttpError::new(HttpErrorKind::Decode, Short(response.status())))
                }
                false => Ok(response),
            };
        }
        let (head, body) = response.into_parts();
        let status = head.status;
        let bytes = collect(body.bytes_stream().boxed(), ANSWER_BYTES_MAX).await?;
        let bytes = bytes.ok_or_else(|| {
            let cause = format!(
                "an answer ({status}) goes on; {ANSWER_BYTES_MAX} bytes are the most that is read"
            );
            HttpError::new_boxed(HttpErrorKind::Decode, cause.into())
        })?;
        if is_streamed && status == StatusCode::RANGE_NOT_SATISFIABLE {
            // The client has no type for it; nothing else is sorted by what it says.
            return Err(HttpError::new(HttpErrorKind::Decode, Short(status)));
        }
        // Stores say that of answers without a word, too.
        if is_page && !bytes.is_empty() {
            return refused(page(status));
        }
        let kind = head.headers.get("content-type").and_then(|kind| kind.to_str().ok());
        let is_word = kind.is_some_and(|kind| kind.contains("xml") || kind.contains("json"));
        if is_put && status.is_success() && !bytes.is_empty() && !is_word {
            let (length, kind) = (bytes.len(), kind.unwrap_or("no kind"));
            return refused(format!(
                "the answer to a put has {length} bytes of {kind}: {NO_STORE}"
            ));
        }
        Ok(HttpResponse::from_parts(head, HttpResponseBody::from(bytes)))
    }
}

/// What to look at after an answer that is no store's.
const NO_STORE: &str =
    "is this the store's endpoint and region, and no network in between that wants a login?";

/// What is wrong with a redirect.
fn redirect(response: &HttpResponse) -> Option<String> {
    let status = response.status();
    let location = response.headers().get("location").filter(|_| status.is_redirection())?;
    let url = location.to_str().ok().and_then(|location| reqwest::Url::parse(location).ok());
    let host = url.as_ref().and_then(reqwest::Url::host_str).unwrap_or("another path");
    Some(format!("the answer is a redirect ({status}) to {host}, and none is followed: {NO_STORE}"))
}

/// Whether a good answer is an object without bytes.
fn is_empty(response: &HttpResponse) -> bool {
    let length = response.headers().get("content-length");
    response.status() == StatusCode::OK && length.is_some_and(|length| length == "0")
}

/// Whether a good answer calls itself HTML. A range comes from nothing but a store, whatever a
/// client of the volume has written there.
fn is_page(response: &HttpResponse) -> bool {
    let status = response.status();
    if !status.is_success() || status == StatusCode::PARTIAL_CONTENT {
        return false;
    }
    let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().starts_with("text/html"))
}

fn page(status: StatusCode) -> String {
    format!("the answer ({status}) is a page in HTML: {NO_STORE}")
}

impl HttpService for BoundedClient {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> BoxFuture<'b, Result<HttpResponse, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(self.answer(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::client::HttpRequestBody;

    /// Answers all with so many bytes and this status, and a header.
    #[derive(Debug)]
    struct Talker(u16, usize, Option<(&'static str, &'static str)>);

    impl HttpService for Talker {
        fn call<'a, 'b>(&'a self, _: HttpRequest) -> BoxFuture<'b, Result<HttpResponse, HttpError>>
        where
            'a: 'b,
            Self: 'b,
        {
            Box::pin(async {
                let mut response = HttpResponse::new(vec![b'x'; self.1].into());
                *response.status_mut() = self.0.try_into().expect("it is a status");
                if let Some((name, value)) = self.2 {
                    response.headers_mut().insert(name, value.parse().expect("it is a header"));
                }
                Ok(response)
            })
        }
    }

    /// Goal: an answer that is no object has a bound, whatever it is an answer to; a good one to a
    /// get has none here, since it is streamed. Method: answers of the bound and of a byte more.
    #[tokio::test]
    async fn answers_have_a_bound() {
        const MOST: usize = ANSWER_BYTES_MAX;
        for (status, bytes, is_streamed, is_good) in [
            (200, MOST, false, true),
            (200, MOST + 1, false, false),
            (200, MOST + 1, true, true),
            (503, MOST, true, true),
            (503, MOST + 1, true, false),
        ] {
            let client = BoundedClient(HttpClient::new(Talker(status, bytes, None)));
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            if is_streamed {
                request.extensions_mut().insert(Streamed);
            }
            match client.call(request).await {
                Ok(response) => {
                    let body = response.into_body().bytes().await.expect("it is whole");
                    assert!(is_good && body.len() == bytes, "{status} {bytes}");
                }
                Err(error) => {
                    assert!(!is_good, "{status} {bytes}: {error}");
                    assert!(error.to_string().contains("are the most"), "{error}");
                }
            }
        }
    }

    /// Goal: a page in HTML and a redirect are no store's answers, whatever was asked; objects of
    /// any other kind, refusals in HTML and bare redirects are left to the client. Method: answers
    /// of each kind.
    #[tokio::test]
    async fn pages_and_redirects_are_no_answers() {
        let html = Some(("content-type", "text/html; charset=utf-8"));
        let location = Some(("location", "https://login.example/x?token=secret"));
        for (status, header, words) in [
            (200, html, Some("a page in HTML")),
            (206, html, None),
            (303, location, Some("redirect (303 See Other) to login.example")),
            (307, Some(("location", "/login")), Some("to another path")),
            (307, None, None),
            (304, None, None),
            (403, html, None),
            (200, Some(("content-type", "application/xml")), None),
            (200, None, None),
        ] {
            for is_streamed in [false, true] {
                let client = BoundedClient(HttpClient::new(Talker(status, 9, header)));
                let mut request = HttpRequest::new(HttpRequestBody::empty());
                if is_streamed {
                    request.extensions_mut().insert(Streamed);
                }
                let said = client.call(request).await.err().map(|error| error.to_string());
                match (&said, words) {
                    (Some(said), Some(words)) => {
                        assert!(said.contains(words) && !said.contains("secret"), "{said}");
                    }
                    (None, None) => {}
                    _ => panic!("{status} {header:?}: {said:?}"),
                }
            }
        }
    }

    /// Goal: an answer without a word is a store's whatever it says of itself, as some stores say
    /// HTML of all. Method: empty ones to puts and deletes.
    #[tokio::test]
    async fn empty_answers_are_stores() {
        for (method, status) in [(Method::PUT, 200), (Method::DELETE, 204), (Method::PUT, 201)] {
            let html = Some(("content-type", "text/html; charset=utf-8"));
            let client = BoundedClient(HttpClient::new(Talker(status, 0, html)));
            let mut request = HttpRequest::new(HttpRequestBody::from(Bytes::from_static(b"x")));
            *request.method_mut() = method.clone();
            let said = client.call(request).await.map(drop);
            assert!(said.is_ok(), "{method} {status}: {said:?}");
        }
    }

    /// Goal: a put's answer that has a body which is neither XML nor JSON is no store's; that of a
    /// put without bytes, by which tokens are asked for, may have any. Method: both with bodies of
    /// each kind.
    #[tokio::test]
    async fn answers_to_puts_are_stores() {
        for (header, is_empty, is_good) in [
            (None, false, false),
            (Some(("content-type", "text/plain")), false, false),
            (Some(("content-type", "text/plain")), true, true),
            (Some(("content-type", "application/json")), false, true),
            (Some(("content-type", "application/xml; charset=utf-8")), false, true),
        ] {
            let client = BoundedClient(HttpClient::new(Talker(200, 3, header)));
            let bytes = if is_empty { Bytes::new() } else { Bytes::from_static(b"x") };
            let mut request = HttpRequest::new(HttpRequestBody::from(bytes));
            *request.method_mut() = Method::PUT;
            let said = client.call(request).await.map(drop);
            assert_eq!(said.is_ok(), is_good, "{header:?} {is_empty}: {said:?}");
        }
    }

    /// Connects to nothing: all requests get one answer.
    #[derive(Debug)]
    struct Mute(u16, usize, Option<(&'static str, &'static str)>);

    impl HttpConnector for Mute {
        fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
            let talker = HttpClient::new(Talker(self.0, self.1, self.2));
            Ok(HttpClient::new(BoundedClient(talker)))
        }
    }

    /// Goal: the status by which S3, Azure and Google's store say that an object ends before a
    /// range is known in their clients' errors, as is an empty object in a range's place, and no
    /// other answer is taken for it. Method: each client over answers of some statuses.
    #[tokio::test]
    async fn each_cloud_says_that_an_object_is_short() {
        use object_store::aws::AmazonS3Builder;
        use object_store::azure::MicrosoftAzureBuilder;
        use object_store::gcp::GoogleCloudStorageBuilder;
        use object_store::{GetOptions, GetRange, ObjectStore, RetryConfig};
        let retry = || RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let empty = Some(("content-length", "0"));
        let others = [400, 404, 403, 412, 500, 503].map(|status| (status, 9, None, false));
        let short = [(416, 9, None, true), (200, 0, empty, true), (200, 9, None, false)];
        for (status, length, header, is_known) in short.into_iter().chain(others) {
            let mute = || Mute(status, length, header);
            let s3 = AmazonS3Builder::new().with_bucket_name("b").with_skip_signature(true);
            let s3 = s3.with_retry(retry()).with_http_connector(mute()).build();
            let az = MicrosoftAzureBuilder::new().with_account("a").with_container_name("b");
            let az = az.with_skip_signature(true).with_retry(retry());
            let az = az.with_http_connector(mute()).build();
            let gs = GoogleCloudStorageBuilder::new().with_bucket_name("b");
            let gs = gs.with_skip_signature(true).with_retry(retry());
            let gs = gs.with_http_connector(mute()).build();
            let stores: [Box<dyn ObjectStore>; 3] = [
                Box::new(s3.expect("it is whole")),
                Box::new(az.expect("it is whole")),
                Box::new(gs.expect("it is whole")),
            ];
            for store in stores {
                let range = Some(GetRange::Bounded(5..9));
                let mut options = GetOptions { range, ..GetOptions::default() };
                options.extensions.insert(Streamed);
                let got = store.get_opts(&"segments/1".into(), options).await;
                let error = got.expect_err("it is no success");
                assert_eq!(is_short(&error), is_known, "{store} {status}: {error:?}");
            }
        }
    }

    /// Goal: pieces are put together in their order, up to the bound and not beyond. Method: none,
    /// one and three pieces against bounds around their length.
    #[tokio::test]
    async fn pieces_are_collected() {
        let pieces = [&b"ab"[..], b"c", b"def"].map(Bytes::from_static);
        for count in [0, 1, 3] {
            let whole = pieces[..count].concat();
            for most in whole.len().saturating_sub(1)..whole.len() + 2 {
                let stream = futures_util::stream::iter(pieces[..count].to_vec()).map(Ok::<_, ()>);
                let found = collect(stream.boxed(), most).await.expect("no piece fails");
                let expected = (whole.len() <= most).then(|| Bytes::from(whole.clone()));
                assert_eq!(found, expected, "{count} pieces in {most}");
            }
        }
    }

    /// Goal: each kind of object has its bound, and a range is one. Method: keys by hand.
    #[test]
    fn kinds_have_bounds() {
        let segment = SegmentName { epoch: 1, number: 2 }.key();
        assert_eq!(bytes_max(SUPERBLOCK_KEY, None), SUPERBLOCK_BYTES_MAX);
        assert_eq!(bytes_max(&segment, None), SEGMENT_BYTES_MAX);
        assert_eq!(bytes_max(&segment, Some(&(7..9))), 2);
        assert_eq!(bytes_max("checkpoints/1", None), OBJECT_BYTES_MAX);
    }
}
