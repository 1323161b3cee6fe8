//! The TLS files of a running node, which can be read again.
//!
//! How: each handshake takes what was read last; reading again puts something new in its place when
//! all of it is good.
//! Invariant: a file that is missing, open or damaged changes nothing. Who is connected stays as he
//! entered. Cost: a lock per handshake. Not for: the configuration, which is read at a start.

use crate::config::{NbdConfig, TlsMode};
use crate::error::Report;
use crate::tls::server_config;
use rustls::ServerConfig;
use std::sync::{Arc, PoisonError, RwLock};

/// What the TLS files say; none where TLS is off.
///
/// # Errors
/// A report when one cannot be used.
pub fn tls_of(nbd: &NbdConfig) -> Result<Option<Arc<ServerConfig>>, Report> {
    (nbd.tls != TlsMode::Off).then(|| server_config(nbd)).transpose()
}

/// See the file's header.
#[derive(Debug)]
pub struct TlsFiles {
    nbd: NbdConfig,
    current: RwLock<Option<Arc<ServerConfig>>>,
}

impl TlsFiles {
    /// What `read` was read from, and can be read from again.
    #[must_use]
    pub fn new(nbd: &NbdConfig, read: Option<Arc<ServerConfig>>) -> TlsFiles {
        TlsFiles { nbd: nbd.clone(), current: RwLock::new(read) }
    }

    /// What holds for a handshake that begins now.
    #[must_use]
    pub fn current(&self) -> Option<Arc<ServerConfig>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files again; false where TLS is off. May wait for a disk.
    ///
    /// # Errors
    /// A report when one cannot be used; what was read before stays in force.
    pub fn reload(&self) -> Result<bool, Report> {
        let read = tls_of(&self.nbd).map_err(|report| {
            report.state("clients get what was read before; those that are connected stay")
        })?;
        let is_on = read.is_some();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(is_on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::tests::Certificate;

    /// Goal: good files take the place of what was read, a bad one does not. Method: reading twice,
    /// then with a damaged certificate; the identity of what is in force.
    #[test]
    fn bad_files_change_nothing() {
        let own = Certificate::new();
        let files = TlsFiles::new(&own.nbd, tls_of(&own.nbd).expect("good files"));
        let first = files.current().expect("TLS is on");
        assert_eq!(files.reload(), Ok(true));
        let second = files.current().expect("TLS is on");
        assert!(!Arc::ptr_eq(&first, &second));
        std::fs::write(own.dir.path().join("c.pem"), "none").expect("a writable directory");
        let refused = files.reload().expect_err("a damaged file");
        assert!(refused.error.contains("c.pem") && refused.state.contains("read before"));
        assert!(Arc::ptr_eq(&second, &files.current().expect("TLS is on")));
        let off = NbdConfig { tls: TlsMode::Off, ..own.nbd.clone() };
        assert_eq!(TlsFiles::new(&off, None).reload(), Ok(false));
    }
}
