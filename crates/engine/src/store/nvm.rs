//! The NVM level's store: slots in a mapping, written out of place, each with a header of its own.
//!
//! How: a store takes a free physical slot, writes data, then the header, whose first word commits
//! it. The physical slot that it supersedes is retired once the new one is durable. A mapping that
//! needs cache flushes is durable at once; one of a page-cached file joins a group sync, one in
//! flight, the next covering all that came meanwhile.
//! Invariant (R2): a header is cleared only when every older copy of its block is durably gone:
//! older copies here leave the retiring list first, older log records are dead once the forgets
//! issued before the eviction are durable. A slot is reused only after its clearing is durable.
//! Cost: 4 bytes of memory per slot, a header of twice 32 bytes per block, 1/32 of the slots spare.
//! Not for: devices without a mapping. Pages that the device cannot return are in `nvm_lost`.

use super::layout::crc32c;
use super::nvm_layout::{HEADER_BYTES, HeaderState, NvmGeometry, NvmHeader, merge};
use super::nvm_lent::{Copies, Delayed};
use super::nvm_mark::MarkDelay;
use super::nvm_pages::ChangedPages;
use super::table::Set;
use super::{
    CorruptInfo, Recovered, Region, SeqSource, StoreError, StoreEvent, StoreIdentity, Ticket,
    UNREADABLE_PAGE,
};
use crate::io::{DiskId, Io, IoDone, IoOperation, Mapping, OperationKind, Persistence, Token};
use layby_types::{BlockKey, BlockSize, ErrorKind, Nanos, Seq, Slot};
use std::collections::VecDeque;

/// A logical slot without a block.
pub(super) const EMPTY: u32 = u32::MAX;

/// Settings of an NVM store.
#[derive(Clone, Debug)]
pub struct NvmConfig {
    /// Where.
    pub region: Region,
    /// Whose.
    pub identity: StoreIdentity,
    /// Do not open where a header is damaged beyond help.
    pub is_strict: bool,
    /// The top byte of every token, by which the shard routes.
    pub token_tag: u8,
}

/// Slots that an NVM store in a region of `length` bytes offers; 0 when it is too small.
#[must_use]
pub fn nvm_slots_for(length: u64, block_size: BlockSize) -> u32 {
    NvmGeometry::plan(length, block_size).map_or(0, |plan| plan.slot_count)
}

/// Why a block leaves the level; see the duties in the parent module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// A durable record in the log, or a durable tombstone, is newer.
    Superseded,
    /// It is clean and durable below, and nowhere else; `log.forget` was called for it.
    Evicted {
        /// `log.forgets_issued()` after that call; 0 without a log.
        forgets_issued: u64,
    },
}

/// How much a sync makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncScope {
    /// Every store placed so far, and ended before the sync is. Stores that wait for room are not
    /// covered; a store that waits with a part of it placed is waited for.
    Stores,
    /// Besides, every `free` so far: its header is gone for good. Waits for forgets.
    Frees,
    /// As `Frees`, but for what waits for a forget that is not durable. For recovery alone: what it
    /// evicts is its block's newest version, and nobody writes a newer one before recovery has
    /// ended, so that it may come back; and there may be no room in the log for a forget before
    /// recovery's checkpoint is complete.
    FreesKnown,
}

/// Running totals, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmCounters {
    /// Bytes written: data, headers with their copies, marks. Where a sync writes them, whole
    /// pages, each once per sync.
    pub bytes_written: u64,
    /// Syncs of the mapping's disk.
    pub syncs: u64,
    /// Stores that had to wait for a reusable slot.
    pub stores_delayed: u64,
    /// Reads that failed their checksum.
    pub corrupt_blocks: u64,
    /// Slots that are not used since the device takes no page of theirs.
    pub slots_left_out: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its header must stay until this sync and these forgets are durable.
    Held { sync: u64, forgets: u64 },
    /// Its header is cleared; reusable when this sync is done.
    Cleared { sync: u64 },
}

/// A physical slot on its way to being free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retiring {
    pub(super) id: u64,
    pub(super) physical: u32,
    /// `None` where the header was not sound.
    pub(super) key: Option<BlockKey>,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy, Debug)]
