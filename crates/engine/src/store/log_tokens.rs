//! Tokens of the log's operations: what an end belongs to.
//!
//! How: the log's tag, a purpose, and a number that the purpose gives its meaning.
//! Cost: none. Not for: other stores, whose tags differ.

use super::log::LogStore;
use crate::io::Token;

/// What a token of the log is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Batch,
    Read,
    Sync,
    Clean,
    Chunk,
    Trailer,
    Test,
    Discard,
    Void,
    Header,
}

const PURPOSES: [Purpose; 10] = [
    Purpose::Batch,
    Purpose::Read,
    Purpose::Sync,
    Purpose::Clean,
    Purpose::Chunk,
    Purpose::Trailer,
    Purpose::Test,
    Purpose::Discard,
    Purpose::Void,
    Purpose::Header,
];
const TAG_SHIFT: u32 = 56;
const PURPOSE_SHIFT: u32 = 52;

impl LogStore {
    /// The token of an operation.
    pub(super) fn token(&self, purpose: Purpose, payload: u64) -> Token {
        assert!(payload < 1 << PURPOSE_SHIFT, "the payload fits below the purpose");
        let tag = u64::from(self.config.token_tag) << TAG_SHIFT;
        Token(tag | (purpose as u64) << PURPOSE_SHIFT | payload)
    }

    /// What a token of this log is for.
    pub(super) fn unpack(&self, token: Token) -> (Purpose, u64) {
        assert_eq!(token.0 >> TAG_SHIFT, u64::from(self.config.token_tag), "a token of this log");
        let purpose = PURPOSES[(token.0 >> PURPOSE_SHIFT & 15) as usize];
        (purpose, token.0 & ((1 << PURPOSE_SHIFT) - 1))
    }
}
