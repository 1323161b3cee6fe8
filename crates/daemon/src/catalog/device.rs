//! What a block device is, whatever its name.
//!
//! Invariant: it outlasts a reboot. Not for: how it is found; see `homes::identity`.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What the kernel says of a block device that no other has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceIdentity {
    /// What it is called where the kernel shows it: two are compared by one of the same name alone.
    pub key: String,
    /// What it is.
    pub value: String,
}

impl fmt::Display for DeviceIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`", self.key, self.value)
    }
}
