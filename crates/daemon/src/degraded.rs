//! A start without a lost level: which volumes are served, and which wait for the level.
//!
//! How: a level whose file or device is missing or blank is lost. Volumes without a write intent
//! there are served, without any persistent level: what the other levels hold of them is written
//! back first, and they get new numbers, so that no record of a level that comes back is taken for
//! theirs. The others are refused by name, until the level is back or `accept-loss` gives up what
//! it held. Levels that are there are not used, and keep what they have of the refused volumes.
//! Where no volume has an intent, the levels can be made anew. The catalog says that they are being
//! made from before the first file until all shards have started, before any client is served; a
//! start that was cut short in between is finished by the next.
//! Invariant: no volume is served at an older version than a client was promised, unless an
//! operator accepted it. Levels that are half made are not read.
//! Cost: reads and writes of a degraded node go to memory and to the backing stores alone. Not for:
//! a level that is there and is damaged, see `store::lost` of the engine.

use crate::catalog::{Catalog, VolumePhase, VolumeRecord};
use crate::config::{Config, Format, Kind, Name};
use crate::control::{Absence, View};
use crate::error::{Report, ReportKind};
use crate::homes::Homes;
use crate::intents::{self, Found, Intents};
use crate::levels::{self, Lost};
use crate::names::Names;
use crate::node::{ShardRequest, requests};
use crate::reached::LevelsReached;
use crate::shards::write_back;
use layby_engine::control::VolumePlan;
use layby_engine::core::{Damage, NotWritten, WrittenBack};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What a start makes of the levels.
pub(crate) struct Levels {
    pub(crate) view: View,
    /// They are to be formatted.
    pub(crate) is_new: bool,
    pub(crate) lost: Vec<Lost>,
    /// Volumes that wait for a lost level.
    pub(crate) held: BTreeMap<Name, Absence>,
    /// The write intents that the start found.
    pub(crate) before: Found,
    pub(crate) notes: Vec<String>,
}

impl Levels {
    fn of(view: View, is_new: bool, before: Found) -> Levels {
        let (lost, held, notes) = (Vec::new(), BTreeMap::new(), Vec::new());
        Levels { view, is_new, lost, held, before, notes }
    }
}

/// Makes or checks the levels; without one that is lost the node is degraded, unless it is to be
/// strict or to make them anew.
///
/// # Errors
/// A report where a level cannot be had and the node cannot do without.
pub(crate) async fn open_levels(
    config: &Config,
    mut view: View,
    is_new: bool,
    homes: Homes,
) -> Result<Levels, Report> {
    let config = config.clone();
    let opening = tokio::task::spawn_blocking(move || {
        let before = intents::read(&config.dir);
        if view.catalog.is_formatting {
            return finish_format(&config, view, &homes, before);
        }
        let lost = if is_new { Vec::new() } else { levels::lost(&view) };
        if lost.is_empty() || config.is_strict {
            levels::prepare(&config.dir, &view, is_new, config.format)?;
            return Ok(Levels::of(view, is_new, before));
        }
        if config.format == Format::All {
            refuse_dirty(&view, &homes, &before)?;
            begin_format(&config.dir, &mut view)?;
            levels::prepare(&config.dir, &view, true, config.format)?;
            return Ok(Levels::of(view, true, before));
        }
        open_without(&config, view, &homes, before, lost)
    });
    opening.await.expect("opening levels reports, it does not panic")
}

/// Records, durably and before any level is made, that all are being made anew. What else this
/// start changes is not recorded with it: it may yet be refused.
fn begin_format(dir: &Path, view: &mut View) -> Result<(), Report> {
    view.catalog.is_formatting = true;
    let Some(mut catalog) = Catalog::load(dir)? else { return Ok(()) };
    catalog.is_formatting = true;
    catalog.save(dir)
}

