//! An NBD session that counts against the node's connections for as long as it lives.
//!
//! How: the shard owns the session; when it drops it, a task of the daemon's hears of it, however
//! the connection ended, writes that into the log and frees the place.
//! Invariant: the shard writes no log and waits for nobody. Cost: nothing; calls are passed on.

use layby_frontend::nbd::NbdSession;
use layby_types::{Call, ErrorKind, Extent, Parsed, Session, SessionError};
use tokio::sync::oneshot;

/// A session whose end is noticed.
#[derive(Debug)]
pub struct Served {
    session: NbdSession,
    _held: oneshot::Sender<()>,
}

impl Served {
    /// Lets `session` hold `held`, whose receiver then knows of its end.
    #[must_use]
    pub fn new(session: NbdSession, held: oneshot::Sender<()>) -> Served {
        Served { session, _held: held }
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
    fn says_goodbye(&self, bytes: &[u8]) -> bool {
        self.session.says_goodbye(bytes)
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
