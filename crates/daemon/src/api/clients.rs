//! NBD clients that are connected, as the control API answers them.
//!
//! How: each handler is one call on [`Control`](crate::control::Control).
//! Invariant: as in the API's own header. Cost: a message to each shard.

use super::{Answer, Node, Refused, wrong};
use crate::certificate::CertificateNames;
use crate::config::Name;
use crate::control::{ClientState, Pace, View};
use crate::error::Report;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use layby_engine::control::ClientId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A client that is connected to a volume over NBD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClientAnswer {
    /// Its number, which no other client of this life of the node gets.
    pub number: u64,
    /// The volume that it uses.
    pub volume: Name,
    /// The volume's class.
    pub class: Name,
    /// Its address and port, or `unix`.
    pub peer: String,
    /// The names of the certificate that it has shown, common name first; none without one.
    pub certificate: Vec<String>,
    /// When it entered the volume, in UTC, such as `2026-11-22T14:30:00Z`.
    pub connected: String,
    /// Seconds since then, whatever the clock was set to meanwhile.
    pub age_seconds: u64,
    /// Its requests that are not answered yet.
    pub requests_inflight: u32,
    /// Bytes that these read or write.
    pub bytes_inflight: u64,
}

impl ClientAnswer {
    fn of(view: &View, state: ClientState) -> Option<ClientAnswer> {
        let ClientState { id, client, load } = state;
        // A client whose volume is gone is about to go.
        let (_, record) = view.volumes().find(|(name, _)| **name == client.volume)?;
        let names = client.visitor.certificate.iter().flat_map(CertificateNames::iter);
        Some(ClientAnswer {
            number: id.0,
            class: record.class.clone(),
            certificate: names.map(str::to_owned).collect(),
            connected: client.since.format("%Y-%m-%dT%H:%M:%SZ").to_string(),
            age_seconds: client.entered.elapsed().as_secs(),
            requests_inflight: load.map_or(0, |load| load.inflight),
            bytes_inflight: load.map_or(0, |load| load.inflight_bytes),
            volume: client.volume,
            peer: client.peer,
        })
    }
}

/// The clients that are connected over NBD, in the order in which they came.
#[utoipa::path(get, path = "/v1/clients", tag = "clients",
    responses((status = 200, body = Vec<ClientAnswer>), (status = "default", body = Report)))]
pub(super) async fn clients(State(node): Node, pace: Pace) -> Answer<Vec<ClientAnswer>> {
    let found = node.client_list(pace).await?;
    let view = node.view();
    Ok(Json(found.into_iter().filter_map(|state| ClientAnswer::of(&view, state)).collect()))
}

/// Closes a client's connection; what it has not been answered may be done or not. It may come
/// again.
#[utoipa::path(delete, path = "/v1/clients/{number}", tag = "clients",
    params(("number" = u64, Path)),
    responses((status = 204), (status = "default", body = Report)))]
pub(super) async fn client_disconnect(
    State(node): Node,
    Path(number): Path<String>,
) -> Result<StatusCode, Refused> {
    let number = number.parse().map_err(|_| wrong(format!("`{number}` is no client's number")))?;
    node.client_disconnect(ClientId(number)).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::{ConnectedClient, Visitor};
    use crate::config::Peer;
    use crate::control::tests::MockNode;
    use layby_types::VolumeId;
    use std::time::Duration;
    use tokio::time::{Instant, advance};

    /// Goal: a client's age is what has passed, whatever the wall clock was set to meanwhile.
    /// Method: virtual time, and clients that entered at a wall clock of years ago and years ahead.
    #[tokio::test(start_paused = true)]
    async fn an_age_follows_no_wall_clock() {
        let node = MockNode::new("");
        let visitor = Visitor { peer: Peer::Unix, certificate: None };
        let volume: Name = "vol0".parse().expect("a name");
        let (part, peer) = (VolumeId(0), "unix".to_owned());
        for days in [-1000, 1000] {
            let since = chrono::Utc::now() + chrono::Duration::days(days);
            let (visitor, volume, peer) = (visitor.clone(), volume.clone(), peer.clone());
            let client =
                ConnectedClient { visitor, peer, volume, part, since, entered: Instant::now() };
            advance(Duration::from_secs(90)).await;
            let state = ClientState { id: ClientId(1), client, load: None };
            let answer = ClientAnswer::of(&node.control.view(), state).expect("it has a volume");
            assert_eq!(answer.age_seconds, 90, "{days}");
            assert_eq!(answer.connected, since.format("%Y-%m-%dT%H:%M:%SZ").to_string());
        }
    }
}
