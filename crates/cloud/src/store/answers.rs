//! How much of a store's answer is taken into memory.
//!
//! How: objects are streamed, and read up to the length that their head says, which is held against
//! what was asked for, or else against the most that an object of its kind has. All other answers
//! (lists, refusals, words to credentials) are read here, by [`Bounded`], before the store's client
//! sees them: it would give them as much memory as their head says.
//! Invariant: memory is given for bytes that came, and for no more than was asked for.
//! Cost: a copy of what comes in more than one piece, as without.
//! Not for: the memory that bytes take once they are decoded; see `formats`.

use crate::segment::SegmentName;
use crate::superblock::SUPERBLOCK_KEY;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use object_store::{ClientOptions, Error, GetResult, GetResultPayload};
use std::ops::Range;

/// The most that a superblock has: 64 snapshots with 32 clones each, by name and URL.
const SUPERBLOCK_BYTES_MAX: u64 = 16 << 20;
/// The most that a segment has: twice the largest `object` that may be configured.
const SEGMENT_BYTES_MAX: u64 = 128 << 20;
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

/// Connects as usual, to clients that read answers up to a bound.
#[derive(Debug, Default)]
pub(super) struct Bounded(ReqwestConnector);

impl HttpConnector for Bounded {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(BoundedClient(self.0.connect(options)?)))
    }
}

#[derive(Debug)]
struct BoundedClient(HttpClient);

impl BoundedClient {
    async fn answer(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_streamed = request.extensions().get::<Streamed>().is_some();
        let response = self.0.execute(request).await?;
        if is_streamed && response.status().is_success() {
            return Ok(response);
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
        Ok(HttpResponse::from_parts(head, HttpResponseBody::from(bytes)))
    }
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

    /// Answers all with so many bytes and this status.
    #[derive(Debug)]
    struct Talker(u16, usize);

    impl HttpService for Talker {
        fn call<'a, 'b>(&'a self, _: HttpRequest) -> BoxFuture<'b, Result<HttpResponse, HttpError>>
        where
            'a: 'b,
            Self: 'b,
        {
            Box::pin(async {
                let mut response = HttpResponse::new(vec![b'x'; self.1].into());
                *response.status_mut() = self.0.try_into().expect("it is a status");
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
            let client = BoundedClient(HttpClient::new(Talker(status, bytes)));
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
