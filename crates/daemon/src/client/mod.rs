//! The other ends: a client of the control API and a client of NBD.
//!
//! How: both are thin loops over sockets around words that exist elsewhere in this program: the
//! API's own request and answer types, and the frontend's client session.
//! Not for: speed beyond what the demo and the command line need.

mod control;
mod nbd;

pub use control::ControlClient;
pub use nbd::{NbdClient, NbdClientError};
