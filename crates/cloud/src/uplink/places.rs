//! What each store takes, by its meter.
//!
//! How: volumes of one bucket, or of one folder, share a meter. A store that nothing is known of is
//! expected to take what the best of the others does: they lie behind the same link.
//! Invariant: what one store does not take changes no other one's outlook.
//! Cost: a meter per store; of more than [`PLACES_KEPT`], those that no volume uses are forgotten.
//! Not for: what two stores take at once; each was measured beside the other.

use super::meter::Meter;
use layby_policy::forecast::Outlook;
use layby_types::Nanos;

/// Stores whose meters are kept though no volume uses them.
const PLACES_KEPT: usize = 64;

/// A store, as [`Places`] counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlaceId(usize);

impl PlaceId {
    /// That of volumes that have not said where they are.
    pub(super) const NONE: PlaceId = PlaceId(0);
}

struct Place {
    name: String,
    meter: Meter,
}

/// See the file's header.
pub(super) struct Places(Vec<Place>);

impl Places {
    pub(super) fn new() -> Self {
        Places(vec![Place { name: String::new(), meter: Meter::new() }])
    }

    /// The place of that name, which is a new one unless it is known.
    pub(super) fn find(&mut self, name: &str, is_used: impl Fn(PlaceId) -> bool) -> PlaceId {
        if let Some(index) = self.0.iter().position(|place| place.name == name) {
            return PlaceId(index);
        }
        let fresh = Place { name: name.to_owned(), meter: Meter::new() };
        let is_free = |index: &usize| self.0[*index].meter.is_idle() && !is_used(PlaceId(*index));
        let free = (1..self.0.len()).find(is_free).filter(|_| self.0.len() > PLACES_KEPT);
        match free {
            Some(index) => {
                self.0[index] = fresh;
                PlaceId(index)
            }
            None => {
                self.0.push(fresh);
                PlaceId(self.0.len() - 1)
            }
        }
    }

    /// An upload of so many bytes begins.
    pub(super) fn begin(&mut self, place: PlaceId, now: Nanos, bytes: u64) {
        self.0[place.0].meter.begin(now, bytes);
    }

    /// One of so many bytes ended, and so many arrived.
    pub(super) fn end(&mut self, place: PlaceId, now: Nanos, begun: u64, bytes: u64) {
        self.0[place.0].meter.end(now, begun, bytes);
    }

    /// Tells the forecasts of all intervals that are over.
    pub(super) fn close(&mut self, now: Nanos) {
        self.0.iter_mut().for_each(|place| place.meter.close(now));
    }

    /// What a store is expected to take; none where nothing is known of any.
    pub(super) fn outlook(&self, place: PlaceId) -> Option<Outlook> {
        self.0[place.0].meter.outlook().or_else(|| self.best().outlook())
    }

    /// The meter of the store that is expected to take most.
    pub(super) fn best(&self) -> &Meter {
        let near = |meter: &Meter| meter.outlook().map_or(-1.0, |outlook| outlook.near.get());
        let meters = self.0.iter().map(|place| &place.meter);
        let best = meters.max_by(|one, other| near(one).total_cmp(&near(other)));
        best.expect("there is the first one")
    }

    /// How long something is under way since which nothing has ended, and its bytes.
    pub(super) fn silence(&self, place: PlaceId, now: Nanos) -> (Nanos, u64) {
        let meter = &self.0[place.0].meter;
        (meter.silence(now), meter.under_way_bytes())
    }

    /// Whether nothing of the upload that ended last arrived.
    pub(super) fn has_failed(&self, place: PlaceId) -> bool {
        self.0[place.0].meter.has_failed()
    }
}
