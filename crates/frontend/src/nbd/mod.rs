//! NBD, server and client: fixed-newstyle handshake and transmission phase, without sockets.
//!
//! How: [`Handshake`] turns a client's options into a [`Transmission`], whose [`NbdSession`] then
//! serves requests; [`ClientHandshake`] and [`ClientSession`] are the other end, for load and
//! tests.
//! Written from the public protocol text (`doc/proto.md` of the NBD project).
//! Invariant: a client sees only what [`Exports`] shows it, and only the one export it entered.
//! Cost: the handshake allocates as it likes; the transmission phase does not.
//! Not for: oldstyle negotiation and extended headers, which are refused.

mod client;
mod client_handshake;
mod export;
pub mod fuzz;
mod handshake;
mod options;
mod session;
mod wire;

pub use client::{ClientSession, Content, Decoded};
pub use client_handshake::{
    ClientError, ClientExport, ClientHandshake, ClientNext, ClientOptions, ClientStep,
};
pub use export::{ExportError, ExportInfo, Exports, REQUEST_LENGTH_MAX};
pub use handshake::{
    Handshake, HandshakeNext, HandshakeOptions, HandshakeStep, OPTION_LENGTH_MAX,
    OPTION_SWALLOW_MAX, OPTIONS_MAX, TlsPolicy, Transmission,
};
pub use session::{EXTENTS_MAX, NbdSession, PAYLOAD_SWALLOW_MAX, SessionFeatures};
