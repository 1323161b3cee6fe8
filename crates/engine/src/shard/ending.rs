//! Which calls a stop of the node leaves unanswered.
//!
//! How: a stop ends what waits for an object store: reads of objects, writes for which a journal
//! has no room. Their clients are not answered: the connection closes, or the queue is given back,
//! and a client that repeats what was not answered sees a pause.
//! Invariant: what is left unanswered may be carried out once more: it has ended here, and of a
//! write each block has its old version or its new one. A flush is always answered, since one that
//! was refused here, of a device that failed, would succeed in the next incarnation.
//! Cost: a comparison per call that fails.

use layby_types::{Call, ErrorKind, Operation};

/// Whether a call that has ended with `error` while the node stops is left unanswered.
pub(super) fn is_ended_by_stop(call: &Call, error: Option<&ErrorKind>) -> bool {
    error == Some(&ErrorKind::Closed) && call.operation != Operation::Flush
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::CallFlags;

    /// Goal: a stop leaves unanswered what may be repeated, and nothing else. Method: every
    /// operation with the error of a stop, with another one and with none.
    #[test]
    fn flushes_and_other_faults_are_answered() {
        for (operation, expected) in [
            (Operation::Read, true),
            (Operation::Write, true),
            (Operation::Trim, true),
            (Operation::WriteZeroes, true),
            (Operation::Flush, false),
        ] {
            let flags = CallFlags::default();
            let call = Call { cookie: 0, operation, offset: 0, length: 512, flags };
            assert_eq!(is_ended_by_stop(&call, Some(&ErrorKind::Closed)), expected);
            assert!(!is_ended_by_stop(&call, Some(&ErrorKind::Corrupt)));
            assert!(!is_ended_by_stop(&call, None));
        }
    }
}
