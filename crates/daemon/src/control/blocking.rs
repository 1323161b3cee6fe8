//! What may take long, asked on a thread that may wait.
//!
//! How: a closure and a handle go to the runtime's pool for blocking work. Invariant: no task of
//! the runtime waits for a disk or a store. Cost: a hand-over per question.

use super::Control;
use crate::catalog::VolumeRecord;
use crate::error::{Report, ReportKind};
use crate::homes::{Homes, KeptData};
use crate::intents::Intents;

impl Control {
    /// Asks the homes what may take long, on a thread that may wait.
    pub(super) async fn at_homes<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Homes) -> T + Send + 'static,
    ) -> T {
        let homes = self.facts.homes.clone();
        let asking = tokio::task::spawn_blocking(move || ask(&homes));
        asking.await.expect("an owner of homes reports, it does not panic")
    }

    /// Asks the intents what may take long, on a thread that may wait.
    pub(super) async fn at_intents<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Intents) -> T + Send + 'static,
    ) -> T {
        let intents = self.facts.intents.clone();
        let asking = tokio::task::spawn_blocking(move || ask(&intents));
        asking.await.expect("intents report, they do not panic")
    }

    /// The home of a volume that no shard holds goes; what still has its data, though none was
    /// wanted.
    pub(super) async fn release_home(
        &self,
        record: VolumeRecord,
        discard: bool,
    ) -> Result<Option<KeptData>, Report> {
        let homes = self.facts.homes.clone();
        let releasing = tokio::task::spawn_blocking(move || homes.release(&record, discard));
        releasing.await.unwrap_or_else(|ended| Err(broke_off(ended)))
    }
}

/// What is said of work at backing stores that ended in a panic: the caller goes on and takes back
/// what it had begun, such as the name of a new volume.
pub(super) fn broke_off(ended: tokio::task::JoinError) -> Report {
    let cause = match ended.try_into_panic() {
        Ok(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            format!("it broke off: {}", text.unwrap_or("the log says why"))
        }
        Err(_) => "it was given up, since the node stops".to_owned(),
    };
    Report::new(ReportKind::Failure, "cannot use the volume's backing store")
        .cause(cause)
        .state("nothing was changed")
        .hint("the log says more; repeat the command, and report it if it happens again")
}
