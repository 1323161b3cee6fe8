//! How the catalog keeps the key of an encrypted level.
//!
//! Not for: sealing and opening it; see `levels::unlock`.

use crate::config::KeySource;
use serde::{Deserialize, Serialize};

/// How the key of an encrypted level is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EncryptionRecord {
    /// Where the operator's key came from.
    pub key: KeySource,
    /// What tells the operator's key from others.
    pub check: String,
    /// The level's own key, sealed by the operator's, in hexadecimal.
    pub sealed: String,
}
