//! Wide volumes: one volume to everybody outside, parts on several shards inside.
//!
//! How: after its parts are served, each gets a link to each other one; then clients are dealt to
//! the parts' shards in turn, or, where the volume or its class has limits, all to the first one's,
//! which keeps them. What shards report of a part is the volume's.
//! Invariant: no client comes before every part is linked, and before a part goes every client of
//! the volume has gone, on all shards.
//! Cost: a link per pair of parts and way; a look at the view per client. Not for: requests; shards
//! deal those themselves.

use super::{Command, Control, View, report};
use crate::catalog::VolumeRecord;
use crate::error::Report;
use layby_cache::VolumeSpec;
use layby_engine::control::{CommandError, Snapshot};
use layby_engine::link::{NearEnd, link};
use layby_types::VolumeId;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Whose turn it is, by volume.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<u32, u32>>);

impl Turns {
    fn next(&self, volume: u32) -> u32 {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = turns.entry(volume).or_default();
        let this = *turn;
        *turn = turn.wrapping_add(1);
        this
    }

    fn forget(&self, volume: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&volume);
    }
}

impl View {
    /// The volume with this number, or one of whose parts has it.
    pub(crate) fn volume_of(&self, part: VolumeId) -> Option<&VolumeRecord> {
        self.catalog.volumes.values().find(|record| record.has_part(part))
    }

    /// By a part's number its volume's, for those that are not the same.
    pub(super) fn owners(&self) -> HashMap<VolumeId, VolumeId> {
        let records = self.catalog.volumes.values();
        let others = records
            .flat_map(|record| record.parts().skip(1).map(move |part| (part, VolumeId(record.id))));
        others.collect()
    }
}

impl Control {
    /// The part, and so the shard, whose turn it is to serve a client of a volume.
    #[must_use]
    pub fn deal(&self, volume: VolumeId) -> VolumeId {
        let view = self.view();
        let wide = view.volume_of(volume).filter(|record| record.wide.is_some());
        let Some(record) = wide.filter(|record| !view.is_limited(record)) else { return volume };
        VolumeId(record.id + self.turns.next(record.id) % u32::from(record.shards()))
    }

    /// The part that serves a volume's queue of this number.
    #[must_use]
    pub fn part_of_queue(&self, volume: VolumeId, queue: usize) -> VolumeId {
        let view = self.view();
        let parts = view.volume_of(volume).map_or(1, |record| usize::from(record.shards()));
        VolumeId(volume.0 + (queue % parts) as u32)
    }

    /// Links the parts of all wide volumes, before clients are let in.
    pub(crate) async fn join_all(&self) -> Result<(), Report> {
        let view = self.view();
        for (name, record) in view.volumes() {
            let joined = self.join_parts(&view, record).await;
            joined.map_err(|refused| report(&refused, format!("cannot serve volume `{name}`")))?;
        }
        Ok(())
    }

    /// Links the parts of a volume that are all served; nothing where it is on one shard.
    pub(super) async fn join_parts(
        &self,
        view: &View,
        record: &VolumeRecord,
    ) -> Result<(), CommandError> {
        if record.wide.is_none() {
            return Ok(());
        }
        for (near, volume) in record.parts().enumerate() {
            let mut links: Vec<Option<NearEnd>> = Vec::new();
            for (far, other) in record.parts().enumerate() {
                if near == far {
                    links.push(None);
                    continue;
                }
                links.push(Some(self.start_link(view, other, false).await?));
            }
            let lead = match near {
                0 => None,
                _ => Some(self.start_link(view, VolumeId(record.id), true).await?),
            };
            let shard = view.layout.shard_of(volume);
            self.ask(shard, |answer| Command::Join { volume, links, lead, answer }).await?;
        }
        Ok(())
    }

    /// Has a part's shard answer at the other end of a link.
    async fn start_link(
        &self,
        view: &View,
        volume: VolumeId,
        is_lead: bool,
    ) -> Result<NearEnd, CommandError> {
        let (near, end) = link();
        let start = |answer| Command::StartLink { volume, end, is_lead, answer };
        self.ask(view.layout.shard_of(volume), start).await?;
        Ok(near)
    }

    /// Closes a wide volume's clients on all shards, and the ways between its parts.
    pub(super) async fn unjoin_parts(
        &self,
        view: &View,
        record: &VolumeRecord,
    ) -> Result<(), CommandError> {
        for part in record.parts().filter(|_| record.wide.is_some()) {
            let shard = view.layout.shard_of(part);
            self.ask(shard, |answer| Command::Unjoin(part, answer)).await?;
        }
        self.turns.forget(record.id);
        Ok(())
    }

