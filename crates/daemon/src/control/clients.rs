//! NBD clients that are connected: entered, listed, disconnected, and held to what has changed.
//!
//! How: the book of [`Clients`](crate::clients::Clients) says who is there; shards say what each
//! asks for, and close connections. A change of `allow` closes those of clients that it does not
//! let in; a change of `read_only` has shards refuse what clients were told that they may do.
//! Invariant: when a change is answered, no client goes on with what it took away.
//! Cost: a pass over the clients per change. Not for: guests; see `vhost`.

use super::{Command, Control, Pace, View, report};
use crate::clients::{ConnectedClient, NotLet};
use crate::error::{Report, ReportKind};
use layby_engine::control::{ClientId, ClientLoad};
use std::collections::BTreeMap;

/// A client, and what it asks for now.
#[derive(Clone, Debug)]
pub struct ClientState {
    /// Its number.
    pub id: ClientId,
    /// Who it is.
    pub client: ConnectedClient,
    /// What it asks for; none where its shard has not met it yet.
    pub load: Option<ClientLoad>,
}

impl Control {
    fn may_stay(&self, view: &View, client: &ConnectedClient) -> Result<(), NotLet> {
        let rules = self.facts.config.nbd.tls_clients.as_ref();
        client.visitor.check(rules, view, client.volume.as_str()).map(drop)
    }

    /// Hands a client to its shard, if it may still use its volume. `tell` does so; it gets the
    /// client's number.
    pub(crate) fn enter(
        &self,
        client: ConnectedClient,
        tell: impl FnOnce(ClientId),
    ) -> Result<(), NotLet> {
        // The view is taken under the lock: a change comes before it, or finds the client.
        self.clients.enter(client, |client| self.may_stay(&self.view(), client), tell)
    }

    /// A client has ended.
    pub(crate) fn forget_client(&self, id: ClientId) {
        self.clients.forget(id);
    }

    /// All clients.
    ///
    /// # Errors
    /// A report when a shard has ended.
    pub async fn client_list(&self, pace: Pace) -> Result<Vec<ClientState>, Report> {
        let ask = |shard| self.tell(shard, Command::Clients);
        let by_client = |all: Vec<Vec<ClientLoad>>| {
            all.into_iter().flatten().map(|load| (load.client, load)).collect()
        };
        let read = self.loads.read(self.shards.len(), pace, ask, by_client).await;
        let loads = read.map_err(|e| report(&e, "cannot list the clients"))?;
        let all = self.clients.all().into_iter();
        let state = |(id, client)| ClientState { id, client, load: loads.get(&id).copied() };
        Ok(all.map(state).collect())
    }

    /// Closes a client's connection; it may come again.
    ///
    /// # Errors
    /// A report when there is no such client, or its shard has ended.
    pub async fn client_disconnect(&self, id: ClientId) -> Result<(), Report> {
        let error = format!("cannot disconnect client {}", id.0);
        let Some(client) = self.clients.forget(id) else {
            return Err(Report::new(ReportKind::NotFound, error)
                .cause(format!("there is no client {}", id.0))
                .state("nothing was changed")
                .hint("`layby client list` shows the clients that are connected"));
        };
        let ConnectedClient { peer, volume, part, .. } = client;
        tracing::info!(peer, %volume, client = id.0, "client disconnected by a command");
        let shard = self.view().layout.shard_of(part);
        let cut = self.ask(shard, |answer| Command::CutClients(vec![id], answer)).await;
        cut.map_err(|refused| report(&refused, error))
    }

    /// Closes the connections of clients that the view does not let in any more.
    pub(super) async fn cut_strangers(&self) {
        let view = self.view();
        let mut strangers: BTreeMap<usize, Vec<ClientId>> = BTreeMap::new();
        for (id, client, why) in self.clients.forget_strangers(|c| self.may_stay(&view, c)) {
            let ConnectedClient { peer, volume, part, .. } = client;
            tracing::info!(peer, %volume, cause = why.cause, "disconnected a client");
            strangers.entry(view.layout.shard_of(part)).or_default().push(id);
        }
        for (shard, ids) in strangers {
            if let Err(refused) = self.ask(shard, |a| Command::CutClients(ids, a)).await {
                // It has ended, and its clients with it.
                tracing::error!(shard, cause = refused.cause, "cannot disconnect clients");
            }
        }
    }

    /// Has shards refuse changes of volumes that are read-only in `view` and were not before, or
    /// take them again.
    pub(super) async fn tell_read_only(&self, view: &View, before: &View) {
        for (name, record) in view.volumes() {
            let was = before.catalog.volumes.get(name).filter(|was| was.id == record.id);
            if was.is_none_or(|was| was.read_only == record.read_only) {
                continue;
            }
            for part in record.parts() {
                let tell = |answer| Command::SetReadOnly(part, record.read_only, answer);
                if let Err(refused) = self.ask(view.layout.shard_of(part), tell).await {
                    tracing::error!(volume = %name, cause = refused.cause, "cannot set read_only");
                }
            }
        }
    }
}
