//! Making an empty NVM store, and opening one: superblock, mark, then every header.
//!
//! How: the disk is synced first, so that what is read is also durable. Data newer than the mark is
//! verified, since a header can reach a file's device before its data; data up to the mark is
//! verified when it is read, as all that persistent memory has. Without a mark it is not known what
//! was durable: all data counts, since an older version would come back. A damaged header is
//! written again from its copy. Of several copies of a block the newest wins; the others retire.
//! Invariant: a header of which nothing is known leaves every block undecided, since an older
//! record of its block would come back; it stays until that is kept. Winners beyond the slot count
//! get overflow slots.
//! Cost: the headers, and the data stored since the last sync.

use super::layout::{META_BYTES, SEQ_MAX, Superblock, crc32c, get_u32};
use super::nvm::{NvmConfig, NvmParts, NvmStore, Stage};
use super::nvm_layout::{
    HEADER_BYTES, HeaderState, MARK_AT, MARK_BYTES, NVM_MAGIC, NvmGeometry, NvmHeader, merge,
};
use super::nvm_lost::{restore_range, unreadable};
use super::table::Map;
use super::{CorruptInfo, Recovered, RecoveredEntry, SeqSource, StoreError};
use crate::io::{Io, IoOperation, Mapping, PAGE_BYTES, run_alone};
use layby_types::{BlockKey, Seq, Slot};

fn map(io: &mut dyn Io, config: &NvmConfig) -> Result<Box<dyn Mapping>, StoreError> {
    io.map(config.region.disk).map_err(|error| StoreError::Io {
        disk: io.disk_name(config.region.disk).to_owned(),
        offset: config.region.base,
        errno: error.errno,
    })
}

pub(super) fn sync(io: &mut dyn Io, config: &NvmConfig) -> Result<(), StoreError> {
    let operation = IoOperation::Sync { disk: config.region.disk };
    run_alone(io, operation).map(drop).map_err(|error| StoreError::Io {
        disk: io.disk_name(config.region.disk).to_owned(),
        offset: config.region.base,
        errno: error.errno,
    })
}

fn too_small(io: &dyn Io, config: &NvmConfig) -> StoreError {
    let region = &config.region;
    let there = io.disk_length(region.disk).saturating_sub(region.base);
    StoreError::TooSmall {
        disk: io.disk_name(region.disk).to_owned(),
        length: region.length.min(there),
        minimum: NvmGeometry::length_min(region.block_size),
    }
}

/// See [`NvmStore::format`].
pub(super) fn format(io: &mut dyn Io, config: &NvmConfig, instance: u64) -> Result<(), StoreError> {
    let region = &config.region;
    let fits = region.base.saturating_add(region.length) <= io.disk_length(region.disk);
    let plan = NvmGeometry::plan(region.length, region.block_size).filter(|_| fits);
    let Some(geometry) = plan else { return Err(too_small(io, config)) };
    let mut mapping = map(io, config)?;
    let block = region.block_size.len();
    let zeros = vec![0; block];
    for index in 0..geometry.data_first {
        let at = region.base + u64::from(index) * block as u64;
        mapping.write(at, &zeros);
        mapping.persist(at, block);
    }
    restore(io, config, &mut *mapping, geometry.data_first)?;
    sync(io, config)?;
    let mut page = vec![0; META_BYTES];
    Superblock {
        magic: NVM_MAGIC,
        identity: config.identity,
        instance,
        block_bytes: geometry.block_bytes,
        base: region.base,
        length: region.length,
        slot_count: geometry.slot_count,
        geometry: geometry.to_fields(),
    }
    .encode(&mut page);
    mapping.write(region.base, &page);
    mapping.persist(region.base, page.len());
    restore(io, config, &mut *mapping, 1)?;
    sync(io, config)
}

