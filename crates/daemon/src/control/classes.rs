//! Classes, watermarks and limits, changed while the node runs.
//!
//! How: a change is checked as a whole, told to every shard, and saved beside what the
//! configuration said, so that it survives a restart until the file is edited.
//! Invariant: a class keeps its number as long as it exists, since blocks are counted under it.

use super::{ClassCreate, ClassPatch, Control, View, WatermarksPatch, WritebackPatch, report};
use crate::catalog::{Live, WatermarksRecord, WritebackRecord};
use crate::config::{
    ClassConfig, Config, Name, Percent, Place, UplinkConfig, checks, class_template,
};
use crate::error::{Report, ReportKind};
use layby_cache::{CLASSES_MAX, ReadAheadLimits, Watermarks, WritebackLimits};
use layby_types::Nanos;

impl Control {
    /// Creates a class.
    ///
    /// # Errors
    /// A report when the name is taken or a value is refused.
    pub async fn class_create(&self, request: ClassCreate) -> Result<(), Report> {
        let _change = self.lock_changes().await;
        let ClassCreate { name, settings } = request;
        let error = format!("cannot create class `{name}`");
        let mut view = View::clone(&self.view());
        let refused = |kind, cause: String, hint: &str| {
            Report::new(kind, &*error).cause(cause).state("nothing was changed").hint(hint)
        };
        if view.class(name.as_str()).is_some() {
            let cause = "a class of that name exists".to_owned();
            return Err(refused(ReportKind::InUse, cause, "change it with `layby class set`"));
        }
        let mut class = class_template(&view.layout.levels);
        let limits = settings.limits;
        lay_over(&mut class, settings);
        // There is no limit that a zero could take away.
        class.limits = class.limits.written(limits);
        let free = view.classes.iter().position(Option::is_none);
        let index = free.unwrap_or(view.classes.len());
        if index == CLASSES_MAX {
            let cause = format!("the node has {CLASSES_MAX} classes, the most it can have");
            return Err(refused(ReportKind::Full, cause, "delete a class that is not used"));
        }
        view.classes.resize(view.classes.len().max(index + 1), None);
        view.classes[index] = Some((name.clone(), class));
        self.class_changed(view, &name, &error).await
    }

    /// Changes a class.
    ///
    /// # Errors
    /// A report when there is no such class or a value is refused.
    pub async fn class_set(&self, name: &Name, patch: ClassPatch) -> Result<(), Report> {
        let _change = self.lock_changes().await;
        let error = format!("cannot change class `{name}`");
        let mut view = View::clone(&self.view());
        let slot = view.classes.iter_mut().flatten().find(|(known, _)| known == name);
        let (_, class) = slot.ok_or_else(|| unknown_class(&error, name))?;
        lay_over(class, patch);
        self.class_changed(view, name, &error).await
    }

    /// Deletes a class that no volume uses.
    ///
    /// # Errors
    /// A report when there is no such class, it is built in, or a volume uses it.
    pub async fn class_delete(&self, name: &Name) -> Result<(), Report> {
        let _change = self.lock_changes().await;
        let error = format!("cannot delete class `{name}`");
        let mut view = View::clone(&self.view());
        let slot = view.classes.iter_mut();
        let slot = slot.into_iter().find(|slot| super::is_called(slot, name.as_str()));
        let slot = slot.ok_or_else(|| unknown_class(&error, name))?;
        let refused = |cause: String, hint: &str| {
            Report::new(ReportKind::InUse, &*error)
                .cause(cause)
                .state("nothing was changed")
                .hint(hint)
        };
        if crate::config::BUILT_IN_CLASSES.contains(&name.as_str()) {
            let hint = "a class without volumes costs nothing";
            return Err(refused("the class is built in".to_owned(), hint));
        }
        let user = view.catalog.volumes.iter().find(|(_, record)| record.class == *name);
        if let Some((volume, _)) = user {
            let cause = format!("volume `{volume}` is of this class");
            return Err(refused(cause, "move its volumes with `layby volume set --class` first"));
        }
        *slot = None;
        self.class_changed(view, name, &error).await
    }

