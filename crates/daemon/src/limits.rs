//! Which limits each shard enforces.
//!
//! How: a volume's limits go to the shard that serves it. A class's go to every shard that serves
//! volumes of it, each with the part that its volumes are of all the class's; so the parts make up
//! the whole exactly, no message passes between shards, and a class whose volumes lie on one shard
//! has all of its limit there. A wide volume's limits, and its class's, are kept by the shard of
//! its first part, to which the others then send its requests whole.
//! Invariant: what all shards together let through for a class is at most its limit.
//! Cost: a pass over the volumes per change. The price of parts: where the volumes of one shard are
//! idle, those of another cannot use what is left.

use crate::catalog::{VolumePhase, VolumeRecord};
use crate::config::{ClassConfig, discard_limits};
use crate::control::View;
use layby_cache::discards::DiscardLimits;
use layby_cache::throttle::LimitPlan;
use layby_types::VolumeId;

impl View {
    /// The limits of one shard.
    #[must_use]
    pub(crate) fn limit_plan(&self, shard: usize) -> LimitPlan {
        let mut plan = LimitPlan::default();
        let own = |record: &&VolumeRecord| self.layout.shard_of(VolumeId(record.id)) == shard;
        for (name, class) in self.classes() {
            let members =
                self.catalog.volumes.values().filter(|record| {
                    record.class == *name && record.phase != VolumePhase::Deleting
                });
            let members: Vec<&VolumeRecord> = members.collect();
            let part = members.iter().copied().filter(own).count() as u32;
            let (id, _) = self.class(name.as_str()).expect("it was just listed");
            let limits = class.limits.limits();
            if part > 0 && !limits.is_none() {
                plan.classes.push((id, limits.part(part, members.len() as u32)));
            }
            for record in members.into_iter().filter(own) {
                if !(limits.is_none() && record.limits.is_none()) {
                    plan.volumes.push((VolumeId(record.id), id, record.limits.limits()));
                }
            }
        }
        plan
    }
}

impl View {
    /// Whether a volume or its class has limits.
    #[must_use]
    pub(crate) fn is_limited(&self, record: &VolumeRecord) -> bool {
        let class = self.class(record.class.as_str());
        let is_free = |(_, class): (_, &ClassConfig)| class.limits.limits().is_none();
        !(record.limits.limits().is_none() && class.is_none_or(is_free))
    }

    /// The parts on one shard of wide volumes whose limits another shard keeps.
    #[must_use]
    pub(crate) fn led_parts(&self, shard: usize) -> Vec<VolumeId> {
        let limited = self.catalog.volumes.values().filter(|record| self.is_limited(record));
        let others = limited.flat_map(|record| record.parts().skip(1));
        others.filter(|part| self.layout.shard_of(*part) == shard).collect()
    }
}