struct FreesWaiter {
    upto: u64,
    ticket: Ticket,
    /// Slots that wait for forgets are waited for, too.
    forgets: bool,
}

#[derive(Debug)]
enum Waiter {
    Store(Ticket),
    Sync(Ticket),
    /// A store that was refused when these of its slots held the new version already.
    Refused(Ticket, Vec<Slot>, ErrorKind),
}

/// The NVM slots of one shard. See the module's header.
pub struct NvmStore {
    pub(super) config: NvmConfig,
    pub(super) geometry: NvmGeometry,
    pub(super) instance: u64,
    pub(super) disk_name: String,
    pub(super) seqs: SeqSource,
    pub(super) mapping: Box<dyn Mapping>,
    pub(super) slots: Vec<u32>,
    pub(super) free_slots: Vec<u32>,
    /// Slots of which nobody knows what they hold: proof of that, until it is kept elsewhere.
    pub(super) undecided: Vec<u32>,
    pub(super) retiring: Vec<Retiring>,
    pub(super) retired_total: u64,
    /// Something may have become possible for the retiring list.
    pub(super) stirred: bool,
    pub(super) delayed: VecDeque<Delayed>,
    /// Waits for this sync.
    waiters: Vec<(u64, Waiter)>,
    /// Syncs that wait for the first delayed store, since a part of it is placed.
    behind: Vec<Ticket>,
    /// Waits until no retiring slot has an id up to this.
    frees_waiters: Vec<FreesWaiter>,
    sync_started: u64,
    sync_done: u64,
    sync_in_flight: bool,
    /// The seq that the sync in flight covers.
    sync_seq: Seq,
    /// The sync that covers the last change.
    changed: u64,
    /// A sync failed over changes; none can vouch for them any more.
    pub(super) lost: bool,
    pub(super) mark_copy: usize,
    pub(super) mark_delay: MarkDelay,
    forgets_durable: u64,
    forgets_asked: u64,
    pub(super) events: Vec<StoreEvent>,
    failures: super::failures::Failures,
    /// What the next sync writes; none where no sync does.
    pages: Option<ChangedPages>,
    pub(super) counters: NvmCounters,
}

/// What recovery hands to the store.
pub(super) struct NvmParts {
    pub(super) config: NvmConfig,
    pub(super) geometry: NvmGeometry,
    pub(super) instance: u64,
    pub(super) disk_name: String,
    pub(super) seqs: SeqSource,
    pub(super) mapping: Box<dyn Mapping>,
}

impl NvmStore {
    /// Makes an empty store in the region, durable when done. `instance` must differ from that of
    /// any store that was here before (draw it).
    ///
    /// # Errors
    /// [`StoreError::TooSmall`], or the device's failure.
    pub fn format(io: &mut dyn Io, config: &NvmConfig, instance: u64) -> Result<(), StoreError> {
        super::nvm_recover::format(io, config, instance)
    }

    /// Opens a store and recovers its contents. No other operation may be in flight on `io`.
    /// Raises `seqs` above every seq found.
    ///
    /// # Errors
    /// Another node's or a damaged superblock; nothing is written in that case.
    pub fn open(
        io: &mut dyn Io,
        config: NvmConfig,
        seqs: SeqSource,
    ) -> Result<(Self, Recovered), StoreError> {
        super::nvm_recover::open(io, config, seqs)
    }

