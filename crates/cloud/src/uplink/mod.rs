//! The node's one way up: which volume's segment goes next, how fast, and what is to be expected.
//!
//! How: a volume's host asks for a turn before it puts a segment and says afterwards whether the
//! bytes arrived. `layby_policy::uplink` decides whose turn it is, a meter per store what it takes:
//! a store that fails says nothing of what another one does. One that nothing is known of is
//! expected to take what the best of the others does.
//! Superblocks, checkpoints and reads pass without asking: they are small or somebody waits.
//! Invariant: a permit that is dropped is given back, and so is one whose upload takes several
//! times what it should; a volume that is forgotten gets no more.
//! Cost: a lock per segment of some MiB, and a timer while a cap or patience holds one back.
//! Not for: the order in which segments take effect, which is the volume's.

mod meter;
mod places;

pub use layby_policy::uplink::{
    Cap, CapWindow, ClassPlan, DirtyBounds, Share, TimeOfDay, Timetable, TimetableError,
    UplinkLimits, VolumePlan,
};

use crate::action::{End, FaultKind};
use crate::volume::WaitPlan;
use layby_policy::uplink::{Next, Prudence, Upload, UploadId, When};
use layby_types::{ClassId, Nanos, VolumeId};
use places::{PlaceId, Places};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Tells the time of day, in the time zone that a timetable is written for.
pub type Clock = fn() -> TimeOfDay;

/// What is known of the way up; of several stores, of the one that takes most.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Bytes per second that are expected; none until something was uploaded.
    pub expected: Option<f64>,
    /// What was carried in the long run, in bytes per second.
    pub usual: Option<f64>,
    /// Which forecast is used.
    pub forecast: &'static str,
    /// How far off its answers were of late on average, in bytes per second; none as long as
    /// nothing was measured that a forecast had been made of.
    pub error: Option<f64>,
    /// How far off the naive forecast's would have been.
    pub error_naive: Option<f64>,
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
    places: Places,
    waiting: BTreeMap<UploadId, Waiting>,
    dirty: BTreeMap<VolumeId, Dirty>,
    strict: Vec<ClassId>,
    waits: BTreeMap<ClassId, ClassWaits>,
    next: u64,
    /// When somebody looks again.
    alarm: Nanos,
}

/// An upload that waits for its turn.
struct Waiting {
    bytes: u64,
    place: PlaceId,
    turn: oneshot::Sender<()>,
}

