//! What one client may see and enter, as its handshake asks.
//!
//! How: each question looks at the node's view of that moment. What the client was refused last is
//! kept for the log.
//! Invariant: a volume that a client may not enter is not in its list. Cost: a pass over volumes
//! per question.

use super::Control;
use crate::catalog::VolumeRecord;
use crate::certificate::CertificateNames;
use crate::clients::{NotLet, Visitor};
use crate::config::Peer;
use layby_frontend::nbd::{ExportError, ExportInfo, Exports, REQUEST_LENGTH_MAX};
use layby_types::VolumeId;
use std::sync::{Arc, Mutex, PoisonError};

const TAKEN: NotLet = NotLet { error: ExportError::Taken, cause: "another node has the volume" };

/// The volumes that one client may see.
pub struct PeerExports {
    control: Arc<Control>,
    visitor: Visitor,
    /// What it asked for last and did not get.
    refused: Mutex<Option<(String, NotLet)>>,
}

impl Control {
    /// What one client may see.
    #[must_use]
    pub fn exports_for(self: &Arc<Self>, peer: Peer) -> PeerExports {
        let visitor = Visitor { peer, certificate: None };
        PeerExports { control: Arc::clone(self), visitor, refused: Mutex::default() }
    }
}

impl PeerExports {
    /// The client has shown a certificate, which was verified.
    pub(crate) fn set_certificate(&mut self, names: CertificateNames) {
        self.visitor.certificate = Some(names);
    }

    /// Who asks.
    pub(crate) fn visitor(&self) -> &Visitor {
        &self.visitor
    }

    /// The volume that the client asked for last and did not get, and why.
    pub(crate) fn refused(&self) -> Option<(String, &'static str)> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        refused.map(|(name, NotLet { cause, .. })| (name, cause))
    }

    /// Whether another node has the volume, so that this one serves nothing of it.
    fn is_taken(&self, record: &VolumeRecord) -> bool {
        let said = self.control.facts.homes.watch(record).and_then(|watch| watch.said());
        said.is_some_and(|said| said.status.is_taken)
    }

    fn export(&self, name: &str) -> Result<ExportInfo, NotLet> {
        let only = (name.is_empty()).then(|| self.list()).filter(|names| names.len() == 1);
        let name = only.as_ref().map_or(name, |names| names[0].as_str());
        let view = self.control.view();
        let rules = self.control.facts.config.nbd.tls_clients.as_ref();
        let (name, record) = self.visitor.check(rules, &view, name)?;
        if self.is_taken(record) {
            return Err(TAKEN);
        }
        Ok(ExportInfo {
            volume: VolumeId(record.id),
            name: name.to_string(),
            description: format!("class {}", record.class),
            size: record.length,
            block_size: view.layout.block_size,
            request_length_max: REQUEST_LENGTH_MAX,
            read_only: record.read_only,
            rotational: false,
        })
    }
}

impl Exports for PeerExports {
    fn list(&self) -> Vec<String> {
        let view = self.control.view();
        let rules = self.control.facts.config.nbd.tls_clients.as_ref();
        let is_visible = |name: &str| {
            self.visitor.check(rules, &view, name).is_ok_and(|(_, record)| !self.is_taken(record))
        };
        let names = view.volumes().map(|(name, _)| name.to_string());
        names.filter(|name| is_visible(name)).collect()
    }

    fn find(&self, name: &str) -> Result<ExportInfo, ExportError> {
        let found = self.export(name);
        let refused = found.as_ref().err().map(|refused| (name.to_owned(), *refused));
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = refused;
        found.map_err(|refused| refused.error)
    }
}