    /// Logical slots of this store.
    #[must_use]
    pub fn slot_count(&self) -> u32 {
        self.geometry.slot_count
    }
    /// The disk it lies on.
    #[must_use]
    pub fn disk(&self) -> DiskId {
        self.config.region.disk
    }
    /// Running totals.
    #[must_use]
    pub fn counters(&self) -> NvmCounters {
        self.counters
    }
    /// Moves what has happened to the end of `events`.
    pub fn take_events(&mut self, events: &mut Vec<StoreEvent>) {
        events.append(&mut self.events);
    }
    /// True when nothing waits; slots may still be retiring.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.delayed.is_empty()
            && self.waiters.is_empty()
            && self.frees_waiters.is_empty()
            && !self.sync_in_flight
    }

    /// Stores blocks; each entry is slot, block and whether it is dirty. Ends with `Stored` at
    /// once, or with `durable` when durable. Waits for room when too many slots are retiring.
    pub fn store(
        &mut self,
        io: &mut dyn Io,
        ticket: Ticket,
        entries: &[(Slot, BlockKey, bool)],
        data: &[u8],
        durable: bool,
    ) {
        self.store_as(io, ticket, entries, data, durable, Copies::Own);
    }

    pub(super) fn store_as(
        &mut self,
        io: &mut dyn Io,
        ticket: Ticket,
        entries: &[(Slot, BlockKey, bool)],
        data: &[u8],
        durable: bool,
        copies: Copies,
    ) {
        let (block, borrowed) = (self.geometry.block_bytes as usize, copies != Copies::Own);
        assert!(!entries.is_empty() && data.len() == entries.len() * block, "a block per entry");
        let within = |(slot, ..): &(Slot, _, _)| slot.0 < self.geometry.slot_count;
        assert!(entries.iter().all(within), "a slot of the level");
        self.reclaim();
        let mut placed = 0;
        if self.delayed.is_empty() && self.free_slots.len() >= entries.len() {
            let blocks = entries.iter().zip(data.chunks_exact(block));
            placed = blocks.take_while(|(entry, it)| self.place(**entry, it, borrowed)).count();
        }
        if placed == entries.len() || copies == (Copies::Lent { may_wait: false }) {
            self.end_store(ticket, durable);
        } else {
            self.counters.stores_delayed += 1;
            let (entries, data) = (entries.to_vec(), data.to_vec());
            self.delayed.push_back(Delayed { ticket, entries, data, placed, durable, borrowed });
        }
        self.pump(io);
    }

    /// The bytes of a slot, checked. An empty slot is a bug of the caller.
    ///
    /// # Errors
    /// Where the bytes lie and how they differ.
    pub fn read(&self, slot: Slot) -> Result<&[u8], CorruptInfo> {
        let physical = self.slots[slot.0 as usize];
        assert!(physical != EMPTY, "{slot:?} holds nothing");
        self.check(slot, self.header(physical))
    }

    /// The bytes of a slot that has this header.
    pub(super) fn check(&self, slot: Slot, header: HeaderState) -> Result<&[u8], CorruptInfo> {
        let physical = self.slots[slot.0 as usize];
        let bytes = self.bytes(self.geometry.data_at(physical), self.geometry.block_bytes as usize);
        let (key, stored, computed) = match header {
            HeaderState::Sound(header) if header.crc == crc32c(bytes) => return Ok(bytes),
            HeaderState::Sound(header) => (Some(header.key), header.crc, crc32c(bytes)),
            HeaderState::Damaged(stored, computed) => (None, stored, computed),
            HeaderState::Free | HeaderState::Torn => (None, 0, crc32c(bytes)),
        };
        let offset = self.config.region.base
            + match key {
                Some(_) => self.geometry.data_at(physical),
                None => self.geometry.header_at(physical),
            };
        let what = match key {
            Some(_) if !self.lost_data(physical).is_empty() => UNREADABLE_PAGE,
            Some(_) => "NVM data block",
            None => "NVM slot header",
        };
        let (disk, length) = (self.disk_name.clone(), bytes.len() as u64);
        Err(CorruptInfo { disk, offset, length, what, slot: Some(slot), key, stored, computed })
    }

    /// Whether the slot has bytes: a store into it was placed and it was not freed since.
    #[must_use]
    pub fn holds(&self, slot: Slot) -> bool {
        self.slots[slot.0 as usize] != EMPTY
    }

    /// Whether `count` blocks could be placed at once, without waiting for retiring slots.
    #[must_use]
    pub fn has_room(&self, count: usize) -> bool {
        self.delayed.is_empty() && self.free_slots.len() >= count
    }

    /// Bytes of memory held for slots.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        (self.slots.capacity() + self.free_slots.capacity()) * size_of::<u32>()
            + self.retiring.capacity() * size_of::<Retiring>()
    }

    /// The block leaves the level.
    pub fn free(&mut self, slot: Slot, how: Freed) {
        self.give_up(slot);
        let physical = core::mem::replace(&mut self.slots[slot.0 as usize], EMPTY);
        assert!(physical != EMPTY, "{slot:?} holds nothing");
        let forgets = match how {
            Freed::Superseded => 0,
            Freed::Evicted { forgets_issued } => forgets_issued,
        };
        self.retire(physical, Stage::Held { sync: 0, forgets });
    }

    /// The backing store now holds the slot's bytes durably; noted lazily.
    pub fn set_clean(&mut self, slot: Slot) {
        self.mark(slot, false);
    }

    /// The backing store may no longer hold the slot's bytes; durable with the next sync.
    pub fn set_dirty(&mut self, slot: Slot) {
        self.mark(slot, true);
    }

    fn mark(&mut self, slot: Slot, dirty: bool) {
        let physical = self.slots[slot.0 as usize];
        assert!(physical != EMPTY, "{slot:?} holds nothing");
        if let HeaderState::Sound(header) = self.header(physical)
            && header.dirty != dirty
        {
            let bytes = NvmHeader { dirty, ..header }.encode(self.instance, physical);
            for at in self.header_ats(physical) {
                self.write_at(at, &bytes[..8]);
            }
            self.changed = self.sync_started + 1;
        }
    }

    /// Frees the slots of which nobody knows what they hold, since it is durable elsewhere which
    /// blocks are lost by that. They are gone for good with the next sync of frees.
    pub(crate) fn drop_undecided(&mut self) {
        for physical in core::mem::take(&mut self.undecided) {
            self.clear(physical);
            self.retire(physical, Stage::Cleared { sync: self.changed });
        }
    }

    /// Makes durable what `scope` says; ends with `Synced`.
    pub fn sync(&mut self, io: &mut dyn Io, ticket: Ticket, scope: SyncScope) {
        self.mark_at_once();
        match scope {
            SyncScope::Stores if self.delayed.front().is_some_and(|store| store.placed > 0) => {
                self.behind.push(ticket);
            }
            SyncScope::Stores => self.wait(self.changed, Waiter::Sync(ticket)),
            SyncScope::Frees | SyncScope::FreesKnown => self.frees_waiters.push(FreesWaiter {
                upto: self.retired_total,
                ticket,
                forgets: scope == SyncScope::Frees,
            }),
        }
        self.stirred = true;
        self.pump(io);
    }

    /// Whether a sync of the device is under way, whose end may free slots.
    pub(crate) fn is_syncing(&self) -> bool {
        self.sync_in_flight
    }

    /// Whether a sync that was asked for waits for slots to be freed, and not for the device alone.
    pub(crate) fn awaits_slots(&self) -> bool {
        !self.behind.is_empty() || !self.frees_waiters.is_empty()
    }

    /// Nobody can say when slots will be freed: stores that wait for one end with an error rather
    /// than never. What a store has placed until then a start would find: that is durable before it
    /// ends, and its slots are told with `Written`.
    pub fn refuse_delayed(&mut self, kind: ErrorKind) {
        for store in core::mem::take(&mut self.delayed) {
            let placed = store.entries[..store.placed].iter().map(|(slot, ..)| *slot);
            let waiter = Waiter::Refused(store.ticket, placed.collect(), kind);
            match store.placed {
                0 => self.answer(waiter, Ok(())),
                _ => self.wait(self.changed, waiter),
            }
        }
        self.stirred = true;
        for waiter in core::mem::take(&mut self.frees_waiters) {
            self.answer(Waiter::Sync(waiter.ticket), Err(kind));
        }
        self.forgets_asked = 0;
        for ticket in core::mem::take(&mut self.behind) {
            self.wait(self.changed, Waiter::Sync(ticket));
        }
    }

    /// That operations of the kind end well is not told any more, until one fails again.
    pub(crate) fn forgive(&mut self, operation: OperationKind) {
        self.failures.forgive(operation);
    }

    /// Takes the end of a sync, the only operation of this store.
    pub fn on_io(&mut self, io: &mut dyn Io, done: IoDone) {
        assert!(core::mem::take(&mut self.sync_in_flight), "an end belongs to a sync in flight");
        if let Some(buffer) = done.buffer {
            io.recycle(buffer);
        }
        let error = done.result.err();
        self.failures.note_end(OperationKind::Sync, (0, 0), error, &mut self.events);
        if done.result.is_ok() {
            self.sync_done = self.sync_started;
            self.write_mark(self.sync_seq);
            self.mark_delay.on_synced();
        } else {
            self.lost = true;
        }
        self.stirred = true;
        self.pump(io);
    }

    /// Background work; `forgets_durable` is the log's count (`u64::MAX` without a log).
    pub fn on_tick(&mut self, io: &mut dyn Io, now: Nanos, forgets_durable: u64) {
        if self.mark_delay.is_due(now) {
            self.mark_at_once();
        }
        self.stirred |= forgets_durable > self.forgets_durable;
        self.forgets_durable = self.forgets_durable.max(forgets_durable);
        self.pump(io);
    }

    /// When `on_tick` is wanted next; it is also wanted whenever forgets have become durable.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        // A store that lost its trust moves no slot any more, however often it is asked.
        match (self.lost, self.stirred) {
            (true, _) => Nanos::NEVER,
            (false, true) => Nanos::ZERO,
            (false, false) => self.mark_delay.deadline(),
        }
    }
}

