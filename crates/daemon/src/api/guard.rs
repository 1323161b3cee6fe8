//! Keeps other people's web pages away from a node's control API.
//!
//! How: the API has no login; whoever reaches the loopback address is the operator. A page in the
//! operator's browser reaches it too, so a request must name a loopback host (a page behind a
//! rebound DNS name cannot) and, when a browser says which page sent it, that page must be ours.
//! Invariant: a request that a foreign page caused changes nothing and reads nothing.
//! Cost: two header look-ups per request. Not for: other users of the same machine; the unix socket
//! has permissions for that, and `http = "off"` closes the address.

use crate::error::{Report, ReportKind};
use axum::extract::Request;
use axum::http::header::{HOST, HeaderName, ORIGIN};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;

/// Lets a request pass, or answers in its place.
pub(super) async fn check(request: Request, next: Next) -> Response {
    match refusal(&request) {
        None => next.run(request).await,
        Some(cause) => super::Refused(
            Report::new(ReportKind::Denied, "cannot answer this request")
                .cause(cause)
                .state("nothing was changed")
                .hint("use the address in `control.url` of the node's directory"),
        )
        .into_response(),
    }
}

fn refusal(request: &Request) -> Option<String> {
    let text = |name: HeaderName| request.headers().get(name).map(|value| value.to_str());
    let Some(Ok(host)) = text(HOST) else {
        return Some("it names no host".to_owned());
    };
    if !is_loopback(host) {
        return Some(format!("it is meant for the host `{}`", host.escape_default()));
    }
    match text(ORIGIN) {
        None => None,
        Some(Ok(origin)) if origin.strip_prefix("http://") == Some(host) => None,
        Some(Ok(origin)) => Some(format!("the page at `{}` sent it", origin.escape_default())),
        Some(Err(_)) => Some("an unreadable origin sent it".to_owned()),
    }
}

/// Whether `host`, with or without a port, is this machine by a name that no DNS server answers.
fn is_loopback(host: &str) -> bool {
    let bare = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(address, _)| address),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn request(host: Option<&str>, origin: Option<&str>) -> Request {
        let mut request = Request::new(Body::empty());
        for (name, value) in [(HOST, host), (ORIGIN, origin)] {
            if let Some(value) = value {
                request.headers_mut().insert(name, value.parse().expect("a header value"));
            }
        }
        request
    }

    /// Goal: only our own pages and tools pass. Method: hosts and origins of both kinds.
    #[test]
    fn foreign_hosts_and_pages_are_refused() {
        for host in ["localhost", "127.0.0.1:8080", "[::1]:80", "localhost:1", "127.8.9.1"] {
            assert_eq!(refusal(&request(Some(host), None)), None, "{host}");
            let own = format!("http://{host}");
            assert_eq!(refusal(&request(Some(host), Some(&own))), None, "{host}");
            for origin in ["https://example.org", "null", "http://127.0.0.1:9"] {
                assert!(refusal(&request(Some(host), Some(origin))).is_some(), "{host} {origin}");
            }
        }
        for host in ["example.org", "example.org:80", "10.0.0.1", "localhost.example.org", ""] {
            assert!(refusal(&request(Some(host), None)).is_some(), "{host}");
        }
        assert!(refusal(&request(None, None)).is_some());
    }
}
