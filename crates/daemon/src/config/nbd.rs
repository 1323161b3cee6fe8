//! How NBD clients reach the node: `[nbd]` of the configuration.
//!
//! How: one table, with paths taken from the node's directory.
//! Invariant: certificates are given volumes only where an authority says whose they are.
//! Cost: read once. Not for: who may use a volume from where; that is the volume's `allow`.

use super::checks::{self, Place, Problem};
use super::{
    Address, CONNECTIONS_DEFAULT, CONNECTIONS_MAX, CONNECTIONS_MIN, HANDSHAKE_TIMEOUT_DEFAULT,
    HANDSHAKE_TIMEOUT_MAX, HANDSHAKE_TIMEOUT_MIN, Name, Overrides, file,
};
use layby_types::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// TCP addresses at most.
const LISTEN_MAX: usize = 16;
/// Names of certificates that are given volumes at most.
const CLIENTS_MAX: usize = 4096;

/// Whether NBD clients may, must or cannot encrypt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// Nobody encrypts.
    #[default]
    Off,
    /// Who asks for it encrypts.
    Allowed,
    /// Who does not ask for it on TCP is refused.
    Required,
}

/// Which volumes the certificates of clients give.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct ClientRules(BTreeMap<String, Vec<Name>>);

impl ClientRules {
    /// Whether a certificate with this name may use `volume`.
    #[must_use]
    pub fn gives(&self, certificate: &str, volume: &Name) -> bool {
        self.0.get(certificate).is_some_and(|volumes| volumes.contains(volume))
    }
}

/// How NBD clients reach the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdConfig {
    /// The unix socket.
    pub socket: PathBuf,
    /// TCP addresses; none by default.
    pub listen: Vec<Address>,
    /// Encryption.
    pub tls: TlsMode,
    /// PEM file with the node's certificate chain.
    pub tls_certificate: Option<PathBuf>,
    /// PEM file with the certificate's private key.
    pub tls_key: Option<PathBuf>,
    /// PEM file with the authorities whose clients are let in; without it any client is.
    pub tls_client_ca: Option<PathBuf>,
    /// Volumes by the names of clients' certificates; without it each certificate may use all.
    pub tls_clients: Option<ClientRules>,
    /// Clients at once.
    pub connections_max: u32,
    /// Clients of each kind of socket that have not chosen a volume, at once.
    pub half_open_max: usize,
    /// How long a client may take until it has chosen its volume.
    pub handshake_timeout: Nanos,
}

/// That files for encryption are named and nothing is encrypted, where that is not said.
pub(super) fn unencrypted(table: &file::NbdTable) -> Option<String> {
    let named = [
        ("tls_certificate", &table.tls_certificate),
        ("tls_key", &table.tls_key),
        ("tls_client_ca", &table.tls_client_ca),
    ];
    let (key, _) = named.into_iter().find(|(_, path)| path.is_some())?;
    table.tls.is_none().then(|| {
        format!(
            "`{key}` of [nbd] is set, `tls` is not: NBD is not encrypted; write \
             `tls = \"required\"`, or `tls = \"off\"` where that is meant"
        )
    })
}

/// Clients of one kind that have not entered, at most.
pub const HALF_OPEN_MAX: usize = 256;

impl NbdConfig {
    pub(super) fn of(dir: &Path, table: file::NbdTable, overrides: &Overrides) -> NbdConfig {
        let is_told = !overrides.listen.is_empty();
        let listen = if is_told { overrides.listen.clone() } else { table.listen };
        let socket = overrides.socket.clone();
        let timeout = table.handshake_timeout.map_or(HANDSHAKE_TIMEOUT_DEFAULT, |time| time.0);
        NbdConfig {
            socket: socket.unwrap_or_else(|| dir.join(table.socket.unwrap_or("layby.sock".into()))),
            listen,
            tls: table.tls.unwrap_or_default(),
            tls_certificate: table.tls_certificate.map(|path| dir.join(path)),
            tls_key: table.tls_key.map(|path| dir.join(path)),
            tls_client_ca: table.tls_client_ca.map(|path| dir.join(path)),
            tls_clients: table.tls_clients,
            connections_max: table.connections_max.unwrap_or(CONNECTIONS_DEFAULT),
            half_open_max: HALF_OPEN_MAX,
            handshake_timeout: timeout,
        }
    }

    pub(super) fn check(&self) -> Result<(), Problem> {
        let problem =
            |key, cause: String, hint: &str| Err(Problem::new(Place::Nbd, key, cause, hint));
        checks::check_socket_path(Place::Nbd, &self.socket)?;
        if self.listen.len() > LISTEN_MAX {
            let cause = format!("{} addresses are more than {LISTEN_MAX}", self.listen.len());
            return problem("listen", cause, "listen on fewer addresses, or on `[::]:10809`");
        }
        let limits = CONNECTIONS_MIN..=CONNECTIONS_MAX;
        if !limits.contains(&self.connections_max) {
            let cause = format!("{} is outside {limits:?}", self.connections_max);
            return problem("connections_max", cause, "write a number of clients such as 1024");
        }
        let limits = HANDSHAKE_TIMEOUT_MIN..=HANDSHAKE_TIMEOUT_MAX;
        if !limits.contains(&self.handshake_timeout) {
            let cause = format!("{} is outside 100ms to 10m", self.handshake_timeout);
            return problem("handshake_timeout", cause, "write a time such as `10s`");
        }
        if self.tls != TlsMode::Off && (self.tls_certificate.is_none() || self.tls_key.is_none()) {
            let cause = "encryption needs a certificate and its key".to_owned();
            let hint = "set tls_certificate and tls_key to PEM files, or tls = \"off\"";
            return problem("tls", cause, hint);
        }
        let Some(ClientRules(clients)) = &self.tls_clients else { return Ok(()) };
        if self.tls == TlsMode::Off || self.tls_client_ca.is_none() {
            let cause = "without an authority a certificate says nothing of its owner".to_owned();
            let hint = "set tls to \"required\" and tls_client_ca to a PEM file with the \
                        authority of the clients' certificates, or leave tls_clients out";
            return problem("tls_clients", cause, hint);
        }
        if clients.len() > CLIENTS_MAX {
            let cause = format!("{} names are more than {CLIENTS_MAX}", clients.len());
            return problem("tls_clients", cause, "give certificates of one task one name");
        }
        Ok(())
    }
}
