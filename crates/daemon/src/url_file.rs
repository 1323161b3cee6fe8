//! The file that says where the control API's HTTP address is.
//!
//! How: written when the node listens, removed when it ends. Every user of the machine may read it,
//! since the address serves reads alone without a credential.
//! Invariant: a disk that refuses it keeps no node from starting. Cost: a small file per start.

use crate::held;
use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The file in the node's directory that says where the control API's HTTP address is.
pub const CONTROL_URL_FILE_NAME: &str = "control.url";
/// Everyone may read where the API's reads are served.
const URL_FILE_MODE: u32 = 0o644;

/// The file that names the control API's address, gone with the node.
pub(crate) struct UrlFile {
    path: PathBuf,
    pub(crate) url: String,
}

impl UrlFile {
    /// Writes the file. Who cannot read it still finds the address in the announcement, so a full
    /// disk does not keep the node from starting.
    pub(crate) fn write(dir: &Path, address: SocketAddr) -> UrlFile {
        let path = dir.join(CONTROL_URL_FILE_NAME);
        let url = format!("http://{address}");
        let open = || std::fs::set_permissions(&path, Permissions::from_mode(URL_FILE_MODE));
        let write = || std::fs::write(&path, format!("{url}\n"));
        let held = held::check(&path).map_err(std::io::Error::from);
        if let Err(cause) = held.and_then(|()| write()).and_then(|()| open()) {
            tracing::warn!(path = %path.display(), %cause, "cannot write the control address");
        }
        UrlFile { path, url }
    }
}

impl Drop for UrlFile {
    fn drop(&mut self) {
        // Somebody may have removed it already; then there is nothing left to do.
        if held::check(&self.path).is_ok() {
            drop(std::fs::remove_file(&self.path));
        }
    }
}