impl NvmStore {
    pub(super) fn assemble(parts: NvmParts) -> Self {
        let NvmParts { config, geometry, instance, disk_name, seqs, mapping } = parts;
        let is_synced = mapping.persistence() == Persistence::Sync;
        let pages = is_synced.then(|| ChangedPages::new(&config.region));
        NvmStore {
            config,
            geometry,
            instance,
            disk_name,
            seqs,
            mapping,
            slots: vec![EMPTY; geometry.slot_count as usize],
            free_slots: Vec::new(),
            undecided: Vec::new(),
            retiring: Vec::new(),
            retired_total: 0,
            stirred: true,
            delayed: VecDeque::new(),
            waiters: Vec::new(),
            behind: Vec::new(),
            frees_waiters: Vec::new(),
            sync_started: 0,
            sync_done: 0,
            sync_in_flight: false,
            sync_seq: Seq(0),
            changed: 0,
            lost: false,
            mark_copy: 0,
            mark_delay: MarkDelay::default(),
            forgets_durable: 0,
            forgets_asked: 0,
            events: Vec::new(),
            failures: Default::default(),
            pages,
            counters: NvmCounters::default(),
        }
    }

    /// Stores are durable at once, in order.
    pub(super) fn flushes(&self) -> bool {
        self.mapping.persistence() != Persistence::Sync
    }