    async fn class_changed(&self, mut view: View, name: &Name, error: &str) -> Result<(), Report> {
        let live = view.class(name.as_str()).map(|(_, class)| class.clone());
        if let Some(class) = &live {
            checks::class(&view.layout.levels, name, class).map_err(|p| p.report(error))?;
            let place = Place::Class(name.clone());
            checks::usable_caps(place, (name, class), &class.cap).map_err(|p| p.report(error))?;
            self.check_volume_caps(&view, (name, class), error)?;
        }
        let known: Vec<_> = view.classes().cloned().collect();
        checks::guarantees(&view.layout.levels, &known).map_err(|p| p.report(error))?;
        let configured = self.facts.config.classes.iter().find(|(known, _)| known == name);
        let configured = configured.map(|(_, class)| class.clone());
        if configured == live {
            view.catalog.classes.remove(name);
        } else {
            view.catalog.classes.insert(name.clone(), Live { configured, live });
        }
        self.settings_changed(view, error).await
    }

    /// Refuses to take a level from a class of whose volumes one has a cap of it: that volume could
    /// not be changed afterwards. A cap without effect from before hinders no change, nor does one
    /// of a volume that is not served: no command could take it away.
    fn check_volume_caps(
        &self,
        view: &View,
        (name, class): (&Name, &ClassConfig),
        error: &str,
    ) -> Result<(), Report> {
        let before = self.view();
        let Some((_, before)) = before.class(name.as_str()) else { return Ok(()) };
        let is_lost =
            |level: &&Name| before.levels.contains(*level) && !class.levels.contains(*level);
        let served = view.catalog.volumes.iter().filter(|(name, _)| view.absence(name).is_none());
        for (volume, record) in served {
            let lost = record.cap.keys().find(is_lost).filter(|_| record.class == *name);
            let Some(level) = lost else { continue };
            return Err(Report::new(ReportKind::Invalid, error)
                .cause(format!(
                    "levels: volume `{volume}` of the class has a cap of level `{level}`, which \
                     the class could not use any more"
                ))
                .state("nothing was changed")
                .hint(format!(
                    "take the volume's caps away first with `layby volume set {volume} --no-cap`, \
                     or give it caps of other levels with --cap"
                )));
        }
        Ok(())
    }

    /// Changes when a level is destaged and freed.
    ///
    /// # Errors
    /// A report when there is no such level or the marks are not in order.
    pub async fn level_set(&self, name: &Name, patch: WatermarksPatch) -> Result<(), Report> {
        let _change = self.lock_changes().await;
        let error = format!("cannot change level `{name}`");
        let mut view = View::clone(&self.view());
        let index = view.layout.levels.iter().position(|level| level.name == *name);
        let index = index.ok_or_else(|| {
            Report::new(ReportKind::NotFound, &*error)
                .cause(format!("there is no level `{name}`"))
                .state("nothing was changed")
                .hint("`layby status` shows the levels of this node")
        })?;
        let marks = &mut view.layout.levels[index].watermarks;
        let set = |mark: &mut u8, new: Option<Percent>| *mark = new.map_or(*mark, |p| p.0);
        set(&mut marks.dirty_red, patch.dirty_red);
        set(&mut marks.dirty_green, patch.dirty_green);
        set(&mut marks.used_red, patch.used_red);
        set(&mut marks.used_green, patch.used_green);
        let live = *marks;
        checks::watermarks(Place::Level(index), live).map_err(|p| p.report(&*error))?;
        let configured = self.facts.config.level(name.as_str()).map(|(_, level)| level.watermarks);
        let pair = Live {
            configured: configured.map(WatermarksRecord::from),
            live: Some(WatermarksRecord::from(live)),
        };
        view.catalog.watermarks.insert(name.clone(), pair);
        self.settings_changed(view, &error).await
    }

    /// Changes how dirty blocks go home and how far reads run ahead.
    ///
    /// # Errors
    /// A report when a value is refused.
    pub async fn writeback_set(&self, patch: WritebackPatch) -> Result<(), Report> {
        let _change = self.lock_changes().await;
        let error = "cannot change write-back";
        let mut view = View::clone(&self.view());
        let (writeback, ahead) = (&mut view.layout.writeback, &mut view.layout.read_ahead);
        if let Some(size) = patch.merge_size {
            writeback.merge_bytes = checks::merge_bytes(size).map_err(|p| p.report(error))?;
        }
        if let Some(time) = patch.idle_timeout {
            writeback.idle_timeout = checks::idle_timeout(time).map_err(|p| p.report(error))?;
        }
        writeback.inflight_max = patch.inflight_max.unwrap_or(writeback.inflight_max);
        checks::inflight(writeback.inflight_max).map_err(|p| p.report(error))?;
        if let Some(size) = patch.read_ahead_window_max {
            ahead.window_bytes_max = checks::window_bytes(size).map_err(|p| p.report(error))?;
        }
        ahead.streak_min = patch.read_ahead_streak_min.unwrap_or(ahead.streak_min);
        let Config { writeback: was, read_ahead: was_ahead, .. } = &self.facts.config;
        let configured = Some(WritebackRecord::from((*was, *was_ahead)));
        let live = Some(WritebackRecord::from((*writeback, *ahead)));
        view.catalog.writeback = Some(Live { configured, live });
        self.settings_changed(view, error).await
    }

