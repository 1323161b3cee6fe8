//! Serves the control API on its sockets, within bounds.
//!
//! How: `hyper` under the router, a task per connection, at most [`CONTROL_CONNECTIONS_MAX`] at
//! once; a client that does not finish its request's head in time is closed.
//! Invariant: a flood of control connections takes no place from NBD clients.
//! Cost: nothing while nobody asks.

use crate::sockets::UnixSocket;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Control connections at once at most, on each socket.
pub const CONTROL_CONNECTIONS_MAX: usize = 64;
/// Time for the head of a request.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves the API on the unix socket until the task is dropped.
pub async fn serve_unix(socket: Arc<UnixSocket>, router: Router) {
    let accept = || async { socket.listener.accept().await.map(|(stream, _)| stream) };
    serve(accept, router).await;
}

/// Serves the API on a loopback address until the task is dropped.
pub async fn serve_tcp(listener: TcpListener, router: Router) {
    let accept = || async { listener.accept().await.map(|(stream, _)| stream) };
    serve(accept, router).await;
}

async fn serve<T, F>(accept: impl Fn() -> F, router: Router)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = std::io::Result<T>>,
{
    let places = Arc::new(Semaphore::new(CONTROL_CONNECTIONS_MAX));
    loop {
        let place = Arc::clone(&places).acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        match accept().await {
            Ok(stream) => {
                let service = TowerToHyperService::new(router.clone());
                tokio::spawn(async move {
                    let connection = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(HEAD_TIMEOUT)
                        .serve_connection(TokioIo::new(stream), service);
                    if let Err(cause) = connection.await {
                        tracing::debug!(%cause, "a control client broke off");
                    }
                    drop(place);
                });
            }
            Err(cause) => {
                tracing::warn!(%cause, "cannot accept a control client");
                crate::sockets::rest_after_failed_accept().await;
            }
        }
    }
}
