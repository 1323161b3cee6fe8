//! The link's HTTP-aware side: requests pass on one by one, or meet a fault.
//!
//! How: hyper serves the client's connection and is a client of the server; bodies stream through.
//! Each client connection has one connection to the server, made anew where the server closed it.
//! Heads go on as they came (a signature covers the host that the client named), but for `Expect`,
//! which is answered here. Invariant: without a fault nothing of a body is changed or held back.
//! Cost: `Effect::Repeat`, `RepeatLate` and `Damage` hold a whole body. Not for: HTTP/2 and TLS.

use super::Shared;
use super::counts::Seen;
use super::fault::{Answer, Effect, StoreError, Verdict};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::DuplexStream;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Sleep, sleep};

/// From the last byte that passes to the tear.
const TORN_PAUSE: Duration = Duration::from_millis(10);

type AnyError = Box<dyn Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, AnyError>;
type Outcome = Result<Response<Body>, AnyError>;

/// Serves one client's connection until it ends.
pub(super) async fn serve(far: DuplexStream, shared: Arc<Shared>) {
    let upstream = Arc::new(Upstream { shared, sender: Mutex::new(None) });
    let service = service_fn(|request| {
        let upstream = upstream.clone();
        async move { upstream.answer(request).await }
    });
    // An error is a client that broke off, or a fault that wanted the connection closed.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(far), service).await;
}

/// The server's side of one client connection.
struct Upstream {
    shared: Arc<Shared>,
    sender: Mutex<Option<SendRequest<Body>>>,
}

impl Upstream {
    async fn answer(&self, request: Request<Incoming>) -> Outcome {
        let uri = request.uri();
        let mut seen = Seen::of(request.method(), uri.path(), uri.query().unwrap_or_default());
        let verdict = self.shared.rules.judge(&seen);
        seen.faulted = verdict.is_some();
        let number = self.shared.link.board.came(seen);
        let response = match verdict {
            None => self.forward(request).await?,
            Some(verdict) => self.suffer(request, verdict).await?,
        };
        self.shared.link.board.answered(number, response.status().as_u16());
        Ok(response)
    }

    async fn suffer(&self, request: Request<Incoming>, verdict: Verdict) -> Outcome {
        match verdict.effect {
            Effect::Fail(error) => refuse(request, error).await,
            Effect::NeverAnswer => {
                request.into_body().collect().await?;
                closed_when_lifted(&verdict).await
            }
            Effect::LoseReply => {
                self.forward(request).await?.into_body().collect().await?;
                Err(closed("the answer was lost"))
            }
            Effect::SwallowReply => {
                self.forward(request).await?.into_body().collect().await?;
                closed_when_lifted(&verdict).await
            }
            Effect::TearUpload => {
                let half = content_length(request.headers()) / 2;
                let (head, body) = split(request);
                self.send(Request::from_parts(head, torn(body, half))).await
            }
            Effect::TearDownload => {
                let (head, body) = self.forward(request).await?.into_parts();
                let half = content_length(&head.headers) / 2;
                Ok(Response::from_parts(head, torn(body, half)))
            }
            Effect::Damage => damage(self.forward(request).await?, verdict.draw).await,
            Effect::Late { least, most } => {
                sleep(between(least, most, verdict.draw)).await;
                self.forward(request).await
            }
            Effect::Repeat(answer) => self.repeat(request, answer).await,
            Effect::RepeatLate => self.repeat_late(request, verdict).await,
        }
    }

    async fn forward(&self, request: Request<Incoming>) -> Outcome {
        let (head, body) = split(request);
        self.send(Request::from_parts(head, body.map_err(AnyError::from).boxed_unsync())).await
    }

    async fn repeat(&self, request: Request<Incoming>, answer: Answer) -> Outcome {
        let (head, body) = split(request);
        let body = body.collect().await?.to_bytes();
        let first = whole(self.send(with(&head, body.clone())).await?).await?;
        let second = whole(self.send(with(&head, body)).await?).await?;
        Ok(match answer {
            Answer::First => first,
            Answer::Second => second,
        })
    }