/// Has the device take what was written into lost pages of the first blocks.
fn restore(
    io: &dyn Io,
    config: &NvmConfig,
    mapping: &mut dyn Mapping,
    blocks: u32,
) -> Result<(), StoreError> {
    let region = config.region;
    let length = blocks as usize * region.block_size.len();
    restore_range(mapping, region.base, length).map_err(|(offset, error)| StoreError::Io {
        disk: io.disk_name(region.disk).to_owned(),
        offset,
        errno: error.errno,
    })
}

/// See [`NvmStore::open`].
pub(super) fn open(
    io: &mut dyn Io,
    config: NvmConfig,
    seqs: SeqSource,
) -> Result<(NvmStore, Recovered), StoreError> {
    let region = config.region;
    if region.base.saturating_add(region.length) > io.disk_length(region.disk) {
        return Err(too_small(io, &config));
    }
    sync(io, &config)?;
    let disk_name = io.disk_name(region.disk).to_owned();
    let mut mapping = map(io, &config)?;
    if !region.base.is_multiple_of(PAGE_BYTES) {
        // A lost page would be another region's as well.
        mapping.end_below(u64::MAX);
    }
    let page = mapping.bytes(region.base, META_BYTES);
    let superblock = Superblock::decode(page, NVM_MAGIC, &disk_name, region.base);
    if let Some(page) = mapping.lost_pages(region.base, META_BYTES).first() {
        return Err(StoreError::Corrupt(unreadable(&disk_name, *page)));
    }
    let superblock = superblock?;
    superblock.matches(&region, &config.identity, &disk_name)?;
    let Superblock { block_bytes, slot_count, length, geometry, instance, .. } = superblock;
    let Some(geometry) = NvmGeometry::from_fields(geometry, block_bytes, slot_count, length) else {
        return Err(StoreError::Mismatch {
            disk: disk_name,
            offset: region.base,
            what: "geometry",
            stored: superblock.geometry[0].into(),
            expected: 0,
        });
    };
    let mut store =
        NvmStore::assemble(NvmParts { config, geometry, instance, disk_name, seqs, mapping });
    let mut recovered = Recovered { clean_shutdown: false, ..Recovered::default() };
    store.recover(&mut recovered)?;
    store.end_for_structures();
    store.seqs.raise(recovered.seq_next);
    Ok((store, recovered))
}

impl NvmStore {
    fn recover(&mut self, recovered: &mut Recovered) -> Result<(), StoreError> {
        self.heal(recovered)?;
        let mark = self.marks().map(|[first, second]| {
            // The next mark leaves the higher one as it is.
            self.mark_copy = usize::from(first > second);
            first.max(second)
        });
        recovered.seq_next = Seq(mark.unwrap_or(Seq(0)).0 + 1);
        if mark.is_none() && recovered.damaged.iter().all(|info| info.offset != self.mark_at()) {
            recovered.damaged.push(self.damaged_mark());
        }
        let mut found: Vec<(NvmHeader, u32)> = Vec::new();
        for physical in 0..self.geometry.physical {
            match self.judge(physical, mark, recovered)? {
                Judged::Free => self.free_slots.push(physical),
                Judged::Discard => {
                    self.clear(physical);
                    self.retire(physical, Stage::Cleared { sync: 1 });
                }
                Judged::Keep(header) => found.push((header, physical)),
                Judged::Undecided => {
                    recovered.undecided = Some(SEQ_MAX);
                    self.undecided.push(physical);
                }
            }
        }
        self.free_slots.reverse();
        self.settle(found, recovered);
        Ok(())
    }

    fn mark_at(&self) -> u64 {
        self.config.region.base + u64::from(self.geometry.block_bytes)
    }

    /// Neither copy of the mark is sound, and power loss left neither so.
    fn damaged_mark(&self) -> CorruptInfo {
        let stored = get_u32(self.mapping.bytes(self.mark_at() + 8, 4), 0);
        let length = MARK_AT[1] + MARK_BYTES as u64;
        CorruptInfo {
            disk: self.disk_name.clone(),
            offset: self.mark_at(),
            length,
            what: "NVM mark",
            slot: None,
            key: None,
            stored,
            computed: 0,
        }
    }