    /// Writes bytes at an offset of the disk, in order, and counts them.
    pub(super) fn write_at(&mut self, at: u64, bytes: &[u8]) {
        self.mapping.write(at, bytes);
        self.mapping.persist(at, bytes.len());
        self.counters.bytes_written += match &mut self.pages {
            Some(pages) => pages.change(at, bytes.len()),
            None => bytes.len() as u64,
        };
    }

    pub(super) fn bytes(&self, at: u64, length: usize) -> &[u8] {
        self.mapping.bytes(self.config.region.base + at, length)
    }

    pub(super) fn header(&self, physical: u32) -> HeaderState {
        let [copy, header] = self.header_states(physical);
        merge(header, copy)
    }

    /// The copy and the header themselves.
    pub(super) fn header_states(&self, physical: u32) -> [HeaderState; 2] {
        [self.geometry.copy_at(physical), self.geometry.header_at(physical)].map(|at| {
            let bytes = self.bytes(at, HEADER_BYTES as usize);
            NvmHeader::decode(bytes, self.instance, physical)
        })
    }

    /// Where the copy and the header begin on the disk, in the order of their writing.
    pub(super) fn header_ats(&self, physical: u32) -> [u64; 2] {
        [self.geometry.copy_at(physical), self.geometry.header_at(physical)]
            .map(|at| self.config.region.base + at)
    }

    /// Writes a header and its copy; the word that commits each goes last.
    pub(super) fn write_header(&mut self, physical: u32, header: &NvmHeader) {
        let bytes = header.encode(self.instance, physical);
        for at in self.header_ats(physical) {
            self.write_at(at + 8, &bytes[8..]);
            self.write_at(at, &bytes[..8]);
        }
        self.changed = self.sync_started + 1;
    }