    async fn repeat_late(&self, request: Request<Incoming>, verdict: Verdict) -> Outcome {
        let (head, body) = split(request);
        let body = body.collect().await?.to_bytes();
        let again = with(&head, body.clone());
        let late = Upstream { shared: self.shared.clone(), sender: Mutex::new(None) };
        tokio::spawn(async move {
            verdict.rule.lifted().await;
            // A server that is gone by then is no concern of a packet that comes late.
            if let Ok(response) = late.send(again).await {
                let _ = whole(response).await;
            }
            late.shared.late.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
            late.shared.link.board.stir();
        });
        self.send(with(&head, body)).await
    }

    /// Sends it over the connection to the server, which is made where there is none.
    async fn send(&self, request: Request<Body>) -> Outcome {
        let mut sender = self.sender.lock().await;
        let mut kept = sender.take();
        let is_open = match &mut kept {
            Some(kept) => kept.ready().await.is_ok(),
            None => false,
        };
        let open = match kept {
            Some(kept) if is_open => kept,
            _ => self.connect().await?,
        };
        let response = sender.insert(open).send_request(request).await?;
        Ok(response.map(|body| body.map_err(AnyError::from).boxed_unsync()))
    }

    async fn connect(&self) -> Result<SendRequest<Body>, AnyError> {
        let server = TcpStream::connect(self.shared.server).await?;
        server.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(server)).await?;
        // It ends with the sender; its error is the request's, too.
        tokio::spawn(connection);
        Ok(sender)
    }
}

fn split(request: Request<Incoming>) -> (hyper::http::request::Parts, Incoming) {
    let (mut head, body) = request.into_parts();
    head.headers.remove(EXPECT);
    (head, body)
}

fn with(head: &hyper::http::request::Parts, body: Bytes) -> Request<Body> {
    Request::from_parts(head.clone(), full(body))
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

async fn whole(response: Response<Body>) -> Outcome {
    let (head, body) = response.into_parts();
    Ok(Response::from_parts(head, full(body.collect().await?.to_bytes())))
}

async fn refuse(request: Request<Incoming>, error: StoreError) -> Outcome {
    let document = error.document(request.uri().path());
    // Taken to its end, so that the client hears the answer rather than a closed connection.
    request.into_body().collect().await?;
    let answer = Response::builder().status(error.status).header(CONTENT_TYPE, "application/xml");
    Ok(answer.body(full(document.into()))?)
}

async fn closed_when_lifted(verdict: &Verdict) -> Outcome {
    verdict.rule.lifted().await;
    Err(closed("no answer came"))
}

async fn damage(response: Response<Body>, draw: u64) -> Outcome {
    let (head, body) = response.into_parts();
    let mut bytes = body.collect().await?.to_bytes().to_vec();
    if !bytes.is_empty() {
        let at = draw % (bytes.len() as u64 * 8);
        bytes[usize::try_from(at / 8)?] ^= 1 << (at % 8);
    }
    Ok(Response::from_parts(head, full(bytes.into())))
}

fn between(least: Duration, most: Duration, draw: u64) -> Duration {
    let room = most.saturating_sub(least).as_nanos();
    let drawn = room * u128::from(draw) / u128::from(u64::MAX);
    least + Duration::from_nanos(u64::try_from(drawn).unwrap_or(u64::MAX))
}

fn content_length(headers: &hyper::HeaderMap) -> u64 {
    let text = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn closed(why: &str) -> AnyError {
    io::Error::new(io::ErrorKind::ConnectionReset, why).into()
}

fn torn<B>(inner: B, left: u64) -> Body
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<AnyError>,
{
    Torn { inner, left, pause: None }.boxed_unsync()
}

/// A body that breaks off when `left` bytes of it have passed.
struct Torn<B> {
    inner: B,
    left: u64,
    /// Time for what came before to get through.
    pause: Option<Pin<Box<Sleep>>>,
}

impl<B> HttpBody for Torn<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<AnyError>,
{
    type Data = Bytes;
    type Error = AnyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnyError>>> {
        if self.left == 0 {
            let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(TORN_PAUSE)));
            ready!(pause.as_mut().poll(context));
            return Poll::Ready(Some(Err(closed("the connection was torn"))));
        }
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        let data = frame.map(|frame| frame.map(|frame| frame.into_data().unwrap_or_default()));
        Poll::Ready(data.map(|data| {
            let mut data = data.map_err(Into::into)?;
            data.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= data.len() as u64;
            Ok(Frame::data(data))
        }))
    }

    // As long as the whole, so that whoever reads it knows that something is missing.
    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