    /// Changes how fast the node uses its way up to object stores.
    ///
    /// # Errors
    /// A report when a value is refused.
    pub async fn uplink_set(&self, change: UplinkConfig) -> Result<(), Report> {
        let _change = self.lock_changes().await;
        let error = "cannot change the uplink";
        if change.in_flight.is_some() {
            return Err(Report::new(ReportKind::Invalid, error)
                .cause("how many segments are under way at once is fixed while the node runs")
                .state("nothing was changed")
                .hint("write `in_flight` into [uplink] of the configuration and restart"));
        }
        let mut view = View::clone(&self.view());
        let live = self.uplink_config(&view).changed(change);
        live.check().map_err(|problem| problem.report(error))?;
        let configured = Some(self.facts.config.uplink.clone());
        view.catalog.uplink = Some(Live { configured, live: Some(live) });
        self.publish(view).await
    }

    /// How the way up is used, by a view.
    pub(crate) fn uplink_config(&self, view: &View) -> UplinkConfig {
        let live = view.catalog.uplink.as_ref().and_then(|pair| pair.live.clone());
        live.unwrap_or_else(|| self.facts.config.uplink.clone())
    }

    async fn settings_changed(&self, view: View, error: &str) -> Result<(), Report> {
        let old = self.view().checked_spec(error)?;
        let new = view.checked_spec(error)?;
        self.admit(&view, error)?;
        self.widen_intents(&view).await?;
        self.reconfigure(&new, &old).await.map_err(|refused| report(&refused, error))?;
        let saved = self.publish(view).await;
        if saved.is_err() {
            // The caller is told that nothing changed, so nothing may have changed.
            self.reconfigure(&old, &new).await.map_err(|refused| report(&refused, error))?;
        }
        saved
    }
}

fn unknown_class(error: &str, name: &Name) -> Report {
    Report::new(ReportKind::NotFound, error)
        .cause(format!("there is no class `{name}`"))
        .state("nothing was changed")
        .hint("`layby class list` shows the classes of this node")
}

fn lay_over(class: &mut ClassConfig, patch: ClassPatch) {
    let ClassPatch {
        levels,
        rank,
        durable_writes,
        borrow,
        keep_reads,
        admission,
        weight,
        latency_objective,
        share,
        cap,
        limits,
        uplink,
    } = patch;
    class.levels = levels.unwrap_or_else(|| class.levels.clone());
    class.rank = rank.unwrap_or(class.rank);
    class.durable_writes = durable_writes.unwrap_or(class.durable_writes);
    class.borrow = borrow.unwrap_or(class.borrow);
    class.keep_reads = keep_reads.unwrap_or(class.keep_reads);
    class.admission = admission.unwrap_or(class.admission);
    class.weight = weight.unwrap_or(class.weight);
    if let Some(objective) = latency_objective {
        class.latency_objective = Some(objective).filter(|time| time.0 > Nanos::ZERO);
    }
    class.share = share.unwrap_or_else(|| class.share.clone());
    class.cap = cap.unwrap_or_else(|| class.cap.clone());
    class.limits = class.limits.changed(limits);
    class.uplink = class.uplink.changed(uplink);
}

impl From<Watermarks> for WatermarksRecord {
    fn from(marks: Watermarks) -> Self {
        let Watermarks { dirty_red, dirty_green, used_red, used_green } = marks;
        WatermarksRecord { dirty_red, dirty_green, used_red, used_green }
    }
}

impl From<WatermarksRecord> for Watermarks {
    fn from(marks: WatermarksRecord) -> Self {
        let WatermarksRecord { dirty_red, dirty_green, used_red, used_green } = marks;
        Watermarks { dirty_red, dirty_green, used_red, used_green }
    }
}

impl From<(WritebackLimits, ReadAheadLimits)> for WritebackRecord {
    fn from((writeback, read_ahead): (WritebackLimits, ReadAheadLimits)) -> Self {
        WritebackRecord {
            merge_bytes: writeback.merge_bytes,
            idle_timeout_ns: writeback.idle_timeout.0,
            inflight_max: writeback.inflight_max,
            read_ahead_bytes_max: read_ahead.window_bytes_max,
            read_ahead_streak_min: read_ahead.streak_min,
        }
    }
}

