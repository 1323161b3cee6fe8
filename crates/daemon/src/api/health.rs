//! Whether a node lives and serves, for who starts, stops and routes by that.
//!
//! How: `/healthz` is answered by the control plane alone, so that a slow device restarts nobody;
//! `/readyz` asks every shard, within a time; requests that wait share what shards answer. A node
//! that recovers answers neither yet.
//! Invariant: a node whose shard has ended or hangs is not ready, nor one whose directory is not at
//! its path any more, within ten seconds. Cost: a round of counters, ten a second at most for
//! callers without rights.
//! Not for: a volume that is not served; `/v1/status` and the log have that.

use super::{Node, Refused};
use crate::control::Pace;
use crate::error::{Report, ReportKind};
use axum::extract::State;
use std::time::Duration;

/// Longest that shards may take to answer.
const READY_TIME_MAX: Duration = Duration::from_secs(2);

/// Whether the process lives.
#[utoipa::path(get, path = "/healthz", tag = "node",
    responses((status = 200, content_type = "text/plain", body = String)))]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether the node serves: each of its shards answers, and its directory is where it was.
#[utoipa::path(get, path = "/readyz", tag = "node",
    responses((status = 200, content_type = "text/plain", body = String),
        (status = "default", body = Report)))]
pub(super) async fn readyz(State(node): Node, pace: Pace) -> Result<&'static str, Refused> {
    let asked = tokio::time::timeout(READY_TIME_MAX, node.snapshots(pace)).await;
    // What was found last: a look may hang with the file system, and requests go on coming.
    let moved = crate::held::told(&node.facts().dir);
    let refused = |cause: String| {
        Refused(
            Report::new(ReportKind::Unreachable, "the node is not ready")
                .cause(cause)
                .state("what was acknowledged is safe")
                .hint("the node's log has more"),
        )
    };
    match asked.map(|answered| answered.map(|_| moved)) {
        Ok(Ok(None)) => Ok("ready\n"),
        Ok(Ok(Some(moved))) => {
            let report = moved.report("the node is not ready");
            Err(Refused(Report { kind: ReportKind::Unreachable, ..report }))
        }
        Ok(Err(report)) => Err(refused(report.cause)),
        Err(_) => Err(refused("a shard does not answer".to_owned())),
    }
}