/// Goes on where making the levels anew was cut short. Any of them may be old, new or neither, so
/// that none is read: where they cannot be finished all count as lost.
fn finish_format(
    config: &Config,
    view: View,
    homes: &Homes,
    before: Found,
) -> Result<Levels, Report> {
    assert!(view.catalog.is_started, "a first start needs no record");
    let made = refuse_dirty(&view, homes, &before)
        .and_then(|()| levels::prepare(&config.dir, &view, true, config.format));
    let Err(report) = made else {
        let note = "an earlier start had not ended making the levels anew; all are made anew now";
        let notes = vec![note.to_owned()];
        return Ok(Levels { notes, ..Levels::of(view, true, before) });
    };
    if config.format == Format::All || config.is_strict {
        return Err(report);
    }
    let persistent = view.layout.levels.iter().filter(|level| level.path.is_some());
    let lost = persistent.map(|level| {
        let cause = format!("making it anew was cut short, and cannot go on: {}", report.cause);
        Lost { name: level.name.clone(), kind: level.kind, cause }
    });
    let lost = lost.collect();
    open_without(config, view, homes, before, lost)
}

/// Starts without the levels of `lost`, and so without any.
fn open_without(
    config: &Config,
    mut view: View,
    homes: &Homes,
    before: Found,
    lost: Vec<Lost>,
) -> Result<Levels, Report> {
    let degraded = start_without(config, &mut view, homes, &before, &lost)?;
    let Degraded { notes, held } = degraded;
    Ok(Levels { lost, held, notes, ..Levels::of(view, false, before) })
}

/// Levels are made anew only where none holds what a backing store lacks.
fn refuse_dirty(view: &View, homes: &Homes, before: &Found) -> Result<(), Report> {
    let all = intents::persistent_levels(view);
    let volumes = view.catalog.volumes.iter();
    let dirty = volumes.filter(|(_, record)| !homes.writes_through(record));
    let dirty = dirty.filter(|(_, record)| before.levels(record, &all).is_some());
    let names: Vec<String> = dirty.map(|(name, _)| format!("`{name}`")).collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(Report::new(ReportKind::InUse, "cannot make the levels anew")
        .cause(format!("the levels may hold dirty blocks of {}", names.join(", ")))
        .state("nothing was changed")
        .hint(
            "start without --format; give up what a lost level held of a volume with `layby volume \
             accept-loss`",
        ))
}

/// The write intents that hold from now on: those found, of volumes that are there, and no other
/// where levels are made anew.
///
/// # Errors
/// A report when the disk refuses.
pub(crate) fn begin_intents(
    dir: &Path,
    view: &View,
    homes: &Homes,
    (before, is_new): (&Found, bool),
    held: &BTreeMap<Name, Absence>,
) -> Result<Intents, Report> {
    let all = intents::persistent_levels(view);
    let may_have = |(name, record): &(&Name, &VolumeRecord)| {
        let is_there = !view.layout.is_memory_only || held.contains_key(*name);
        !is_new && is_there && !homes.writes_through(record)
    };
    let volumes = view.catalog.volumes.iter().filter(may_have);
    // A volume that is dirty asks for no intent: the levels that it has gained since are its now.
    // Without levels no volume gains dirty blocks in one.
    let gained = |r: &VolumeRecord| match view.layout.is_memory_only {
        true => BTreeSet::new(),
        false => intents::levels_of(view, r),
    };
    let levels = |r: &VolumeRecord| Some(&before.levels(r, &all)? | &gained(r));
    let volumes = volumes.filter_map(|(_, r)| Some((r.id, levels(r)?))).collect();
    if let Found::Unknown(cause) = before
        && view.catalog.is_started
    {
        tracing::warn!(cause, "{}", intents::COST);
    }
    Intents::begin(dir, volumes, before)
}

/// What a degraded start does to a node; the rest is in the view.
struct Degraded {
    /// Lines for the operator.
    notes: Vec<String>,
    /// Volumes that wait, and why.
    held: BTreeMap<Name, Absence>,
}

