//! The volumes of a shard by small dense numbers, and the classes that rule them.
//!
//! How: a volume's number indexes the holdings of every level; numbers are reused after removal.
//! Invariant: a number is reused only when no level holds a slot for it.

use crate::action::DestageFault;
use crate::places::Places;
use crate::spec::{ClassSpec, LEVELS_MAX, Share, VolumeSpec};
use crate::through::Through;
use crate::unsynced::Unsynced;
use crate::watch::Watch;
use alloc::boxed::Box;
use alloc::vec::Vec;
use layby_policy::ReadAhead;
use layby_types::{BlockIndex, ErrorKind, Nanos, VolumeId};

/// Volumes per shard at most: two ranking groups each, in 16 bits.
pub const VOLUMES_MAX: usize = 16_384;
/// Blocks of a volume at most: all that a key can name.
pub(crate) const BLOCKS_MAX: u64 = BlockIndex::MAX.0 + 1;

/// Counters of one volume, in blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeCounters {
    /// Blocks read that were found in each level.
    pub hits: [u64; LEVELS_MAX],
    /// Blocks read that no level had.
    pub misses: u64,
    /// Blocks written by clients into each level.
    pub writes: [u64; LEVELS_MAX],
}

/// Where and when a search goes on that looks at a bounded number of a level's slots at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Search {
    pub(crate) hand: u32,
    pub(crate) not_before: Nanos,
}

/// A volume's state.
pub(crate) struct VolumeState {
    pub(crate) id: VolumeId,
    pub(crate) class: usize,
    /// Its bytes; the last block may be partial.
    pub(crate) length: u64,
    pub(crate) blocks: u64,
    pub(crate) shares: [Share; LEVELS_MAX],
    /// The shares that live sizing gave it, in slots; they yield to every guarantee.
    pub(crate) sized: Option<[u32; LEVELS_MAX]>,
    /// Samples its requests, where somebody wants to know.
    pub(crate) watch: Option<Box<Watch>>,
    pub(crate) read_ahead: ReadAhead,
    /// Fetches ahead in flight.
    pub(crate) ahead_inflight: u32,
    /// Blocks in flight that the home has at hand.
    pub(crate) at_hand_inflight: u32,
    /// Persistent levels or a log may know of the volume: what bypasses them must say so there.
    pub(crate) logged: bool,
    /// What is to be known where the volume writes through.
    pub(crate) through: Option<Box<Through>>,
    /// What the backing store may still lose.
    pub(crate) unsynced: Unsynced,
    /// Why destaging fails now, if it does.
    pub(crate) fault: Option<ErrorKind>,
    /// What was reported of it and not taken back, and when a destage failed last: a home that is
    /// full takes a block now and then.
    pub(crate) told: Option<(DestageFault, Nanos)>,
    /// That was not reported yet: nothing is dirty.
    pub(crate) is_unreported: bool,
    /// No destage of the volume is started before this, after one failed.
    pub(crate) destage_not_before: Nanos,
    /// Per level the search for a dirty block beyond the cold end that can move to a level below.
    pub(crate) below_searches: [Search; LEVELS_MAX],
    /// Destages in flight.
    pub(crate) destages_inflight: u32,
    /// The device that its backing store shares with others; `None` for one of its own.
    pub(crate) device: Option<u64>,
    /// The number of the generation to which what becomes dirty now belongs; see `drains.rs`.
    pub(crate) generation: u32,
    /// The backing store does not answer.
    pub(crate) is_stuck: bool,
    pub(crate) counters: VolumeCounters,
}

/// See the file's header.
pub(crate) struct Volumes {
    pub(crate) classes: Vec<ClassSpec>,
    states: Vec<Option<VolumeState>>,
    ids: Vec<(VolumeId, u16)>,
    /// Destaging of some volume has failed once.
    pub(crate) has_faults: bool,
    /// Destages in flight, by device.
    pub(crate) places: Places,
}

impl Volumes {
    pub(crate) fn new(classes: Vec<ClassSpec>, inflight_max: u16) -> Self {
        Volumes {
            classes,
            states: Vec::new(),
            ids: Vec::new(),
            has_faults: false,
            places: Places::new(inflight_max),
        }
    }

    #[inline]
    pub(crate) fn number(&self, id: VolumeId) -> Option<u16> {
        // Where identifiers have no gaps, an identifier is its own place.
        if let Some((_, number)) = self.ids.get(id.0 as usize).filter(|(known, _)| *known == id) {
            return Some(*number);
        }
        let place = self.ids.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(self.ids[place].1)
    }

    pub(crate) fn get(&self, volume: u16) -> &VolumeState {
        self.states[usize::from(volume)].as_ref().expect("a number is used while its volume lives")
    }

    pub(crate) fn get_mut(&mut self, volume: u16) -> &mut VolumeState {
        self.states[usize::from(volume)].as_mut().expect("a number is used while its volume lives")
    }

    /// The volume with a number, where there is one.
    pub(crate) fn find_mut(&mut self, volume: u16) -> Option<&mut VolumeState> {
        self.states.get_mut(usize::from(volume))?.as_mut()
    }

    pub(crate) fn class(&self, volume: u16) -> &ClassSpec {
        &self.classes[self.get(volume).class]
    }

    /// Whether destaging of the volume rests after a failure.
    pub(crate) fn rests(&self, id: VolumeId, now: Nanos) -> bool {
        let number = self.number(id);
        number.is_some_and(|number| now < self.get(number).destage_not_before)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &VolumeState)> {
        self.states.iter().enumerate().filter_map(|(i, v)| v.as_ref().map(|v| (i as u16, v)))
    }

    /// Behind the last number of a volume.
    pub(crate) fn end(&self) -> usize {
        self.states.len()
    }

    pub(crate) fn add(&mut self, spec: &VolumeSpec, blocks: u64) -> Result<u16, ErrorKind> {
        let Err(place) = self.ids.binary_search_by_key(&spec.id, |(id, _)| *id) else {
            return Err(ErrorKind::Invalid);
        };
        let vacant = self.states.iter().position(Option::is_none);
        let number = vacant.unwrap_or(self.states.len());
        if blocks > BLOCKS_MAX {
            return Err(ErrorKind::Invalid);
        }
        if number >= VOLUMES_MAX {
            return Err(ErrorKind::Full);
        }
        let state = VolumeState {
            id: spec.id,
            class: usize::from(spec.class.0),
            length: spec.length,
            blocks,
            shares: spec.shares,
            sized: None,
            watch: None,
            read_ahead: ReadAhead::default(),
            ahead_inflight: 0,
            at_hand_inflight: 0,
            logged: false,
            through: spec.write_through.then(|| Box::new(Through::new(blocks))),
            unsynced: Unsynced::default(),
            fault: None,
            told: None,
            is_unreported: false,
            destage_not_before: Nanos::ZERO,
            below_searches: [Search::default(); LEVELS_MAX],
            destages_inflight: 0,
            device: Some(0),
            generation: 0,
            is_stuck: false,
            counters: VolumeCounters::default(),
        };
        match self.states.get_mut(number) {
            Some(vacant) => *vacant = Some(state),
            None => self.states.push(Some(state)),
        }
        self.ids.insert(place, (spec.id, number as u16));
        Ok(number as u16)
    }

    pub(crate) fn remove(&mut self, volume: u16) {
        let state = self.states[usize::from(volume)].take().expect("a volume is removed once");
        self.ids.retain(|(id, _)| *id != state.id);
    }
}
