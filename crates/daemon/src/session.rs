//! An NBD session that counts against the node's connections for as long as it lives.
//!
//! How: the shard owns the session; when it drops it, the place is free again, however the
//! connection ended.
//! Cost: nothing; calls are passed on.

use layby_frontend::nbd::NbdSession;
use layby_types::{Call, ErrorKind, Extent, Parsed, Session, SessionError};
use tokio::sync::OwnedSemaphorePermit;

/// A session and its place among the node's connections.
#[derive(Debug)]
pub struct Served {
    session: NbdSession,
    _place: OwnedSemaphorePermit,
}

impl Served {
    /// Lets `session` hold `place`.
    #[must_use]
    pub fn new(session: NbdSession, place: OwnedSemaphorePermit) -> Served {
        Served { session, _place: place }
    }
}

impl Session for Served {
    #[inline]
    fn parse<'bytes>(
        &mut self,
        bytes: &'bytes [u8],
        out: &mut Vec<u8>,
    ) -> Result<Parsed<'bytes>, SessionError> {
        self.session.parse(bytes, out)
    }
    #[inline]
    fn reply_read_head(&mut self, call: &Call, out: &mut Vec<u8>) {
        self.session.reply_read_head(call, out);
    }
    #[inline]
    fn reply_done(&mut self, call: &Call, out: &mut Vec<u8>) {
        self.session.reply_done(call, out);
    }
    #[inline]
    fn reply_extents(&mut self, call: &Call, extents: &[Extent], out: &mut Vec<u8>) {
        self.session.reply_extents(call, extents, out);
    }
    #[inline]
    fn reply_error(&mut self, call: &Call, kind: ErrorKind, out: &mut Vec<u8>) {
        self.session.reply_error(call, kind, out);
    }
}