/// Prepares `view` for a node without the levels of `lost`: decides which volumes wait, writes the
/// others back and gives them new numbers. May take long.
///
/// # Errors
/// A report where the node has no number left for a volume.
fn start_without(
    config: &Config,
    view: &mut View,
    homes: &Homes,
    found: &Found,
    lost: &[Lost],
) -> Result<Degraded, Report> {
    let decided = decide(view, homes, found, lost);
    let Decided { mut held, dirty } = decided;
    let written = write_back_all(config, view, homes, lost, &dirty);
    let mut blocks = 0;
    for name in &dirty {
        match &written[name] {
            Ok(count) => blocks += count,
            Err(cause) => {
                let cause = format!("its dirty blocks could not be written back: {cause}");
                held.insert(name.clone(), cause);
            }
        }
    }
    let names: Vec<Name> = view.catalog.volumes.keys().cloned().collect();
    let was_without = std::mem::replace(&mut view.catalog.without_levels, true);
    for name in names.iter().filter(|name| !held.contains_key(*name)) {
        if !was_without || dirty.contains(name) {
            renumber(view, homes, name, "cannot start the node without a level")?;
        }
        // Its backing store is there, and its new number has no intent that says so.
        if let Some(record) = view.catalog.volumes.get_mut(name).filter(|_| dirty.contains(name)) {
            record.phase = VolumePhase::Ready;
        }
    }
    view.layout.is_memory_only = true;
    let notes = notes(view, lost, &held, blocks);
    notes.iter().for_each(|note| tracing::warn!("{note}"));
    let waits = |(name, cause): (&Name, &String)| {
        let why = refusal(cause, lost);
        (name.clone(), Absence::held(why))
    };
    Ok(Degraded { notes, held: held.iter().map(waits).collect() })
}

struct Decided {
    /// Volumes that wait for a lost level, with the cause.
    held: BTreeMap<Name, String>,
    /// Volumes that have dirty blocks in other levels alone.
    dirty: BTreeSet<Name>,
}

fn decide(view: &View, homes: &Homes, found: &Found, lost: &[Lost]) -> Decided {
    let all = intents::persistent_levels(view);
    // The log says which records of the NVM level are dead.
    let is_log_lost = lost.iter().any(|lost| lost.kind == Kind::Ssd);
    let mut decided = Decided { held: BTreeMap::new(), dirty: BTreeSet::new() };
    for (name, record) in &view.catalog.volumes {
        let levels = found.levels(record, &all);
        let Some(levels) = levels.filter(|_| !homes.writes_through(record)) else { continue };
        let missing = lost.iter().find(|lost| is_log_lost || levels.contains(&lost.name));
        let Some(missing) = missing else {
            decided.dirty.insert(name.clone());
            continue;
        };
        let cause = match found {
            Found::Known(_) => format!("level `{}` may hold its newest blocks", missing.name),
            Found::Unknown(cause) => format!("{cause}; so any level may hold its newest blocks"),
        };
        decided.held.insert(name.clone(), cause);
    }
    decided
}

/// Blocks written back, or why not, of each of `names`.
fn write_back_all(
    config: &Config,
    view: &View,
    homes: &Homes,
    lost: &[Lost],
    names: &BTreeSet<Name>,
) -> BTreeMap<Name, Result<u64, String>> {
    let of = |name: &Name| {
        let written = write_back_volume(config, view, homes, (lost, Damage::Refused), name);
        (name.clone(), written.map_err(|report| format!("{}: {}", report.error, report.cause)))
    };
    names.iter().map(of).collect()
}

