//! Creations in an object store: done once the store has the volume's superblock.
//!
//! How: a volume is served as soon as its journal is there, and its session puts the superblock in
//! the background. A creation waits for that. Where the store refuses it, or has not taken it in
//! [`PATIENCE`], the volume is taken back.
//! Invariant: a creation that succeeded is in the store; of two creations at one place the loser
//! says so.
//! Cost: the requests of a session's opening. Not for: volumes that are taken; see `take`.

use super::removal::Removal;
use super::{Control, View};
use crate::catalog::VolumeRecord;
use crate::config::Name;
use crate::error::{Report, ReportKind};
use layby_cloud::{Link, Said};
use std::time::Duration;

/// How long a store has to take a new volume's superblock.
const PATIENCE: Duration = Duration::from_secs(20);

impl Control {
    /// Waits until the store has a new volume's superblock; takes the volume back where it has not.
    pub(super) async fn is_in_store(&self, name: &Name, error: &str) -> Result<(), Report> {
        let Ok(record) = self.existing_volume(error, name) else { return Ok(()) };
        let Some(watch) = self.facts.homes.watch(&record) else { return Ok(()) };
        let is_settled = |said: &Said| matches!(said.status.link, Link::Up | Link::Lost(_));
        let settled = tokio::time::timeout(PATIENCE, watch.wait(is_settled)).await;
        let refused = match settled.map(|said| said.map(|said| said.status.link)) {
            Ok(Some(Link::Lost(why))) => Report::new(ReportKind::InUse, error)
                .cause(why)
                .hint("choose another prefix, or correct the cause, and repeat the command"),
            Ok(_) => return Ok(()),
            Err(_) => {
                let fault = watch.said().and_then(|said| said.status.last_fault);
                let cause = fault.map_or("it does not answer".to_owned(), |(cause, _)| cause);
                Report::new(ReportKind::Failure, error)
                    .cause(format!("the store has not taken its superblock in 20 s: {cause}"))
                    .hint("the node's credentials must let it put, get, list and delete there")
            }
        };
        match self.take_back(name, &record, error).await {
            Ok(()) => Err(refused.state("nothing was changed here; the volume is not in the list")),
            Err(kept) => Err(refused.state(format!("the volume is in the list: {}", kept.cause))),
        }
    }

    /// A new volume that its store does not have goes, unless a client has written to it.
    async fn take_back(
        &self,
        name: &Name,
        record: &VolumeRecord,
        error: &str,
    ) -> Result<(), Report> {
        let _change = self.change.lock().await;
        let mut view = View::clone(&self.view());
        if view.catalog.volumes.get(name).is_none_or(|now| now.id != record.id) {
            return Ok(());
        }
        view.remove_volume(name);
        let kept = "nothing was changed; what was acknowledged is safe";
        let (without, refused) = (view, (error, kept));
        let (discard, deleting) = (false, None);
        let removal = Removal { name, record, discard, deleting, without, refused };
        self.remove_served(removal).await?;
        self.release_home(record.clone(), false).await.map(drop)
    }
}
