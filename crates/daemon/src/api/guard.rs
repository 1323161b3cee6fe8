//! Lets in who may change a node, and keeps other people's web pages away.
//!
//! How: everyone who reaches the API may read. A change needs the node's own user or root, whom the
//! kernel names on the unix socket, or a token of the configuration on the HTTP address. A page in
//! the operator's browser reaches the loopback address, too, so a request must name a loopback host
//! (a page behind a rebound DNS name cannot) and, when a browser says which page sent it, that page
//! must be ours. The body of a change is read here, within a time.
//! Invariant: what is not known to be a read is a change; a connection of which nothing is known
//! makes none; each change, and each attempt at one, is in the audit log. What a recorder takes
//! many times a second is let in as a change is, and leaves no line. A change that has begun is
//! made to its end, also when its client leaves; only a snapshot is withdrawn then, and a drain
//! ends.
//! Cost: a few header look-ups per request; a line in a file per change. Not for: NBD clients.

use super::token::Tokens;
use crate::audit::{Audit, Who};
use crate::config::ControlConfig;
use crate::control::{Authority, Pace};
use crate::error::{Report, ReportKind};
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Time for the body of a change.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);
const ADDRESS: &str = "use the address in `control.url` of the node's directory";
const SOCKET: &str = "make changes with `layby` as the node's user or root, through the control \
                      socket; or configure a `token_file` in [control]";
const TOKEN: &str = "send `Authorization: Bearer TOKEN` with a token of the node's `token_file`, \
                     which is read at its start";

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A process, as the kernel names it.
    Unix {
        /// Its user.
        uid: u32,
        /// Its number, where the kernel has told it.
        pid: Option<i32>,
    },
    /// An address.
    Http(SocketAddr),
}

/// What decides on changes.
#[derive(Debug)]
pub struct Door {
    uid: u32,
    tokens: Tokens,
    audit: Audit,
}

impl Door {
    /// The door of the node in `dir`.
    ///
    /// # Errors
    /// A report when the tokens cannot be used.
    pub fn open(dir: &Path, config: &ControlConfig) -> Result<Door, Report> {
        let tokens = config.token_file.as_deref().map(Tokens::load).transpose()?;
        let uid = rustix::process::geteuid().as_raw();
        Ok(Door { uid, tokens: tokens.unwrap_or_default(), audit: Audit::new(dir) })
    }

    fn is_owner(&self, uid: u32) -> bool {
        uid == self.uid || uid == 0
    }

    /// When the counters for a read are taken: a caller that may change the node can stop it, too.
    fn pace(&self, caller: Option<Caller>) -> Pace {
        match caller {
            Some(Caller::Unix { uid, .. }) if self.is_owner(uid) => Pace::AtOnce,
            _ => Pace::Paced,
        }
    }

    /// On whose behalf a change is made, and what the audit log calls him; or why not.
    fn admit(&self, caller: Option<Caller>, request: &Request) -> (Who, Result<Authority, String>) {
        match caller {
            Some(Caller::Unix { uid, pid }) => {
                let is_owner = self.is_owner(uid);
                let refused = || format!("user {uid} is neither the node's user nor root");
                (Who::Unix { uid, pid }, is_owner.then_some(Authority::Owner).ok_or_else(refused))
            }
            Some(Caller::Http(address)) => {
                let token = bearer(request).and_then(|given| self.tokens.name_of(given));
                let cause = match self.tokens.is_empty() {
                    true => "this address serves reads alone",
                    false => "it has no token that this node knows",
                };
                let admitted = token.map(|_| Authority::Token).ok_or_else(|| cause.to_owned());
                let token = token.map(str::to_owned);
                (Who::Http { address: address.to_string(), token }, admitted)
            }
            None => {
                let who = Who::Http { address: "unknown".to_owned(), token: None };
                (who, Err("nothing is known of its author".to_owned()))
            }
        }
    }
}