    /// Writes one block into a free slot and retires the one that it supersedes. False without a
    /// free slot.
    fn place(
        &mut self,
        (slot, key, dirty): (Slot, BlockKey, bool),
        data: &[u8],
        borrowed: bool,
    ) -> bool {
        let Some(physical) = self.fill_slot(data) else { return false };
        let seq = self.seqs.take();
        self.mark_delay.on_placed(seq);
        let header = NvmHeader { key, seq, crc: crc32c(data), dirty, borrowed };
        self.write_header(physical, &header);
        let old = core::mem::replace(&mut self.slots[slot.0 as usize], physical);
        if old != EMPTY {
            self.retire(old, Stage::Held { sync: self.changed, forgets: 0 });
        }
        true
    }

    pub(super) fn retire(&mut self, physical: u32, stage: Stage) {
        let key = match self.header(physical) {
            HeaderState::Sound(header) => Some(header.key),
            _ => None,
        };
        self.retired_total += 1;
        self.retiring.push(Retiring { id: self.retired_total, physical, key, stage });
        self.stirred = true;
    }

    /// Zeroes a header, then its copy; the word that commits each goes first.
    pub(super) fn clear(&mut self, physical: u32) {
        for at in self.header_ats(physical).into_iter().rev() {
            self.write_at(at, &[0; 8]);
            self.write_at(at + 8, &[0; HEADER_BYTES as usize - 8]);
        }
        self.changed = self.sync_started + 1;
    }

    fn end_store(&mut self, ticket: Ticket, durable: bool) {
        if durable {
            self.wait(self.changed, Waiter::Store(ticket));
        } else {
            self.events.push(StoreEvent::Stored { ticket, result: Ok(()) });
        }
    }

    /// Answers when sync number `sync` is done, at once if it is or none is needed.
    fn wait(&mut self, sync: u64, waiter: Waiter) {
        if self.flushes() || (sync <= self.sync_done && !self.lost) {
            self.answer(waiter, Ok(()));
        } else {
            self.waiters.push((sync, waiter));
        }
    }

    fn answer(&mut self, waiter: Waiter, result: Result<(), ErrorKind>) {
        let event = match waiter {
            Waiter::Store(ticket) => StoreEvent::Stored { ticket, result },
            Waiter::Sync(ticket) => StoreEvent::Synced { ticket, result },
            Waiter::Refused(ticket, slots, kind) => {
                if result.is_ok() && !slots.is_empty() {
                    self.events.push(StoreEvent::Written { ticket, slots });
                }
                StoreEvent::Stored { ticket, result: Err(kind) }
            }
        };
        self.events.push(event);
    }

    /// Does all that can be done now.
    /// Flips a bit of the byte at an offset of the device, as rot or another program may.
    #[cfg(test)]
    pub(crate) fn rot(&mut self, at: u64) {
        let byte = self.mapping.bytes(at, 1)[0] ^ 1;
        self.mapping.write(at, &[byte]);
    }

    fn pump(&mut self, io: &mut dyn Io) {
        self.answer_waiters();
        loop {
            self.reclaim();
            self.answer_frees();
            if !self.place_delayed() {
                break;
            }
        }
        if self.lost {
            // What has just been placed, or found no slot, waits for nothing.
            self.answer_waiters();
        }
        self.ask_forgets();
        self.start_sync(io);
        if !self.sync_in_flight && !self.lost {
            self.mark_delay.wait(self.flushes(), io.now());
        }
    }

    fn answer_waiters(&mut self) {
        let (lost, done) = (self.lost, self.sync_done);
        if lost {
            // No slot will be freed any more: what waits for one ends now rather than never.
            self.refuse_delayed(ErrorKind::Closed);
            let behind = core::mem::take(&mut self.behind);
            self.waiters.extend(behind.into_iter().map(|ticket| (0, Waiter::Sync(ticket))));
        }
        let waiters = core::mem::take(&mut self.waiters);
        for (sync, waiter) in waiters {
            if lost {
                self.answer(waiter, Err(ErrorKind::Closed));
            } else if sync <= done {
                self.answer(waiter, Ok(()));
            } else {
                self.waiters.push((sync, waiter));
            }
        }
    }

