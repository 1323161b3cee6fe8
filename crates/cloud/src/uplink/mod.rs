//! The node's one way up: which volume's segment goes next, how fast, and what is to be expected.
//!
//! How: a volume's host asks for a turn before it puts a segment and says afterwards whether the
//! bytes arrived. `layby_policy::uplink` decides whose turn it is, the meter what the link carries.
//! Superblocks, checkpoints and reads pass without asking: they are small or somebody waits.
//! Invariant: a permit that is dropped is given back, and so is one whose upload takes several
//! times what it should; a volume that is forgotten gets no more.
//! Cost: a lock per segment of some MiB, and a timer while a cap or patience holds one back.
//! Not for: the order in which segments take effect, which is the volume's.

mod meter;

pub use layby_policy::uplink::{
    Cap, CapWindow, ClassPlan, DirtyBounds, Share, TimeOfDay, Timetable, TimetableError,
    UplinkLimits, VolumePlan,
};

use crate::action::End;
use crate::volume::WaitPlan;
use layby_policy::uplink::{Next, Prudence, Upload, UploadId, When};
use layby_types::{ClassId, Nanos, VolumeId};
use meter::Meter;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Tells the time of day, in the time zone that a timetable is written for.
pub type Clock = fn() -> TimeOfDay;

/// What is known of the way up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Bytes per second that are expected; none until something was uploaded.
    pub expected: Option<f64>,
    /// What the link carried in the long run, in bytes per second.
    pub usual: Option<f64>,
    /// Which forecast is used.
    pub forecast: &'static str,
    /// How far off its answers were of late on average, in bytes per second.
    pub error: f64,
    /// How far off the naive forecast's would have been.
    pub error_naive: f64,
    /// Bytes per second that the timetable allows now; none where it allows all.
    pub cap: Option<u64>,
    /// Segments that wait for their turn, and their bytes.
    pub waiting: (u64, u64),
    /// Segments under way, and their bytes.
    pub in_flight: (u32, u64),
    /// Bytes of all volumes that are in no store.
    pub dirty_bytes: u64,
}

/// What a class's clients do about a store that is late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassWaits {
    /// A call that waits for the store ends with an error after so long; none waits for ever.
    pub answer_within: Option<Nanos>,
    /// A read that is later than most is asked for a second time.
    pub hedges: bool,
}

/// How long nothing may end before no forecast holds any more.
const SILENCE: Duration = Duration::from_secs(3);

struct State {
    queue: layby_policy::uplink::Uplink,
    timetable: Timetable,
    meter: Meter,
    waiting: BTreeMap<UploadId, (u64, oneshot::Sender<()>)>,
    dirty: BTreeMap<VolumeId, Dirty>,
    strict: Vec<ClassId>,
    waits: BTreeMap<ClassId, ClassWaits>,
    next: u64,
    /// When somebody looks again.
    alarm: Nanos,
}

/// A volume, and what of it is in no store.
#[derive(Clone, Copy)]
struct Dirty {
    class: ClassId,
    /// As they are expected to go up.
    bytes: u64,
    /// How old it may get, where somebody has said so.
    age_max: Option<Nanos>,
}

impl State {
    fn waits_of(&self, volume: VolumeId) -> ClassWaits {
        let class = self.dirty.get(&volume).map(|dirty| dirty.class);
        class.and_then(|class| self.waits.get(&class)).copied().unwrap_or_default()
    }
}

struct Shared {
    state: Mutex<State>,
    start: Instant,
    clock: Clock,
    runtime: tokio::runtime::Handle,
}

/// See the file's header.
#[derive(Clone)]
pub struct Uplink(Arc<Shared>);

impl fmt::Debug for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uplink({:?})", self.seen())
    }
}