    /// Names the copies of a header that changed at rest.
    fn note_damage(&self, physical: u32, states: [HeaderState; 2], recovered: &mut Recovered) {
        let ats = [self.geometry.copy_at(physical), self.geometry.header_at(physical)];
        for (state, at) in states.into_iter().zip(ats) {
            let HeaderState::Damaged(stored, computed) = state else { continue };
            recovered.damaged.push(CorruptInfo {
                disk: self.disk_name.clone(),
                offset: self.config.region.base + at,
                length: HEADER_BYTES,
                what: "NVM slot header",
                slot: None,
                key: None,
                stored,
                computed,
            });
        }
    }

    fn judge(
        &mut self,
        physical: u32,
        mark: Option<Seq>,
        recovered: &mut Recovered,
    ) -> Result<Judged, StoreError> {
        recovered.bytes_scanned += 2 * HEADER_BYTES;
        let states = self.header_states(physical);
        self.note_damage(physical, states, recovered);
        let header = match merge(states[1], states[0]) {
            HeaderState::Free => return Ok(Judged::Free),
            HeaderState::Sound(header) => header,
            HeaderState::Torn => {
                let is_damaged = states.iter().any(|it| matches!(it, HeaderState::Damaged(..)));
                recovered.torn += u64::from(!is_damaged);
                return Ok(Judged::Discard);
            }
            HeaderState::Damaged(..) if !self.config.is_strict => return Ok(Judged::Undecided),
            HeaderState::Damaged(..) => {
                let info = recovered.damaged.pop().expect("both copies were noted");
                return Err(StoreError::Corrupt(info));
            }
        };
        if states[0] != states[1] {
            self.write_header(physical, &header);
        }
        recovered.seq_next = recovered.seq_next.max(Seq(header.seq.0.saturating_add(1)));
        if header.borrowed {
            return Ok(Judged::Discard);
        }
        let length = self.geometry.block_bytes as usize;
        if mark.is_some_and(|mark| header.seq > mark) {
            recovered.bytes_scanned += length as u64;
            let is_sound =
                crc32c(self.bytes(self.geometry.data_at(physical), length)) == header.crc;
            let lost = self.lost_data(physical);
            // On persistent memory the data was durable before its header was written.
            if !is_sound && lost.is_empty() && !self.flushes() {
                recovered.torn += 1;
                return Ok(Judged::Discard);
            }
            let infos = lost.into_iter().map(|page| unreadable(&self.disk_name, page));
            recovered.damaged.extend(infos);
        }
        Ok(Judged::Keep(header))
    }

    /// Two slots exchange what they hold, during a start.
    pub(crate) fn exchange(&mut self, one: Slot, other: Slot) {
        self.slots.swap(one.0 as usize, other.0 as usize);
    }

    /// Gives slots to the newest copies, dirty ones first, and retires the others, oldest first.
    fn settle(&mut self, mut found: Vec<(NvmHeader, u32)>, recovered: &mut Recovered) {
        found.sort_unstable_by_key(|(header, physical)| (header.seq, *physical));
        let mut newest: Map<BlockKey, u32> = Map::default();
        for (header, physical) in &found {
            newest.insert(header.key, *physical);
        }
        let (mut winners, losers): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|(header, physical)| newest[&header.key] == *physical);
        for (_, physical) in losers {
            self.retire(physical, Stage::Held { sync: 0, forgets: 0 });
        }
        winners.sort_by_key(|(header, _)| (!header.dirty, header.key));
        self.slots.resize(self.slots.len().max(winners.len()), super::nvm::EMPTY);
        for (index, (header, physical)) in winners.into_iter().enumerate() {
            self.slots[index] = physical;
            let NvmHeader { key, seq, dirty, .. } = header;
            recovered.entries.push(RecoveredEntry { slot: Slot(index as u32), key, seq, dirty });
        }
    }
}

enum Judged {
    Free,
    Discard,
    /// Neither the header nor its copy says what the slot holds.
    Undecided,
    Keep(NvmHeader),
}