impl View {
    /// How discards of one shard's volumes reach their homes, where not at once.
    #[must_use]
    pub(crate) fn discard_plan(&self, shard: usize) -> Vec<(VolumeId, DiscardLimits)> {
        let own = |record: &&VolumeRecord| {
            !record.discard.is_default() || record.discard_bandwidth.is_some()
        };
        let limits = |record: &VolumeRecord| {
            let VolumeRecord { discard, discard_delay, discard_bandwidth, .. } = record;
            let limits = discard_limits(*discard, *discard_delay, *discard_bandwidth);
            let parts = record.parts().filter(|part| self.layout.shard_of(*part) == shard);
            parts.map(move |part| (part, limits)).collect::<Vec<_>>()
        };
        self.catalog.volumes.values().filter(own).flat_map(limits).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{LimitsConfig, Name};
    use crate::control::tests::MockNode;
    use crate::control::{Authority, ClassPatch, DeleteData, VolumePatch};
    use layby_cache::throttle::{LimitPlan, Limits, Rate};
    use layby_types::{ClassId, VolumeId};

    const VOLUMES: &str = "[volume.a]\nsize = \"1MiB\"\nclass = \"bulk\"\n\
        [volume.b]\nsize = \"1MiB\"\nclass = \"bulk\"\n\
        [volume.c]\nsize = \"1MiB\"\nclass = \"bulk\"\n\
        [volume.d]\nsize = \"1MiB\"\n";
    const BULK: ClassId = ClassId(2);

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    fn iops(max: u64) -> LimitsConfig {
        LimitsConfig { iops_max: Some(max), ..LimitsConfig::default() }
    }

    /// Goal: a class's limit is cut by its volumes on each shard, and a volume's goes to its own.
    /// Method: three volumes of a class on two shards; limits set, moved, taken away, restarted.
    #[tokio::test]
    async fn shards_learn_their_limits() {
        let node = MockNode::new(VOLUMES);
        let limits = |shard: usize| node.shards[shard].state().limits.clone();
        let class = ClassPatch { limits: iops(900), ..ClassPatch::default() };
        node.control.class_set(&name("bulk"), class).await.expect("a good limit");
        let whole = Rate::per_second(900, 90);
        let of = |part| Limits { requests: Some(whole.part(part, 3)), bytes: None };
        let none = Limits::NONE;
        let volumes = |ids: &[u32]| ids.iter().map(|id| (VolumeId(*id), BULK, none)).collect();
        let plan = LimitPlan { volumes: volumes(&[0, 2]), classes: vec![(BULK, of(2))] };
        assert_eq!(limits(0), plan);
        assert_eq!(limits(1), LimitPlan { volumes: volumes(&[1]), classes: vec![(BULK, of(1))] });
        node.control.volume_delete(&name("b"), DeleteData::Keep).await.expect("it goes");
        assert_eq!(limits(1), LimitPlan::default());
        assert_eq!(
            limits(0).classes,
            [(BULK, Limits { requests: Some(whole.part(2, 2)), bytes: None })]
        );
        let patch = VolumePatch { limits: iops(7), ..VolumePatch::default() };
        node.control.volume_set(&name("d"), patch).await.expect("a good limit");
        let own = iops(7).limits();
        assert_eq!(limits(1).volumes, [(VolumeId(3), ClassId(1), own)]);
        let node = node.restart(VOLUMES);
        node.control.start_limits().await;
        assert_eq!(node.shards[1].state().limits.volumes, [(VolumeId(3), ClassId(1), own)]);
        let class = ClassPatch { limits: iops(0), ..ClassPatch::default() };
        node.control.class_set(&name("bulk"), class).await.expect("taken away");
        assert_eq!(node.shards[0].state().limits, LimitPlan::default());
    }

    /// Goal: a new volume or class with a limit of zero is refused, which in a change takes the
    /// limit away. Method: each is asked for with it, and the volume then without.
    #[tokio::test]
    async fn what_is_new_has_no_limit_of_zero() {
        let node = MockNode::new("");
        let asked = |limits: &str| {
            let text = format!("{{\"name\":\"new\",\"size\":\"1MiB\",\"limits\":{limits}}}");
            let request = serde_json::from_str(&text).expect("a request");
            node.control.volume_create(request, Authority::Owner)
        };
        for limits in ["{\"iops_max\":0}", "{\"bandwidth_max\":\"0B\"}"] {
            let report = asked(limits).await.expect_err("it lets nothing through");
            assert!(report.cause.contains("of 0 would let nothing through"), "{report}");
            assert!(report.hint.contains("leave it out for no limit"), "{report}");
        }
        assert!(node.control.view().volumes().all(|(name, _)| name.as_str() != "new"));
        let class = r#"{"name":"own","settings":{"rank":7,"limits":{"iops_max":0}}}"#;
        let class = serde_json::from_str(class).expect("a request");
        let report = node.control.class_create(class).await.expect_err("as above");
        assert!(report.cause.contains("of 0 would let nothing through"), "{report}");
        asked("{}").await.expect("it has no limit");
    }

    /// Goal: a limit that is out of bounds changes nothing. Method: too much, and a lone burst.
    #[tokio::test]
    async fn bad_limits_change_nothing() {
        let node = MockNode::new(VOLUMES);
        let lone = LimitsConfig { iops_burst: Some(5), ..LimitsConfig::default() };
        for limits in [iops(u64::MAX), lone] {
            let patch = VolumePatch { limits, ..VolumePatch::default() };
            let report = node.control.volume_set(&name("d"), patch).await.expect_err("refused");
            assert!(report.cause.starts_with("limits: iops_"), "{report}");
        }
        assert!(node.control.view().volumes().all(|(_, record)| record.limits.is_none()));
        assert!(!node.shards[1].state().log.contains(&"limit".to_owned()));
    }
}