/// The token that a request brings.
fn bearer(request: &Request) -> Option<&str> {
    let text = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

fn is_http(who: &Who) -> bool {
    matches!(who, Who::Http { .. })
}

/// Lets a request pass, or answers in its place.
pub(super) async fn check(
    State(door): State<Arc<Door>>,
    mut request: Request,
    next: Next,
) -> Response {
    let foreign = refusal(&request);
    let is_foreign = foreign.is_some();
    let Some(asked) = asked(&request) else {
        return super::wrong("its path is no UTF-8").into_response();
    };
    let caller = request.extensions().get::<Caller>().copied();
    if is_read(request.method()) {
        request.extensions_mut().insert(door.pace(caller));
        return match foreign {
            None => next.run(request).await,
            Some(cause) => denied(&cause, ADDRESS),
        };
    }
    let (who, admitted) = door.admit(caller, &request);
    let (authority, hint) = match foreign {
        Some(cause) => (Err(cause), ADDRESS),
        None if is_http(&who) && !door.tokens.is_empty() => (admitted, TOKEN),
        None => (admitted, SOCKET),
    };
    match authority {
        Ok(authority) => change(door, who, asked, authority, request, next).await,
        Err(cause) => {
            door.audit.refuse(&who, &asked, &cause);
            let mut response = denied(&cause, hint);
            if is_http(&who) && !door.tokens.is_empty() && !is_foreign {
                *response.status_mut() = StatusCode::UNAUTHORIZED;
                let scheme = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            }
            response
        }
    }
}

/// What a request asks for, with its path as it is taken: escapes in it name nothing else. `None`
/// where it names nothing.
fn asked(request: &Request) -> Option<String> {
    let path = percent_decode_str(request.uri().path()).decode_utf8().ok()?;
    let query = request.uri().query().map_or(String::new(), |query| format!("?{query}"));
    Some(format!("{} {}{query}", request.method(), path.escape_debug()))
}

/// Has a change made, with its line in the audit log.
async fn change(
    door: Arc<Door>,
    who: Who,
    asked: String,
    authority: Authority,
    request: Request,
    next: Next,
) -> Response {
    let (mut head, body) = request.into_parts();
    let reading = tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, super::BODY_BYTES_MAX)).await;
    let body = match reading {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            let most = super::BODY_BYTES_MAX;
            return super::wrong(format!("its body is longer than {most} bytes, or broke off"))
                .into_response();
        }
        Err(_) => {
            let mut late = super::wrong("its body took too long").into_response();
            *late.status_mut() = StatusCode::REQUEST_TIMEOUT;
            return late;
        }
    };
    head.extensions.insert(authority);
    let is_awaited = ends_with_its_client(head.uri.path());
    let is_change = !is_mere_take(&head.method, &head.uri);
    let making = async move {
        let entry = is_change.then(|| door.audit.begin(who, &asked, &body));
        // Fields by their places would be taken for a request, and the log could name none of them.
        let is_list = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
        let response = match is_list {
            true => super::wrong("its body is a list, not an object").into_response(),
            false => next.run(Request::from_parts(head, Body::from(body))).await,
        };
        let cause = response.extensions().get::<Cause>().map(|Cause(text)| text.as_str());
        if let Some(entry) = entry {
            entry.end(response.status().as_u16(), cause);
        }
        response
    };
    if is_awaited {
        return making.await;
    }
    // A client that leaves drops what waits here, which would leave a change half made.
    match tokio::spawn(making).await {
        Ok(response) => response,
        Err(broken) => super::Refused(
            Report::new(ReportKind::Failure, "the change broke off")
                .cause(broken.to_string())
                .state("how much of it was made is not known; what was acknowledged is safe")
                .hint("the node's log has more; `layby status` shows what there is"),
        )
        .into_response(),
    }
}

/// Whether a change is over when nothing waits for it: it has nothing that could be half done.
fn ends_with_its_client(path: &str) -> bool {
    let volume = path.strip_prefix("/v1/volumes/").and_then(|rest| rest.split_once('/'));
    let of_volume = volume.map(|(_, what)| what);
    path == "/v1/drain"
        || of_volume.is_some_and(|what| what == "drain" || what.starts_with("snapshots"))
}

/// Whether a request only takes what was recorded, and does not end the recording. It comes ten
/// times a second and would push all changes out of the audit log.
fn is_mere_take(method: &Method, uri: &Uri) -> bool {
    let taken =
        uri.path().strip_prefix("/v1/recording/").and_then(|rest| rest.strip_suffix("/take"));
    let is_take = taken.is_some_and(|id| id.bytes().all(|byte| byte.is_ascii_digit()));
    *method == Method::POST && is_take && matches!(uri.query(), None | Some("end=false"))
}

/// Why a request was refused, for the audit log.
#[derive(Clone, Debug)]
pub(super) struct Cause(pub(super) String);

/// Keeps pages of other people from reading what is served to the network.
pub(super) async fn check_page(request: Request, next: Next) -> Response {
    match request.headers().contains_key(ORIGIN) {
        false => next.run(request).await,
        true => denied("a page sent it", "this address is for scrapers and probes"),
    }
}

fn denied(cause: &str, hint: &str) -> Response {
    super::Refused(
        Report::new(ReportKind::Denied, "cannot answer this request")
            .cause(cause)
            .state("nothing was changed")
            .hint(hint),
    )
    .into_response()
}

fn refusal(request: &Request) -> Option<String> {
    let text = |name: HeaderName| request.headers().get(name).map(|value| value.to_str());
    let Some(Ok(host)) = text(HOST) else {
        return Some("it names no host".to_owned());
    };
    if !is_loopback(host) {
        return Some(format!("it is meant for the host `{}`", host.escape_debug()));
    }
    match text(ORIGIN) {
        None => None,
        Some(Ok(origin)) if origin.strip_prefix("http://") == Some(host) => None,
        Some(Ok(origin)) => Some(format!("the page at `{}` sent it", origin.escape_debug())),
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

    fn request(host: Option<&str>, origin: Option<&str>) -> Request {
        let mut request = Request::new(Body::empty());
        for (name, value) in [(HOST, host), (ORIGIN, origin)] {
            if let Some(value) = value {
                request.headers_mut().insert(name, value.parse().expect("a header value"));
            }
        }
        request
    }

    /// Goal: a drain and a snapshot are over when their client has gone, and all other changes are
    /// made to their end, whatever the volume is called. Method: paths of both kinds.
    #[test]
    fn what_could_be_half_made_outlives_its_client() {
        for path in [
            "/v1/drain",
            "/v1/volumes/a/drain",
            "/v1/volumes/drain/drain",
            "/v1/volumes/a/snapshots",
            "/v1/volumes/a/snapshots/monday",
        ] {
            assert!(ends_with_its_client(path), "{path}");
        }
        for path in [
            "/v1/volumes",
            "/v1/volumes/a",
            "/v1/volumes/drain",
            "/v1/volumes/snapshots",
            "/v1/volumes/snapshots/accept-loss",
            "/v1/deleted-volumes/drain/undelete",
            "/v1/classes/drain",
        ] {
            assert!(!ends_with_its_client(path), "{path}");
        }
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
