//! One queue of a guest's disk: a split ring whose requests become calls.
//!
//! How: `virtio-queue` keeps the ring's indices and the event index; chains, requests and answers
//! are judged here. A request is marked in the in-flight region before the node carries it out, and
//! the mark goes after its answer is in the used ring, so that a node's next life repeats exactly
//! what the guest still waits for, in the order in which it was taken.
//! Invariant: a head is in the node's hands at most once; each is answered once.
//! Cost: a walk of the chain, one copy of the bytes.
//! Not for: knowing when to look; the engine does.

use super::chain::{Chain, Piece, Table, bytes_of, drop_front, pop_last};
use super::disk::SERIAL_BYTES;
use super::inflight::{Inflight, InflightError, QueueInflight};
use super::{DISCARD_SECTORS_MAX, GuestDisk, GuestRam, REQUEST_BYTES_MAX, SECTOR_BYTES};
use layby_types::{Call, CallFlags, ErrorKind, GuestRing, Operation, SessionError, Taken};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use virtio_bindings::bindings::virtio_blk as blk;
use virtio_bindings::bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Error as QueueError, Queue, QueueOwnedT, QueueT};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend};

/// Bytes of a request's head: type, priority, sector.
const HEAD_BYTES: u32 = 16;
/// Bytes that describe one range of a discard or zeroing.
const RANGE_BYTES: u64 = 16;

/// A ring as the monitor describes it.
#[derive(Clone, Debug)]
pub struct RingPlan {
    /// Which queue of the disk.
    pub index: u16,
    /// Entries; a power of two up to `QUEUE_SIZE_MAX`.
    pub entries: u16,
    /// The guest's address of the descriptors.
    pub descriptors: u64,
    /// Of the ring of available requests.
    pub available: u64,
    /// Of the ring of answers.
    pub used: u64,
    /// Where the next request is taken, where no in-flight region knows better.
    pub base: u16,
    /// Notifications are asked for by index.
    pub event_index: bool,
    /// The guest flushes; otherwise every write is durable before it is answered.
    pub guest_flushes: bool,
}

/// A request in the node's hands.
#[derive(Debug, Default)]
struct Held {
    is_held: bool,
    /// Where a read's bytes go.
    data: Vec<Piece>,
    status: GuestAddress,
    /// Where the next bytes go: piece, and bytes before it.
    cursor: (usize, u64),
}

/// See the file's header.
pub struct BlockRing {
    ram: Arc<GuestRam>,
    disk: Arc<GuestDisk>,
    queue: Queue,
    index: u16,
    guest_flushes: bool,
    inflight: Option<QueueInflight>,
    /// Heads that the node's last life owed, to be carried out first.
    owed: VecDeque<u16>,
    held: Vec<Held>,
    chain: Chain,
    /// The guest was asked for kicks.
    is_listening: bool,
    /// Something was answered since the last look at whether the guest wants to hear of it.
    has_answered: bool,
}

/// What a request came to.
enum Outcome {
    Call(Call),
    /// The status, and bytes written for the guest.
    Status(u32, u32),
}

const OK: Outcome = Outcome::Status(blk::VIRTIO_BLK_S_OK, 0);
const FAILED: Outcome = Outcome::Status(blk::VIRTIO_BLK_S_IOERR, 0);
const UNSUPPORTED: Outcome = Outcome::Status(blk::VIRTIO_BLK_S_UNSUPP, 0);

fn broken<T>(reason: &'static str) -> Result<T, SessionError> {
    Err(SessionError { reason })
}

const INFLIGHT_CUT: &str = "the in-flight region has lost its memory";
const GONE: SessionError = SessionError { reason: "a ring lies outside of the guest's memory" };