/// A volume, and what of it is in no store.
#[derive(Clone, Copy)]
struct Dirty {
    class: ClassId,
    place: PlaceId,
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
            places: Places::new(),
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
        let before = state.dirty.get(&volume);
        let bytes = before.map_or(0, |dirty| dirty.bytes);
        let place = before.map_or(PlaceId::NONE, |dirty| dirty.place);
        state.dirty.insert(volume, Dirty { class: plan.class, place, bytes, age_max });
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
        self.state().dirty.remove(&volume);
        self.withdraw_waiting(volume);
    }

    /// A volume gets no more turns; what waits for one hears that it never comes.
    fn withdraw_waiting(&self, volume: VolumeId) {
        let mut state = self.state();
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
        state.places.close(now);
        let best = state.places.best();
        let outlook = best.outlook();
        let (forecast, error, error_naive) = best.errors();
        let waiting = state.waiting.values().map(|waiting| waiting.bytes).sum();
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
    /// go before it, but for what other stores do not take, at what its store is expected to take.
    /// None where nothing is known of that, it is nothing, or the store is silent: nothing has
    /// ended for twice as long as what is under way should take, and for [`SILENCE`] at least.
    #[must_use]
    pub fn time_to_drain(&self, volume: VolumeId) -> Option<Nanos> {
        let now = self.now();
        let state = self.state();
        let Dirty { class, place, bytes, .. } = *state.dirty.get(&volume)?;
        if bytes == 0 {
            return Some(Nanos::ZERO);
        }
        let is_strict = state.strict.contains(&class);
        // A strict class waits for no other.
        let goes_before = |dirty: &&Dirty| {
            let is_taken = dirty.place == place || !state.places.has_failed(dirty.place);
            is_taken && (!is_strict || state.strict.contains(&dirty.class))
        };
        let bytes = state.dirty.values().filter(goes_before).map(|dirty| dirty.bytes).sum();
        let expected = state.places.outlook(place)?.near;
        let (silence, under_way) = state.places.silence(place, now);
        let silence = silence.as_secs_f64();
        let is_late = silence * expected.get() > 2.0 * under_way as f64;
        if is_late && silence >= SILENCE.as_secs_f64() {
            return None;
        }
        state.timetable.time_to_move(bytes, expected, (self.0.clock)())
    }

    /// How long an upload keeps its place: four times what its store takes for all under way there.
    fn patience(&self, place: PlaceId) -> Duration {
        const LEAST: Duration = Duration::from_secs(20);
        const MOST: Duration = Duration::from_secs(600);
        let state = self.state();
        let (_, bytes) = state.places.silence(place, self.now());
        let expected = state.places.outlook(place).map_or(0.0, |outlook| outlook.near.get());
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
        let outlook = state.places.best().outlook();
        loop {
            match state.queue.next(when, outlook.as_ref()) {
                Next::Send(upload) => {
                    let waiting = state.waiting.remove(&upload.id).expect("who waits is known");
                    match waiting.turn.send(()) {
                        Ok(()) => state.places.begin(waiting.place, now, upload.bytes),
                        Err(()) => drop(state.queue.withdraw(upload.id)),
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
    place: PlaceId,
}

impl Lane {
    /// A volume that uploads to a place from now on, as [`crate::Store::place`] names it; of the
    /// first class until the volume's plan is known.
    #[must_use]
    pub fn new(uplink: &Uplink, volume: VolumeId, place: &str) -> Self {
        let is_known = uplink.state().dirty.contains_key(&volume);
        if !is_known {
            let plan = VolumePlan { class: ClassId(0), bounds: DirtyBounds::DEFAULT };
            uplink.add_volume(volume, plan, None);
        }
        let mut state = uplink.state();
        let State { places, dirty, .. } = &mut *state;
        let is_used = |place| dirty.values().any(|dirty| dirty.place == place);
        let place = places.find(place, is_used);
        if let Some(dirty) = dirty.get_mut(&volume) {
            dirty.place = place;
        }
        drop(state);
        Lane { uplink: uplink.clone(), volume, place }
    }

    /// A way of its own, for one volume that shares its link with nobody.
    #[must_use]
    pub fn alone(runtime: tokio::runtime::Handle) -> Self {
        let uplink = Uplink::new(UplinkLimits::DEFAULT, || TimeOfDay::MIDNIGHT, runtime);
        Lane::new(&uplink, VolumeId(0), "")
    }

    pub(crate) fn set_dirty(&self, bytes: u64, expected: u64) {
        self.uplink.set_dirty(self.volume, bytes, expected);
    }

    /// The volume uploads nothing any more: what waits for a turn gets none.
    pub(crate) fn withdraw(&self) {
        self.uplink.withdraw_waiting(self.volume);
    }

    /// How long the volume's clients wait, over the link as it is expected to be.
    pub(crate) fn wait_plan(&self) -> WaitPlan {
        let mut state = self.uplink.state();
        let answer_within = state.waits_of(self.volume).answer_within;
        state.places.close(self.uplink.now());
        let cap = state.timetable.at((self.uplink.0.clock)());
        let outlook = state.places.outlook(self.place);
        let drain = outlook.map(|outlook| Prudence::DEFAULT.drain(&outlook, cap));
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
            state.waiting.insert(id, Waiting { bytes, place: self.place, turn: sender });
            self.uplink.pump(state);
        }
        Turn { uplink: self.uplink.clone(), upload, place: self.place, receiver }
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
    upload: Upload,
    place: PlaceId,
    receiver: oneshot::Receiver<()>,
}

impl Turn {
    /// Waits for it; none where it never comes.
    pub(crate) async fn come(self) -> Option<Permit> {
        let Turn { uplink, upload, place, receiver } = self;
        receiver.await.ok()?;
        let patience = uplink.patience(place);
        Some(Permit { uplink, upload, place, patience, outcome: Outcome::Unknown })
    }
}

/// How an upload ended, as far as its store shows it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// So many bytes arrived.
    Stored(u64),
    /// The store did not answer.
    Silent,
    /// It was not asked to the end, or said no.
    Unknown,
}

/// The right to upload one object, until it is dropped.
pub(crate) struct Permit {
    uplink: Uplink,
    upload: Upload,
    place: PlaceId,
    patience: Duration,
    outcome: Outcome,
}

impl Permit {
    /// Uploads so many bytes. What takes several times as long as the forecast says goes on without
    /// its place, and its volume has probes alone until one arrives, so that a store that never
    /// answers holds up no other one's volumes.
    pub(crate) async fn carry(mut self, bytes: u64, upload: impl Future<Output = End>) -> End {
        let (begun, mut upload) = (Instant::now(), std::pin::pin!(upload));
        if let Ok(end) = tokio::time::timeout(self.patience, &mut upload).await {
            self.outcome = match &end {
                End::Stored(_) => Outcome::Stored(bytes),
                End::Failed(fault) if fault.kind == FaultKind::Retry => match begun.elapsed() {
                    // The store accepts no connection.
                    waited if waited >= SILENCE => Outcome::Silent,
                    _ => Outcome::Unknown,
                },
                _ => Outcome::Unknown,
            };
            return end;
        }
        self.outcome = Outcome::Silent;
        let (uplink, volume) = (self.uplink.clone(), self.upload.volume);
        drop(self);
        let end = upload.await;
        if matches!(end, End::Stored(_)) {
            let mut state = uplink.state();
            state.queue.on_answer(volume);
            uplink.pump(state);
        }
        end
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let now = self.uplink.now();
        let mut state = self.uplink.state();
        let id = self.upload.id;
        let (_, carried) = match self.outcome {
            Outcome::Stored(bytes) => (state.queue.on_done(id), bytes),
            Outcome::Silent => (state.queue.on_silent(id), 0),
            Outcome::Unknown => (state.queue.withdraw(id), 0),
        };
        state.places.end(self.place, now, self.upload.bytes, carried);
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
        for (seconds, is_known) in [(1, false), (40, true)] {
            let runtime = tokio::runtime::Handle::current();
            let uplink = Uplink::new(UplinkLimits::DEFAULT, || TimeOfDay::MIDNIGHT, runtime);
            let lane = Lane::new(&uplink, VolumeId(1), "s3://a");
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
            let other = Lane::new(&uplink, VolumeId(2), "s3://a");
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
        let lanes = [0, 1, 2].map(|volume| Lane::new(&uplink, VolumeId(volume), "s3://a"));
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

    const MIB: u64 = 1 << 20;

    async fn store(lane: &Lane) -> Duration {
        let begun = Instant::now();
        let permit = lane.ask(MIB, Nanos::ZERO).come().await.expect("there is room");
        let stored = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            End::Stored(Tag(String::new()))
        };
        assert!(matches!(permit.carry(MIB, stored).await, End::Stored(_)));
        begun.elapsed()
    }

    /// An upload whose store never answers.
    fn lose(lane: &Lane) {
        let turn = lane.ask(MIB, Nanos::ZERO);
        tokio::spawn(async move {
            let permit = turn.come().await.expect("there is room");
            permit.carry(MIB, std::future::pending()).await
        });
    }

    /// Goal: what a silent store does not take says nothing of what another one takes: its volumes
    /// keep their forecast, and the bytes of the silent one's do not go before theirs. Method: two
    /// stores, one of which falls silent while nothing goes to the other; a third, of which nothing
    /// is known.
    #[tokio::test(start_paused = true)]
    async fn a_silent_store_says_nothing_of_another() {
        let runtime = tokio::runtime::Handle::current();
        let uplink = Uplink::new(UplinkLimits::DEFAULT, || TimeOfDay::MIDNIGHT, runtime);
        let dead = Lane::new(&uplink, VolumeId(1), "s3://dead");
        let good = Lane::new(&uplink, VolumeId(2), "s3://good");
        for _ in 0..30 {
            store(&good).await;
            store(&dead).await;
        }
        lose(&dead);
        dead.set_dirty(1 << 40, 1 << 40);
        good.set_dirty(MIB, MIB);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let drain = |lane: &Lane| lane.wait_plan().drain.expect("it was measured").whole();
        assert!(drain(&good) > 5 * MIB, "{}", drain(&good));
        assert!(drain(&dead) < MIB, "{}", drain(&dead));
        let left = uplink.time_to_drain(VolumeId(2)).expect("it was measured");
        assert!(left < Nanos::from_secs(1), "{left:?}");
        assert!(uplink.seen().expected.expect("it was measured") > (5 * MIB) as f64);
        let new = Lane::new(&uplink, VolumeId(3), "s3://new");
        assert!(drain(&new) > 5 * MIB, "{}", drain(&new));
    }

    /// Goal: volumes of a silent store hold up no other one's uploads once their own were given up,
    /// and each goes on at once when its store answers. Method: four silent volumes with more
    /// uploads than there are places, then twenty uploads of a fifth one.
    #[tokio::test(start_paused = true)]
    async fn silent_stores_leave_the_places_to_others() {
        let runtime = tokio::runtime::Handle::current();
        let uplink = Uplink::new(UplinkLimits::DEFAULT, || TimeOfDay::MIDNIGHT, runtime);
        let lane = |volume| Lane::new(&uplink, VolumeId(volume), "s3://dead");
        let dead = [1, 2, 3, 4].map(lane);
        for _ in 0..20 {
            dead.iter().for_each(lose);
        }
        let good = Lane::new(&uplink, VolumeId(5), "s3://good");
        tokio::time::sleep(Duration::from_secs(45)).await;
        for _ in 0..20 {
            let time = store(&good).await;
            assert!(time < Duration::from_millis(200), "{time:?}");
            tokio::time::sleep(Duration::from_secs(7)).await;
        }
        let (in_flight, _) = uplink.seen().in_flight;
        assert!((1..=4).contains(&in_flight), "one probe each: {in_flight}");
    }
}