/// Writes back what the levels that are there hold of a volume. May take long.
///
/// # Errors
/// A report that says why not all of it is in its backing store.
pub(crate) fn write_back_volume(
    config: &Config,
    view: &View,
    homes: &Homes,
    (lost, damage): (&[Lost], Damage),
    name: &Name,
) -> Result<u64, Report> {
    let error = format!("cannot write volume `{name}` back");
    let record = &view.catalog.volumes[name];
    // Levels hold blocks of it, so that it was made.
    let plans = view.made_plans(homes, name, record)?;
    let mut blocks = 0;
    for request in offline_requests(config, view, homes, lost, &plans)? {
        for WrittenBack { result, .. } in write_back(request, damage)? {
            blocks += result.map_err(|NotWritten { kind, cause }| {
                Report::new(kind.into(), error.clone())
                    .cause(cause)
                    .state("no level was changed; blocks that were not written are in their level")
                    .hint("correct the cause and start the node again")
            })?;
        }
    }
    Ok(blocks)
}

/// What each shard that has a part of the volumes would be told, with the levels that are there.
fn offline_requests(
    config: &Config,
    view: &View,
    homes: &Homes,
    lost: &[Lost],
    plans: &[VolumePlan],
) -> Result<Vec<ShardRequest>, Report> {
    let mut whole = view.clone();
    whole.layout.is_memory_only = false;
    let (intents, _) = tokio::sync::mpsc::unbounded_channel();
    let mut requests = requests(config, &whole, plans, false, (&intents, &Names::of(view)))?;
    LevelsReached::read(&config.dir)?.tell(&mut requests);
    requests.iter_mut().for_each(|request| request.lock = homes.lock());
    requests.retain(|request| !request.volumes.is_empty());
    for part in requests.iter_mut().flat_map(|request| &mut request.parts) {
        part.is_absent = lost.iter().any(|lost| lost.name == part.level.name);
    }
    Ok(requests)
}

/// Gives a volume a number that no level has blocks of.
///
/// # Errors
/// A report where the node has none left.
pub(crate) fn renumber(
    view: &mut View,
    homes: &Homes,
    name: &Name,
    error: &str,
) -> Result<VolumeRecord, Report> {
    let record = view.catalog.volumes[name].clone();
    let id = view.catalog.volume_ids_take(record.shards()).ok_or_else(|| {
        Report::new(ReportKind::Full, error).cause("this node has no number left for a volume")
    })?;
    let local = homes.writes_through(&record).then(|| record.local_number());
    let device = record.ublk.then(|| record.device_number());
    let record = VolumeRecord { id: id.0, local: local.or(record.local), device, ..record };
    view.catalog.volumes.insert(name.clone(), record.clone());
    Ok(record)
}

fn notes(view: &View, lost: &[Lost], held: &BTreeMap<Name, String>, blocks: u64) -> Vec<String> {
    let levels = lost.iter().map(|lost| format!("level `{}` is lost: {}", lost.name, lost.cause));
    let mut notes: Vec<String> = levels.collect();
    let served = view.catalog.volumes.len() - held.len();
    notes.push(format!(
        "{served} volume(s) are served from memory and their backing stores alone; {blocks} dirty \
         block(s) of the other levels were written back"
    ));
    notes.push(match held.is_empty() {
        true => "put the level back and start again, or make all levels anew with `layby serve \
                 --format`"
            .to_owned(),
        false => format!(
            "{} volume(s) wait for the level: put it back and start again, or give up what it held \
             of a volume with `layby volume accept-loss NAME`",
            held.len()
        ),
    });
    notes
}

fn refusal(cause: &str, lost: &[Lost]) -> Report {
    let names: Vec<String> = lost.iter().map(|lost| format!("`{}`", lost.name)).collect();
    Report::new(ReportKind::Corrupt, "cannot serve the volume")
        .cause(format!("level {} is lost, and {cause}", names.join(", ")))
        .state("nothing was changed; its backing store and the levels that are there are untouched")
        .hint(
            "put the level back and start the node again, or give up what it held of the volume \
             with `layby volume accept-loss`",
        )
}