impl BlockRing {
    /// A ring in `ram`, going on where `inflight` says that the node's last life stopped.
    ///
    /// # Errors
    /// [`InflightError`] when the ring does not lie in the memory, or the region is not its own.
    pub fn new(
        ram: Arc<GuestRam>,
        disk: Arc<GuestDisk>,
        plan: &RingPlan,
        inflight: Option<&Inflight>,
    ) -> Result<BlockRing, InflightError> {
        let wrong = |error: QueueError| InflightError { cause: format!("a ring: {error}") };
        let mut queue = Queue::new(super::QUEUE_SIZE_MAX).map_err(wrong)?;
        queue.try_set_size(plan.entries).map_err(wrong)?;
        queue.try_set_desc_table_address(GuestAddress(plan.descriptors)).map_err(wrong)?;
        queue.try_set_avail_ring_address(GuestAddress(plan.available)).map_err(wrong)?;
        queue.try_set_used_ring_address(GuestAddress(plan.used)).map_err(wrong)?;
        queue.set_event_idx(plan.event_index);
        queue.set_ready(true);
        if !queue.is_valid(&ram.map) {
            return Err(InflightError { cause: GONE.reason.to_owned() });
        }
        let used = queue.used_idx(&ram.map, Ordering::Acquire).map_err(wrong)?.0;
        if ram.is_cut() {
            return Err(InflightError { cause: "the guest's memory was cut".to_owned() });
        }
        let mut region = inflight.map(|i| i.queue(plan.index, plan.entries)).transpose()?;
        let owed = region.as_mut().map(|region| region.recover(used));
        if region.as_ref().is_some_and(QueueInflight::is_cut) {
            return Err(InflightError { cause: INFLIGHT_CUT.to_owned() });
        }
        let base = owed.as_ref().map_or(plan.base, |owed| used.wrapping_add(owed.len() as u16));
        queue.set_next_used(used);
        queue.set_next_avail(base);
        let held = (0..plan.entries).map(|_| Held::default()).collect();
        Ok(BlockRing {
            ram,
            disk,
            queue,
            index: plan.index,
            guest_flushes: plan.guest_flushes,
            inflight: region,
            owed: owed.unwrap_or_default().into(),
            held,
            chain: Chain::default(),
            is_listening: true,
            has_answered: false,
        })
    }

    /// The next head: what is owed first, then what the guest made available. The second value says
    /// whether it is marked already.
    fn next_head(&mut self) -> Result<Option<(u16, bool)>, SessionError> {
        if let Some(head) = self.owed.pop_front() {
            return Ok(Some((head, true)));
        }
        let mut iter = match self.queue.iter(&self.ram.map) {
            Ok(iter) => iter,
            Err(QueueError::InvalidAvailRingIndex) => {
                return broken("the ring offers more requests than it has entries");
            }
            Err(_) => return Err(GONE),
        };
        Ok(iter.next().map(|chain| (chain.head_index(), false)))
    }

    /// Judges the request at `head`, whose pieces become the held ones.
    fn judge(&mut self, head: u16, payload: &mut Vec<u8>) -> Result<Outcome, SessionError> {
        let table =
            Table { address: GuestAddress(self.queue.desc_table()), entries: self.queue.size() };
        if head >= table.entries {
            return broken("the ring offers a request that its table does not have");
        }
        if self.held[usize::from(head)].is_held {
            return broken("the ring offers a request that was not answered yet");
        }
        self.chain.read(&self.ram.map, table, head)?;
        let Chain { readable, writable } = &mut self.chain;
        let Some(status) = pop_last(writable) else {
            return broken("a request has no room for its status");
        };
        let mut words = [0; HEAD_BYTES as usize];
        if !gather(&self.ram, readable, &mut words) || !drop_front(readable, HEAD_BYTES) {
            return broken("a request has no head, or none in the guest's memory");
        }
        let held = &mut self.held[usize::from(head)];
        held.status = status;
        held.cursor = (0, 0);
        std::mem::swap(&mut held.data, writable);
        let kind = u32::from_le_bytes(words[..4].try_into().expect("four bytes"));
        let sector = u64::from_le_bytes(words[8..].try_into().expect("eight bytes"));
        Ok(self.outcome(head, kind, sector, payload))
    }

    fn outcome(&mut self, head: u16, kind: u32, sector: u64, payload: &mut Vec<u8>) -> Outcome {
        match kind {
            blk::VIRTIO_BLK_T_IN => self.read(head, sector),
            blk::VIRTIO_BLK_T_OUT => self.write(head, sector, payload),
            blk::VIRTIO_BLK_T_FLUSH => Outcome::Call(self.call(head, Operation::Flush, 0, 0)),
            blk::VIRTIO_BLK_T_GET_ID => self.identify(head),
            blk::VIRTIO_BLK_T_DISCARD => self.erase(head, Operation::Trim),
            blk::VIRTIO_BLK_T_WRITE_ZEROES => self.erase(head, Operation::WriteZeroes),
            _ => UNSUPPORTED,
        }
    }

    /// Cookies carry the head, and the queue for whoever reads a log.
    fn call(&self, head: u16, operation: Operation, offset: u64, length: u64) -> Call {
        let changes =
            matches!(operation, Operation::Write | Operation::Trim | Operation::WriteZeroes);
        let flags = CallFlags { fua: changes && !self.guest_flushes, ..CallFlags::default() };
        let cookie = u64::from(self.index) << 16 | u64::from(head);
        Call { cookie, operation, offset, length, flags }
    }

