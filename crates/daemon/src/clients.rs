//! The NBD clients that are connected: who they are, since when, and to which volume.
//!
//! How: a client gets a number when it has entered its volume, and is in the book until its session
//! ends. Who enters is looked at again under the book's lock, and the shard is told there, too: a
//! change of who may come finds each client in the book, or is seen by its entering.
//! Invariant: a shard hears of a client before it is asked to cut it.
//! Cost: a lock per client that comes or goes. Not for: guests of virtual machines and devices.

use crate::catalog::VolumeRecord;
use crate::certificate::CertificateNames;
use crate::config::{ClientRules, Name, Peer, is_allowed};
use crate::control::View;
use chrono::{DateTime, Utc};
use layby_engine::control::ClientId;
use layby_frontend::nbd::ExportError;
use layby_types::VolumeId;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

const NO_SUCH_VOLUME: &str = "there is no volume of that name";
const NOT_ALLOWED: &str = "`allow` of the volume does not name the client";
const NOT_ITS_CERTIFICATE: &str = "`tls_clients` does not give the volume to the certificate";
const WITHOUT_CERTIFICATE: &str = "`tls_clients` gives volumes to certificates, and it has none";

/// Why a client does not get a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotLet {
    /// For the client.
    pub(crate) error: ExportError,
    /// For the log.
    pub(crate) cause: &'static str,
}

/// What decides which volumes a client may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visitor {
    /// Where it comes from.
    pub peer: Peer,
    /// The names of its certificate, where it has shown one that an authority signed.
    pub certificate: Option<CertificateNames>,
}

impl Visitor {
    /// The volume of `view`, where `rules` and its allow-list let the client use it.
    pub(crate) fn check<'a>(
        &self,
        rules: Option<&ClientRules>,
        view: &'a View,
        name: &str,
    ) -> Result<(&'a Name, &'a VolumeRecord), NotLet> {
        let denied = |cause| Err(NotLet { error: ExportError::Denied, cause });
        let found = view.volumes().find(|(known, _)| known.as_str() == name);
        let Some((name, record)) = found else {
            return Err(NotLet { error: ExportError::Unknown, cause: NO_SUCH_VOLUME });
        };
        if !is_allowed(&record.allow, self.peer) {
            return denied(NOT_ALLOWED);
        }
        // The unix socket has the rights of its file, and its clients have no need of TLS.
        let Some(rules) = rules.filter(|_| self.peer != Peer::Unix) else {
            return Ok((name, record));
        };
        match &self.certificate {
            None => denied(WITHOUT_CERTIFICATE),
            Some(names) if names.iter().any(|own| rules.gives(own, name)) => Ok((name, record)),
            Some(_) => denied(NOT_ITS_CERTIFICATE),
        }
    }
}

/// A client that is connected.
#[derive(Clone, Debug)]
pub struct ConnectedClient {
    /// Who it is.
    pub visitor: Visitor,
    /// Its address, or `unix`.
    pub peer: String,
    /// The volume that it uses.
    pub volume: Name,
    /// The volume, or the part of it whose shard serves the client.
    pub part: VolumeId,
    /// When it entered.
    pub since: DateTime<Utc>,
    /// The same by a monotonic clock.
    pub entered: Instant,
}

#[derive(Debug, Default)]
struct Book {
    number_last: u64,
    clients: BTreeMap<ClientId, ConnectedClient>,
}

/// See the file's header.
#[derive(Debug, Default)]
pub(crate) struct Clients(Mutex<Book>);

impl Clients {
    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a client in where `check` does, and has `tell` tell its shard.
    pub(crate) fn enter(
        &self,
        client: ConnectedClient,
        check: impl FnOnce(&ConnectedClient) -> Result<(), NotLet>,
        tell: impl FnOnce(ClientId),
    ) -> Result<(), NotLet> {
        let mut book = self.lock();
        check(&client)?;
        book.number_last += 1;
        let id = ClientId(book.number_last);
        book.clients.insert(id, client);
        tell(id);
        Ok(())
    }

    /// A client has ended; it may be forgotten already.
    pub(crate) fn forget(&self, id: ClientId) -> Option<ConnectedClient> {
        self.lock().clients.remove(&id)
    }

    /// All of them, in the order in which they came.
    pub(crate) fn all(&self) -> BTreeMap<ClientId, ConnectedClient> {
        self.lock().clients.clone()
    }

    /// Forgets those whom `check` does not let in any more, and says who they were and why.
    pub(crate) fn forget_strangers(
        &self,
        check: impl Fn(&ConnectedClient) -> Result<(), NotLet>,
    ) -> Vec<(ClientId, ConnectedClient, NotLet)> {
        let mut book = self.lock();
        let refused = |(id, client): (&ClientId, &ConnectedClient)| {
            check(client).err().map(|why| (*id, client.clone(), why))
        };
        let strangers: Vec<_> = book.clients.iter().filter_map(refused).collect();
        strangers.iter().for_each(|(id, ..)| drop(book.clients.remove(id)));
        strangers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::MockNode;

    fn client(volume: &str, peer: Peer) -> ConnectedClient {
        ConnectedClient {
            visitor: Visitor { peer, certificate: None },
            peer: "test".to_owned(),
            volume: volume.parse().expect("a name"),
            part: VolumeId(0),
            since: Utc::now(),
            entered: Instant::now(),
        }
    }

    /// Goal: who is not let in is not in the book and no shard hears of him; who is not let in any
    /// more is named once, and the others stay. Method: a volume for `unix` alone, another volume.
    #[tokio::test]
    async fn strangers_are_named_once() {
        let node = MockNode::new(
            "[volume.a]\nsize = \"1MiB\"\nallow = [\"unix\"]\n[volume.b]\nsize = \"1MiB\"\n",
        );
        let view = node.control.view();
        let check = |client: &ConnectedClient| {
            client.visitor.check(None, &view, client.volume.as_str()).map(drop)
        };
        let clients = Clients::default();
        let far = Peer::Network([10, 0, 0, 1].into());
        let refused = clients.enter(client("a", far), check, |_| panic!("a shard is told"));
        assert_eq!(refused.expect_err("it is not `unix`").cause, NOT_ALLOWED);
        for (number, volume) in [(1, "a"), (2, "b"), (3, "a")] {
            let tell = |id| assert_eq!(id, ClientId(number));
            clients.enter(client(volume, Peer::Unix), check, tell).expect("it may");
        }
        assert!(clients.forget_strangers(check).is_empty());
        assert!(clients.forget(ClientId(3)).is_some() && clients.forget(ClientId(3)).is_none());
        let gone = NotLet { error: ExportError::Denied, cause: NOT_ALLOWED };
        let only_b = |client: &ConnectedClient| match client.volume.as_str() {
            "b" => Ok(()),
            _ => Err(gone),
        };
        let strangers: Vec<_> =
            clients.forget_strangers(only_b).into_iter().map(|(id, ..)| id).collect();
        assert_eq!(strangers, [ClientId(1)]);
        assert!(clients.forget_strangers(only_b).is_empty());
        assert_eq!(clients.all().into_keys().collect::<Vec<_>>(), [ClientId(2)]);
    }
}