impl Uplink {
    /// A way up without a cap.
    #[must_use]
    pub fn new(limits: UplinkLimits, clock: Clock, runtime: tokio::runtime::Handle) -> Self {
        let state = State {
            queue: layby_policy::uplink::Uplink::new(limits),
            timetable: Timetable::default(),
            meter: Meter::new(),
            waiting: BTreeMap::new(),
            dirty: BTreeMap::new(),
            strict: Vec::new(),
            waits: BTreeMap::new(),
            next: 0,
            alarm: Nanos::NEVER,
        };
        let state = Mutex::new(state);
        Uplink(Arc::new(Shared { state, start: Instant::now(), clock, runtime }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.0.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Another timetable from now on.
    pub fn set_timetable(&self, timetable: Timetable) {
        let mut state = self.state();
        state.timetable = timetable.clone();
        state.queue.set_timetable(timetable);
        self.pump(state);
    }

    /// How a class's segments go up from now on.
    pub fn set_class(&self, class: ClassId, plan: ClassPlan) {
        let mut state = self.state();
        state.queue.set_class(class, plan);
        state.strict.retain(|other| *other != class);
        if plan.share == Share::Strict {
            state.strict.push(class);
        }
        self.pump(state);
    }

    /// What a class's clients do about a late store from now on.
    pub fn set_waits(&self, class: ClassId, waits: ClassWaits) {
        self.state().waits.insert(class, waits);
    }

    /// A volume's class and bounds from now on.
    pub fn set_volume(&self, volume: VolumeId, plan: VolumePlan) {
        self.add_volume(volume, plan, Some(plan.bounds.age));
    }

    fn add_volume(&self, volume: VolumeId, plan: VolumePlan, age_max: Option<Nanos>) {
        let mut state = self.state();
        state.queue.set_volume(volume, plan);
        let bytes = state.dirty.get(&volume).map_or(0, |dirty| dirty.bytes);
        state.dirty.insert(volume, Dirty { class: plan.class, bytes, age_max });
        self.pump(state);
    }

    /// How many bytes of a volume are in no store, and how many are expected to go up for them.
    fn set_dirty(&self, volume: VolumeId, bytes: u64, expected: u64) {
        let mut state = self.state();
        state.queue.set_dirty(volume, bytes);
        if let Some(dirty) = state.dirty.get_mut(&volume) {
            dirty.bytes = expected;
        }
    }

    fn forget(&self, volume: VolumeId) {
        let mut state = self.state();
        state.dirty.remove(&volume);
        for upload in state.queue.forget_volume(volume) {
            state.waiting.remove(&upload.id);
        }
        self.pump(state);
    }

    /// What is known of the way up.
    #[must_use]
    pub fn seen(&self) -> Seen {
        let now = self.now();
        let mut state = self.state();
        state.meter.close(now);
        let outlook = state.meter.outlook();
        let (forecast, error, error_naive) = state.meter.errors();
        let waiting = state.waiting.values().map(|(bytes, _)| bytes).sum();
        Seen {
            expected: outlook.map(|outlook| outlook.near.get()),
            usual: outlook.map(|outlook| outlook.long.get()),
            forecast,
            error,
            error_naive,
            cap: match state.timetable.at((self.0.clock)()) {
                Cap::None => None,
                Cap::BytesPerSecond(cap) => Some(cap),
            },
            waiting: (state.waiting.len() as u64, waiting),
            in_flight: state.queue.in_flight(),
            dirty_bytes: state.dirty.values().map(|dirty| dirty.bytes).sum(),
        }
    }

    /// How long until all that a volume holds now is in its store, at the latest: with all that may
    /// go before it, over the link as it is expected to be. None where nothing is known of the
    /// link, it carries nothing, or it is silent: nothing has ended for twice as long as what is
    /// under way should take, and for [`SILENCE`] at least.
    #[must_use]
    pub fn time_to_drain(&self, volume: VolumeId) -> Option<Nanos> {
        let now = self.now();
        let state = self.state();
        let Dirty { class, bytes, .. } = *state.dirty.get(&volume)?;
        if bytes == 0 {
            return Some(Nanos::ZERO);
        }
        let is_strict = state.strict.contains(&class);
        // A strict class waits for no other.
        let goes_before = |dirty: &&Dirty| !is_strict || state.strict.contains(&dirty.class);
        let bytes = state.dirty.values().filter(goes_before).map(|dirty| dirty.bytes).sum();
        let expected = state.meter.outlook()?.near;
        let (_, under_way) = state.queue.in_flight();
        let silence = state.meter.silence(now).as_secs_f64();
        let is_late = silence * expected.get() > 2.0 * under_way as f64;
        if is_late && silence >= SILENCE.as_secs_f64() {
            return None;
        }
        state.timetable.time_to_move(bytes, expected, (self.0.clock)())
    }

    /// How long an upload keeps its place: four times what the link takes for all under way.
    fn patience(&self) -> Duration {
        const LEAST: Duration = Duration::from_secs(20);
        const MOST: Duration = Duration::from_secs(600);
        let state = self.state();
        let (_, bytes) = state.queue.in_flight();
        let expected = state.meter.outlook().map_or(0.0, |outlook| outlook.near.get());
        if expected < 1.0 {
            // A link that carries nothing, or that nothing is known of.
            return LEAST;
        }
        Duration::from_secs_f64((4.0 * bytes as f64 / expected).min(MOST.as_secs_f64())).max(LEAST)
    }

    /// Hands out what may go, and sees to it that somebody looks again.
    fn pump(&self, mut state: MutexGuard<'_, State>) {
        let now = self.now();
        let when = When { now, time_of_day: (self.0.clock)() };
        let outlook = state.meter.outlook();
        loop {
            match state.queue.next(when, outlook.as_ref()) {
                Next::Send(upload) => {
                    state.meter.begin(now);
                    let (_, turn) = state.waiting.remove(&upload.id).expect("who waits is known");
                    if turn.send(()).is_err() {
                        state.queue.on_done(upload.id);
                        state.meter.end(now, 0);
                    }
                }
                Next::Wait(at) => return self.look_again(&mut state, now, at),
                Next::Idle => return,
            }
        }
    }

    fn look_again(&self, state: &mut State, now: Nanos, at: Nanos) {
        if state.alarm <= at && state.alarm > now {
            return;
        }
        state.alarm = at;
        let (uplink, rest) = (self.clone(), Duration::from_nanos(at.0.saturating_sub(now.0)));
        self.0.runtime.spawn(async move {
            // Tokens of a cap and the end of patience come with time alone.
            tokio::time::sleep(rest).await;
            let mut state = uplink.state();
            if state.alarm == at {
                state.alarm = Nanos::NEVER;
            }
            uplink.pump(state);
        });
    }
}

/// A volume's way to its store; the volume is forgotten with it.
#[derive(Debug)]
pub struct Lane {
    uplink: Uplink,
    volume: VolumeId,
}

impl Lane {
    /// A volume that uploads from now on; of the first class until somebody says more.
    #[must_use]
    pub fn new(uplink: &Uplink, volume: VolumeId) -> Self {
        let is_known = uplink.state().dirty.contains_key(&volume);
        if !is_known {
            let plan = VolumePlan { class: ClassId(0), bounds: DirtyBounds::DEFAULT };
            uplink.add_volume(volume, plan, None);
        }
        Lane { uplink: uplink.clone(), volume }
    }

    /// A way of its own, for one volume that shares its link with nobody.
    #[must_use]
    pub fn alone(runtime: tokio::runtime::Handle) -> Self {
        let uplink = Uplink::new(UplinkLimits::DEFAULT, || TimeOfDay::MIDNIGHT, runtime);
        Lane::new(&uplink, VolumeId(0))
    }

    pub(crate) fn set_dirty(&self, bytes: u64, expected: u64) {
        self.uplink.set_dirty(self.volume, bytes, expected);
    }

    /// How long the volume's clients wait, over the link as it is expected to be.
    pub(crate) fn wait_plan(&self) -> WaitPlan {
        let mut state = self.uplink.state();
        let answer_within = state.waits_of(self.volume).answer_within;
        state.meter.close(self.uplink.now());
        let cap = state.timetable.at((self.uplink.0.clock)());
        let drain = state.meter.outlook().map(|outlook| Prudence::DEFAULT.drain(&outlook, cap));
        WaitPlan { answer_within, drain }
    }

    /// How old the volume's writes may get before they go up, where somebody has said so.
    pub(crate) fn age_max(&self) -> Option<Nanos> {
        self.uplink.state().dirty.get(&self.volume)?.age_max
    }

    /// Whether the volume's reads that are late are asked for again.
    pub(crate) fn hedges(&self) -> bool {
        self.uplink.state().waits_of(self.volume).hedges
    }

    /// Asks for a turn for an object whose oldest byte is so old.
    pub(crate) fn ask(&self, bytes: u64, age: Nanos) -> Turn {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.uplink.state();
        let id = UploadId(state.next);
        state.next += 1;
        let since = Nanos(self.uplink.now().0.saturating_sub(age.0));
        let upload = Upload { id, volume: self.volume, bytes: bytes.max(1), since };
        // Where more wait than may, the caller hears that its turn never comes.
        if state.queue.submit(upload).is_ok() {
            state.waiting.insert(id, (bytes, sender));
            self.uplink.pump(state);
        }
        Turn { uplink: self.uplink.clone(), id, receiver }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.uplink.forget(self.volume);
    }
}

/// A turn that was asked for.
pub(crate) struct Turn {
    uplink: Uplink,
    id: UploadId,
    receiver: oneshot::Receiver<()>,
}

impl Turn {
    /// Waits for it; none where it never comes.
    pub(crate) async fn come(self) -> Option<Permit> {
        let Turn { uplink, id, receiver } = self;
        receiver.await.ok()?;
        let patience = uplink.patience();
        Some(Permit { uplink, id, carried: 0, patience })
    }
}

/// The right to upload one object, until it is dropped.
pub(crate) struct Permit {
    uplink: Uplink,
    id: UploadId,
    carried: u64,
    patience: Duration,
}

impl Permit {
    /// Uploads so many bytes. What takes several times as long as the forecast says goes on without
    /// its place, so that a store that never answers holds up no other one's volumes.
    pub(crate) async fn carry(mut self, bytes: u64, upload: impl Future<Output = End>) -> End {
        let mut upload = std::pin::pin!(upload);
        match tokio::time::timeout(self.patience, &mut upload).await {
            Ok(end) => {
                self.carried = if matches!(end, End::Stored(_)) { bytes } else { 0 };
                end
            }
            Err(_) => {
                drop(self);
                upload.await
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let now = self.uplink.now();
        let mut state = self.uplink.state();
        state.queue.on_done(self.id);
        state.meter.end(now, self.carried);
        self.uplink.pump(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Tag;

    /// Goal: a link that has fallen silent has no forecast; one that is slow, and said so, has.
    /// Method: an upload of a known speed, then one of 4 MiB that does not end, at both speeds.
    #[tokio::test(start_paused = true)]
    async fn a_silent_link_has_no_forecast() {
        const MIB: u64 = 1 << 20;
        for (seconds, is_known) in [(1, false), (40, true)] {
            let runtime = tokio::runtime::Handle::current();
            let uplink = Uplink::new(UplinkLimits::DEFAULT, || TimeOfDay::MIDNIGHT, runtime);
            let lane = Lane::new(&uplink, VolumeId(1));
            lane.set_dirty(4 * MIB, 4 * MIB);
            let mut permit = lane.ask(4 * MIB, Nanos::ZERO).come().await.expect("there is room");
            permit.patience = Duration::from_secs(600);
            let upload = async {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                End::Stored(Tag(String::new()))
            };
            drop(permit.carry(4 * MIB, upload).await);
            let waiting = lane.ask(4 * MIB, Nanos::ZERO).come().await.expect("there is room");
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert!(uplink.time_to_drain(VolumeId(1)).is_some(), "it is not late yet");
            let other = Lane::new(&uplink, VolumeId(2));
            assert_eq!(uplink.time_to_drain(VolumeId(2)), Some(Nanos::ZERO), "it has nothing");
            drop(other);
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert_eq!(uplink.time_to_drain(VolumeId(1)).is_some(), is_known);
            tokio::time::sleep(Duration::from_secs(90)).await;
            assert_eq!(uplink.time_to_drain(VolumeId(1)), None, "twice 40 s have passed");
            drop(waiting);
        }
    }

    /// Goal: an upload that never ends keeps its place for a while and no longer, and one whose
    /// volume is forgotten never has a turn. Method: one place, two volumes, a clock that the test
    /// moves.
    #[tokio::test(start_paused = true)]
    async fn an_endless_upload_loses_its_place() {
        let limits = UplinkLimits { in_flight_max: 1, ..UplinkLimits::DEFAULT };
        let runtime = tokio::runtime::Handle::current();
        let uplink = Uplink::new(limits, || TimeOfDay::MIDNIGHT, runtime);
        let lanes = [0, 1, 2].map(|volume| Lane::new(&uplink, VolumeId(volume)));
        let [stuck, waiting, gone] = lanes.each_ref().map(|lane| lane.ask(1 << 20, Nanos::ZERO));
        let permit = stuck.come().await.expect("it is the first");
        assert_eq!((uplink.seen().in_flight.0, uplink.seen().waiting.0), (1, 2));
        let endless = permit.carry(1 << 20, std::future::pending());
        let endless = tokio::spawn(endless);
        let [_first, _second, third] = lanes;
        drop(third);
        assert!(gone.come().await.is_none(), "its volume is forgotten");
        let permit = waiting.come().await.expect("the place is given back");
        assert!(!endless.is_finished());
        let stored = async { End::Stored(Tag(String::new())) };
        assert!(matches!(permit.carry(1 << 20, stored).await, End::Stored(_)));
        assert_eq!(uplink.seen().in_flight.0, 0);
    }
}