    /// Tells the shards of a volume what it is now; should one refuse, those before it get `old`
    /// back.
    pub(super) async fn set_parts(
        &self,
        view: &View,
        new: Vec<VolumeSpec>,
        old: &[VolumeSpec],
    ) -> Result<(), CommandError> {
        for (index, spec) in new.into_iter().enumerate() {
            let shard = view.layout.shard_of(spec.id);
            let told = self.ask(shard, |answer| Command::SetVolume(spec, answer)).await;
            let Err(refused) = told else { continue };
            for before in old.iter().take(index).cloned() {
                let (shard, id) = (view.layout.shard_of(before.id), before.id.0);
                let back = self.ask(shard, |answer| Command::SetVolume(before, answer)).await;
                if let Err(stuck) = back {
                    tracing::error!(volume = id, cause = stuck.cause, "cannot change back");
                }
            }
            return Err(refused);
        }
        Ok(())
    }

    /// Gives the home of a volume that had `before` bytes its length; that of a wide one, for every
    /// part.
    pub(super) async fn resize_home(
        &self,
        view: &View,
        record: &VolumeRecord,
        before: u64,
    ) -> Result<(), CommandError> {
        let length = record.length;
        for volume in record.parts() {
            let shard = view.layout.shard_of(volume);
            let resize = |answer| Command::ResizeHome { volume, before, length, answer };
            self.ask(shard, resize).await?;
        }
        Ok(())
    }