    /// Moves retiring slots on: clears headers that may go, frees slots whose clearing is durable.
    fn reclaim(&mut self) {
        if !self.stirred || self.lost {
            return;
        }
        self.stirred = false;
        let flushes = self.flushes();
        let done = |sync: u64, store: &Self| flushes || sync <= store.sync_done;
        let mut older: Set<BlockKey> = Set::default();
        let mut list = core::mem::take(&mut self.retiring);
        list.retain_mut(|item| {
            let first = item.key.is_none_or(|key| !older.contains(&key));
            if let Stage::Held { sync, forgets } = item.stage
                && first
                && done(sync, self)
                && forgets <= self.forgets_durable
            {
                self.clear(item.physical);
                item.stage = Stage::Cleared { sync: self.changed };
            }
            let gone = matches!(item.stage, Stage::Cleared { sync } if done(sync, self));
            if gone {
                self.free_slots.push(item.physical);
            } else {
                older.extend(item.key);
            }
            !gone
        });
        self.retiring = list;
    }

    fn answer_frees(&mut self) {
        if self.frees_waiters.is_empty() {
            return;
        }
        for waiter in core::mem::take(&mut self.frees_waiters) {
            let FreesWaiter { upto, ticket, forgets } = waiter;
            if self.lost {
                self.answer(Waiter::Sync(ticket), Err(ErrorKind::Closed));
            } else if self.oldest_retiring(forgets) > upto {
                self.wait(self.changed, Waiter::Sync(ticket));
            } else {
                self.frees_waiters.push(waiter);
            }
        }
    }

    /// The id of the slot that has been retiring longest, of those that wait for no forget or of
    /// all; beyond every id where there is none.
    fn oldest_retiring(&self, forgets: bool) -> u64 {
        let durable = self.forgets_durable;
        let counts = |item: &&Retiring| match item.stage {
            Stage::Held { forgets: wanted, .. } => forgets || wanted <= durable,
            Stage::Cleared { .. } => true,
        };
        self.retiring.iter().filter(counts).map(|item| item.id).min().unwrap_or(u64::MAX)
    }

    /// Places blocks of delayed stores; true when any found room.
    fn place_delayed(&mut self) -> bool {
        let block = self.geometry.block_bytes as usize;
        let mut any = false;
        while let Some(mut store) = self.delayed.pop_front() {
            while store.placed < store.entries.len() {
                let at = store.placed * block;
                let entry = store.entries[store.placed];
                if !self.place(entry, &store.data[at..at + block], store.borrowed) {
                    break;
                }
                store.placed += 1;
                any = true;
            }
            if store.placed < store.entries.len() {
                self.delayed.push_front(store);
                break;
            }
            self.end_store(store.ticket, store.durable);
            for ticket in core::mem::take(&mut self.behind) {
                self.wait(self.changed, Waiter::Sync(ticket));
            }
        }
        any
    }

    fn ask_forgets(&mut self) {
        if self.delayed.is_empty() && !self.frees_waiters.iter().any(|waiter| waiter.forgets) {
            return;
        }
        let wanted = self.retiring.iter().filter_map(|item| match item.stage {
            Stage::Held { forgets, .. } => Some(forgets),
            Stage::Cleared { .. } => None,
        });
        let wanted = wanted.max().unwrap_or(0);
        if wanted > self.forgets_durable.max(self.forgets_asked) {
            self.forgets_asked = wanted;
            self.events.push(StoreEvent::NeedForgets);
        }
    }

    fn start_sync(&mut self, io: &mut dyn Io) {
        let low = self.free_slots.len() < (self.geometry.physical as usize / 128).max(2);
        let pressed = low || !self.delayed.is_empty() || !self.frees_waiters.is_empty();
        let retiring = |item: &Retiring| match item.stage {
            Stage::Held { sync, .. } | Stage::Cleared { sync } => sync > self.sync_done,
        };
        let wanted = self.waiters.iter().any(|(sync, _)| *sync > self.sync_done)
            || (pressed && self.retiring.iter().any(retiring))
            || self.mark_delay.is_due(io.now());
        if !wanted || self.sync_in_flight || self.lost || self.flushes() {
            return;
        }
        self.sync_started += 1;
        self.sync_in_flight = true;
        if let Some(pages) = &mut self.pages {
            pages.begin_sync();
        }
        self.sync_seq = Seq(self.seqs.next().0 - 1);
        self.mark_delay.on_sync();
        self.counters.syncs += 1;
        let token = Token(u64::from(self.config.token_tag) << 56);
        io.submit(token, IoOperation::Sync { disk: self.config.region.disk });
    }
}
