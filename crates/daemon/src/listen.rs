//! Serves the control API on its sockets, within bounds.
//!
//! How: `hyper` under the router, a task per connection, at most [`CONTROL_CONNECTIONS_MAX`] at
//! once on each socket. When all places are taken, the connection that has moved no byte for the
//! longest, and whose request is not being worked on, gives its place to the next one (see
//! `places`); where there is none, one that has its answer does. A client that does not finish its
//! request's head in time, or does not read its answer, is closed; one that only shuts down its
//! writing side is answered, within two seconds. A stop ends a connection behind
//! the answer under way.
//! Invariant: a flood of control connections takes no place from NBD clients; clients that hang
//! take none from those that do not. A change that is being made is never cut off here.
//! Cost: nothing while nobody asks.

mod places;

use crate::api::Caller;
use crate::sockets::{AcceptFaults, UnixSocket};
use axum::Router;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use places::{Places, Watched};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

/// Control connections at once at most, on each socket. Each has one request at a time worked on,
/// so that this bounds requests that wait for the shards, too.
pub const CONTROL_CONNECTIONS_MAX: usize = 64;
/// Time for the head of a request.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which a client must read a part of its answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for all answers that are under way when the node has stopped.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The control connections of a node, on all its sockets.
#[derive(Default)]
pub struct Connections(GracefulShutdown);

impl Connections {
    /// For the next connection.
    fn watcher(&self) -> Watcher {
        self.0.watcher()
    }

    /// Ends them all, each behind the answer that it waits for; one that does not read its answer
    /// in time is left. Nothing is to be accepted any more.
    pub async fn end(self) {
        let ended = tokio::time::timeout(END_TIMEOUT, self.0.shutdown()).await;
        if ended.is_err() {
            tracing::debug!("control clients do not read their answers");
        }
    }
}

/// Serves the API on the unix socket until the task is dropped. A peer whom the kernel does not
/// name is closed.
pub async fn serve_unix(socket: Arc<UnixSocket>, router: Router, connections: Arc<Connections>) {
    let accept = || async {
        let (stream, _) = socket.listener.accept().await?;
        let peer = stream.peer_cred()?;
        Ok((stream, Caller::Unix { uid: peer.uid(), pid: peer.pid() }))
    };
    serve(accept, router, connections).await;
}

/// Serves the API on an address until the task is dropped.
pub async fn serve_tcp(listener: TcpListener, router: Router, connections: Arc<Connections>) {
    let accept = || async {
        listener.accept().await.map(|(stream, address)| (stream, Caller::Http(address)))
    };
    serve(accept, router, connections).await;
}

async fn serve<T, F>(accept: impl Fn() -> F, router: Router, connections: Arc<Connections>)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = std::io::Result<(T, Caller)>>,
{
    let places = Arc::new(Places::new(CONTROL_CONNECTIONS_MAX));
    let mut faults = AcceptFaults::default();
    loop {
        match accept().await {
            Ok((stream, caller)) => {
                let place = places.take().await;
                let service = TowerToHyperService::new(router.clone());
                let leaving = places::Leaving::new(&place);
                let (held, watcher) = (Arc::clone(&place), connections.watcher());
                let task = tokio::spawn(async move {
                    let _leaving = leaving;
                    let stream = TokioIo::new(Watched::new(stream, &held, ANSWER_TIMEOUT));
                    let service = service_fn(|mut request: hyper::Request<Incoming>| {
                        request.extensions_mut().insert(caller);
                        let working = held.work();
                        let answer = service.call(request);
                        let held = Arc::clone(&held);
                        async move {
                            let mut answer = answer.await;
                            drop(working);
                            if let (true, Ok(answer)) = (held.gives_place(), &mut answer) {
                                let headers = answer.headers_mut();
                                headers.insert(CONNECTION, HeaderValue::from_static("close"));
                            }
                            answer
                        }
                    });
                    let connection = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(HEAD_TIMEOUT)
                        .serve_connection(stream, service);
                    if let Err(cause) = watcher.watch(connection).await {
                        tracing::debug!(%cause, "a control client broke off");
                    }
                });
                place.set_task(task.abort_handle());
            }
            Err(cause) => {
                faults.rest("cannot accept a control client", &cause).await;
            }
        }
    }
}