    /// The first byte, where a range of sectors lies on the disk.
    fn range(&self, sector: u64, length: u64) -> Option<u64> {
        let sectors = length / SECTOR_BYTES;
        let end = sector.checked_add(sectors)?;
        let fits = length.is_multiple_of(SECTOR_BYTES) && end <= self.disk.sectors();
        fits.then(|| sector * SECTOR_BYTES)
    }

    fn read(&mut self, head: u16, sector: u64) -> Outcome {
        let data = &self.held[usize::from(head)].data;
        let length = bytes_of(data);
        match self.range(sector, length) {
            Some(_) if length == 0 => OK,
            Some(offset) if length <= REQUEST_BYTES_MAX && lie_within(&self.ram, data) => {
                Outcome::Call(self.call(head, Operation::Read, offset, length))
            }
            _ => FAILED,
        }
    }

    fn write(&mut self, head: u16, sector: u64, payload: &mut Vec<u8>) -> Outcome {
        let length = bytes_of(&self.chain.readable);
        match self.range(sector, length) {
            _ if self.disk.read_only => FAILED,
            Some(_) if length == 0 => OK,
            Some(offset) if length <= REQUEST_BYTES_MAX => {
                payload.resize(length as usize, 0);
                if !gather(&self.ram, &self.chain.readable, payload) {
                    return FAILED;
                }
                Outcome::Call(self.call(head, Operation::Write, offset, length))
            }
            _ => FAILED,
        }
    }

    fn identify(&mut self, head: u16) -> Outcome {
        let length = bytes_of(&self.held[usize::from(head)].data).min(SERIAL_BYTES as u64);
        let serial = self.disk.serial();
        self.put_at(head, 0, &serial[..length as usize]);
        Outcome::Status(blk::VIRTIO_BLK_S_OK, length as u32)
    }

    /// A discard or a zeroing of one range.
    fn erase(&mut self, head: u16, operation: Operation) -> Outcome {
        let mut words = [0; RANGE_BYTES as usize];
        let pieces = &self.chain.readable;
        if self.disk.read_only || bytes_of(pieces) != RANGE_BYTES {
            return FAILED;
        }
        if !gather(&self.ram, pieces, &mut words) {
            return FAILED;
        }
        let sector = u64::from_le_bytes(words[..8].try_into().expect("eight bytes"));
        let sectors = u32::from_le_bytes(words[8..12].try_into().expect("four bytes"));
        let flags = u32::from_le_bytes(words[12..].try_into().expect("four bytes"));
        let known = match operation {
            Operation::WriteZeroes => blk::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
            _ => 0,
        };
        if flags & !known != 0 {
            return UNSUPPORTED;
        }
        let length = u64::from(sectors) * SECTOR_BYTES;
        match self.range(sector, length) {
            Some(_) if length == 0 => OK,
            Some(offset) if sectors <= DISCARD_SECTORS_MAX => {
                let mut call = self.call(head, operation, offset, length);
                call.flags.no_hole = operation == Operation::WriteZeroes && flags == 0;
                Outcome::Call(call)
            }
            _ => FAILED,
        }
    }

    fn put_at(&mut self, head: u16, at: u64, mut bytes: &[u8]) {
        let Held { data, cursor: (piece, before), .. } = &mut self.held[usize::from(head)];
        if at < *before {
            (*piece, *before) = (0, 0);
        }
        let mut at = at;
        while let (false, Some(now)) = (bytes.is_empty(), data.get(*piece)) {
            let within = at - *before;
            let room = u64::from(now.length).saturating_sub(within);
            if room == 0 {
                *before += u64::from(now.length);
                *piece += 1;
                continue;
            }
            let count = bytes.len().min(room as usize);
            if let Some(address) = now.address.checked_add(within) {
                // The range was checked when the request was taken; memory does not shrink.
                let _ = self.ram.map.write_slice(&bytes[..count], address);
            }
            at += count as u64;
            bytes = &bytes[count..];
        }
    }

