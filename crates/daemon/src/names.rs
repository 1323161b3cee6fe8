//! Names of the volumes that shards know by number, for the node's log.
//!
//! How: shards' notices carry numbers; the control plane replaces the table with each new view.
//! Invariant: a number that has no name any more is told as a number.
//! Cost: a look-up per line of the log; nothing on the data path.

use crate::config::Name;
use crate::control::View;
use layby_types::VolumeId;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The table, shared by all clones.
#[derive(Clone, Debug, Default)]
pub struct Names(Arc<RwLock<BTreeMap<VolumeId, Name>>>);

impl Names {
    /// Those of a view.
    #[must_use]
    pub fn of(view: &View) -> Names {
        let names = Names::default();
        names.follow(view);
        names
    }

    /// From now on those of this view.
    pub fn follow(&self, view: &View) {
        let volumes = view.catalog.volumes.iter();
        let named =
            volumes.flat_map(|(name, record)| record.parts().map(move |part| (part, name.clone())));
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = named.collect();
    }

    /// A volume's name, or its number.
    #[must_use]
    pub fn text(&self, volume: VolumeId) -> String {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        names.get(&volume).map_or_else(|| format!("number {}", volume.0), Name::to_string)
    }

    /// As [`Names::text`], for a sentence: a name is quoted.
    #[must_use]
    pub fn quoted(&self, volume: VolumeId) -> String {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match names.get(&volume) {
            Some(name) => format!("`{name}`"),
            None => format!("number {}", volume.0),
        }
    }
}