    /// What parts counted is their volumes'.
    pub(super) fn name_by_volume(&self, snapshots: &mut [Snapshot]) {
        let owners = self.view().owners();
        if owners.is_empty() {
            return;
        }
        for stats in snapshots.iter_mut().flat_map(|snapshot| &mut snapshot.volumes) {
            stats.volume = owners.get(&stats.volume).copied().unwrap_or(stats.volume);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{LimitsConfig, Name, Size};
    use crate::control::tests::MockNode;
    use crate::control::{DeleteData, Pace, VolumeCreate, VolumePatch};
    use layby_engine::control::{BackingPlan, CommandError};
    use layby_types::{ErrorKind, VolumeId};

    const MIB: u64 = 1 << 20;

    fn name(text: &str) -> Name {
        text.parse().expect("a good name")
    }

    fn create(shards: u8) -> VolumeCreate {
        let text = format!(
            "{{\"name\":\"w\",\"size\":\"5MiB\",\"shards\":{shards},\"share\":{{\"ssd\":\"10%\"}}}}"
        );
        serde_json::from_str(&text).expect("JSON")
    }

    fn log(node: &MockNode, shard: usize) -> Vec<String> {
        std::mem::take(&mut node.shards[shard].state().log)
    }

    /// Goal: each shard gets its part, with its length and its part of the shares, and the links to
    /// the others before clients; what the shards count is one volume's; sizes change in the order
    /// that loses nothing. Method: a volume of two shards beside one of one shard.
    #[tokio::test]
    async fn parts_are_one_volume() {
        let node = MockNode::new("[volume.a]\nsize = \"1MiB\"\n");
        node.control
            .volume_create(create(2), crate::control::Authority::Owner)
            .await
            .expect("it can be");
        assert_eq!(log(&node, 1), ["add 1", "join 1 by 1", "link 1", "lead 1"]);
        assert_eq!(log(&node, 0), ["add 2", "link 2", "join 2 by 2"]);
        let mut shares = Vec::new();
        for (shard, id, bytes) in [(1, 1, 3 * MIB), (0, 2, 2 * MIB)] {
            let state = node.shards[shard].state();
            let plan = &state.volumes[&id];
            assert_eq!(plan.spec.length, bytes);
            assert!(matches!(plan.backing, BackingPlan::Part { .. }));
            shares.push(plan.spec.shares[2].guaranteed);
        }
        let slots = node.control.view().layout.slots[2];
        assert_eq!(shares, [slots * 2 / 20; 2], "half of a tenth of both shards' slots each");
        let dealt: Vec<u32> = (0..4).map(|_| node.control.deal(VolumeId(1)).0).collect();
        assert_eq!(dealt, [1, 2, 1, 2]);
        assert_eq!(node.control.deal(VolumeId(0)), VolumeId(0));
        assert_eq!(node.control.part_of_queue(VolumeId(1), 3), VolumeId(2));
        let snapshots = node.control.snapshots(Pace::AtOnce).await.expect("the shards run");
        let ids: Vec<u32> =
            snapshots.iter().flat_map(|s| s.volumes.iter().map(|v| v.volume.0)).collect();
        assert_eq!(ids, [0, 1, 1]);
        for (size, shrink, first) in [(9 * MIB, false, "home"), (4 * MIB, true, "set")] {
            log(&node, 0);
            let size = Some(Size(size));
            let patch = VolumePatch { size, shrink, ..VolumePatch::default() };
            node.control.volume_set(&name("w"), patch).await.expect("it can be");
            let told = log(&node, 0);
            assert!(told.len() == 2 && told[0].starts_with(first), "{told:?}");
        }
        let patch = VolumePatch { size: Some(Size(MIB)), shrink: true, ..VolumePatch::default() };
        let report = node.control.volume_set(&name("w"), patch).await.expect_err("too short");
        assert!(report.cause.contains("too little for 2 shards"), "{report}");
        let next = node.control.view().catalog.volume_id_next;
        assert_eq!(next, 3, "each part has had a number");
    }

    /// Goal: while a volume or its class has limits, one shard keeps them: its clients go there,
    /// and the others are told to send whole requests. Method: a limit set and taken away.
    #[tokio::test]
    async fn one_shard_keeps_limits() {
        let node = MockNode::new("");
        node.control
            .volume_create(create(2), crate::control::Authority::Owner)
            .await
            .expect("it can be");
        log(&node, 0);
        let set = |iops: u64| {
            let limits = LimitsConfig { iops_max: Some(iops), ..LimitsConfig::default() };
            VolumePatch { limits, ..VolumePatch::default() }
        };
        node.control.volume_set(&name("w"), set(50)).await.expect("a good limit");
        assert!(log(&node, 0).contains(&"led [2]".to_owned()));
        assert_eq!(node.shards[1].state().limits.volumes.len(), 1);
        assert!(node.shards[0].state().limits.volumes.is_empty());
        let dealt: Vec<u32> = (0..2).map(|_| node.control.deal(VolumeId(1)).0).collect();
        assert_eq!(dealt, [1, 1]);
        node.control.volume_set(&name("w"), set(0)).await.expect("it goes");
        assert!(log(&node, 0).contains(&"led []".to_owned()));
    }

    /// Goal: a volume whose blocks cannot go home stays whole; one that cannot be made leaves no
    /// part. Method: a drain that fails, then a removal that does not; a shard that refuses.
    #[tokio::test]
    async fn refusals_leave_whole_volumes() {
        let node = MockNode::new("");
        let refuse = |shard: usize| {
            let refusal = CommandError { kind: ErrorKind::Full, cause: "no room".into() };
            node.shards[shard].state().fail_next = Some(refusal);
        };
        refuse(0);
        node.control
            .volume_create(create(2), crate::control::Authority::Owner)
            .await
            .expect_err("a part is refused");
        assert!(node.shards.iter().all(|shard| shard.state().volumes.len() <= 1));
        assert!(node.control.view().catalog.volumes.len() == 1, "the default volume is left");
        node.control
            .volume_create(create(2), crate::control::Authority::Owner)
            .await
            .expect("it can be");
        let parts = node.control.view().catalog.volumes["w"].id;
        let shards = [(parts % 2) as usize, ((parts + 1) % 2) as usize];
        (0..2).for_each(|shard| drop(log(&node, shard)));
        let unjoined = node.control.volume_delete(&name("w"), DeleteData::Keep).await;
        unjoined.expect("it goes");
        for (part, shard) in shards.into_iter().enumerate() {
            let id = parts + part as u32;
            let told = ["unjoin {}", "quiesce {} false", "snapshot", "remove {} false"];
            let expected = told.map(|line| line.replace("{}", &id.to_string()));
            assert_eq!(log(&node, shard), expected);
        }
        std::fs::remove_file(node.dir.path().join("volumes/w")).expect("it was kept");
        for shards in [0, 3, 33] {
            let report = node
                .control
                .volume_create(create(shards), crate::control::Authority::Owner)
                .await
                .expect_err("no");
            assert!(report.cause.contains("the node has 2"), "{report}");
        }
    }
}