impl From<WritebackRecord> for (WritebackLimits, ReadAheadLimits) {
    fn from(record: WritebackRecord) -> Self {
        let writeback = WritebackLimits {
            merge_bytes: record.merge_bytes,
            idle_timeout: Nanos(record.idle_timeout_ns),
            inflight_max: record.inflight_max,
        };
        let read_ahead = ReadAheadLimits {
            window_bytes_max: record.read_ahead_bytes_max,
            streak_min: record.read_ahead_streak_min,
        };
        (writeback, read_ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::MockNode;
    use crate::control::{Absence, Authority, VolumeCreate, VolumePatch};

    fn name(text: &str) -> Name {
        text.parse().expect("a good name")
    }

    /// A change of a class's levels, without caps.
    fn levels(text: &str) -> ClassPatch {
        ClassPatch {
            levels: Some(text.split(',').map(name).collect()),
            cap: Some([].into()),
            ..ClassPatch::default()
        }
    }

    /// Goal: no class loses a level that one of its volumes has a cap of, since that volume could
    /// not be changed afterwards; a cap without effect that was there before hinders no change.
    /// Method: changes of levels before and after the cap is taken away, and of other volumes.
    #[tokio::test]
    async fn a_class_keeps_the_levels_of_its_volumes_caps() {
        let node = MockNode::new("");
        let bulk = name("bulk");
        let set = async |patch| node.control.class_set(&bulk, patch).await;
        set(levels("dram,ssd")).await.expect("no volume has a cap");
        for (volume, class) in [("a", "bulk"), ("b", "normal")] {
            let wanted = VolumeCreate {
                cap: [(name("ssd"), "10%".parse().expect("an amount"))].into(),
                ..serde_json::from_str(&format!(
                    "{{\"name\":\"{volume}\",\"size\":\"1MiB\",\"class\":\"{class}\"}}"
                ))
                .expect("JSON")
            };
            node.control.volume_create(wanted, Authority::Owner).await.expect("a free name");
        }
        let refused = set(levels("dram")).await.expect_err("a volume has a cap of it");
        assert_eq!(refused.kind, ReportKind::Invalid);
        for word in ["volume `a`", "cap", "`ssd`"] {
            assert!(refused.cause.contains(word), "{refused}");
        }
        assert!(refused.hint.contains("layby volume set a"), "{refused}");
        assert_eq!(node.control.view().class("bulk").map(|(_, c)| c.levels.len()), Some(2));
        let resized =
            VolumePatch { size: Some("2MiB".parse().expect("one")), ..Default::default() };
        node.control.volume_set(&name("a"), resized).await.expect("it can still be changed");
        set(ClassPatch { rank: Some(7), ..levels("ssd") }).await.expect("no cap of `dram`");
        let uncapped = VolumePatch { cap: Some([].into()), ..VolumePatch::default() };
        node.control.volume_set(&name("a"), uncapped).await.expect("a good change");
        set(levels("dram")).await.expect("the cap is gone");
    }

    /// Goal: a volume that is not served, whose caps no command can take away, hinders no change of
    /// its class's levels; its cap can be taken away once it is served. Method: a volume with a cap
    /// that is not served meanwhile, and one that is.
    #[tokio::test]
    async fn a_volume_that_is_not_served_keeps_no_level() {
        let node = MockNode::new("");
        let bulk = name("bulk");
        let set = async |patch| node.control.class_set(&bulk, patch).await;
        set(levels("dram,ssd")).await.expect("no volume has a cap");
        let wanted = VolumeCreate {
            class: Some(bulk.clone()),
            cap: [(name("ssd"), "10%".parse().expect("an amount"))].into(),
            ..crate::control::tests::create("a")
        };
        node.control.volume_create(wanted, Authority::Owner).await.expect("a free name");
        let served = View::clone(&node.control.view());
        let mut absent = served.clone();
        let why = Report::new(ReportKind::Failure, "cannot open the file").cause("it is away");
        absent.absent.insert(name("a"), Absence::of_file(why));
        node.control.show(absent);
        let uncapped = VolumePatch { cap: Some([].into()), ..VolumePatch::default() };
        let refused = node.control.volume_set(&name("a"), uncapped.clone()).await;
        refused.expect_err("it is not served");
        set(levels("dram")).await.expect("no command can take the cap away");
        let mut back = View::clone(&node.control.view());
        back.absent.clear();
        node.control.show(back);
        node.control.volume_set(&name("a"), uncapped).await.expect("it is served again");
        node.control.show(served);
        set(levels("dram")).await.expect_err("a volume that is served has a cap of it");
    }
}