    /// Puts status and bytes written into the guest's memory, and the head into the used ring.
    fn answer(&mut self, head: u16, status: u32, written: u32) -> Result<(), SessionError> {
        let held = &mut self.held[usize::from(head)];
        held.is_held = false;
        // Where the guest gave no memory for it, it has no status to read.
        let _ = self.ram.map.write_obj(status as u8, held.status);
        if let Some(region) = &mut self.inflight {
            region.before_used(head);
        }
        let added = self.queue.add_used(&self.ram.map, head, written.saturating_add(1));
        if let Some(region) = &mut self.inflight {
            region.after_used(head, self.queue.next_used());
        }
        self.has_answered = true;
        self.check_memory()?;
        added.map_err(|_| GONE)
    }

    fn check_memory(&self) -> Result<(), SessionError> {
        if self.ram.is_cut() {
            return broken("a file of the guest's memory was cut");
        }
        match &self.inflight {
            Some(region) if region.is_cut() => broken(INFLIGHT_CUT),
            _ => Ok(()),
        }
    }

    /// Whether the guest wants no interrupt, where it does not say so by index.
    fn is_muted(&self) -> bool {
        let flags =
            self.ram.map.load::<u16>(GuestAddress(self.queue.avail_ring()), Ordering::Relaxed);
        flags.is_ok_and(|flags| u32::from(u16::from_le(flags)) & VRING_AVAIL_F_NO_INTERRUPT != 0)
    }
}

impl GuestRing for BlockRing {
    fn take(&mut self, payload: &mut Vec<u8>) -> Result<Taken, SessionError> {
        if std::mem::take(&mut self.is_listening) {
            self.queue.disable_notification(&self.ram.map).map_err(|_| GONE)?;
        }
        let next = self.next_head()?;
        let judged = next.map(|(head, _)| self.judge(head, payload)).transpose();
        // What was read of a region that is gone is not the guest's.
        self.check_memory()?;
        let (Some((head, is_marked)), Some(outcome)) = (next, judged?) else {
            return Ok(Taken::Nothing);
        };
        match outcome {
            Outcome::Call(call) => {
                if let Some(region) = self.inflight.as_mut().filter(|_| !is_marked) {
                    region.on_taken(head);
                }
                self.check_memory()?;
                self.held[usize::from(head)].is_held = true;
                Ok(Taken::Call(call))
            }
            Outcome::Status(status, written) => {
                self.answer(head, status, written)?;
                Ok(Taken::Answered)
            }
        }
    }

    fn put(&mut self, call: &Call, at: u64, bytes: &[u8]) {
        self.put_at(call.cookie as u16, at, bytes);
    }

    fn finish(&mut self, call: &Call, result: Result<(), ErrorKind>) -> Result<(), SessionError> {
        let head = call.cookie as u16;
        assert!(self.held[usize::from(head)].is_held, "a call is answered once");
        let written = if call.operation == Operation::Read { call.length as u32 } else { 0 };
        match result {
            Ok(()) => self.answer(head, blk::VIRTIO_BLK_S_OK, written),
            Err(ErrorKind::Unsupported) => self.answer(head, blk::VIRTIO_BLK_S_UNSUPP, 0),
            Err(_) => self.answer(head, blk::VIRTIO_BLK_S_IOERR, 0),
        }
    }

    fn listen(&mut self) -> Result<bool, SessionError> {
        self.is_listening = true;
        let has_more = self.queue.enable_notification(&self.ram.map).map_err(|_| GONE)?;
        self.check_memory().map(|()| has_more)
    }

    fn take_signal(&mut self) -> bool {
        if !std::mem::take(&mut self.has_answered) {
            return false;
        }
        if self.queue.event_idx_enabled() {
            return self.queue.needs_notification(&self.ram.map).unwrap_or(true);
        }
        // Answers must be there before the guest's wish is read.
        std::sync::atomic::fence(Ordering::SeqCst);
        !self.is_muted()
    }

    fn base(&self) -> u16 {
        self.queue.next_avail()
    }

    fn is_tracked(&self) -> bool {
        self.inflight.is_some()
    }
}

/// Copies the first bytes of pieces; false when there are fewer, or they are not the guest's.
fn gather(ram: &GuestRam, pieces: &[Piece], mut out: &mut [u8]) -> bool {
    for piece in pieces {
        let count = out.len().min(piece.length as usize);
        let (now, rest) = out.split_at_mut(count);
        if ram.map.read_slice(now, piece.address).is_err() {
            return false;
        }
        out = rest;
        if out.is_empty() {
            return true;
        }
    }
    out.is_empty()
}

fn lie_within(ram: &GuestRam, pieces: &[Piece]) -> bool {
    pieces.iter().all(|piece| ram.map.check_range(piece.address, piece.length as usize))
}
